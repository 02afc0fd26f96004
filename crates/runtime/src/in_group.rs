//! `future.in_group(&group)`: a future anywhere, metered and ordered as a member of a group.
//!
//! # Inside a task of the same scheduler, or nested in another `in_group`
//! The outer poll already holds a place on a processor; the wrap borrows it and switches the charged group for the time of the inner
//! poll. The inner group pays, the outer group and task do not. Children spawned inside inherit the inner group.
//!
//! # Inside a foreign task (`tokio::spawn`, axum's own connection tasks, `block_on`)
//! The order of such polls is tokio's to decide, so the wrap puts a *gate* in between: a small task in the group, queued like any other.
//!
//! - The inner future is polled with the gate's waker. A wake-up sets `ready` and wakes the gate task, not the foreign task.
//! - When a virtual CPU picks the gate task, in the order that weights ask for, it first pays the debt of the last inner poll, and then,
//!   at its turn again, wakes the foreign task and asks the virtual CPU to return to the host: the foreign task is next in tokio's LIFO slot.
//! - The foreign poll runs the inner future if `ready`, and books its wall time as the gate's debt.
//!
//! Nothing is held between pick and foreign poll, so a foreign task that is dropped or never polled costs the others nothing. The
//! first poll is not gated (nobody woke it). *No wake-up is lost*: `ready` is set by an RMW before the gate task is woken and taken by an
//! RMW before the inner poll; a wake-up during the inner poll sets it again and queues the gate again. Outer wake-ups that the inner
//! future did not ask for (a `select!` around the wrap) find `ready` unset and return `Pending`, which is what the inner future said last.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use pin_project_lite::pin_project;
use quotient_core::Nanos;

use crate::group::Group;
use crate::local;
use crate::task::AbortHandle;

/// Adds [`InGroupExt::in_group`] to every future.
pub trait InGroupExt: Future + Sized {
    /// Runs the future as a member of `group`, wherever it is polled: its time is charged to the group, and in a foreign task
    /// its polls take their turn among the group's.
    fn in_group(self, group: &Group) -> InGroup<Self> {
        InGroup {
            inner: self,
            group: group.clone(),
            gate: None,
        }
    }
}

impl<F: Future> InGroupExt for F {}

pin_project! {
    /// Future of [`InGroupExt::in_group`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct InGroup<F> {
        #[pin]
        inner: F,
        group: Group,
        gate: Option<GateHandle>,
    }
}

/// What the foreign side and the gate task share.
#[derive(Debug)]
struct Gate {
    /// The inner future was woken since its last poll (or was never polled).
    ready: AtomicBool,
    /// The gate task has let the wake-up through.
    passed: AtomicBool,
    /// Time of inner polls that the gate task has not paid for yet. Unit: nanoseconds.
    debt: AtomicU64,
    outer: Mutex<Option<Waker>>,
    task: Mutex<Option<Waker>>,
    group: Group,
}

#[derive(Debug)]
struct GateHandle {
    gate: Arc<Gate>,
    abort: AbortHandle,
}

impl Drop for GateHandle {
    fn drop(&mut self) {
        // What the gate task has not paid by its turn is charged at once.
        let debt = self.gate.debt.swap(0, Ordering::AcqRel);
        if debt > 0 {
            let group = &self.gate.group;
            group
                .inner
                .core
                .add_foreign_cpu_time(Nanos(debt), group.shared.now());
        }
        self.abort.abort();
    }
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.ready.swap(true, Ordering::AcqRel) {
            return;
        }
        let waker = lock(&self.task).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// The gate task: pays, then lets one wake-up through, for as long as the wrap lives.
async fn gate_task(gate: Arc<Gate>) {
    std::future::poll_fn(|context| {
        let mut slot = lock(&gate.task);
        if !slot
            .as_ref()
            .is_some_and(|known| known.will_wake(context.waker()))
        {
            *slot = Some(context.waker().clone());
        }
        drop(slot);
        let debt = gate.debt.swap(0, Ordering::AcqRel);
        if debt > 0 {
            // Pay now and come again: the place in the queue after the payment is the fair one.
            local::charge_extra(Nanos(debt), false);
            context.waker().wake_by_ref();
            return Poll::<()>::Pending;
        }
        if gate.ready.load(Ordering::Acquire) && !gate.passed.swap(true, Ordering::AcqRel) {
            let outer = lock(&gate.outer).clone();
            if let Some(outer) = outer {
                outer.wake();
            }
            local::charge_extra(Nanos::ZERO, true);
        }
        Poll::Pending
    })
    .await;
}

impl GateHandle {
    fn new(group: &Group, outer: &Waker) -> Self {
        let gate = Arc::new(Gate {
            ready: AtomicBool::new(true),
            passed: AtomicBool::new(true),
            debt: AtomicU64::new(0),
            outer: Mutex::new(Some(outer.clone())),
            task: Mutex::new(None),
            group: group.clone(),
        });
        let abort = group.spawn(gate_task(gate.clone())).abort_handle();
        Self { gate, abort }
    }
}

impl<F: Future> Future for InGroup<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let shared = this.group.shared.clone();
        let nested = local::current_group().is_some_and(|(outer, _)| Arc::ptr_eq(&outer, &shared));
        let mut inner = this.inner;
        if nested {
            let (output, own) = metered(this.group, || inner.as_mut().poll(context));
            this.group
                .inner
                .core
                .add_foreign_cpu_time(own, shared.now());
            return output;
        }
        let handle = this
            .gate
            .get_or_insert_with(|| GateHandle::new(this.group, context.waker()));
        let gate = &handle.gate;
        {
            let mut outer = lock(&gate.outer);
            if !outer
                .as_ref()
                .is_some_and(|known| known.will_wake(context.waker()))
            {
                *outer = Some(context.waker().clone());
            }
        }
        // A gate that has ended (its group was killed, the scheduler shut down) no longer orders anything.
        let open = handle.abort.is_finished();
        if !open && !gate.passed.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        gate.ready.swap(false, Ordering::AcqRel);
        let waker = if open {
            context.waker().clone()
        } else {
            Waker::from(gate.clone())
        };
        let mut inner_context = Context::from_waker(&waker);
        let (output, own) = metered(this.group, || inner.as_mut().poll(&mut inner_context));
        if open {
            this.group
                .inner
                .core
                .add_foreign_cpu_time(own, shared.now());
        } else {
            gate.debt.fetch_add(own.as_nanos(), Ordering::AcqRel);
        }
        output
    }
}

/// Runs `poll` with `group` as the charged one; returns its output and the wall time that nobody nested inside is charged for.
fn metered<R>(group: &Group, poll: impl FnOnce() -> R) -> (R, Nanos) {
    struct Restore<'a> {
        group: &'a Group,
        saved: Option<local::Saved>,
        started: Nanos,
    }
    impl Restore<'_> {
        fn end(&mut self) -> Nanos {
            let elapsed = self.group.shared.now().saturating_sub(self.started);
            match self.saved.take() {
                Some(saved) => local::restore_group(saved, elapsed),
                None => Nanos::ZERO,
            }
        }
    }
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            // Only a panic leaves this to do: the time is charged all the same.
            if self.saved.is_some() {
                let own = self.end();
                let now = self.group.shared.now();
                self.group.inner.core.add_foreign_cpu_time(own, now);
            }
        }
    }
    let started = group.shared.now();
    let saved = Some(local::replace_group(&group.shared, &group.inner, started));
    let mut restore = Restore {
        group,
        saved,
        started,
    };
    let output = poll();
    let own = restore.end();
    (output, own)
}
