//! A holder of a lock that its limit keeps back is found by who comes to wait, whatever has happened before: it was moved, others waited and gave up, or cannot lend; and a loan ends with the
//! lock it was for.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{burn, eventually, guarded, runtime, scheduler};
use quotient::Group;
use quotient::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);

/// A task of `capped` that has the lock, needs 20 ms to its end, and has used up a millisecond a second.
async fn holder(capped: &Group, lock: &Arc<Mutex<()>>) {
    capped.set_max("1ms/1000ms").unwrap();
    let (held, holds) = tokio::sync::oneshot::channel();
    let lock = lock.clone();
    drop(capped.spawn(async move {
        let guard = lock.lock().await;
        let _ = held.send(());
        for _ in 0..100 {
            burn(MS / 5);
            tokio::task::yield_now().await;
        }
        drop(guard);
    }));
    holds.await.unwrap();
    let owes = || capped.cpu_time() > Duration::from_micros(1_900);
    eventually("throttled", owes).await;
    // Queued, and in vain.
    sleep(MS * 30).await;
}

/// How long a task of `group` waits for the lock.
fn waits(group: &Group, lock: &Arc<Mutex<()>>) -> JoinHandle<Duration> {
    let (lock, group) = (lock.clone(), group.clone());
    tokio::spawn(async move {
        let started = Instant::now();
        let task = group.spawn(async move { drop(lock.lock().await) });
        task.await.unwrap();
        started.elapsed()
    })
}

/// A task of `group` that computes in polls of that length.
fn computes(group: &Group, stop: &Arc<AtomicBool>, length: Duration) -> quotient::JoinHandle<()> {
    let stop = stop.clone();
    group.spawn(async move {
        while !stop.load(Ordering::SeqCst) {
            burn(length);
            tokio::task::yield_now().await;
        }
    })
}

/// What comes out if somebody waits for the lock when `before` has happened, with the holder and `free` to do it with.
async fn waits_after(before: impl AsyncFnOnce(&quotient::Scheduler, &Group, &Arc<Mutex<()>>)) {
    let (scheduler, capped) = scheduler(2);
    let free = scheduler.group("free").unwrap().create().unwrap();
    let lock = Arc::new(Mutex::new(()));
    holder(&capped, &lock).await;
    before(&scheduler, &free, &lock).await;
    let waited = waits(&free, &lock).await.unwrap();
    // Twenty milliseconds of work, and twenty seconds of the limit.
    assert!(waited < MS * 1_000, "{waited:?}");
    capped.set_max("max").unwrap();
    scheduler.shutdown().await;
}

/// Hazard: the first of a group that waits takes the holder's note along, and the next one asks nobody (2 s).
#[test]
fn a_waiter_that_gives_up_leaves_the_holder_to_the_next() {
    runtime(2).block_on(guarded(waits_after(async |_, free, lock| {
        let lock = lock.clone();
        let gives_up = free.spawn(async move {
            let mut waits = std::pin::pin!(lock.lock());
            let poll = std::future::poll_fn(|context| {
                std::task::Poll::Ready(waits.as_mut().poll(context).is_ready())
            });
            poll.await
        });
        assert!(!gives_up.await.unwrap());
        sleep(MS * 30).await;
    })));
}

/// Hazard: only the first four groups of a line are asked for a place, and those are of another scheduler (never).
#[test]
fn waiters_of_another_scheduler_hide_nobody() {
    let other = runtime(1);
    let (elsewhere, groups) = other.block_on(async {
        let (elsewhere, _) = scheduler(1);
        let create = |index: usize| elsewhere.group(&format!("g{index}")).unwrap().create();
        let groups: Vec<_> = (0..6).map(|index| create(index).unwrap()).collect();
        (elsewhere, groups)
    });
    runtime(2).block_on(guarded(waits_after(async |_, _, lock| {
        for group in &groups {
            drop(waits(group, lock));
        }
        sleep(MS * 30).await;
    })));
    other.block_on(elsewhere.shutdown());
}

/// Hazard: a waiter that could lend nothing when it came is not asked again (for ever; 2 s).
#[test]
fn a_waiter_whose_limit_is_lifted_lends() {
    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let poor = scheduler.group("poor").unwrap().max("1ms/1000ms");
        let poor = poor.create().unwrap();
        let lock = Arc::new(Mutex::new(()));
        holder(&capped, &lock).await;
        let stop = Arc::new(AtomicBool::new(false));
        let task = waits(&poor, &lock);
        sleep(MS * 10).await;
        // In line, and throttled on both virtual CPUs.
        let hogs = [(); 2].map(|()| computes(&poor, &stop, MS));
        sleep(MS * 100).await;
        let lifted = Instant::now();
        poor.set_max("max").unwrap();
        task.await.unwrap();
        let waited = lifted.elapsed();
        stop.store(true, Ordering::SeqCst);
        assert!(waited < MS * 1_000, "{waited:?}");
        for hog in hogs {
            hog.await.unwrap();
        }
        capped.set_max("max").unwrap();
        scheduler.shutdown().await;
    }));
}

/// Hazard: a task that was moved after its first guard, or took that inside `in_group`, is looked for in the other group when it is handed a lock while it is queued (5 to 12 s).
#[test]
fn a_task_that_was_moved_is_found_where_it_is() {
    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        capped.set_max("1ms/100ms").unwrap();
        let lock = Arc::new(Mutex::new(()));
        let note = Arc::new(tokio::sync::Notify::new());
        let guard = lock.clone().lock_owned().await;
        let moved = {
            let (lock, note) = (lock.clone(), note.clone());
            free.spawn(async move {
                // The first guard.
                drop(Mutex::new(()).lock().await);
                let mut waits = std::pin::pin!(lock.lock());
                tokio::select! {
                    biased;
                    _ = &mut waits => {}
                    () = note.notified() => drop(waits.await),
                }
            })
        };
        sleep(MS * 50).await;
        free.move_tasks_to(&capped).unwrap();
        let waiter = waits(&free, &lock);
        sleep(MS * 50).await;
        capped.spawn(async { burn(MS * 60) }).await.unwrap();
        // It is queued in its group, which is in debt, and then handed the lock.
        note.notify_one();
        sleep(MS * 100).await;
        let given = Instant::now();
        drop(guard);
        waiter.await.unwrap();
        assert!(given.elapsed() < MS * 1_000, "{:?}", given.elapsed());
        capped.set_max("max").unwrap();
        moved.await.unwrap();
        scheduler.shutdown().await;
    }));
}

/// Hazard: a loan goes on as long as anybody waits for any lock of the task, also an accomplice of its own tenant for one that nobody else wants: 0.44 to 0.92 CPUs under a limit of 0.01.
#[test]
fn an_accomplice_keeps_no_loan_going() {
    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        capped.set_max("10ms/1000ms").unwrap();
        let child = |name| capped.child(name).create().unwrap();
        let (works, helps) = (child("works"), child("helps"));
        let (wanted, own) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU32::new(0));
        let tenant = {
            let (wanted, own) = (wanted.clone(), own.clone());
            let (stop, rounds) = (stop.clone(), rounds.clone());
            works.spawn(async move {
                let _own = own.lock().await;
                sleep(MS * 100).await;
                while !stop.load(Ordering::SeqCst) {
                    drop(wanted.lock().await);
                    burn(MS * 2);
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        sleep(MS * 50).await;
        let accomplice = waits(&helps, &own);
        let victims: Vec<_> = (0..2)
            .map(|_| {
                let (wanted, stop) = (wanted.clone(), stop.clone());
                free.spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let guard = wanted.lock().await;
                        sleep(MS).await;
                        drop(guard);
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        sleep(MS * 2_000).await;
        let used = MS * 2 * rounds.load(Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        // 30 ms are due, and 50 that it may go on for; it had 900.
        assert!(used < MS * 300, "{used:?}");
        capped.set_max("max").unwrap();
        tenant.await.unwrap();
        accomplice.await.unwrap();
        for victim in victims {
            victim.await.unwrap();
        }
        scheduler.shutdown().await;
    }));
}

/// Hazard: the holder sits in the place of a light group that came first, or in its own, and a heavy group that comes later asks for nobody (5 to 10 s).
#[test]
fn a_heavy_waiter_takes_the_holder_from_a_light_ones_place() {
    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        capped.set_max("1ms/1000ms").unwrap();
        let group = |name: &str, weight| scheduler.group(name).unwrap().weight(weight).create();
        let heavy = group("heavy", 10_000).unwrap();
        let light = group("light", 1).unwrap();
        let own = group("own", 1).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let hogs = [(); 4].map(|()| computes(&heavy, &stop, MS / 10));
        for (holder, first) in [(&capped, Some(&light)), (&own, Some(&light)), (&own, None)] {
            let lock = Arc::new(Mutex::new(()));
            let (held, holds) = tokio::sync::oneshot::channel();
            let holder = {
                let lock = lock.clone();
                holder.spawn(async move {
                    let guard = lock.lock().await;
                    let _ = held.send(());
                    for _ in 0..20 {
                        burn(MS / 10);
                        tokio::task::yield_now().await;
                    }
                    drop(guard);
                })
            };
            holds.await.unwrap();
            let first = first.map(|first| waits(first, &lock));
            sleep(MS * 50).await;
            let waited = waits(&heavy, &lock).await.unwrap();
            assert!(waited < MS * 1_000, "{waited:?}");
            holder.abort();
            drop(first);
        }
        stop.store(true, Ordering::SeqCst);
        for hog in hogs {
            hog.await.unwrap();
        }
        capped.set_max("max").unwrap();
        scheduler.shutdown().await;
    }));
}

/// Hazard: no permit is to be had at any time, and to have none was a loan for whoever waits for one: 0.5 to 1.1 CPUs under a limit of 0.01.
#[test]
fn who_has_no_permit_is_lent_nothing() {
    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        capped.set_max("10ms/1000ms").unwrap();
        let permits = Arc::new(quotient::sync::Semaphore::new(1));
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU32::new(0));
        let victims = [(); 3].map(|()| {
            let (permits, stop) = (permits.clone(), stop.clone());
            free.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let permit = permits.acquire().await.unwrap();
                    sleep(MS).await;
                    drop(permit);
                }
            })
        });
        let tenant = {
            let (permits, stop, rounds) = (permits.clone(), stop.clone(), rounds.clone());
            capped.spawn(async move {
                let mut none = None;
                while !stop.load(Ordering::SeqCst) {
                    burn(MS);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    drop(none.take());
                    none = permits.try_acquire_many(0).ok();
                    tokio::task::yield_now().await;
                }
            })
        };
        sleep(MS * 2_000).await;
        let used = MS * rounds.load(Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        // 30 ms are due.
        assert!(used < MS * 300, "{used:?}");
        capped.set_max("max").unwrap();
        tenant.await.unwrap();
        for victim in victims {
            victim.await.unwrap();
        }
        scheduler.shutdown().await;
    }));
}

/// Hazard: without preemption a poll on loan was the lender's to its end, though that gave up waiting, and more than a loan may be: 7.2 of 7.3 s.
#[test]
fn who_gives_up_waiting_pays_no_more() {
    runtime(2).block_on(guarded(async {
        let (scheduler, capped) = scheduler(2);
        let free = scheduler.group("free").unwrap().create().unwrap();
        capped.set_max("10ms/1000ms").unwrap();
        let lock = Arc::new(Mutex::new(()));
        let stop = Arc::new(AtomicBool::new(false));
        let tenant = {
            let (lock, stop) = (lock.clone(), stop.clone());
            capped.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().await;
                    tokio::task::yield_now().await;
                    burn(MS * 100);
                    drop(guard);
                }
            })
        };
        let victim = {
            let stop = stop.clone();
            free.spawn(async move {
                let mut waited = Duration::ZERO;
                while !stop.load(Ordering::SeqCst) {
                    let started = Instant::now();
                    drop(tokio::time::timeout(MS * 10, lock.lock()).await);
                    waited += started.elapsed();
                    sleep(MS * 90).await;
                }
                waited
            })
        };
        sleep(MS * 2_000).await;
        stop.store(true, Ordering::SeqCst);
        let waited = victim.await.unwrap();
        let paid = free.cpu_time();
        // It had 1.9 s, and 0.2 are waited for where others leave it a processor.
        assert!(paid < waited + MS * 200, "{paid:?}, waited {waited:?}");
        capped.set_max("max").unwrap();
        tenant.await.unwrap();
        scheduler.shutdown().await;
    }));
}
