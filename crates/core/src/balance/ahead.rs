//! CPUs that are ahead of the mean of a group's children take more of them.
//!
//! **Few.** A CPU whose running child has run ahead of the mean of its siblings, and has less to choose from than another CPU, takes half of
//! the difference. One that is left with a single child of many (because others took what waited there while it was stuck) would
//! otherwise serve it until somebody else is owed enough, which among 1,000 equals takes 250 ms on each of two CPUs.
//!
//! **Fast.** A CPU that has as many children as others, and more time for them (other programs, or a hypervisor, have taken the others' processor
//! for moments), is ahead with all of them. The running child says little of that: within its turn it goes from half a turn behind the others
//! here to half a turn before them. So each CPU publishes its lead, by how much all that competes there is on average before the mean of the whole
//! group, and takes so many more than its part as let the others catch up within some turns. Without it those on the slower CPU fell behind until
//! one was owed [`OWED_MIN`](crate::group_time::OWED_MIN), two turns of a runtime, and of 1,000 equal groups the most had 1.13 times what the least had in 5 s.

use super::{Merit, PULL_MAX, PULL_THRESHOLD, Pull};
use crate::clock::CpuCell;
use crate::group::Group;
use crate::load::CpuLoad;
use crate::topology::Topology;
use crate::units::{CpuId, to_service_lag};
use core::cmp::Reverse;
use std::sync::Arc;

/// By how many children that would move [`PULL_THRESHOLD`] is divided at most, where one is ahead of the mean of its siblings. The more there are, the
/// less each is owed while a CPU goes on with too few: two CPUs of which one had been away for 30 ms each half second served 160 and
/// 840 of 1,000 equal groups, none of them half a millisecond ahead or behind, for seconds. Default 5: 100 us, less is noise.
const SURPLUS_COUNTED: u32 = 5;

/// In how many turns of each of its children a CPU that is ahead of the mean lets the others catch up, by taking more than its part of them. Unit: turns.
/// Default 8: by so much less than a turn does the half of 1,000 equal groups that shares a CPU with other programs fall behind; and of fewer
/// than eight children on a CPU none is moved for this. From 4 to 16 shares were the same.
const LEAD_TURNS: u64 = 8;

/// What part of a turn such a CPU must be ahead by. 8: at half a turn, groups of one CPU were 1.09 times those of the other within 5 s, at a quarter 1.07,
/// at an eighth and a tenth 1.06, with some tens of moves a second.
const LEAD_NOISE: u64 = 8;

/// Takes half of what waits in `group` elsewhere beyond what is in it here, if `running`, the child that runs here, has run ahead
/// of the mean of its siblings: for want of others here, since a choice would have passed it over. And as many as this CPU deserves because all that is
/// here, taken together, is ahead.
pub(super) fn plan_ahead(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    group: &Group,
    running: Option<&Group>,
) -> Option<Pull> {
    let time = &running?.time;
    let ahead = time.ahead_of_mean(&group.time);
    let threshold = |surplus: u32| PULL_THRESHOLD.0 / u64::from(surplus.clamp(1, SURPLUS_COUNTED));
    let mine = group.cells.known_on(me)?;
    // A turn that it was chosen for, and a poll beyond, on every CPU that it is on, is what anybody may be ahead by.
    let turn = group.config().base_slice.0 + loads.get(me.index())?.grain().0;
    let explained = turn.saturating_mul(u64::from(time.cpus()));
    let deserved = deserved_by_lead(mine, time.weight(), turn);
    if deserved == 0 && ahead <= threshold(SURPLUS_COUNTED).saturating_add(explained) {
        return None;
    }
    let mut best: Option<(Merit, CpuId)> = None;
    for (from, theirs) in group.cells.iter() {
        let waits = loads
            .get(from.index())
            .is_some_and(|load| load.nr_queued() > 0);
        if from == me || !waits {
            continue;
        }
        let by_count = theirs.entities().saturating_sub(mine.entities()) / 2;
        let is_few = by_count > 0 && ahead > threshold(by_count).saturating_add(explained);
        let by_lead = surplus_by_lead(theirs.entities(), mine.entities(), deserved);
        let surplus = if is_few {
            by_count.max(by_lead)
        } else {
            by_lead
        };
        if surplus == 0 {
            continue;
        }
        let merit = (Reverse(topology.distance(me, from)), u64::from(surplus));
        if best.as_ref().is_none_or(|(found, _)| *found < merit) {
            best = Some((merit, from));
        }
    }
    best.map(|((_, surplus), from)| Pull {
        from,
        max: usize::try_from(surplus).unwrap_or(PULL_MAX).min(PULL_MAX),
        group: group.id(),
        own: false,
        noted: false,
    })
}

/// How many more than an equal part of the children a CPU should have, all of whose children together, of `weight` each, are ahead of the mean of all:
/// so many that in [`LEAD_TURNS`] turns of each the others have caught up.
fn deserved_by_lead(mine: &CpuCell, weight: u32, turn: u64) -> u32 {
    let lead = to_service_lag(mine.lead(), weight).max(0).unsigned_abs();
    if lead <= turn / LEAD_NOISE {
        return 0;
    }
    let deserved = u64::from(mine.entities()) * lead.min(turn) / (LEAD_TURNS * turn).max(1);
    u32::try_from(deserved).unwrap_or(u32::MAX)
}

/// What is to be moved from a CPU with `theirs` children to one with `mine` for that one to have `deserved` more than the mean of the two.
fn surplus_by_lead(theirs: u32, mine: u32, deserved: u32) -> u32 {
    if deserved == 0 {
        return 0;
    }
    let wanted = (i64::from(theirs) - i64::from(mine)) / 2 + i64::from(deserved);
    u32::try_from(wanted).unwrap_or(0).min(theirs / 2)
}
