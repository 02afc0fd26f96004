//! The way to the store is long, too long, silent, or cut: leases while answers come in time, floors while they do not, and no more than the
//! bound in all.

#[path = "common/busy.rs"]
mod busy;
#[path = "common/proxy.rs"]
mod proxy;
#[path = "common/server.rs"]
mod server;
#[path = "common/waiting.rs"]
mod waiting;

use std::time::{Duration, Instant};

use quotient::Scheduler;
use quotient_fleet::{
    Allowance, Fleet, FleetLimit, HolderFigures, MicroCpus, Micros, RedisStore, Store,
};

use self::busy::burn;
use self::proxy::Proxy;
use self::waiting::until;

/// A hang is a failure after this long.
const PATIENCE: Duration = Duration::from_secs(60);

const QUOTA: f64 = 0.3;
const FLOOR: f64 = 0.01;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_way_costs_no_lease_and_one_that_is_too_long_leaves_a_floor() {
    let Some(server) = server::start("way", &[]) else {
        return;
    };
    let limit = FleetLimit::new(MicroCpus::from_cpus(QUOTA)).with_processes(1);
    let near = RedisStore::new(&server.address()).expect("an address");
    let near = near.within(PATIENCE);
    near.set("tenants/acme", limit).await.expect("set");
    let proxy = Proxy::start(server.port()).await.expect("a proxy");
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let group = scheduler.group("tenants/acme").expect("a path");
    let group = group.create().expect("a group");
    let begun = Instant::now();
    let fleet = Fleet::builder(&format!("redis://127.0.0.1:{}", proxy.port))
        .floor(FLOOR)
        .start(&scheduler)
        .expect("a fleet");
    assert!(fleet.adopt(&group), "below the prefix");
    group.spawn(burn());
    let figures = || -> HolderFigures { fleet.stats()[0].figures };
    let leases_again = |what: &'static str| {
        let before = figures().granted;
        until(PATIENCE, what, move || figures().granted >= before + 3)
    };
    let on_floor = || matches!(fleet.stats()[0].allowance, Allowance::Floor(_));
    // There and back within the patience of a quarter of a lease.
    proxy.delay(Duration::from_millis(40));
    leases_again("a lease by a long way").await;
    // Beyond it: each answer comes when nobody waits for it any more.
    proxy.delay(Duration::from_millis(500));
    let late = fleet.figures().late;
    until(PATIENCE, "a late round trip", || {
        fleet.figures().late > late
    })
    .await;
    until(PATIENCE, "a floor", on_floor).await;
    proxy.delay(Duration::ZERO);
    leases_again("a lease by a short way").await;
    proxy.hold();
    until(PATIENCE, "a floor in silence", on_floor).await;
    proxy.mend();
    leases_again("a lease after silence").await;
    proxy.cut();
    until(PATIENCE, "a floor without a way", on_floor).await;
    proxy.mend();
    leases_again("a lease by a new way").await;
    // What was charged is exact, however slow the machine is: quota and floors, one lease, one second's floors.
    let charged = figures().used + figures().floor_used;
    let floors = QUOTA / FleetLimit::FLOORS_DIVISOR as f64 + FLOOR;
    let lease = QUOTA * limit.lease.0 as f64 / 1e6;
    let most = (QUOTA + floors) * begun.elapsed().as_secs_f64() + lease + floors;
    assert!(
        charged <= Micros((most * 1e6) as u64),
        "{charged} of at most {most} s"
    );
    drop(fleet);
    scheduler.shutdown().await;
}
