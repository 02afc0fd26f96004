//! What virtual CPUs did for the calls of a long poll was charged to nobody: one that moved its group's tasks to and fro without end had 0.36 to 0.55 CPUs with it
//! under a limit of 0.1, since each move ended the turns of all virtual CPUs. On real threads: the bound is generous, and a poll that only computes
//! has 0.15 with what looks after it.

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
/// CPUs that the process may use, of the 0.1 that the group may.
const MOST: f64 = 0.27;

/// Moves all tasks of `home` to `other` and back, until `stop`.
async fn move_to_and_fro(home: Group, other: Group, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        home.move_tasks_to(&other).unwrap();
        other.move_tasks_to(&home).unwrap();
    }
}

#[test]
fn moves_end_the_turns_of_virtual_cpus_that_keep_nothing_back() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let group = preempted::limited(&scheduler, "limited", "10ms/100ms");
        let [home, other] = ["home", "other"].map(|name| group.child(name).create().unwrap());
        for _ in 0..TASKS {
            drop(home.spawn(std::future::pending::<()>()));
        }
        let stop = Arc::new(AtomicBool::new(false));
        drop(group.spawn(move_to_and_fro(home.clone(), other.clone(), stop.clone())));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut seen = Vec::new();
        for _ in 0..3 {
            let (used, began) = (preempted::process_time(), Instant::now());
            tokio::time::sleep(Duration::from_secs(1)).await;
            let used = preempted::process_time() - used;
            seen.push(used.as_secs_f64() / began.elapsed().as_secs_f64());
        }
        stop.store(true, Ordering::Relaxed);
        // Nothing waits in a queue, so none is to be looked through.
        let least = seen.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(
            least < MOST,
            "CPUs: {seen:?}, {:?}",
            scheduler.preempt_stats()
        );
        drop(home.kill());
        drop(other.kill());
    });
}

/// Hazard: who moves itself out of a group without budget has its turn as the virtual CPUs are looked at, waits in no queue, and is put back where it was.
#[test]
fn a_task_that_moves_itself_is_kept_back_by_the_limit_that_it_has_left() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let limited = preempted::limited(&scheduler, "limited", "1ms/1s");
        let free = scheduler.group("free").unwrap().create().unwrap();
        for _ in 0..3 {
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
            // For the next one to begin with budget.
            tokio::time::sleep(Duration::from_millis(2_500)).await;
        }
    });
}
