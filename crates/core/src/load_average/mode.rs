//! Which way a sum is kept, and changing that while it is in use.

use crate::units::Nanos;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// How the CPUs' parts get into a group's sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UpdateMode {
    /// Every CPU adds its change to one counter at every tick, even a change of nothing.
    EveryTick,
    /// The same, but a CPU does it only at the ticks of its NUMA node's turn (`tick & mask == node`), or if its last
    /// time was more than a whole round ago. What it got back it uses until that is a round old.
    NodeStaggered,
    /// Every CPU adds its change once it exceeds 1/64 of what it added so far, at most once a millisecond.
    RateLimited,
    /// Every CPU writes a cell of its own; readers add up the others' when what they have got too old.
    #[default]
    OnDemand,
}

impl UpdateMode {
    /// All modes, the plainest first.
    pub const ALL: [UpdateMode; 4] = [
        UpdateMode::EveryTick,
        UpdateMode::NodeStaggered,
        UpdateMode::RateLimited,
        UpdateMode::OnDemand,
    ];

    /// The name on command lines and in rows: `every-tick`, `node-staggered`, `rate-limited`, `on-demand`.
    pub const fn name(self) -> &'static str {
        match self {
            UpdateMode::EveryTick => "every-tick",
            UpdateMode::NodeStaggered => "node-staggered",
            UpdateMode::RateLimited => "rate-limited",
            UpdateMode::OnDemand => "on-demand",
        }
    }

    const fn from_code(code: u8) -> UpdateMode {
        match code {
            0 => UpdateMode::EveryTick,
            1 => UpdateMode::NodeStaggered,
            2 => UpdateMode::RateLimited,
            _ => UpdateMode::OnDemand,
        }
    }
}

/// What the update of a sum follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumRules {
    /// The mode.
    pub mode: UpdateMode,
    /// Node-staggered: ticks of one round, less one; `2^k - 1` with 2^k at least the number of nodes.
    pub period_mask: u64,
    /// Length of a tick, at least 1 ns.
    pub tick: Nanos,
}

impl SumRules {
    /// Rules for a machine of `nodes` NUMA nodes. A round is the smallest power of two of ticks in which every node
    /// has its own: 8 nodes take turns in 8 ticks, 5 to 7 as well, 4 in 4, one does not stagger.
    pub fn new(mode: UpdateMode, nodes: u32, tick: Nanos) -> SumRules {
        SumRules {
            mode,
            period_mask: u64::from(nodes.max(1)).next_power_of_two() - 1,
            tick: Nanos(tick.0.max(1)),
        }
    }

    /// The number of the tick that `now` belongs to.
    pub(crate) fn tick_at(&self, now: Nanos) -> u64 {
        now.0 / self.tick.0.max(1)
    }
}

/// Rules that can be changed while CPUs follow them. Each CPU follows at its next tick; until all have, the sum lacks
/// the parts of those that are between two ways.
#[derive(Debug)]
pub struct LiveRules {
    mode: AtomicU8,
    period_mask: AtomicU64,
    tick: Nanos,
}

impl LiveRules {
    /// Starts with `rules`.
    pub fn new(rules: SumRules) -> LiveRules {
        LiveRules {
            mode: AtomicU8::new(rules.mode as u8),
            period_mask: AtomicU64::new(rules.period_mask),
            tick: rules.tick,
        }
    }

    /// The rules as they are now. Two loads of a line that is hardly ever written.
    #[inline]
    pub fn get(&self) -> SumRules {
        SumRules {
            mode: UpdateMode::from_code(self.mode.load(Relaxed)),
            period_mask: self.period_mask.load(Relaxed),
            tick: self.tick,
        }
    }

    /// Changes the mode.
    pub fn set_mode(&self, mode: UpdateMode) {
        self.mode.store(mode as u8, Relaxed);
    }

    /// Changes the number of nodes among which turns are taken.
    pub fn set_nodes(&self, nodes: u32) {
        let rules = SumRules::new(UpdateMode::default(), nodes, self.tick);
        self.period_mask.store(rules.period_mask, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_a_tick_for_every_node() {
        let mask = |nodes| SumRules::new(UpdateMode::NodeStaggered, nodes, Nanos(1)).period_mask;
        let masks: Vec<u64> = [0, 1, 2, 3, 4, 5, 7, 8, 9].map(mask).to_vec();
        assert_eq!(masks, [0, 0, 1, 3, 3, 7, 7, 7, 15]);
    }

    #[test]
    fn every_mode_survives_being_live() {
        let live = LiveRules::new(SumRules::new(UpdateMode::EveryTick, 1, Nanos(1)));
        for mode in UpdateMode::ALL {
            live.set_mode(mode);
            assert_eq!(live.get().mode, mode);
        }
        live.set_nodes(8);
        assert_eq!(live.get().period_mask, 7);
    }
}
