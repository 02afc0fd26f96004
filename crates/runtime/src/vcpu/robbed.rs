//! What others take of a virtual CPU's processor, and what follows from that for who runs on it.
//!
//! Other programs, or a hypervisor, take a processor in the middle of polls, so that the run queue learns of it when it is over. Each poll's bill knows what
//! of its time was taken; over [`WINDOW`] that is this virtual CPU's part, which the others can read ([`CpuLoad::publish_stolen`]).
//! Where it is a good part, and a turn has just lost [`TAKEN_MIN`] or more, the run queue is asked at its end whether who ran should run elsewhere
//! (`RunQueue::faster_cpu`), and that task is handed over: it leaves the queue under its lock and is in the other's inbox as any that comes from
//! outside is, counted on the way. A virtual CPU that has nothing left searches as always. Not more often than each [`PAUSE`], so that
//! a task which whoever idles brings back does not go to and fro. For the same reason it pulls nobody for being owed something
//! from one that has more of its processor. (It brought back who was handed over at each moment in which that waited behind another one, 60 times
//! a second, and short sleepers with it, which waited for others' slices then: 2 to 7 ms in a hundredth of the time.)
//!
//! [`CpuLoad::publish_stolen`]: quotient_core::CpuLoad::publish_stolen

use std::sync::atomic::Ordering;

use quotient_core::{Detached, Enqueue, Nanos};

use super::Vcpu;
use super::migrate::{leaves_its_choice, on_its_way};
use crate::inbox::give_back;
use crate::shared::{OPEN, Shared};
use crate::task_context::Task;

/// Over so much time what is taken is added up. Unit: nanoseconds. 20 ms, some slices of whoever else has the processor.
const WINDOW: Nanos = Nanos::from_millis(20);
/// A turn that lost less is no reason to look. Unit: nanoseconds. 500 us: two turns of a group.
const TAKEN_MIN: Nanos = Nanos(500_000);
/// Nor is it where less than this part of the processor goes to others, of 1,024. An eighth.
const PART_MIN: u32 = 128;
/// Between two that are handed over. Unit: nanoseconds. 5 ms, a slice of whoever else has the processor.
const PAUSE: Nanos = Nanos::from_millis(5);

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Robbed {
    /// What was taken since the window began, and since the last look at the end of a turn.
    in_window: Nanos,
    since_look: Nanos,
    window_at: Nanos,
    /// Of 1,024.
    part: u32,
    not_before: Nanos,
}

impl Robbed {
    /// A poll was without its processor for `time`, and did not sleep.
    pub(super) fn lost(&mut self, time: Nanos) {
        self.in_window = self.in_window.saturating_add(time);
        self.since_look = self.since_look.saturating_add(time);
    }

    /// Whether there is nothing to be brought up to date.
    #[inline(always)]
    fn is_idle(&self) -> bool {
        self.part == 0 && self.in_window == Nanos::ZERO
    }

    /// The part that is taken, if that is known anew.
    fn renewed(&mut self, now: Nanos) -> Option<u32> {
        let window = now.saturating_sub(self.window_at);
        if window < WINDOW {
            return None;
        }
        let taken = std::mem::take(&mut self.in_window).min(window);
        self.window_at = now;
        let part = taken.as_nanos().saturating_mul(1_024) / window.as_nanos().max(1);
        let part = u32::try_from(part).unwrap_or(1_024);
        // What was lately counts as much as all before, and a little is none.
        self.part = self.part.midpoint(part);
        Some(self.part)
    }
}

impl Vcpu {
    /// Whether `other` has a quarter more of its processor than this one: then who waits there and is owed something is better off than here, where it would wait for others'
    /// slices in the middle of its poll.
    #[inline]
    pub(super) fn is_robbed_more_than(&self, shared: &Shared, other: usize) -> bool {
        self.robbed.part >= PART_MIN && shared.loads[other].has_more_than(&shared.loads[self.index])
    }

    /// At the end of a turn, with tasks waiting here: hands over who should run elsewhere. Whether anybody was.
    #[inline]
    pub(super) fn hands_over_to_faster(&mut self, shared: &Shared, now: Nanos) -> bool {
        !self.robbed.is_idle() && self.look_for_faster(shared, now)
    }

    #[cold]
    #[inline(never)]
    fn look_for_faster(&mut self, shared: &Shared, now: Nanos) -> bool {
        let taken = std::mem::take(&mut self.robbed.since_look);
        if let Some(part) = self.robbed.renewed(now) {
            shared.loads[self.index].publish_stolen(part);
        }
        if taken < TAKEN_MIN
            || self.robbed.part < PART_MIN
            || now < self.robbed.not_before
            || shared.regular == 1
            || shared.phase() != OPEN
            || shared.is_crowded()
            || self.is_stand_in()
        {
            return false;
        }
        let loads = &shared.loads[..shared.slots_in_use()];
        let mut queue = shared.queue(self.index);
        let Some((to, pull)) = queue.faster_cpu(loads, now) else {
            return false;
        };
        self.robbed.not_before = now.saturating_add(PAUSE);
        self.detach_from(&mut queue, to, &pull, now);
        queue.publish();
        self.waiting = queue.nr_queued();
        drop(queue);
        let mut any = false;
        for detached in self.detached.drain(..) {
            any = true;
            send(shared, self.index, to.index(), detached);
        }
        give_back(&mut self.detached, 0);
        any
    }
}

/// What was detached from virtual CPU `from` goes to the inbox of `to`.
fn send(shared: &Shared, from: usize, to: usize, detached: Detached<Task>) {
    let mut task = on_its_way(detached);
    task.context().home.store(to as u16, Ordering::Relaxed);
    leaves_its_choice(shared, &mut task, from);
    if let Some(target) = shared.hand_in(task, Enqueue::Migrate) {
        shared.wake_vcpu(target);
    }
}
