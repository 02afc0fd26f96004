//! Hazard: a long poll runs, at its lower priority, in the middle of short ones on the same processor, and these are billed for it. On real
//! threads: what the machine takes from a short poll is billed to it as well, so only one quiet window of ten is asked for.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

#[path = "common/affinity.rs"]
mod affinity;
mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Windows in which to find a quiet one, and how long they are.
const WINDOWS: usize = 10;
const WINDOW: Duration = Duration::from_millis(400);
/// What a short poll computes. Longer than a lowered thread's slice (100 us), shorter than polls whose clock is always looked at (500 us).
const SHORT: u64 = 300_000;
/// Bill over what the thread used from one short poll to the next, at most: 0.88 not optimised and 0.99 optimised (what the scheduler does in
/// between is nobody's; 0.6 on a machine that is busy with other programs), 1.05 to 1.07 not optimised when what the long poll had in between
/// is billed to the short ones (a thread of nice 10 has 110 of 1,134 parts).
const RATIO: f64 = 1.02;

fn thread_cpu() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Computes for `nanos` of the thread's CPU time.
fn compute(nanos: u64) {
    let begin = thread_cpu();
    while thread_cpu() - begin < nanos {
        std::hint::black_box((0..1_000_u64).sum::<u64>());
    }
}

/// All threads on one processor, as in a container that has one: elsewhere the long poll has a processor of its own.
fn on_one_processor() {
    let first = affinity::allowed().first().copied();
    affinity::stay_on(first.expect("a processor"));
}

#[test]
fn short_polls_are_not_billed_for_a_long_one_in_their_middle() {
    on_one_processor();
    preempted::run(1, Duration::from_secs(10), |scheduler| async move {
        let stop = Arc::new(AtomicBool::new(false));
        let used = Arc::new(AtomicU64::new(0));
        let group = |path| scheduler.group(path).unwrap().create().unwrap();
        let (long, short) = (group("long"), group("short"));
        let stopped = stop.clone();
        let endless = long.spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                compute(SHORT);
            }
        });
        let (stopped, counts) = (stop.clone(), used.clone());
        let polls = short.spawn(async move {
            // By the thread's clock and all of it, as it is the carrier's only task: a poll's beginning and end are a twentieth of its
            // computation here, and a seventh on a machine that is busy with other programs.
            let mut last = (thread::current().id(), thread_cpu());
            while !stopped.load(Ordering::Relaxed) {
                compute(SHORT);
                let now = (thread::current().id(), thread_cpu());
                if now.0 == last.0 {
                    counts.fetch_add(now.1 - last.1, Ordering::Relaxed);
                }
                last = now;
                tokio::task::yield_now().await;
            }
        });
        tokio::time::sleep(WINDOW).await;
        let mut seen = Vec::new();
        for _ in 0..WINDOWS {
            let before = (short.cpu_time(), used.load(Ordering::Relaxed));
            tokio::time::sleep(WINDOW).await;
            let billed = (short.cpu_time() - before.0).as_nanos() as f64;
            let ratio = billed / (used.load(Ordering::Relaxed) - before.1) as f64;
            seen.push(ratio);
            if ratio < RATIO {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        endless.await.unwrap();
        polls.await.unwrap();
        assert!(
            seen.iter().any(|ratio| *ratio < RATIO),
            "billed over used: {seen:?}, {:?}",
            scheduler.preempt_stats()
        );
    });
}
