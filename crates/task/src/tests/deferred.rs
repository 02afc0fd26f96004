//! When the caller of `run` is asked about deferral, and what it sees.

use super::mock::{Mock, WakerSlot};
use crate::{Run, probe_cloned};
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::{cell::Cell, thread};

/// A future that is always pending and does `act` with its waker at each poll.
fn acts(act: impl Fn(&Waker) + Send + 'static) -> impl Future<Output = ()> + Send + 'static {
    poll_fn(move |context| {
        act(context.waker());
        Poll::Pending
    })
}

/// Runs a task that does `act` in its poll; whether `deferred` was asked, and whether the answer "true" kept the token.
fn asked(act: impl Fn(&Waker) + Send + 'static) -> (bool, bool) {
    let mock = Mock::default();
    let (task, task_ref, _handle) = mock.spawn_held(acts(act));
    let asked = Cell::new(false);
    let again = matches!(
        task.run(|_| {
            asked.set(true);
            true
        }),
        Run::Again(_)
    );
    task_ref.abort();
    mock.drain();
    (asked.get(), again)
}

#[test]
fn is_asked_only_about_a_clone_made_here() {
    assert_eq!(asked(|_| ()), (false, false), "no clone");
    assert_eq!(asked(|waker| drop(waker.clone())), (true, true), "a clone");
    assert_eq!(
        asked(|waker| waker.clone().wake()),
        (true, true),
        "a clone, and woken"
    );
    assert_eq!(
        asked(|waker| waker.wake_by_ref()),
        (false, true),
        "woken, and no clone"
    );
    let elsewhere =
        |waker: &Waker| thread::scope(|scope| drop(scope.spawn(|| waker.clone()).join().unwrap()));
    assert_eq!(
        asked(elsewhere),
        (false, false),
        "a clone made on another thread"
    );
    let clone_of_other = |_: &Waker| drop(Waker::noop().clone());
    assert_eq!(
        asked(clone_of_other),
        (false, false),
        "a clone of somebody else's"
    );
}

#[test]
fn probe_clones_are_no_op_wakers_and_are_noted() {
    let mock = Mock::default();
    let slot = WakerSlot::default();
    let left = slot.clone();
    let (task, task_ref, _handle) = mock.spawn_held(poll_fn(move |context| {
        left.store(context);
        Poll::<()>::Pending
    }));
    let run = task.run(|waker| {
        assert!(!probe_cloned(), "the poll's own clone does not count");
        let kept = slot.take();
        assert!(kept.will_wake(waker));
        assert!(!probe_cloned(), "a comparison does not count");
        let clone = waker.clone();
        assert!(probe_cloned());
        assert!(clone.will_wake(Waker::noop()));
        clone.wake();
        false
    });
    assert!(matches!(run, Run::Idle), "a no-op waker woke nobody");
    assert!(!probe_cloned());
    assert_eq!(mock.scheduled(), 0);
    task_ref.abort();
    mock.drain();
}

#[test]
fn a_wake_up_in_the_probe_is_real() {
    let mock = Mock::default();
    let (task, task_ref, _handle) = mock.spawn_held(acts(|waker| drop(waker.clone())));
    let run = task.run(|waker| {
        waker.wake_by_ref();
        false
    });
    assert!(matches!(run, Run::Again(_)));
    drop(run);
    assert!(task_ref.is_finished());
}

/// Hazard: whoever keeps a waker only if it is not the last one already, as tokio does, has one of a poll in which the task was woken,
/// and at the next yield keeps none, so that nobody asks about that.
#[test]
fn a_yield_after_a_poll_that_was_woken_is_noticed() {
    let mock = Mock::default();
    // The end of the list.
    let last = Arc::new(Mutex::new(Waker::noop().clone()));
    let leave = {
        let last = last.clone();
        move |waker: &Waker| {
            let mut last = last.lock().unwrap();
            if !last.will_wake(waker) {
                *last = waker.clone();
            }
        }
    };
    let (yields, polls) = (leave.clone(), Cell::new(0));
    let (task, task_ref, _handle) = mock.spawn_held(acts(move |waker| {
        yields(waker);
        polls.set(polls.get() + 1);
        if polls.get() == 1 {
            waker.wake_by_ref();
        }
    }));
    let was_deferred = |waker: &Waker| {
        leave(waker);
        let deferred = !probe_cloned();
        leave(Waker::noop());
        deferred
    };
    let Run::Again(task) = task.run(was_deferred) else {
        panic!("it was woken");
    };
    let again = matches!(task.run(was_deferred), Run::Again(_));
    assert!(again, "nobody noticed its second yield");
    task_ref.abort();
    mock.drain();
}

#[test]
fn polls_nest() {
    let mock = Mock::default();
    let inner_mock = mock.clone();
    let (task, task_ref, _handle) = mock.spawn_held(poll_fn(move |context| {
        let (inner, inner_ref, _inner_handle) =
            inner_mock.spawn_held(acts(|waker| drop(waker.clone())));
        let run = inner.run(|_| {
            // The outer task's waker is not the one that is probed.
            drop(context.waker().clone());
            assert!(!probe_cloned());
            false
        });
        assert!(matches!(run, Run::Idle));
        inner_ref.abort();
        inner_mock.drain();
        drop(context.waker().clone());
        Poll::<()>::Pending
    }));
    let asked = Cell::new(false);
    let run = task.run(|_| {
        asked.set(true);
        false
    });
    assert!(
        matches!(run, Run::Idle) && asked.get(),
        "the outer clone after the inner poll was noted"
    );
    task_ref.abort();
    mock.drain();
}

#[test]
fn a_panic_in_deferred_cancels_and_leaves_no_notes() {
    let mock = Mock::default();
    let (task, task_ref, _handle) = mock.spawn_held(acts(|waker| drop(waker.clone())));
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = task.run(|waker| {
            drop(waker.clone());
            panic!("in deferred")
        });
    }));
    assert!(unwound.is_err() && task_ref.is_finished() && !probe_cloned());
}
