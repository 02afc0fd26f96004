//! The member: the gate's task in the group, which pays for the outer polls and lets the next one through.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use quotient_core::Nanos;

use super::gate::{Admission, Gate, Turn};
#[cfg(feature = "tower")]
use crate::error::SpawnError;
use crate::group::{Group, GroupShared, spawn_beyond};
#[cfg(feature = "tower")]
use crate::group::{Seat, spawn_uncounted};
use crate::local;
use crate::task::AbortHandle;

/// A debt from which on the member pays without waiting for the inner future's next wake-up. Unit: nanoseconds. Default 500 us:
/// what the rest of the group is to learn of soon; the turn costs 1 %.
const PAY_SOON: Nanos = Nanos(500_000);

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
            // Pay now and come again: the place in the queue after the payment is the fair one.
            local::charge_extra(debt, false);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.gate.take_turn(context.waker()) {
            Turn::Idle => Poll::Pending,
            Turn::Passed => {
                local::charge_extra(Nanos::ZERO, true);
                Poll::Pending
            }
            Turn::Closed => Poll::Ready(()),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Killed with a debt: what the member cannot pay any more, its group pays wherever it is queued.
        let debt = self.gate.take_debt();
        if debt > Nanos::ZERO {
            self.group.core.charge_foreign_service(debt);
        }
        self.gate.end();
    }
}

/// The outer side's hold on its gate. Dropping it lets the member pay and end.
#[derive(Debug)]
pub(super) struct GateHandle {
    gate: Arc<Gate>,
    /// What the inner future is polled with.
    pub(super) waker: Waker,
    group: Arc<GroupShared>,
    member: Option<AbortHandle>,
}

impl GateHandle {
    /// A gate with a member that counts among the tasks that the group may have.
    #[cfg(feature = "tower")]
    pub(super) fn bounded(
        group: &Group,
        location: &'static Location<'static>,
    ) -> Result<Self, SpawnError> {
        let mut handle = Self::without_member(group);
        let member = handle.new_member();
        let task = spawn_uncounted(group, member, location, Seat::Gate)?;
        handle.member = Some(task.abort_handle());
        Ok(handle)
    }

    /// A gate with a member, or one that has ended if the group takes none any more.
    pub(super) fn new(group: &Group, location: &'static Location<'static>) -> Self {
        let mut handle = Self::without_member(group);
        handle.make_member(group, location);
        handle
    }

    fn without_member(group: &Group) -> Self {
        let gate = Arc::new(Gate::new());
        Self {
            waker: Waker::from(gate.clone()),
            gate,
            group: group.inner.clone(),
            member: None,
        }
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
        let task = spawn_beyond(&group.shared, &self.group, member, location);
        self.member = task.ok().map(|task| task.abort_handle());
        self.member.is_some()
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
        if self.member.is_some() {
            self.gate.reopen();
            if self.make_member(group, location) {
                return Admission::Wait;
            }
        }
        self.gate.begin_poll();
        Admission::Ended
    }

    /// An inner poll took `time`, which clocks and budgets know already: the member will pay by its turn.
    pub(super) fn owe(&self, time: Nanos) {
        self.gate.owe(time);
        if time >= PAY_SOON {
            self.gate.wake_member();
        }
    }
}

impl Drop for GateHandle {
    fn drop(&mut self) {
        let Some(member) = &self.member else { return };
        if self.gate.debt() > Nanos::ZERO && !self.group.is_held() {
            self.gate.close();
        } else {
            // A frozen group's turn may never come.
            member.abort();
        }
    }
}
