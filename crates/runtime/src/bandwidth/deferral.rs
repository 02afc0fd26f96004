//! Tasks that are not to be left throttled: holders of something that others wait for.
//!
//! # Protocol
//! A task has at most one [`Deferral`], a count of its live guards, made with its first guard. Guards may go anywhere and be
//! dropped on any thread: they only touch the count. The task's own poll is what makes the count mean something: at its end the
//! virtual CPU takes the deferral from the thread's notes into the task's `Owned`, and tells the core, before the poll is
//! charged, whether the count is above zero. So a guard that is taken and dropped within one poll costs the core nothing, a
//! throttle that this very poll brings about is deferred already, and a guard that is dropped elsewhere ends the exemption at
//! the task's next poll.
//!
//! # Loans
//! Who waits for the holder may lend it a place: then the holder is queued in the *lender's* group, which pays for it, and its own
//! limit does not hold it at all. The loan is read by the holder of the task's token whenever it queues the task ([`Deferral::seat`]);
//! a task that is already queued in a throttled group is dispatched by the deferral, within its bounds, and moves then. Children that
//! the holder spawns, its statistics, and what it may spawn into stay with its own group. No task without a limit takes the place of a group with
//! one (where it would wait for that one's budget), whatever was lent before either got its limit.
//!
//! A holder that waits in a throttled group whose debt is used up would not be dispatched in time, so who lends also asks its virtual
//! CPU to take it out. *No loan is missed*: the queuing side (Q1) notes the virtual CPU in `queued_on`, (Q2) fence, (Q3) reads
//! the loans; the lender (L1) stores the loan, (L2) fence, (L3) reads `queued_on`. Either Q3 sees the loan, or L3 sees the virtual
//! CPU and asks it, which looks when the queuing is over, since both are done by that virtual CPU.
//!
//! `queued_on` is cleared when the task goes to sleep, and (Q4) by the queuing side if Q3 has found a place without a limit: nobody asks for who is not
//! kept back, since the search that follows, some ten microseconds, is charged to the task's own group. (Two limited tasks that took a lock in turns
//! with others were charged with 60 ms of searches a second, and owed three minutes of their limit after three seconds.)
//!
//! # What is paid by whom
//! A poll on loan that gives the lock back goes on in the lender's place until its end, or the end of its turn if it is borne: what comes [`GRACE`] after the
//! loan's end is charged to the task's own group (`vcpu::bill`). *The end is not missed*: the poll's begin (P1) clears the time of the last end, (P2) fence, (P3) reads
//! the number of loans, and if there is none they have ended now; the end (E1) stores the number, (E2) fence, (E3) stores its time unless
//! there is one. Either P3 sees E1, or E3 comes after P1. (Else a tenant with a limit of 1 % that shared a lock with another had 0.4 CPUs: it computed
//! after it gave the lock back, in the poll in which the other had lent it a place.)

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

use quotient_core::Nanos;

use crate::group::GroupShared;
use crate::local::{self, Charged};
use crate::shielded::{Shielded, lock_shielded};

/// So much of a poll after its loan's end is still the lender's. Unit: nanoseconds. 100 us: to give a lock back and to queue for it again takes some microseconds, and a task
/// that does nothing else should owe nothing for it (two of them owed 70 ms for each second under a limit of 1 ms).
const GRACE: Nanos = Nanos::from_micros(100);

/// What is known of a task that has, or had, guards. 2^32 guards of one task would wrap; each is held by the user in 8 bytes of
/// its own.
#[derive(Debug)]
pub(crate) struct Deferral {
    guards: AtomicU32,
    /// Number of loans: saves the lock.
    loans: AtomicU32,
    lenders: Mutex<Vec<(Loan, Arc<GroupShared>)>>,
    /// The scheduler and the group that the task was in when it took its first guard.
    home: Charged,
    /// When the last loan ended in the poll in progress, if that began on loan; 0 if none did. Unit: nanoseconds of the scheduler's clock.
    unlent_at: AtomicU64,
    /// The virtual CPU that has queued the task where a limit may keep it back, plus one; 0 while it is not so.
    queued_on: AtomicU32,
}

/// Names a loan among those of one task: by which lock, and whether the task holds it, or is about to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loan {
    /// Its address.
    lock: usize,
    role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Holder(usize),
    Waiter(u64),
}

impl Loan {
    /// To who holds `lock`, in one of its places for holders.
    pub(crate) fn to_holder(lock: usize, place: usize) -> Self {
        let role = Role::Holder(place);
        Self { lock, role }
    }

    /// To who waits for `lock`, by its number.
    pub(crate) fn to_waiter(lock: usize, number: u64) -> Self {
        let role = Role::Waiter(number);
        Self { lock, role }
    }
}

impl Deferral {
    pub(crate) fn new(home: Charged) -> Self {
        Self {
            guards: AtomicU32::new(0),
            loans: AtomicU32::new(0),
            lenders: Mutex::new(Vec::new()),
            home,
            unlent_at: AtomicU64::new(0),
            queued_on: AtomicU32::new(0),
        }
    }

    /// Whether a guard lives.
    pub(crate) fn is_active(&self) -> bool {
        self.guards.load(Ordering::Relaxed) > 0
    }

    /// The task, of the group `own`, is about to be queued on `vcpu`: the group that lends it a place, if any does (Q1 to Q4).
    pub(crate) fn seat_on(&self, vcpu: u32, own: &GroupShared) -> Option<Arc<GroupShared>> {
        self.queued_on
            .store(vcpu.saturating_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seat = self.seat(own);
        let is_limited = seat.as_deref().unwrap_or(own).is_limited();
        if !is_limited {
            self.is_not_kept_back();
        }
        seat
    }

    /// The task, or what stands for it, was queued on `vcpu` before it took its first guard.
    pub(crate) fn is_queued_on(&self, vcpu: u32) {
        let vcpu = vcpu.saturating_add(1);
        let _ = self
            .queued_on
            .compare_exchange(0, vcpu, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The task sleeps, or sits where no limit keeps it back. By the holder of its token, before it lets go of that.
    pub(crate) fn is_not_kept_back(&self) {
        self.queued_on.store(0, Ordering::Relaxed);
    }

    /// The group that lends the task, of the group `own`, a place, if any does.
    pub(crate) fn seat(&self, own: &GroupShared) -> Option<Arc<GroupShared>> {
        if self.loans.load(Ordering::Acquire) == 0 {
            return None;
        }
        let lenders = self.lock();
        let helps = |lender: &GroupShared| own.is_limited() || !lender.is_limited();
        let mut lenders = lenders.iter().map(|(_, group)| group);
        lenders.find(|lender| helps(lender)).cloned()
    }

    /// A poll in the place of a lender begins at `now` (P1 to P3).
    pub(crate) fn begins_on_loan(&self, now: Nanos) {
        self.unlent_at.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.loans.load(Ordering::Relaxed) == 0 {
            self.ends_loan(now);
        }
    }

    /// What of the poll, on loan from `started` on, is the task's own affair at `now`: its loan has ended, and after [`GRACE`] it goes on still.
    pub(crate) fn own_part(&self, started: Nanos, now: Nanos) -> Nanos {
        match self.unlent_at.load(Ordering::Relaxed) {
            0 => Nanos::ZERO,
            at => {
                let own = Nanos(at).max(started).saturating_add(GRACE);
                now.saturating_sub(own)
            }
        }
    }

    fn ends_loan(&self, now: Nanos) {
        let now = now.as_nanos().max(1);
        let _ = self
            .unlent_at
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether a loan from `lender` would help: another group of the same scheduler, which is not limited if the task's own is not.
    pub(crate) fn can_borrow(&self, lender: &Charged) -> bool {
        let (shared, own) = &self.home;
        Arc::ptr_eq(shared, &lender.0)
            && !Arc::ptr_eq(own, &lender.1)
            && (own.is_limited() || !lender.1.is_limited())
    }

    /// Makes, replaces or ends the loan `name`.
    pub(crate) fn lend(&self, name: Loan, lender: Option<Arc<GroupShared>>) {
        let lent = lender.is_some();
        self.note_lender(name, lender);
        if !lent {
            return;
        }
        fence(Ordering::SeqCst);
        let (shared, group) = &self.home;
        if let Some(vcpu) = self.queued_on.load(Ordering::Relaxed).checked_sub(1)
            && group.is_limited()
        {
            shared.ask_to_release(vcpu as usize, group);
        }
    }

    fn note_lender(&self, name: Loan, lender: Option<Arc<GroupShared>>) {
        let mut lenders = self.lock();
        lenders.retain(|(known, _)| *known != name);
        lenders.extend(lender.map(|group| (name, group)));
        let count = u32::try_from(lenders.len()).unwrap_or(u32::MAX);
        self.loans.store(count, Ordering::Release);
        if count == 0 {
            fence(Ordering::SeqCst);
            self.ends_loan(self.home.0.now());
        }
    }

    fn lock(&self) -> Shielded<'_, Vec<(Loan, Arc<GroupShared>)>> {
        lock_shielded(&self.lenders)
    }
}

/// Guard of [`defer_throttle`].
#[derive(Debug)]
#[must_use = "the throttle is deferred only while the guard lives"]
pub struct ThrottleGuard {
    deferral: Option<Arc<Deferral>>,
}

impl ThrottleGuard {
    /// Whether it guards a task.
    pub fn is_active(&self) -> bool {
        self.deferral.is_some()
    }

    pub(crate) fn deferral(&self) -> Option<&Arc<Deferral>> {
        self.deferral.as_ref()
    }
}

impl Drop for ThrottleGuard {
    fn drop(&mut self) {
        if let Some(deferral) = &self.deferral {
            deferral.guards.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Keeps the current task from being left throttled while the guard lives, since it holds something for which other tasks wait.
///
/// Its group then runs on into debt on the virtual CPU where the task is, by at most the smaller of its quota and 10 ms; later refills
/// pay the debt first. Beyond that bound the task is throttled like any other. Nests. Outside a task of a scheduler, and while no
/// group of the process has a limit, the guard does nothing.
///
/// ```
/// # async fn critical_section() {}
/// # async fn example() {
/// let _guard = quotient::defer_throttle();
/// critical_section().await;
/// # }
/// ```
pub fn defer_throttle() -> ThrottleGuard {
    let deferral = local::deferral();
    if let Some(deferral) = &deferral {
        deferral.guards.fetch_add(1, Ordering::Relaxed);
    }
    ThrottleGuard { deferral }
}
