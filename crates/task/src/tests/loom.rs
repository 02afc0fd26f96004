//! Models of the races on the state word, explored by loom:
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p quotient --release --lib loom`.
//!
//! Each model ends the same way: after all threads are joined, the queue is run dry and every count must be exact, so
//! that a lost wake-up, a second token, a leak and a double free all show.
//!
//! Loom reduces the orders it tries, and was seen to skip "the other thread first, all of it" where both begin with a
//! load. Hence [`race`] is modelled twice, with the sides swapped.

use super::mock::{CountingWaker, Mock, WakerSlot, poll_with};
use crate::{AbortHandle, JoinHandle};
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Which side of a [`race`] runs on the model's main thread.
#[derive(Clone, Copy)]
pub(super) enum Main {
    First,
    Second,
}

/// Explores `body` with either side of its races on the main thread.
pub(super) fn model(body: impl Fn(Main) + Send + Sync + 'static) {
    let body = Arc::new(body);
    for main in [Main::First, Main::Second] {
        let body = Arc::clone(&body);
        loom::model(move || body(main));
    }
}

/// Runs both concurrently; back when both are done.
pub(super) fn race<A: Send + 'static, B: Send + 'static>(
    main: Main,
    first: impl FnOnce() -> A + Send + 'static,
    second: impl FnOnce() -> B + Send + 'static,
) -> (A, B) {
    match main {
        Main::First => {
            let other = thread::spawn(second);
            (first(), other.join().unwrap())
        }
        Main::Second => {
            let other = thread::spawn(first);
            let second = second();
            (other.join().unwrap(), second)
        }
    }
}

/// A task that waits for `flag`, polled once and idle; its waker.
///
/// The flag is relaxed: only the wake-up makes the poll see it.
fn waiting(mock: &Mock) -> (Arc<AtomicBool>, Waker, JoinHandle<u8>) {
    let flag = Arc::new(AtomicBool::new(false));
    let slot = WakerSlot::default();
    let (seen, left) = (Arc::clone(&flag), slot.clone());
    let (task_ref, handle) = mock.spawn(poll_fn(move |context| {
        if seen.load(Relaxed) {
            return Poll::Ready(1);
        }
        left.store(context);
        Poll::Pending
    }));
    drop(task_ref);
    mock.drain();
    let waker = slot.take();
    (flag, waker, handle)
}

/// A task that is ready at its first poll, queued.
fn ready(mock: &Mock) -> JoinHandle<Box<u8>> {
    mock.spawn(async { Box::new(1) }).1
}

fn drains(mock: &Mock) -> impl FnOnce() + Send + 'static {
    let mock = mock.clone();
    move || mock.drain()
}

#[test]
fn loom_wake_against_run_and_idle() {
    model(|main| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        // A first, empty wake-up puts the task into the runner's hands.
        waker.wake_by_ref();
        race(main, drains(&mock), move || {
            flag.store(true, Relaxed);
            waker.wake();
        });
        mock.drain();
        assert!(handle.is_finished(), "a wake-up was lost");
        drop(handle);
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_wake_against_complete() {
    model(|main| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        drop(handle);
        flag.store(true, Relaxed);
        waker.wake_by_ref();
        // By reference, then by value: the last reference may go on either thread.
        race(main, drains(&mock), move || {
            waker.wake_by_ref();
            waker.wake();
        });
        mock.drain();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_two_wakers() {
    loom::model(|| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        let wakers: Vec<_> = [waker.clone(), waker]
            .into_iter()
            .map(|waker| {
                let (flag, mock) = (Arc::clone(&flag), mock.clone());
                thread::spawn(move || {
                    flag.store(true, Relaxed);
                    waker.wake();
                    mock.drain();
                })
            })
            .collect();
        for waker in wakers {
            waker.join().unwrap();
        }
        mock.drain();
        assert!(handle.is_finished(), "a wake-up was lost");
        assert!(mock.scheduled() <= 2 && mock.polls() <= 3);
        drop(handle);
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_two_wakers_against_run() {
    loom::model(|| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        waker.wake_by_ref();
        let other = waker.clone();
        let (seen, runner) = (Arc::clone(&flag), drains(&mock));
        let threads = [
            thread::spawn(move || {
                seen.store(true, Relaxed);
                other.wake();
            }),
            thread::spawn(runner),
        ];
        waker.wake();
        for thread in threads {
            thread.join().unwrap();
        }
        mock.drain();
        assert!(handle.is_finished(), "a wake-up was lost");
        drop(handle);
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_wake_counts_that_are_cut() {
    // The limit is 2 under loom: the third wake-up is cut back, or the poll starts the count again.
    model(|main| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        waker.wake_by_ref();
        waker.wake_by_ref();
        race(main, drains(&mock), move || {
            waker.wake_by_ref();
            flag.store(true, Relaxed);
            waker.wake_by_ref();
        });
        mock.drain();
        assert!(handle.is_finished(), "a wake-up was lost");
        drop(handle);
        mock.assert_all_gone(1);
    });
}

/// One way to abort beside a run and a wake-up.
fn abort_against_run_and_wake(abort: fn(&AbortHandle)) {
    loom::model(move || {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        let aborted = handle.abort_handle();
        drop(handle);
        waker.wake_by_ref();
        let runner = thread::spawn(drains(&mock));
        let aborter = thread::spawn(move || abort(&aborted));
        flag.store(true, Relaxed);
        waker.wake();
        runner.join().unwrap();
        aborter.join().unwrap();
        mock.drain();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_abort_against_run_and_wake() {
    abort_against_run_and_wake(AbortHandle::abort);
}

#[test]
fn loom_abort_ends_an_idle_or_running_task() {
    model(|main| {
        let mock = Mock::default();
        let (_, waker, handle) = waiting(&mock);
        waker.wake();
        let ((), handle) = race(main, drains(&mock), move || {
            handle.abort();
            handle
        });
        mock.drain();
        assert!(handle.is_finished(), "the abort was lost");
        drop(handle);
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_abort_here_against_run_and_wake() {
    abort_against_run_and_wake(AbortHandle::abort_here);
}

#[test]
fn loom_two_aborts_one_of_them_here() {
    model(|main| {
        let mock = Mock::default();
        let (_, waker, handle) = waiting(&mock);
        drop(waker);
        let abort = handle.abort_handle();
        race(main, move || abort.abort_here(), move || handle.abort());
        mock.drain();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_two_aborts() {
    model(|main| {
        let mock = Mock::default();
        let (_, waker, handle) = waiting(&mock);
        drop(waker);
        let abort = handle.abort_handle();
        race(main, move || abort.abort(), move || handle.abort());
        assert_eq!(mock.queued(), 1);
        mock.drain();
        mock.assert_all_gone(1);
    });
}

/// Polls a handle twice against completion, with these wakers; the joiner must learn of it, and no waker leak.
fn join_polls(main: Main, wakers: [usize; 2]) {
    let mock = Mock::default();
    let mut handle = ready(&mock);
    let counters = [CountingWaker::pair(), CountingWaker::pair()];
    let used = wakers.map(|index| counters[index].1.clone());
    let last = used[1].clone();
    let ((), (mut handle, mut result)) = race(main, drains(&mock), move || {
        let mut result = poll_with(&mut handle, &used[0]);
        if result.is_pending() {
            result = poll_with(&mut handle, &used[1]);
        }
        (handle, result)
    });
    if result.is_pending() {
        assert_eq!(
            counters[wakers[1]].0.wakes(),
            1,
            "the joiner sleeps for ever"
        );
        result = poll_with(&mut handle, &last);
    }
    assert!(matches!(result, Poll::Ready(Ok(ref output)) if **output == 1));
    drop((handle, last));
    for (counter, waker) in counters {
        drop(waker);
        assert!(counter.wakes() <= 1);
        assert_eq!(Arc::strong_count(&counter), 1, "a waker leaked");
    }
    mock.assert_all_gone(1);
}

#[test]
fn loom_join_poll_against_complete() {
    model(|main| join_polls(main, [0, 1]));
}

#[test]
fn loom_join_poll_again_with_the_same_waker_against_complete() {
    model(|main| join_polls(main, [0, 0]));
}

#[test]
fn loom_join_drop_against_complete() {
    model(|main| {
        let mock = Mock::default();
        let handle = ready(&mock);
        race(main, drains(&mock), move || drop(handle));
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_join_drop_with_a_waker_against_complete() {
    model(|main| {
        let mock = Mock::default();
        let mut handle = ready(&mock);
        let (counter, waker) = CountingWaker::pair();
        assert!(poll_with(&mut handle, &waker).is_pending());
        race(main, drains(&mock), move || drop(handle));
        assert!(counter.wakes() <= 1);
        assert_eq!(Arc::strong_count(&counter), 2, "a waker leaked");
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_join_drop_against_a_dropped_token() {
    model(|main| {
        let mock = Mock::default();
        let (task, task_ref, handle) = mock.spawn_held(async { Box::new(1) });
        drop(task_ref);
        race(main, move || drop(task), move || drop(handle));
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_last_waker_against_handle() {
    model(|main| {
        let mock = Mock::default();
        let (_, waker, handle) = waiting(&mock);
        race(main, move || drop(waker), move || drop(handle));
        assert_eq!(mock.queued(), 1, "an orphan is queued for its end");
        mock.drain();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_last_waker_woken_against_handle() {
    model(|main| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        flag.store(true, Relaxed);
        race(main, move || waker.wake(), move || drop(handle));
        mock.drain();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_last_references_against_run_and_idle() {
    model(|main| {
        let mock = Mock::default();
        // Nobody keeps this task's waker: only the handle knows it.
        let (task_ref, handle) = mock.spawn(pending::<()>());
        drop(task_ref);
        race(main, drains(&mock), move || drop(handle));
        mock.drain();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_last_waker_of_a_complete_task_against_handle() {
    model(|main| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        flag.store(true, Relaxed);
        waker.wake_by_ref();
        mock.drain();
        race(main, move || drop(waker), move || drop(handle));
        mock.assert_all_gone(1);
    });
}

/// Ready at once, or never.
fn ready_if(finished: bool) -> impl Future<Output = ()> + Send + 'static {
    poll_fn(move |_| {
        if finished {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
}

#[test]
fn loom_the_end_comes_after_every_look() {
    for finished in [false, true] {
        model(move |main| {
            let mock = Mock::default();
            let (task_ref, handle) = mock.spawn(ready_if(finished));
            mock.drain();
            let other_ref = task_ref.clone();
            drop(handle);
            let look = |task_ref: crate::TaskRef<_>| {
                move || {
                    super::mock::MockContext::look(task_ref.context());
                    drop(task_ref);
                }
            };
            race(main, look(task_ref), look(other_ref));
            mock.drain();
            mock.assert_all_gone(1);
        });
    }
}

#[test]
fn loom_running_to_the_end_comes_after_every_look() {
    for finished in [false, true] {
        model(move |main| {
            let mock = Mock::default();
            let (task_ref, handle) = mock.spawn(ready_if(finished));
            drop(handle);
            race(main, drains(&mock), move || {
                task_ref.context().look();
                drop(task_ref);
            });
            mock.drain();
            mock.assert_all_gone(1);
        });
    }
}
