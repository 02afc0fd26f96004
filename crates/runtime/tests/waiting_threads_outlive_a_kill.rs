//! Hazard: threads that wait for their first turn, in a checkpoint or with a job, as their group is killed in the middle of its polls wait for
//! ever, although a kill does not end them. On real threads: bounds of time are generous.

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

use common::{burn, eventually};
use preempted::limited;
use quotient::{Group, Leftover, Scheduler, ThreadMeter};

/// More than can have their turn at a time.
const THREADS: usize = 8;
const STEP: Duration = Duration::from_micros(300);

fn on_two<F: Future<Output = ()>>(body: impl FnOnce(Scheduler) -> F) {
    preempted::run(2, Duration::from_secs(10), body);
}

fn jobs(group: &Group) {
    let _ = ThreadMeter::run(group, || burn(STEP));
}

fn checkpoints(group: &Group) {
    if let Ok(meter) = ThreadMeter::enter(group) {
        for _ in 0..4 {
            burn(STEP);
            meter.checkpoint();
        }
    }
}

/// Threads that do `step` for a group again and again.
struct Threads {
    steps: Vec<Arc<AtomicUsize>>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Threads {
    fn of(group: &Group, step: fn(&Group)) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let steps: Vec<_> = (0..THREADS).map(|_| Arc::default()).collect();
        let of_one = |steps: &Arc<AtomicUsize>| {
            let (group, stop, steps) = (group.clone(), stop.clone(), steps.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    step(&group);
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let threads = steps.iter().map(of_one).collect();
        Self {
            steps,
            stop,
            threads,
        }
    }

    fn so_far(&self) -> Vec<usize> {
        let steps = self.steps.iter();
        steps.map(|steps| steps.load(Ordering::Relaxed)).collect()
    }

    /// Waits until each has done two more: the first may have been under way.
    async fn get_on(&self, when: &str) {
        let before = self.so_far();
        let all = || {
            let now = self.so_far();
            before.iter().zip(now).all(|(before, now)| now > before + 1)
        };
        eventually(when, all).await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = || self.threads.iter().all(|thread| thread.is_finished());
        eventually("threads end", ended).await;
    }
}

fn outlive_kills(max: &str, step: fn(&Group)) {
    on_two(|scheduler| async move {
        let group = limited(&scheduler, "killed", max);
        let threads = Threads::of(&group, step);
        for kill in [
            Group::kill,
            Group::kill_immediately,
            Group::kill_immediately,
        ] {
            threads.get_on("before a kill").await;
            kill(&group).unwrap();
            threads.get_on("after a kill").await;
        }
        group.set_max("max").unwrap();
        threads.get_on("without a limit").await;
        threads.end().await;
    });
}

#[test]
fn jobs_that_wait_for_their_turn_begin_after_a_kill() {
    outlive_kills("20ms/100ms", jobs);
}

#[test]
fn jobs_without_a_limit_begin_after_a_kill() {
    outlive_kills("max", jobs);
}

#[test]
fn checkpoints_return_after_a_kill() {
    outlive_kills("20ms/100ms", checkpoints);
}

/// Killed, and then removed: there is nothing left that could let them go on.
#[test]
fn checkpoints_return_from_a_group_that_was_killed_and_removed() {
    on_two(|scheduler| async move {
        // Two paths: the first is free again only some moments after the last of the threads has left.
        for (path, how) in [("gone", Leftover::Kill), ("left", Leftover::MoveToParent)] {
            let group = limited(&scheduler, path, "5ms/100ms");
            let threads = Threads::of(&group, checkpoints);
            threads.get_on("before the end").await;
            group.kill_immediately().unwrap();
            group.remove(how).unwrap();
            threads.end().await;
        }
    });
}
