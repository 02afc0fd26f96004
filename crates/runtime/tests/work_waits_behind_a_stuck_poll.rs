//! Hazard: tasks wait behind a poll that computes or blocks for long, beside virtual CPUs that could run them. All asserts are about
//! order: what waits must run *before* the long poll ends, which then lasts until it has.

#[path = "common/repeat.rs"]
mod repeat;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use repeat::{compute, on_one_two_and_four_workers};

/// The most that a poll lasts. Unit: milliseconds, of processor time where it computes: what waits competes with it for processors, and
/// has as little of them on a busy machine. (By wall time, eight busy processes beside five threads made a second of the quiet machine
/// eleven.)
const LONGEST: usize = 60_000;

/// A poll that lasts until `done` says so, or for [`LONGEST`]; whether it was done in time.
fn poll_until(done: impl Fn() -> bool, block: fn(Duration)) -> bool {
    for _ in 0..LONGEST {
        if done() {
            return true;
        }
        block(Duration::from_millis(1));
    }
    false
}

/// A task spawns four others in the poll that then goes on until they have run: the one that it spawned last is in the slot.
fn children_run_during_the_poll(block: fn(Duration)) {
    on_one_two_and_four_workers(|scheduler, workers| async move {
        let group = scheduler.group("g").unwrap().create().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let seen = ran.clone();
        let parent = group.spawn(async move {
            for _ in 0..4 {
                let ran = ran.clone();
                drop(quotient::spawn(async move {
                    ran.fetch_add(1, Ordering::Relaxed);
                }));
            }
            poll_until(|| seen.load(Ordering::Relaxed) == 4, block)
        });
        assert!(parent.await.unwrap(), "children waited, {workers} workers");
    });
}

#[test]
fn children_of_a_computing_poll() {
    children_run_during_the_poll(compute);
}

#[test]
fn children_of_a_sleeping_poll() {
    children_run_during_the_poll(std::thread::sleep);
}

#[test]
fn children_of_a_poll_that_blocks_in_place() {
    children_run_during_the_poll(|time| quotient::block_in_place(|| std::thread::sleep(time)));
}

#[test]
fn children_of_a_poll_in_tokios_block_in_place() {
    children_run_during_the_poll(|time| tokio::task::block_in_place(|| std::thread::sleep(time)));
}

/// Leaves its waker with tokio's deferred list, as any yield, and is woken by somebody else in the same poll: by tokio, for instance,
/// for a yield on another worker before.
async fn yield_and_be_woken() {
    let mut yielding = std::pin::pin!(tokio::task::yield_now());
    std::future::poll_fn(|context| {
        let polled = yielding.as_mut().poll(context);
        if polled.is_pending() {
            context.waker().wake_by_ref();
        }
        polled
    })
    .await;
}

/// Hazard: of the second of two yields tokio keeps no new waker, since that of the first is the last of its list; a yield that nobody
/// notices waits for the worker, and the worker is in the poll of the task that waited next.
#[test]
fn a_task_that_was_woken_while_it_yielded_and_yields_again() {
    on_one_two_and_four_workers(|scheduler, workers| async move {
        let group = scheduler.group("g").unwrap().create().unwrap();
        let yielder = group.spawn(async {
            yield_and_be_woken().await;
            let ran = Arc::new(AtomicUsize::new(0));
            let seen = ran.clone();
            let hog = quotient::spawn(async move {
                poll_until(|| seen.load(Ordering::Relaxed) == 1, compute)
            });
            tokio::task::yield_now().await;
            ran.store(1, Ordering::Relaxed);
            hog.await.unwrap()
        });
        assert!(yielder.await.unwrap(), "lost its turn, {workers} workers");
    });
}

#[test]
fn tasks_beside_foreign_polls_on_every_worker() {
    on_one_two_and_four_workers(|scheduler, workers| async move {
        let group = scheduler.group("g").unwrap().create().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let hogs: Vec<_> = (0..workers)
            .map(|_| {
                let ran = ran.clone();
                tokio::spawn(
                    async move { poll_until(|| ran.load(Ordering::Relaxed) == 8, compute) },
                )
            })
            .collect();
        // Spawned from outside while no worker is free.
        for _ in 0..8 {
            let ran = ran.clone();
            drop(group.spawn(async move {
                tokio::task::yield_now().await;
                ran.fetch_add(1, Ordering::Relaxed);
            }));
        }
        for hog in hogs {
            assert!(hog.await.unwrap(), "tasks waited, {workers} workers");
        }
    });
}

#[test]
fn budget_that_comes_for_a_stuck_virtual_cpu() {
    on_one_two_and_four_workers(|scheduler, workers| async move {
        let limited = scheduler
            .group("limited")
            .unwrap()
            .max("5000 20000")
            .create()
            .unwrap();
        let free = scheduler.group("free").unwrap().create().unwrap();
        // They use up their budget everywhere, and wait for the next period where they are.
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 * workers {
            let ran = ran.clone();
            drop(limited.spawn(async move {
                for _ in 0..8 {
                    compute(Duration::from_millis(1));
                    tokio::task::yield_now().await;
                }
                ran.fetch_add(1, Ordering::Relaxed);
            }));
        }
        while limited.cpu_time() < Duration::from_millis(5) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let hogs: Vec<_> = (0..workers)
            .map(|_| {
                let ran = ran.clone();
                free.spawn(async move {
                    poll_until(|| ran.load(Ordering::Relaxed) == 2 * workers, compute)
                })
            })
            .collect();
        for hog in hogs {
            assert!(hog.await.unwrap(), "throttled for good, {workers} workers");
        }
    });
}
