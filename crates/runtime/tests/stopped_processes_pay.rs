//! A process that is stopped (SIGSTOP, a debugger, a frozen cgroup) computes nothing: no group pays for how long it stood still. Budgets are
//! charged what the clock is.
#![cfg(target_os = "linux")]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{burn, guarded, runtime, scheduler};
use quotient::{Group, Limit, Nanos};

/// How often the process is stopped, and for how long.
const STOPS: u32 = 3;
const STOP: Duration = Duration::from_millis(150);

/// A third of what it stood still: most stops fall into a poll, of either worker or of both.
const TOLERANCE: Duration = STOP;

/// Polls of this length on both workers, in which the process is stopped; how much the group's clock moved beyond the process's.
async fn billed_beyond(group: &Group, poll: Duration) -> Duration {
    let end = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let end = end.clone();
            group.spawn(async move {
                while !end.load(Ordering::Relaxed) {
                    burn(poll);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let (cpu, clock) = (common::process_time(), group.cpu_time());
    let script = format!(
        "for i in $(seq {STOPS}); do sleep 0.05; kill -STOP $PPID; sleep {}; kill -CONT $PPID; done",
        STOP.as_secs_f64()
    );
    let mut stopper = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    while stopper.try_wait().unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    end.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    // The clock first: what runs meanwhile is the process's only.
    let clock = group.cpu_time() - clock;
    clock.saturating_sub(common::process_time() - cpu)
}

#[test]
fn stopped_processes_pay() {
    for limited in [false, true] {
        runtime(2).block_on(guarded(async {
            let (scheduler, group) = scheduler(2);
            if limited {
                let limit = Limit::new(Nanos::from_micros(40_000), Nanos::from_micros(50_000));
                group.set_max(limit).unwrap();
            }
            for poll in [Duration::from_micros(200), Duration::from_millis(20)] {
                let beyond = billed_beyond(&group, poll).await;
                assert!(
                    beyond < TOLERANCE,
                    "polls of {poll:?}, limited {limited}: the group's clock is {beyond:?} beyond the process's"
                );
            }
            scheduler.shutdown().await;
        }));
    }
}
