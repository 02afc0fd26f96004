//! Cancellation in every state.

use super::mock::{Mock, WakerSlot, output};
use crate::{Id, Run, try_id};
use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;

#[test]
fn queued_is_dropped_unpolled() {
    let mock = Mock::default();
    let (task_ref, mut handle) = mock.spawn(async { 1 });
    handle.abort();
    handle.abort();
    assert!(!handle.is_finished());
    assert_eq!(mock.scheduled(), 0, "it was queued already");
    mock.drain();
    let error = output(&mut handle).unwrap_err();
    assert!(error.is_cancelled() && !error.is_panic() && !error.is_not_spawned());
    assert_eq!(error.id(), task_ref.id());
    assert_eq!(mock.polls(), 0);
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn idle_is_queued_and_dropped() {
    let mock = Mock::default();
    let (task_ref, mut handle) = mock.spawn(pending::<()>());
    mock.drain();
    let abort = handle.abort_handle();
    abort.clone().abort();
    abort.abort();
    assert_eq!((mock.scheduled(), mock.queued()), (1, 1));
    assert!(!abort.is_finished());
    mock.drain();
    assert!(abort.is_finished());
    assert!(output(&mut handle).unwrap_err().is_cancelled());
    assert_eq!(mock.polls(), 1);
    drop((task_ref, handle));
    assert_eq!(
        mock.counts
            .cells_freed
            .load(std::sync::atomic::Ordering::SeqCst),
        0
    );
    abort.abort();
    drop(abort);
    mock.assert_all_gone(1);
}

/// Notes the name of the task in which it is dropped.
struct NotesTask(Arc<Mutex<Vec<Option<Id>>>>);

impl Drop for NotesTask {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(try_id());
    }
}

/// As at a normal end, where the future is dropped inside of its last poll.
#[test]
fn destructors_know_whose_they_are() {
    let mock = Mock::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = || std::mem::take(&mut *seen.lock().unwrap());
    let waits = || {
        let notes = NotesTask(seen.clone());
        async move {
            let _notes = notes;
            pending::<()>().await
        }
    };
    // Queued, then dropped with its token.
    let (token, task_ref, handle) = mock.spawn_held(waits());
    token.cancel();
    assert_eq!(noted(), [Some(task_ref.id())]);
    drop((task_ref, handle));
    // Idle, aborted.
    let (task_ref, handle) = mock.spawn(waits());
    mock.drain();
    handle.abort();
    mock.drain();
    assert_eq!(noted(), [Some(task_ref.id())]);
    drop((task_ref, handle));
    // An output that nobody took, with the handle.
    let notes = NotesTask(seen.clone());
    let (task_ref, handle) = mock.spawn(async { notes });
    mock.drain();
    assert_eq!(noted(), []);
    drop(handle);
    assert_eq!(noted(), [Some(task_ref.id())]);
    drop(task_ref);
    // And an output that nobody wants, inside of another task.
    let notes = NotesTask(seen.clone());
    let (inner, inner_ref, handle) = mock.spawn_held(async { notes });
    drop(handle);
    let mut inner = Some(inner);
    let (outer, handle) = mock.spawn(poll_fn(move |_| {
        let before = try_id();
        drop(inner.take().map(|inner| inner.run(|_| false)));
        Poll::Ready((before, try_id()))
    }));
    mock.drain();
    assert_eq!(noted(), [Some(inner_ref.id())]);
    let mut handle = handle;
    let within = Some(outer.id());
    assert_eq!(output(&mut handle).unwrap(), (within, within));
    assert_eq!(try_id(), None);
    drop((outer, inner_ref, handle));
    mock.assert_all_gone(5);
}

/// Whoever aborts here does not wait for a scheduler: the future is gone when the call returns.
#[test]
fn idle_is_dropped_by_who_aborts_here() {
    let mock = Mock::default();
    let (task_ref, mut handle) = mock.spawn(pending::<()>());
    mock.drain();
    let abort = handle.abort_handle();
    abort.abort_here();
    assert_eq!((mock.scheduled(), mock.queued()), (0, 0));
    assert!(abort.is_finished());
    assert!(output(&mut handle).unwrap_err().is_cancelled());
    abort.abort_here();
    abort.abort();
    drop((task_ref, handle, abort));
    mock.assert_all_gone(1);
}

/// A queue keeps its tokens: what is in one is dropped from there.
#[test]
fn queued_is_left_to_its_queue_by_who_aborts_here() {
    let mock = Mock::default();
    let (task_ref, mut handle) = mock.spawn(async { 1 });
    handle.abort_handle().abort_here();
    assert!(!handle.is_finished());
    mock.drain();
    assert!(output(&mut handle).unwrap_err().is_cancelled());
    assert_eq!(mock.polls(), 0);
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

/// Spawns a task that aborts itself in its first poll, which then gives `result`.
fn abort_in_poll(mock: &Mock, result: Poll<u8>) -> Result<u8, crate::JoinError> {
    let own: Arc<Mutex<Option<crate::AbortHandle>>> = Arc::default();
    let seen = Arc::clone(&own);
    let (task, task_ref, mut handle) = mock.spawn_held(poll_fn(move |_| {
        seen.lock().unwrap().take().expect("polled once").abort();
        result
    }));
    *own.lock().unwrap() = Some(handle.abort_handle());
    assert!(matches!(task.run(|_| unreachable!("aborted")), Run::Done));
    drop(task_ref);
    output(&mut handle)
}

#[test]
fn polled_and_pending_is_dropped_after_the_poll() {
    let mock = Mock::default();
    assert!(
        abort_in_poll(&mock, Poll::Pending)
            .unwrap_err()
            .is_cancelled()
    );
    mock.assert_all_gone(1);
}

#[test]
fn polled_and_ready_keeps_its_output() {
    let mock = Mock::default();
    assert_eq!(abort_in_poll(&mock, Poll::Ready(5)).unwrap(), 5);
    mock.assert_all_gone(1);
}

#[test]
fn complete_stays_complete() {
    let mock = Mock::default();
    let (task_ref, mut handle) = mock.spawn(async { 5 });
    mock.drain();
    handle.abort();
    task_ref.abort();
    assert_eq!((mock.scheduled(), mock.queued()), (0, 0));
    assert_eq!(output(&mut handle).unwrap(), 5);
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn a_dropped_token_cancels() {
    let mock = Mock::default();
    let (task, task_ref, mut handle) = mock.spawn_held(async { 1 });
    drop(task);
    assert!(task_ref.is_finished());
    assert!(output(&mut handle).unwrap_err().is_cancelled());
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn cancel_drops_the_future_at_once() {
    let mock = Mock::default();
    let slot = WakerSlot::default();
    let left = slot.clone();
    let (task_ref, mut handle) = mock.spawn(poll_fn(move |context| {
        left.store(context);
        Poll::<()>::Pending
    }));
    mock.drain();
    slot.take().wake();
    mock.pop().expect("queued by the wake-up").cancel();
    assert!(output(&mut handle).unwrap_err().is_cancelled());
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}
