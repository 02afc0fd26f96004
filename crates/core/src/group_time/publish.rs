//! When a CPU tells the others what its groups got: [`Config::publish_interval`] after the last time for each CPU that the
//! group is on, and later only where somebody else is at the shared words. On many CPUs by way of sums (`parts`).

use super::parts::{ALONE_MAX, Cluster};
use super::{GroupTime, Here, Nowhere, Service};
use crate::config::{Config, GroupClock, Policy};
use crate::group::Group;
use crate::units::{CpuId, Nanos};
use core::sync::atomic::Ordering::Relaxed;

/// Intervals after which publishing waits for the lock.
const PATIENCE: u64 = 4;

/// How this CPU takes part in the groups' times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceClock {
    pub(crate) mode: GroupClock,
    pub(crate) cpus: u32,
    /// A CPU publishes so seldom for each CPU that the group is on, ns.
    pub(crate) batch: u64,
    /// L: what a group may be owed when it comes back, ns.
    pub(crate) credit: u64,
    global: bool,
    cluster: Cluster,
}

impl ServiceClock {
    pub(crate) fn new(config: &Config, cpu: CpuId) -> ServiceClock {
        let credit = match config.policy {
            Policy::Eevdf => config.base_slice + config.lag_limit,
            Policy::Cfs => config.sleeper_credit,
        };
        ServiceClock {
            mode: config.group_clock,
            cpus: config.cpus,
            batch: config.publish_interval.0,
            credit: credit.0,
            global: config.cpus > 1 && config.group_clock == GroupClock::Foreign,
            cluster: Cluster::of(cpu.0, config.cpus),
        }
    }

    /// Whether weights are whole on every CPU.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.mode == GroupClock::Foreign
    }

    /// Whether groups have one time for several CPUs.
    #[inline]
    pub(crate) fn is_global(&self) -> bool {
        self.global
    }

    /// What a group may owe, or be owed, without being one that cannot use its part, ns: a sleeper's credit and a poll, of which the
    /// last were `grain` ns at most, on each CPU that it is on.
    #[inline]
    pub(crate) fn slack(&self, group: &Group, grain: Nanos) -> i64 {
        let each = self.credit.saturating_add(grain.0);
        let all = each.saturating_mul(u64::from(group.time.cpus()));
        i64::try_from(all).unwrap_or(i64::MAX)
    }

    /// Publishes what has come together of a group's service, if the last time was long enough ago. Returns whether it did.
    #[inline]
    pub(crate) fn publish(
        &self,
        group: &Group,
        parent: &Group,
        service: Service,
        since: Nanos,
        here: &impl Here,
    ) -> bool {
        let cpus = group.time.cpus();
        if self.cpus.min(cpus) > ALONE_MAX {
            let is_time = service.own > 0 && since.0 >= self.batch * u64::from(self.cluster.size);
            if is_time {
                self.add_to_parts(group, parent, service, here);
            }
            return is_time;
        }
        let interval = self.batch * u64::from(cpus);
        let is_time = if self.cpus > ALONE_MAX {
            service.own >= self.batch * u64::from(2 * ALONE_MAX)
        } else {
            service.own > 0 && since.0 >= interval
        };
        if !is_time {
            return false;
        }
        if GroupTime::publish(group, &parent.time, service, here) {
            return true;
        }
        if since.0 < PATIENCE * interval {
            return false;
        }
        GroupTime::publish_now(group, &parent.time, service.own, self.credit);
        true
    }

    /// Publishes what a group got on a CPU that it is about to leave.
    pub(crate) fn publish_last(&self, group: &Group, parent: &Group, own: u64) {
        if own == 0 {
            return;
        }
        if self.cpus.min(group.time.cpus()) <= ALONE_MAX {
            return GroupTime::publish_now(group, &parent.time, own, self.credit);
        }
        let service = Service {
            own,
            credit: self.credit,
            surplus: 0,
        };
        self.add_to_parts(group, parent, service, &Nowhere);
    }

    /// Adds to the sum of this CPU's cluster, and takes that to the clock if it is enough.
    #[inline(never)]
    fn add_to_parts(&self, group: &Group, parent: &Group, service: Service, here: &impl Here) {
        let parts = &group.time.parts;
        let enough = self.batch * u64::from(self.cpus) * 17 / 16;
        let sum = parts.add(self.cluster, service.own, service.surplus);
        if sum < enough {
            return;
        }
        let (own, surplus) = parts.take(self.cluster);
        let all = Service {
            own,
            credit: self.credit,
            surplus,
        };
        if own == 0 || GroupTime::publish(group, &parent.time, all, here) {
            return;
        }
        if sum < PATIENCE * enough {
            parts.add(self.cluster, own, surplus);
        } else {
            GroupTime::publish_now(group, &parent.time, own, self.credit);
        }
    }
}

impl Group {
    /// How often CPUs have written the clock that the group's children share, this look included: what it costs other
    /// processors that group time is one for all. Begins anew after 2^64. Looking writes it too. A short lock.
    pub fn clock_writes(&self) -> u64 {
        self.time.lock().writes
    }

    /// Whether the group and each one above it owes its siblings nothing, once `running`, service of anybody's that goes on and is
    /// not charged yet, is counted. True where no sibling has anything to run, and always on one CPU. For hosts that may run more
    /// than they have CPUs. O(depth), and a short lock a level.
    pub fn is_level_after(&self, running: Nanos) -> bool {
        let mut group = self;
        while let Some(parent) = group.parent() {
            let own = u128::from(group.time.weight.load(Relaxed));
            let all = u128::from(parent.time.lock().weight.max(1));
            let gain = i64::try_from(u128::from(running.0) * own / all).unwrap_or(i64::MAX);
            if group.time.lag(&parent.time).saturating_add(gain) < 0 {
                return false;
            }
            group = parent;
        }
        true
    }

    /// Charges service from outside of all run queues to the group itself, not to those above.
    pub(crate) fn charge_outside(&self, time: Nanos) {
        let config = self.config();
        if let Some(parent) = self.parent().filter(|_| config.cpus > 1) {
            let credit = (config.base_slice + config.lag_limit).0;
            GroupTime::publish_now(self, &parent.time, time.0, credit);
        } else {
            self.service.fetch_add(time.0, Relaxed);
        }
    }
}
