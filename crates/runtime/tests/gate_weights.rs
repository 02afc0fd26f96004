//! Weights of futures that are in a group in foreign tasks: however few polls they have, and however soon the next one comes.
#![cfg(not(loom))]

mod common;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{burn, eventually, guarded, runtime};
use quotient::{Group, InGroupExt, Scheduler};
use tokio::task::JoinHandle;

/// CPU time of one poll.
const POLL: Duration = Duration::from_micros(100);
/// Futures of a group at a time: more than there are workers, so that some of it always wait.
const DRIVERS: usize = 4;
/// CPU time of both groups in one measurement.
const TOTAL: Duration = Duration::from_millis(300);
/// Measurements until one is good, at most.
const TRIES: usize = 2;

/// One test at a time: each keeps a processor busy, and would be the others' noise.
static MACHINE: Mutex<()> = Mutex::new(());

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
    let _alone = MACHINE.lock().unwrap_or_else(|poison| poison.into_inner());
    let wanted = std::env::var("QUOTIENT_REPEAT").ok();
    let repetitions = wanted.and_then(|text| text.parse().ok()).unwrap_or(1);
    for _ in 0..repetitions {
        runtime(1).block_on(guarded(test(1)));
    }
}

async fn get_what_their_weights_say(workers: usize, polls: u32) {
    let builder = Scheduler::builder().vcpus(workers).computing_clock();
    let scheduler = builder.build().unwrap();
    let light = scheduler.group("light").unwrap().weight(100);
    let light = light.create().unwrap();
    let heavy = scheduler.group("heavy").unwrap().weight(300);
    let heavy = heavy.create().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = drivers(&light, polls, &stop);
    tasks.extend(drivers(&heavy, polls, &stop));
    let used = || (light.cpu_time(), heavy.cpu_time());
    // Three, or one without weights. No time passes while others have the processors, so that a busy machine is none that looks
    // stuck. One measurement may meet a collection of whatever the host does at its start.
    let mut ratios = Vec::new();
    for _try in 0..TRIES {
        let before = used();
        eventually("enough was computed", || {
            let now = used();
            now.0 + now.1 >= before.0 + before.1 + TOTAL
        })
        .await;
        let now = used();
        let (light, heavy) = (now.0 - before.0, now.1 - before.1);
        let ratio = heavy.as_secs_f64() / light.as_secs_f64();
        ratios.push(ratio);
        if (2.4..3.7).contains(&ratio) {
            break;
        }
        assert!(
            ratios.len() < TRIES,
            "not 1:3, {workers} workers, {polls} polls: {ratios:?}"
        );
    }
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
