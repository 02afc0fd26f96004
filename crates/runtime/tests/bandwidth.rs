//! Limits on real threads: what is used, what is refused, and who is not left waiting. Exact arithmetic is tested in virtual
//! time, in the core; here bounds are generous, because other programs run on the same processors.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{burn, eventually, on_every_host, runtime, scheduler};
use quotient::{Cpus, Error, Group, Limit, LimitError, Scheduler, Share, WithThrottledExt};

/// Tasks that compute in polls of 100 us of processor time until told to stop.
fn hogs(group: &Group, count: usize) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 0..count {
        let stop = stop.clone();
        group.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                burn(Duration::from_micros(100));
                tokio::task::yield_now().await;
            }
        });
    }
    stop
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_limit_holds_and_is_lifted() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        // Little, so that a host that is busy with other things gives as much in any period.
        group.set_max("1ms/50ms").unwrap();
        let started = Instant::now();
        let stop = hogs(&group, 3);
        eventually("throttled", || {
            let stats = group.stats().bandwidth;
            started.elapsed() > ms(500)
                && stats.nr_throttled >= 3
                && stats.throttle_length.count() >= 3
        })
        .await;
        let (used, passed) = (group.cpu_time(), started.elapsed());
        // Begun periods count whole; the debt of one poll on each virtual CPU may be outstanding.
        let periods = passed.as_millis() / 50 + 1;
        let most = ms(u64::try_from(periods).unwrap() + 5);
        assert!(
            used <= most,
            "{used:?} used in {passed:?}, at most {most:?}"
        );
        assert!(used >= ms(3), "{used:?} used: the hogs did not run");
        group.set_max("max").unwrap();
        let at = group.cpu_time();
        eventually("unlimited again", || group.cpu_time() > at + ms(60)).await;
        stop.store(true, Ordering::Relaxed);
        scheduler.shutdown().await;
    });
}

#[test]
fn a_parents_limit_holds_all_children_and_no_sibling() {
    runtime(2).block_on(common::guarded(async {
        let (scheduler, parent) = scheduler(2);
        parent.set_max("1ms/50ms").unwrap();
        let (one, two) = (
            parent.child("one").create().unwrap(),
            parent.child("two").create().unwrap(),
        );
        let free = scheduler.group("free").unwrap().create().unwrap();
        let stops = [hogs(&one, 2), hogs(&two, 2), hogs(&free, 2)];
        let started = Instant::now();
        eventually("the sibling is not held", || {
            started.elapsed() > ms(400) && free.cpu_time() > parent.cpu_time() + ms(50)
        })
        .await;
        let (used, passed) = (parent.cpu_time(), started.elapsed());
        let periods = u64::try_from(passed.as_millis() / 50).unwrap() + 2;
        assert!(used <= ms(periods + 5), "{used:?} in {passed:?}");
        assert_eq!(free.stats().bandwidth.nr_throttled, 0);
        for stop in stops {
            stop.store(true, Ordering::Relaxed);
        }
        scheduler.shutdown().await;
    }));
}

#[test]
fn wakes_and_spawns_into_a_throttled_group_are_kept_for_the_refill() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        group.set_max("2ms/100ms").unwrap();
        let stop = hogs(&group, 2);
        eventually("throttled", || group.stats().bandwidth.nr_throttled > 0).await;
        stop.store(true, Ordering::Relaxed);
        let done = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let done = done.clone();
                group.spawn(async move {
                    tokio::time::sleep(ms(1)).await;
                    done.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(done.load(Ordering::SeqCst), 50);
        scheduler.shutdown().await;
    });
}

#[test]
fn a_throttled_group_can_be_killed_frozen_and_removed() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        group.set_max("1ms/1000ms").unwrap();
        let _stop = hogs(&group, 4);
        eventually("throttled", || {
            group.stats().bandwidth.nr_throttled > 0 || group.cpu_time() > ms(1)
        })
        .await;
        group.freeze().unwrap();
        group.thaw().unwrap();
        let started = Instant::now();
        group.remove(quotient::Leftover::Kill).unwrap();
        eventually("all ended", || scheduler.tasks() == 0).await;
        // An abort ends a throttled task at its next dispatch, which the limit delays by a period at most.
        assert!(started.elapsed() < Duration::from_secs(20));
        scheduler.shutdown().await;
    });
}

#[test]
fn shutdown_does_not_wait_for_refills() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        group.set_max("1ms/1000ms").unwrap();
        let _stop = hogs(&group, 20);
        eventually("used up", || group.cpu_time() >= ms(1)).await;
        let started = Instant::now();
        scheduler.shutdown().await;
        assert_eq!(scheduler.tasks(), 0);
        assert!(started.elapsed() < Duration::from_secs(20));
    });
}

#[test]
fn a_task_is_told_how_long_it_was_throttled() {
    runtime(1).block_on(common::guarded(async {
        let (scheduler, group) = scheduler(1);
        group.set_max("1ms/100ms").unwrap();
        let task = group.spawn(async {
            let work = async {
                for _ in 0..4 {
                    burn(ms(1));
                    tokio::task::yield_now().await;
                }
            };
            let started = Instant::now();
            let ((), throttled) = work.with_throttled().await;
            (started.elapsed(), throttled, quotient::throttled_time())
        });
        let (elapsed, throttled, in_all) = task.await.unwrap();
        // 4 ms of work at 1 ms a period are three waits of some 90 ms; a busy host makes the work longer, and them shorter.
        assert!(throttled > ms(150), "{throttled:?} of {elapsed:?}");
        assert!(throttled < elapsed, "{throttled:?} of {elapsed:?}");
        assert!(in_all >= throttled);
        assert_eq!(quotient::throttled_time(), Duration::ZERO, "outside a task");
        scheduler.shutdown().await;
    }));
}

/// Tasks that take turns are handed over to each other past the run queue: only the turn at which the budget ends is a wait.
#[test]
fn a_conversation_is_told_how_long_it_was_throttled() {
    runtime(1).block_on(common::guarded(async {
        let (scheduler, group) = scheduler(1);
        group.set_max("1ms/100ms").unwrap();
        let sides = [(); 2].map(|()| Arc::new(tokio::sync::Notify::new()));
        let started = Instant::now();
        let talk = |own: usize| {
            let (own, other) = (sides[own].clone(), sides[1 - own].clone());
            group.spawn(async move {
                for _ in 0..20 {
                    own.notified().await;
                    burn(Duration::from_micros(100));
                    other.notify_one();
                }
                quotient::throttled_time()
            })
        };
        let (first, second) = (talk(0), talk(1));
        sides[0].notify_one();
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        let elapsed = started.elapsed();
        // 4 ms of work at 1 ms a period are three waits of some 90 ms, each of the one whose turn it was.
        let throttled = first + second;
        assert!(throttled > ms(150), "{first:?} + {second:?} of {elapsed:?}");
        assert!(throttled < elapsed, "{first:?} + {second:?} of {elapsed:?}");
        scheduler.shutdown().await;
    }));
}

#[test]
fn a_lock_holder_is_not_left_throttled() {
    runtime(2).block_on(common::guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        // A second, so that no host is as slow as a holder that is left throttled.
        capped.set_max("5ms/1000ms").unwrap();
        let lock = Arc::new(quotient::sync::Mutex::new(0_u32));
        let stop = hogs(&capped, 4);
        // Holds the lock over several polls, more than the quota in all.
        let holder = {
            let (lock, stop) = (lock.clone(), stop.clone());
            capped.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let mut value = lock.lock().await;
                    for _ in 0..4 {
                        burn(Duration::from_micros(200));
                        tokio::task::yield_now().await;
                    }
                    *value += 1;
                    drop(value);
                    tokio::task::yield_now().await;
                }
            })
        };
        let waits = free
            .spawn(async move {
                let mut waits = Vec::new();
                for _ in 0..50 {
                    let started = Instant::now();
                    drop(lock.lock().await);
                    waits.push(started.elapsed());
                    tokio::time::sleep(ms(5)).await;
                }
                waits
            })
            .await
            .unwrap();
        let slow = waits.iter().filter(|wait| **wait > ms(500)).count();
        assert!(
            slow <= 2,
            "{slow} of 50 waits were longer than half a period: {waits:?}"
        );
        stop.store(true, Ordering::Relaxed);
        capped.set_max("max").unwrap();
        holder.await.unwrap();
        scheduler.shutdown().await;
    }));
}

#[test]
fn a_lock_holder_deep_in_debt_runs_on_the_budget_of_who_waits() {
    runtime(2).block_on(common::guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        // The critical section takes 60 ms: sixty quotas, far beyond any overdraft.
        capped.set_max("1ms/1000ms").unwrap();
        let lock = Arc::new(quotient::sync::Mutex::new(()));
        let (held, holds) = tokio::sync::oneshot::channel();
        let inside = lock.clone();
        let holder = capped.spawn(async move {
            let guard = inside.lock().await;
            let _ = held.send(());
            for _ in 0..300 {
                burn(Duration::from_micros(200));
                tokio::task::yield_now().await;
            }
            drop(guard);
        });
        holds.await.unwrap();
        // Until the holder's own group is as deep in debt as it may get.
        eventually("throttled", || {
            capped.cpu_time() > Duration::from_micros(1_900)
        })
        .await;
        tokio::time::sleep(ms(20)).await;
        let waited = free
            .spawn(async move {
                let started = Instant::now();
                drop(lock.lock().await);
                started.elapsed()
            })
            .await
            .unwrap();
        // Sixty quotas of a millisecond would take a minute; a busy host may preempt the workers for a while.
        assert!(
            waited < ms(20_000),
            "{waited:?}: the holder was left throttled"
        );
        let (lent, own) = (free.cpu_time(), capped.cpu_time());
        assert!(lent > own, "{lent:?} and {own:?}: who waits pays");
        holder.await.unwrap();
        scheduler.shutdown().await;
    }));
}

#[test]
fn limits_are_read_in_every_form_and_bad_ones_change_nothing() {
    runtime(1).block_on(common::guarded(async {
        let (scheduler, group) = scheduler(1);
        let limit = |quota, period| {
            let nanos = |time: Duration| quotient_core::Nanos(time.as_nanos() as u64);
            Limit::new(nanos(quota), nanos(period))
        };
        assert_eq!(group.max(), None);
        group.set_max("50ms/100ms").unwrap();
        assert_eq!(group.max(), Some(limit(ms(50), ms(100))));
        group.set_max("20000 50000").unwrap();
        assert_eq!(group.max(), Some(limit(ms(20), ms(50))));
        group.set_max(Cpus(0.5)).unwrap();
        assert_eq!(
            group.max(),
            Some(limit(ms(25), ms(50))),
            "the period is kept"
        );
        group.set_max(Share(0.8)).unwrap();
        assert_eq!(
            group.max(),
            Some(limit(ms(40), ms(50))),
            "of one virtual CPU"
        );
        for share in [0.0, -0.5, 1.1, f64::NAN, f64::INFINITY] {
            let refused = group.set_max(Share(share)).unwrap_err();
            assert!(matches!(refused, Error::Limit(LimitError::Text { .. })));
        }
        let four = Scheduler::builder().vcpus(4).build().unwrap();
        let part = four
            .group("part")
            .unwrap()
            .max(Share(0.25))
            .create()
            .unwrap();
        assert_eq!(part.max(), Some(limit(ms(100), ms(100))), "of four of them");
        four.shutdown().await;
        group.set_max(Cpus(0.5)).unwrap();
        group.set_max((ms(30), ms(60))).unwrap();
        let before = group.max();
        assert_eq!(before, Some(limit(ms(30), ms(60))));

        for text in [
            "",
            "fifty",
            "50ms/",
            "500us/100ms",
            "50ms/2s",
            "50ms/100us",
            "-1 100000",
            "1 2 3",
        ] {
            let error = group.set_max(text).unwrap_err();
            assert!(matches!(error, Error::Limit(_)), "{text:?}: {error:?}");
            assert_eq!(group.max(), before, "{text:?} changed the limit");
        }
        let error = group.set_max(limit(ms(0), ms(100))).unwrap_err();
        assert!(error.to_string().contains("quota"), "{error}");
        assert!(group.set_max(Cpus(f64::NAN)).is_err());
        assert!(group.set_max(Cpus(-1.0)).is_err());
        assert_eq!(group.max(), before);
        assert!(matches!(
            scheduler.root().set_max("50ms/100ms").unwrap_err(),
            Error::Limit(LimitError::Root)
        ));
        let bad = scheduler.group("fresh").unwrap().max("1us/100ms").create();
        assert!(matches!(bad.unwrap_err(), Error::Limit(_)));
        assert!(
            scheduler.find("fresh").is_err(),
            "a refused limit makes no group"
        );
        let unlimited = scheduler.group("free").unwrap().create().unwrap();
        assert!(matches!(
            unlimited.set_burst(ms(1)).unwrap_err(),
            Error::Unlimited { .. }
        ));
        group.set_burst(ms(15)).unwrap();
        group.set_max("10ms/60ms").unwrap();
        let burst = group.max().unwrap().burst;
        assert_eq!(
            Duration::from_nanos(burst.as_nanos()),
            ms(15),
            "the burst is kept"
        );
        group.set_max("max").unwrap();
        assert_eq!(group.max(), None);
        scheduler.shutdown().await;
    }));
}

#[test]
fn a_limit_of_somebody_else_is_not_replaced() {
    on_every_host(|vcpus| async move {
        let (_scheduler, group) = scheduler(vcpus);
        let seen = group.max();
        assert_eq!(seen, None);
        group.set_max("5ms/50ms").unwrap();
        let theirs = group.max();
        assert_eq!(group.replace_max(seen, "9ms/50ms"), Ok(false));
        assert_eq!(group.max(), theirs);
        assert_eq!(group.replace_max(theirs, "9ms/50ms"), Ok(true));
        assert_eq!(group.max().unwrap().quota, quotient::Nanos(9_000_000));
        assert!(group.replace_max(group.max(), "nonsense").is_err());
        assert_eq!(group.replace_max(group.max(), "max"), Ok(true));
        assert_eq!(group.max(), None);
    });
}
