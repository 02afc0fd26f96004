//! Who asks virtual CPUs to look through their queues: for tasks that a limit keeps back and that were lent a place elsewhere or moved away, and for the dead. What
//! they do then is `vcpu::release`.
//!
//! # How often a virtual CPU is woken for that
//! Who asks says so (`has_releases`), and wakes the virtual CPU, or ends its nap beside a long poll; but if that had looked for all of them within [`RELEASE_EVERY`], the
//! tick thread does, at its first look after that. So the virtual CPU does not look before it sleeps then, nor does the request end a turn that begins. Nobody is
//! missed: the request is made, then a fence, then a look whether the tick thread parks; that looks for requests at each tick, ticks for as long as there are any (every millisecond), and, after
//! it has said that it parks and a fence, once more. (Without that, a poll that moved tasks to and fro which wait
//! in a group without budget ended each turn and sleep of all virtual CPUs that keep one of them back, 14,000 times a second: under a limit of 0.1 CPUs the
//! process used 0.31 to 0.54.)

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use quotient_core::Nanos;

use super::{Shared, VcpuShared};
use crate::group::GroupShared;

/// So often a virtual CPU is woken for tasks that are to be queued anew. Unit: nanoseconds. 1 ms, a tick: to end a turn costs some 30 us that nobody pays for.
const RELEASE_EVERY: Nanos = Nanos::from_millis(1);

impl VcpuShared {
    /// Whether it is to look for tasks that are to be queued anew, and had not looked for all of them lately. Reads the clock only where somebody asks.
    pub(crate) fn is_to_release(&self, now: impl FnOnce() -> Nanos) -> bool {
        let released_at = Nanos(self.released_at.load(Ordering::Relaxed));
        self.has_releases.load(Ordering::Relaxed)
            && now() >= released_at.saturating_add(RELEASE_EVERY)
    }

    /// Whether it is to look for such tasks or for the dead, which it does between two of its turns.
    pub(crate) fn is_to_search(&self, now: Nanos) -> bool {
        let dying_at = self.dying_at.load(Ordering::Relaxed);
        dying_at != 0 && dying_at <= now.as_nanos() || self.is_to_release(|| now)
    }
}

impl Shared {
    /// Whether anything waits in the queue of `vcpu` or is kept back there. (Who is queued after this look, and who has its turn and is put back, finds all that was
    /// marked before it: both look at the mark under the queue's lock.)
    pub(crate) fn may_keep_back(&self, vcpu: usize) -> bool {
        let queue = self.vcpus[vcpu].queue.try_lock();
        queue.is_none_or(|queue| queue.nr_queued() > 0 || queue.nr_throttled() > 0)
    }

    /// Asks a virtual CPU to take tasks of `group` that were lent a place elsewhere, or moved to another group, out of its queue: now, or within two
    /// milliseconds if it has done so just now. O(1).
    pub(crate) fn ask_to_release(&self, vcpu: usize, group: &Arc<GroupShared>) {
        let me = &self.vcpus[vcpu];
        me.releases.ask(group);
        me.has_releases.store(true, Ordering::Release);
        let now = self.now();
        if me.is_to_release(|| now) {
            self.wake_vcpu(vcpu);
        } else {
            fence(Ordering::SeqCst);
            self.tick.run();
            // Later than it is due, so that a thread that ticks that often anyway is not told each time.
            self.tick.look_by(now.saturating_add(RELEASE_EVERY));
        }
    }

    /// As [`Shared::ask_to_release`], of the group's dead: when they may go.
    fn ask_for_the_dead(&self, vcpu: usize, group: &Arc<GroupShared>) {
        let me = &self.vcpus[vcpu];
        me.dying.ask(group);
        let now = self.now();
        let at = now.saturating_add(group.dead_wait_for(now)).as_nanos();
        let sooner = |known: u64| (known == 0 || at < known).then_some(at);
        let _ = me
            .dying_at
            .fetch_update(Ordering::Release, Ordering::Relaxed, sooner);
        self.look_at_searches(vcpu, now);
    }

    /// Whether a virtual CPU has such a search before it; wakes it if that is due.
    fn look_at_searches(&self, vcpu: usize, now: Nanos) -> bool {
        let me = &self.vcpus[vcpu];
        if me.is_to_search(now) {
            self.wake_vcpu(vcpu);
        }
        me.dying_at.load(Ordering::Relaxed) != 0 || me.has_releases.load(Ordering::Relaxed)
    }

    /// The tick thread: wakes those whose search is due. Whether there are any.
    pub(crate) fn look_at_all_searches(&self, now: Nanos) -> bool {
        let mut any = false;
        for vcpu in 0..self.slots_in_use() {
            any |= self.look_at_searches(vcpu, now);
        }
        any
    }

    /// L2 of `group::shared`: a group with tasks that were aborted while its limit may keep them back.
    pub(crate) fn list_dying(&self, group: Arc<GroupShared>) {
        self.dying
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
            .push(group);
        self.has_dying.store(true, Ordering::SeqCst);
        self.tick.run();
    }

    /// Whether the tick thread has to ask for such tasks.
    pub(crate) fn has_dying(&self) -> bool {
        self.has_dying.load(Ordering::SeqCst)
    }

    /// L3 of `group::shared`, by the tick thread. O(groups with such tasks x virtual CPUs).
    pub(crate) fn let_go_of_the_dead(&self) {
        if !self.has_dying() {
            return;
        }
        self.has_dying.store(false, Ordering::SeqCst);
        let dying = std::mem::take(
            &mut *self
                .dying
                .lock()
                .unwrap_or_else(|poison| poison.into_inner()),
        );
        for group in dying {
            group.unlist_dying();
            for (index, vcpu) in self.used_vcpus().iter().enumerate() {
                if vcpu.online.load(Ordering::Relaxed) {
                    self.ask_for_the_dead(index, &group);
                }
            }
        }
    }
}
