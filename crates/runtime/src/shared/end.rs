//! How a scheduler ends.
//!
//! `phase` only grows. `OPEN -> CLOSING`: spawns are refused, every live task is aborted, so that the virtual CPUs drop the
//! futures. `CLOSING -> CLOSED`: no virtual CPU is left (they ended because no task lives, or the host dropped them); inboxes
//! are closed, what waits is cancelled on the spot, and so is what comes later, though not inside of whoever brings it (`last_rites`).

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{CLOSED, CLOSING, OPEN, Shared};
use crate::group::finish_removals;
use crate::local_tasks;
use crate::loss::{ENDED, Loss};
use crate::task_context::TaskRef;

impl Shared {
    /// Refuses spawns from now on and aborts every live task. Idempotent. O(tasks).
    pub(crate) fn close(self: &Arc<Self>) {
        // Until the rings of local tasks are queued nobody takes the scheduler for one in which nothing lives.
        self.task_began();
        let _ = self
            .phase
            .compare_exchange(OPEN, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        // Before their gates' members, whose end lets a future go on that was not told.
        let dropped = (Loss::DroppedTask, ENDED);
        local_tasks::end(self, self.local_tasks.tell(|_| true), dropped, false);
        self.task_ended();
        for group in self.all_groups() {
            group.count_dropped(self);
            group.abort_own(self);
            // Nobody is left to be limited, and a throttled task must run its destructor now. It cannot fail: no limit is valid.
            let _ = group.core.set_limit(None, self.now(), &mut |_| {});
        }
        self.end_functions();
        self.wake_everybody();
    }

    /// What has not begun of blocking functions never will.
    fn end_functions(self: &Arc<Self>) {
        if let Some(preempting) = &self.preempt {
            preempting.end_functions(self, &self.all_groups(), Loss::DroppedTask, ENDED);
        }
    }

    /// Nothing lives and nobody can spawn any more: the virtual CPUs end. Once true it stays true.
    pub(crate) fn may_end(&self) -> bool {
        (self.phase() != OPEN || self.handle_count.load(Ordering::Acquire) == 0) && self.live() == 0
    }

    /// A task is about to be listed in a group.
    pub(crate) fn task_began(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    /// A task with timers on its clock has ended. For any thread: the tick thread wakes who waits.
    #[cold]
    pub(crate) fn task_with_timers_ended(&self, task: &TaskRef) {
        if self.cpu_timers.task_ended(task) {
            self.tick.hurry();
        }
    }

    /// A task's future was dropped and its output stored.
    pub(crate) fn task_ended(&self) {
        if self.live.fetch_sub(1, Ordering::AcqRel) == 1 && self.may_end() {
            self.wake_everybody();
        }
    }

    /// One more future of a virtual CPU exists; false, and none may be made, once the last one has gone.
    pub(crate) fn future_began(&self) -> bool {
        let one_more = |count: usize| (count > 0).then_some(count + 1);
        let began = self
            .futures
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        began.is_ok()
    }

    /// Futures of virtual CPUs that exist.
    pub(crate) fn futures(&self) -> usize {
        self.futures.load(Ordering::Relaxed)
    }

    /// The host dropped the future of a virtual CPU (it ended, or the host's runtime shuts down).
    pub(crate) fn future_ended(self: &Arc<Self>, vcpu: usize) {
        self.vcpus[vcpu].online.store(false, Ordering::Release);
        self.idle.remove_if_there(vcpu);
        self.future_gone();
    }

    /// A future of a virtual CPU is gone, or what had a share in their number: with the last one the scheduler ends.
    pub(crate) fn future_gone(self: &Arc<Self>) {
        if self.futures.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        // Before anybody can find the phase or an inbox closed: what comes from here on is brought to this thread.
        let rites = self.last_rites.begin();
        self.phase.store(CLOSED, Ordering::Release);
        self.tick.stop();
        self.host.close();
        if let Some(preempting) = &self.preempt {
            preempting.close();
        }
        for group in self.all_groups() {
            group.count_dropped(self);
        }
        for vcpu in 0..self.vcpus.len() {
            if let Some((task, _)) = self.vcpus[vcpu].next.seize() {
                task.cancel();
            }
            for arrival in self.vcpus[vcpu].inbox.close() {
                arrival.task.cancel();
            }
            for detached in self.drain_queue(vcpu) {
                detached.handle.cancel();
            }
        }
        // Sleeping tasks: the abort queues each, finds every inbox closed, and so brings it here.
        for group in self.all_groups() {
            group.abort_own(self);
        }
        rites.end();
        self.end_functions();
        // Groups that wait for the tick thread to give them up leave what they keep.
        finish_removals(self);
        // C2 and C3 of `estates`.
        fence(Ordering::SeqCst);
        self.settle_estates();
        self.cpu_timers.close();
        self.ring_watches_apart();
        self.alarms.close();
        if let Some(preempting) = &self.preempt {
            preempting.ring_rest(self);
        }
        self.ended.notify_waiters();
    }

    /// The scheduler has ended, destructors of its tasks, of functions that never began and of what groups have left included (but for the one that asks).
    pub(crate) fn has_ended(&self) -> bool {
        let functions_are_dropped = || {
            let preempting = self.preempt.as_ref();
            preempting.is_none_or(|preempting| preempting.has_buried_all())
        };
        self.phase() == CLOSED
            && self.last_rites.are_over()
            // Before what it is handed on to.
            && self.estates.are_settled()
            && functions_are_dropped()
    }

    /// Whoever waits for the end looks whether that was all.
    pub(crate) fn function_was_dropped(&self) {
        self.ended.notify_waiters();
    }
}
