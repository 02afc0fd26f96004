//! A long poll whose proxy was taken to another virtual CPU, or came back from being away, ran on as nobody's choice for as long as its
//! group had no budget there: whole periods of a limit of a tenth.

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

use quotient::{InGroupExt as _, Preempt, Scheduler};

/// Long polls, on two virtual CPUs.
const HOGS: usize = 6;
const QUOTA: Duration = Duration::from_millis(10);
const PERIOD: Duration = Duration::from_millis(100);
/// What a stretch may have beyond its periods: one quota for where it begins, and room for short turns on a busy machine. The fault
/// takes 100 ms in 100.
const ROOM: Duration = Duration::from_millis(45);

fn compute(used: &AtomicU64, stop: &AtomicBool) {
    let mut before = common::time_here();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..500 {
            std::hint::black_box(0);
        }
        let now = common::time_here();
        let step = u64::try_from(now.saturating_sub(before).as_nanos()).unwrap_or(0);
        used.fetch_add(step, Ordering::Relaxed);
        before = now;
    }
}

/// Where the long polls are.
#[derive(Clone, Copy)]
enum Where {
    Task,
    Function,
    /// In a future of a child group inside a task: who accounts for that does so at its end, which does not come.
    Child,
}

fn no_stretch_exceeds_its_periods(place: Where) {
    let _alone = preempted::alone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let scheduler = Scheduler::builder()
        .handle(runtime.handle().clone())
        .vcpus(2)
        .preempt(Preempt::default())
        .build()
        .expect("a scheduler");
    let group = scheduler.group("limited").expect("a path");
    let group = group.max((QUOTA, PERIOD)).create().expect("a group");
    let (used, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    for hog in 0..HOGS {
        let (used, stop) = (used.clone(), stop.clone());
        let body = move || compute(&used, &stop);
        match place {
            Where::Task => drop(group.spawn(async move { body() })),
            Where::Function => drop(group.spawn_blocking(body)),
            Where::Child => {
                let child = group.child(&format!("{hog}")).create().expect("a child");
                let around = child.child("around").create().expect("a group");
                let inside = async move { body() }.in_group(&child);
                drop(group.spawn(inside.in_group(&around)));
            }
        }
    }
    // Their first polls run until they are taken off their virtual CPUs.
    std::thread::sleep(Duration::from_millis(300));
    let read = || Duration::from_nanos(used.load(Ordering::Relaxed));
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        let (began, before) = (Instant::now(), read());
        std::thread::sleep(PERIOD);
        let more = read().saturating_sub(before);
        let periods = began.elapsed().as_secs_f64() / PERIOD.as_secs_f64();
        let allowed = QUOTA.mul_f64(periods) + ROOM;
        assert!(
            more <= allowed,
            "{more:?} of {allowed:?} in {periods} periods"
        );
    }
    stop.store(true, Ordering::Relaxed);
    drop(group);
    drop(scheduler);
    runtime.shutdown_timeout(Duration::from_secs(1));
}

#[test]
fn tasks_run_on_without_budget() {
    no_stretch_exceeds_its_periods(Where::Task);
}

#[test]
fn blocking_functions_run_on_without_budget() {
    no_stretch_exceeds_its_periods(Where::Function);
}

/// The dead go first in another group's place. One whose destructor outlasted its turn stayed there, in nobody's limit and on nobody's
/// clock: a tenant of a tenth had 1.2 processors, and others waited for half a second.
#[test]
fn futures_of_other_groups_run_on_without_budget() {
    no_stretch_exceeds_its_periods(Where::Child);
}

#[test]
fn destructors_of_the_dead_run_on_without_budget() {
    const BOMBS: u32 = 60;
    const FUSE: Duration = Duration::from_millis(5);
    preempted::run(2, Duration::from_secs(1), |scheduler| async move {
        let group = scheduler.group("g").unwrap().max("10ms/100ms");
        let group = group.create().unwrap();
        let began = Instant::now();
        common::set_off(common::bombs(&group, BOMBS, FUSE)).await;
        // Of 300 ms, 100 are left for the first quota, what the dead may have ahead of it, a turn of each, and short turns of the
        // stopped. The rest takes 2 s. Without the limit it took 0.2.
        let passed = began.elapsed();
        assert!(passed >= Duration::from_millis(1_000), "{passed:?}");
        common::eventually("the bill", || group.cpu_time() >= BOMBS * FUSE / 2).await;
    });
}
