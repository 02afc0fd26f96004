//! What polls use under `uninterrupted` was charged when their turn came again, so many of them added up: tasks of 45 ms each had 11 s of CPU
//! time in 14 s under a limit of 5 %. On real threads: bounds are generous, and the fault exceeds them many times.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use preempted::Used;
use quotient::{Group, InGroupExt as _};

const TASKS: usize = 200;
/// A limit of a twentieth.
const LIMIT: &str = "5ms/100ms";
/// What one guard is good for, nearly.
const SECTION: Duration = Duration::from_millis(45);
const WATCHED: Duration = Duration::from_secs(4);

/// What the limit is worth in `passed`, once what one guard is good for, and short turns of those that stand.
fn allowed(passed: Duration) -> Duration {
    passed.mul_f64(0.05 + 0.03) + 3 * SECTION
}

/// A section under a guard.
fn section(used: &Used) {
    let _guard = quotient::uninterrupted();
    used.compute(SECTION);
}

fn keeps_to_the_limit(spawn: impl Fn(&Group, Arc<Used>) + Send + 'static) {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let group = scheduler.group("limited").unwrap().max(LIMIT);
        let group = group.create().unwrap();
        let used = Arc::new(Used::default());
        let began = Instant::now();
        for _ in 0..TASKS {
            spawn(&group, used.clone());
        }
        tokio::time::sleep(WATCHED).await;
        let passed = began.elapsed();
        let time = used.so_far();
        used.stop.store(true, Ordering::Relaxed);
        eprintln!(
            "{time:?} in {passed:?}, charged {:?}: {:?}",
            group.cpu_time(),
            scheduler.preempt_stats()
        );
        assert!(time <= allowed(passed), "{time:?} in {passed:?}");
    });
}

#[test]
fn polls_under_guards_void_a_limit() {
    keeps_to_the_limit(|group, used| {
        drop(group.spawn(async move {
            while !used.stop.load(Ordering::Relaxed) {
                section(&used);
                tokio::task::yield_now().await;
            }
        }));
    });
}

/// The limit is a parent's, and each task is in a child group of its own.
#[test]
fn guards_in_many_groups_void_the_limit_above() {
    let number = AtomicU64::new(0);
    keeps_to_the_limit(move |group, used| {
        let name = format!("{}", number.fetch_add(1, Ordering::Relaxed));
        let child = group.child(&name).create().unwrap();
        drop(child.spawn(async move {
            while !used.stop.load(Ordering::Relaxed) {
                section(&used);
                tokio::task::yield_now().await;
            }
        }));
    });
}

#[test]
fn blocking_functions_under_guards_void_a_limit() {
    keeps_to_the_limit(|group, used| {
        drop(group.spawn_blocking(move || {
            while !used.stop.load(Ordering::Relaxed) {
                section(&used);
            }
        }));
    });
}

/// Sections in a group inside a poll, of the task's own group and below it, and in functions that say that they block.
#[test]
fn guards_inside_other_parts_of_polls_void_a_limit() {
    let number = AtomicU64::new(0);
    keeps_to_the_limit(move |group, used| {
        let number = number.fetch_add(1, Ordering::Relaxed);
        let child = group.child(&format!("{number}")).create().unwrap();
        let inner = if number.is_multiple_of(2) {
            child
        } else {
            group.clone()
        };
        drop(group.spawn(async move {
            while !used.stop.load(Ordering::Relaxed) {
                if number.is_multiple_of(3) {
                    quotient::block_in_place(|| section(&used));
                } else {
                    async { section(&used) }.in_group(&inner).await;
                }
                tokio::task::yield_now().await;
            }
        }));
    });
}
