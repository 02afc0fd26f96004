//! Real schedulers under a fleet's limit, on this machine's processors.

#[path = "common/busy.rs"]
mod busy;
#[path = "common/server.rs"]
mod server;
#[path = "common/waiting.rs"]
mod waiting;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quotient::Scheduler;
use quotient_fleet::{
    Allowance, Fleet, FleetError, FleetLimit, MemoryStore, MicroCpus, Micros, RedisStore, Reply,
    Request, Store, StoreError,
};

use self::busy::burn;
use self::waiting::until;

/// A hang is a failure after this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A local limit in CPUs.
fn cpus(limit: quotient::Limit) -> f64 {
    limit.ratio() as f64 / f64::from(1 << 20)
}

fn limit() -> FleetLimit {
    FleetLimit::new(MicroCpus(300_000)).with_lease(Micros::from_millis(400))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_alone_has_the_whole_budget() {
    let scheduler = Scheduler::builder().build().expect("a scheduler");
    let group = scheduler
        .group("tenants/acme")
        .expect("a path")
        .create()
        .expect("a group");
    let other = scheduler
        .group("tenants/free")
        .expect("a path")
        .max("50ms/100ms")
        .create()
        .expect("a group");
    let fleet = Fleet::embedded().start(&scheduler).expect("a fleet");
    fleet.set("tenants/acme", limit()).await.expect("set");
    group.spawn(burn());
    let leased = || {
        let stats = fleet.stats();
        stats.iter().any(|tenant| {
            tenant.path == "tenants/acme" && tenant.figures.used > Micros::from_millis(60)
        })
    };
    until(PATIENCE, "a lease", leased).await;
    // Never more than the quota, a lease, the floors and a period have earned, however slow the machine is.
    let begun = Instant::now();
    let before = group.cpu_time();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let used = group.cpu_time() - before;
    let most = begun.elapsed().mul_f64(0.3 * 1.05) + Duration::from_millis(400 + 60);
    assert!(used <= most, "{used:?} of at most {most:?}");
    let max = group.max().expect("a limit");
    assert!(max.quota.as_nanos() < max.period.as_nanos(), "{max}");
    // Without a limit in the fleet the local one is what it was.
    until(PATIENCE, "an answer", || {
        let stats = fleet.stats();
        stats
            .iter()
            .any(|tenant| tenant.path == "tenants/free" && tenant.allowance == Allowance::Unlimited)
    })
    .await;
    until(PATIENCE, "the local limit", || {
        other
            .max()
            .is_some_and(|max| max.to_string() == "50000 100000")
    })
    .await;
    // And the smaller of both counts where there are both.
    group.set_max("1ms/100ms").expect("a limit");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let max = group.max().expect("a limit");
    assert!(max.quota.as_nanos() * 100 <= max.period.as_nanos(), "{max}");
    drop(fleet);
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_store_groups_run_on_floors_and_never_freely() {
    let scheduler = Scheduler::builder().build().expect("a scheduler");
    let group = scheduler
        .group("tenants/acme")
        .expect("a path")
        .create()
        .expect("a group");
    // Nobody listens there.
    let fleet = Fleet::builder("redis://127.0.0.1:1")
        .floor(0.02)
        .start(&scheduler)
        .expect("a fleet");
    fleet.adopt(&group);
    group.spawn(burn());
    until(PATIENCE, "a failure", || fleet.figures().away).await;
    assert!(matches!(
        fleet.stats()[0].allowance,
        Allowance::Floor(MicroCpus(20_000))
    ));
    let begun = Instant::now();
    let before = group.cpu_time();
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let used = group.cpu_time() - before;
    let most = begun.elapsed().mul_f64(0.02) + Duration::from_millis(20 + 20);
    assert!(used <= most, "{used:?} of at most {most:?}");
    drop(fleet);
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_and_survive_their_store() {
    let Some(mut server) = server::start("agent", &[]) else {
        return;
    };
    let mut parts = Vec::new();
    for _ in 0..2 {
        let scheduler = Scheduler::builder().build().expect("a scheduler");
        let group = scheduler
            .group("tenants/acme")
            .expect("a path")
            .create()
            .expect("a group");
        let fleet = Fleet::builder(&server.address())
            .start(&scheduler)
            .expect("a fleet");
        fleet.adopt(&group);
        parts.push((scheduler, group, fleet));
    }
    // A server that gets no processor in time is asked again.
    let begun = Instant::now();
    while let Err(error) = parts[0].2.set("tenants/acme", limit()).await {
        assert!(begun.elapsed() < PATIENCE, "{error}");
    }
    for (_, group, _) in &parts {
        group.spawn(burn());
    }
    let leases = || {
        let mut each = parts
            .iter()
            .map(|(_, _, fleet)| fleet.stats()[0].figures.used);
        each.all(|used| used > Micros::from_millis(30))
    };
    until(PATIENCE, "a lease each", leases).await;
    server.kill();
    let floors = || {
        let mut each = parts.iter().map(|(_, _, fleet)| fleet.stats()[0].allowance);
        each.all(|allowance| matches!(allowance, Allowance::Floor(_)))
    };
    until(PATIENCE, "floors", floors).await;
    // An empty server: the limit comes back from those who knew it.
    server.restart().expect("a server again");
    let used: Vec<_> = parts
        .iter()
        .map(|(_, _, fleet)| fleet.stats()[0].figures.used)
        .collect();
    until(PATIENCE, "leases again", || {
        let now = parts
            .iter()
            .map(|(_, _, fleet)| fleet.stats()[0].figures.used);
        now.zip(&used)
            .all(|(now, before)| now > *before + Micros::from_millis(20))
    })
    .await;
    for (scheduler, _, fleet) in parts {
        drop(fleet);
        scheduler.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_removed_and_made_again_has_a_budget() {
    let scheduler = Scheduler::builder().build().expect("a scheduler");
    let make = || {
        let group = scheduler.group("tenants/acme").expect("a path");
        group.create().expect("a group")
    };
    let fleet = Fleet::embedded().start(&scheduler).expect("a fleet");
    fleet.set("tenants/acme", limit()).await.expect("set");
    let limited = |group: &quotient::Group| group.max().is_some_and(|max| cpus(max) < 1.0);
    let first = make();
    until(PATIENCE, "a limit", || limited(&first)).await;
    first.remove(quotient::Leftover::Refuse).expect("removed");
    let second = make();
    until(PATIENCE, "a limit of the second", || limited(&second)).await;
    // Groups elsewhere have none.
    let elsewhere = scheduler.group("others/acme").expect("a path");
    let elsewhere = elsewhere.create().expect("a group");
    assert!(!fleet.adopt(&elsewhere));
    assert!(fleet.adopt(&second));
    assert_eq!(elsewhere.max(), None);
    drop(fleet);
    scheduler.shutdown().await;
}

/// A group begins with a whole period of its local limit. Groups that are made again and again are to have what one has that stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_made_again_and_again_mints_no_floors() {
    const LIVES: u32 = 60;
    let scheduler = Scheduler::builder().build().expect("a scheduler");
    // Nobody listens there.
    let fleet = Fleet::builder("redis://127.0.0.1:1")
        .floor(0.03)
        .start(&scheduler)
        .expect("a fleet");
    let begun = Instant::now();
    let mut used = Duration::ZERO;
    for _ in 0..LIVES {
        let made = || {
            scheduler
                .group("tenants/acme")
                .expect("a path")
                .create()
                .ok()
        };
        until(PATIENCE, "the name", || {
            scheduler.find("tenants/acme").is_err()
        })
        .await;
        let group = made().expect("a group");
        assert!(fleet.adopt(&group));
        group.spawn(burn());
        tokio::time::sleep(Duration::from_millis(20)).await;
        group.remove(quotient::Leftover::Kill).expect("removed");
        until(PATIENCE, "its end", || {
            scheduler.find("tenants/acme").is_err()
        })
        .await;
        used += group.cpu_time();
    }
    // Each has 1 ms, the least that a local limit can say, and one poll of 200 us, twice that beside others.
    let most = begun.elapsed().mul_f64(0.03)
        + Duration::from_millis(30)
        + LIVES * Duration::from_micros(1_400);
    assert!(used <= most, "{used:?} of at most {most:?}");
    drop(fleet);
    scheduler.shutdown().await;
}

/// A process that ends in order leaves nothing behind for which others would have to wait; one that is only dropped does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_gives_lease_and_floor_back() {
    let Some(server) = server::start("leaves", &[]) else {
        return;
    };
    let store = Arc::new(RedisStore::new(&server.address()).expect("an address"));
    let one = limit().with_processes(1);
    store.set("tenants/acme", one).await.expect("set");
    let begin = || {
        let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
        let group = scheduler.group("tenants/acme").expect("a path");
        let group = group.create().expect("a group");
        let fleet = Fleet::builder("").start_on(&scheduler, store.clone());
        let fleet = fleet.expect("a fleet");
        assert!(fleet.adopt(&group), "below the prefix");
        group.spawn(burn());
        (scheduler, group, fleet)
    };
    for _ in 0..2 {
        let (scheduler, group, fleet) = begin();
        let granted = || fleet.stats()[0].figures.granted > 0;
        until(PATIENCE, "a lease", granted).await;
        fleet.leave().await.expect("told");
        let (_, figures) = store.get("tenants/acme").await.expect("got").expect("set");
        assert_eq!((figures.leases, figures.floors), (0, 0), "{figures:?}");
        assert_eq!(figures.held, Micros::ZERO);
        let max = group.max().expect("a limit");
        assert!(cpus(max) < 0.0011, "{max}");
        scheduler.shutdown().await;
    }
    let (scheduler, _group, fleet) = begin();
    until(PATIENCE, "a lease", || fleet.stats()[0].figures.granted > 0).await;
    drop(fleet);
    let (_, figures) = store.get("tenants/acme").await.expect("got").expect("set");
    assert_eq!(figures.floors, 1, "{figures:?}");
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_written_by_hand_is_kept_beside_the_lease() {
    let scheduler = Scheduler::builder().build().expect("a scheduler");
    let group = scheduler.group("tenants/acme").expect("a path");
    let group = group.create().expect("a group");
    let fleet = Fleet::embedded().start(&scheduler).expect("a fleet");
    fleet.set("tenants/acme", limit()).await.expect("set");
    group.spawn(burn());
    let lease = || matches!(fleet.stats()[0].allowance, Allowance::Lease(_));
    until(PATIENCE, "a lease", || !fleet.stats().is_empty() && lease()).await;
    // Burst on a limit of ours goes with the next write, and the limit does not stay for good.
    let now = group.max().expect("a limit");
    group
        .set_burst(Duration::from_micros(100))
        .expect("a burst");
    until(PATIENCE, "a limit without it", || {
        group
            .max()
            .is_some_and(|max| max.burst == quotient::Nanos(0))
    })
    .await;
    assert!(now.burst == quotient::Nanos(0));
    // A hand's limit that is smaller than any lease is in force; a larger one leaves the lease in force. Not 1 ms: that is the floor, which is in
    // force where the machine was too slow to renew a lease, and what a hand writes exactly as we did cannot be told from ours.
    group.set_max("2ms/1s").expect("a limit");
    until(PATIENCE, "the lease's end", || {
        fleet.stats()[0].figures.asked > 3
    })
    .await;
    let in_force = group.max().expect("a limit");
    assert!(cpus(in_force) < 0.0021, "{in_force}");
    group.set_max("4s/1s").expect("a limit");
    until(PATIENCE, "a lease in force", || {
        group.max().is_some_and(|max| cpus(max) < 2.0)
    })
    .await;
    // Without a limit in the fleet it is the hand's again.
    let free = FleetLimit {
        quota: None,
        ..limit()
    };
    fleet.set("tenants/acme", free).await.expect("set");
    until(PATIENCE, "the hand's limit", || {
        group.max().is_some_and(|max| cpus(max) > 3.9)
    })
    .await;
    drop(fleet);
    scheduler.shutdown().await;
}

#[tokio::test]
async fn a_prefix_without_its_slash_is_the_same_and_one_that_is_no_path_is_refused() {
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let make = |path: &str| {
        let group = scheduler.group(path).expect("a path");
        group.create().expect("a group")
    };
    let start = |prefix: &str| {
        let fleet = Fleet::embedded().group_prefix(prefix);
        fleet.start(&scheduler)
    };
    let (below, beside, root) = (make("tenants/acme"), make("tenants-acme"), make("acme"));
    for prefix in ["tenants", "tenants/"] {
        let fleet = start(prefix).expect("a fleet");
        assert!(fleet.adopt(&below), "{prefix}");
        assert!(!fleet.adopt(&beside), "{prefix}");
        assert!(!fleet.adopt(&root), "{prefix}");
    }
    let fleet = start("").expect("a fleet");
    assert!(fleet.adopt(&root) && !fleet.adopt(&below));
    drop(fleet);
    for prefix in ["/", "/tenants", "tenants//", "a//b/"] {
        let refused = start(prefix).err();
        assert_eq!(refused, Some(FleetError::Prefix(prefix.to_owned())));
    }
    for floor in [f64::INFINITY, 10_001.0] {
        let refused = Fleet::embedded().floor(floor).start(&scheduler).err();
        assert!(
            matches!(refused, Some(FleetError::Store(StoreError::Limit(_)))),
            "{refused:?}"
        );
    }
    scheduler.shutdown().await;
}

/// Two fleets over the same groups would take each other's limits for local ones, and the smaller of both only falls.
#[tokio::test]
async fn a_second_fleet_over_the_same_groups_is_refused_until_the_first_is_dropped() {
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let other = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let start = |prefix: &str, on: &Scheduler| {
        let fleet = Fleet::embedded().group_prefix(prefix);
        fleet.start(on)
    };
    let first = start("tenants/", &scheduler).expect("a fleet");
    for prefix in ["tenants", "tenants/"] {
        let refused = start(prefix, &scheduler).err();
        let taken = FleetError::Taken("tenants/".to_owned());
        assert_eq!(refused, Some(taken), "{prefix}");
    }
    let elsewhere = start("others/", &scheduler).expect("other groups");
    let there = start("tenants/", &other).expect("another scheduler");
    drop(first);
    let next = start("tenants/", &scheduler).expect("the first is gone");
    drop((next, elsewhere, there));
    scheduler.shutdown().await;
    other.shutdown().await;
}

/// A limit under a name that no group can have would hold for nobody, and nobody would say so.
#[tokio::test]
async fn a_limit_for_a_name_that_no_group_can_have_is_refused() {
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let fleet = Fleet::embedded().start(&scheduler).expect("a fleet");
    let memory = MemoryStore::new();
    // Nobody listens there; nobody is asked.
    let redis = RedisStore::new("redis://127.0.0.1:1").expect("an address");
    let long = "t".repeat(70_000);
    for name in ["", "tenants/", "/tenants/x", "tenants/a\nb", &long] {
        let refused = fleet.set(name, limit()).await;
        assert!(matches!(refused, Err(StoreError::Tenant(_))), "{refused:?}");
        assert_eq!(Store::set(&memory, name, limit()).await, refused);
        assert_eq!(redis.set(name, limit()).await, refused);
    }
    drop(fleet);
    scheduler.shutdown().await;
}

/// A store that takes its time for each request, one after the other, whether anybody still waits for the answer or not.
struct SlowStore {
    store: MemoryStore,
    each: Duration,
    begun: Instant,
    busy_until: Mutex<Instant>,
}

impl Store for SlowStore {
    async fn exchange(&self, questions: &[(&str, Request)]) -> Vec<Result<Reply, StoreError>> {
        let done = {
            let mut busy_until = self.busy_until.lock().expect("nobody panicked");
            let count = u32::try_from(questions.len()).expect("few");
            *busy_until = (*busy_until).max(Instant::now()) + self.each * count;
            *busy_until
        };
        tokio::time::sleep_until(done.into()).await;
        let passed = self.begun.elapsed().as_micros();
        let now = Micros(u64::try_from(passed).expect("short"));
        self.store.set_time(Micros::from_secs(1_000) + now);
        self.store.exchange(questions).await
    }

    async fn set(&self, tenant: &str, limit: FleetLimit) -> Result<u64, StoreError> {
        Store::set(&self.store, tenant, limit).await
    }

    async fn memory(&self) -> Result<u64, StoreError> {
        self.store.memory().await
    }
}

/// 200 tenants that all ask at once are 2.4 s of a store that is given up after 2 s: where the batch stays as it is, each round trip
/// fails, and none of them is ever answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_too_slow_for_all_at_once_answers_them_in_parts() {
    const TENANTS: usize = 200;
    let scheduler = Scheduler::builder().build().expect("a scheduler");
    let store = Arc::new(SlowStore {
        store: MemoryStore::new(),
        each: Duration::from_millis(12),
        begun: Instant::now(),
        busy_until: Mutex::new(Instant::now()),
    });
    for number in 0..TENANTS {
        let path = format!("tenants/t{number:03}");
        store.store.set_limit(&path, limit()).expect("a limit");
        let group = scheduler.group(&path).expect("a path");
        group.create().expect("a group");
    }
    let fleet = Fleet::builder("")
        .start_on(&scheduler, store)
        .expect("a fleet");
    until(PATIENCE, "an answer for each of them", || {
        let stats = fleet.stats();
        stats.len() == TENANTS && stats.iter().all(|tenant| tenant.limit.is_some())
    })
    .await;
    assert!(fleet.figures().late > 0, "it was quick enough for all");
    drop(fleet);
    scheduler.shutdown().await;
}
