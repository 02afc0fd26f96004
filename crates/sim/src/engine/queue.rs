//! What a CPU chooses from: the scheduler core's run queue, or another policy in its place.

use super::state::RunQueue;
use crate::policy::{Candidate, Plugin, Policy};
use quotient_core::{
    CpuId, CpuLoad, Detached, Enqueue, Group, GroupTree, Nanos, Pull, TaskEntity, Violation,
};
use std::sync::Arc;

/// One CPU's run queue. Where another policy decides, the core's is empty and asked for nothing that matters: there are no limits then,
/// and nothing is noted for the balancer.
pub(crate) struct Queue {
    core: RunQueue,
    other: Option<Box<Other>>,
}

/// Another policy, and who runs by it.
struct Other {
    policy: Box<dyn Policy>,
    /// Who was picked, and since when.
    current: Option<(u32, Nanos)>,
    /// Every task that is here, by number: what is told of it when it is put back.
    known: std::collections::BTreeMap<u32, Candidate>,
}

impl Other {
    fn put(&mut self, wants_more: bool, now: Nanos) {
        let Some((task, since)) = self.current.take() else {
            return;
        };
        if let Some(candidate) = self.known.get(&task).copied() {
            if !wants_more {
                self.known.remove(&task);
            }
            self.policy.put(candidate, now - since, wants_more, now);
        }
    }

    fn pick(&mut self, now: Nanos) -> Option<u32> {
        let task = self.policy.pick(now)?;
        self.current = Some((task, now));
        Some(task)
    }

    fn running(&self) -> usize {
        self.policy.waiting() + usize::from(self.current.is_some())
    }
}

impl Queue {
    pub(crate) fn new(tree: &GroupTree, cpu: u32, plugin: Option<Plugin>) -> Queue {
        Queue {
            core: RunQueue::with_gates(tree, CpuId(cpu)),
            other: plugin.map(|plugin| {
                Box::new(Other {
                    policy: (plugin.make)(cpu),
                    current: None,
                    known: std::collections::BTreeMap::new(),
                })
            }),
        }
    }

    pub(crate) fn cpu(&self) -> CpuId {
        self.core.cpu()
    }

    pub(crate) fn load(&self) -> &Arc<CpuLoad> {
        self.core.load()
    }

    #[inline]
    pub(crate) fn nr_running(&self) -> usize {
        match &self.other {
            None => self.core.nr_running(),
            Some(other) => other.running(),
        }
    }

    /// What competes in a group's own queue here. Other policies know no groups: all that runs here.
    pub(crate) fn nr_entities(&self, group: &Arc<Group>) -> usize {
        match &self.other {
            None => self.core.nr_entities(group),
            Some(other) => other.running(),
        }
    }

    #[inline]
    pub(crate) fn nr_queued(&self) -> usize {
        match &self.other {
            None => self.core.nr_queued(),
            Some(other) => other.policy.waiting(),
        }
    }

    /// Tasks that wait, and those that wait or run.
    #[inline]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.nr_queued(), self.nr_running())
    }

    /// A task of the core's. Returns whether the current one shall give way.
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        group: &Arc<Group>,
        entity: TaskEntity,
        task: u32,
        kind: Enqueue,
        now: Nanos,
    ) -> bool {
        debug_assert!(self.other.is_none());
        self.core.enqueue(group, entity, task, kind, now)
    }

    /// A task of the core's that was detached at this moment and may not go.
    pub(crate) fn take_back(&mut self, task: Detached<u32>, is_bound: bool, now: Nanos) {
        debug_assert!(self.other.is_none());
        if is_bound {
            self.core.take_back_bound(task, now);
        } else {
            self.core.take_back(task, now);
        }
    }

    /// The same for another policy.
    #[cold]
    pub(crate) fn admit(&mut self, candidate: Candidate, now: Nanos) -> bool {
        self.other.as_mut().is_some_and(|other| {
            other.known.insert(candidate.task, candidate);
            other.policy.enqueue(candidate, now)
        })
    }

    #[inline]
    pub(crate) fn pick(&mut self, now: Nanos) -> Option<u32> {
        match &mut self.other {
            None => self.core.pick(now),
            Some(other) => other.pick(now),
        }
    }

    #[inline]
    pub(crate) fn take_pull(&mut self) -> Option<Pull> {
        self.core.take_pull()
    }

    pub(crate) fn refuse_pull(&mut self, pull: &Pull) {
        self.core.refuse_pull(pull);
    }

    #[inline]
    pub(crate) fn put_prev_preempt(&mut self, task: u32, now: Nanos) {
        match &mut self.other {
            None => self.core.put_prev_preempt(task, now),
            Some(other) => other.put(true, now),
        }
    }

    pub(crate) fn put_prev_yield(&mut self, task: u32, now: Nanos) {
        match &mut self.other {
            None => self.core.put_prev_yield(task, now),
            Some(other) => other.put(true, now),
        }
    }

    /// Returns what the task keeps; nothing where another policy decides.
    #[inline]
    pub(crate) fn put_prev_sleep(&mut self, now: Nanos) -> Option<TaskEntity> {
        self.put_prev_away(now, RunQueue::put_prev_sleep)
    }

    /// As that, of one that goes to another CPU.
    pub(crate) fn put_prev_move(&mut self, now: Nanos) -> Option<TaskEntity> {
        self.put_prev_away(now, RunQueue::put_prev_move)
    }

    /// As that, of a task that has ended.
    #[inline]
    pub(crate) fn put_prev_exit(&mut self, now: Nanos) -> Option<TaskEntity> {
        self.put_prev_away(now, RunQueue::put_prev_exit)
    }

    #[inline]
    fn put_prev_away(
        &mut self,
        now: Nanos,
        by_core: impl FnOnce(&mut RunQueue, Nanos) -> Option<TaskEntity>,
    ) -> Option<TaskEntity> {
        match &mut self.other {
            None => by_core(&mut self.core, now),
            Some(other) => {
                other.put(false, now);
                None
            }
        }
    }

    #[inline]
    pub(crate) fn charge(&mut self, now: Nanos) {
        if self.other.is_none() {
            self.core.charge(now);
        }
    }

    /// Whether the current task shall give way, as of a tick.
    #[inline]
    pub(crate) fn should_resched(&mut self, now: Nanos) -> bool {
        match &mut self.other {
            None => self.core.should_resched(now),
            Some(other) => other
                .current
                .is_some_and(|(_, since)| other.policy.tick(now - since, now)),
        }
    }

    /// Takes up to `request.max` waiting tasks for CPU `to`.
    pub(crate) fn detach_to(
        &mut self,
        to: CpuId,
        request: &Pull,
        now: Nanos,
        out: &mut Vec<Detached<u32>>,
    ) {
        self.core.detach_to(to, request, now, out);
    }

    /// Shows the balancer that those that wait get nothing.
    pub(crate) fn look_around(&mut self, now: Nanos) {
        if self.other.is_none() {
            self.core.look_around(now);
        }
    }

    /// Shows the balancer the tasks that wait, after the current one was put back and none chosen.
    pub(crate) fn publish(&self) {
        self.core.publish();
    }

    /// Takes one waiting task of another policy's.
    pub(crate) fn give(&mut self) -> Option<Candidate> {
        let other = self.other.as_mut()?;
        let task = other.policy.give()?;
        other.known.remove(&task)
    }

    /// Takes everything that waits, what limits keep back included.
    pub(crate) fn drain(&mut self, now: Nanos, out: &mut Vec<Detached<u32>>) {
        self.core.drain(None, now, out);
    }

    pub(crate) fn unthrottle_pending(&mut self, now: Nanos) -> bool {
        self.core.unthrottle_pending(now)
    }

    #[inline]
    pub(crate) fn runtime_left(&self, now: Nanos) -> Option<Nanos> {
        self.core.runtime_left(now)
    }

    #[inline]
    pub(crate) fn defer_current(&mut self, defer: bool) {
        self.core.defer_current(defer);
    }

    pub(crate) fn is_throttled_itself(&self, group: &Arc<Group>) -> bool {
        self.core.is_throttled_itself(group)
    }

    pub(crate) fn check(&self) -> Result<(), Violation> {
        self.core.check()
    }
}
