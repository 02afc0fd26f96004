//! Hazard: polls that never end keep a program from ending, on a worker, on a stand-in or without a virtual CPU. A shutdown with a
//! timeout returns and names them, and the process exits.
#![cfg(not(loom))]

mod common;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{repetitions, runtime, scheduler};
use quotient::{Preempt, Scheduler};

/// Says to a test that it is the child, and which.
const CASE: &str = "QUOTIENT_ENDLESS_CASE";
/// A hang bound.
const LONG: Duration = Duration::from_secs(60);

/// One endless poll.
fn never_returns(case: &str) {
    let forever = || {
        loop {
            std::thread::sleep(Duration::from_secs(3_600));
        }
    };
    match case {
        "computes" | "preempted" => loop {
            std::hint::spin_loop();
        },
        "sleeps" => forever(),
        _ => quotient::block_in_place(forever),
    }
}

/// The child: does nothing unless it is asked to.
#[test]
fn a_program_with_endless_polls() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    let (case, workers) = case.split_once(' ').unwrap();
    let workers: usize = workers.parse().unwrap();
    // Those that compute get one stand-in, the spare; those that block, as many as there are.
    let polls = match case {
        "computes" => workers + 1,
        "sleeps" => 2 * workers,
        "preempted" => 2 * workers + 1,
        _ => 2 * workers + 3,
    };
    let runtime = runtime(workers);
    let _inside = runtime.enter();
    let (scheduler, group) = match case {
        "preempted" => {
            let builder = Scheduler::builder().vcpus(workers);
            let scheduler = builder.preempt(Preempt::default()).build().unwrap();
            let group = scheduler.group("tenants/acme").unwrap().create().unwrap();
            (scheduler, group)
        }
        _ => scheduler(workers),
    };
    let begun = Arc::new(AtomicUsize::new(0));
    let name: Arc<str> = case.into();
    for _ in 0..polls {
        let (begun, name) = (begun.clone(), name.clone());
        drop(group.spawn(async move {
            begun.fetch_add(1, Ordering::SeqCst);
            never_returns(&name);
        }));
    }
    let end = Instant::now() + LONG;
    while begun.load(Ordering::SeqCst) < polls {
        assert!(Instant::now() < end, "stand-ins did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    let timeout = Duration::from_millis(20);
    let unfinished = runtime.block_on(scheduler.shutdown_timeout(timeout));
    let unfinished = unfinished.unwrap_err();
    assert_eq!(unfinished.tasks, polls, "{unfinished}");
    assert_eq!(unfinished.polling.len(), polls, "{unfinished}");
    assert!(unfinished.to_string().contains(file!()), "{unfinished}");
    runtime.shutdown_background();
}

fn the_program_exits(case: &str) {
    for workers in [1, 2] {
        for _ in 0..repetitions() {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "a_program_with_endless_polls"])
                .env(CASE, format!("{case} {workers}"))
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let end = Instant::now() + 2 * LONG;
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                if Instant::now() > end {
                    child.kill().unwrap();
                    panic!("the program did not exit: {case}, {workers} workers");
                }
                std::thread::sleep(Duration::from_millis(2));
            };
            assert!(status.success(), "{case}, {workers} workers: {status}");
        }
    }
}

#[test]
fn polls_that_compute() {
    the_program_exits("computes");
}

/// They are on no virtual CPU any more when the program ends, and are named all the same.
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
#[test]
fn polls_that_compute_and_are_preempted() {
    the_program_exits("preempted");
}

#[test]
fn polls_that_sleep() {
    the_program_exits("sleeps");
}

#[test]
fn polls_that_block_in_place() {
    the_program_exits("blocks");
}
