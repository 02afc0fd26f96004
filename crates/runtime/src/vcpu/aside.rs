//! Tasks that are picked and not polled: those whose group has as many long polls as it may have (`preempt::parts`) wait before their
//! poll, and those of a virtual CPU beyond the processors that there are wait for it (rule 8).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::{Enqueue, Gates, Nanos};

use super::switch::{enqueue, settle};
use super::{Leave, Vcpu};
use crate::gates::{RunQueue, RuntimeGates};
use crate::preempt::Preempting;
use crate::queue_lock::QueueGuard;
use crate::shared::{OPEN, Shared, VcpuShared};
use crate::task_context::Task;

/// What becomes of a picked task, and of its run queue's lock.
pub(super) enum Aside<'a> {
    /// It is polled.
    Poll(QueueGuard<'a>, Task),
    /// Another one is chosen.
    Choose(Option<QueueGuard<'a>>),
    /// Nobody is: the turn is over.
    Leave(Leave),
}

/// Whether any group can have its part.
#[inline]
pub(super) fn is_filling(shared: &Shared) -> bool {
    let preempting = shared.preempt.as_ref();
    preempting.is_some_and(Preempting::may_keep_back)
}

impl Vcpu {
    /// A task was picked while groups may have their part of long polls, or while there are more virtual CPUs than processors for them (`crowded`):
    /// whether it is polled all the same. `looked`: whether this turn has looked for work of who is stuck.
    #[cold]
    #[inline(never)]
    pub(super) fn look_aside<'a>(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        (mut queue, task): (QueueGuard<'a>, Task),
        crowded: bool,
        looked: &mut bool,
        now: Nanos,
    ) -> Aside<'a> {
        let Some(mut task) = self.keep_back(shared, &mut queue, task, now) else {
            return Aside::Choose(Some(queue));
        };
        let beyond = crowded && shared.is_beyond_its_right(self.index, &mut task, now);
        if crowded {
            me.stood_back.store(beyond, Ordering::Relaxed);
        }
        if !beyond {
            return Aside::Poll(queue, task);
        }
        queue.put_prev_preempt(task, now);
        queue.publish();
        self.waiting = queue.nr_queued();
        drop(queue);
        if !std::mem::replace(looked, true) && self.take_from_stuck(shared, now) {
            return Aside::Choose(None);
        }
        Aside::Leave(self.stand_back(shared, now))
    }

    /// Rule 8: what waits here must wait.
    #[cold]
    fn stand_back(&mut self, shared: &Arc<Shared>, now: Nanos) -> Leave {
        if self.is_stand_in() && self.index - shared.regular >= shared.stand_ins_wanted(now) {
            return self.end_turn(shared, false, now);
        }
        if RuntimeGates::events() {
            shared.log.leave(self.index, now);
        }
        self.slept_at = Some(now);
        Leave::Sleep
    }

    /// Lets a picked task through to its poll, or keeps it back.
    fn keep_back(
        &mut self,
        shared: &Shared,
        queue: &mut RunQueue<Task>,
        mut task: Task,
        now: Nanos,
    ) -> Option<Task> {
        let Some(preempting) = &shared.preempt else {
            return Some(task);
        };
        let owned = task.owned_mut();
        // Others wait for what it holds, or for the end of what it stands for.
        let is_waited_for = owned.bearer().is_some() || owned.deferral().is_some();
        if is_waited_for
            || shared.phase() != OPEN
            || !preempting.has_used_its_part(&owned.group)
            || task.is_aborted()
        {
            return Some(task);
        }
        let owned = task.owned_mut();
        let group = owned.group.clone();
        // The entity leaves the queue before another thread may see the token.
        settle(queue, owned, now);
        match group.keep_back(task) {
            Ok(is_new) => {
                self.short_tasks = self.short_tasks.saturating_sub(1);
                preempting.keeps_back(shared, &group, is_new);
            }
            Err(task) => enqueue(queue, task, Enqueue::Wake, now),
        }
        None
    }
}
