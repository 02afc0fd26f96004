//! What a virtual CPU's poll changes of the thread's view: entered with it, restored after it, and each task's part in between.

use std::marker::PhantomData;
use std::sync::Arc;

use quotient_core::Nanos;

use super::spawner::{NO_POLL, epoch};
use super::wrap::Wrap;
use super::{Charged, LOCAL, Local, PollNotes};
use crate::bandwidth::Deferral;
use crate::cpu_clock::OwnTime;
use crate::inbox::Arrival;
use crate::meter::Meter;
use crate::preempt;
use crate::shared::Shared;
use crate::task::Vacancy;
use crate::task_context::Task;

/// Guard of one virtual CPU's poll.
pub(crate) struct Entered {
    previous: (usize, usize, bool, usize),
    previous_vacancy: Option<Vacancy>,
    previous_owner: Option<Arc<Shared>>,
    previous_group: Option<Charged>,
    previous_epoch: u64,
    previous_member: Option<Charged>,
    previous_notes: PollNotes,
    previous_deferral: Option<Arc<Deferral>>,
    previous_throttled: Nanos,
    previous_wrap: Option<Wrap>,
    previous_reference: Option<OwnTime>,
    previous_meter: Option<Box<Meter>>,
    _not_send: PhantomData<*mut ()>,
}

/// The calling thread starts to poll a virtual CPU; in a preempting scheduler, with the vacancy of its slot.
pub(crate) fn enter(shared: &Arc<Shared>, vcpu: usize, vacancy: Option<Vacancy>) -> Entered {
    LOCAL.with(|local| {
        local.last.set((Arc::as_ptr(shared) as usize, vcpu));
        let previous = (
            local.scheduler.replace(Arc::as_ptr(shared) as usize),
            local.vcpu.replace(vcpu),
            local.polling.replace(false),
            // A poll may lose its virtual CPU to another thread: it keeps nothing unless its vacancy says that it may.
            local.slot_of.replace(if shared.preempt.is_some() {
                0
            } else {
                Arc::as_ptr(shared) as usize
            }),
        );
        Entered {
            previous,
            previous_vacancy: local.vacancy.replace(vacancy),
            previous_owner: local.owner.replace(Some(shared.clone())),
            previous_group: local.set_group(None),
            previous_epoch: local.epoch.replace(NO_POLL),
            previous_member: local.member.take(),
            // What a foreign task left here (see `in_group`) is nobody's.
            previous_notes: local.take_notes(),
            previous_deferral: local.deferral.take(),
            previous_throttled: local.throttled.take(),
            previous_wrap: local.wrap.take(),
            previous_reference: local.reference.take(),
            previous_meter: local.pause_meter(),
            _not_send: PhantomData,
        }
    })
}

impl Drop for Entered {
    fn drop(&mut self) {
        let restore = |local: &Local| {
            let (scheduler, vcpu, polling, slot_of) = self.previous;
            let index = local.vcpu.replace(vcpu);
            let vacancy = local.vacancy.replace(self.previous_vacancy);
            local.scheduler.set(scheduler);
            local.slot_of.set(slot_of);
            let shared = local.owner.replace(self.previous_owner.take());
            local.polling.set(polling);
            drop(local.set_group(self.previous_group.take()));
            local.epoch.set(self.previous_epoch);
            drop(local.member.replace(self.previous_member.take()));
            local.restore_notes(self.previous_notes);
            drop(local.deferral.replace(self.previous_deferral.take()));
            local.throttled.set(self.previous_throttled);
            local.wrap.set(self.previous_wrap);
            local.reference.set(self.previous_reference);
            local.resume_meter(self.previous_meter.take());
            (index, shared, vacancy)
        };
        // What the turn left in the slot is visible before the virtual CPU may sleep or be polled elsewhere.
        if let Ok((index, Some(shared), vacancy)) = LOCAL.try_with(restore) {
            let next = &shared.vcpus[index].next;
            let left = match vacancy {
                Some(vacancy) => next.vacate(vacancy),
                // The virtual CPU is another thread's, and so is what is in its slot.
                None if shared.preempt.is_some() => None,
                None => next.take(),
            };
            if let Some(left) = left {
                shared.publish_local(index, Arrival::from_slot(left), false);
            }
        }
    }
}

impl Entered {
    /// Notes the thread's own time, for who reads a clock during a poll of this turn.
    #[inline]
    pub(crate) fn set_reference(&self, reference: Option<OwnTime>) {
        LOCAL.with(|local| local.reference.set(reference));
    }

    /// The virtual CPU is another thread's.
    #[cold]
    pub(crate) fn lose_vcpu(&self) {
        LOCAL.with(|local| local.vacancy.set(None));
    }

    /// A task's poll starts. Its group is taken over only if it differs from the last one; how long it has been throttled in
    /// all, always: that is cheaper than to ask whether there may be a limit.
    #[inline]
    pub(crate) fn begin_task(&self, shared: &Arc<Shared>, task: &mut Task) {
        LOCAL.with(|local| {
            let group = &task.owned_mut().group;
            if local.group_at.get() != Arc::as_ptr(group).addr() {
                drop(local.set_group(Some((shared.clone(), group.clone()))));
            }
            local.throttled.set(task.context().throttled());
            local.epoch.set(epoch(shared, task));
            local.polling.set(true);
        });
    }

    /// After `begin_task`: the task has a deferral of throttles.
    #[cold]
    pub(crate) fn begin_deferring(&self, deferral: &Arc<Deferral>) {
        deferral.is_not_queued();
        preempt::begins_deferring(deferral);
        LOCAL.with(|local| {
            local.deferral.set(Some(deferral.clone()));
            local.noted.set(true);
        });
    }

    /// The deferral that the task has at the end of its poll.
    #[cold]
    pub(crate) fn take_deferral(&self) -> Option<Arc<Deferral>> {
        preempt::ends_deferring();
        LOCAL.with(|local| local.deferral.take())
    }

    /// The task's end is about to run code of the program's, for which everything is as in the poll that is over.
    #[inline]
    pub(crate) fn resume_task(&self) {
        LOCAL.with(|local| local.polling.set(true));
    }

    /// That code has run. A deferral of throttles ends with it; what it has noted else stays for [`Entered::end_task`].
    #[inline]
    pub(crate) fn end_resumed(&self) {
        LOCAL.with(|local| {
            local.polling.set(false);
            if local.noted.get()
                && let Some(deferral) = local.deferral.take()
            {
                preempt::ends_deferring();
                drop(deferral);
            }
        });
    }

    /// The poll is over: what its charge and the switch must know, if that is anything.
    #[inline]
    pub(crate) fn end_task(&self) -> Option<PollNotes> {
        LOCAL.with(|local| {
            local.polling.set(false);
            local.noted.get().then(|| local.take_notes())
        })
    }
}
