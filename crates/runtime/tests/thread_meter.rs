//! Threads that are metered for a group: what is billed, and every way to use the meter wrongly.

mod common;

use std::time::Duration;

#[cfg(target_os = "linux")]
use common::time_here;
use common::{burn, runtime};
use quotient::{Group, MeterError, Scheduler, ThreadMeter};

const MS: Duration = Duration::from_millis(1);

/// A scheduler with groups `a` and `b`, on a runtime of its own.
fn arena() -> (tokio::runtime::Runtime, Scheduler, Group, Group) {
    let runtime = runtime(1);
    let scheduler = {
        let _inside = runtime.enter();
        Scheduler::builder().build().unwrap()
    };
    let make = |path: &str| scheduler.group(path).unwrap().create().unwrap();
    let (a, b) = (make("tenants/a"), make("tenants/b"));
    (runtime, scheduler, a, b)
}

#[cfg(target_os = "linux")]
#[test]
fn a_thread_is_billed_what_the_system_says_it_used() {
    let (runtime, scheduler, a, _) = arena();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let outer_start = time_here();
                let mut meter = ThreadMeter::enter(&a).unwrap();
                let inner_start = time_here();
                burn(20 * MS);
                std::thread::sleep(10 * MS);
                let inner = time_here() - inner_start;
                let billed = meter.leave().unwrap();
                let outer = time_here() - outer_start;
                assert!(
                    billed >= inner && billed <= outer,
                    "billed {billed:?}, used {inner:?} to {outer:?}"
                );
                assert_eq!(meter.cpu_time(), billed);
            });
        }
    });
    runtime.block_on(scheduler.shutdown());
}

/// Reading all the time goes by the time-stamp counter; preemptions in between must not be billed.
#[cfg(target_os = "linux")]
#[test]
fn reading_often_bills_no_stolen_time() {
    let (runtime, scheduler, a, _) = arena();
    let workers = std::thread::available_parallelism().map_or(2, usize::from) * 4;
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let start = time_here();
                let mut meter = ThreadMeter::enter(&a).unwrap();
                let mut last = a.cpu_time();
                for _ in 0..200_000 {
                    let now = a.cpu_time();
                    assert!(now >= last);
                    last = now;
                }
                let billed = meter.leave().unwrap();
                let used = time_here() - start;
                // Each preemption is read from the system's clock; what the counter added in short gaps is a fraction.
                assert!(
                    billed <= used.mul_f64(1.1) + MS,
                    "billed {billed:?}, used {used:?}"
                );
            });
        }
    });
    runtime.block_on(scheduler.shutdown());
}

#[test]
fn group_is_the_sum_of_its_meters_once_all_have_left() {
    let (runtime, scheduler, a, b) = arena();
    let billed: Duration = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|index| {
                let group = if index % 2 == 0 { &a } else { &b };
                scope.spawn(move || {
                    let mut meter = ThreadMeter::enter(group).unwrap();
                    burn(3 * MS);
                    meter.publish();
                    burn(MS);
                    meter.leave().unwrap()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(scheduler.cpu_time(), billed);
    assert_eq!(a.cpu_time() + b.cpu_time(), billed);
    runtime.block_on(scheduler.shutdown());
}

#[test]
fn it_is_readable_while_it_runs() {
    let (runtime, scheduler, a, _) = arena();
    let meter = ThreadMeter::enter(&a).unwrap();
    assert_eq!(a.metered_threads(), 1);
    let before = a.cpu_time();
    burn(5 * MS);
    let here = a.cpu_time();
    assert!(here > before, "up to date on the same thread");
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| a.cpu_time()).join().unwrap());
    assert!(elsewhere >= here, "elsewhere at least what was read here");
    drop(meter);
    assert_eq!(a.metered_threads(), 0);
    runtime.block_on(scheduler.shutdown());
}

#[test]
fn the_innermost_meter_bills() {
    let (runtime, scheduler, a, b) = arena();
    let mut outer = ThreadMeter::enter(&a).unwrap();
    let outer_before = outer.cpu_time();
    let mut inner = ThreadMeter::enter(&b).unwrap();
    burn(5 * MS);
    assert_eq!(outer.leave(), Err(MeterError::InnerEntered));
    let inner_billed = inner.leave().unwrap();
    assert_eq!(inner.leave(), Err(MeterError::NotEntered), "left twice");
    let outer_billed = outer.leave().unwrap();
    assert!(inner_billed > Duration::ZERO);
    assert!(
        outer_billed - outer_before < inner_billed,
        "outer {outer_billed:?}, inner {inner_billed:?}"
    );
    assert_eq!((a.cpu_time(), b.cpu_time()), (outer_billed, inner_billed));
    runtime.block_on(scheduler.shutdown());
}

#[test]
fn guards_dropped_out_of_order_end_together() {
    let (runtime, scheduler, a, b) = arena();
    let outer = ThreadMeter::enter(&a).unwrap();
    let inner = ThreadMeter::enter(&b).unwrap();
    drop(outer);
    assert_eq!((a.metered_threads(), b.metered_threads()), (1, 1));
    drop(inner);
    assert_eq!((a.metered_threads(), b.metered_threads()), (0, 0));
    let (at_a, at_b) = (a.cpu_time(), b.cpu_time());
    burn(2 * MS);
    assert_eq!(
        (a.cpu_time(), b.cpu_time()),
        (at_a, at_b),
        "nobody is billed any more"
    );
    runtime.block_on(scheduler.shutdown());
}

#[test]
fn a_thread_that_ends_inside_a_meter_is_billed_to_its_end() {
    let (runtime, scheduler, a, _) = arena();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::mem::forget(ThreadMeter::enter(&a).unwrap());
            burn(3 * MS);
        });
    });
    // A scope ends when the closures have, which is before the threads' locals are gone.
    let patience = std::time::Instant::now() + Duration::from_secs(60);
    while a.metered_threads() > 0 {
        assert!(
            std::time::Instant::now() < patience,
            "the end of the thread was not noticed"
        );
        std::thread::yield_now();
    }
    assert!(!a.cpu_time().is_zero());
    runtime.block_on(scheduler.shutdown());
}

#[test]
fn what_cannot_be_metered_is_refused() {
    let (runtime, scheduler, a, b) = arena();
    let own = a.clone();
    let inside = a.spawn(async move { ThreadMeter::enter(&own).map(|_| ()) });
    assert_eq!(
        runtime.block_on(inside).unwrap(),
        Err(MeterError::AlreadyBilled)
    );
    b.remove(quotient::Leftover::Kill).unwrap();
    let removed = ThreadMeter::enter(&b).map(|_| ());
    assert_eq!(
        removed,
        Err(MeterError::GroupRemoved {
            path: "tenants/b".into()
        })
    );
    let mut nest = Vec::new();
    let refused = loop {
        match ThreadMeter::enter(&a) {
            Ok(meter) => nest.push(meter),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, MeterError::TooDeep { max: nest.len() });
    while let Some(mut meter) = nest.pop() {
        meter.leave().unwrap();
    }
    assert_eq!(a.metered_threads(), 0);
    runtime.block_on(scheduler.shutdown());
}

/// Tasks that run on a metered thread bill their own groups, and the meter does not bill them again.
#[test]
fn tasks_on_a_metered_thread_are_billed_once() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let scheduler = {
        let _inside = runtime.enter();
        Scheduler::builder().build().unwrap()
    };
    let a = scheduler.group("a").unwrap().create().unwrap();
    let b = scheduler.group("b").unwrap().create().unwrap();
    let mut meter = ThreadMeter::enter(&a).unwrap();
    runtime.block_on(b.spawn(async { burn(10 * MS) })).unwrap();
    let billed = meter.leave().unwrap();
    assert!(b.cpu_time() > Duration::ZERO);
    assert!(
        billed < b.cpu_time(),
        "the meter billed {billed:?}, the task {:?}",
        b.cpu_time()
    );
    runtime.block_on(scheduler.shutdown());
}

#[test]
fn blocking_functions_are_billed_while_they_run() {
    let (runtime, scheduler, a, _) = arena();
    let own = a.clone();
    let (before, during) = runtime
        .block_on(a.spawn(async move {
            quotient::spawn_blocking(move || {
                let before = own.cpu_time();
                burn(5 * MS);
                (before, own.cpu_time())
            })
            .await
            .unwrap()
        }))
        .unwrap();
    assert!(during > before, "{before:?} to {during:?}");
    runtime.block_on(scheduler.shutdown());
}

#[test]
fn the_group_of_the_innermost_meter_is_current_and_spawns_inherit_it() {
    let (runtime, scheduler, a, b) = arena();
    let path = || Group::current().map(|group| group.path().to_owned());
    let task = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            assert_eq!(path(), None);
            let outer = ThreadMeter::enter(&a).unwrap();
            assert_eq!(path().unwrap(), "tenants/a");
            let task = {
                let _inner = ThreadMeter::enter(&b).unwrap();
                assert_eq!(path().unwrap(), "tenants/b");
                quotient::spawn(async move { path() })
            };
            assert_eq!(path().unwrap(), "tenants/a");
            drop(outer);
            assert_eq!(path(), None);
            task
        });
        thread.join().unwrap()
    });
    assert_eq!(runtime.block_on(task).unwrap().unwrap(), "tenants/b");
    runtime.block_on(scheduler.shutdown());
}

/// The meter pauses while a virtual CPU is polled, and is back after it.
#[test]
fn a_task_on_a_metered_thread_is_in_its_own_group() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let scheduler = {
        let _inside = runtime.enter();
        Scheduler::builder().build().unwrap()
    };
    let a = scheduler.group("a").unwrap().create().unwrap();
    let b = scheduler.group("b").unwrap().create().unwrap();
    let meter = ThreadMeter::enter(&a).unwrap();
    let task = b.spawn(async { Group::current().unwrap().path().to_owned() });
    assert_eq!(runtime.block_on(task).unwrap(), "b");
    assert_eq!(Group::current().unwrap().path(), "a");
    drop(meter);
    runtime.block_on(scheduler.shutdown());
}
