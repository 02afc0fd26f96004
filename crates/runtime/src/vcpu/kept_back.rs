//! Tasks whose group has as many long polls as it may have (`preempt::parts`): they wait before their poll.

use quotient_core::{Enqueue, Nanos};

use super::Vcpu;
use super::switch::{admit_to_poll, enqueue, settle};
use crate::gates::RunQueue;
use crate::preempt::Preempting;
use crate::shared::{OPEN, Shared};
use crate::task_context::Task;

/// Whether any group can have its part.
#[inline]
pub(super) fn is_filling(shared: &Shared) -> bool {
    let preempting = shared.preempt.as_ref();
    preempting.is_some_and(Preempting::may_keep_back)
}

impl Vcpu {
    /// Lets a picked task through to its poll, or puts it where it belongs; `filling`: its group may have its part.
    #[inline(always)]
    pub(super) fn let_through(
        &mut self,
        shared: &Shared,
        queue: &mut RunQueue<Task>,
        task: Task,
        filling: bool,
        now: Nanos,
    ) -> Option<Task> {
        let task = admit_to_poll(queue, task, now)?;
        if filling {
            self.keep_back(shared, queue, task, now)
        } else {
            Some(task)
        }
    }

    /// ... or keeps it back.
    #[cold]
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
