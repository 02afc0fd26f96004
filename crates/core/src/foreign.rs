//! Global fairness of groups over CPUs: what a group gets elsewhere is charged here.
//!
//! Every CPU runs a group at its full weight. A group present on several CPUs would thereby get its weight several
//! times over, so the service that it receives on *other* CPUs (and outside of all run queues) is charged to its
//! local entity too, as if it had been received here:
//!
//! ```text
//!     v_g,c  advances by  (own service on c + published service elsewhere while queued on c) / w_g
//! ```
//!
//! If all groups are served in proportion to their weights machine-wide, every v_g,c advances at the common rate
//! s_g / w_g, and so does every V_c: local lags stay bounded and the virtual times of all CPUs advance equally.
//! Conversely a CPU whose V_c is slow holds groups that get too little; the balancer pulls from there.
//!
//! Four rules keep this cheap and safe:
//! - **Batches.** A CPU publishes into the group's one shared counter once it has collected
//!   [`crate::Config::publish_interval`], and looks at the counter when the group is about to be chosen or put back.
//!   A late look is exact enough: foreign service only moves v forward, so a stale candidate is corrected when it
//!   gets to the head, before it is chosen. For the balancers, which compare virtual times, all that wait are looked at
//!   now and then (`run_queue::catch_up`).
//! - **Forgetting.** While a group has nothing to run on a CPU it competes for nothing there: what it gets elsewhere
//!   meanwhile is not charged when it comes back.
//! - **One lag.** All local lags of a group measure the same thing, how far it is from its share machine-wide. So when
//!   it leaves one CPU and runs on elsewhere its lag there is dropped (kept, it would be paid twice), and when it
//!   leaves the last one, the lag is kept with the group and given to whichever CPU sees it next: a group that hops
//!   between CPUs neither sheds debt nor loses credit. A task that moves takes the group's lag along, so that both
//!   CPUs aim for the same balance.
//! - **Bounded debt.** With infeasible weights (a group owed more than its tasks can use) others must get more than
//!   their share; no entity is pushed further than [`crate::Config::debt_limit`] behind V by foreign service.

use crate::config::{Config, GroupClock};
use crate::group_weight::{GroupLoad, WeightMode, weight};
use crate::load_average::averaged_load;
use crate::node::Node;
use crate::timeline::{Rules, Timeline};
use crate::units::to_virtual;
use core::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

/// Where a group is, and its lag while it is nowhere.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// CPUs on which it has something to run.
    cpus: AtomicU32,
    /// What it was owed when it left the last of them, ns of service.
    lag: AtomicI64,
}

impl Presence {
    /// The group gets something to run on a CPU. Returns the lag to start with there, ns of service: what was kept,
    /// or noted just now if a task of it moves over; nothing if it runs elsewhere and is charged for it there.
    pub(crate) fn enter(&self, moves: bool) -> i64 {
        // Two CPUs that enter and leave at once may see each other half done: one lag is then lost or left over, which
        // the clamp at the leaving side bounds.
        match (self.cpus.fetch_add(1, Relaxed), moves) {
            (0, _) => self.lag.swap(0, Relaxed),
            (_, true) => self.lag.swap(0, Relaxed),
            (_, false) => 0,
        }
    }

    /// A task of the group is about to move to another CPU: what the group is owed as seen from here.
    pub(crate) fn note(&self, lag: i64) {
        self.lag.store(lag, Relaxed);
    }

    /// A task of the group moved to where the group runs already: what was noted is not needed.
    pub(crate) fn forget_note(&self) {
        self.lag.store(0, Relaxed);
    }

    /// The group has nothing left to run on a CPU, where its lag was `lag` ns of service.
    pub(crate) fn leave(&self, lag: i64) {
        if self.cpus.fetch_sub(1, Relaxed) == 1 {
            self.lag.store(lag, Relaxed);
        }
    }
}

/// How this CPU takes part in the group clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceClock {
    pub(crate) mode: GroupClock,
    pub(crate) cpus: u32,
    /// Own service is published once this much has come together, ns; never on a single CPU.
    batch: u64,
}

impl ServiceClock {
    pub(crate) fn new(config: &Config) -> ServiceClock {
        let publishes = config.cpus > 1 && config.group_clock == GroupClock::Foreign;
        let batch = if publishes {
            config.publish_interval.0
        } else {
            u64::MAX
        };
        ServiceClock {
            mode: config.group_clock,
            cpus: config.cpus,
            batch,
        }
    }

    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.mode == GroupClock::Foreign
    }

    /// Whether a group's lag is shared by all CPUs.
    #[inline]
    pub(crate) fn shares_lag(&self) -> bool {
        self.batch != u64::MAX
    }

    /// Counts own service, and publishes it when a batch is full.
    #[inline]
    pub(crate) fn serve(&self, timeline: &mut Timeline, delta: u64) {
        if self.batch == u64::MAX {
            return;
        }
        timeline.unpublished += delta;
        if timeline.unpublished >= self.batch {
            let own = core::mem::take(&mut timeline.unpublished);
            timeline.group.service.fetch_add(own, Relaxed);
            // What I publish myself is not foreign to me.
            timeline.seen = timeline.seen.wrapping_add(own);
        }
    }
}

impl Timeline {
    /// Service that the group received elsewhere since the last look, ns. One shared load.
    #[inline]
    pub(crate) fn take_foreign(&mut self) -> u64 {
        let service = self.group.service.load(Relaxed);
        let foreign = service.wrapping_sub(self.seen);
        self.seen = service;
        foreign
    }

    /// Charges foreign service to a child group's node, which must not be queued. Returns how far v moved.
    pub(crate) fn charge_foreign<T>(&mut self, node: &mut Node<T>, foreign: u64, rules: &Rules) {
        let bound = self
            .average
            .mean()
            .plus(to_virtual(rules.debt_limit, node.shares));
        let room = bound.since(node.v).max(0).unsigned_abs();
        let distance = to_virtual(foreign, node.shares).min(room);
        node.v = node.v.plus(distance);
        self.average.advance(distance, node.shares);
        self.burst = self.burst.max(foreign);
        if !node.v.is_before(node.deadline) {
            // The request was fulfilled elsewhere.
            node.deadline = node.v.plus(to_virtual(u64::from(node.slice), node.shares));
        }
    }
}

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
