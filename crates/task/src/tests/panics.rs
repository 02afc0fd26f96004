//! Panics in foreign code: poll, destructors, join wakers.

use super::mock::{Mock, output, poll_with};
use crate::{JoinError, Run};
use std::future::{Future, poll_fn};
use std::panic::panic_any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Panics when dropped.
#[derive(Debug)]
struct Bomb(&'static str);

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(self.0);
    }
}

/// Ready (or a panic, if `output` is none) at the first poll; its destructor panics.
struct BombFuture<T> {
    output: Option<T>,
    _bomb: Bomb,
}

impl<T: Unpin> Future for BombFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        Poll::Ready(self.output.take().expect("in poll"))
    }
}

fn message(error: JoinError) -> String {
    assert!(error.is_panic() && !error.is_cancelled());
    let payload = error.into_panic();
    payload.downcast_ref::<&str>().map_or_else(
        || payload.downcast_ref::<String>().unwrap().clone(),
        |m| m.to_string(),
    )
}

#[test]
fn in_poll_goes_to_the_handle() {
    let mock = Mock::default();
    let (_, mut handle) = mock.spawn(async {
        if true {
            panic!("number {}", 7);
        }
    });
    mock.drain();
    let error = output(&mut handle).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("task {} panicked with message \"number 7\"", error.id())
    );
    assert_eq!(
        format!("{error:?}"),
        format!("JoinError::Panic({:?}, \"number 7\", ...)", error.id())
    );
    assert_eq!(message(error), "number 7");
    drop(handle);
    mock.assert_all_gone(1);
}

#[test]
fn with_an_odd_payload_has_no_message() {
    let mock = Mock::default();
    let (_, mut handle) = mock.spawn(poll_fn(|_| -> Poll<()> { panic_any(5_u32) }));
    mock.drain();
    let error = output(&mut handle).unwrap_err();
    assert_eq!(error.to_string(), format!("task {} panicked", error.id()));
    assert_eq!(
        *error.try_into_panic().unwrap().downcast::<u32>().unwrap(),
        5
    );
}

#[test]
fn in_the_destructor_after_ready_replaces_the_output() {
    let mock = Mock::default();
    let (_, mut handle) = mock.spawn(BombFuture {
        output: Some(1),
        _bomb: Bomb("in drop"),
    });
    mock.drain();
    assert_eq!(message(output(&mut handle).unwrap_err()), "in drop");
    drop(handle);
    mock.assert_all_gone(1);
}

#[test]
fn in_both_destructors_after_ready_is_survived() {
    let mock = Mock::default();
    let (_, mut handle) = mock.spawn(BombFuture {
        output: Some(Bomb("output")),
        _bomb: Bomb("in drop"),
    });
    mock.drain();
    assert_eq!(message(output(&mut handle).unwrap_err()), "in drop");
    drop(handle);
    mock.assert_all_gone(1);
}

#[test]
fn in_poll_and_destructor_keeps_the_first() {
    let mock = Mock::default();
    let (_, mut handle) = mock.spawn(BombFuture::<u8> {
        output: None,
        _bomb: Bomb("in drop"),
    });
    mock.drain();
    assert_eq!(message(output(&mut handle).unwrap_err()), "in poll");
    drop(handle);
    mock.assert_all_gone(1);
}

#[test]
fn in_the_destructor_on_abort_goes_to_the_handle() {
    let mock = Mock::default();
    let (task, task_ref, mut handle) = mock.spawn_held(BombFuture {
        output: Some(1),
        _bomb: Bomb("in drop"),
    });
    task_ref.abort();
    assert!(matches!(task.run(|_| false), Run::Done));
    assert_eq!(message(output(&mut handle).unwrap_err()), "in drop");
    drop((task_ref, handle));
    mock.assert_all_gone(1);
}

#[test]
fn in_the_destructor_of_a_dropped_token_goes_to_the_handle() {
    let mock = Mock::default();
    let (task, _, mut handle) = mock.spawn_held(BombFuture {
        output: Some(1),
        _bomb: Bomb("in drop"),
    });
    task.cancel();
    assert_eq!(message(output(&mut handle).unwrap_err()), "in drop");
    drop(handle);
    mock.assert_all_gone(1);
}

#[test]
fn in_an_unread_outputs_destructor_is_swallowed() {
    let mock = Mock::default();
    let (_, detached) = mock.spawn(async { Bomb("output") });
    drop(detached);
    mock.drain();
    let (_, late) = mock.spawn(async { Bomb("output") });
    mock.drain();
    drop(late);
    mock.assert_all_gone(2);
}

#[test]
fn in_a_payloads_destructor_is_swallowed() {
    let mock = Mock::default();
    let (_, detached) = mock.spawn(poll_fn(|_| -> Poll<()> { panic_any(Bomb("payload")) }));
    drop(detached);
    mock.drain();
    mock.assert_all_gone(1);
}

/// A waker that panics when it wakes.
struct PanicWaker;

impl Wake for PanicWaker {
    fn wake(self: Arc<Self>) {
        panic_any("in wake");
    }
}

#[test]
fn in_the_join_waker_is_swallowed() {
    let mock = Mock::default();
    let (_, mut handle) = mock.spawn(async { 3 });
    assert!(poll_with(&mut handle, &Waker::from(Arc::new(PanicWaker))).is_pending());
    mock.drain();
    assert_eq!(output(&mut handle).unwrap(), 3);
    drop(handle);
    mock.assert_all_gone(1);
}
