//! Hazards: blocking functions and threads of other pools run beyond their group's limit, under preemption; or what makes them wait never lets them
//! go. On real threads: what is asserted of time is generous, since the machine is shared.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use preempted::keeps_to_a_tenth;
use quotient::{Group, Scheduler, ThreadMeter};

/// Runs `body` with two virtual CPUs; functions that were told to stop may take a while to.
fn run<F>(body: impl FnOnce(Scheduler) -> F)
where
    F: Future<Output = ()>,
{
    preempted::run(2, Duration::from_secs(10), body);
}

fn compute(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::black_box((0..1_000_u64).sum::<u64>());
    }
}

#[test]
fn blocking_functions_run_beyond_their_groups_limit() {
    run(|scheduler| async move {
        let stop = Arc::new(AtomicBool::new(false));
        let group = scheduler.group("limited").unwrap();
        let group = group.max("10ms/100ms").create().unwrap();
        let functions: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                group.spawn_blocking(move || {
                    compute(&stop);
                    Group::current().unwrap().path().to_owned()
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        keeps_to_a_tenth(&scheduler, &group).await;
        assert_eq!(scheduler.preempt_stats().unwrap().foreign, 3);
        stop.store(true, Ordering::Relaxed);
        for function in functions {
            assert_eq!(function.await.unwrap(), "limited");
        }
    });
}

#[test]
fn threads_of_other_pools_run_beyond_their_groups_limit() {
    run(|scheduler| async move {
        let stop = Arc::new(AtomicBool::new(false));
        let group = scheduler.group("limited").unwrap();
        let group = group.max("10ms/100ms").create().unwrap();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (stop, group) = (stop.clone(), group.clone());
                std::thread::spawn(move || ThreadMeter::run(&group, || compute(&stop)).unwrap())
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        keeps_to_a_tenth(&scheduler, &group).await;
        stop.store(true, Ordering::Relaxed);
        while threads.iter().any(|thread| !thread.is_finished()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn what_a_blocking_function_ends_with_is_lost_with_its_turns() {
    run(|scheduler| async move {
        let limited = scheduler.group("limited").unwrap();
        let limited = limited.max("20ms/100ms").create().unwrap();
        let free = scheduler.group("free").unwrap().create().unwrap();
        for group in [&limited, &free] {
            for round in 0..20_u64 {
                let ready = group.spawn_blocking(move || round);
                let panics = group.spawn_blocking(move || assert!(round > 1_000, "expected"));
                // Blocked in the kernel it takes no turns, and comes back for them.
                let (sender, receiver) = std::sync::mpsc::channel();
                let waits = group.spawn_blocking(move || receiver.recv().unwrap() + round);
                let asks = group.spawn_blocking(move || sender.send(7).unwrap());
                assert_eq!(ready.await.unwrap(), round);
                assert!(panics.await.unwrap_err().is_panic());
                assert_eq!(waits.await.unwrap(), round + 7);
                asks.await.unwrap();
            }
        }
        // What others pay for is theirs.
        let inner = free.clone();
        let nested = limited.spawn_blocking(move || {
            ThreadMeter::run(&inner, || Group::current().unwrap().path().to_owned()).unwrap()
        });
        assert_eq!(nested.await.unwrap(), "free");
        while scheduler.preempt_stats().unwrap().foreign > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_function_that_stands_keeps_its_scheduler_or_its_runtime_from_ending() {
    let mut stopped = None;
    run(|scheduler| {
        let stopped = &mut stopped;
        async move {
            let stop = Arc::new(AtomicBool::new(false));
            let group = scheduler.group("limited").unwrap();
            // A tenth of a percent: it stands nearly always.
            let group = group.max("1ms/1s").create().unwrap();
            for _ in 0..3 {
                let stop = stop.clone();
                drop(group.spawn_blocking(move || compute(&stop)));
            }
            while scheduler.preempt_stats().unwrap().pauses == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // The scheduler ends beside the functions, which are free then.
            scheduler.shutdown().await;
            stop.store(true, Ordering::Relaxed);
            while scheduler.preempt_stats().unwrap().foreign > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            *stopped = Some(stop);
        }
    });
    assert!(stopped.is_some());
}
