//! Hazard: whoever ends a scheduler aborts the tasks of one group after the other. One that another thread moved meanwhile, from a group that was not looked through yet to
//! one that was, lived on, and `shutdown` did not return.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quotient::Scheduler;

/// The more groups, the longer the end looks through them.
const GROUPS: usize = 64;
const ROUNDS: usize = 20;
/// On a machine where tests of other crates are built beside it.
const HANG: Duration = Duration::from_secs(30);

#[test]
fn a_task_that_is_moved_as_the_scheduler_ends_is_aborted() {
    for round in 0..ROUNDS {
        common::runtime(2).block_on(async {
            let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
            let groups: Vec<_> = (0..GROUPS)
                .map(|number| {
                    let group = scheduler.group(&format!("{number}")).unwrap();
                    group.create().unwrap()
                })
                .collect();
            for group in &groups {
                drop(group.spawn(std::future::pending::<()>()));
            }
            let stop = Arc::new(AtomicBool::new(false));
            let stops = stop.clone();
            let mover = std::thread::spawn(move || {
                while !stops.load(Ordering::Relaxed) {
                    for number in 0..GROUPS {
                        let next = &groups[(number + 1) % GROUPS];
                        groups[number].move_tasks_to(next).unwrap();
                    }
                }
            });
            let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
            stop.store(true, Ordering::Relaxed);
            mover.join().unwrap();
            assert!(ended.is_ok(), "round {round}");
        });
    }
}
