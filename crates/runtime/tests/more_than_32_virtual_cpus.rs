//! Hazard: what is kept for each virtual CPU in the bits of a word ends with the word: sleepers beyond it are never woken, and groups that
//! were refilled there never run again. Correctness only: the machine has two processors.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{eventually, guarded, runtime};
use quotient::{Cpus, Leftover, Scheduler};
use tokio::sync::{Notify, mpsc};

const SIZES: [usize; 2] = [64, 128];

fn on_many<F: Future<Output = ()>>(test: impl Fn(Scheduler, usize) -> F) {
    for vcpus in SIZES {
        runtime(vcpus).block_on(guarded(async {
            let scheduler = Scheduler::builder().build().unwrap();
            assert_eq!(scheduler.vcpus(), vcpus);
            test(scheduler.clone(), vcpus).await;
            scheduler.shutdown().await;
        }));
    }
}

/// Tasks whose homes are all virtual CPUs wake each other, and are woken from outside, after all have slept.
#[test]
fn every_sleeper_is_woken() {
    on_many(|scheduler, vcpus| async move {
        const ROUNDS: usize = 20;
        let group = scheduler.group("ring").unwrap().create().unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let (first, mut from) = mpsc::unbounded_channel::<usize>();
        for _ in 0..2 * vcpus {
            let (to, next) = mpsc::unbounded_channel();
            let done = done.clone();
            drop(group.spawn(async move {
                while let Some(round) = from.recv().await {
                    to.send(round).ok();
                }
                done.fetch_add(1, Ordering::Relaxed);
            }));
            from = next;
        }
        for round in 0..ROUNDS {
            first.send(round).unwrap();
            assert_eq!(from.recv().await, Some(round));
            if round % 8 == 0 {
                // All fall asleep: the next round finds nobody awake.
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
        drop(first);
        eventually("all have ended", || {
            done.load(Ordering::Relaxed) == 2 * vcpus
        })
        .await;
    });
}

/// A limited group is throttled on many virtual CPUs, and refills, a raised and a lifted limit reach each of them.
#[test]
fn refills_reach_every_virtual_cpu() {
    on_many(|scheduler, vcpus| async move {
        let limited = scheduler.group("limited").unwrap();
        let limited = limited.max(Cpus(0.2)).create().unwrap();
        let tasks: Vec<_> = (0..2 * vcpus)
            .map(|_| {
                limited.spawn(async {
                    for _ in 0..8 {
                        common::burn(Duration::from_micros(100));
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        limited.set_max(Cpus(0.6)).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        limited.set_max("max").unwrap();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Freezing, thawing, killing and removing reach tasks on all of them, and clocks add up.
#[test]
fn groups_are_frozen_thawed_and_killed_everywhere() {
    on_many(|scheduler, vcpus| async move {
        let group = scheduler.group("all/one").unwrap().create().unwrap();
        let (polls, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        for _ in 0..vcpus {
            let polls = polls.clone();
            drop(group.spawn(async move {
                loop {
                    polls.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }));
            let stop = stop.clone();
            drop(group.spawn(async move { stop.notified().await }));
        }
        let count = || polls.load(Ordering::Relaxed);
        eventually("they run", || count() > vcpus).await;
        group.freeze().unwrap();
        let still = || {
            let before = count();
            std::thread::sleep(Duration::from_millis(5));
            before == count()
        };
        eventually("they stand still", still).await;
        let before = count();
        group.thaw().unwrap();
        eventually("they go on", || count() > before + vcpus).await;
        group.kill().unwrap();
        eventually("all are gone", || group.task_stats().is_empty()).await;
        let parent = scheduler.find("all").unwrap();
        assert_eq!(parent.cpu_time(), group.cpu_time());
        parent.remove(Leftover::Kill).unwrap();
    });
}
