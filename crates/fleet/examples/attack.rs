//! What somebody would try who wants more than a tenant's limit, or to keep a tenant from it, against a private server:
//! `cargo run --release -p quotient-fleet --example attack -- MODE [--seconds=8] [--cpus=0.3] [--processes=10] [--life=20]`.
//!
//! - `flush` empties the store five to seven times, half a second apart: how long has the tenant no lease after that?
//! - `churn` makes a group, works in it, and kills it after `--life` ms, again and again (`--hidden=1`: without `Fleet::adopt`);
//! - `garbage` writes what makes no sense into the keys of two tenants beside a healthy one;
//! - `two` is two schedulers in one process, of which one begins anew all the time.

#[path = "../tests/common/busy.rs"]
mod busy;

use std::error::Error;
use std::time::{Duration, Instant};

use quotient::{Group, Leftover, Scheduler};
use quotient_fleet::private_server::PrivateServer;
use quotient_fleet::{Allowance, Fleet, FleetLimit, MicroCpus, RedisStore, Store};

type Done = Result<(), Box<dyn Error>>;

const TENANTS: [&str; 3] = ["tenants/a", "tenants/b", "tenants/c"];

fn option(name: &str, otherwise: f64) -> f64 {
    let value = |word: String| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    std::env::args().find_map(value).unwrap_or(otherwise)
}

async fn millis(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

fn begin(scheduler: &Scheduler, path: &str) -> Result<Group, Box<dyn Error>> {
    let group = scheduler.group(path)?.create()?;
    (0..2).for_each(|_| drop(group.spawn(busy::burn())));
    Ok(group)
}

fn leases(fleet: &Fleet, path: &str) -> bool {
    let mut stats = fleet.stats().into_iter();
    stats.any(|tenant| tenant.path == path && matches!(tenant.allowance, Allowance::Lease(_)))
}

fn judge(used: Duration, passed: Duration) {
    let most = (passed.mul_f64(1.05) + Duration::from_millis(1_050)).mul_f64(option("--cpus", 0.3));
    let verdict = if used <= most { "holds" } else { "BROKEN" };
    println!("{used:.2?} of CPU in {passed:.1?}, at most {most:.2?}: {verdict}");
}

async fn flush(redis: &mut redis::Connection, scheduler: &Scheduler, fleet: &Fleet) -> Done {
    let group = begin(scheduler, TENANTS[0])?;
    millis(3_000).await;
    for round in 0..6 {
        let (begun, before) = (Instant::now(), group.cpu_time());
        for _ in 0..4 + round % 3 {
            redis::cmd("FLUSHALL").exec(redis)?;
            millis(500).await;
        }
        redis::cmd("FLUSHALL").exec(redis)?;
        let last = Instant::now();
        // A lease that is still there ends first.
        millis(400).await;
        while !leases(fleet, TENANTS[0]) && last.elapsed() < Duration::from_secs(10) {
            millis(5).await;
        }
        print!("leased after {:.2} s; ", last.elapsed().as_secs_f64());
        millis(1_500).await;
        judge(group.cpu_time() - before, begun.elapsed());
    }
    Ok(())
}

async fn churn(scheduler: &Scheduler, fleet: &Fleet) -> Done {
    let (begun, mut ended, mut leased) = (Instant::now(), Vec::new(), 0);
    while begun.elapsed().as_secs_f64() < option("--seconds", 8.0) {
        // The name is free when the last task of the one before is gone.
        let Ok(group) = begin(scheduler, TENANTS[0]) else {
            millis(1).await;
            continue;
        };
        if option("--hidden", 0.0) == 0.0 {
            fleet.adopt(&group);
        }
        millis(option("--life", 20.0) as u64).await;
        leased += u32::from(leases(fleet, TENANTS[0]));
        group.remove(Leftover::Kill)?;
        ended.push(group);
    }
    let passed = begun.elapsed();
    millis(50).await;
    print!("{} lives, {leased} end with a lease; ", ended.len());
    judge(ended.iter().map(Group::cpu_time).sum(), passed);
    Ok(())
}

async fn garbage(redis: &mut redis::Connection, scheduler: &Scheduler, fleet: &Fleet) -> Done {
    let [a, b, c] = TENANTS.map(|path| begin(scheduler, path));
    let groups = [a?, b?, c?];
    millis(2_000).await;
    for field in ["demands", "quiet", "version", "format", "record"] {
        let before = groups.each_ref().map(Group::cpu_time);
        for tenant in &TENANTS[..2] {
            let mut key = format!("quotient:1:{{{tenant}}}:tenant");
            let mut names = vec![field.to_owned()];
            if field == "record" {
                key = format!("quotient:1:{{{tenant}}}:processes");
                names = redis::cmd("HKEYS").arg(&key).query(redis)?;
            }
            for name in names {
                let mut write = redis::cmd("HSET");
                // No list of numbers, a moment of a time to come, and no format of ours.
                write.arg(&key).arg(name).arg("9007199254740990");
                write.exec(redis)?;
            }
        }
        millis(2_500).await;
        let used = [0, 1, 2].map(|index| groups[index].cpu_time() - before[index]);
        let (away, error) = (fleet.figures().away, fleet.figures().last_error);
        redis::cmd("FLUSHALL").exec(redis)?;
        millis(2_500).await;
        let leased = TENANTS.map(|tenant| leases(fleet, tenant));
        println!("{field}: used {used:.0?}, away {away}, {error:?}; leased 2.5 s later {leased:?}");
    }
    Ok(())
}

async fn two(address: &str, scheduler: &Scheduler) -> Done {
    let (group, begun) = (begin(scheduler, TENANTS[0])?, Instant::now());
    let mut used = Duration::ZERO;
    while begun.elapsed().as_secs_f64() < option("--seconds", 8.0) {
        let other = Scheduler::builder().build()?;
        let fleet = Fleet::builder(address).start(&other)?;
        let there = begin(&other, TENANTS[0])?;
        fleet.adopt(&there);
        millis(1_500).await;
        drop(fleet);
        other.shutdown().await;
        used += there.cpu_time();
    }
    print!("{:?} and {used:?}; ", group.cpu_time());
    judge(group.cpu_time() + used, begun.elapsed());
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Done {
    let server = PrivateServer::start(&[])?;
    let quota = MicroCpus::from_cpus(option("--cpus", 0.3));
    let limit = FleetLimit::new(quota).with_processes(option("--processes", 10.0) as u32);
    let store = RedisStore::new(&server.address())?;
    for tenant in TENANTS {
        store.set(tenant, limit).await?;
    }
    let mut redis = redis::Client::open(server.address())?.get_connection()?;
    let scheduler = Scheduler::builder().build()?;
    let fleet = Fleet::builder(&server.address()).start(&scheduler)?;
    match std::env::args().nth(1).as_deref() {
        Some("flush") => flush(&mut redis, &scheduler, &fleet).await,
        Some("churn") => churn(&scheduler, &fleet).await,
        Some("garbage") => garbage(&mut redis, &scheduler, &fleet).await,
        Some("two") => two(&server.address(), &scheduler).await,
        _ => Err("one of flush, churn, garbage, two".into()),
    }
}
