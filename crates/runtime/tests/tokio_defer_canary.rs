//! Yields that tokio defers stay in the run queue (see `src/defer.rs`). Checked with tokio 1.54.1.
//!
//! The check relies on how tokio keeps deferred wakers. If this test fails after an update of tokio, that has changed: fairness
//! between a group that yields with `tokio::task::yield_now` and one that computes is then wrong, and `defer.rs` needs a new probe.
#![cfg(not(loom))]

mod common;

use std::time::{Duration, Instant};

use common::{burn, guarded, runtime, scheduler};

#[test]
fn a_deferred_yielder_is_polled_again_in_the_same_turn() {
    for workers in [1, 2] {
        runtime(workers).block_on(guarded(async move {
            let (scheduler, group) = scheduler(workers);
            // One driver turn per yield would allow a few hundred thousand a second at most; far fewer with company.
            let yields = group
                .spawn(async {
                    let end = Instant::now() + Duration::from_millis(100);
                    let mut yields = 0_u64;
                    while Instant::now() < end {
                        tokio::task::yield_now().await;
                        yields += 1;
                    }
                    yields
                })
                .await
                .unwrap();
            assert!(group.stats().polls >= yields);
            scheduler.shutdown().await;
        }));
    }
}

#[test]
fn yielders_keep_their_groups_share() {
    runtime(1).block_on(guarded(async {
        let (scheduler, small) = scheduler(1);
        let large = scheduler
            .group("large")
            .unwrap()
            .weight(300)
            .create()
            .unwrap();
        let end = Instant::now() + Duration::from_millis(600);
        let mut tasks = Vec::new();
        for group in [&small, &large] {
            for _ in 0..4 {
                tasks.push(group.spawn(async move {
                    while Instant::now() < end {
                        burn(Duration::from_micros(50));
                        tokio::task::yield_now().await;
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        let ratio = large.cpu_time().as_secs_f64() / small.cpu_time().as_secs_f64();
        // Without the probe it is about 1.1; 3 is exact, and a loaded machine blurs the start and the end.
        assert!((2.2..4.0).contains(&ratio), "ratio {ratio}");
        scheduler.shutdown().await;
    }));
}

#[test]
fn a_wait_after_a_yield_is_not_taken_for_another_yield() {
    runtime(1).block_on(guarded(async {
        let (scheduler, group) = scheduler(1);
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let waiter = group.spawn(async move {
            tokio::task::yield_now().await;
            receiver.await.unwrap();
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let polls = group.stats().polls;
        assert!(polls <= 8, "a waiting task was polled {polls} times");
        sender.send(()).unwrap();
        waiter.await.unwrap();
        scheduler.shutdown().await;
    }));
}
