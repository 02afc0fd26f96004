//! What the transitions cost: `cargo test -p quotient --release --lib costs -- --ignored --nocapture`.

use super::mock::poll_with;
use crate::{Context, Run, Task, TaskRef, spawn};
use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Instant;

/// Repetitions of one measurement; the fastest of [`ROUNDS`] counts.
const REPETITIONS: u32 = 200_000;
const ROUNDS: u32 = 7;

thread_local! {
    /// Where `schedule` leaves the token: the cheapest queue there is.
    static QUEUED: Cell<Option<Task<Direct>>> = const { Cell::new(None) };
}

struct Direct;

impl Context for Direct {
    type Owned = ();

    fn schedule(task: Task<Self>) {
        QUEUED.with(|queued| queued.set(Some(task)));
    }

    fn released(_: &TaskRef<Self>) {}
}

fn measure(name: &str, mut step: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..REPETITIONS {
            step();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(REPETITIONS));
    }
    println!("{name:32} {best:7.1} ns");
}

/// A task idle for ever, and its waker.
fn idle() -> (Waker, TaskRef<Direct>) {
    let slot: Arc<Mutex<Option<Waker>>> = Arc::default();
    let left = Arc::clone(&slot);
    let mut left = Some(left);
    let future = poll_fn(move |context| {
        if let Some(left) = left.take() {
            *left.lock().unwrap() = Some(context.waker().clone());
        }
        Poll::<()>::Pending
    });
    let (task, task_ref, _) = spawn(future, Direct, ());
    assert!(matches!(task.run(|_| false), Run::Idle));
    let waker = slot
        .lock()
        .unwrap()
        .clone()
        .expect("left at the first poll");
    (waker, task_ref)
}

fn run_queued() {
    let task = QUEUED.with(Cell::take).expect("just woken");
    assert!(matches!(task.run(|_| false), Run::Idle));
}

#[test]
#[ignore = "a measurement"]
fn costs_of_transitions() {
    let (pending_task, pending_ref, _) = spawn(pending::<()>(), Direct, ());
    assert!(matches!(pending_task.run(|_| false), Run::Idle));
    let (waker, task_ref) = idle();
    measure("wake_by_ref + run + idle", || {
        waker.wake_by_ref();
        run_queued();
    });
    measure("clone + wake + run + idle", || {
        waker.clone().wake();
        run_queued();
    });
    waker.wake_by_ref();
    measure("wake_by_ref, queued already", || {
        black_box(&waker).wake_by_ref()
    });
    run_queued();
    measure("waker clone + drop", || drop(black_box(&waker).clone()));

    let (task, self_ref, _) = spawn(
        poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        }),
        Direct,
        (),
    );
    let mut token = Some(task);
    measure("self-wake + again", || {
        match token.take().expect("again").run(|_| false) {
            Run::Again(task) => token = Some(task),
            Run::Idle | Run::Done => unreachable!("it wakes itself"),
        }
    });
    measure("spawn + run + join", || {
        let (task, task_ref, mut handle) = spawn(async { 1_u64 }, Direct, ());
        assert!(matches!(task.run(|_| false), Run::Done));
        drop(task_ref);
        assert!(poll_with(&mut handle, Waker::noop()).is_ready());
    });
    measure("spawn + detach + run", || {
        let (task, task_ref, handle) = spawn(async { 1_u64 }, Direct, ());
        drop(handle);
        assert!(matches!(task.run(|_| false), Run::Done));
        drop(task_ref);
    });
    measure("box of the same size", || {
        drop(black_box(Box::new([0_u8; 96])))
    });
    for task in [pending_ref, task_ref] {
        task.abort();
        QUEUED.with(Cell::take).expect("aborted").cancel();
    }
    drop((token, self_ref));
}
