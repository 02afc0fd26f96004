//! The member: the gate's task in the group, which lets the outer polls through, and pays for them inside the group.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use quotient_core::Nanos;

use super::gate::{Admission, Gate, Turn};
#[cfg(feature = "tower")]
use crate::error::SpawnError;
use crate::group::{Group, GroupShared, spawn_member};
#[cfg(feature = "tower")]
use crate::group::{Seat, spawn_uncounted};
use crate::local;
use crate::task::AbortHandle;
#[cfg(feature = "tower")]
use crate::task_context::TaskRef;

/// A debt from which on the member pays first and queues again, and less than which it lets the next poll through in the
/// same turn. Unit: nanoseconds. Default 200 us, the length of a virtual CPU's turn: so much later the rest of the group learns
/// of it.
const PAY_FIRST: Nanos = Nanos(200_000);

/// Future of the gate's task.
struct Member {
    gate: Arc<Gate>,
    group: Arc<GroupShared>,
}

impl Future for Member {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let debt = self.gate.take_debt();
        if debt > Nanos::ZERO {
            local::pay(debt);
        }
        if debt >= PAY_FIRST {
            // Come again: the place in the queue after the payment is the fair one.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.gate.take_turn(context.waker()) {
            Turn::Idle => Poll::Pending,
            Turn::Passed => {
                local::pass();
                self.group.allowance.renew();
                Poll::Pending
            }
            Turn::Closed => Poll::Ready(()),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        write_off(&self.gate, &self.group);
        self.gate.end();
    }
}

/// There is no member to pay any more. The group has paid: only its child groups have not heard of it.
fn write_off(gate: &Gate, group: &GroupShared) {
    let debt = gate.take_debt();
    if debt > Nanos::ZERO {
        group.core.charge_gone_tasks(debt);
    }
}

/// Whether the task lives in `group`.
#[cfg(feature = "tower")]
fn is_in(task: &TaskRef, group: &Arc<GroupShared>) -> bool {
    // A request may be polled in a task of another scheduler, which stops polls.
    let _shield = quotient_pause::uninterrupted();
    let membership = task.context().membership.lock();
    let membership = membership.unwrap_or_else(|poison| poison.into_inner());
    membership
        .as_ref()
        .is_some_and(|member| Arc::ptr_eq(&member.group, group))
}

/// The outer side's hold on its gate. Dropping it ends the member.
#[derive(Debug)]
pub(super) struct GateHandle {
    gate: Arc<Gate>,
    /// What the inner future is polled with.
    pub(super) waker: Waker,
    group: Arc<GroupShared>,
    member: Option<AbortHandle>,
    /// The group takes no member any more.
    refused: bool,
    /// Of a future in a task of the group's scheduler, which waits for the group's limit and was last polled with the task's waker.
    pub(super) is_for_limit: bool,
}

impl GateHandle {
    /// A gate with a member that counts among the tasks that the group may have.
    #[cfg(feature = "tower")]
    pub(super) fn bounded(
        group: &Group,
        location: &'static Location<'static>,
    ) -> Result<Self, SpawnError> {
        let mut handle = Self::new(group);
        handle.gate.reopen();
        let member = handle.new_member();
        let task = spawn_uncounted(group, member, location, Seat::Gate)?;
        handle.member = Some(task.abort_handle());
        Ok(handle)
    }

    /// A gate that has no member yet.
    pub(super) fn new(group: &Group) -> Self {
        let gate = Arc::new(Gate::new());
        Self {
            waker: Waker::from(gate.clone()),
            gate,
            group: group.inner.clone(),
            member: None,
            refused: false,
            is_for_limit: false,
        }
    }

    /// [`GateHandle::new`] for a future in a task of the group's scheduler whose group has used up its limit.
    pub(super) fn for_limit(group: &Group) -> Self {
        let mut handle = Self::new(group);
        handle.is_for_limit = true;
        handle
    }

    /// Whether the member lives, in the group that it was made in.
    #[cfg(feature = "tower")]
    pub(super) fn is_seated(&self) -> bool {
        let task = self.member.as_ref().and_then(AbortHandle::task_ref);
        !self.gate.has_ended() && task.is_some_and(|task| is_in(&task, &self.group))
    }

    fn new_member(&self) -> Member {
        Member {
            gate: self.gate.clone(),
            group: self.group.clone(),
        }
    }

    /// Whether there is a member now. One that was refused has ended its gate by its destructor.
    fn make_member(&mut self, group: &Group, location: &'static Location<'static>) -> bool {
        let member = self.new_member();
        let task = spawn_member(&group.shared, &self.group, member, location);
        self.member = task.ok().map(|task| task.abort_handle());
        self.refused = self.member.is_none();
        !self.refused
    }

    /// Whether a poll needs no turn now. A few relaxed loads.
    #[inline]
    fn may_go_ahead(&self) -> bool {
        let group = &self.group;
        group.allowance.is_left()
            && !group.long_wraps.load(Ordering::Relaxed)
            && !group.is_limited()
            && !group.is_held()
    }

    /// Whether the inner future may be polled now, and if so, whether the member has let it.
    pub(super) fn admit(
        &mut self,
        outer: &Waker,
        group: &Group,
        location: &'static Location<'static>,
    ) -> Admission {
        let admission = self.gate.admit(outer);
        if admission != Admission::Ended {
            return admission;
        }
        if !self.refused && !self.may_go_ahead() {
            self.gate.reopen();
            if self.make_member(group, location) {
                return Admission::Wait;
            }
        }
        self.gate.begin_poll();
        Admission::Ended
    }

    /// An inner poll took `time`, which the group has paid for. Inside the group the member pays, by its turn, for what it has let
    /// through.
    pub(super) fn owe(&self, time: Nanos, admission: Admission) {
        if admission == Admission::Pass {
            self.gate.owe(time);
        } else {
            self.group.allowance.spend(time);
            self.group.core.charge_gone_tasks(time);
        }
    }
}

impl Drop for GateHandle {
    fn drop(&mut self) {
        self.gate.close();
        let Some(member) = &self.member else {
            write_off(&self.gate, &self.group);
            return;
        };
        // Nearly always it waits for a wake-up, and ends here: a turn to end by it would have to wait for, among others that
        // come all the time.
        member.abort_here();
    }
}
