//! Hazards of values that a tenant keeps with groups of its own: their destructors ran where the last reference to the group went. On a virtual CPU
//! between two polls, where a panic ended the process; under the locks of a removal, where making a group waited for itself; on the tick thread, where
//! sleep kept everybody's refills; and nobody paid for what they computed.
#![cfg(not(loom))]

mod common;
#[path = "common/modes.rs"]
mod modes;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{burn, repetitions, runtime};
use modes::{HANG, MODES, scheduler, wait_for, with_tenant};
use quotient::{Group, Leftover};

/// Groups that are removed. Unit: groups. Enough for every place where the last reference goes; the first panicked, or stood.
const GROUPS: usize = 40;

/// Does something as it is dropped.
struct Kept<F: Fn()>(F);

impl<F: Fn()> Drop for Kept<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A task of the tenant's removes groups of its own that keep such a value: with a task in them, and without.
fn remove_groups<F>(tenant: &Group, act: F) -> quotient::JoinHandle<()>
where
    F: Fn() + Clone + Send + Sync + 'static,
{
    tenant.spawn(async move {
        let own = Group::current().unwrap();
        for number in 0..GROUPS {
            let group = own.child(&format!("c{number}")).create().unwrap();
            group.keep(Kept(act.clone()));
            if number % 2 == 0 {
                group.spawn(std::future::pending::<()>());
                tokio::task::yield_now().await;
            }
            group.remove(Leftover::Kill).unwrap();
            drop(group);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}

/// Until so many values are dropped. A virtual CPU remembers the group that it billed last until it bills another one.
fn wait_for_drops(dropped: &AtomicUsize, count: usize, other: &Group) {
    wait_for("values are kept", || {
        drop(other.spawn(async {}));
        dropped.load(Ordering::SeqCst) == count
    });
}

/// Hazard: the process aborts, since nothing catches a panic between two polls.
#[test]
fn a_kept_value_that_panics_ends_the_process() {
    let turns = MODES.repeat(repetitions());
    for preempts in turns {
        let (runtime, scheduler, tenant, dropped) = with_tenant(preempts);
        let count = dropped.clone();
        let removed = remove_groups(&tenant, move || {
            count.fetch_add(1, Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("a kept value's panic"));
        });
        runtime.block_on(removed).unwrap();
        wait_for_drops(&dropped, GROUPS, &tenant);
        runtime.block_on(scheduler.shutdown());
    }
}

/// Hazard: it waits for a lock of the removal that drops it.
#[test]
fn a_kept_value_that_makes_a_group_waits_for_itself() {
    for preempts in MODES {
        let (runtime, scheduler, tenant, made) = with_tenant(preempts);
        let (count, parent) = (made.clone(), tenant.clone());
        let removed = remove_groups(&tenant, move || {
            let number = count.load(Ordering::SeqCst);
            let group = parent.child(&format!("of-a-destructor-{number}")).create();
            drop(group.unwrap());
            count.fetch_add(1, Ordering::SeqCst);
        });
        // Not by `block_on`: it may never come.
        wait_for("a destructor waits for itself", || removed.is_finished());
        wait_for_drops(&made, GROUPS, &tenant);
        runtime.block_on(scheduler.shutdown());
    }
}

/// Hazard: the one virtual CPU, or the tick thread, waits for a destructor, and that for a task.
#[test]
fn a_kept_value_that_waits_for_a_task_keeps_its_virtual_cpu() {
    for preempts in MODES {
        let runtime = runtime(1);
        let scheduler = scheduler(&runtime, preempts);
        let create = |name| scheduler.group(name).unwrap().create().unwrap();
        let (tenant, other) = (create("tenant"), create("other"));
        let (dropped, failed) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(Mutex::new(Vec::new())),
        );
        let (count, failures) = (dropped.clone(), failed.clone());
        let removed = remove_groups(&tenant, move || {
            let thread = std::thread::current();
            let thread = thread.name().unwrap_or_default();
            let (done, answer) = std::sync::mpsc::channel();
            drop(other.spawn(async move { done.send(()) }));
            // The first that waits in vain says so for all.
            let patience = match failures.lock().unwrap().is_empty() {
                true => HANG,
                false => Duration::ZERO,
            };
            let is_answered = answer.recv_timeout(patience).is_ok();
            if !is_answered || thread.starts_with("quotient-") {
                failures.lock().unwrap().push(thread.to_owned());
            }
            count.fetch_add(1, Ordering::SeqCst);
        });
        runtime.block_on(removed).unwrap();
        wait_for_drops(&dropped, GROUPS, &tenant);
        assert_eq!(*failed.lock().unwrap(), Vec::<String>::new());
        runtime.block_on(scheduler.shutdown());
    }
}

/// Hazard: what destructors compute is nobody's.
#[cfg(target_os = "linux")]
#[test]
fn kept_values_compute_for_nothing() {
    const EACH: Duration = Duration::from_millis(4);
    for preempts in MODES {
        let (runtime, scheduler, tenant, dropped) = with_tenant(preempts);
        let count = dropped.clone();
        let removed = remove_groups(&tenant, move || {
            burn(EACH);
            count.fetch_add(1, Ordering::SeqCst);
        });
        runtime.block_on(removed).unwrap();
        wait_for_drops(&dropped, GROUPS, &tenant);
        let least = EACH * u32::try_from(GROUPS).unwrap();
        wait_for("destructors are not billed", || tenant.cpu_time() >= least);
        runtime.block_on(scheduler.shutdown());
    }
}

/// Hazard: the end comes before what was left is dropped, or it is never dropped.
#[test]
fn kept_values_outlive_the_end() {
    for preempts in MODES {
        let (runtime, scheduler, tenant, dropped) = with_tenant(preempts);
        let group = |name: &str, pause: Duration| {
            let count = dropped.clone();
            let group = tenant.child(name).create().unwrap();
            group.keep(Kept(move || {
                std::thread::sleep(pause);
                count.fetch_add(1, Ordering::SeqCst);
            }));
            group
        };
        let before = group("before", Duration::from_millis(50));
        let after = group("after", Duration::ZERO);
        let stays = group("stays", Duration::ZERO);
        before.remove(Leftover::Kill).unwrap();
        after.remove(Leftover::Kill).unwrap();
        drop((before, stays));
        runtime.block_on(scheduler.shutdown());
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        drop(after);
        wait_for("what is left after the end stays", || {
            dropped.load(Ordering::SeqCst) == 2
        });
        drop((tenant, scheduler));
        drop(runtime);
        wait_for("what a group kept to the end stays", || {
            dropped.load(Ordering::SeqCst) == 3
        });
    }
}

/// Hazard: a group that was removed waits for the tick thread to give it up, which stops at the end: what it keeps stays as long as the scheduler.
#[test]
fn what_removed_groups_keep_outlives_the_end() {
    for preempts in MODES.repeat(5) {
        let (runtime, scheduler, tenant, dropped) = with_tenant(preempts);
        let count = dropped.clone();
        let group = tenant.child("busy").create().unwrap();
        group.keep(Kept(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        drop(group.spawn(async {
            loop {
                burn(Duration::from_micros(100));
                tokio::task::yield_now().await;
            }
        }));
        std::thread::sleep(Duration::from_millis(5));
        group.remove(Leftover::Kill).unwrap();
        drop((group, tenant));
        runtime.block_on(scheduler.shutdown());
        wait_for("what a removed group kept stays", || {
            dropped.load(Ordering::SeqCst) == 1
        });
        drop(scheduler);
    }
}

/// Hazard: the runtime has ended, nobody takes what was left, and it is dropped on the thread that tells those who wait for the end.
#[test]
fn whoever_waits_for_the_end_waits_for_what_was_left() {
    for preempts in MODES.repeat(3) {
        let runtime = runtime(2);
        let scheduler = scheduler(&runtime, preempts);
        let released = Arc::new(AtomicUsize::new(0));
        for number in 0..8 {
            let tenant = scheduler.group(&format!("t{number}")).unwrap();
            let tenant = tenant.create().unwrap();
            let group = tenant.child("below").create().unwrap();
            let release = released.clone();
            group.keep(Kept(move || {
                let begun = Instant::now();
                while release.load(Ordering::SeqCst) == 0 && begun.elapsed() < 2 * HANG {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }));
            group.remove(Leftover::Kill).unwrap();
        }
        let elsewhere = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.shutdown_background();
        let begun = Instant::now();
        let ended = elsewhere.block_on(scheduler.shutdown_timeout(Duration::from_millis(100)));
        assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
        assert!(ended.is_err(), "they are not dropped yet");
        released.store(1, Ordering::SeqCst);
        elsewhere.block_on(scheduler.shutdown());
    }
}
