//! Every lock of `quotient::sync`, in every form of its guard, lets a throttled holder run on the budget of who waits.
#![cfg(not(loom))]

mod common;

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{burn, eventually, guarded, runtime, scheduler};
use quotient::sync::{Mutex, RwLock, Semaphore};

/// Something that is held until it is dropped.
type Held = Box<dyn Any + Send>;
/// Waits for it.
type Taking = Pin<Box<dyn Future<Output = Held> + Send>>;

/// A holder deep in debt, sixty quotas from the end of its critical section, beside somebody of a free group who waits.
fn holder_runs_on(name: &str, hold: Taking, wait: Taking) {
    let name = name.to_owned();
    runtime(2).block_on(guarded(async move {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        capped.set_max("1ms/1000ms").unwrap();
        let (held, holds) = tokio::sync::oneshot::channel();
        let holder = capped.spawn(async move {
            let guard = hold.await;
            let _ = held.send(());
            for _ in 0..300 {
                burn(Duration::from_micros(200));
                tokio::task::yield_now().await;
            }
            drop(guard);
        });
        holds.await.unwrap();
        eventually("throttled", || {
            capped.cpu_time() > Duration::from_micros(1_900)
        })
        .await;
        let waited = free
            .spawn(async move {
                let started = Instant::now();
                drop(wait.await);
                started.elapsed()
            })
            .await
            .unwrap();
        // Sixty quotas of a millisecond would take a minute.
        assert!(waited < Duration::from_secs(20), "{name}: {waited:?}");
        let (lent, own) = (free.cpu_time(), capped.cpu_time());
        assert!(
            lent > own,
            "{name}: {lent:?} and {own:?}, but who waits pays"
        );
        holder.await.unwrap();
        scheduler.shutdown().await;
    }));
}

#[test]
fn a_reader_or_writer_deep_in_debt_stalls_who_waits() {
    let lock = || Arc::new(RwLock::new(()));
    let owned_read = |lock: &Arc<RwLock<()>>| -> Taking {
        let lock = lock.clone();
        Box::pin(async move { Box::new(lock.read_owned().await) as Held })
    };
    let owned_write = |lock: &Arc<RwLock<()>>| -> Taking {
        let lock = lock.clone();
        Box::pin(async move { Box::new(lock.write_owned().await) as Held })
    };
    let first = lock();
    holder_runs_on("write, then read", owned_write(&first), owned_read(&first));
    let second = lock();
    holder_runs_on(
        "read, then write",
        owned_read(&second),
        owned_write(&second),
    );
    // The borrowed guards, held by tasks that own the lock.
    let third: &'static RwLock<()> = Box::leak(Box::new(RwLock::new(())));
    holder_runs_on(
        "borrowed write, then read",
        Box::pin(async { Box::new(third.write().await.downgrade()) as Held }),
        Box::pin(async { Box::new(third.write().await) as Held }),
    );
}

#[test]
fn a_holder_that_owns_its_guard_stalls_who_waits() {
    let mutex = Arc::new(Mutex::new(()));
    let take = |mutex: &Arc<Mutex<()>>| -> Taking {
        let mutex = mutex.clone();
        Box::pin(async move { Box::new(mutex.lock_owned().await) as Held })
    };
    holder_runs_on("mutex", take(&mutex), take(&mutex));
    let semaphore = Arc::new(Semaphore::new(3));
    let take = |permits: u32| -> Taking {
        let semaphore = semaphore.clone();
        Box::pin(async move {
            let permit = semaphore.acquire_many_owned(permits).await;
            Box::new(permit.expect("it is open")) as Held
        })
    };
    holder_runs_on("semaphore", take(2), take(3));
}

#[test]
fn an_owned_guard_outlives_its_lock() {
    runtime(2).block_on(guarded(async {
        let mut mutex = Arc::new(Mutex::new(vec![1]));
        let mut guard = mutex.clone().lock_owned().await;
        assert!(mutex.try_lock().is_err() && mutex.clone().try_lock_owned().is_err());
        assert!(
            Arc::get_mut(&mut mutex).is_none(),
            "the guard keeps the mutex"
        );
        guard.push(2);
        // A waiter that gives up, with the mutex in its hands.
        let waiter = tokio::time::timeout(Duration::from_millis(2), mutex.clone().lock_owned());
        assert!(waiter.await.is_err());
        drop(guard);
        let inner = Arc::get_mut(&mut mutex).expect("nobody else has it");
        inner.get_mut().push(3);
        let value = Arc::into_inner(mutex)
            .expect("nobody else has it")
            .into_inner();
        assert_eq!(value, [1, 2, 3]);

        let lock = Arc::new(RwLock::new(String::new()));
        lock.write().await.push('a');
        let readers = [
            lock.clone().read_owned().await,
            lock.clone().read_owned().await,
        ];
        assert!(lock.try_write().is_err() && lock.try_read().is_ok());
        assert_eq!(format!("{} {:?}", readers[0], readers[1]), "a \"a\"");
        drop(readers);
        let writer = lock.write().await;
        assert!(lock.try_read().is_err());
        let reader = writer.downgrade();
        assert!(lock.try_read().is_ok() && lock.clone().try_write_owned().is_err());
        drop(reader);
        let mut writer = lock.clone().try_write_owned().expect("nobody has it");
        writer.push('b');
        let reader = writer.downgrade();
        assert!(lock.try_read().is_ok() && lock.try_write().is_err());
        assert_eq!(*reader, "ab");
        drop(reader);
        assert_eq!(format!("{lock:?}"), r#"RwLock { data: "ab" }"#);
        let value = Arc::into_inner(lock)
            .expect("nobody else has it")
            .into_inner();
        assert_eq!(value, "ab");

        let semaphore = Arc::new(Semaphore::new(2));
        let permit = semaphore.clone().acquire_owned().await.expect("it is open");
        assert_eq!(
            (permit.num_permits(), semaphore.available_permits()),
            (1, 1)
        );
        assert!(semaphore.clone().try_acquire_many_owned(2).is_err());
        drop(permit);
        semaphore
            .clone()
            .try_acquire_owned()
            .expect("two are free")
            .forget();
        assert_eq!(semaphore.available_permits(), 1);
        assert_eq!(semaphore.forget_permits(2), 1);
        assert_eq!(semaphore.available_permits(), 0);
        semaphore.close();
        assert!(semaphore.acquire_owned().await.is_err());
    }));
}

/// Hazard: whoever takes nothing but free locks never gives way, and with it the host's only worker, its timers and its I/O. tokio's
/// own locks count as work.
#[test]
fn a_loop_over_free_locks_gives_way_to_the_host() {
    use std::sync::atomic::{AtomicBool, Ordering};

    type Free = Pin<Box<dyn Future<Output = ()> + Send>>;
    let mutex = Arc::new(quotient::sync::Mutex::new(()));
    let rwlock = Arc::new(quotient::sync::RwLock::new(()));
    let semaphore = Arc::new(quotient::sync::Semaphore::new(1));
    let (m, mo) = (mutex.clone(), mutex);
    let (r, ro, w, wo) = (rwlock.clone(), rwlock.clone(), rwlock.clone(), rwlock);
    let (s, so) = (semaphore.clone(), semaphore);
    let locks: Vec<Box<dyn Fn() -> Free + Send>> = vec![
        Box::new(move || {
            let m = m.clone();
            Box::pin(async move { drop(m.lock().await) })
        }),
        Box::new(move || {
            let m = mo.clone();
            Box::pin(async move { drop(m.lock_owned().await) })
        }),
        Box::new(move || {
            let r = r.clone();
            Box::pin(async move { drop(r.read().await) })
        }),
        Box::new(move || {
            let r = ro.clone();
            Box::pin(async move { drop(r.read_owned().await) })
        }),
        Box::new(move || {
            let w = w.clone();
            Box::pin(async move { drop(w.write().await) })
        }),
        Box::new(move || {
            let w = wo.clone();
            Box::pin(async move { drop(w.write_owned().await) })
        }),
        Box::new(move || {
            let s = s.clone();
            Box::pin(async move { drop(s.acquire().await) })
        }),
        Box::new(move || {
            let s = so.clone();
            Box::pin(async move { drop(s.acquire_owned().await) })
        }),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (scheduler, group) = scheduler(1);
        for (index, lock) in locks.into_iter().enumerate() {
            let stop = Arc::new(AtomicBool::new(false));
            let seen = stop.clone();
            // A bound on the hang that this is about: a billion turns would be far longer than the timer.
            let end = Instant::now() + Duration::from_secs(60);
            let looping = group.spawn(async move {
                while !seen.load(Ordering::SeqCst) && Instant::now() < end {
                    lock().await;
                }
                seen.load(Ordering::SeqCst)
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
            stop.store(true, Ordering::SeqCst);
            assert!(looping.await.unwrap(), "lock {index} held the host up");
        }
        scheduler.shutdown().await;
    });
}

/// A task that takes a lock again and again until `stop`, and yields with it if `keeps`, else without it. The longest wait.
fn takes_again(
    group: &quotient::Group,
    lock: &Arc<Mutex<()>>,
    stop: &Arc<std::sync::atomic::AtomicBool>,
    keeps: bool,
) -> quotient::JoinHandle<Duration> {
    let (lock, stop) = (lock.clone(), stop.clone());
    group.spawn(async move {
        let mut longest = Duration::ZERO;
        while !stop.load(std::sync::atomic::Ordering::SeqCst) {
            let started = Instant::now();
            let guard = lock.lock().await;
            longest = longest.max(started.elapsed());
            if keeps {
                tokio::task::yield_now().await;
                drop(guard);
            } else {
                drop(guard);
                tokio::task::yield_now().await;
            }
        }
        longest
    })
}

/// Hazard: tokio hands a lock over to who has waited longest, and until that one is polled nobody holds it in our books; a task of a group
/// without budget that was handed one stalled all others for up to two periods.
#[test]
fn who_is_handed_a_lock_without_budget_is_lent_a_place() {
    use std::sync::atomic::{AtomicBool, Ordering};

    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        capped.set_max("1ms/1000ms").unwrap();
        let lock = Arc::new(Mutex::new(()));
        let stop = Arc::new(AtomicBool::new(false));
        let limited: Vec<_> = (0..2)
            .map(|_| takes_again(&capped, &lock, &stop, true))
            .collect();
        let others: Vec<_> = (0..2)
            .map(|_| takes_again(&free, &lock, &stop, false))
            .collect();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let own = capped.cpu_time();
        stop.store(true, Ordering::SeqCst);
        for other in others {
            let longest = other.await.unwrap();
            // A period is a second; before, they waited for two.
            assert!(longest < Duration::from_millis(500), "{longest:?}");
        }
        // Three milliseconds are due, ten more are those of deferred throttles; it owed 190 while it was charged with being looked for.
        assert!(own < Duration::from_millis(60), "{own:?}");
        capped.set_max("max").unwrap();
        for task in limited {
            task.await.unwrap();
        }
        scheduler.shutdown().await;
    }));
}

/// Hazard: what a task did after it had given a lock back, in the poll in which it was lent a place for it, was charged to who had lent it: 0.4 CPUs under a limit of
/// 0.01, of which its own clock had 0.02.
#[test]
fn who_lends_a_place_does_not_pay_for_what_comes_after_the_lock() {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        capped.set_max("10ms/1000ms").unwrap();
        let lock = Arc::new(Mutex::new(()));
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU32::new(0));
        let other = takes_again(&free, &lock, &stop, false);
        let tenant = {
            let (lock, stop, rounds) = (lock.clone(), stop.clone(), rounds.clone());
            capped.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().await;
                    tokio::task::yield_now().await;
                    drop(guard);
                    burn(Duration::from_millis(2));
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        tokio::time::sleep(Duration::from_secs(2)).await;
        let own = capped.cpu_time();
        let used = Duration::from_millis(2) * rounds.load(Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        capped.set_max("max").unwrap();
        tenant.await.unwrap();
        other.await.unwrap();
        // A tenth of each round is still the lender's, and a busy machine has its part of it.
        assert!(own > used / 4, "{own:?} of {used:?}");
        scheduler.shutdown().await;
    }));
}

/// Hazard: only who waits longest lends, and that is one of a hundred tasks of the holder's own group, which has no budget.
#[test]
fn a_waiter_behind_a_hundred_of_the_holders_group_lends() {
    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        capped.set_max("1ms/1000ms").unwrap();
        let lock = Arc::new(Mutex::new(()));
        let guard = lock.clone().lock_owned().await;
        let in_line = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let limited: Vec<_> = (0..100)
            .map(|_| {
                let (lock, in_line) = (lock.clone(), in_line.clone());
                capped.spawn(async move {
                    in_line.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let guard = lock.lock().await;
                    tokio::task::yield_now().await;
                    burn(Duration::from_micros(200));
                    drop(guard);
                })
            })
            .collect();
        eventually("all in line", || {
            in_line.load(std::sync::atomic::Ordering::SeqCst) == 100
        })
        .await;
        let waiter = free.spawn(async move {
            let started = Instant::now();
            drop(lock.lock().await);
            started.elapsed()
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(guard);
        // Twenty milliseconds of work; 20 s of one a second.
        let waited = waiter.await.unwrap();
        assert!(waited < Duration::from_secs(8), "{waited:?}");
        capped.set_max("max").unwrap();
        for task in limited {
            task.await.unwrap();
        }
        scheduler.shutdown().await;
    }));
}

/// Hazard: a holder with budget of its own was put in the place of whoever waited first, however poor: a waiter with a thousandth of a CPU kept it, and all others
/// that waited, for seconds.
#[test]
fn a_poor_waiter_takes_no_place_from_a_holder() {
    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let rich = scheduler.group("rich").unwrap().max("900ms/1000ms");
        let rich = rich.create().unwrap();
        let poor = scheduler.group("poor").unwrap().max("1ms/1000ms");
        let poor = poor.create().unwrap();
        capped.set_max("500ms/1000ms").unwrap();
        let lock = Arc::new(Mutex::new(()));
        let (held, holds) = tokio::sync::oneshot::channel();
        let holder = {
            let lock = lock.clone();
            capped.spawn(async move {
                let guard = lock.lock().await;
                let _ = held.send(());
                for _ in 0..200 {
                    burn(Duration::from_micros(200));
                    tokio::task::yield_now().await;
                }
                drop(guard);
            })
        };
        holds.await.unwrap();
        let first = {
            let lock = lock.clone();
            poor.spawn(async move { drop(lock.lock().await) })
        };
        // In line, and out of budget.
        poor.spawn(async { burn(Duration::from_millis(20)) })
            .await
            .unwrap();
        let waited = rich
            .spawn(async move {
                let started = Instant::now();
                drop(lock.lock().await);
                started.elapsed()
            })
            .await
            .unwrap();
        // Forty milliseconds of work; forty seconds of the poor one's budget.
        assert!(waited < Duration::from_secs(8), "{waited:?}");
        holder.await.unwrap();
        poor.set_max("max").unwrap();
        first.await.unwrap();
        scheduler.shutdown().await;
    }));
}

/// Hazard: whoever waited for a lock was lent a place for it, and a task that kept the lock's future and computed beside it did so without a limit.
#[test]
fn who_only_waits_is_lent_nothing() {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        capped.set_max("10ms/1000ms").unwrap();
        let lock = Arc::new(Mutex::new(()));
        let stop = Arc::new(AtomicBool::new(false));
        let polls = Arc::new(AtomicU32::new(0));
        let others: Vec<_> = (0..3)
            .map(|_| takes_again(&free, &lock, &stop, true))
            .collect();
        let tenant = {
            let (lock, stop, polls) = (lock.clone(), stop.clone(), polls.clone());
            capped.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let mut waits = std::pin::pin!(lock.lock());
                    std::future::poll_fn(|context| {
                        if waits.as_mut().poll(context).is_ready() {
                            return std::task::Poll::Ready(());
                        }
                        burn(Duration::from_micros(200));
                        polls.fetch_add(1, Ordering::SeqCst);
                        context.waker().wake_by_ref();
                        std::task::Poll::Pending
                    })
                    .await;
                }
            })
        };
        tokio::time::sleep(Duration::from_secs(2)).await;
        let used = Duration::from_micros(200) * polls.load(Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        capped.set_max("max").unwrap();
        tenant.await.unwrap();
        for other in others {
            other.await.unwrap();
        }
        // 30 ms are due, and 50 that it may go on for; it had 0.3 to 0.4 CPUs.
        assert!(used < Duration::from_millis(250), "{used:?}");
        scheduler.shutdown().await;
    }));
}
