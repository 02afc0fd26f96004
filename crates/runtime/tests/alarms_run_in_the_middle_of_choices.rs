//! Hazards of a watch for throttles whose alarm is a tenant's: it was called in the middle of a virtual CPU's choice, under the lock of its run queue, and
//! dropped there. One that slept kept every task of the scheduler, and one that computed did so for nothing.
#![cfg(not(loom))]

mod common;
#[path = "common/modes.rs"]
mod modes;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{burn, runtime};
#[cfg(target_os = "linux")]
use modes::with_tenant;
use modes::{HANG, MODES, scheduler, wait_for};
use quotient::{Group, Scheduler, ThrottleWatch};
#[cfg(target_os = "linux")]
use tokio::runtime::Runtime;

/// Computes for ever, in short polls.
async fn works() {
    loop {
        burn(Duration::from_micros(300));
        tokio::task::yield_now().await;
    }
}

/// A group below the tenant with that limit, which the tenant watches.
#[cfg(target_os = "linux")]
fn watched(runtime: &Runtime, tenant: &Group, max: &str, watch: &Arc<ThrottleWatch>) -> Group {
    let inner = tenant.child("inner").max(max).create().unwrap();
    let set = tenant.spawn({
        let (inner, watch) = (inner.clone(), watch.clone());
        async move { inner.watch_throttle(&watch, 1) }
    });
    assert!(runtime.block_on(set).unwrap());
    inner
}

/// A tenant, and a task of it that is throttled again and again in a group below, after which `set` was called there.
fn tenant(scheduler: &Scheduler, set: impl Fn(&Group) + Send + 'static) -> Group {
    let tenant = scheduler.group("tenant").unwrap().create().unwrap();
    let inner = tenant.child("inner").max("1ms/10ms").create().unwrap();
    drop(tenant.spawn(async move {
        let inner = &inner;
        let work = inner.spawn(works());
        loop {
            set(inner);
            tokio::time::sleep(Duration::from_millis(1)).await;
            if work.is_finished() {
                return;
            }
        }
    }));
    tenant
}

/// Hazard: all tasks of the scheduler wait for an alarm, and that for one of them.
#[test]
fn an_alarm_that_waits_keeps_everybodys_tasks() {
    for preempts in MODES {
        let runtime = runtime(1);
        let scheduler = scheduler(&runtime, preempts);
        let other = scheduler.group("other").unwrap().create().unwrap();
        let (called, released) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (call, release) = (called.clone(), released.clone());
        let watch = Arc::new(ThrottleWatch::with_alarm(move || {
            call.store(true, Ordering::SeqCst);
            // Beyond that it has failed, and the process is to end.
            let begun = Instant::now();
            while !release.load(Ordering::SeqCst) && begun.elapsed() < 2 * HANG {
                std::thread::sleep(Duration::from_millis(1));
            }
        }));
        let _tenant = tenant(&scheduler, move |group| {
            assert!(group.watch_throttle(&watch, 1));
        });
        wait_for("no alarm came", || called.load(Ordering::SeqCst));
        for _ in 0..20 {
            let task = other.spawn(async { tokio::task::yield_now().await });
            wait_for("a task waits for an alarm", || task.is_finished());
        }
        released.store(true, Ordering::SeqCst);
        runtime.block_on(scheduler.shutdown());
    }
}

/// Hazard: an alarm is lost, or its panic goes where it ends something else.
#[test]
fn alarms_are_lost() {
    for preempts in MODES {
        let runtime = runtime(2);
        let scheduler = scheduler(&runtime, preempts);
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let watch = Arc::new(ThrottleWatch::with_alarm(move || {
            count.fetch_add(1, Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("an alarm's panic"));
        }));
        let watched = watch.clone();
        let _tenant = tenant(&scheduler, move |group| {
            assert!(group.watch_throttle(&watched, 7));
        });
        let mut numbers = Vec::new();
        for round in 1..=20 {
            wait_for("an alarm is lost", || calls.load(Ordering::SeqCst) >= round);
            // It may come once more for what is taken here.
            watch.take(&mut numbers);
        }
        assert!(numbers.iter().all(|number| *number == 7));
        runtime.block_on(scheduler.shutdown());
    }
}

/// Hazard: what an alarm computes is nobody's.
#[cfg(target_os = "linux")]
#[test]
fn an_alarm_computes_for_nothing() {
    const WORK: Duration = Duration::from_millis(500);
    for preempts in MODES {
        let (runtime, scheduler, tenant, calls) = with_tenant(preempts);
        let count = calls.clone();
        let watch = Arc::new(ThrottleWatch::with_alarm(move || {
            // One is enough: what the group below has is not to be taken for it.
            if count.load(Ordering::SeqCst) == 0 {
                burn(WORK);
            }
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let inner = watched(&runtime, &tenant, "1ms/1s", &watch);
        let work = inner.spawn(async {
            burn(Duration::from_millis(2));
            tokio::task::yield_now().await;
        });
        wait_for("no alarm came", || calls.load(Ordering::SeqCst) == 1);
        wait_for("an alarm is not billed", || tenant.cpu_time() >= WORK);
        drop(work);
        runtime.block_on(scheduler.shutdown());
    }
}

/// Hazard: an alarm is dropped in the middle of a choice, or by whoever replaces it, under a lock.
#[test]
fn an_alarm_is_dropped_where_nothing_may_run() {
    /// Says on which thread it goes, once it has watched again.
    struct Says(Arc<Mutex<Vec<String>>>, Arc<Mutex<Option<Group>>>);
    impl Drop for Says {
        fn drop(&mut self) {
            let group = self.1.lock().unwrap().clone();
            if let Some(group) = group {
                // Not to wait for the lock of whoever drops this.
                group.watch_throttle(&Arc::new(ThrottleWatch::default()), 3);
            }
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default().to_owned();
            self.0.lock().unwrap().push(name);
        }
    }
    for preempts in MODES {
        let runtime = runtime(2);
        let scheduler = scheduler(&runtime, preempts);
        let names = Arc::new(Mutex::new(Vec::new()));
        let watched = Arc::new(Mutex::new(None::<Group>));
        let (said, known) = (names.clone(), Arc::clone(&watched));
        let _tenant = tenant(&scheduler, move |group| {
            known.lock().unwrap().get_or_insert_with(|| group.clone());
            let says = Says(said.clone(), known.clone());
            let watch = ThrottleWatch::with_alarm(move || {
                let _ = &says;
            });
            assert!(group.watch_throttle(&Arc::new(watch), 1));
        });
        wait_for("alarms are kept", || names.lock().unwrap().len() >= 50);
        // Of ringers there is no more to say than of the pool's threads: nothing waits for them.
        let is_harmless = |name: &String| name.starts_with("tokio") || name == "quotient-ringer";
        let names = names.lock().unwrap().clone();
        assert!(names.iter().all(is_harmless), "{names:?}");
        watched.lock().unwrap().take();
        runtime.block_on(scheduler.shutdown());
    }
}

/// Hazard: an alarm panics, and what it has captured as well, in the same unwinding: the process aborts.
#[test]
fn an_alarm_and_what_it_holds_panic_at_once() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("what an alarm holds"));
        }
    }
    for preempts in MODES {
        let runtime = runtime(2);
        let scheduler = scheduler(&runtime, preempts);
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        // Each is replaced by the next one, mostly while it is called: whoever calls it has the last reference.
        let _tenant = tenant(&scheduler, move |group| {
            let (holds, count) = (Panics, count.clone());
            let watch = ThrottleWatch::with_alarm(move || {
                let _ = &holds;
                std::thread::sleep(Duration::from_millis(20));
                count.fetch_add(1, Ordering::SeqCst);
                std::panic::resume_unwind(Box::new("an alarm"));
            });
            assert!(group.watch_throttle(&Arc::new(watch), 1));
        });
        wait_for("no alarm comes", || calls.load(Ordering::SeqCst) >= 20);
        runtime.block_on(scheduler.shutdown());
    }
}

/// Hazard: an alarm that sets its watch again, where no group is current, is nobody's from then on.
#[cfg(target_os = "linux")]
#[test]
fn an_alarm_that_watches_again_computes_for_nothing() {
    const WORK: Duration = Duration::from_millis(50);
    const CALLS: usize = 6;
    for preempts in MODES {
        let (runtime, scheduler, tenant, calls) = with_tenant(preempts);
        let known = Arc::new(Mutex::new(None::<(Group, Arc<ThrottleWatch>)>));
        let (count, again) = (calls.clone(), known.clone());
        let watch = Arc::new(ThrottleWatch::with_alarm(move || {
            if count.load(Ordering::SeqCst) < CALLS {
                burn(WORK);
            }
            let watched = again.lock().unwrap().clone();
            if let Some((group, watch)) = watched {
                watch.take(&mut Vec::new());
                group.watch_throttle(&watch, 1);
            }
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let inner = watched(&runtime, &tenant, "1ms/100ms", &watch);
        *known.lock().unwrap() = Some((inner.clone(), watch.clone()));
        let work = inner.spawn(works());
        wait_for("no alarm comes", || calls.load(Ordering::SeqCst) >= CALLS);
        work.abort();
        let own = inner.cpu_time();
        // The first was billed before.
        let least = WORK * (CALLS as u32 - 2);
        let begun = Instant::now();
        let billed = || tenant.cpu_time().saturating_sub(own);
        while billed() < least && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(
            billed() >= least,
            "{:?} of {:?}",
            billed(),
            WORK * CALLS as u32
        );
        known.lock().unwrap().take();
        runtime.block_on(scheduler.shutdown());
    }
}
