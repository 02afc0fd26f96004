//! Weights that are split by load: what a group weighs on this CPU ([`crate::GroupClock::PerCpu`]).

use crate::group_weight::{GroupLoad, WeightMode, weight};
use crate::load_average::averaged_load;
use crate::timeline::Timeline;

/// The weight of a group here under [`GroupClock::PerCpu`], from what is runnable here and everywhere now.
/// O(CPUs that met the group).
pub(crate) fn shares_here(timeline: &Timeline, mode: WeightMode, cpus: u32) -> u32 {
    let local = timeline.average.load();
    let cells = &timeline.group.cells;
    let published = cells.load();
    let total = published
        .saturating_sub(timeline.cell.load())
        .saturating_add(local);
    let load = GroupLoad {
        local,
        total,
        tasks: cells.runnable_below(),
        cpus,
    };
    weight(mode, timeline.group.shares(), load)
}

/// The same under [`GroupClock::Averaged`], from load averages: O(1), but for a look at the other CPUs every few
/// milliseconds. What was never averaged has its whole weight.
pub(crate) fn shares_averaged(timeline: &mut Timeline, mode: WeightMode, cpus: u32) -> u32 {
    let rules = timeline.group.load_rules();
    let (now, shares) = (timeline.average.load(), timeline.group.shares());
    let Some(load) = timeline.load.as_deref_mut() else {
        return shares;
    };
    let (here, others, runnable) = load.weigh(&rules);
    weight(
        mode,
        shares,
        averaged_load(now, here, others, runnable, cpus),
    )
}
