//! Hazards of settings that change together: a half of them in force, a tenant that comes later without them, and a reload that
//! takes away what the program set.

use std::time::Duration;

use quotient::{
    BandwidthRules, Config, Error, Group, GroupConfig, Leftover, RatioRule, Scheduler, Share,
};

fn scheduler() -> Scheduler {
    let builder = Scheduler::builder().vcpus(2);
    builder.build().expect("a scheduler of two virtual CPUs")
}

fn limit(group: &Group) -> Option<String> {
    group.max().map(|limit| limit.to_string())
}

fn find(scheduler: &Scheduler, path: &str) -> Group {
    scheduler.find(path).expect(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_config_makes_groups_and_changes_those_that_are_there() {
    let scheduler = scheduler();
    let web = scheduler.group("web").unwrap().weight(7).create().unwrap();
    let mut config = Config::new();
    config.set_group("web", GroupConfig::new().max(Share(0.25)));
    config.set_group("a/b/c", GroupConfig::new().weight(300).idle(true));
    let applied = scheduler.apply(&config).unwrap();
    assert_eq!((applied.created, applied.changed), (3, 1));
    assert_eq!(limit(&web).as_deref(), Some("50000 100000"));
    assert_eq!(web.weight(), 7, "what no config speaks of is the program's");
    assert_eq!(find(&scheduler, "a/b/c").weight(), 300);
    assert_eq!(find(&scheduler, "a/b").weight(), 100);
    let again = scheduler.apply(&config).unwrap();
    assert_eq!((again.created, again.changed), (0, 0));
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_config_cannot_say_whose_polls_are_preempted() {
    let scheduler = scheduler();
    scheduler.group("web/pool").unwrap().create().unwrap();
    let changed = |config: &Config| scheduler.apply(config).unwrap().changed;
    let mut config = Config::new();
    config.set_group("web", GroupConfig::new().preemptible(false));
    assert_eq!(changed(&config), 1);
    assert_eq!(changed(&config), 0, "it was so before");
    config.set_children("web", GroupConfig::new().preemptible(true));
    assert_eq!(changed(&config), 0, "what holds above holds below");
    config.set_group("web", GroupConfig::new());
    assert_eq!(changed(&config), 2, "as new groups again");
    scheduler.shutdown().await;
}

/// Hazard: what an operator has taken back goes on to hold, as its contrary: no group below can be exempt any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_config_no_longer_says_of_a_parent_still_binds_its_children() {
    let scheduler = scheduler();
    scheduler.group("web/pool").unwrap().create().unwrap();
    let changed = |config: &Config| scheduler.apply(config).unwrap().changed;
    let said = |path: &str, preemptible: bool| {
        let mut config = Config::new();
        config.set_group(path, GroupConfig::new().preemptible(preemptible));
        config
    };
    for preemptible in [false, true] {
        changed(&said("web", preemptible));
        changed(&Config::new());
        assert_eq!(changed(&said("web/pool", false)), 1, "after {preemptible}");
        assert_eq!(changed(&Config::new()), 1, "after {preemptible}");
    }
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_part_changes_nothing() {
    let scheduler = scheduler();
    let web = scheduler.group("web").unwrap().weight(7).create().unwrap();
    let bad = [
        GroupConfig::new().weight(0),
        GroupConfig::new().max("0ms/100ms"),
        GroupConfig::new().max("fast"),
        GroupConfig::new().burst(Duration::from_millis(1)),
        GroupConfig::new().max(Share(0.001)),
    ];
    for bad in bad {
        let mut config = Config::new();
        config.set_group("new", GroupConfig::new().weight(5));
        config.set_group("web", GroupConfig::new().weight(9).max("50ms/100ms"));
        config.set_group("zz/last", bad.clone());
        let error = scheduler.apply(&config).expect_err("one part is bad");
        assert_eq!(error.path, "zz/last");
        assert_eq!((web.weight(), limit(&web)), (7, None), "{bad:?}");
        assert!(scheduler.find("new").is_err(), "{bad:?}");
        assert_eq!(*scheduler.config(), Config::new());
    }
    // What only the scheduler can know: a group that is being removed, for as long as its last poll takes.
    let busy = scheduler.group("busy").unwrap().create().unwrap();
    let (polled, is_polled) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let task = busy.spawn(async move {
        polled.send(()).ok();
        released.recv().ok();
    });
    is_polled.recv().expect("the task is polled");
    busy.remove(Leftover::Kill).unwrap();
    let mut config = Config::new();
    config.set_group("a-new", GroupConfig::new());
    config.set_group("busy/later", GroupConfig::new());
    let error = scheduler.apply(&config).expect_err("it is being removed");
    let path = "busy".to_owned();
    assert_eq!(*error.error, Error::Removed { path });
    assert!(scheduler.find("a-new").is_err());
    release.send(()).ok();
    task.await.ok();
    scheduler.shutdown().await;
    let shut = scheduler.apply(&Config::new()).expect_err("it has ended");
    assert_eq!(*shut.error, Error::ShutDown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_hold_only_together_are_taken_together() {
    let rules = BandwidthRules::Kernel {
        ratio: RatioRule::V1,
        slice_expiry: false,
    };
    let builder = Scheduler::builder().vcpus(2).bandwidth_rules(rules);
    let scheduler = builder.build().unwrap();
    let limits = |above: &str, below: &str| {
        let mut config = Config::new();
        config.set_group("a", GroupConfig::new().max(above));
        config.set_group("a/b", GroupConfig::new().max(below));
        config
    };
    scheduler
        .apply(&limits("50ms/100ms", "40ms/100ms"))
        .unwrap();
    // The upper falls below what the lower had, and the lower with it; then both rise above what the upper had.
    scheduler
        .apply(&limits("20ms/100ms", "10ms/100ms"))
        .unwrap();
    scheduler
        .apply(&limits("90ms/100ms", "80ms/100ms"))
        .unwrap();
    let error = scheduler.apply(&limits("60ms/100ms", "70ms/100ms"));
    assert_eq!(error.expect_err("the lower is above").path, "a/b");
    let (upper, lower) = (find(&scheduler, "a"), find(&scheduler, "a/b"));
    assert_eq!(limit(&upper).as_deref(), Some("90000 100000"));
    assert_eq!(limit(&lower).as_deref(), Some("80000 100000"));
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_comes_later_has_the_defaults() {
    let scheduler = scheduler();
    let early = scheduler.group("tenants/early").unwrap().create().unwrap();
    let mut config = Config::new();
    config.set_children(
        "tenants",
        GroupConfig::new().weight(50).max("20ms/100ms").tasks_max(1),
    );
    config.set_group("tenants/acme", GroupConfig::new().weight(300));
    config.set_group("tenants/free", GroupConfig::new().max("max"));
    scheduler.apply(&config).unwrap();
    assert_eq!((early.weight(), limit(&early).is_some()), (50, true));
    let acme = find(&scheduler, "tenants/acme");
    assert_eq!((acme.weight(), limit(&acme).is_some()), (300, true));
    assert_eq!(limit(&find(&scheduler, "tenants/free")), None);
    // The program's word goes before the defaults; the operator's about this very group goes before the program's.
    let late = scheduler
        .group("tenants/late/below")
        .unwrap()
        .create()
        .unwrap();
    assert_eq!((late.weight(), limit(&late)), (100, None));
    let late = find(&scheduler, "tenants/late");
    assert_eq!((late.weight(), limit(&late).is_some()), (50, true));
    let own = scheduler
        .group("tenants/own")
        .unwrap()
        .weight(70)
        .create()
        .unwrap();
    assert_eq!((own.weight(), limit(&own).is_some()), (70, true));
    acme.remove(Leftover::Refuse).unwrap();
    let acme = scheduler
        .group("tenants/acme")
        .unwrap()
        .weight(1)
        .create()
        .unwrap();
    assert_eq!(acme.weight(), 300);
    let first = acme
        .try_spawn(std::future::pending::<()>())
        .expect("one is allowed");
    assert!(acme.try_spawn(async {}).is_err(), "tasks_max is 1");
    first.abort();
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_longer_said_goes_back_and_what_the_program_set_stays() {
    let scheduler = scheduler();
    let mut config = Config::new();
    config.set_group("web", GroupConfig::new().weight(300).max("50ms/100ms"));
    config.set_children("tenants", GroupConfig::new().weight(50).max("20ms/100ms"));
    scheduler.apply(&config).unwrap();
    let web = find(&scheduler, "web");
    let tenant = scheduler.group("tenants/x").unwrap().create().unwrap();
    tenant.set_weight(77).unwrap();
    web.set_weight(9).unwrap();
    let mut next = Config::new();
    next.set_group("web", GroupConfig::new().weight(300));
    next.set_children("tenants", GroupConfig::new().weight(50).max("30ms/100ms"));
    scheduler.apply(&next).unwrap();
    assert_eq!((web.weight(), limit(&web)), (300, None));
    assert_eq!(
        tenant.weight(),
        77,
        "the default weight is the same as before"
    );
    assert_eq!(limit(&tenant).as_deref(), Some("30000 100000"));
    scheduler.apply(&Config::new()).unwrap();
    assert_eq!((web.weight(), limit(&web)), (100, None));
    assert_eq!((tenant.weight(), limit(&tenant)), (100, None));
    scheduler.shutdown().await;
}
