//! Hosts that every behaviour is tested on.
#![allow(dead_code)] // each test file uses its part

#[path = "load.rs"]
mod load;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quotient::{Group, JoinHandle, Scheduler};

/// A scheduler with one group.
pub fn scheduler(vcpus: usize) -> (Scheduler, Group) {
    let scheduler = Scheduler::builder().vcpus(vcpus).build().unwrap();
    let group = scheduler.group("tenants/acme").unwrap().create().unwrap();
    (scheduler, group)
}

/// A multi-thread runtime.
pub fn runtime(workers: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .unwrap()
}

/// Runs the test body on a multi-thread runtime with 1 and 2 workers and on a current-thread runtime.
pub fn on_every_host<F, Fut>(test: F)
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = ()>,
{
    for workers in [1, 2] {
        runtime(workers).block_on(guarded(test(workers)));
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(guarded(test(1)));
}

/// A lost task or wake-up would hang for ever: five minutes are generous for tests of milliseconds, also on a machine that has other
/// things to do.
pub async fn guarded(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(300), test)
        .await
        .expect("a task or a wake-up was lost");
}

/// Waits until `condition` holds, at most a minute: what takes longer hangs.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Counts drops.
pub struct CountDrop(pub Arc<AtomicUsize>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Real arithmetic for about `duration` of the calling thread's CPU time (of wall time where there is no such clock): as much is to
/// be billed, whatever else the machine does.
pub fn burn(duration: Duration) {
    let end = time_here() + duration;
    let mut sum = 1_u64;
    while time_here() < end {
        for value in 0..2_000_u64 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(value));
        }
    }
}

/// Tasks of the group that wait for ever, and compute for `fuse` when they are dropped.
pub fn bombs(group: &Group, count: u32, fuse: Duration) -> Vec<JoinHandle<()>> {
    struct Bomb(Duration);
    impl Drop for Bomb {
        fn drop(&mut self) {
            burn(self.0);
        }
    }
    let bomb = |_| {
        let bomb = Bomb(fuse);
        group.spawn(async move {
            let _bomb = bomb;
            std::future::pending::<()>().await;
        })
    };
    (0..count).map(bomb).collect()
}

/// Aborts all at once, and waits until each has been dropped.
pub async fn set_off(bombs: Vec<JoinHandle<()>>) {
    for bomb in &bombs {
        bomb.abort();
    }
    for bomb in bombs {
        assert!(bomb.await.unwrap_err().is_cancelled());
    }
}

/// CPU time of the process.
#[cfg(target_os = "linux")]
pub fn process_time() -> Duration {
    time_of(rustix::time::ClockId::ProcessCPUTime)
}

/// What one of the kernel's clocks shows.
#[cfg(target_os = "linux")]
fn time_of(clock: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(
        time.tv_sec.try_into().unwrap(),
        time.tv_nsec.try_into().unwrap(),
    )
}

/// CPU time of the calling thread.
#[cfg(target_os = "linux")]
pub fn time_here() -> Duration {
    time_of(rustix::time::ClockId::ThreadCPUTime)
}

/// Time since the first call.
#[cfg(not(target_os = "linux"))]
pub fn time_here() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// How often each test of an interleaving is repeated: 5 times, or as `QUOTIENT_REPEAT` says; beside busy threads if `QUOTIENT_LOAD`
/// says how many.
pub fn repetitions() -> usize {
    load::begin();
    let wanted = std::env::var("QUOTIENT_REPEAT").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// Runs the test body [`repetitions`] times on multi-thread runtimes with 1, 2 and 4 workers.
pub fn repeatedly<F, Fut>(test: F)
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = ()>,
{
    for workers in [1, 2, 4] {
        let runtime = runtime(workers);
        for _ in 0..repetitions() {
            runtime.block_on(guarded(test(workers)));
        }
    }
}
