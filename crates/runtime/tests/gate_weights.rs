//! Weights of futures that are in a group in foreign tasks: however few polls they have, and however soon the next one comes.
#![cfg(not(loom))]

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{burn, eventually, guarded, runtime};
use quotient::{Group, InGroupExt, Scheduler};
use tokio::task::JoinHandle;

/// CPU time of one poll: so short that a machine that is busy with other things seldom takes the processor away in the middle of
/// one (while nobody runs, others do what they do for polls that are stuck).
const POLL: Duration = Duration::from_micros(100);
/// Futures of a group at a time: more than there are workers, so that some of it always wait.
const DRIVERS: usize = 4;
/// CPU time of both groups in one run.
const TOTAL: Duration = Duration::from_millis(300);

/// A future that yields between its polls.
async fn work(polls: u32) {
    for poll in 0..polls {
        if poll > 0 {
            tokio::task::yield_now().await;
        }
        burn(POLL);
    }
}

/// Tasks that each run one future after the other in the group, until the flag.
fn drivers(group: &Group, polls: u32, stop: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    let one = |_| {
        let (group, stop) = (group.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                tokio::spawn(work(polls).in_group(&group)).await.unwrap();
            }
        })
    };
    (0..DRIVERS).map(one).collect()
}

/// On one worker, which is where all that others do comes in between; once or as often as `QUOTIENT_REPEAT` says.
fn repeatedly<Fut: Future<Output = ()>>(test: impl Fn(usize) -> Fut) {
    let wanted = std::env::var("QUOTIENT_REPEAT").ok();
    let repetitions = wanted.and_then(|text| text.parse().ok()).unwrap_or(1);
    for _ in 0..repetitions {
        runtime(1).block_on(guarded(test(1)));
    }
}

async fn get_what_their_weights_say(workers: usize, polls: u32) {
    let scheduler = Scheduler::builder().vcpus(workers).build().unwrap();
    let light = scheduler.group("light").unwrap().weight(100);
    let light = light.create().unwrap();
    let heavy = scheduler.group("heavy").unwrap().weight(300);
    let heavy = heavy.create().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = drivers(&light, polls, &stop);
    tasks.extend(drivers(&heavy, polls, &stop));
    eventually("enough was computed", || {
        light.cpu_time() + heavy.cpu_time() >= TOTAL
    })
    .await;
    let ratio = heavy.cpu_time().as_secs_f64() / light.cpu_time().as_secs_f64();
    // Three on a quiet machine. Where others keep the processors busy, a host that gets none for 20 ms looks stuck, and what waits
    // goes in the order of its coming: more than 2 beside four busy processes. Without weights it is 1.
    assert!(
        (1.6..5.0).contains(&ratio),
        "{workers} workers, {polls} polls: {ratio}"
    );
    let members = scheduler.tasks();
    assert!(members <= 2 * 2 * DRIVERS, "members pile up: {members}");
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    scheduler.shutdown().await;
}

#[test]
fn weights_hold_though_new_futures_come_before_old_ones_have_paid() {
    repeatedly(|workers| get_what_their_weights_say(workers, 1));
}

#[test]
fn weights_hold_though_the_host_defers_long_yields() {
    repeatedly(|workers| get_what_their_weights_say(workers, 5));
}

#[test]
fn weights_hold_for_futures_of_many_polls() {
    repeatedly(|workers| get_what_their_weights_say(workers, 50));
}
