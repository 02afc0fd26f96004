//! The join handle: wakers, output, bounds, text.

use super::mock::{CountingWaker, Mock, output, poll_with};
use crate::{AbortHandle, Id, JoinError, JoinHandle};
use std::collections::HashSet;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

#[test]
fn completion_wakes_the_joiner_once() {
    let mock = Mock::default();
    let (_, mut handle) = mock.spawn(async { 3 });
    let (counter, waker) = CountingWaker::pair();
    assert!(poll_with(&mut handle, &waker).is_pending());
    assert!(poll_with(&mut handle, &waker).is_pending());
    assert_eq!(
        Arc::strong_count(&counter),
        3,
        "the same waker is not cloned again"
    );
    mock.drain();
    assert_eq!((counter.wakes(), Arc::strong_count(&counter)), (1, 2));
    assert_eq!(output(&mut handle).unwrap(), 3);
}

#[test]
fn the_last_waker_given_is_woken() {
    let mock = Mock::default();
    let (_, mut handle) = mock.spawn(async { 3 });
    let (first, first_waker) = CountingWaker::pair();
    let (second, second_waker) = CountingWaker::pair();
    assert!(poll_with(&mut handle, &first_waker).is_pending());
    assert!(poll_with(&mut handle, &second_waker).is_pending());
    assert_eq!(Arc::strong_count(&first), 2, "given back");
    mock.drain();
    assert_eq!((first.wakes(), second.wakes()), (0, 1));
}

#[test]
fn a_dropped_handle_detaches_and_gives_its_waker_back() {
    let mock = Mock::default();
    let (task_ref, mut handle) = mock.spawn(async { 3 });
    let (counter, waker) = CountingWaker::pair();
    assert!(poll_with(&mut handle, &waker).is_pending());
    drop(handle);
    assert_eq!(Arc::strong_count(&counter), 2);
    mock.drain();
    assert!(task_ref.is_finished());
    assert_eq!((counter.wakes(), mock.polls()), (0, 1));
    drop(task_ref);
    mock.assert_all_gone(1);
}

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn the_output_is_dropped_once_whoever_gets_it() {
    let drops = Arc::new(AtomicUsize::new(0));
    let mock = Mock::default();
    let new = || {
        let value = Counted(Arc::clone(&drops));
        mock.spawn(async move { value }).1
    };
    drop(new());
    mock.drain();
    assert_eq!(drops.load(SeqCst), 1, "detached before completion");
    let late = new();
    mock.drain();
    drop(late);
    assert_eq!(drops.load(SeqCst), 2, "dropped unread");
    let mut read = new();
    mock.drain();
    let value = output(&mut read);
    drop(read);
    assert_eq!(drops.load(SeqCst), 2);
    drop(value);
    assert_eq!(drops.load(SeqCst), 3, "read");
    mock.assert_all_gone(3);
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn polling_a_second_time_panics() {
    let mock = Mock::default();
    let (_, mut handle) = mock.spawn(async {});
    mock.drain();
    output(&mut handle).unwrap();
    let _ = output(&mut handle);
}

#[test]
fn a_failed_handle_resolves_at_once() {
    let mut handle = JoinHandle::<String>::failed("the scheduler has shut down");
    assert!(handle.is_finished());
    handle.abort();
    let abort = handle.abort_handle();
    assert!(abort.is_finished());
    let error = output(&mut handle).unwrap_err();
    assert!(error.is_not_spawned() && error.is_cancelled() && !error.is_panic());
    assert_eq!(error.id(), abort.id());
    assert_eq!(
        error.to_string(),
        format!(
            "task {} was not spawned: the scheduler has shut down",
            error.id()
        )
    );
    assert_eq!(
        std::io::Error::from(error.try_into_panic().unwrap_err()).to_string(),
        "task was not spawned"
    );
    drop(JoinHandle::<Vec<u8>>::failed("unread"));
}

#[test]
fn text_names_the_task() {
    let mock = Mock::default();
    let (task_ref, mut handle) = mock.spawn(async {});
    let id = handle.id();
    assert_eq!(
        format!("{handle:?}"),
        format!("JoinHandle {{ id: {id:?} }}")
    );
    assert_eq!(
        format!("{:?}", handle.abort_handle()),
        format!("AbortHandle {{ id: {id:?} }}")
    );
    assert!(
        format!("{task_ref:?}").contains("references: 2"),
        "{task_ref:?}"
    );
    task_ref.abort();
    let task = mock.pop().unwrap();
    assert!(format!("{task:?}").contains("aborted: true"), "{task:?}");
    drop(task);
    let error = output(&mut handle).unwrap_err();
    assert_eq!(error.to_string(), format!("task {id} was cancelled"));
    assert_eq!(
        format!("{error:?}"),
        format!("JoinError::Cancelled({id:?})")
    );
}

#[test]
fn handles_are_as_free_as_tokios() {
    fn everywhere<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe>() {}
    fn shared<T: Send + Sync + Unpin>() {}
    // Send, not Sync: enough for an output.
    everywhere::<JoinHandle<std::cell::Cell<u8>>>();
    everywhere::<AbortHandle>();
    everywhere::<Id>();
    shared::<JoinError>();
}

#[test]
fn identifiers_are_unique_over_threads() {
    let take = || (0..1500).map(|_| Id::next()).collect::<Vec<_>>();
    let threads: Vec<_> = (0..3).map(|_| thread::spawn(take)).collect();
    let all: Vec<Id> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 4500);
}
