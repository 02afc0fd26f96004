//! What one CPU has of one group's budget.

use super::mailbox::Mailbox;
use super::rules::CHARGE_MAX;
use super::sync::{
    AcqRel, Acquire, AtomicBool, AtomicI64, AtomicU64, Mutex, Relaxed, Release, SeqCst, fence, lock,
};
use crate::units::CpuId;
use std::sync::Arc;

/// One CPU's balance of one group, shared with whoever refills, pays or reclaims it. The module's header says who may
/// write what.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Local {
    /// What may still be run, ns; negative is a debt.
    balance: AtomicI64,
    /// What was taken off the balance for time that was run, ns.
    consumed: AtomicU64,
    /// What was taken off because its period was over, ns (slice expiry only).
    expired: AtomicU64,
    /// The period in which something was taken last.
    period: AtomicU64,
    /// Whether the CPU has anything of the group to run.
    busy: AtomicBool,
    /// Whether the group is throttled on the CPU, for others to read.
    throttled: AtomicBool,
    /// In the pool's queue of those that wait; changes under the pool's lock.
    queued: AtomicBool,
    /// In the CPU's mailbox.
    posted: AtomicBool,
    pub(super) cpu: CpuId,
    group: (u32, u32),
    /// The run queue's that serves the CPU. Its lock is taken under the pool's only.
    mailbox: Mutex<Arc<Mailbox>>,
}

impl Local {
    pub(super) fn new(cpu: CpuId, group: (u32, u32), mailbox: Arc<Mailbox>) -> Local {
        Local {
            balance: AtomicI64::new(0),
            consumed: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            period: AtomicU64::new(u64::MAX),
            busy: AtomicBool::new(false),
            throttled: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            posted: AtomicBool::new(false),
            cpu,
            group,
            mailbox: Mutex::new(mailbox),
        }
    }

    /// The run queue of `mailbox` serves the CPU and begins to charge the balance. What was posted before nobody looks at: it
    /// went to an earlier queue, or was taken out while this one charged nothing. At worst the name is then in the mailbox
    /// twice. Under the pool's lock.
    pub(super) fn serve(&self, mailbox: &Arc<Mailbox>) {
        let mut current = lock(&self.mailbox);
        if !Arc::ptr_eq(&current, mailbox) {
            *current = Arc::clone(mailbox);
        }
        self.posted.store(false, Release);
    }

    #[inline]
    pub(crate) fn balance(&self) -> i64 {
        self.balance.load(Relaxed)
    }

    /// Takes `delta` ns of service off the balance and returns what is left. The CPU itself only.
    #[inline]
    pub(crate) fn charge(&self, delta: u64) -> i64 {
        let bounded = delta.min(CHARGE_MAX);
        self.consumed
            .store(self.consumed.load(Relaxed).wrapping_add(bounded), Relaxed);
        // One read-modify-write, because a distributor may pay at the same moment.
        let amount = bounded.cast_signed();
        self.balance.fetch_sub(amount, Relaxed) - amount
    }

    /// Loses what is left from an earlier period, under the rules that expire slices. The CPU itself only.
    pub(crate) fn expire(&self, period: u64) {
        if self.period.load(Relaxed) == period {
            return;
        }
        let lost = self.take_positive();
        self.expired
            .store(self.expired.load(Relaxed) + lost.unsigned_abs(), Relaxed);
        self.period.store(period, Relaxed);
    }

    /// Adds budget from the pool. Under the pool's lock.
    pub(super) fn pay(&self, amount: i64, period: u64) {
        self.balance.fetch_add(amount, Relaxed);
        self.period.store(period, Relaxed);
    }

    /// Takes whatever is positive, by anybody. Returns the amount.
    pub(super) fn take_positive(&self) -> i64 {
        self.take_above(0)
    }

    /// Takes what exceeds `kept`.
    pub(super) fn take_above(&self, kept: i64) -> i64 {
        self.take_down_to(|_| kept)
    }

    /// Takes what is positive, up to `amount`, by anybody. Returns the amount.
    pub(super) fn take_at_most(&self, amount: i64) -> i64 {
        self.take_down_to(|balance| balance.saturating_sub(amount).max(0))
    }

    fn take_down_to(&self, kept: impl Fn(i64) -> i64) -> i64 {
        let mut balance = self.balance.load(Relaxed);
        // Bounded in practice: each failure means that the other side has made progress.
        while balance > kept(balance) {
            match self
                .balance
                .compare_exchange_weak(balance, kept(balance), Relaxed, Relaxed)
            {
                Ok(_) => return balance - kept(balance),
                Err(now) => balance = now,
            }
        }
        0
    }

    /// Notes that something is taken in a period. Returns whether that is new. Under the pool's lock.
    pub(super) fn begin_period(&self, period: u64) -> bool {
        self.period.load(Relaxed) != period && {
            self.period.store(period, Relaxed);
            true
        }
    }

    /// Replaces the balance and returns the old one. Under the pool's lock.
    pub(super) fn reset(&self, balance: i64) -> i64 {
        self.balance.swap(balance, Relaxed)
    }

    pub(super) fn consumed(&self) -> u64 {
        self.consumed.load(Relaxed)
    }

    pub(super) fn expired(&self) -> u64 {
        self.expired.load(Relaxed)
    }

    /// The CPU has something of the group to run. An idle CPU's balance may be reclaimed at the same moment; the CPU finds
    /// out when it looks at its balance.
    #[inline]
    pub(crate) fn set_busy(&self) {
        self.busy.store(true, Relaxed);
    }

    /// The CPU has nothing of the group left to run. A fence follows, and one stands before the reading of who is busy:
    /// either the one that throttles sees this CPU idle, or this CPU sees that one wait.
    pub(crate) fn clear_busy(&self) {
        self.busy.store(false, Relaxed);
        fence(SeqCst);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed)
    }

    pub(crate) fn set_throttled(&self, throttled: bool) {
        self.throttled.store(throttled, Relaxed);
    }

    pub(crate) fn is_throttled(&self) -> bool {
        self.throttled.load(Relaxed)
    }

    pub(super) fn set_queued(&self, queued: bool) {
        self.queued.store(queued, Release);
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Acquire)
    }

    /// Tells the CPU to look at the group; once until it has.
    pub(super) fn post(&self) {
        if !self.posted.swap(true, AcqRel) {
            lock(&self.mailbox).push(self.group);
        }
    }

    /// The CPU is about to look. From here on another look is asked for by another entry.
    pub(crate) fn clear_posted(&self) {
        self.posted.swap(false, AcqRel);
    }

    pub(crate) fn is_posted(&self) -> bool {
        self.posted.load(Acquire)
    }
}
