//! Who of those that rest is to be looked at, and when.

use std::ops::Bound;
use std::sync::Arc;

use quotient::Group;

use super::State;
use crate::agent::tenant::Tenant;
use crate::rhythm::Pulse;
use crate::units::Micros;

/// Of how many groups that rest the clocks are read in one tick: 1,000 are all seen within 1.6 s of short ticks, and the cost does not grow with
/// their number. Ten times as many while there are tenants without a limit among them, which no throttle tells of.
const RESTING_PER_TICK: usize = 16;
const RESTING_FREE_PER_TICK: usize = 160;

/// While ticks are long so many times as many are read in one.
const RESTING_IDLE_FACTOR: usize = 4;

/// All groups are looked at this often.
///
/// Unit: microseconds. Default: 60 s.
pub(super) const ROUND: Micros = Micros::from_secs(60);

impl State {
    /// Looks at who was throttled, whether it rests or not.
    pub(super) fn hear(&mut self) {
        let mut told = Vec::new();
        self.watch.take(&mut told);
        for number in told {
            // One that was removed meanwhile has no name any more.
            let Some(path) = self.numbers.get(&number) else {
                continue;
            };
            if let Some(tenant) = self.resting.remove(path) {
                self.busy.insert(path.clone(), tenant);
            }
            if let Some(tenant) = self.busy.get_mut(path) {
                tenant.was_throttled();
            }
        }
    }

    /// Wakes those that stir, of the next [`RESTING_PER_TICK`]; all of them now and then.
    pub(super) fn wake(&mut self, now: Micros) {
        self.hear();
        if self.resting.is_empty() {
            return;
        }
        if now >= self.round_at {
            self.round_at = now + ROUND;
            self.free_rest = false;
            // With this very tick: who rests and is not due would count as somebody who needs more.
            self.resting.values_mut().for_each(Tenant::look_next);
            self.busy.append(&mut self.resting);
            return;
        }
        let above = self.parent.as_ref().map(Group::cpu_time);
        // Once the clock has moved, all of them are looked through before it counts as seen.
        if above.is_none() || above != self.above {
            self.above = above;
            self.unseen = self.resting.len();
        }
        if self.unseen == 0 {
            return;
        }
        let per_tick = match self.free_rest {
            true => RESTING_FREE_PER_TICK,
            false => RESTING_PER_TICK,
        };
        let factor = match self.pulse() {
            Pulse::Idle => RESTING_IDLE_FACTOR,
            Pulse::Quick | Pulse::Calm => 1,
        };
        let per_tick = per_tick * factor;
        let some = self.unseen.min(per_tick);
        self.unseen -= some;
        let mut stirring = Vec::new();
        let mut last = None;
        let mut see = |path: &Arc<str>, tenant: &mut Tenant| {
            if tenant.stirs(now) {
                stirring.push(path.clone());
            }
        };
        let from = match self.cursor.take() {
            Some(last) => Bound::Excluded(last),
            None => Bound::Unbounded,
        };
        let mut left = some;
        for (path, tenant) in self
            .resting
            .range_mut::<Arc<str>, _>((from, Bound::Unbounded))
        {
            if left == 0 {
                break;
            }
            left -= 1;
            see(path, tenant);
            last = Some(path);
        }
        let mut cursor = last.cloned();
        // From the beginning again.
        for (path, tenant) in self.resting.iter_mut().take(left) {
            see(path, tenant);
            cursor = Some(path.clone());
        }
        self.cursor = cursor;
        self.wake_these(stirring);
    }

    pub(super) fn wake_these(&mut self, paths: Vec<Arc<str>>) {
        for path in paths {
            if let Some(tenant) = self.resting.remove(&path) {
                self.busy.insert(path, tenant);
            }
        }
    }
}
