//! Models of the races on the state word, explored by loom:
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p quotient --release --lib loom`.
//!
//! Each model ends the same way: after all threads are joined, the queue is run dry and every count must be exact, so
//! that a lost wake-up, a second token, a leak and a double free all show.

use super::mock::{CountingWaker, Mock, WakerSlot, poll_with};
use crate::task::JoinHandle;
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::{Poll, Waker};

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

fn drains(mock: &Mock) -> thread::JoinHandle<()> {
    let mock = mock.clone();
    thread::spawn(move || mock.drain())
}

#[test]
fn loom_wake_against_run_and_idle() {
    loom::model(|| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        // A first, empty wake-up puts the task into the runner's hands.
        waker.wake_by_ref();
        let runner = drains(&mock);
        let seen = Arc::clone(&flag);
        let other = thread::spawn(move || {
            seen.store(true, Relaxed);
            waker.wake();
        });
        runner.join().unwrap();
        other.join().unwrap();
        mock.drain();
        assert!(handle.is_finished(), "a wake-up was lost");
        drop(handle);
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_wake_against_complete() {
    loom::model(|| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        drop(handle);
        flag.store(true, Relaxed);
        waker.wake_by_ref();
        let runner = drains(&mock);
        // By reference, then by value: the last reference may go on either thread.
        let other = thread::spawn(move || {
            waker.wake_by_ref();
            waker.wake();
        });
        runner.join().unwrap();
        other.join().unwrap();
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
fn loom_wake_counts_that_are_cut() {
    // The limit is 2 under loom: the third wake-up is cut back, or the poll starts the count again.
    loom::model(|| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        waker.wake_by_ref();
        waker.wake_by_ref();
        let runner = drains(&mock);
        let seen = Arc::clone(&flag);
        let other = thread::spawn(move || {
            waker.wake_by_ref();
            seen.store(true, Relaxed);
            waker.wake_by_ref();
        });
        runner.join().unwrap();
        other.join().unwrap();
        mock.drain();
        assert!(handle.is_finished(), "a wake-up was lost");
        drop(handle);
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_abort_against_run_and_wake() {
    loom::model(|| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        let abort = handle.abort_handle();
        drop(handle);
        waker.wake_by_ref();
        let runner = drains(&mock);
        let aborter = thread::spawn(move || abort.abort());
        flag.store(true, Relaxed);
        waker.wake();
        runner.join().unwrap();
        aborter.join().unwrap();
        mock.drain();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_abort_alone_ends_an_idle_or_running_task() {
    loom::model(|| {
        let mock = Mock::default();
        let (_, waker, handle) = waiting(&mock);
        waker.wake();
        let runner = drains(&mock);
        handle.abort();
        runner.join().unwrap();
        mock.drain();
        assert!(handle.is_finished(), "the abort was lost");
        drop(handle);
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_join_poll_against_complete() {
    loom::model(|| {
        let mock = Mock::default();
        let mut handle = ready(&mock);
        let runner = drains(&mock);
        let (first, first_waker) = CountingWaker::pair();
        let (second, second_waker) = CountingWaker::pair();
        let mut result = poll_with(&mut handle, &first_waker);
        if result.is_pending() {
            result = poll_with(&mut handle, &second_waker);
        }
        runner.join().unwrap();
        if result.is_pending() {
            assert_eq!(second.wakes(), 1, "the joiner sleeps for ever");
            result = poll_with(&mut handle, &second_waker);
        }
        assert!(matches!(result, Poll::Ready(Ok(ref output)) if **output == 1));
        assert!(first.wakes() + second.wakes() <= 1);
        drop(handle);
        assert_eq!(
            (Arc::strong_count(&first), Arc::strong_count(&second)),
            (2, 2),
            "a waker leaked"
        );
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_join_poll_again_with_the_same_waker_against_complete() {
    loom::model(|| {
        let mock = Mock::default();
        let mut handle = ready(&mock);
        let runner = drains(&mock);
        let (counter, waker) = CountingWaker::pair();
        let mut result = poll_with(&mut handle, &waker);
        if result.is_pending() {
            result = poll_with(&mut handle, &waker);
        }
        runner.join().unwrap();
        assert!(
            result.is_ready() || counter.wakes() == 1,
            "the joiner sleeps for ever"
        );
        drop(handle);
        assert_eq!(Arc::strong_count(&counter), 2, "a waker leaked");
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_join_drop_against_complete() {
    loom::model(|| {
        let mock = Mock::default();
        let handle = ready(&mock);
        let runner = drains(&mock);
        drop(handle);
        runner.join().unwrap();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_join_drop_with_a_waker_against_complete() {
    loom::model(|| {
        let mock = Mock::default();
        let mut handle = ready(&mock);
        let (counter, waker) = CountingWaker::pair();
        assert!(poll_with(&mut handle, &waker).is_pending());
        let runner = drains(&mock);
        drop(handle);
        runner.join().unwrap();
        assert!(counter.wakes() <= 1);
        assert_eq!(Arc::strong_count(&counter), 2, "a waker leaked");
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_last_waker_against_handle() {
    loom::model(|| {
        let mock = Mock::default();
        let (_, waker, handle) = waiting(&mock);
        let other = thread::spawn(move || drop(waker));
        drop(handle);
        other.join().unwrap();
        assert_eq!(mock.queued(), 1, "an orphan is queued for its end");
        mock.drain();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_last_references_against_run_and_idle() {
    loom::model(|| {
        let mock = Mock::default();
        // Nobody keeps this task's waker: only the handle knows it.
        let (task_ref, handle) = mock.spawn(pending::<()>());
        drop(task_ref);
        let runner = drains(&mock);
        drop(handle);
        runner.join().unwrap();
        mock.drain();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_last_waker_of_a_complete_task_against_handle() {
    loom::model(|| {
        let mock = Mock::default();
        let (flag, waker, handle) = waiting(&mock);
        flag.store(true, Relaxed);
        waker.wake_by_ref();
        mock.drain();
        let other = thread::spawn(move || drop(waker));
        drop(handle);
        other.join().unwrap();
        mock.assert_all_gone(1);
    });
}

#[test]
fn loom_the_end_comes_after_every_look() {
    for finished in [false, true] {
        loom::model(move || {
            let mock = Mock::default();
            let (task_ref, handle) = mock.spawn(poll_fn(move |_| {
                if finished {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }));
            mock.drain();
            let other_ref = task_ref.clone();
            drop(handle);
            let other = thread::spawn(move || {
                other_ref.context().look();
                drop(other_ref);
            });
            task_ref.context().look();
            drop(task_ref);
            other.join().unwrap();
            mock.drain();
            mock.assert_all_gone(1);
        });
    }
}

#[test]
fn loom_going_idle_unknown_comes_after_every_look() {
    for finished in [false, true] {
        loom::model(move || {
            let mock = Mock::default();
            let (task_ref, handle) = mock.spawn(poll_fn(move |_| {
                if finished {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }));
            drop(handle);
            let runner = drains(&mock);
            task_ref.context().look();
            drop(task_ref);
            // The runner's end must itself come after the look: no join before it.
            runner.join().unwrap();
            mock.drain();
            mock.assert_all_gone(1);
        });
    }
}
