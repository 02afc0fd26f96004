//! The future that users see, and its polls.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;
use quotient_core::Nanos;

use super::gate::Admission;
use super::member::GateHandle;
use crate::clock::thread_cpu_time;
#[cfg(feature = "tower")]
use crate::error::SpawnError;
use crate::group::Group;
use crate::local;

/// Adds [`InGroupExt::in_group`] to every future.
pub trait InGroupExt: Future + Sized {
    /// Runs the future as a member of `group`, wherever it is polled: its CPU time is charged to the group, and in a foreign task
    /// each of its polls, the first included, takes its turn among the group's. In a task of the group's scheduler the task's own group
    /// and weight say when it is polled, and the limits of `group` hold: while one is used up no poll begins, and with
    /// [`Builder::preempt`](crate::Builder::preempt) a poll in progress stands still.
    ///
    /// The future belongs to the task that polls it. [`Group::kill`], [`Group::remove`] and [`crate::Scheduler::shutdown`] do not
    /// end it: after a kill it goes on as a member, after the other two it is still billed but waits for no turn. If it is dropped before it
    /// was ready, its destructor runs where it is dropped and outside the group: whoever drops it pays, and `Group::current` is the dropper's.
    #[track_caller]
    fn in_group(self, group: &Group) -> InGroup<Self> {
        InGroup {
            inner: self,
            group: group.clone(),
            location: Location::caller(),
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
        location: &'static Location<'static>,
        gate: Option<GateHandle>,
    }
}

#[cfg(feature = "tower")]
impl<F> InGroup<F> {
    /// Whether a task of the group stands for this future: one that is to be ended, and counted, by whoever ends the group.
    pub(crate) fn is_seated(&self) -> bool {
        self.gate.as_ref().is_some_and(GateHandle::is_seated)
    }

    /// Makes the gate now, as one of the tasks that the group may have: concurrent requests cannot exceed their number.
    ///
    /// # Errors
    /// The group takes no more.
    pub(crate) fn admitted(mut self) -> Result<Self, SpawnError> {
        if local::is_billed_by(&self.group.shared) {
            self.group.check_open()?;
        } else {
            self.gate = Some(GateHandle::bounded(&self.group, self.location)?);
        }
        Ok(self)
    }
}

impl<F: Future> Future for InGroup<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let (group, location) = (&*this.group, *this.location);
        let inner = this.inner;
        if local::is_billed_by(&group.shared) {
            if !may_borrow(this.gate, group, location, context.waker()) {
                return Poll::Pending;
            }
            let (output, time) = metered(group, |_| inner.poll(context));
            add_foreign_time(group, &time);
            return output;
        }
        let gate = this.gate.get_or_insert_with(|| GateHandle::new(group));
        gate.is_for_limit = false;
        let admission = gate.admit(context.waker(), group, location);
        if admission == Admission::Wait {
            return Poll::Pending;
        }
        let mut inner_context = Context::from_waker(&gate.waker);
        let (output, time) = metered(group, |started| {
            local::begin_gated(&group.shared, started);
            inner.poll(&mut inner_context)
        });
        add_foreign_time(group, &time);
        gate.owe(time.used, admission);
        local::end_gated(&group.shared, time.wall, time.ended);
        if output.is_ready() {
            *this.gate = None;
        }
        output
    }
}

/// In a task of the group's scheduler, which has its place on a processor already: whether the future may be polled now. If not, the group's
/// limit is used up, and the task is woken when it is the group's turn again. No gate is left for a future that may.
fn may_borrow(
    gate: &mut Option<GateHandle>,
    group: &Group,
    location: &'static Location<'static>,
    outer: &Waker,
) -> bool {
    if gate.as_ref().is_some_and(|gate| !gate.is_for_limit) {
        // The inner future learns of another waker than the gate's, which from now on is not told of its wake-ups: should it be
        // polled in a foreign task again, that begins with a new gate, and so with a poll.
        *gate = None;
    }
    if gate.is_none() && !group.inner.is_kept_back(group.shared.now()) {
        return true;
    }
    let handle = gate.get_or_insert_with(|| GateHandle::for_limit(group));
    if handle.admit(outer, group, location) == Admission::Wait {
        return false;
    }
    *gate = None;
    true
}

/// The group pays at once: on its clocks, from its budgets, and in virtual time among its siblings.
fn add_foreign_time(group: &Group, time: &Time) {
    group.inner.core.add_foreign_cpu_time(time.used, time.ended);
}

/// What a poll took.
#[derive(Clone, Copy, Debug, Default)]
struct Time {
    /// CPU time that neither was shown nor belongs to anybody nested inside.
    used: Nanos,
    wall: Nanos,
    ended: Nanos,
}

/// Runs `poll` with `group` as the charged one; returns its output and what it took.
fn metered<R>(group: &Group, poll: impl FnOnce(Nanos) -> R) -> (R, Time) {
    struct Restore<'a> {
        group: &'a Group,
        started: Nanos,
        /// What to restore, or, where the thread's locals are gone, its CPU clock at the start.
        saved: Option<Result<local::Saved, Option<Nanos>>>,
    }
    impl Restore<'_> {
        fn end(&mut self) -> Time {
            let now = self.group.shared.now();
            let wall = now.saturating_sub(self.started);
            let used = match self.saved.take() {
                Some(Ok(saved)) => local::restore_group(saved, &self.group.inner, now),
                Some(Err(Some(before))) => {
                    let cpu = thread_cpu_time().map(|cpu| cpu.saturating_sub(before));
                    cpu.map_or(wall, |cpu| cpu.min(wall))
                }
                Some(Err(None)) => wall,
                None => Nanos::ZERO,
            };
            Time {
                used,
                wall,
                ended: now,
            }
        }
    }
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            // Only a panic leaves this to do: the time is charged all the same.
            if self.saved.is_some() {
                let time = self.end();
                add_foreign_time(self.group, &time);
            }
        }
    }
    let started = group.shared.now();
    let mut restore = Restore {
        group,
        started,
        saved: Some(
            local::replace_group(&group.shared, &group.inner, started).ok_or_else(thread_cpu_time),
        ),
    };
    let output = poll(started);
    let time = restore.end();
    (output, time)
}
