//! A long poll, whose thread is of low priority, made and removed groups without end: on a machine with other work it held the scheduler's lock for
//! as long as it had no processor, and whoever else made a group waited for 0.2 to 1 s. On real threads: bounds are generous.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quotient::{Group, Leftover, Scheduler};

/// Threads of other programs, as it were.
const BUSY: usize = 4;

#[test]
fn making_a_group_waits_for_who_is_lowered() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let stop = Arc::new(AtomicBool::new(false));
        let made = Arc::new(AtomicU64::new(0));
        for hog in 0..2 {
            let group = scheduler.group(&format!("hog{hog}")).unwrap();
            let group = group.create().unwrap();
            let (stop, made) = (stop.clone(), made.clone());
            drop(group.spawn(async move {
                let own = Group::current().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let child = own.child("child").create().unwrap();
                    child.set_max("10ms/100ms").unwrap();
                    child.freeze().unwrap();
                    child.remove(Leftover::Kill).unwrap();
                    made.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        while scheduler.preempt_stats().unwrap().borne < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..BUSY {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let mut seen = Vec::new();
        // It was 23 to 36 ms, and is 0.1 where nobody else wants the processors.
        let is_good = |wait: &Duration| *wait < Duration::from_millis(15);
        while !seen.iter().any(is_good) {
            let own = scheduler.clone();
            let waits = tokio::task::spawn_blocking(move || waits_to_make_groups(&own));
            let waits = waits.await.unwrap();
            let at = |part: usize| waits[waits.len() * part / 100];
            let (most, worst) = (at(90), waits[waits.len() - 1]);
            println!(
                "{} groups: 90 % in {most:?}, worst {worst:?}; others made {made:?}",
                waits.len()
            );
            seen.push(most);
            assert!(seen.len() < 4, "of 90 %, at most: {seen:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// How long each of many took, shortest first.
fn waits_to_make_groups(scheduler: &Scheduler) -> Vec<Duration> {
    let mut waits = Vec::new();
    let end = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < end {
        let began = Instant::now();
        let group = scheduler.group("other").unwrap().create().unwrap();
        group.remove(Leftover::Kill).unwrap();
        waits.push(began.elapsed());
        std::thread::sleep(Duration::from_millis(2));
    }
    waits.sort_unstable();
    waits
}
