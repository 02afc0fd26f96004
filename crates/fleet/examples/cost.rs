//! What a fleet costs one process with 1,000 tenants: `cargo run --release -p quotient-fleet --example cost`
//! (`-- SECONDS TENANTS CPUS LEASE`: of each row, default 8, 1000, 1 and 1 s). With 1 CPU for ten processes half of a floor is 2.5 ms a second,
//! more than who works here uses: such tenants need no lease. With 0.1 CPU each of them leases.
//!
//! The fleet's task has a runtime and a thread of its own here, so that this thread's processor time is what it costs, the client of the
//! store included. Rows differ in how many tenants work: each computes for 50 us, ten times a second. The store is a private server
//! on loopback.

use std::error::Error;
use std::time::{Duration, Instant};

use quotient::{Group, Scheduler};
use quotient_fleet::private_server::PrivateServer;
use quotient_fleet::{Fleet, FleetFigures, FleetLimit, MicroCpus, Micros, RedisStore, Store};
use rustix::time::{ClockId, clock_gettime};

/// The bar, of one processor.
const BAR: f64 = 0.001;

/// Until every tenant has asked and those that work have leases.
const SETTLE: Duration = Duration::from_secs(20);

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Works a little, for ever.
async fn work() {
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(50) {
            std::hint::spin_loop();
        }
    }
}

/// Runs a fleet on this thread for a while.
fn measure(
    scheduler: &Scheduler,
    address: &str,
    time: Duration,
) -> Result<(Duration, FleetFigures, FleetFigures), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let fleet = Fleet::builder(address).start(scheduler)?;
        tokio::time::sleep(SETTLE).await;
        let (before, first) = (thread_cpu(), fleet.figures());
        tokio::time::sleep(time).await;
        let used = thread_cpu() - before;
        Ok((used, first, fleet.figures()))
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Result<Vec<f64>, _> =
        std::env::args().skip(1).map(|word| word.parse()).collect();
    let arguments = arguments?;
    let argument =
        |index: usize, otherwise: f64| arguments.get(index).copied().unwrap_or(otherwise);
    let time = Duration::from_secs_f64(argument(0, 8.0).clamp(1.0, 600.0));
    let tenants = argument(1, 1_000.0).clamp(1.0, 10_000.0) as usize;
    let limit = FleetLimit::new(MicroCpus::from_cpus(argument(2, 1.0)))
        .with_processes(10)
        .with_lease(Micros((argument(3, 1.0) * 1e6) as u64));
    let server = PrivateServer::start(&[])?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let store = RedisStore::new(&server.address())?;
    let names: Vec<String> = (0..tenants)
        .map(|number| format!("tenants/t{number:05}"))
        .collect();
    for name in &names {
        runtime.block_on(store.set(name, limit))?;
    }
    println!(
        "| tenants | of which work | CPU of the fleet's task | round trips/s | requests/s | failed |"
    );
    println!("|---|---|---|---|---|---|");
    for working in [0, 10, 100, 1_000].map(|working: usize| working.min(tenants)) {
        let _entered = runtime.enter();
        let scheduler = Scheduler::builder().build()?;
        let groups: Result<Vec<Group>, _> = names
            .iter()
            .map(|name| scheduler.group(name)?.create())
            .collect();
        let groups = groups?;
        for group in groups.iter().take(working) {
            group.spawn(work());
        }
        let (address, of) = (server.address(), scheduler.clone());
        let thread = std::thread::spawn(move || {
            measure(&of, &address, time).map_err(|error| error.to_string())
        });
        let (used, first, last) = thread.join().map_err(|_| "the fleet's thread panicked")??;
        let part = used.as_secs_f64() / time.as_secs_f64();
        let each = |count: u64| count as f64 / time.as_secs_f64();
        println!(
            "| {tenants} | {working} | {:.3} %{} | {:.1} | {:.1} | {} |",
            100.0 * part,
            if part <= BAR { "" } else { " (missed: 0.1 %)" },
            each(last.exchanges - first.exchanges),
            each(last.requests - first.requests),
            last.errors - first.errors,
        );
        runtime.block_on(scheduler.shutdown());
    }
    Ok(())
}
