//! Hazard: the future of a local task lives in a `LocalSet`, where neither a kill nor a shutdown found it: it was polled on after both.
#![cfg(not(loom))]

mod common;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{CountDrop, guarded, scheduler};
use quotient::{Group, JoinHandle, Leftover, Scheduler};
use tokio::task::LocalSet;

const MS: Duration = Duration::from_millis(1);

/// Runs `case` inside a local set, on runtimes of all kinds.
fn in_local_sets<F: Future<Output = ()>>(case: impl Fn(Scheduler, Group) -> F) {
    for workers in [1, 2] {
        let runtime = common::runtime(workers);
        LocalSet::new().block_on(&runtime, async {
            let (scheduler, group) = scheduler(workers);
            guarded(case(scheduler, group)).await;
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        let (scheduler, group) = scheduler(1);
        guarded(case(scheduler, group)).await;
    });
}

/// A local task that is polled every millisecond: its handle, its polls so far, and how many of it were dropped.
fn ticking(group: &Group) -> (JoinHandle<()>, Rc<Cell<usize>>, Arc<AtomicUsize>) {
    let (polls, dropped) = (Rc::new(Cell::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, guard) = (polls.clone(), CountDrop(dropped.clone()));
    let task = group.spawn_local(async move {
        let _guard = guard;
        loop {
            counted.set(counted.get() + 1);
            tokio::time::sleep(MS).await;
        }
    });
    (task, polls, dropped)
}

async fn until_polled(polls: &Cell<usize>) {
    while polls.get() < 3 {
        tokio::time::sleep(MS).await;
    }
}

#[test]
fn a_kill_ends_local_tasks() {
    in_local_sets(|scheduler, group| async move {
        let neighbour = scheduler.group("neighbour").unwrap().create().unwrap();
        let (task, polls, dropped) = ticking(&group);
        let (other, others, _) = ticking(&neighbour);
        until_polled(&polls).await;
        until_polled(&others).await;
        group.kill().unwrap();
        let before = polls.get();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!((polls.get(), dropped.load(Ordering::SeqCst)), (before, 1));
        // The group stays, its neighbour goes on, and a removal reaches those that have never been polled.
        assert!(!other.is_finished());
        let unpolled = group.spawn_local(async { panic!("it must not run") });
        group.remove(Leftover::Kill).unwrap();
        assert!(unpolled.await.unwrap_err().is_cancelled());
        assert_eq!(scheduler.losses().killed_tasks, 2);
        other.abort();
        scheduler.shutdown().await;
    });
}

#[test]
fn a_shutdown_waits_for_the_destructors_of_local_tasks() {
    in_local_sets(|scheduler, group| async move {
        let (task, polls, dropped) = ticking(&group);
        until_polled(&polls).await;
        scheduler.shutdown().await;
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert!(task.is_finished());
        assert!(task.await.unwrap_err().is_cancelled());
        let late = group.spawn_local(async {});
        assert!(late.await.unwrap_err().is_not_spawned());
    });
}

/// A local task that ends its own scheduler does not wait for itself: it is cancelled like any other, or over before.
#[test]
fn a_local_task_may_end_its_scheduler() {
    in_local_sets(|scheduler, group| async move {
        let ends = scheduler.clone();
        let task = group.spawn_local(async move { ends.shutdown().await });
        assert!(
            task.await
                .map_or_else(|error| error.is_cancelled(), |()| true)
        );
        scheduler.shutdown().await;
    });
}

/// Its local set is on another thread, which is in a poll of it: that is waited for.
#[test]
fn a_shutdown_waits_for_a_poll_in_progress_elsewhere() {
    let runtime = common::runtime(2);
    runtime.block_on(guarded(async {
        let (scheduler, group) = scheduler(2);
        let dropped = Arc::new(AtomicUsize::new(0));
        let guard = CountDrop(dropped.clone());
        let (begun, begins) = tokio::sync::oneshot::channel();
        let handle = tokio::runtime::Handle::current();
        let elsewhere = std::thread::spawn(move || {
            let task = LocalSet::new();
            task.block_on(&tokio_runtime(), async move {
                let _inside = handle.enter();
                let polled = group.spawn_local(async move {
                    let _guard = guard;
                    begun.send(()).unwrap();
                    std::thread::sleep(300 * MS);
                    std::future::pending::<()>().await;
                });
                assert!(polled.await.unwrap_err().is_cancelled());
            });
        });
        begins.await.unwrap();
        scheduler.shutdown().await;
        assert_eq!(
            dropped.load(Ordering::SeqCst),
            1,
            "the poll was not waited for"
        );
        elsewhere.join().unwrap();
    }));
}

fn tokio_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Nobody polls the local set any more: the shutdown does not wait for ever, and the futures go with the set.
#[test]
fn a_shutdown_leaves_local_sets_that_nobody_polls() {
    let runtime = common::runtime(2);
    let local = LocalSet::new();
    let (scheduler, task, dropped) = local.block_on(&runtime, async {
        let (scheduler, group) = scheduler(2);
        let (task, polls, dropped) = ticking(&group);
        until_polled(&polls).await;
        (scheduler, task, dropped)
    });
    runtime.block_on(guarded(scheduler.shutdown()));
    assert_eq!(
        dropped.load(Ordering::SeqCst),
        0,
        "only its thread may drop it"
    );
    drop(local);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert!(runtime.block_on(task).unwrap_err().is_cancelled());
}
