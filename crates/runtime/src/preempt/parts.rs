//! How many of [`Preempt::max_borne`](crate::Preempt::max_borne) one group may have.
//!
//! Beyond `max_borne` a poll that does not return keeps its virtual CPU, and everybody waits behind it. So a tenant with hundreds of polls
//! that block must not come to that: while its group has used its part, its tasks are *kept back* before their polls, and wait for the end
//! of one that is borne.
//!
//! # The part
//! Let `room` be what is left of `max_borne` for all, less one place for each virtual CPU and stand-in: so many polls may be in progress when
//! a part is found used up, and become long all the same. A group has used its part with [`SHARE`] times `room`: alone it gets seven
//! eighths, of `n` that take all they can each gets `7 / (1 + 7 n)`, and who has none may always have one. Nobody says how many groups
//! there are, and nothing is set aside for those that never need it. (The rule is that of shared packet buffers: A. K. Choudhury, E. L. Hahne,
//! "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6 (2), 1998.) What is below a
//! group counts for it, too: a tenant gains nothing by a hundred groups. The root group has no part but that of its own tasks.
//! With fewer places than twice the virtual CPUs and stand-ins nobody is kept back: processors would be left idle.
//!
//! # Who counts
//! A group bears a poll from the step that puts the proxy into the poll's place to the step that takes the proxy out. Both are a carrier's,
//! between polls. Who holds a lock of the scheduler's, was aborted, or stands for a borne poll is never kept back.
//!
//! # Nobody is kept for ever
//! Whoever keeps a task back: (K1) puts it with the tokens that the group keeps, under their lock; (K2) lists the group, if it was not; (K3) makes
//! sure that the tick thread looks. Who ends a long poll: (R1) counts it out; (R2) sees whether a group is listed, under the list's lock, and
//! makes the tick thread look. If R2 misses K2, R1 is before K2 and the look of K3 knows of it. That look lets go of as many tasks as there
//! is room for an eighth of, one at least where there is any, so that those which only want short polls all come, and a thousand that block do
//! not come at once to be sent away again. An abort marks its task and looks for the token (`GroupShared::let_go`), past a fence; K1 says that
//! the group keeps some, passes one, and looks for the mark.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Preempting, lock};
use crate::group::GroupShared;
use crate::shared::{OPEN, Shared};

/// How often what is left for all a group may have. Default 7: a group alone leaves an eighth to those who come later.
const SHARE: usize = 7;

/// How many polls may be borne, in one scheduler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// For all, less the places that are nobody's part. 0: too few to be divided. Unit: polls.
    places: usize,
}

impl Parts {
    /// `slots`: virtual CPUs and stand-ins.
    pub(super) fn new(max_borne: usize, slots: usize) -> Self {
        let places = max_borne.saturating_sub(slots);
        Self {
            places: if places < slots { 0 } else { places },
        }
    }

    /// How many more polls a group may have that has `own` of `all`; [`usize::MAX`] if there is no part. Unit: polls.
    fn left(self, own: usize, all: usize) -> usize {
        if self.places == 0 {
            return usize::MAX;
        }
        let part = SHARE * self.places.saturating_sub(all);
        part.max(1).saturating_sub(own)
    }
}

impl Preempting {
    /// Whether any group can have used its part. Two loads.
    #[inline]
    pub(crate) fn may_keep_back(&self) -> bool {
        let all = self.borne.load(Ordering::Relaxed);
        self.parts.left(all, all) == 0
    }

    /// How many more polls of the group may be borne, by its part and those above it. O(depth). Unit: polls.
    fn left_for(&self, group: &Arc<GroupShared>) -> usize {
        let all = self.borne.load(Ordering::Relaxed);
        let left = group.bearing().map(|group| {
            let own = group.borne.load(Ordering::Relaxed);
            self.parts.left(own as usize, all)
        });
        left.min().unwrap_or(usize::MAX)
    }

    /// Whether tasks of the group are kept back before their polls. O(depth).
    pub(crate) fn has_used_its_part(&self, group: &Arc<GroupShared>) -> bool {
        self.left_for(group) == 0
    }

    /// K2 and K3: the group keeps a task back, its first if `is_new`.
    pub(crate) fn keeps_back(&self, shared: &Shared, group: &Arc<GroupShared>, is_new: bool) {
        self.counters.kept_back.fetch_add(1, Ordering::Relaxed);
        if is_new {
            lock(&self.keeping).push(group.clone());
        }
        std::sync::atomic::fence(Ordering::SeqCst);
        shared.tick.run();
    }

    /// Whether tasks are kept back.
    pub(crate) fn any_kept_back(&self) -> bool {
        !lock(&self.keeping).is_empty()
    }

    /// R2: a poll of one less is borne.
    pub(crate) fn makes_room(&self, shared: &Shared) {
        if self.any_kept_back() {
            shared.tick.hurry();
        }
    }

    /// The tick thread: lets go of those for whom there is room by now.
    pub(super) fn let_kept_go(&self, shared: &Shared) {
        let keeping = std::mem::take(&mut *lock(&self.keeping));
        for group in keeping {
            let most = if shared.phase() == OPEN {
                self.left_for(&group).div_ceil(SHARE + 1)
            } else {
                usize::MAX
            };
            if group.let_kept_go(shared, most) {
                lock(&self.keeping).push(group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most that `groups` have which take in turn what they can get.
    fn taken(parts: Parts, groups: usize) -> Vec<usize> {
        let mut borne = vec![0; groups];
        loop {
            let mut more = false;
            for group in 0..groups {
                let all: usize = borne.iter().sum();
                if parts.left(borne[group], all) > 0 {
                    borne[group] += 1;
                    more = true;
                }
            }
            if !more {
                return borne;
            }
        }
    }

    #[test]
    fn a_group_leaves_room_for_those_that_come_later() {
        let parts = Parts::new(256, 4);
        assert_eq!(taken(parts, 1), [221]);
        assert_eq!(taken(parts, 2), [118, 118]);
        let ten = taken(parts, 10);
        assert!(ten.iter().all(|own| (24..=25).contains(own)), "{ten:?}");
        // More groups than places: each may have one, and those beyond find the places that are nobody's.
        let many = taken(parts, 254);
        assert!(many.iter().all(|own| *own == 1));
    }

    #[test]
    fn so_few_places_that_processors_would_be_left_idle_are_not_divided() {
        for few in [1, 4, 7] {
            let parts = Parts::new(few, 4);
            assert_eq!(parts.left(few, few), usize::MAX);
        }
        assert_eq!(taken(Parts::new(8, 4), 1), [4]);
    }
}
