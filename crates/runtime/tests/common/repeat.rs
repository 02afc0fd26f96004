//! How often a test of a race is repeated.
#![allow(dead_code)] // each test file uses its part

#[path = "load.rs"]
mod load;

use std::future::Future;
use std::time::Duration;

/// 5 times, or as often as `QUOTIENT_REPEAT` says; beside busy threads if `QUOTIENT_LOAD` says how many.
pub fn repeats() -> usize {
    load::begin();
    std::env::var("QUOTIENT_REPEAT")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(5)
}

/// Runs `case` on tokio runtimes of 1, 2 and 4 workers, with as many virtual CPUs, [`repeats`] times each, a new runtime every
/// time. A case that takes longer than five minutes hangs.
pub fn on_one_two_and_four_workers<F, C>(case: C)
where
    C: Fn(quotient::Scheduler, usize) -> F,
    F: Future<Output = ()>,
{
    for workers in [1, 2, 4] {
        for repeat in 0..repeats() {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(workers)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let scheduler = quotient::Scheduler::builder()
                    .vcpus(workers)
                    .build()
                    .unwrap();
                let bounded =
                    tokio::time::timeout(Duration::from_secs(300), case(scheduler, workers));
                if bounded.await.is_err() {
                    // Without waiting for what hangs.
                    eprintln!("hangs on {workers} workers, repeat {repeat}");
                    std::process::exit(101);
                }
            });
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

/// Computes for `time` of the calling thread's processor time (of wall time where there is no such clock): beside busy threads, wall
/// time passes without any work.
pub fn compute(time: Duration) {
    let end = time_here() + time;
    while time_here() < end {
        for _ in 0..200 {
            std::hint::spin_loop();
        }
    }
}

#[cfg(target_os = "linux")]
fn time_here() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap(),
        time.tv_nsec.try_into().unwrap(),
    )
}

#[cfg(not(target_os = "linux"))]
fn time_here() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}
