//! Hazard: preemption keeps threads, marks and debts for each virtual CPU, and few machines have as many processors as it has been tried
//! with virtual CPUs. Sixty-four of them on whatever there is: correctness only.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::eventually;
use preempted::HANG;
use quotient::{Cpus, Leftover, Preempt, Scheduler};

const VCPUS: usize = 64;

/// Groups of different weights, one poll without end, a limit: tasks end with their results, the limited group is throttled and goes on
/// once its limit is lifted, the endless poll is charged, and the scheduler ends once that poll has returned.
#[test]
fn all_kinds_of_groups_end_on_64_preempted_virtual_cpus() {
    let runtime = common::runtime(VCPUS);
    let stop = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let scheduler = Scheduler::builder()
            .preempt(Preempt::default())
            .build()
            .unwrap();
        assert_eq!(scheduler.vcpus(), VCPUS);
        let body = everything(&scheduler, stop.clone());
        let ended = tokio::time::timeout(HANG, body).await;
        assert!(ended.is_ok(), "hangs: {:?}", scheduler.preempt_stats());
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {:?}", scheduler.preempt_stats());
        assert_eq!(scheduler.tasks(), 0, "tasks outlive their scheduler");
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

async fn everything(scheduler: &Scheduler, stop: Arc<AtomicBool>) {
    let endless = scheduler.group("endless").unwrap().create().unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let (begun, end) = (polls.clone(), stop.clone());
    drop(endless.spawn(async move {
        begun.fetch_add(1, Ordering::Relaxed);
        while !end.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }));
    eventually("the endless poll has begun", || {
        polls.load(Ordering::Relaxed) == 1
    })
    .await;
    let mut tasks = Vec::new();
    for (path, weight) in [("light", 50), ("heavy", 800)] {
        let group = scheduler.group(path).unwrap().weight(weight);
        let group = group.create().unwrap();
        for number in 0..VCPUS {
            let task = group.spawn(async move {
                for _ in 0..4 {
                    common::burn(Duration::from_micros(200));
                    tokio::task::yield_now().await;
                }
                number
            });
            tasks.push((number, task));
        }
    }
    let limited = scheduler.group("limited").unwrap().max(Cpus(0.05));
    let limited = limited.create().unwrap();
    let lifted = Arc::new(AtomicBool::new(false));
    for number in 0..VCPUS {
        let lifted = lifted.clone();
        let task = limited.spawn(async move {
            while !lifted.load(Ordering::Relaxed) {
                common::burn(Duration::from_micros(200));
                tokio::task::yield_now().await;
            }
            number
        });
        tasks.push((number, task));
    }
    eventually("the limited group is throttled", || {
        limited.bandwidth_stats().nr_throttled > 0
    })
    .await;
    limited.set_max("max").unwrap();
    lifted.store(true, Ordering::Relaxed);
    for (number, task) in tasks {
        assert_eq!(task.await.unwrap(), number);
    }
    let before = endless.cpu_time();
    eventually("the endless poll goes on and pays", || {
        endless.cpu_time() > before
    })
    .await;
    for path in ["light", "heavy", "limited"] {
        let group = scheduler.find(path).unwrap();
        group.remove(Leftover::Kill).unwrap();
    }
    // A poll that never returns is nobody's to end: the shutdown is told, and the poll returns after it has begun.
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        stop.store(true, Ordering::Relaxed);
    });
}
