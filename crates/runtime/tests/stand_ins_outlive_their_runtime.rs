//! Hazards of stand-ins, which run on threads of ours: the runtime that they poll in shuts down under them, and timers panic; or
//! nobody drives it, and tasks run all the same.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{guarded, repetitions, runtime, scheduler};
use quotient::{Group, Scheduler};
use tokio::runtime::Runtime;

const MS: Duration = Duration::from_millis(1);
/// A hang bound.
const LONG: Duration = Duration::from_secs(30);

/// Polls end when these are dropped.
type Held = Vec<mpsc::Sender<()>>;

/// Waits until a condition holds, outside any runtime.
fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < end, "{what} did not come true");
        std::thread::sleep(MS);
    }
}

/// Holds a virtual CPU from inside tokio's `block_in_place` until `stop` is dropped: the worker's other work goes on, and so does the
/// runtime's shutdown. Whether it is a regular one.
fn hold(group: &Group, function: fn(&mut dyn FnMut())) -> (mpsc::Sender<()>, bool) {
    let (stop, told) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel();
    drop(group.spawn(async move {
        function(&mut || {
            let regular = std::thread::current().name() != Some("quotient-stand-in");
            begun.send(regular).unwrap();
            let _ = told.recv();
        });
    }));
    let regular = has_begun.recv_timeout(LONG).unwrap();
    (stop, regular)
}

/// A runtime and a scheduler whose regular virtual CPUs are all held. On a busy machine a stand-in may be there already and take such a
/// poll, of which tokio's `block_in_place` does not tell us: it would be missing as soon as the runtime has gone, since there are as many
/// stand-ins as virtual CPUs. Then once more.
fn all_held(workers: usize, function: fn(&mut dyn FnMut())) -> (Runtime, Scheduler, Group, Held) {
    for _ in 0..1_000 {
        let runtime = runtime(workers);
        let (scheduler, group) = {
            let _inside = runtime.enter();
            scheduler(workers)
        };
        let (held, regular): (Held, Vec<bool>) =
            (0..workers).map(|_| hold(&group, function)).unzip();
        if regular.iter().all(|regular| *regular) {
            return (runtime, scheduler, group, held);
        }
        drop(held);
        runtime.block_on(guarded(scheduler.shutdown()));
    }
    panic!("a stand-in was there a thousand times");
}

/// Sleepers on stand-ins while the runtime is dropped, or shut down in the background.
fn no_timer_panics(function: fn(&mut dyn FnMut()), shut_down: fn(Runtime)) {
    for _ in 0..repetitions() {
        for workers in [1, 2] {
            let (runtime, scheduler, group, held) = all_held(workers, function);
            let polls = Arc::new(AtomicUsize::new(0));
            let sleepers: Vec<_> = (0..8)
                .map(|_| {
                    let polls = polls.clone();
                    group.spawn(async move {
                        loop {
                            // Most of the time some are in a poll, which registers a timer.
                            for _ in 0..20 {
                                tokio::select! {
                                    () = tokio::time::sleep(LONG) => {}
                                    () = tokio::task::yield_now() => {}
                                }
                            }
                            polls.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_micros(100)).await;
                        }
                    })
                })
                .collect();
            until("the sleepers run on stand-ins", || {
                polls.load(Ordering::Relaxed) > 50
            });
            let ending = std::thread::spawn(move || shut_down(runtime));
            common::runtime(1).block_on(guarded(async {
                for sleeper in sleepers {
                    let error = sleeper.await.map(|()| "returned").unwrap_err();
                    assert!(!error.is_panic(), "a timer panicked, {workers} workers");
                }
            }));
            drop(held);
            ending.join().unwrap();
            common::runtime(1).block_on(guarded(scheduler.shutdown()));
        }
    }
}

#[test]
fn no_timer_panics_while_the_runtime_is_dropped() {
    no_timer_panics(|function| tokio::task::block_in_place(function), drop);
}

#[test]
fn no_timer_panics_in_a_shutdown_in_the_background() {
    no_timer_panics(
        |function| quotient::block_in_place(function),
        Runtime::shutdown_background,
    );
}

/// A current-thread runtime polls its tasks while somebody is inside its `block_on`, and a stand-in must not go on beyond that.
#[test]
fn nothing_runs_while_nobody_drives_the_runtime() {
    for _ in 0..repetitions().min(20) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let polls = Arc::new(AtomicUsize::new(0));
        let stuck = Arc::new(AtomicBool::new(false));
        let (scheduler, group) = {
            let _inside = runtime.enter();
            scheduler(1)
        };
        for _ in 0..4 {
            let polls = polls.clone();
            drop(group.spawn(async move {
                loop {
                    polls.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }));
        }
        let (seen, is_stuck) = (polls.clone(), stuck.clone());
        let long = group.spawn(async move {
            // Until a stand-in runs the others.
            let before = seen.load(Ordering::Relaxed);
            is_stuck.store(true, Ordering::Relaxed);
            until("a stand-in comes", || {
                seen.load(Ordering::Relaxed) > before + 100
            });
        });
        runtime.block_on(guarded(async { long.await.unwrap() }));
        // A poll may be under way, on a thread that has no processor just now.
        let mut before = usize::MAX;
        until("the tasks stand still", || {
            let now = polls.load(Ordering::Relaxed);
            std::thread::sleep(100 * MS);
            now == polls.load(Ordering::Relaxed)
        });
        for _ in 0..5 {
            let now = polls.load(Ordering::Relaxed);
            assert!(before == usize::MAX || now == before, "ran undriven");
            before = now;
            std::thread::sleep(10 * MS);
        }
        // Driven again, they go on.
        runtime.block_on(guarded(async {
            while polls.load(Ordering::Relaxed) < before + 100 {
                tokio::time::sleep(MS).await;
            }
            scheduler.shutdown().await;
        }));
        assert!(stuck.load(Ordering::Relaxed));
    }
}
