//! The way to the store is long, too long, silent, dead, or cut: leases while answers come in time, floors while they do not, and no more than the
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
    private_server::PrivateServer,
};

use self::busy::burn;
use self::proxy::Proxy;
use self::waiting::until;

/// A hang is a failure after this long.
const PATIENCE: Duration = Duration::from_secs(60);

const QUOTA: f64 = 0.3;
const FLOOR: f64 = 0.01;

/// One process with one busy tenant whose way to the store leads through a proxy.
struct Rig {
    server: PrivateServer,
    proxy: Proxy,
    scheduler: Scheduler,
    fleet: Fleet,
    limit: FleetLimit,
    begun: Instant,
}

impl Rig {
    /// Each direction takes `delay` from the beginning on. `None` without a server to run.
    async fn start(name: &str, lease: Micros, delay: Duration) -> Option<Rig> {
        let server = server::start(name, &[])?;
        let limit = FleetLimit::new(MicroCpus::from_cpus(QUOTA)).with_processes(1);
        let limit = limit.with_lease(lease);
        let near = RedisStore::new(&server.address()).expect("an address");
        let near = near.within(PATIENCE);
        near.set("tenants/acme", limit).await.expect("set");
        let proxy = Proxy::start(server.port()).await.expect("a proxy");
        proxy.delay(delay);
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
        Some(Rig {
            server,
            proxy,
            scheduler,
            fleet,
            limit,
            begun,
        })
    }

    fn figures(&self) -> HolderFigures {
        self.fleet.stats()[0].figures
    }

    fn is_on_floor(&self) -> bool {
        matches!(self.fleet.stats()[0].allowance, Allowance::Floor(_))
    }

    async fn leases_again(&self, what: &'static str) {
        let before = self.figures().granted;
        until(PATIENCE, what, || self.figures().granted >= before + 3).await;
    }

    /// What was charged is exact, however slow the machine is: quota and floors, one lease, one second's floors.
    async fn end(self) {
        let charged = self.figures().used + self.figures().floor_used;
        let floors = QUOTA / FleetLimit::FLOORS_DIVISOR as f64 + FLOOR;
        let lease = QUOTA * self.limit.lease.0 as f64 / 1e6;
        let most = (QUOTA + floors) * self.begun.elapsed().as_secs_f64() + lease + floors;
        assert!(
            charged <= Micros((most * 1e6) as u64),
            "{charged} of at most {most} s"
        );
        drop(self.fleet);
        self.scheduler.shutdown().await;
        drop(self.server);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_way_costs_no_lease_and_one_that_is_too_long_leaves_a_floor() {
    let Some(rig) = Rig::start("way", Micros::SECOND, Duration::ZERO).await else {
        return;
    };
    // There and back within the patience of a quarter of a lease.
    rig.proxy.delay(Duration::from_millis(40));
    rig.leases_again("a lease by a long way").await;
    // Beyond it: each answer comes when nobody waits for it any more.
    rig.proxy.delay(Duration::from_millis(500));
    let late = rig.fleet.figures().late;
    until(PATIENCE, "a late round trip", || {
        rig.fleet.figures().late > late
    })
    .await;
    until(PATIENCE, "a floor", || rig.is_on_floor()).await;
    rig.proxy.delay(Duration::ZERO);
    rig.leases_again("a lease by a short way").await;
    rig.proxy.hold();
    until(PATIENCE, "a floor in silence", || rig.is_on_floor()).await;
    rig.proxy.mend();
    rig.leases_again("a lease after silence").await;
    rig.proxy.cut();
    until(PATIENCE, "a floor without a way", || rig.is_on_floor()).await;
    rig.proxy.mend();
    rig.leases_again("a lease by a new way").await;
    rig.end().await;
}

/// As after the loss of a machine, or of an address translation: nothing says that the connection is dead but that nobody answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_went_dead_in_silence_is_replaced() {
    let Some(rig) = Rig::start("dead", Micros::SECOND, Duration::ZERO).await else {
        return;
    };
    rig.leases_again("a lease").await;
    rig.proxy.swallow();
    until(PATIENCE, "a floor in silence", || rig.is_on_floor()).await;
    rig.leases_again("a lease by a new connection").await;
    rig.end().await;
}

/// A connection takes several round trips to be made, each of which is longer than a new process waits for an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_far_away_connects_and_leases() {
    let (lease, there) = (Micros::from_secs(4), Duration::from_millis(150));
    let Some(rig) = Rig::start("far", lease, there).await else {
        return;
    };
    rig.leases_again("a lease from afar").await;
    // And again, with what it knows by now.
    rig.proxy.cut();
    until(PATIENCE, "a floor without a way", || rig.is_on_floor()).await;
    rig.proxy.mend();
    rig.leases_again("a lease by a new way").await;
    rig.end().await;
}
