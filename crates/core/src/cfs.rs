//! The older rule: the smallest virtual runtime runs; sleepers come back a little before the others.
//!
//! The same nodes and queues as EEVDF: `ready` is keyed by v, `later` stays empty, and the monotonic minimum of the
//! virtual times takes the part of V.

use crate::eevdf::Contest;
use crate::node::Node;
use crate::timeline::{Rules, Timeline};
use crate::units::{Nanos, VirtualTime, to_virtual};

impl Timeline {
    /// The node with the least virtual time, still queued, with its key.
    #[inline]
    pub(crate) fn best_cfs(&self) -> Option<(u32, VirtualTime)> {
        self.ready.peek()
    }

    /// Places an entity at `min_v - lag`, but no more than the sleeper credit before `min_v`. A new entity starts
    /// one slice behind, so that spawning pays nothing.
    pub(crate) fn place_cfs<T>(&self, node: &mut Node<T>, lag: i64, fresh: bool, rules: &Rules) {
        let request = to_virtual(u64::from(node.slice), node.shares);
        let credit = to_virtual(rules.sleeper_credit, node.shares).cast_signed();
        let ahead = if fresh {
            -request.cast_signed()
        } else {
            lag.min(credit)
        };
        node.v = self.min_v.offset(ahead.wrapping_neg());
        node.deadline = node.v.plus(request);
    }

    /// How long the current entity may run: its part of the latency period, at least the minimal granularity, ns.
    pub(crate) fn slice_cfs<T>(&self, node: &Node<T>, rules: &Rules) -> u64 {
        let period = rules
            .latency
            .max(rules.min_granularity * u64::from(self.nr));
        let load = self.average.load().max(1);
        let part = u128::from(period) * u128::from(node.shares) / u128::from(load);
        u64::try_from(part)
            .unwrap_or(u64::MAX)
            .max(rules.min_granularity)
    }

    /// Whether `woken` is so far behind that it takes the CPU at once.
    pub(crate) fn preempts_cfs<T>(
        &self,
        woken: &Node<T>,
        contest: &Contest,
        rules: &Rules,
    ) -> bool {
        let granularity = to_virtual(rules.wakeup_granularity, woken.shares);
        contest.current_v.since(woken.v) > granularity.cast_signed()
    }
}

/// Lag that an entity which left a timeline at `since` has built up: what it had, plus the credit for the time that it
/// slept.
///
/// No credit if the minimum stood still meanwhile. The entity would go back in virtual time: one that runs for less than the
/// credit and sleeps again would do so for ever, and the others, who wait at the minimum, would not run at all.
pub(crate) fn lag_after_sleep(
    timeline: &Timeline,
    lag: i64,
    since: u64,
    now: Nanos,
    shares: u32,
) -> i64 {
    if timeline.min_moved_at.0 <= since {
        return lag;
    }
    lag.saturating_add_unsigned(to_virtual(now.0.saturating_sub(since), shares))
}

/// How far the current CFS entity may get before it is preempted.
pub(crate) fn protect_until<T>(timeline: &Timeline, node: &Node<T>, rules: &Rules) -> VirtualTime {
    node.v
        .plus(to_virtual(timeline.slice_cfs(node, rules), node.shares))
}
