//! Whom to pull waiting tasks from: when idle, and when somebody's tasks get too little.
//!
//! All decisions are the puller's, from what the CPUs publish, without taking their locks. Nearest CPU first.
//!
//! **Idle.** A CPU with nothing to run takes up to half of what waits elsewhere: of the longest queue among the nearest, or, if nothing there may go to it
//! (its limit keeps it back here, or somebody was faster), of the next, [`IDLE_LOOKS`] queues in all. A host may ask [`Gaps`] first.
//!
//! **Owed.** A child group that waits and is owed something is noted with its parent (`group_time`). A CPU that runs
//! another child, which is not owed anything, takes a task of it. At the root this keeps groups to their weights over all
//! CPUs; inside a group, its children. A group of tasks of which one waits while the rest has its part elsewhere is noted as its own, and a CPU
//! that runs the group takes that task. A task that has its CPU for itself is compared, too: where it is owed as much as who is noted, it
//! stays alone, and where it owes twice as much as a group that waits and owes, that one comes.
//!
//! **Ahead.** A CPU whose children are ahead of the mean of their siblings takes more of them (`ahead`).
//!
//! **Virtual time.** The tasks of one group are compared by how fast they get on. Let V_g,c be the virtual time of group g's
//! timeline on CPU c and W_g,c the shares competing there. What V gains over a window is the service that one unit of weight
//! in g got, so within g the machine is fair iff all V_g,c gain equally. If mine gained more than yours, what is in g on
//! your CPU is being short-changed by
//!
//! ```text
//! excess = (gain_mine / window - gain_yours / window) * common window * W_mine      (in ns of my service)
//! ```
//!
//! and once that exceeds [`PULL_THRESHOLD`] and what may be noise I take a waiting task of g from you, and both windows start anew. The
//! balancer looks at the groups on the path that its CPU is running, the root first, and there only at those that have
//! tasks of their own here.
//!
//! Where child groups run beside tasks, on many CPUs, V moves with what they get on all of them, so that on 16 CPUs the same unfairness
//! makes for an excess 16 times as large, and so does the same noise. The threshold grows with that rate, and with the
//! bursts in which service elsewhere was seen, by which V jumps: the less, the more competes there. (For as much service as the group got that made it jump,
//! which is a hundred times what a task of a hundredth of its weight sees of that, one of two equal tasks beside such a group had a CPU for itself and
//! the other 0.01 of one, as long as the machine ran.) A needless pull is not harmless: what was spread evenly is so no more, and
//! then the CPUs that a group happens to be on decide what it gets, next to its weight.
//!
//! With 3 equal hogs in one group on 2 CPUs, this makes the pairs rotate, and each gets 2/3:
//!
//! | ms | CPU 0 | gain of V | CPU 1 | gain of V | then |
//! |---|---|---|---|---|---|
//! | 0..1 | a | 1 | b, c | 1/2 | 0 is ahead by 0.5 ms: pulls b |
//! | 1..2 | a, b | 1/2 | c | 1 | 1 is ahead by 0.5 ms: pulls a, the one not moved lately |
//! | 2..3 | b | 1 | c, a | 1/2 | ... |
//!
//! **Load.** Under [`GroupClock::PerCpu`] virtual times of different CPUs mean nothing to each other; weights are divided
//! by load, and fair only as far as loads are even. So there, and only there, load is what is evened out, in proportion to what others leave
//! of each CPU ([`CpuLoad::publish_stolen`]).
//!
//! Otherwise there is no rule that evens out the *number* of tasks. Where numbers matter, virtual times show it within a
//! millisecond, and then half of the difference moves at once; where they do not (many tasks of small weight, a group
//! that has its share elsewhere), such a rule would undo the above forever.

mod ahead;
mod gaps;

use crate::clock::{CpuCell, CpuCells};
use crate::config::GroupClock;
use crate::group::Group;
use crate::group_time::{Note, OWED_MIN, ServiceClock};
use crate::load::CpuLoad;
use crate::topology::{Distance, Topology};
use crate::units::{CpuId, Nanos, to_service};
use ahead::plan_ahead;
use core::cmp::Reverse;
pub use gaps::{GapUse, Gaps};
use std::sync::Arc;

/// Service by which a CPU must be ahead of another before it pulls, for each CPU's worth of service by which its virtual
/// time moves, beyond what may be noise: 500 us, measured best in the prototypes (less moves tasks for noise, more lets
/// small imbalances last).
pub const PULL_THRESHOLD: Nanos = Nanos::from_micros(500);

/// Windows over which virtual times are compared are halved when they get longer than this and hold as much service, so
/// that what happened long ago does not hide what happens now: 100 ms resolve an imbalance of 0.5 %.
const WINDOW_MAX: Nanos = Nanos::from_millis(100);

/// Windows are halved from here on however little service they hold: 10 s, in which a group of one percent gets 100 ms.
const WINDOW_LAST: Nanos = Nanos::from_secs(10);

/// The shortest window that says anything: a few publications.
const WINDOW_MIN: Nanos = Nanos::from_micros(200);

/// How often loads are evened out where weights follow loads: 4 ms, a tick at HZ=250.
const LOAD_INTERVAL: Nanos = Nanos::from_millis(4);

/// In how many queues an idle CPU looks for a task that may move, each under that queue's lock. Default 4: one is what waits mostly in vain beside throttled
/// groups (a task without a limit had 0.83 of the CPU that it should have had), and all would be a lock a CPU.
pub const IDLE_LOOKS: usize = 4;

/// What a task beside child groups must be owed for one that is alone on its CPU, and owes, to pull it. Unit: nanoseconds. 20 ms: where all of them
/// have their turns, a few milliseconds are owed, and pulled for that they would be in company for ever on the CPU that one had for itself.
const OWED_LONG: u64 = 20_000_000;

/// Most tasks moved at once: bounds the time for which the victim's queue is held.
const PULL_MAX: usize = 32;

/// Why the balancer is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The CPU has nothing to run.
    Idle,
    /// Time has passed: every half millisecond or so while something runs.
    Periodic,
}

/// A request to take waiting tasks from a CPU; see [`crate::RunQueue::detach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// The CPU to take from.
    pub from: CpuId,
    /// At most so many tasks.
    pub max: usize,
    /// Id of the group to take from, descendants included; 0 is the root, so anything.
    pub group: u32,
    /// Whether only tasks of the group itself will do, and none below it. Where child groups stand beside them it is the one that is owed most.
    pub own: bool,
    /// Whether the group, or a task of it, was noted since it waits and is owed something.
    pub noted: bool,
}

/// Nearest first, then by how much there is to gain.
type Merit = (Reverse<Distance>, u64);

/// Decides whether CPU `me` should pull, and from whom. `loads` holds every CPU's load in the order of the CPUs'
/// numbers. To be called without holding any run queue's lock. O(CPUs x depth), a few relaxed loads each, and once the lock of
/// CPU `me`'s own list of groups, which nobody else takes but its run queue.
pub fn plan(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    reason: Reason,
    now: Nanos,
) -> Option<Pull> {
    match reason {
        Reason::Idle => plan_idle(topology, me, loads, &[]),
        Reason::Periodic => plan_busy(topology, me, loads, now).map(|(pull, _)| pull),
    }
}

/// What a CPU that runs something should pull, and how deep the group is for whose sake.
fn plan_busy(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    now: Nanos,
) -> Option<(Pull, usize)> {
    let mine = loads.get(me.index())?;
    let found = mine.find_on_chain(|group, running| {
        if by_load(group) {
            // The root, which comes first, says it all.
            return Some((plan_by_load(topology, me, loads, &group.cells, now), 0));
        }
        let owed = plan_owed(me, group, (running, mine));
        owed.or_else(|| plan_ahead(topology, me, loads, group, running))
            .or_else(|| plan_level(topology, me, loads, group, 0))
            .map(|pull| (Some(pull), group.depth()))
    });
    found.and_then(|(pull, depth)| Some((pull?, depth)))
}

/// Plans, and lets `take` do it, which says whether anything came; an idle CPU to which nothing came looks further, in [`IDLE_LOOKS`] queues in
/// all, and a busy one once more, further below: what it came for in vain is mostly a note that was true for the moment between two turns, and hides
/// who is noted below, as long as the machine runs. Returns whether anything came. As [`plan`], for each look.
pub fn pull(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    (reason, now): (Reason, Nanos),
    mut take: impl FnMut(&Pull) -> bool,
) -> bool {
    match reason {
        Reason::Idle => pull_idle(topology, me, loads, &mut take),
        Reason::Periodic => pull_busy(topology, me, loads, now, &mut take),
    }
}

fn pull_busy(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    now: Nanos,
    take: &mut dyn FnMut(&Pull) -> bool,
) -> bool {
    let Some((first, depth)) = plan_busy(topology, me, loads, now) else {
        return false;
    };
    if take(&first) {
        return true;
    }
    let Some(mine) = loads.get(me.index()) else {
        return false;
    };
    let second = mine.find_on_chain(|group, running| {
        let owed = match running {
            _ if group.depth() <= depth => return None,
            None => plan_beside(me, group, mine),
            // A task beside the child that runs would be handed round among all CPUs that run one which is ahead. But a CPU with nothing else has no
            // choices, at which it would be compared.
            Some(_)
                if group.time.is_own_task_owed(group.id())
                    && (mine.nr_queued() > 0 || group.time.noted_lag() <= OWED_LONG) =>
            {
                None
            }
            Some(_) => plan_owed(me, group, (running, mine)),
        };
        // Not for noise: where many wait behind polls, one would be handed round for it.
        let is_alone = mine.nr_queued() == 0 && !group.time.has_groups();
        let level = || plan_level(topology, me, loads, group, OWED_LONG / 2);
        owed.or_else(|| is_alone.then(level).flatten())
    });
    second.is_some_and(|pull| take(&pull))
}

fn pull_idle(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    take: &mut dyn FnMut(&Pull) -> bool,
) -> bool {
    let mut tried = [me; IDLE_LOOKS];
    for look in 0..IDLE_LOOKS {
        let Some(next) = plan_idle(topology, me, loads, &tried[..look]) else {
            return false;
        };
        if take(&next) {
            return true;
        }
        tried[look] = next.from;
    }
    false
}

fn plan_idle(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    tried: &[CpuId],
) -> Option<Pull> {
    let mut nearest: Option<(Distance, usize, CpuId)> = None;
    for (cpu, load) in (0u32..).map(CpuId).zip(loads) {
        let queued = load.nr_queued();
        if queued == 0 || cpu == me || tried.contains(&cpu) {
            continue;
        }
        let distance = topology.distance(me, cpu);
        // Of equals the first.
        let is_better = nearest
            .is_none_or(|(least, most, _)| distance < least || distance == least && queued > most);
        if is_better {
            nearest = Some((distance, queued, cpu));
        }
    }
    nearest.map(|(_, queued, from)| Pull {
        from,
        max: queued.div_ceil(2).min(PULL_MAX),
        group: 0,
        own: false,
        noted: false,
    })
}

/// Whether weights are divided by load, which only works out if loads are even.
fn by_load(group: &Group) -> bool {
    matches!(
        group.config().group_clock,
        GroupClock::PerCpu(_) | GroupClock::Averaged(_)
    )
}

/// Looks for a CPU whose root has so much more weight on it that moving an average task would even it out.
fn plan_by_load(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    cells: &CpuCells,
    now: Nanos,
) -> Option<Pull> {
    let mine = cells.known_on(me)?;
    if mine.gained(now).1 < LOAD_INTERVAL {
        return None;
    }
    let my_capacity = loads.get(me.index())?.capacity();
    mine.mark(now);
    let mut best: Option<(Merit, Pull)> = None;
    for (from, theirs) in cells.iter() {
        let Some(load) = loads.get(from.index()).filter(|load| load.nr_queued() > 0) else {
            continue;
        };
        let (here, there) = ((mine.load(), my_capacity), (theirs.load(), load.capacity()));
        let difference = excess_load(there, here);
        let average = (theirs.load() / load.nr_running().max(1) as u64).max(1);
        if from == me || difference <= average {
            continue;
        }
        let max = usize::try_from(difference / (2 * average)).unwrap_or(PULL_MAX);
        let merit = (Reverse(topology.distance(me, from)), difference);
        if best.as_ref().is_none_or(|(found, _)| *found < merit) {
            best = Some((
                merit,
                Pull {
                    from,
                    max: max.clamp(1, PULL_MAX),
                    group: 0,
                    own: false,
                    noted: false,
                },
            ));
        }
    }
    best.map(|(_, pull)| pull)
}

/// Twice the load to be moved from there to here for both to have equal loads for what each is able to do: their difference, where both are able to
/// do as much. Loads in shares; capacities of 1,024.
fn excess_load(there: (u64, u64), here: (u64, u64)) -> u64 {
    if there.1 == here.1 {
        return there.0.saturating_sub(here.0);
    }
    // Sums of fewer than 2^32 shares below 2^21, times at most 2^10, fit.
    let more = there.0.saturating_mul(here.1);
    let less = here.0.saturating_mul(there.1);
    2 * (more.saturating_sub(less) / (there.1 + here.1))
}

/// Takes a task of a child of `group` that waits and is owed something, if `running`, the child that runs here, is not; or a task of the group
/// itself, where it has no children and missed so many turns that it was noted. Where nobody is owed anything, a task of a child that owes less,
/// than the one that runs or than a task that has the CPU for itself.
fn plan_owed(
    me: CpuId,
    group: &Group,
    (running, mine): (Option<&Group>, &CpuLoad),
) -> Option<Pull> {
    if !group.time.is_somebody_owed() {
        let note = match running {
            Some(running) => {
                let slack = ServiceClock::new(group.config(), me).slack(running, mine.grain());
                Note::least(me, group, running, slack)
            }
            // What one that is alone owes is forgiven beyond a sleeper's credit, since nobody can be paid it; but who waits elsewhere can. Of twice as
            // much, or equals would change places for nothing.
            None => (mine.owes_alone()).and_then(|owes| group.time.take_least(me, owes / 2)),
        };
        return note.map(|note| note.pull(group));
    }
    let is_owed = |child: &Group| child.time.lag(&group.time) > 0;
    if running.is_some_and(is_owed) {
        return None;
    }
    if running.is_none() && (is_for_choices(group, mine) || is_as_owed(group, mine)) {
        return None;
    }
    // The very group that runs here was owed something as it was noted, and is not by now. What is pulled is one of several that wait there, which
    // would be handed to and fro between two CPUs that run the group in turn, each time to wait for the next turn (0.0004 of a CPU for 0.148).
    let waits_with_others = |group: &Group, cpu: CpuId| {
        let cell = group.cells.known_on(cpu);
        cell.is_some_and(|cell| cell.entities() > 1)
    };
    let is_in_vain = |note: &Note| {
        running.is_some_and(|running| {
            running.id() == note.group && waits_with_others(running, note.cpu)
        })
    };
    let note = group.time.take_owed(me).filter(|note| !is_in_vain(note))?;
    Some(note.pull(group))
}

/// Whether the task that has this CPU for itself is owed as much as who is noted, but for a turn, and more than turns explain: the clock is before all of
/// them then. (Three CPUs whose tasks were owed 8 ms pulled a sleeper from each other whose group was, 750 times a second, and it never ran: where it came
/// it was owed no more than who ran there.)
fn is_as_owed(group: &Group, mine: &CpuLoad) -> bool {
    let owed = mine.owed_though_alone();
    let turn = OWED_MIN.unsigned_abs() + group.config().base_slice.0;
    owed > turn && group.time.noted_lag() <= owed.saturating_add(turn)
}

/// Whether who is noted is a task beside child groups that is to be compared at choices with the one that runs here, by the clock that both stand by. But
/// where nothing else is there to be chosen, there is none. (Beside a child that had a CPU and was due one, a task had nothing for as long as the
/// machine ran, and its sibling a CPU for itself.)
fn is_for_choices(group: &Group, mine: &CpuLoad) -> bool {
    let is_beside = group.time.has_groups() && group.time.is_own_task_owed(group.id());
    is_beside && !(mine.owes_alone().is_some() && group.time.noted_lag() > OWED_LONG)
}

/// For a task of `group` that runs here, where what was planned first, for a group above, brought nothing: takes a task of a child that waits
/// elsewhere, or one of the group itself if it has no children. A group whose only task sleeps for moments is noted with its parent as it wakes, and
/// runs at once: it would hide at each look who waits below, for as long as the machine runs (a task of the group had 0.001 of the half CPU that
/// was its part, and a child of two spinners 0.10 for 0.52).
fn plan_beside(me: CpuId, group: &Group, mine: &CpuLoad) -> Option<Pull> {
    if is_for_choices(group, mine) {
        return None;
    }
    group.time.take_owed(me).map(|note| note.pull(group))
}

/// Looks for a CPU where what is in `group` gets less than what is in it here, by `least` ns at least.
fn plan_level(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    group: &Group,
    least: u64,
) -> Option<Pull> {
    let mine = group.cells.known_on(me)?;
    if mine.runnable() == 0 {
        // Nothing but child groups, which have times of their own.
        return None;
    }
    let my_load = loads.get(me.index())?;
    let my_gain = mine.gained(my_load.settled_at());
    // The same whomever it is compared with.
    let load_here = mine.load();
    let own_threshold = own_threshold(group, my_gain, load_here, (mine, my_load));
    let mut best: Option<(Merit, CpuId, &CpuCell, &CpuLoad)> = None;
    for (cpu, cell) in group.cells.iter() {
        let Some(load) = loads.get(cpu.index()) else {
            continue;
        };
        if cpu == me || load.nr_queued() == 0 || !has_spare(cell, load) {
            continue;
        }
        let their_gain = cell.gained(load.settled_at());
        // Half of the CPUs are no slower than this one, which takes no division to see.
        if !is_faster(my_gain, their_gain) {
            continue;
        }
        let ahead = service_ahead(my_gain, their_gain, load_here);
        // What one side has charged and the other has not yet is noise, be it its own or from elsewhere.
        let noise = cell.burst(load_here).saturating_add(2 * load.grain().0);
        if ahead < own_threshold.saturating_add(noise).max(least) {
            continue;
        }
        let merit = (Reverse(topology.distance(me, cpu)), ahead);
        if best.as_ref().is_none_or(|(found, ..)| *found < merit) {
            best = Some((merit, cpu, cell, load));
        }
    }
    let settled = my_load.settled_at();
    let Some((_, from, theirs, their_load)) = best else {
        // What runs seldom has little to show for the same time, while noise comes in the same lumps.
        let (gain, window) = mine.gained(settled);
        let told_enough = to_service(gain, mine.load()) > WINDOW_MAX.0 || window > WINDOW_LAST;
        if window > WINDOW_MAX && told_enough {
            mine.halve_window(settled);
        }
        return None;
    };
    // A pull changes what both sides hold: old gains say nothing about the new mix. A window begins at the time for which
    // its side's virtual time is right: begun now, it would lack time in which that side gained.
    mine.mark(settled);
    theirs.mark(their_load.settled_at());
    let surplus = theirs.entities().saturating_sub(mine.entities()) as usize;
    let max = (surplus / 2).clamp(1, PULL_MAX);
    // One that comes alone has its turn at once: if it waited for that, whoever idles for a moment would take it back to where all get too little.
    let own = max == 1 && !group.time.has_groups() && my_load.nr_queued() == 0;
    Some(Pull {
        from,
        max,
        group: group.id(),
        own,
        noted: false,
    })
}

/// Whether something in the group can be had there. The only task of a group is as good as running when the group is, but
/// where the group is kept waiting for what it gets elsewhere, that task would wait for ever.
fn has_spare(cell: &CpuCell, load: &CpuLoad) -> bool {
    cell.spare() > 0 || cell.entities() > 0 && cell.gained(load.settled_at()).0 == 0
}

/// By how much service what is here must be ahead of what is elsewhere to be worth a pull, ns, before what may be noise there.
fn own_threshold(
    group: &Group,
    (gain, window): Gain,
    load_here: u64,
    (cell, load): (&CpuCell, &CpuLoad),
) -> u64 {
    // How many CPUs' service virtual time moves with here.
    let rate = (to_service(gain, load_here) / window.0.max(1)).max(1);
    // Inside a group virtual time comes in turns of a slice, on either side: that much is noise.
    let turns = if group.depth() == 0 {
        0
    } else {
        2 * group.config().base_slice.0
    };
    PULL_THRESHOLD
        .0
        .saturating_mul(rate)
        .saturating_add(turns + 2 * load.grain().0)
        .saturating_add(cell.burst(load_here))
}

/// Virtual time gained, and over which window.
type Gain = (u64, Nanos);

/// Whether virtual time goes faster with the first than with the second.
#[inline]
fn is_faster(mine: Gain, theirs: Gain) -> bool {
    u128::from(mine.0) * u128::from(theirs.1.0) > u128::from(theirs.0) * u128::from(mine.1.0)
}

/// By how much service what is here, competing with that load, is ahead of what is there, over the window that both
/// have seen, ns.
#[inline]
fn service_ahead(mine: Gain, theirs: Gain, load: u64) -> u64 {
    let window = mine.1.0.min(theirs.1.0);
    if window < WINDOW_MIN.0 {
        return 0;
    }
    let over_window = |(gain, of): Gain| {
        if of.0 == window {
            return gain;
        }
        match gain.checked_mul(window) {
            Some(product) => product / of.0,
            // Less than the gain, since the window is shorter: truncates nothing.
            None => (u128::from(gain) * u128::from(window) / u128::from(of.0)) as u64,
        }
    };
    to_service(over_window(mine).saturating_sub(over_window(theirs)), load)
}

#[cfg(test)]
mod tests;
