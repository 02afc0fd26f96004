//! Blocking functions and jobs beyond `max_borne` at once ran as if there were no limit: 300 of `spawn_blocking` had 7 s of CPU time where 0.6 were
//! allowed. Now they wait to begin; so the hazards are also that they wait for ever: for each other, for a group that was killed or removed, for
//! a scheduler that ends, or behind another tenant's. On real threads: bounds of time are generous.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{CountDrop, burn, eventually};
use preempted::{HANG, Used, limited, run_with_places as run};
use quotient::{Group, JoinHandle, Leftover, MeterError, Preempt, Scheduler, ThreadMeter};

/// A limit that nothing gets on under: a thousandth of a processor.
const NEXT_TO_NOTHING: &str = "1ms/1s";

/// A twentieth of a processor: what that is in `passed`, and short turns of those that stand.
fn allowed(passed: Duration) -> Duration {
    passed.mul_f64(0.05 + 0.03) + Duration::from_millis(60)
}

#[test]
fn three_hundred_functions_void_a_limit() {
    run(256, |scheduler| async move {
        let group = limited(&scheduler, "limited", "5ms/100ms");
        let (used, began) = (Arc::new(Used::default()), Instant::now());
        for _ in 0..600 {
            let used = used.clone();
            drop(group.spawn_blocking(move || used.compute(Duration::from_millis(45))));
        }
        let stats = scheduler.preempt_stats().unwrap();
        assert!(
            stats.in_line > 300 && stats.lined_up > 300,
            "as if there were places for all: {stats:?}"
        );
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (time, passed) = (used.so_far(), began.elapsed());
        used.stop.store(true, Ordering::Relaxed);
        println!("{time:?} in {passed:?}");
        assert!(time <= allowed(passed), "{time:?} in {passed:?}");
        // All of them come to their ends.
        eventually("the last one", || {
            let stats = scheduler.preempt_stats().unwrap();
            stats.in_line + stats.foreign == 0
        })
        .await;
    });
}

/// In a group without a limit those beyond the places were only metered, which nobody read before they ended: the group's clock said a fiftieth of what
/// they used, a group of three times the weight had 0.05 of a CPU beside them, and a limit that was set later never held.
#[test]
fn three_hundred_functions_void_a_limit_that_is_set_later() {
    run(256, |scheduler| async move {
        let (free, heavy) = (scheduler.group("free"), scheduler.group("heavy"));
        let free = free.unwrap().create().unwrap();
        let heavy = heavy.unwrap().weight(300).create().unwrap();
        let (used, theirs) = (Arc::new(Used::default()), Arc::new(Used::default()));
        for _ in 0..300 {
            let used = used.clone();
            drop(free.spawn_blocking(move || used.compute(HANG)));
        }
        for _ in 0..4 {
            let theirs = theirs.clone();
            drop(heavy.spawn(async move {
                while !theirs.stop.load(Ordering::Relaxed) {
                    theirs.compute(Duration::from_micros(300));
                    tokio::task::yield_now().await;
                }
            }));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = (used.so_far(), theirs.so_far(), free.cpu_time());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let had = (used.so_far() - before.0, theirs.so_far() - before.1);
        let clock = free.cpu_time() - before.2;
        println!("{had:?}, its clock says {clock:?}");
        // Three times as much are due to the heavy one; a machine that others keep busy takes from it first.
        assert!(had.1 > had.0, "{had:?}");
        assert!(
            clock > had.0.mul_f64(0.7),
            "used {:?}, its clock says {clock:?}",
            had.0
        );

        free.set_max("5ms/100ms").unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (before, began) = (used.so_far(), Instant::now());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (time, passed) = (used.so_far() - before, began.elapsed());
        used.stop.store(true, Ordering::Relaxed);
        theirs.stop.store(true, Ordering::Relaxed);
        free.set_max("max").unwrap();
        println!("{time:?} in {passed:?}");
        assert!(time <= allowed(passed), "{time:?} in {passed:?}");
        eventually("the last one", || {
            let stats = scheduler.preempt_stats().unwrap();
            stats.in_line + stats.foreign == 0
        })
        .await;
    });
}

#[test]
fn jobs_of_many_threads_void_a_limit() {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "limited", "5ms/100ms");
        let (used, began) = (Arc::new(Used::default()), Instant::now());
        let threads: Vec<_> = (0..24)
            .map(|_| {
                let (used, group) = (used.clone(), group.clone());
                std::thread::spawn(move || {
                    while !used.stop.load(Ordering::Relaxed) {
                        let job = || used.compute(Duration::from_millis(45));
                        ThreadMeter::run(&group, job).unwrap();
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (time, passed) = (used.so_far(), began.elapsed());
        used.stop.store(true, Ordering::Relaxed);
        println!("{time:?} in {passed:?}");
        assert!(time <= allowed(passed), "{time:?} in {passed:?}");
        eventually("the last one", || {
            threads.iter().all(std::thread::JoinHandle::is_finished)
        })
        .await;
    });
}

/// Each waits, asleep, for the one that comes after it: many times the places.
#[test]
fn functions_that_wait_for_each_other_wait_for_ever() {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "limited", "20ms/100ms");
        let (first, mut before) = std::sync::mpsc::channel();
        let mut functions = Vec::new();
        for number in 0..100_u32 {
            let (sender, receiver) = std::sync::mpsc::channel();
            let waits = std::mem::replace(&mut before, receiver);
            functions.push(group.spawn_blocking(move || {
                let sum: u32 = waits.recv().unwrap();
                sender.send(sum + number).unwrap();
            }));
        }
        // The last one brings what the first one waits for.
        let last = group.spawn_blocking(move || {
            first.send(0).unwrap();
            before.recv().unwrap()
        });
        assert_eq!(last.await.unwrap(), (0..100).sum());
        for function in functions {
            function.await.unwrap();
        }
    });
}

#[test]
fn functions_wait_behind_another_tenants() {
    run(8, |scheduler| async move {
        let used = Arc::new(Used::default());
        let hog = limited(&scheduler, "hog", NEXT_TO_NOTHING);
        for _ in 0..200 {
            let used = used.clone();
            drop(hog.spawn_blocking(move || used.compute(HANG)));
        }
        let other = limited(&scheduler, "other", "20ms/100ms");
        for round in 0..20 {
            assert_eq!(other.spawn_blocking(move || round).await.unwrap(), round);
        }
        used.stop.store(true, Ordering::Relaxed);
    });
}

/// Functions of a group that gets on with nothing: some have begun, some wait for their first turn, most wait in line.
fn stuck(group: &Group, used: &Arc<Used>, drops: &Arc<AtomicUsize>) -> Vec<JoinHandle<()>> {
    let function = |_| {
        let (used, held) = (used.clone(), CountDrop(drops.clone()));
        group.spawn_blocking(move || {
            let _held = held;
            used.compute(HANG);
        })
    };
    (0..60).map(function).collect()
}

/// Waits until two at most have not been dropped: those that had begun.
async fn end_unbegun(drops: &AtomicUsize) {
    let began = Instant::now();
    eventually("the end of those that had not begun", || {
        drops.load(Ordering::SeqCst) >= 56
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn functions_that_are_aborted_wait_for_their_turn() {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "limited", NEXT_TO_NOTHING);
        let (used, drops) = (Arc::default(), Arc::default());
        let functions = stuck(&group, &used, &drops);
        tokio::time::sleep(Duration::from_millis(100)).await;
        for function in &functions {
            function.abort();
        }
        end_unbegun(&drops).await;
        used.stop.store(true, Ordering::Relaxed);
        let mut cancelled = 0;
        for function in functions {
            cancelled += usize::from(function.await.is_err_and(|error| error.is_cancelled()));
        }
        assert!(cancelled >= 56, "{cancelled}");
    });
}

#[test]
fn functions_that_are_killed_wait_for_their_turn() {
    run(4, |scheduler| async move {
        for removes in [false, true] {
            let group = limited(&scheduler, "above/limited", NEXT_TO_NOTHING);
            let above = scheduler.find("above").unwrap();
            let (used, drops) = (Arc::default(), Arc::default());
            let functions = stuck(&group, &used, &drops);
            tokio::time::sleep(Duration::from_millis(100)).await;
            if removes {
                above.remove(Leftover::Kill).unwrap();
            } else {
                above.kill().unwrap();
            }
            end_unbegun(&drops).await;
            used.stop.store(true, Ordering::Relaxed);
            for function in functions {
                let _ = function.await;
            }
            assert!(group.stats().losses.killed_tasks >= 56);
        }
    });
}

#[test]
fn functions_keep_a_scheduler_from_its_end() {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "limited", NEXT_TO_NOTHING);
        let (used, drops) = (Arc::default(), Arc::default());
        let functions = stuck(&group, &used, &drops);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let ended = scheduler.shutdown_timeout(Duration::from_secs(20)).await;
        assert!(ended.is_ok(), "{ended:?}");
        end_unbegun(&drops).await;
        used.stop.store(true, Ordering::Relaxed);
        for function in functions {
            let _ = function.await;
        }
    });
}

/// A thread has no handle by which its job could be ended.
#[test]
fn jobs_wait_for_a_group_that_was_removed() {
    run(1, |scheduler| async move {
        let group = limited(&scheduler, "limited", NEXT_TO_NOTHING);
        let used = Arc::new(Used::default());
        let ended = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..6)
            .map(|_| {
                let (group, used, ended) = (group.clone(), used.clone(), ended.clone());
                std::thread::spawn(move || {
                    let done = ThreadMeter::run(&group, || used.compute(HANG));
                    if matches!(done, Err(MeterError::GroupRemoved { .. })) {
                        ended.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        group.remove(Leftover::Kill).unwrap();
        // One for each virtual CPU may have begun.
        eventually("the end of those that wait", || {
            ended.load(Ordering::SeqCst) >= 4
        })
        .await;
        used.stop.store(true, Ordering::Relaxed);
        eventually("the last one", || {
            threads.iter().all(std::thread::JoinHandle::is_finished)
        })
        .await;
    });
}

/// The runtime goes while functions wait, with nobody to shut the scheduler down.
#[test]
fn functions_outlive_their_runtime() {
    let _alone = preempted::alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let used = Arc::default();
    let runtime = common::runtime(2);
    runtime.block_on(async {
        let preempt = Preempt::default().max_borne(4);
        let scheduler = Scheduler::builder().vcpus(2).preempt(preempt);
        let scheduler = scheduler.build().unwrap();
        let group = limited(&scheduler, "limited", NEXT_TO_NOTHING);
        drop(stuck(&group, &used, &drops));
        tokio::time::sleep(Duration::from_millis(100)).await;
    });
    runtime.shutdown_timeout(Duration::from_millis(100));
    used.stop.store(true, Ordering::Relaxed);
    let began = Instant::now();
    while drops.load(Ordering::SeqCst) < 60 {
        assert!(began.elapsed() < HANG, "{drops:?} of 60 are gone");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Does something when it is dropped, and counts that before.
struct OnDrop(Arc<AtomicUsize>, fn());

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        (self.1)();
    }
}

/// Functions that fill the places of `group` until `stop`, and then some that wait with what `captured` makes.
fn lines_up<T: Send + 'static>(
    group: &Group,
    stop: &Arc<AtomicBool>,
    waiting: usize,
    captured: impl Fn() -> T,
) -> Vec<JoinHandle<()>> {
    for _ in 0..12 {
        let stop = stop.clone();
        drop(group.spawn_blocking(move || {
            while !stop.load(Ordering::Relaxed) {
                burn(Duration::from_micros(100));
            }
        }));
    }
    let one = |_| {
        let captured = captured();
        group.spawn_blocking(move || drop(captured))
    };
    (0..waiting).map(one).collect()
}

#[test]
fn a_destructor_that_sleeps_keeps_other_groups_functions() {
    run(8, |scheduler| async move {
        let (stop, slept, dropped) = Default::default();
        let (stop, slept): (Arc<AtomicBool>, Arc<AtomicUsize>) = (stop, slept);
        let dropped: Arc<AtomicUsize> = dropped;
        let evil = limited(&scheduler, "evil", "5ms/100ms");
        let other = limited(&scheduler, "other", "5ms/100ms");
        let sleeps = || OnDrop(slept.clone(), || std::thread::sleep(Duration::from_secs(5)));
        let counts = || OnDrop(dropped.clone(), || ());
        let slow = lines_up(&evil, &stop, 1, sleeps);
        let quick = lines_up(&other, &stop, 3, counts);
        slow[0].abort();
        eventually("the destructor", || slept.load(Ordering::Relaxed) == 1).await;
        let began = Instant::now();
        for handle in &quick {
            handle.abort();
        }
        eventually("the others", || dropped.load(Ordering::Relaxed) == 3).await;
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "{:?}",
            began.elapsed()
        );
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn the_end_comes_before_functions_that_never_began_are_dropped() {
    let dropped: Arc<AtomicUsize> = Arc::default();
    let stop: Arc<AtomicBool> = Arc::default();
    run(8, |scheduler| {
        let (dropped, stop) = (dropped.clone(), stop.clone());
        async move {
            let group = limited(&scheduler, "limited", NEXT_TO_NOTHING);
            let panics = || OnDrop(dropped.clone(), || panic!("a destructor's"));
            let handles = lines_up(&group, &stop, 500, panics);
            for handle in &handles[..200] {
                handle.abort();
            }
            let in_line = scheduler.preempt_stats().unwrap().in_line;
            assert!(in_line >= 200, "{in_line}");
            stop.store(true, Ordering::Relaxed);
            scheduler.shutdown().await;
            // Some may have begun as the scheduler ended; those have had their thread.
            let left = 500 - dropped.load(Ordering::Relaxed);
            assert!(left <= 24, "{left} are not dropped");
        }
    });
}
