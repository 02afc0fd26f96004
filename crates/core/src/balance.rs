//! Whom to pull waiting tasks from: when idle, when someone has more to do, when someone's groups get too little.
//!
//! All decisions are the puller's, from what the CPUs publish ([`CpuLoad`]), without locks. Three rules, nearest
//! CPU first in each:
//!
//! 1. **Idle.** A CPU with nothing to run takes up to half of what waits elsewhere.
//! 2. **Counts.** A CPU with at least two tasks more gives half of the difference, unless its virtual time is the
//!    faster one: then it holds many tasks of small weight, and evening out counts would undo rule 3.
//! 3. **Virtual time.** With V_c the virtual time of CPU c's root timeline and W_c the shares competing there, a gain
//!    of V over a window is the service that each unit of weight got. If mine gained more than yours, your groups are
//!    being short-changed by
//!
//!    ```text
//!    excess = (gain_mine / window - gain_yours / window) * common window * W_mine      (in ns of my service)
//!    ```
//!
//!    and once that exceeds [`PULL_THRESHOLD`] I take one waiting task from you, and both windows start anew. Where
//!    3 equal groups of one hog each share 2 CPUs, this makes the pairs rotate, and each gets 2/3.

use crate::load::CpuLoad;
use crate::topology::{Distance, Topology};
use crate::units::{CpuId, Nanos, to_service};
use std::sync::Arc;

/// Service by which a CPU must be ahead of another before rule 3 pulls: 500 us, measured best in the prototypes
/// (less moves tasks for noise, more lets small imbalances last).
pub const PULL_THRESHOLD: Nanos = Nanos::from_micros(500);

/// Windows over which virtual times are compared are halved when they get longer than this, so that what happened
/// long ago does not hide what happens now: 100 ms resolve an imbalance of 0.5 %.
const WINDOW_MAX: Nanos = Nanos::from_millis(100);

/// The shortest window that says anything: a few publications.
const WINDOW_MIN: Nanos = Nanos::from_micros(200);

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
}

/// Decides whether CPU `me` should pull, and from whom. `loads` holds every CPU's load in the order of the CPUs'
/// numbers. O(CPUs), a few relaxed loads each.
pub fn plan(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    reason: Reason,
    now: Nanos,
) -> Option<Pull> {
    let mine = loads.get(me.index())?;
    let pull = match reason {
        Reason::Idle => plan_idle(topology, me, loads),
        Reason::Periodic => plan_periodic(topology, me, loads, now),
    };
    if let Some(pull) = pull {
        // A pull changes what both sides hold: old gains say nothing about the new mix.
        mine.mark(now);
        loads[pull.from.index()].mark(now);
    } else if mine.gained(now).1 > WINDOW_MAX {
        mine.halve_window(now);
    }
    pull
}

/// The other CPUs that have something waiting.
fn victims<'a>(
    topology: &'a Topology,
    me: CpuId,
    loads: &'a [Arc<CpuLoad>],
) -> impl Iterator<Item = (CpuId, Distance, &'a CpuLoad)> {
    let numbered = (0u32..).zip(loads);
    let others = numbered.filter(move |(cpu, load)| *cpu != me.0 && load.nr_queued() > 0);
    others.map(move |(cpu, load)| (CpuId(cpu), topology.distance(me, CpuId(cpu)), load.as_ref()))
}

fn plan_idle(topology: &Topology, me: CpuId, loads: &[Arc<CpuLoad>]) -> Option<Pull> {
    let nearest = victims(topology, me, loads)
        .max_by_key(|(_, distance, load)| (core::cmp::Reverse(*distance), load.nr_queued()));
    nearest.map(|(from, _, load)| Pull {
        from,
        max: load.nr_queued().div_ceil(2).min(PULL_MAX),
    })
}

fn plan_periodic(
    topology: &Topology,
    me: CpuId,
    loads: &[Arc<CpuLoad>],
    now: Nanos,
) -> Option<Pull> {
    let mine = &loads[me.index()];
    let running = mine.nr_running();
    let mut best: Option<(core::cmp::Reverse<Distance>, u64, Pull)> = None;
    for (from, distance, load) in victims(topology, me, loads) {
        let (ahead, behind) = compare(mine, load, now);
        let difference = load.nr_running().saturating_sub(running);
        let by_count = difference >= 2 && behind < PULL_THRESHOLD.0;
        let by_time = ahead >= PULL_THRESHOLD.0;
        let (merit, max) = match (by_count, by_time) {
            (true, _) => (difference as u64, (difference / 2).min(PULL_MAX)),
            (false, true) => (0, 1),
            (false, false) => continue,
        };
        let candidate = (core::cmp::Reverse(distance), merit, Pull { from, max });
        let better = |found: &(core::cmp::Reverse<Distance>, u64, Pull)| {
            (found.1 > 0, found.0, found.1) < (merit > 0, candidate.0, merit)
        };
        if best.as_ref().is_none_or(better) {
            best = Some(candidate);
        }
    }
    best.map(|(_, _, pull)| pull)
}

/// By how much service I am ahead of the other CPU and behind it, over the window that both have seen, ns. One of
/// the two is zero.
fn compare(mine: &CpuLoad, theirs: &CpuLoad, now: Nanos) -> (u64, u64) {
    let ((my_gain, my_window), (their_gain, their_window)) = (mine.gained(now), theirs.gained(now));
    let window = Nanos(my_window.0.min(their_window.0));
    if window < WINDOW_MIN {
        return (0, 0);
    }
    let over_window = |gain: u64, of: Nanos| {
        let scaled = u128::from(gain) * u128::from(window.0) / u128::from(of.0.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    };
    let (my_gain, their_gain) = (
        over_window(my_gain, my_window),
        over_window(their_gain, their_window),
    );
    let ahead = to_service(my_gain.saturating_sub(their_gain), mine.shares());
    let behind = to_service(their_gain.saturating_sub(my_gain), theirs.shares());
    (ahead, behind)
}
