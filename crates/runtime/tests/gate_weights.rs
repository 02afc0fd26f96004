//! Weights of futures that are in a group in foreign tasks: however few polls they have, and however soon the next one comes.
#![cfg(not(loom))]

mod common;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{burn, eventually, guarded, runtime};
use quotient::{Group, InGroupExt, Scheduler};
use tokio::task::JoinHandle;

/// CPU time of one poll: so short that a machine that is busy with other things seldom takes the processor away in the middle of
/// one (while nobody runs, others do what they do for polls that are stuck).
const POLL: Duration = Duration::from_micros(100);
/// Futures of a group at a time: more than there are workers, so that some of it always wait.
const DRIVERS: usize = 4;
/// CPU time of both groups in one measurement.
const TOTAL: Duration = Duration::from_millis(300);
/// Measurements until one counts, at most.
const TRIES: usize = 4;

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
    let scheduler = Scheduler::builder().vcpus(workers).build().unwrap();
    let light = scheduler.group("light").unwrap().weight(100);
    let light = light.create().unwrap();
    let heavy = scheduler.group("heavy").unwrap().weight(300);
    let heavy = heavy.create().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = drivers(&light, polls, &stop);
    tasks.extend(drivers(&heavy, polls, &stop));
    let used = || (light.cpu_time(), heavy.cpu_time());
    // Three on a quiet machine, one without weights. Where others keep the processors busy, a host that gets none for 20 ms looks
    // stuck, and what waits goes in the order of its coming. So a measurement counts if the groups got three quarters of the
    // worker's processor; one that counts must be good, or else the next one that does.
    let (mut good, mut bad) = (false, Vec::new());
    for _try in 0..TRIES {
        let (before, start) = (used(), Instant::now());
        eventually("enough was computed", || {
            let now = used();
            now.0 + now.1 >= before.0 + before.1 + TOTAL
        })
        .await;
        let (now, passed) = (used(), start.elapsed());
        let (light, heavy) = (now.0 - before.0, now.1 - before.1);
        if light + heavy < passed * 3 / 4 {
            continue;
        }
        let ratio = heavy.as_secs_f64() / light.as_secs_f64();
        good = (2.4..3.7).contains(&ratio);
        if good {
            break;
        }
        bad.push(ratio);
        assert!(
            bad.len() < 2,
            "not 1:3, {workers} workers, {polls} polls: {bad:?}"
        );
    }
    if !good {
        eprintln!("not judged: the machine had no time for {polls} polls, {bad:?}");
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
