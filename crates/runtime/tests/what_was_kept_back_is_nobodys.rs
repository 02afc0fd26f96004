//! Work that was kept back by a group, and then came to be nobody's to release: tasks that moved out of a group without budget waited for that
//! one's budget all the same, and after its removal nobody could lift its limit; functions of a removed group stood for ever that a freeze of
//! the group above had stopped, with the locks that they held; and functions that came before their group's limit did, and waited for their
//! first turn, heard of no kill and no abort. On real threads: what hangs is what fails.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{CountDrop, burn, eventually, guarded, runtime};
use preempted::{compute_for, limited, run};
use quotient::{Group, JoinHandle, Leftover, Scheduler, uninterrupted};

/// A debt of 40 ms takes 40 s to pay.
const NEXT_TO_NOTHING: &str = "1ms/1s";
/// Far less than that, and far more than the work takes.
const SOON: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(10);

/// A group below `x` that owes for 40 s.
async fn in_debt(scheduler: &Scheduler) -> (Group, Group) {
    let above = scheduler.group("x").unwrap().create().unwrap();
    let group = limited(scheduler, "x/g", NEXT_TO_NOTHING);
    spend_ahead(&group).await;
    (above, group)
}

async fn spend_ahead(group: &Group) {
    let spends = group.spawn(async {
        let _guard = uninterrupted();
        burn(Duration::from_millis(40));
    });
    spends.await.unwrap();
}

/// Who waits for the group's budget.
fn kept_back(group: &Group) -> Vec<JoinHandle<()>> {
    let yields = group.spawn(async {
        for _ in 0..20 {
            burn(Duration::from_micros(200));
            tokio::task::yield_now().await;
        }
    });
    let computes = group.spawn(async {
        compute_for(Duration::from_millis(5));
    });
    let sleeps = group.spawn(async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        burn(Duration::from_millis(1));
    });
    vec![yields, computes, sleeps]
}

async fn get_on(handles: Vec<JoinHandle<()>>, who: &str) {
    for (number, handle) in handles.into_iter().enumerate() {
        let ended = tokio::time::timeout(SOON, handle).await;
        let ended = ended.unwrap_or_else(|_| {
            panic!("{who}: {number} waits for a budget that is not its group's")
        });
        ended.unwrap();
    }
}

async fn moves_out(scheduler: Scheduler) {
    let (above, group) = in_debt(&scheduler).await;
    let handles = kept_back(&group);
    tokio::time::sleep(Duration::from_millis(50)).await;
    group.move_tasks_to(&above).unwrap();
    get_on(handles, "moved").await;
    assert!(group.max().is_some(), "the limit is as it was");
}

async fn is_removed(scheduler: Scheduler) {
    let (_above, group) = in_debt(&scheduler).await;
    let mut handles = kept_back(&group);
    handles.push(group.spawn_blocking(|| burn(Duration::from_millis(2))));
    tokio::time::sleep(Duration::from_millis(50)).await;
    group.remove(Leftover::MoveToParent).unwrap();
    get_on(handles, "of a removed group").await;
}

#[test]
fn tasks_that_move_out_of_a_throttled_group_get_on() {
    run(2, END, moves_out);
}

#[test]
fn what_is_left_of_a_removed_group_gets_on() {
    run(2, END, is_removed);
}

#[test]
fn so_do_they_where_polls_are_not_interrupted() {
    for workers in [1, 2] {
        runtime(workers).block_on(guarded(async {
            moves_out(Scheduler::builder().build().unwrap()).await;
            is_removed(Scheduler::builder().build().unwrap()).await;
        }));
    }
}

/// `x` is frozen, `x/g` removed, `x` thawed.
fn outlives_a_freeze(leftover: Leftover) {
    run(2, END, |scheduler| async move {
        let above = scheduler.group("x").unwrap().create().unwrap();
        let group = scheduler.group("x/g").unwrap().create().unwrap();
        let lock = Arc::new(Mutex::new(()));
        let begun = Arc::new(AtomicBool::new(false));
        let (held, begins) = (lock.clone(), begun.clone());
        let function = group.spawn_blocking(move || {
            let _held = held.lock().unwrap();
            begins.store(true, Ordering::SeqCst);
            compute_for(Duration::from_millis(300));
        });
        eventually("the function", || begun.load(Ordering::SeqCst)).await;
        above.freeze_immediately().unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        group.remove(leftover).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        above.thaw().unwrap();
        let ended = tokio::time::timeout(SOON, function).await;
        ended.expect("it stands for ever, with its lock").unwrap();
        assert!(lock.try_lock().is_ok());
    });
}

#[test]
fn a_function_of_a_removed_group_does_not_stand_when_the_one_above_is_thawed() {
    outlives_a_freeze(Leftover::MoveToParent);
    outlives_a_freeze(Leftover::Kill);
}

/// Functions come to the pool, all of whose threads are busy, then their group gets a limit, so that they wait for their first turn; then `ends`.
fn never_begin(ends: impl FnOnce(&Group, &[JoinHandle<()>])) {
    let builder = || tokio::runtime::Builder::new_multi_thread();
    let runtime = builder()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build();
    runtime.unwrap().block_on(guarded(async move {
        let scheduler = Scheduler::builder()
            .vcpus(2)
            .preempt(quotient::Preempt::default());
        let scheduler = scheduler.build().unwrap();
        let group = scheduler.group("g").unwrap().create().unwrap();
        for _ in 0..4 {
            tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(100)));
        }
        let gone = Arc::new(AtomicUsize::new(0));
        let functions: Vec<_> = (0..4)
            .map(|_| {
                let counted = CountDrop(gone.clone());
                group.spawn_blocking(move || {
                    let _counted = counted;
                    burn(Duration::from_millis(1));
                })
            })
            .collect();
        group.set_max(NEXT_TO_NOTHING).unwrap();
        spend_ahead(&group).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        ends(&group, &functions);
        eventually("their end", || gone.load(Ordering::SeqCst) == 4).await;
        for function in functions {
            assert!(
                tokio::time::timeout(SOON, function).await.is_ok(),
                "nobody says so"
            );
        }
        let other = scheduler.group("o").unwrap().create().unwrap();
        let other = tokio::time::timeout(SOON, other.spawn_blocking(|| ())).await;
        other.expect("they keep the pool's threads").unwrap();
        scheduler.shutdown().await;
    }));
}

#[test]
fn functions_that_came_before_their_limit_hear_of_kills_and_aborts() {
    never_begin(|group, _| group.kill().unwrap());
    never_begin(|group, _| {
        group.kill_immediately().unwrap();
        group.set_max("max").unwrap();
    });
    never_begin(|_, functions| functions.iter().for_each(JoinHandle::abort));
}
