//! What a CPU's run queue knows about one of its limited groups.

use super::{Bandwidth, Local};
use crate::units::Nanos;
use std::sync::Arc;

/// Why a group that waits for budget may run nevertheless, on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// It may not, or does not wait.
    No,
    /// Tasks that defer a throttle run into debt.
    Deferring,
    /// It is soft and there is nothing else to run.
    Scavenging,
}

/// The CPU's side of a limit; there while the CPU has noticed that there is one.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) bandwidth: Arc<Bandwidth>,
    pub(crate) local: Arc<Local>,
    /// The group's entity is kept out of the timeline above.
    pub(crate) throttled: bool,
    pub(crate) opened: Opened,
    /// In the queue's list of soft groups that wait.
    pub(crate) listed: bool,
    /// Tasks in the group and below it that no throttled group below keeps back, but for those that the queue has yet to add
    /// (`RunQueue::settle_counts`).
    pub(crate) active: u32,
    /// Tasks in the group and below it that defer a throttle, and are runnable.
    pub(crate) deferring: u32,
    /// When it was throttled, and what the clock of the group above showed then.
    pub(crate) since: Nanos,
    pub(crate) above: Nanos,
    /// How long the throttle has been so far, before the last time that it was opened.
    pub(crate) length: Nanos,
}

impl Meter {
    pub(crate) fn new(bandwidth: Arc<Bandwidth>, local: Arc<Local>) -> Meter {
        Meter {
            bandwidth,
            local,
            throttled: false,
            opened: Opened::No,
            listed: false,
            active: 0,
            deferring: 0,
            since: Nanos::ZERO,
            above: Nanos::ZERO,
            length: Nanos::ZERO,
        }
    }

    /// Whether tasks that defer a throttle may run on.
    pub(crate) fn is_exempt(&self) -> bool {
        self.deferring > 0 && self.local.balance() > -self.bandwidth.overdraft()
    }

    /// Whether nothing is left here of a budget that holds.
    pub(crate) fn is_dry(&self) -> bool {
        self.local.balance() <= 0 && !self.needs_none()
    }

    /// Whether the group runs without budget as with it.
    fn needs_none(&self) -> bool {
        self.opened == Opened::Scavenging || self.bandwidth.is_ample()
    }

    /// How long the group may run before its budget has to be looked at, ns. Zero if it may not at all.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        let balance = self.local.balance();
        if balance > 0 {
            return balance.unsigned_abs();
        }
        self.room_when_dry(balance)
    }

    #[cold]
    fn room_when_dry(&self, balance: i64) -> u64 {
        if self.needs_none() {
            return u64::MAX;
        }
        if self.deferring == 0 {
            return 0;
        }
        self.bandwidth
            .overdraft()
            .saturating_add(balance)
            .max(0)
            .unsigned_abs()
    }
}
