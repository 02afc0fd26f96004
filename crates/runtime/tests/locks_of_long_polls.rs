//! A lock that is taken in a long poll, which goes on on a thread of its own: its holder is lent a place afterwards like any other.
#![cfg(all(target_os = "linux", not(loom)))]

#[path = "common/mod.rs"]
mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use preempted::{compute_for, limited, run};
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
