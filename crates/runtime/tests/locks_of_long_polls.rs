//! A lock that is taken in a long poll, which goes on on a thread of its own: its holder is lent a place like any other, in the middle of the poll too.
#![cfg(all(target_os = "linux", not(loom)))]

#[path = "common/mod.rs"]
mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::time_here;
use preempted::{compute, compute_for, limited, run};
use quotient::sync::Mutex;

/// Hazard: a long poll was taken from its virtual CPU, and what it had noted, that it holds a lock, was forgotten with its end.
#[test]
fn who_took_a_lock_in_a_long_poll_is_lent_a_place() {
    run(2, Duration::from_secs(10), |scheduler| async move {
        let capped = limited(&scheduler, "capped", "20ms/1000ms");
        let free = scheduler.group("free").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let busy: Vec<_> = (0..2)
            .map(|_| {
                let stop = stop.clone();
                free.spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        compute_for(Duration::from_micros(500));
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let lock = Arc::new(Mutex::new(()));
        let (taken, takes) = tokio::sync::oneshot::channel();
        let holder = {
            let lock = lock.clone();
            capped.spawn(async move {
                let guard = lock.lock_owned().await;
                compute_for(Duration::from_millis(15));
                let _ = taken.send(());
                for _ in 0..300 {
                    tokio::task::yield_now().await;
                    compute_for(Duration::from_millis(1));
                }
                drop(guard);
            })
        };
        takes.await.unwrap();
        let started = Instant::now();
        let waiter = free.spawn(async move { drop(lock.lock_owned().await) });
        waiter.await.unwrap();
        let waited = started.elapsed();
        stop.store(true, Ordering::SeqCst);
        for task in busy {
            task.await.unwrap();
        }
        let stats = scheduler.preempt_stats().unwrap();
        assert!(stats.detached > 0, "no poll was long: {stats:?}");
        // Fourteen periods, if nobody lends.
        assert!(waited < Duration::from_secs(7), "{waited:?}");
        holder.await.unwrap();
    });
}

/// Hazard: what a poll holds was known at its end only, and a poll that was stopped for its limit in the middle kept the lock for ten periods.
#[test]
fn a_long_poll_without_budget_is_lent_a_place_in_its_middle() {
    run(2, Duration::from_secs(10), |scheduler| async move {
        let capped = limited(&scheduler, "capped", "10ms/1000ms");
        let free = scheduler.group("free").unwrap().create().unwrap();
        let lock = Arc::new(Mutex::new(()));
        let (taken, takes) = tokio::sync::oneshot::channel();
        let holder = {
            let lock = lock.clone();
            capped.spawn(async move {
                let guard = lock.lock_owned().await;
                let _ = taken.send(());
                compute_for(Duration::from_millis(100));
                drop(guard);
            })
        };
        takes.await.unwrap();
        // It stands for want of budget by then.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let started = Instant::now();
        let waiter = free.spawn(async move { drop(lock.lock_owned().await) });
        waiter.await.unwrap();
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(5), "{waited:?}");
        holder.await.unwrap();
    });
}

/// Hazard: a tenant whose task was lent a place, for the sake of a lock, gave that back and computed on there, in one poll, without a limit.
#[test]
fn a_poll_that_was_lent_a_place_has_a_limit_again_when_it_has_given_the_lock_back() {
    run(2, Duration::from_secs(10), |scheduler| async move {
        let capped = limited(&scheduler, "capped", "10ms/1000ms");
        let free = scheduler.group("free").unwrap().create().unwrap();
        let lock = Arc::new(Mutex::new(()));
        let (stop, used) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (taken, takes) = tokio::sync::oneshot::channel();
        let tenant = {
            let (lock, stop, used) = (lock.clone(), stop.clone(), Arc::clone(&used));
            capped.spawn(async move {
                let guard = lock.lock_owned().await;
                let _ = taken.send(());
                for _ in 0..40 {
                    compute_for(Duration::from_micros(500));
                    tokio::task::yield_now().await;
                }
                drop(guard);
                let before = time_here();
                compute(|| {
                    let so_far = time_here() - before;
                    AtomicU64::store(&used, so_far.as_millis() as u64, Ordering::SeqCst);
                    stop.load(Ordering::SeqCst)
                });
            })
        };
        takes.await.unwrap();
        let waiter = free.spawn(async move { drop(lock.lock_owned().await) });
        waiter.await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let used = used.load(Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        capped.set_max("max").unwrap();
        tenant.await.unwrap();
        // 30 ms are due, and a few for turns; it had as much as the processor gave it.
        assert!(used < 150, "{used} ms");
    });
}

/// Hazard: a loan lasted until the turn's end, so that a poll that took and gave back a lock without end was never without one.
#[test]
fn a_long_poll_that_takes_a_lock_again_and_again_has_its_limit() {
    run(2, Duration::from_secs(10), |scheduler| async move {
        let capped = limited(&scheduler, "capped", "10ms/1000ms");
        let free = scheduler.group("free").unwrap().create().unwrap();
        let lock = Arc::new(Mutex::new(()));
        let (stop, used) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let tenant = {
            let (lock, stop, used) = (lock.clone(), stop.clone(), Arc::clone(&used));
            capped.spawn(async move {
                let before = time_here();
                compute(|| {
                    if let Ok(_guard) = lock.try_lock() {
                        compute_for(Duration::from_micros(50));
                    }
                    let so_far = time_here() - before;
                    AtomicU64::store(&used, so_far.as_millis() as u64, Ordering::SeqCst);
                    stop.load(Ordering::SeqCst)
                });
            })
        };
        let waits = stop.clone();
        let waiter = free.spawn(async move {
            while !waits.load(Ordering::SeqCst) {
                drop(lock.lock().await);
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        let used = used.load(Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        capped.set_max("max").unwrap();
        tenant.await.unwrap();
        waiter.await.unwrap();
        // 40 ms are due, and for each time that the other waits 50 us and what it takes to stop the poll, 0.4 ms in a debug build: 0.3 to 0.6 s. It had more than two
        // seconds.
        assert!(used < 1_200, "{used} ms");
    });
}
