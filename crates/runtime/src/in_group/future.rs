//! The future that users see, and its polls.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use quotient_core::Nanos;

use super::gate::Admission;
use super::member::GateHandle;
#[cfg(feature = "tower")]
use crate::error::SpawnError;
use crate::group::Group;
use crate::local;

/// Adds [`InGroupExt::in_group`] to every future.
pub trait InGroupExt: Future + Sized {
    /// Runs the future as a member of `group`, wherever it is polled: its CPU time is charged to the group, and in a foreign task
    /// each of its polls, the first included, takes its turn among the group's.
    ///
    /// The future belongs to the task that polls it. [`Group::kill`], [`Group::remove`] and [`crate::Scheduler::shutdown`] do not
    /// end it: after a kill it goes on as a member, after the other two it is still billed but waits for no turn.
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
            // The inner future learns of another waker than the gate's, which from now on is not told of its wake-ups: should it be
            // polled in a foreign task again, that begins with a new gate, and so with a poll.
            *this.gate = None;
            let (output, used) = metered(group, || inner.poll(context));
            add_foreign_time(group, used);
            return output;
        }
        let gate = this
            .gate
            .get_or_insert_with(|| GateHandle::new(group, location));
        let admission = gate.admit(context.waker(), group, location);
        if admission == Admission::Wait {
            return Poll::Pending;
        }
        let mut inner_context = Context::from_waker(&gate.waker);
        let (output, used) = metered(group, || inner.poll(&mut inner_context));
        if admission == Admission::Pass {
            let core = &group.inner.core;
            core.show_foreign_cpu_time(0, used);
            core.charge_foreign_budget(used, group.shared.now());
            gate.owe(used);
        } else {
            add_foreign_time(group, used);
        }
        if output.is_ready() {
            *this.gate = None;
        }
        output
    }
}

/// The group is charged at once.
fn add_foreign_time(group: &Group, time: Nanos) {
    let now = group.shared.now();
    group.inner.core.add_foreign_cpu_time(time, now);
}

/// Runs `poll` with `group` as the charged one; returns its output and the CPU time that neither was shown nor belongs to
/// anybody nested inside.
fn metered<R>(group: &Group, poll: impl FnOnce() -> R) -> (R, Nanos) {
    struct Restore<'a> {
        group: &'a Group,
        saved: Option<local::Saved>,
    }
    impl Restore<'_> {
        fn end(&mut self) -> Nanos {
            self.saved.take().map_or(Nanos::ZERO, |saved| {
                local::restore_group(saved, &self.group.inner, self.group.shared.now())
            })
        }
    }
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            // Only a panic leaves this to do: the time is charged all the same.
            if self.saved.is_some() {
                let used = self.end();
                add_foreign_time(self.group, used);
            }
        }
    }
    let started = group.shared.now();
    let mut restore = Restore {
        group,
        saved: Some(local::replace_group(&group.shared, &group.inner, started)),
    };
    let output = poll();
    let used = restore.end();
    (output, used)
}
