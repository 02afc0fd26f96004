//! Rule 8 of `vcpu`, as far as it is about all virtual CPUs: what may be polled when more of them could than there are processors for.
//!
//! Who stands back sleeps with tasks in its queue, which nobody else's sleep does. It gets up again because (1) the watch wakes it at each
//! look, a tick apart, and the tick thread does not park while anybody stands back: the sleeper announces its sleep and then looks
//! whether the thread is parked, the thread says that it parks and then looks who stands back, all sequentially consistent; (2) who
//! runs out of work relieves it; (3) whatever wakes others wakes it. It goes on at last, because debts are finite and polls in progress
//! pay them, and because polls that do not compute do not count.
//!
//! What polls in progress have had is processor time of their threads, from when the watch has seen them first, and not wall time: on a
//! busy machine threads wait for processors longer than they have them.

use std::sync::atomic::Ordering;

use quotient_core::Nanos;

use crate::shared::{OPEN, Shared, VcpuShared};
use crate::task_context::Task;
use crate::watch::STUCK;

impl Shared {
    /// Whether there are stand-ins, so that more virtual CPUs may poll than there are processors for. One load.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.futures() > self.regular && self.preempt.is_none()
    }

    /// Whether those that compute are as many as there are processors for, once `vcpu` polls what it has: then who stands back or
    /// has nothing is not to be woken for the rest. It would take a part, and perhaps the part that has a right.
    pub(crate) fn is_full(&self, vcpu: usize, now: Nanos) -> bool {
        self.is_crowded() && self.computing(vcpu, now).0 + 1 >= self.regular
    }

    /// Whether a virtual CPU stands back: it sleeps although tasks wait in its queue.
    pub(crate) fn stands_back(&self, vcpu: usize) -> bool {
        let other = &self.vcpus[vcpu];
        other.park.is_sleeping()
            && other.online.load(Ordering::Relaxed)
            && self.loads[vcpu].nr_queued() > 0
    }

    /// Whether `task` must wait although `vcpu` has chosen it: as many others compute as there are processors for, and its group, or
    /// one above it, has had more than its share, what the polls in progress take counted. They pay its debt as they go on, so
    /// that nobody waits for ever behind polls that do not end.
    #[cold]
    pub(crate) fn is_beyond_its_right(&self, vcpu: usize, task: &mut Task, now: Nanos) -> bool {
        if self.phase() != OPEN || self.host_end.is_ending() {
            // Whoever is still there is to end.
            return false;
        }
        let (others, lasted) = self.computing(vcpu, now);
        others >= self.regular
            && !task.is_aborted()
            && !task.owned_mut().queued_in().core.is_level_after(lasted)
    }

    /// How many others than `vcpu` compute, and how long their polls have lasted by now, together. Whoever is between two polls counts,
    /// or each that returns from one would let somebody in who has no right; but not who has stood back and looks again, or two
    /// would keep each other from a processor that is free.
    fn computing(&self, vcpu: usize, now: Nanos) -> (usize, Nanos) {
        let (mut count, mut lasted) = (0, Nanos::ZERO);
        for (index, other) in self.used_vcpus().iter().enumerate() {
            if index == vcpu {
                continue;
            }
            let since = other.polling_since.load(Ordering::Relaxed);
            if since == 0 {
                if self.is_between_polls(index) {
                    count += 1;
                    let absent = other.absent.load(Ordering::Relaxed);
                    if absent != 0 {
                        lasted = lasted.saturating_add(now.saturating_sub(Nanos(absent - 1)));
                    }
                }
            } else if !self.is_blocked(index) {
                count += 1;
                lasted = lasted.saturating_add(self.computed(other, since, now));
            }
        }
        (count, lasted)
    }

    /// What the poll that began at `since` has had of a processor, at least: less the first milliseconds, until the watch saw it. By
    /// wall time where threads have no clocks for others.
    fn computed(&self, other: &VcpuShared, since: u64, now: Nanos) -> Nanos {
        let wall = now.saturating_sub(Nanos(since - 1));
        if other.lasting.load(Ordering::Acquire) != since {
            return wall.min(STUCK);
        }
        let from = other.lasting_from.load(Ordering::Relaxed);
        match processor_time(other.thread.load(Ordering::Relaxed)) {
            Some(time) => wall.min(Nanos(time.wrapping_sub(from))),
            None => wall,
        }
    }

    /// The watch sees a poll that lasts.
    pub(crate) fn note_lasting(&self, vcpu: usize, since: u64) {
        let other = &self.vcpus[vcpu];
        if other.lasting.load(Ordering::Relaxed) == since || self.preempt.is_some() {
            return;
        }
        let time = processor_time(other.thread.load(Ordering::Relaxed)).unwrap_or(0);
        other.lasting_from.store(time, Ordering::Relaxed);
        other.lasting.store(since, Ordering::Release);
    }

    fn is_between_polls(&self, vcpu: usize) -> bool {
        let other = &self.vcpus[vcpu];
        other.online.load(Ordering::Relaxed)
            && !other.park.is_sleeping()
            && !other.stood_back.load(Ordering::Relaxed)
            && self.has_work(vcpu)
    }
}

impl Shared {
    /// Processor time of the thread that made a virtual CPU's last turn; 0 where that is not to be known.
    pub(crate) fn processor_time_of(&self, vcpu: usize) -> Nanos {
        let thread = self.vcpus[vcpu].thread.load(Ordering::Relaxed);
        Nanos(processor_time(thread).unwrap_or(0))
    }
}

/// Processor time of a thread of this process, by the kernel's number. Unit: nanoseconds.
fn processor_time(thread: u32) -> Option<u64> {
    let thread = i32::try_from(thread).ok().filter(|thread| *thread != 0)?;
    let time = quotient_pause::thread_cpu_time(thread)?;
    u64::try_from(time.as_nanos()).ok()
}
