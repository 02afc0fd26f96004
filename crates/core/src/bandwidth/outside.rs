//! Time that is spent outside the run queues: it is charged to the pool, and whoever spends it asks whether it may go on.

use std::sync::Arc;

use super::Bandwidth;
use super::timer::Timers;
use crate::units::Nanos;

impl Bandwidth {
    /// Charges time that was spent outside of the run queues in the last `lasted` ns up to `now`. O(CPUs that met the group) in debt.
    pub(crate) fn charge_outside(
        self: &Arc<Self>,
        time: Nanos,
        lasted: Nanos,
        now: Nanos,
        timers: &Timers,
    ) {
        let mut pool = self.pool();
        if pool.enabled && time > Nanos::ZERO {
            // First what is due up to now, which is capped: an idle past pays for nothing that came after it.
            let was_active = pool.active;
            pool.activate(now);
            pool.charge_outside(time.0);
            pool.recover_outside(time.0, lasted.0.max(time.0), now, was_active);
            pool.call_in();
            self.settle(&mut pool, timers);
        }
    }

    /// Whether what is spent outside the run queues has to wait at `now`: the pool owes, or has nothing and CPUs wait for what comes. Who has to
    /// is counted as one that was throttled, and lets the period timer go on. Never under a soft limit. O(CPUs that met the group).
    pub(crate) fn keeps_back_outside(self: &Arc<Self>, now: Nanos, timers: &Timers) -> bool {
        if !self.is_enabled() || self.is_soft() {
            return false;
        }
        let mut pool = self.pool();
        if !pool.enabled || pool.suffices() {
            return false;
        }
        pool.activate(now);
        let waits = pool.runtime < 0 || pool.runtime == 0 && !pool.waiting.is_empty();
        if waits {
            pool.touched = true;
            pool.throttled_lately = true;
        }
        self.settle(&mut pool, timers);
        waits
    }
}
