//! A poll that sleeps in the kernel uses no processor, and holds its virtual CPU all the same: its group pays for the turn.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{burn, guarded, runtime};
use quotient::Scheduler;

/// How long a poll of the sleepers takes.
const SLEEP: Duration = Duration::from_millis(2);

/// Two groups of equal weight on one virtual CPU: one computes, eight tasks of the other only sleep. The one that computes is to get
/// at least half of what it is entitled to (which is as much as the others slept): sleep that nobody can tell from a busy host's
/// theft is not paid for.
#[test]
fn a_sleeping_poll_is_free() {
    let runtime = runtime(1);
    runtime.block_on(guarded(async {
        let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
        let sleepers = scheduler.group("sleepers").unwrap().create().unwrap();
        let worker = scheduler.group("worker").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let slept = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let (stop, slept) = (stop.clone(), slept.clone());
            tasks.push(sleepers.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(SLEEP);
                    slept.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }));
        }
        for _ in 0..2 {
            let stop = stop.clone();
            tasks.push(worker.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    burn(Duration::from_micros(200));
                    tokio::task::yield_now().await;
                }
            }));
        }
        while slept.load(Ordering::Relaxed) < 300 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let computed = worker.cpu_time();
        let held = SLEEP * u32::try_from(slept.load(Ordering::Relaxed)).unwrap();
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        assert!(
            computed >= held / 2,
            "sleepers held the virtual CPU for {held:?}, the other group computed for {computed:?}"
        );
        scheduler.shutdown().await;
    }));
}
