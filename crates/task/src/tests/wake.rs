//! Waking, running, going idle; the end of the memory.

use super::mock::{Mock, WakerSlot, output};
use crate::{Parked, Polled, Run};
use std::future::{pending, poll_fn, ready};
use std::task::Poll;

/// A future that is ready at its poll number `last` (from 1), and leaves its waker each time before.
fn ready_at(last: usize, slot: &WakerSlot) -> impl Future<Output = usize> + Send + 'static {
    let slot = slot.clone();
    let mut polls = 0;
    poll_fn(move |context| {
        polls += 1;
        if polls == last {
            return Poll::Ready(polls);
        }
        slot.store(context);
        Poll::Pending
    })
}

#[test]
fn runs_to_its_output() {
    let mock = Mock::default();
    let (task_ref, mut handle) = mock.spawn(async { 7 });
    assert!(!handle.is_finished());
    mock.drain();
    assert!(handle.is_finished() && task_ref.is_finished());
    assert_eq!(output(&mut handle).unwrap(), 7);
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn a_wake_up_queues_an_idle_task_once() {
    let mock = Mock::default();
    let slot = WakerSlot::default();
    let (task_ref, mut handle) = mock.spawn(ready_at(2, &slot));
    mock.drain();
    let waker = slot.take();
    waker.wake_by_ref();
    waker.wake_by_ref();
    waker.clone().wake();
    assert_eq!((mock.scheduled(), mock.queued()), (1, 1));
    waker.wake();
    mock.drain();
    assert_eq!(output(&mut handle).unwrap(), 2);
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn a_wake_up_during_the_poll_keeps_the_token() {
    let mock = Mock::default();
    let (task, task_ref, mut handle) = mock.spawn_held({
        let mut polls = 0;
        poll_fn(move |context| {
            polls += 1;
            match polls {
                1 => context.waker().wake_by_ref(),
                2 => context.waker().clone().wake(),
                _ => return Poll::Ready(polls),
            }
            Poll::Pending
        })
    });
    let Run::Again(task) = task.run(|_| unreachable!("no clone")) else {
        panic!("woken")
    };
    let Run::Again(task) = task.run(|_| false) else {
        panic!("woken, whatever the answer")
    };
    assert!(matches!(task.run(|_| unreachable!()), Run::Done));
    assert_eq!((mock.scheduled(), output(&mut handle).unwrap()), (0, 3));
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn a_wake_up_before_the_poll_is_answered_by_it() {
    let mock = Mock::default();
    let slot = WakerSlot::default();
    let (task_ref, handle) = mock.spawn(ready_at(9, &slot));
    mock.drain();
    for round in 2..6 {
        let waker = slot.take();
        for _ in 0..5 {
            waker.wake_by_ref();
        }
        drop(waker);
        mock.drain();
        assert_eq!(mock.polls(), round, "five wake-ups, one poll");
    }
    task_ref.abort();
    mock.drain();
    drop((task_ref, handle, slot.take()));
    mock.assert_all_gone(1);
}

#[test]
fn wakers_of_a_complete_task_do_nothing_and_may_be_last() {
    let mock = Mock::default();
    let slot = WakerSlot::default();
    let (task_ref, handle) = mock.spawn(ready_at(2, &slot));
    mock.drain();
    let waker = slot.take();
    waker.wake_by_ref();
    mock.drain();
    drop((task_ref, handle));
    waker.wake_by_ref();
    waker.clone().wake();
    let spare = waker.clone();
    drop(spare);
    waker.wake();
    assert_eq!(mock.scheduled(), 1);
    mock.assert_all_gone(1);
}

#[test]
fn the_last_waker_of_a_complete_task_may_be_dropped() {
    let mock = Mock::default();
    let slot = WakerSlot::default();
    let (task_ref, handle) = mock.spawn(ready_at(2, &slot));
    mock.drain();
    task_ref.abort();
    mock.drain();
    drop((task_ref, handle));
    drop(slot.take());
    mock.assert_all_gone(1);
}

#[test]
fn an_idle_task_that_nobody_knows_is_queued_for_its_end() {
    let mock = Mock::default();
    let slot = WakerSlot::default();
    let (task_ref, handle) = mock.spawn(ready_at(2, &slot));
    mock.drain();
    drop((task_ref, handle));
    assert_eq!(mock.queued(), 0);
    drop(slot.take());
    assert_eq!((mock.queued(), mock.scheduled()), (1, 1));
    mock.drain();
    assert_eq!(mock.polls(), 1, "dropped, not polled");
    mock.assert_all_gone(1);
}

#[test]
fn an_idle_task_known_to_its_handle_only_ends_with_it() {
    let mock = Mock::default();
    let (task_ref, handle) = mock.spawn(pending::<()>());
    mock.drain();
    drop(task_ref);
    assert_eq!(mock.queued(), 0);
    drop(handle);
    assert_eq!(mock.queued(), 1);
    mock.drain();
    mock.assert_all_gone(1);
}

#[test]
fn a_task_that_goes_idle_unknown_ends_at_once() {
    let mock = Mock::default();
    let (task, task_ref, handle) = mock.spawn_held(pending::<()>());
    drop((task_ref, handle));
    assert!(matches!(task.run(|_| false), Run::Done));
    mock.assert_all_gone(1);
}

#[test]
fn the_token_alone_keeps_the_memory() {
    let mock = Mock::default();
    let (mut task, task_ref, handle) = mock.spawn_held(ready(1));
    drop((task_ref, handle));
    *task.owned_mut() += 1;
    assert_eq!(*task.owned_mut(), 1);
    let again = task.task_ref();
    assert!(again.ptr_eq(&task.task_ref()) && again.id() == task.id());
    drop(again);
    assert!(matches!(task.run(|_| false), Run::Done));
    mock.assert_all_gone(1);
}

#[test]
fn clones_wake_the_same_task() {
    let mock = Mock::default();
    let (first_slot, second_slot) = (WakerSlot::default(), WakerSlot::default());
    let (first, _first_handle) = mock.spawn(ready_at(9, &first_slot));
    let (second, _second_handle) = mock.spawn(ready_at(9, &second_slot));
    mock.drain();
    let (first_waker, second_waker) = (first_slot.take(), second_slot.take());
    assert!(first_waker.will_wake(&first_waker.clone()));
    assert!(!first_waker.will_wake(&second_waker));
    assert!(!first.ptr_eq(&second) && first.ptr_eq(&first.clone()));
    for task in [first, second] {
        task.abort();
    }
    mock.drain();
}

#[test]
fn owned_can_be_settled_between_the_poll_and_idle() {
    let mock = Mock::default();
    let slot = WakerSlot::default();
    let (task, task_ref, handle) = mock.spawn_held(ready_at(2, &slot));
    let Polled::Pending(mut parking) = task.poll(|_| false) else {
        panic!("pending")
    };
    *parking.owned_mut() = 5;
    parking.context().look();
    let Parked::Idle = parking.park() else {
        panic!("nobody woke it")
    };
    slot.take().wake();
    let mut task = mock.pop().expect("queued by the wake-up");
    assert_eq!(*task.owned_mut(), 5);
    drop((task, task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn a_wake_up_between_the_poll_and_idle_keeps_the_token() {
    let mock = Mock::default();
    let slot = WakerSlot::default();
    let (task, task_ref, handle) = mock.spawn_held(ready_at(2, &slot));
    let Polled::Pending(parking) = task.poll(|_| false) else {
        panic!("pending")
    };
    slot.take().wake();
    let Parked::Woken(task) = parking.park() else {
        panic!("woken")
    };
    assert_eq!(mock.scheduled(), 0, "the token was never away");
    assert!(matches!(task.run(|_| false), Run::Done));
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn an_abort_between_the_poll_and_idle_is_seen_by_the_next_poll() {
    let mock = Mock::default();
    let (task, task_ref, handle) = mock.spawn_held(pending::<()>());
    let Polled::Pending(parking) = task.poll(|_| false) else {
        panic!("pending")
    };
    task_ref.abort();
    let Parked::Woken(task) = parking.park() else {
        panic!("woken by the abort")
    };
    assert!(task.is_aborted());
    assert!(matches!(task.run(|_| false), Run::Done));
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn a_task_dropped_before_it_goes_idle_is_cancelled() {
    let mock = Mock::default();
    let (task, task_ref, handle) = mock.spawn_held(pending::<()>());
    drop(task.poll(|_| false));
    assert!(task_ref.is_finished());
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}
