//! Hazards: blocking functions and jobs of other pools in groups without a limit have more than their group's weight, under preemption, or bring down
//! the process as their thread ends. On real threads: what is asserted of time is generous, since the machine is shared.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use preempted::Used;
use quotient::{Group, Scheduler, ThreadMeter};

/// Two virtual CPUs, and functions that may take a while to end.
const END: Duration = Duration::from_secs(10);

/// A group of this weight, and what its load uses.
fn member(scheduler: &Scheduler, path: &str, weight: u32) -> (Group, Arc<Used>) {
    let group = scheduler.group(path).unwrap();
    (group.weight(weight).create().unwrap(), Arc::default())
}

/// Tasks whose polls take so long, one after the other.
fn polls(group: &Group, used: &Arc<Used>, each: Duration) {
    for _ in 0..4 {
        let used = used.clone();
        group.spawn(async move {
            while !used.stop.load(Ordering::Relaxed) {
                used.compute(each);
                tokio::task::yield_now().await;
            }
        });
    }
}

/// Threads of nobody's, each with one job after the other.
fn jobs(group: &Group, used: &Arc<Used>, each: Duration) {
    for _ in 0..4 {
        let (group, used) = (group.clone(), used.clone());
        std::thread::spawn(move || {
            while !used.stop.load(Ordering::Relaxed) {
                ThreadMeter::run(&group, || used.compute(each)).unwrap();
            }
        });
    }
}

/// Tasks that wait for several functions at a time.
fn fans(group: &Group, used: &Arc<Used>, each: Duration) {
    for _ in 0..4 {
        let (here, used) = (group.clone(), used.clone());
        group.spawn(async move {
            while !used.stop.load(Ordering::Relaxed) {
                let function = || {
                    let used = used.clone();
                    here.spawn_blocking(move || used.compute(each))
                };
                let functions: Vec<_> = (0..16).map(|_| function()).collect();
                for function in functions {
                    function.await.unwrap();
                }
            }
        });
    }
}

type Load = fn(&Group, &Arc<Used>, Duration);

/// `light`, of weight 100, beside `heavy`, of 300, has about a third of what that has, and its clock knows. In one window of five: in the others the
/// machine may have been busy elsewhere.
fn keep_weights(light: (Load, Duration), heavy: (Load, Duration)) {
    preempted::run(2, END, |scheduler| async move {
        let (a, had_a) = member(&scheduler, "light", 100);
        let (b, had_b) = member(&scheduler, "heavy", 300);
        (light.0)(&a, &had_a, light.1);
        (heavy.0)(&b, &had_b, heavy.1);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut seen = Vec::new();
        let holds = loop {
            let before = (had_a.so_far(), had_b.so_far(), a.cpu_time());
            tokio::time::sleep(Duration::from_millis(1_200)).await;
            let had = |now: Duration, before: Duration| (now - before).as_secs_f64();
            let light = had(had_a.so_far(), before.0);
            let ratio = had(had_b.so_far(), before.1) / light;
            let known = had(a.cpu_time(), before.2) / light;
            if (2.3..3.9).contains(&ratio) && (0.8..1.3).contains(&known) {
                break true;
            }
            seen.push((ratio, known));
            if seen.len() == 5 {
                break false;
            }
        };
        had_a.stop.store(true, Ordering::Relaxed);
        had_b.stop.store(true, Ordering::Relaxed);
        assert!(
            holds,
            "ratios of 3, parts that the clock knows: {seen:?}, {:?}",
            scheduler.preempt_stats()
        );
    });
}

#[test]
fn jobs_begin_again_and_again_before_they_are_charged() {
    let (short, long) = (Duration::from_micros(1_500), Duration::from_millis(100));
    keep_weights((jobs, short), (polls, long));
}

#[test]
fn the_longer_a_job_runs_beside_short_polls_the_later_it_is_charged() {
    let (short, long) = (Duration::from_micros(100), Duration::from_millis(60));
    keep_weights((jobs, long), (polls, short));
}

#[test]
fn functions_at_once_begin_as_if_there_were_no_weights() {
    let each = Duration::from_micros(1_500);
    keep_weights((fans, each), (fans, each));
}

/// Dropped after the locals of the library.
struct Late(Group);

impl Drop for Late {
    fn drop(&mut self) {
        assert_eq!(ThreadMeter::run(&self.0, || 7).unwrap_or(7), 7);
    }
}

thread_local! {
    static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
}

#[test]
fn a_job_in_the_last_destructor_of_a_thread_aborts_the_process() {
    preempted::run(2, END, |scheduler| async move {
        for max in ["max", "50ms/100ms"] {
            let group = scheduler.group("late").unwrap().create().unwrap();
            group.set_max(max).unwrap();
            let thread = std::thread::spawn(move || {
                // First, so it goes last.
                LATE.set(Some(Late(group.clone())));
                std::mem::forget(ThreadMeter::enter(&group));
            });
            thread.join().unwrap();
        }
    });
}
