//! What virtual CPUs did for the calls of a long poll was charged to nobody: one that moved its group's tasks to and fro without end had 0.36 to 0.55 CPUs with it
//! under a limit of 0.1, since each move ended the turns of all virtual CPUs. Counted are the naps that are cut short so: CPU times of that size differ by machine (0.16 to 0.28 for
//! the same, by what a system call costs).

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient::Group;

const TASKS: usize = 20;
/// Beside a poll that moves tasks threads sleep so often, of how often they do beside one that computes: as often now (1,350 to 1,470 times a second, both), and
/// 1.8 times when each move ended naps.
const MOST: f64 = 1.4;
/// The same where tasks wait without budget: each virtual CPU that keeps some back is woken for them once a millisecond, and whether that is one of the two or both is
/// a matter of where they were as it was used up (1,340 to 1,480 and 2,320 to 2,360 times a second beside 1,460; 8,700 when each move ended a turn).
const MOST_WITHOUT_BUDGET: f64 = 2.5;

/// Moves all tasks of `home` to `other` and back, until `stop`.
async fn move_to_and_fro(home: Group, other: Group, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        home.move_tasks_to(&other).unwrap();
        other.move_tasks_to(&home).unwrap();
    }
}

/// How often threads sleep a second beside a poll that computes, and beside one that moves `TASKS` of `task` to and fro, in a group of 0.1 CPUs whose children have `max`.
fn sleeps_beside_moves<F>(max: Option<&'static str>, task: fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    preempted::run(2, Duration::from_secs(10), move |scheduler| async move {
        let group = preempted::limited(&scheduler, "limited", "10ms/100ms");
        let [home, other] = ["home", "other"].map(|name| {
            let child = group.child(name);
            match max {
                Some(max) => child.max(max),
                None => child,
            }
            .create()
            .unwrap()
        });
        for _ in 0..TASKS {
            drop(home.spawn(task()));
        }
        let mut seen = Vec::new();
        for moves in [false, true] {
            let stop = Arc::new(AtomicBool::new(false));
            let ends = stop.clone();
            let (from, to) = (home.clone(), other.clone());
            let poll = group.spawn(async move {
                if moves {
                    move_to_and_fro(from, to, ends).await;
                } else {
                    preempted::compute(|| ends.load(Ordering::Relaxed));
                }
            });
            seen.push(preempted::sleeps_a_second().await);
            stop.store(true, Ordering::Relaxed);
            poll.await.unwrap();
        }
        let most = if max.is_some() {
            MOST_WITHOUT_BUDGET
        } else {
            MOST
        };
        assert!(
            seen[1] as f64 <= most * seen[0] as f64,
            "sleeps a second beside one that computes and one that moves: {seen:?}, {:?}",
            scheduler.preempt_stats()
        );
        drop(home.kill());
        drop(other.kill());
    });
}

/// Nothing waits in a queue, so none is to be looked through.
#[test]
fn moves_end_the_turns_of_virtual_cpus_that_keep_nothing_back() {
    sleeps_beside_moves(None, std::future::pending);
}

/// What waits without budget has to be looked for, but not at each move: 8,700 times a second when it was.
#[test]
fn moves_of_tasks_without_budget_end_each_turn() {
    sleeps_beside_moves(Some("1ms/100ms"), || async {
        loop {
            preempted::compute_for(Duration::from_micros(10));
            tokio::task::yield_now().await;
        }
    });
}

/// Hazard: who moves itself out of a group without budget has its turn as the virtual CPUs are looked at, waits in no queue, and is put back where it was.
#[test]
fn a_task_that_moves_itself_is_kept_back_by_the_limit_that_it_has_left() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let free = scheduler.group("free").unwrap().create().unwrap();
        for name in ["first", "second", "third"] {
            // Each with a budget to begin with.
            let limited = scheduler.group(name).unwrap().max("1ms/1s");
            // Or it would be stopped on its way out, on a busy machine.
            let limited = limited.preemptible(false).create().unwrap();
            let (home, target) = (limited.clone(), free.clone());
            let task = limited.spawn(async move {
                preempted::compute_for(Duration::from_millis(2));
                home.move_tasks_to(&target).unwrap();
                let moved = Instant::now();
                tokio::task::yield_now().await;
                moved.elapsed()
            });
            let waited = task.await.unwrap();
            assert!(waited < Duration::from_millis(500), "{waited:?}");
        }
    });
}
