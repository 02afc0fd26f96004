//! Outputs that are made elsewhere.

use super::super::trace::SpanId;
use super::super::{Id, Promise, promise, try_id};
use super::mock::poll_with;
use crate::JoinHandle;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};

fn pair<T: 'static>() -> (Promise<T>, JoinHandle<T>) {
    promise(Id::next(), SpanId::NONE)
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_output_is_lost_on_its_way_from_another_thread() {
    let (promise, mut handle) = pair();
    let id = handle.id();
    let maker = std::thread::spawn(move || {
        assert_eq!(promise.run(try_id), Some(id));
        assert_eq!(try_id(), None);
        promise.deliver(Ok(vec![1, 2]));
    });
    maker.join().unwrap();
    let Poll::Ready(Ok(output)) = poll_with(&mut handle, Waker::noop()) else {
        panic!("it was delivered");
    };
    assert_eq!(output, [1, 2]);
}

#[test]
fn a_broken_promise_leaves_its_handle_waiting() {
    let bell = Arc::new(Bell::default());
    let (promise, mut handle) = pair::<u8>();
    assert!(poll_with(&mut handle, &Waker::from(bell.clone())).is_pending());
    drop(promise);
    assert_eq!(bell.0.load(Ordering::SeqCst), 1);
    let Poll::Ready(Err(error)) = poll_with(&mut handle, Waker::noop()) else {
        panic!("the promise was dropped");
    };
    assert!(error.is_cancelled() && !error.is_not_spawned());

    let (promise, mut handle) = pair::<u8>();
    promise.deliver(Err(Box::new("on purpose")));
    let Poll::Ready(Err(error)) = poll_with(&mut handle, Waker::noop()) else {
        panic!("the maker panicked");
    };
    assert!(error.is_panic());
}

#[test]
fn an_abort_does_not_reach_who_makes_the_output() {
    let bell = Arc::new(Bell::default());
    let (promise, handle) = pair::<u8>();
    promise.watch(&Waker::from(bell.clone()));
    assert!(!promise.is_aborted());
    let abort = handle.abort_handle();
    std::thread::spawn(move || abort.abort()).join().unwrap();
    assert_eq!(bell.0.load(Ordering::SeqCst), 1);
    assert!(promise.is_aborted());
    // Asking twice changes nothing.
    handle.abort();
    assert_eq!(bell.0.load(Ordering::SeqCst), 1);
    drop(promise);
    assert!(handle.is_finished());

    let (promise, handle) = pair::<u8>();
    handle.abort();
    // Too late for the bell, so the look after it must tell.
    promise.watch(&Waker::from(bell.clone()));
    assert!(promise.is_aborted());
}

#[test]
fn an_output_that_may_not_leave_its_thread_is_dropped_elsewhere() {
    let value = Rc::new(());
    let (promise, handle) = pair();
    let abort = handle.abort_handle();
    promise.deliver(Ok(value.clone()));
    assert_eq!(Rc::strong_count(&value), 2);
    // The handle goes first, here, with the output; the memory goes on another thread.
    drop(handle);
    assert_eq!(Rc::strong_count(&value), 1);
    std::thread::spawn(move || drop(abort)).join().unwrap();

    let (promise, handle) = pair();
    let abort = handle.abort_handle();
    drop(handle);
    promise.deliver(Ok(value.clone()));
    assert_eq!(Rc::strong_count(&value), 1, "nobody wants it");
    std::thread::spawn(move || drop(abort)).join().unwrap();
}
