//! Hazards: two preempting schedulers in one process, whose tasks wait for each other's, keep each other from getting on; the limits of one hold no
//! more beside the other; or one of them does not end because the other has. On real threads.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::burn;
use preempted::{HANG, Used, alone};
use quotient::{Group, InGroupExt as _, Preempt, Scheduler};
use tokio::runtime::{Handle, Runtime};

const MS: Duration = Duration::from_millis(1);
/// How often each of the two has to get on.
const ROUNDS: u64 = 60;

/// One of the two.
struct Side {
    scheduler: Scheduler,
    /// Endless polls and functions under a tenth.
    hogs: Group,
    friends: Group,
}

impl Side {
    fn new(handle: &Handle) -> Self {
        let preempt = Preempt::default().max_borne(32);
        let builder = Scheduler::builder().handle(handle.clone()).vcpus(2);
        let scheduler = builder.preempt(preempt).build().unwrap();
        let hogs = scheduler.group("hogs").unwrap().max("10ms/100ms");
        Self {
            hogs: hogs.create().unwrap(),
            friends: scheduler.group("friends").unwrap().create().unwrap(),
            scheduler,
        }
    }

    fn compute(&self, used: &Arc<Used>) {
        for _ in 0..2 {
            let (poll, function) = (used.clone(), used.clone());
            drop(self.hogs.spawn(async move { poll.compute(HANG) }));
            drop(self.hogs.spawn_blocking(move || function.compute(HANG)));
        }
    }
}

/// A task of `own` that waits for tasks of `other`, which wait for functions of `own`, works for it in the middle of its polls, and counts.
fn converse(own: &Group, other: &Group, rounds: &Arc<AtomicU64>, stop: &Arc<AtomicBool>) {
    let (mine, other, rounds, stop) = (own.clone(), other.clone(), rounds.clone(), stop.clone());
    drop(own.spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            let back = mine.clone();
            let there = other.spawn(async move {
                burn(2 * MS);
                std::mem::forget(quotient::uninterrupted());
                let _ = back.spawn_blocking(|| burn(MS)).await;
            });
            let _ = there.await;
            async { burn(3 * MS) }.in_group(&other).await;
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    }));
}

/// How the two end.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Schedulers in order, then runtimes.
    Schedulers,
    /// The first runtime, while tasks of the other scheduler wait for what was on it, then the rest.
    Runtimes,
    /// Handles of the first scheduler, its runtime, then the others.
    Dropped,
}

fn scene(same: bool, end: End) {
    let _alone = alone();
    let first = common::runtime(2);
    let second = (!same).then(|| common::runtime(2));
    let other = second.as_ref().map_or(first.handle(), Runtime::handle);
    let sides = [Side::new(first.handle()), Side::new(other)];
    let used = [(); 2].map(|()| Arc::new(Used::default()));
    let rounds = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    for index in [0, 1] {
        sides[index].compute(&used[index]);
        let (own, other) = (&sides[index].friends, &sides[1 - index].friends);
        converse(own, other, &rounds[index], &stop);
    }
    let began = Instant::now();
    let done = || {
        rounds
            .iter()
            .all(|rounds| rounds.load(Ordering::Relaxed) >= ROUNDS)
    };
    while !done() || began.elapsed() < Duration::from_secs(1) {
        assert!(began.elapsed() < HANG, "{rounds:?}");
        std::thread::sleep(MS);
    }
    let passed = began.elapsed();
    for used in &used {
        let time = used.so_far();
        println!("same runtime {same}, {end:?}: {time:?} in {passed:?}");
        let most = passed.mul_f64(0.1 + 0.03) + 60 * MS;
        assert!(time < most, "{time:?} of a tenth in {passed:?}");
    }
    let ending = std::thread::spawn(move || {
        let ends = |side: Side| {
            let ended = side.scheduler.shutdown_timeout(Duration::from_millis(200));
            // Endless polls are named by an error, and go on.
            let ended = async { tokio::time::timeout(HANG, ended).await };
            let ended = common::runtime(1).block_on(ended);
            drop(ended.expect("hangs"));
        };
        let [one, another] = sides;
        match end {
            End::Schedulers => {
                ends(one);
                ends(another);
                first.shutdown_timeout(100 * MS);
            }
            End::Runtimes => {
                first.shutdown_timeout(100 * MS);
                std::thread::sleep(20 * MS);
                drop((one, another));
            }
            End::Dropped => {
                drop(one);
                first.shutdown_timeout(100 * MS);
                std::thread::sleep(20 * MS);
                ends(another);
            }
        }
        if let Some(second) = second {
            second.shutdown_timeout(100 * MS);
        }
    });
    let began = Instant::now();
    while !ending.is_finished() {
        assert!(began.elapsed() < HANG, "no end");
        std::thread::sleep(MS);
    }
    ending.join().unwrap();
    stop.store(true, Ordering::Relaxed);
    for used in &used {
        used.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn two_that_wait_for_each_other_hang_or_exceed_their_limits() {
    for same in [true, false] {
        scene(same, End::Schedulers);
    }
}

#[test]
fn the_end_of_a_runtime_keeps_the_others_scheduler_from_its_own() {
    for same in [true, false] {
        scene(same, End::Runtimes);
    }
}

#[test]
fn a_scheduler_that_is_dropped_keeps_another_from_its_end() {
    for same in [true, false] {
        scene(same, End::Dropped);
    }
}
