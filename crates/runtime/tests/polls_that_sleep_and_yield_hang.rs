//! Hazard: a poll sleeps in the kernel for so long that it is found to be blocked and its proxy is put away, while the watch, which sees that
//! nobody has chosen it, forbids it to run. If it then yields, it waits between two polls for a permission that only its proxy could
//! bring back, and that waits for it: eight of such tasks lost three to five in five seconds.

use std::time::Duration;

use quotient::{Preempt, Scheduler};

/// Rounds of a task: some four seconds of sleep.
const ROUNDS: u32 = 700;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_that_sleep_and_yield_all_end() {
    let scheduler = Scheduler::builder()
        .preempt(Preempt::default())
        .build()
        .unwrap();
    let group = scheduler.group("g").unwrap().create().unwrap();
    // What wakes now and then ends the turns of the others.
    let beside = scheduler.group("beside").unwrap().create().unwrap();
    let beside = beside.spawn(async {
        loop {
            tokio::time::sleep(Duration::from_millis(2)).await;
            std::hint::black_box((0..5_000_u64).sum::<u64>());
        }
    });
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            group.spawn(async {
                for _ in 0..ROUNDS {
                    std::thread::sleep(Duration::from_millis(6));
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        // Far more than they take: only one that hangs is late.
        let ended = tokio::time::timeout(Duration::from_secs(60), task).await;
        assert!(ended.is_ok(), "task {number} hangs");
    }
    beside.abort();
}
