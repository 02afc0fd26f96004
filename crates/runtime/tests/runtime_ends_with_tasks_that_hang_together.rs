//! Hazards of a runtime that is dropped under its scheduler: destructors that end the next task, a hundred thousand deep; a destructor
//! that wants the lock under which its task is woken; and somebody who waits for the end while destructors still run.

mod common;

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{CountDrop, eventually, runtime, scheduler};
use quotient::{Group, Scheduler};
use tokio::sync::oneshot;

/// A scheduler with one virtual CPU on a runtime that is going to be dropped.
fn doomed() -> (tokio::runtime::Runtime, Scheduler, Group) {
    let runtime = runtime(1);
    let (scheduler, group) = {
        let _inside = runtime.enter();
        scheduler(1)
    };
    (runtime, scheduler, group)
}

/// Returns when all tasks of the group have been polled, and sleep.
fn all_sleep(runtime: &tokio::runtime::Runtime, group: &Group) {
    let polled = || group.task_stats().iter().all(|task| task.polls > 0);
    runtime.block_on(eventually("every task was polled", polled));
}

/// Each task waits for the end of the one before: dropping the first wakes the second, and so on.
#[test]
fn a_long_chain_of_tasks_does_not_overflow_the_stack() {
    const TASKS: usize = 100_000;
    let (runtime, scheduler, group) = doomed();
    let dropped = Arc::new(AtomicUsize::new(0));
    let (first, mut before) = oneshot::channel::<()>();
    for _ in 0..TASKS {
        let (sender, receiver) = oneshot::channel();
        let count = CountDrop(dropped.clone());
        drop(group.spawn(async move {
            let _own = (count, sender);
            let _ = before.await;
            pending::<()>().await;
        }));
        before = receiver;
    }
    all_sleep(&runtime, &group);
    drop(runtime);
    drop((first, before));
    assert_eq!(dropped.load(Ordering::SeqCst), TASKS);
    assert_eq!(scheduler.tasks(), 0);
}

/// Its waker lies behind a lock, which its destructor takes.
struct Locking(Arc<Mutex<Option<Waker>>>);

impl Future for Locking {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        *self.0.lock().unwrap() = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Locking {
    fn drop(&mut self) {
        drop(self.0.lock().unwrap().take());
    }
}

/// Its destructor says that it runs, and waits to be let go.
struct Slow {
    began: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
    over: Arc<AtomicBool>,
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.began.send(());
        let _ = self.go_on.recv();
        self.over.store(true, Ordering::SeqCst);
    }
}

/// Spawns a task whose destructor is slow, and tells `began` of it; what lets it go on, and what says that it is over.
fn slow_end(group: &Group, began: mpsc::Sender<()>) -> (mpsc::Sender<()>, Arc<AtomicBool>) {
    let (let_go, go_on) = mpsc::channel();
    let over = Arc::new(AtomicBool::new(false));
    let slow = Slow {
        began,
        go_on,
        over: over.clone(),
    };
    drop(group.spawn(async move {
        let _slow = slow;
        pending::<()>().await;
    }));
    (let_go, over)
}

/// A hang bound.
const LONG: Duration = Duration::from_secs(120);

#[test]
fn a_waker_under_a_lock_runs_no_destructor_at_the_end() {
    let (runtime, scheduler, group) = doomed();
    let waker = Arc::new(Mutex::new(None));
    let (began, has_begun) = mpsc::channel();
    // Tasks end in the order, or against the order, of their spawns: a slow one ends first.
    let before = slow_end(&group, began.clone());
    drop(group.spawn(Locking(waker.clone())));
    let after = slow_end(&group, began);
    all_sleep(&runtime, &group);
    let ending = std::thread::spawn(move || drop(runtime));
    let (done, is_done) = mpsc::channel();
    // In the midst of the end somebody wakes the task, under the lock.
    has_begun.recv_timeout(LONG).unwrap();
    std::thread::spawn(move || {
        let held = waker.lock().unwrap();
        held.as_ref().expect("the task lives").wake_by_ref();
        drop(held);
        done.send(()).unwrap();
    });
    let woken = is_done.recv_timeout(LONG);
    drop((before, after));
    woken.expect("the waker ran the destructor under its own lock");
    ending.join().unwrap();
    assert_eq!(scheduler.tasks(), 0);
}

#[test]
fn shutdown_waits_for_the_destructors_of_a_dropped_runtime() {
    let (runtime, scheduler, group) = doomed();
    let (began, has_begun) = mpsc::channel();
    let (let_go, over) = slow_end(&group, began);
    all_sleep(&runtime, &group);
    let ending = std::thread::spawn(move || drop(runtime));
    has_begun.recv_timeout(LONG).unwrap();
    let waiting = std::thread::spawn(move || {
        common::runtime(1).block_on(scheduler.shutdown());
        over.load(Ordering::SeqCst)
    });
    // Long enough to be caught: an early return needs none.
    std::thread::sleep(Duration::from_millis(50));
    drop(let_go);
    let over = waiting.join().unwrap();
    ending.join().unwrap();
    assert!(over, "a destructor was still running");
}

/// A poll blocks in place for what only the destructor of another task will bring; with as many such polls as `extra` beyond the
/// virtual CPUs, some without one. The runtime waits for them, as tokio does, and ends.
fn ends_with_polls_that_wait_for_destructors(workers: usize, extra: usize) {
    for _ in 0..common::repetitions() {
        let runtime = common::runtime(workers);
        let (scheduler, group) = {
            let _inside = runtime.enter();
            scheduler(workers)
        };
        let polls = workers + extra;
        let (begun, has_begun) = mpsc::channel();
        for _ in 0..polls {
            let (sender, receiver) = mpsc::channel::<()>();
            let begun = begun.clone();
            drop(group.spawn(async move {
                let _never_sends = sender;
                pending::<()>().await;
            }));
            drop(group.spawn(async move {
                quotient::block_in_place(|| {
                    begun.send(()).unwrap();
                    receiver.recv().unwrap_err();
                });
            }));
        }
        for _ in 0..polls {
            has_begun.recv_timeout(LONG).unwrap();
        }
        let (done, is_done) = mpsc::channel();
        let ending = std::thread::spawn(move || {
            drop(runtime);
            done.send(()).unwrap();
        });
        is_done
            .recv_timeout(LONG)
            .expect("the runtime waits for polls that wait for destructors");
        ending.join().unwrap();
        common::runtime(1).block_on(common::guarded(scheduler.shutdown()));
        assert_eq!(scheduler.tasks(), 0);
    }
}

#[test]
fn a_poll_that_blocks_in_place_waits_for_a_destructor() {
    ends_with_polls_that_wait_for_destructors(1, 0);
    ends_with_polls_that_wait_for_destructors(2, 0);
}

#[test]
fn a_poll_without_a_virtual_cpu_waits_for_a_destructor() {
    ends_with_polls_that_wait_for_destructors(1, 3);
    ends_with_polls_that_wait_for_destructors(2, 5);
}
