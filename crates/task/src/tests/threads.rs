//! Real threads against one task: for Miri and the sanitizers, and a short stress otherwise.

use super::mock::{Mock, WakerSlot, poll_with};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Poll, Waker};
use std::thread;

const ROUNDS: usize = if cfg!(miri) { 8 } else { 2000 };

/// A task that is ready once `flag` is set; it leaves its waker at each poll.
fn waits(
    flag: &Arc<AtomicBool>,
    slot: &WakerSlot,
) -> impl Future<Output = String> + Send + 'static {
    let (flag, slot) = (Arc::clone(flag), slot.clone());
    poll_fn(move |context| {
        if flag.load(SeqCst) {
            return Poll::Ready("output".to_owned());
        }
        slot.store(context);
        Poll::Pending
    })
}

#[test]
fn wakers_runner_aborter_and_joiner_race() {
    let completed = AtomicUsize::new(0);
    for round in 0..ROUNDS {
        let mock = Mock::default();
        let flag = Arc::new(AtomicBool::new(false));
        let slot = WakerSlot::default();
        let (task_ref, mut handle) = mock.spawn(waits(&flag, &slot));
        mock.drain();
        let waker = slot.take();
        let other = waker.clone();
        let abort = (round % 2 == 0).then(|| handle.abort_handle());
        thread::scope(|scope| {
            scope.spawn(|| {
                flag.store(true, SeqCst);
                waker.wake();
            });
            scope.spawn(move || {
                other.wake_by_ref();
                drop(other);
                if let Some(abort) = abort {
                    abort.abort();
                }
            });
            scope.spawn(|| mock.drain());
            let mut joined = false;
            for _ in 0..3 {
                if !joined && let Poll::Ready(result) = poll_with(&mut handle, Waker::noop()) {
                    joined = true;
                    completed.fetch_add(
                        usize::from(result.is_ok_and(|text| text == "output")),
                        SeqCst,
                    );
                }
            }
            drop(handle);
        });
        mock.drain();
        assert!(task_ref.is_finished(), "a wake-up was lost");
        drop((task_ref, slot));
        mock.assert_all_gone(1);
    }
}

#[test]
fn two_runners_hand_a_task_back_and_forth() {
    let mock = Mock::default();
    let total = ROUNDS * 4;
    let slot = WakerSlot::default();
    let left = slot.clone();
    let mut polls = 0;
    // Wakes itself from another thread's point of view: the waker left may be used before the poll ends.
    let (task_ref, handle) = mock.spawn(poll_fn(move |context| {
        polls += 1;
        if polls == total {
            return Poll::Ready(polls);
        }
        left.store(context);
        context.waker().wake_by_ref();
        Poll::Pending
    }));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !task_ref.is_finished() {
                    if let Some(mut task) = mock.pop() {
                        *task.owned_mut() += 1;
                        if let crate::Run::Again(task) = task.run(|_| false) {
                            mock.push(task);
                        }
                    } else {
                        thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(mock.polls(), total);
    drop((task_ref, handle, slot.take()));
    mock.assert_all_gone(1);
}
