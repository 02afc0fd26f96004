//! Who cannot look at its queues, what waits there, and how many others should come instead.

use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;
use quotient_core::Nanos;

use super::{Shared, VcpuShared};
use crate::watch::{SPARE_AFTER, STUCK};

impl Shared {
    /// How many slots have to be looked at: in the others there was never anybody. Who has published something on a virtual CPU, and passed
    /// a fence, is seen by who passes one later, as is what was published.
    #[inline]
    pub(crate) fn slots_in_use(&self) -> usize {
        self.slots_in_use.load(Ordering::Relaxed)
    }

    /// Every virtual CPU that there ever was.
    #[inline]
    pub(crate) fn used_vcpus(&self) -> &[CachePadded<VcpuShared>] {
        &self.vcpus[..self.slots_in_use()]
    }

    /// A stand-in is about to begin in a slot.
    pub(crate) fn use_slot(&self, vcpu: usize) {
        self.slots_in_use.fetch_max(vcpu + 1, Ordering::SeqCst);
    }

    /// Whether a virtual CPU cannot look at its queues for a while: it blocks in place, is in a poll longer than [`STUCK`], has
    /// waited that long for the host to poll it, or went with the host's runtime.
    pub(crate) fn is_stuck(&self, vcpu: usize, now: Nanos) -> bool {
        self.is_stuck_for(vcpu, STUCK, now) || self.is_gone(vcpu)
    }

    fn is_stuck_for(&self, vcpu: usize, time: Nanos, now: Nanos) -> bool {
        let vcpu = &self.vcpus[vcpu];
        let reached = |since: u64| since != 0 && now.saturating_sub(Nanos(since - 1)) >= time;
        // A worker that polls what gates let through does the groups' work: somebody else would only let more through.
        let absent = match vcpu.absent.load(Ordering::Relaxed) {
            0 => 0,
            since => since.max(vcpu.gated_at.load(Ordering::Relaxed)),
        };
        vcpu.blocked.load(Ordering::Relaxed)
            || reached(vcpu.polling_since.load(Ordering::Relaxed))
            || reached(absent)
    }

    /// Whether a regular virtual CPU has ended, or went with the host's runtime.
    fn is_gone(&self, vcpu: usize) -> bool {
        vcpu < self.regular && !self.vcpus[vcpu].online.load(Ordering::Relaxed)
    }

    /// Whether a virtual CPU is stuck without use of a processor: its poll said so, or was seen to sleep in the kernel.
    pub(crate) fn is_blocked(&self, vcpu: usize) -> bool {
        let vcpu = &self.vcpus[vcpu];
        let since = vcpu.polling_since.load(Ordering::Relaxed);
        since != 0
            && (vcpu.blocked.load(Ordering::Relaxed)
                || vcpu.asleep.load(Ordering::Relaxed) == since)
    }

    /// Whether anything waits at a virtual CPU, for itself or for whoever takes its place.
    pub(crate) fn has_work(&self, vcpu: usize) -> bool {
        let other = &self.vcpus[vcpu];
        self.loads[vcpu].nr_queued() > 0
            || other.inbox.len() > 0
            || other.next.is_filled()
            || self.loads[vcpu].has_unthrottles()
            || other.has_releases.load(Ordering::Relaxed)
    }

    /// How many stand-ins there should be: one for each virtual CPU that blocks, whose processor is free then; and one spare when
    /// every regular one has been stuck for [`SPARE_AFTER`]. None while nobody drives the host. Those that went with the host's
    /// runtime are missed only by polls that block: what is left is dropped with the last virtual CPU otherwise.
    pub(crate) fn stand_ins_wanted(&self, now: Nanos) -> usize {
        if !self.is_driven() {
            return 0;
        }
        let blocked = (0..self.slots_in_use())
            .filter(|vcpu| self.is_blocked(*vcpu))
            .count();
        let missed = blocked > 0 || self.handed_over.any();
        // What the end of the host's runtime keeps from its turns is about to go, and what waits goes with it.
        let lasting = missed || !self.host_end.is_ending();
        let spare = lasting
            && (0..self.regular).all(|vcpu| {
                self.is_blocked(vcpu)
                    || self.is_stuck_for(vcpu, SPARE_AFTER, now)
                    || missed && self.is_gone(vcpu)
            });
        (blocked + usize::from(spare)).min(self.vcpus.len() - self.regular)
    }

    /// The inbox of a virtual CPU that is in a poll, or stuck, has something for an idle one.
    pub(crate) fn has_offers(&self, except: usize, now: Nanos) -> bool {
        self.used_vcpus().iter().enumerate().any(|(index, other)| {
            index != except
                && other.inbox.len() > 0
                && (other.polling_since.load(Ordering::Relaxed) != 0 || self.is_stuck(index, now))
        })
    }

    /// Whether the host's runtime runs: a multi-thread one does, a current-thread one is known to while a regular virtual CPU is in a
    /// poll. (It may be that its thread is in another task; from outside that looks as if its `block_on` had returned.) One that
    /// ends counts as driven, for what is left to be dropped.
    pub(crate) fn is_driven(&self) -> bool {
        let polls =
            |vcpu: &CachePadded<VcpuShared>| vcpu.polling_since.load(Ordering::Relaxed) != 0;
        !self.by_hand || self.vcpus[..self.regular].iter().any(polls) || self.host_end.is_ending()
    }
}
