//! How many functions and jobs of a group may have begun.
//!
//! # What is divided
//! Each function or job that has begun counts as one of up to three kinds ([`Kind`]), for the scheduler and for each group from its own up to below the
//! root:
//!
//! | kind | who counts | shared |
//! |---|---|---|
//! | `Placed` | who competes: not while it is blocked in the kernel | [`Preempt::max_borne`](crate::Preempt::max_borne) |
//! | `Begun` | all | these and [`BLOCKED_MAX`] |
//! | `Pooled` | blocking functions, each of which has a thread of tokio's pool | [`POOLED_MAX`] |
//!
//! # Who may begin
//! In each kind a group may have seven times as many as are left, by the rule of `parts`, at each level: what is left for a group is what its
//! parent may still have, and for those below the root what is left for all. So a tenant leaves an eighth to those who come later, and a group
//! below it a seventh or so of what the tenant has to its siblings. (768 sleeping jobs of one tenant used to be all that could begin, of
//! anybody: functions, jobs and checkpoints of all others waited for ever.)
//!
//! What others leave may be less than one: four tenants that came one after another, whose functions stood throttled, had left nothing, and a
//! tenant of weight 10,000 got one function at a time, a processor of two. So beyond what is shared there is room for [`NEWCOMERS`]
//! (`Few::may_have_one_more`): for the first one of a tenant, which is a group below the root with all below it; for as many of a tenant as there are virtual
//! CPUs, while a quarter is left; and for the first one of a group whose tenant has less than [`NEWCOMERS_OF_ONE`], while half is left. A tenant
//! that has more has nothing of it, through however many groups; so who is refused then is refused because of hundreds of other tenants.
//!
//! # The bound
//! So there are `max_borne + BLOCKED_MAX + NEWCOMERS` that have begun, 1,792 by default, and each is a thread that the pool or the program has anyway:
//! ours are two references in the watch's lists (16 bytes, reserved) and a carrier. One that comes back from a block takes its place again, whether there is
//! one or not. Two that come at once may find the same room: there is more than is counted on (`WatchState::new`), and each waits for that.
//!
//! # Protocol
//! Numbers and nothing else. Whoever gives one up counts it out at all levels and then looks at the lines (R1 and R2 of `functions`): what was refused
//! because a number was being changed is looked at again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::Preempting;
use crate::group::GroupShared;
use crate::shared::Shared;

/// How often what is left for all a group may have, as in `parts`.
pub(super) const SHARE: usize = 7;
/// Functions and jobs that are blocked at once, beyond the places. Unit: functions. As many as tokio's pool has threads by
/// default.
const BLOCKED_MAX: usize = 512;
/// Blocking functions that have begun, of all groups that have more than a few. Unit: functions. What tokio's pool has by default: a tenant
/// whose functions sleep leaves an eighth of its threads.
const POOLED_MAX: usize = 512;
/// Functions and jobs beyond what is shared, of groups that have next to none. Unit: functions. Four times the places by default.
const NEWCOMERS: usize = 1_024;
/// Up to how many a tenant has of these for groups that have none. Unit: functions.
const NEWCOMERS_OF_ONE: usize = 32;
/// What may have begun beyond [`Preempt::max_borne`](crate::Preempt::max_borne). Unit: functions.
pub(super) const BEGUN_BEYOND: usize = BLOCKED_MAX + NEWCOMERS;

/// What a function or job counts as.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Placed,
    Begun,
    Pooled,
}

const KINDS: usize = 3;

/// Of all groups.
#[derive(Default)]
pub(super) struct AllPlaces([AtomicUsize; KINDS]);

/// Of a group and those below it.
#[derive(Debug, Default)]
pub(crate) struct GroupPlaces([AtomicU32; KINDS]);

impl GroupPlaces {
    fn own(&self, kind: Kind) -> usize {
        self.0[kind as usize].load(Ordering::Relaxed) as usize
    }
}

impl AllPlaces {
    fn count_in(&self, group: &Arc<GroupShared>, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
        for group in group.bearing() {
            group.line.places.0[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count_out(&self, group: &Arc<GroupShared>, kind: Kind) {
        self.0[kind as usize].fetch_sub(1, Ordering::Relaxed);
        for group in group.bearing() {
            group.line.places.0[kind as usize].fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn all(&self, kind: Kind) -> usize {
        self.0[kind as usize].load(Ordering::Relaxed)
    }
}

/// How many more a group may have that has `own` where `left` are left above it.
fn left_below(left: usize, own: usize) -> usize {
    SHARE.saturating_mul(left).saturating_sub(own)
}

/// How many more of the kind the group may have, if there are `left` for all. O(depth).
fn left_for(group: &GroupShared, kind: Kind, left: usize) -> usize {
    // Not the root, unless it is the root's own.
    let above = group.above().filter(|above| above.above().is_some());
    let left = above.map_or(left, |above| left_for(above, kind, left));
    left_below(left, group.line.places.own(kind))
}

/// What a group has of a kind that may be next to nothing.
struct Few {
    own: usize,
    of_tenant: usize,
    /// Beyond what is shared.
    beyond: usize,
}

impl Few {
    /// Whether it may have one more on top of what is shared.
    fn may_have_one_more(&self, vcpus: usize) -> bool {
        let limits = [
            (self.of_tenant == 0, NEWCOMERS),
            (self.of_tenant < vcpus, NEWCOMERS * 3 / 4),
            (
                self.own == 0 && self.of_tenant < NEWCOMERS_OF_ONE,
                NEWCOMERS / 2,
            ),
        ];
        let has_room = |(is_meant, most): (bool, usize)| is_meant && self.beyond < most;
        limits.into_iter().any(has_room)
    }
}

/// The right of one function to take turns.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    group: Arc<GroupShared>,
    /// It counts; it does not while its function is blocked.
    pub(super) counts: bool,
    /// Its function has a thread of the blocking pool.
    is_pooled: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(preempting) = &self.shared.preempt else {
            return;
        };
        let places = &preempting.functions.places;
        places.count_out(&self.group, Kind::Begun);
        if self.is_pooled {
            places.count_out(&self.group, Kind::Pooled);
        }
        if self.counts {
            places.count_out(&self.group, Kind::Placed);
        }
        preempting.hand_on(&self.shared, &self.group, self.is_pooled);
    }
}

impl Preempting {
    /// Whether there is a place for a function of the group, or for a job of a thread that is there. O(depth).
    pub(super) fn has_room(&self, group: &Arc<GroupShared>, is_pooled: bool) -> bool {
        let max_borne = self.settings.max_borne;
        let kinds = [
            (Kind::Placed, max_borne),
            (Kind::Begun, max_borne + BLOCKED_MAX),
            (Kind::Pooled, POOLED_MAX),
        ];
        let kinds = &kinds[..if is_pooled { KINDS } else { KINDS - 1 }];
        kinds
            .iter()
            .all(|(kind, shared)| self.has_room_of(group, *kind, *shared))
    }

    fn has_room_of(&self, group: &Arc<GroupShared>, kind: Kind, shared: usize) -> bool {
        let all = self.functions.places.all(kind);
        if left_for(group, kind, shared.saturating_sub(all)) > 0 {
            return true;
        }
        let tenant = group.bearing().last().unwrap_or(group);
        let few = Few {
            own: group.line.places.own(kind),
            of_tenant: tenant.line.places.own(kind),
            beyond: all.saturating_sub(shared),
        };
        few.may_have_one_more(usize::try_from(self.regular).unwrap_or(usize::MAX))
    }

    /// A place, if there is one.
    pub(super) fn find_place(
        &self,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
        is_pooled: bool,
    ) -> Option<Place> {
        if !self.has_room(group, is_pooled) {
            return None;
        }
        let places = &self.functions.places;
        places.count_in(group, Kind::Begun);
        if is_pooled {
            places.count_in(group, Kind::Pooled);
        }
        self.takes_place(group);
        Some(Place {
            shared: shared.clone(),
            group: group.clone(),
            counts: true,
            is_pooled,
        })
    }

    /// A function has a place, or has it again.
    pub(super) fn takes_place(&self, group: &Arc<GroupShared>) {
        self.functions.places.count_in(group, Kind::Placed);
    }

    /// R1 and R2: it blocks. Its carrier has the run queue's lock, and leaves the lines to the tick thread.
    pub(super) fn gives_up_place(&self, shared: &Shared, group: &Arc<GroupShared>) {
        self.functions.places.count_out(group, Kind::Placed);
        self.look_at_lines(shared);
    }

    /// Functions with a place, and those that are blocked.
    pub(super) fn begun(&self) -> usize {
        self.functions.places.all(Kind::Begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: usize = 768;

    /// What tenants have that take in turn all they can get, each through so many groups below it.
    fn taken(tenants: &[usize], vcpus: usize) -> Vec<usize> {
        let mut own: Vec<Vec<usize>> = tenants.iter().map(|groups| vec![0; *groups]).collect();
        let total = |own: &[Vec<usize>]| own.iter().flatten().sum::<usize>();
        for tenant in 0..own.len() {
            loop {
                let before = total(&own);
                for group in 0..own[tenant].len() {
                    let (all, of_tenant) = (total(&own), own[tenant].iter().sum());
                    let has = own[tenant][group];
                    let left = left_below(SHARED.saturating_sub(all), of_tenant);
                    let few = Few {
                        own: has,
                        of_tenant,
                        beyond: all.saturating_sub(SHARED),
                    };
                    let may = left_below(left, has) > 0 || few.may_have_one_more(vcpus);
                    own[tenant][group] += usize::from(may);
                }
                if total(&own) == before {
                    break;
                }
            }
        }
        own.iter().map(|groups| groups.iter().sum()).collect()
    }

    #[test]
    fn a_tenant_that_takes_all_leaves_room_for_another() {
        assert_eq!(taken(&[1], 2), [661]);
        // One after the other: each gets several.
        let four = taken(&[1, 1, 1, 1], 2);
        assert!(four.iter().all(|own| *own >= 2), "{four:?}");
    }

    #[test]
    fn a_group_leaves_room_for_its_siblings() {
        let all = SHARED - 661;
        let left = left_below(left_below(all, 661), 0);
        assert!(left > 0, "the first has taken all that its tenant may have");
    }

    #[test]
    fn thousands_of_groups_of_four_tenants_take_what_newcomers_have() {
        let taken = taken(&[3_000, 3_000, 3_000, 3_000, 1, 1], 2);
        assert!(taken[..4].iter().sum::<usize>() <= SHARED + 4 * NEWCOMERS_OF_ONE);
        assert!(taken[4] >= 2 && taken[5] >= 2, "{taken:?}");
    }

    #[test]
    fn as_many_as_are_counted_on_have_begun() {
        let tenants = vec![1; 2_000];
        let all: usize = taken(&tenants, 64).iter().sum();
        assert_eq!(all, SHARED + NEWCOMERS);
    }
}
