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
//! A task that holds a lock, or was handed one, may be lent a place by a group that waits for it ([`super::line`]): then it is queued in the *lender's* group, which pays for
//! it, and its own limit does not hold it at all. That is asked whenever the task is queued ([`Deferral::seat_on`]), of the latest [`LINES`] of its locks. Children that the holder spawns,
//! its statistics, and what it may spawn into stay with its own group.
//!
//! A holder that waits in a throttled group whose debt is used up would not be dispatched in time, so who comes to wait later asks its virtual CPU to take it out: as long as
//! `queued_on` says so, which it does from a queuing where a limit may keep it back to its next sleep. Who lends pays for the search. (It was the limited group: two tasks
//! that took a lock in turns with others owed three minutes of their limit after three seconds.)
//!
//! # What a loan is not for
//! - *What comes after it.* A poll on loan that gives the lock back goes on in the lender's place until its end, or the end of its turn if it is borne, which ends then: what comes
//!   [`GRACE`] after the loan's end is charged to the task's own group (`vcpu::bill`), and counts as what that uses although it should stand (`overtime`). A group that is
//!   50 ms ahead of its limit by that is lent nothing until it has earned it. (A tenant with a limit of 1 % that shared a lock with another had 0.4
//!   CPUs: it computed after it gave the lock back, in the poll in which the other had lent it a place.)
//! - *More than a critical section*: [`LOAN_MAX`] for each time that a lock is taken. (A permit that was leaked had its task run at others' cost for ever.)
//! - *Waiting.* Who only waits for a lock, and does something else meanwhile, is lent nothing.
//!
//! *The end is not missed*: the poll's begin (P1) clears the time of the last end, (P2) fence, (P3) looks whether anybody lends, and if nobody does the loan has ended now; who
//! gives the last lock back (E1) has it no more, (E2) fence, (E3) stores the time unless there is one. Either P3 sees E1, or E3 comes after P1.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};

use quotient_core::Nanos;

use super::Line;
use crate::group::GroupShared;
use crate::local::{self, Charged};
use crate::preempt;
use crate::shielded::{Shielded, lock_shielded};

/// So many of a task's locks are asked, the latest. Unit: locks.
const LINES: usize = 16;
/// What a task may use on loan for each time that it takes a lock. Unit: nanoseconds of CPU time. 250 ms: far more than a critical section, and no endless one.
const LOAN_MAX: Nanos = Nanos::from_millis(250);
/// So much of a poll after its loan's end is still the lender's. Unit: nanoseconds. 10 us: to give a lock back and to queue for it again takes some microseconds, and a task
/// that does nothing else should owe nothing for it. (In a debug build it takes ten times that.)
const GRACE: Nanos = Nanos::from_micros(if cfg!(debug_assertions) { 100 } else { 10 });

/// What is known of a task that has, or had, guards. 2^32 guards of one task would wrap; each is held by the user in 8 bytes of
/// its own.
#[derive(Debug)]
pub(crate) struct Deferral {
    guards: AtomicU32,
    /// The locks that the task holds, or was handed; the latest at the end.
    lines: Mutex<Vec<Held>>,
    /// Number of them: saves the lock.
    held: AtomicUsize,
    /// It was noted in one of them.
    is_noted: AtomicBool,
    /// The scheduler and the group that the task was in when it took its first guard.
    home: Charged,
    /// It was queued in another group's place last.
    is_seated: AtomicBool,
    /// What it has used on loan. Unit: nanoseconds; 2^64 would wrap, after 584 years.
    lent: AtomicU64,
    /// When the loan ended in the poll in progress, if that began on loan; 0 if it did not. Unit: nanoseconds of the scheduler's clock.
    unlent_at: AtomicU64,
    /// The virtual CPU that has queued the task where a limit may keep it back, plus one; 0 while it is not so.
    queued_on: AtomicU32,
}

/// One lock of a task.
#[derive(Debug)]
struct Held {
    line: Arc<Line>,
    /// Permits, and a wait that was granted.
    times: u32,
    /// What the task had used on loan when it took it.
    from: u64,
}

impl Deferral {
    pub(crate) fn new(home: Charged) -> Self {
        Self {
            guards: AtomicU32::new(0),
            lines: Mutex::default(),
            held: AtomicUsize::new(0),
            is_noted: AtomicBool::new(false),
            home,
            is_seated: AtomicBool::new(false),
            lent: AtomicU64::new(0),
            unlent_at: AtomicU64::new(0),
            queued_on: AtomicU32::new(0),
        }
    }

    /// Whether a guard lives.
    pub(crate) fn is_active(&self) -> bool {
        self.guards.load(Ordering::Relaxed) > 0
    }

    // ---- the side of the locks

    /// The task holds a lock, or is handed it; any thread. O(1) for a lock that it took lately.
    pub(crate) fn takes(self: &Arc<Self>, line: &Arc<Line>) {
        let mut lines = self.lock();
        let known = lines.iter_mut().rfind(|held| Arc::ptr_eq(&held.line, line));
        match known {
            Some(held) => held.times = held.times.saturating_add(1),
            None => lines.push(Held {
                line: line.clone(),
                times: 1,
                from: self.lent.load(Ordering::Relaxed),
            }),
        }
        self.held.store(lines.len(), Ordering::SeqCst);
        drop(lines);
        preempt::notes_a_lock(self);
    }

    /// The task, which waits, is handed the lock; any thread. It may be queued at the time, having been woken for another reason: then it has not asked for a
    /// place, which it holds the lock in. (H1: it has the lock; H2: where it is queued. S1 of [`Deferral::seat_on`]: where it is queued; S2: whether it has a lock. One of them sees
    /// the other's.)
    pub(crate) fn is_handed(self: &Arc<Self>, line: &Arc<Line>) {
        self.takes(line);
        self.is_queued_already();
    }

    /// It gives that back; any thread. O(1) for a lock that it took lately.
    pub(crate) fn lets_go(self: &Arc<Self>, line: &Arc<Line>) {
        let mut lines = self.lock();
        let place = lines.iter().rposition(|held| Arc::ptr_eq(&held.line, line));
        let gone = place.and_then(|place| {
            let held = lines.get_mut(place)?;
            held.times = held.times.saturating_sub(1);
            (held.times == 0).then(|| lines.remove(place))
        });
        self.held.store(lines.len(), Ordering::SeqCst);
        drop(lines);
        if gone.is_none() {
            return;
        }
        if self.is_noted.load(Ordering::Relaxed) {
            line.forget(self);
        }
        fence(Ordering::SeqCst);
        if self.is_seated.load(Ordering::Relaxed) && !self.is_lent(&self.home.1) {
            self.is_seated.store(false, Ordering::Relaxed);
            self.ends_loan(self.home.0.now());
            preempt::ends_loan(&self.home.0, self);
        }
    }

    /// Somebody waits for one of its locks: it is to be queued anew if a limit of `own` keeps it back.
    pub(super) fn is_asked_for(&self, own: &Arc<GroupShared>) {
        if let Some(vcpu) = self.queued_on.load(Ordering::SeqCst).checked_sub(1) {
            self.home.0.ask_to_release(vcpu as usize, own);
        }
    }

    // ---- the side of the virtual CPU that has the task

    /// The task, of the group `own`, is about to be queued on `vcpu`, where `is_throttled` says of groups: the group that lends it a place, if any does and that is
    /// better. O(locks x depth), of [`LINES`] locks.
    pub(crate) fn seat_on(
        self: &Arc<Self>,
        vcpu: u32,
        own: &Arc<GroupShared>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Option<Arc<GroupShared>> {
        // Before the note: who takes that sees it.
        self.queued_on
            .store(vcpu.saturating_add(1), Ordering::SeqCst);
        let seat = self.ask(own, is_throttled);
        self.is_seated.store(seat.is_some(), Ordering::Relaxed);
        if !seat.as_ref().unwrap_or(own).is_limited() {
            self.is_not_kept_back();
        }
        seat
    }

    fn ask(
        self: &Arc<Self>,
        own: &Arc<GroupShared>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Option<Arc<GroupShared>> {
        if self.held.load(Ordering::SeqCst) == 0 || self.has_gone_on(own) {
            return None;
        }
        let lent = self.lent.load(Ordering::Relaxed);
        let whose = (&self.home.0, own);
        self.is_noted.store(true, Ordering::Relaxed);
        let lines = self.lock();
        let latest = lines.iter().rev().take(LINES);
        latest
            .filter(|held| lent.wrapping_sub(held.from) < LOAN_MAX.as_nanos())
            .find_map(|held| held.line.lender_or_note(self, whose, is_throttled))
    }

    /// Whether `own`, or a group above it, has gone on after loans for 50 ms more than its limit has earned (`preempt::overtime`).
    fn has_gone_on(&self, own: &Arc<GroupShared>) -> bool {
        own.is_limited() && preempt::is_used_up(own, Nanos::ZERO, self.home.0.now())
    }

    /// The task sleeps, or sits where no limit keeps it back. By the holder of its token, before it lets go of that.
    pub(crate) fn is_not_kept_back(&self) {
        self.queued_on.store(0, Ordering::Relaxed);
    }

    /// What stands for the task was queued on `vcpu` before it took a lock.
    pub(crate) fn is_queued_on(self: &Arc<Self>, vcpu: u32) {
        self.queued_on
            .store(vcpu.saturating_add(1), Ordering::SeqCst);
        self.is_queued_already();
    }

    /// The task may have been queued before it took its latest lock: it is asked for now, or when somebody comes who may lend it a place.
    fn is_queued_already(self: &Arc<Self>) {
        if self.queued_on.load(Ordering::SeqCst) == 0 {
            return;
        }
        let line = self.lock().last().map(|held| held.line.clone());
        let Some(line) = line else { return };
        self.is_noted.store(true, Ordering::Relaxed);
        let own = &self.home.1;
        // The note first: who comes after it takes it. Whether a place is better is found out as the task is queued anew.
        line.note(self, own);
        if line.may_lend(&self.home.0, own) {
            self.is_asked_for(own);
        }
    }

    /// Whether any group may lend the task, of the group `own`, a place.
    pub(crate) fn is_lent(&self, own: &Arc<GroupShared>) -> bool {
        self.any_line(|line| line.may_lend(&self.home.0, own))
    }

    /// Whether `lender` still waits for what the task holds.
    pub(crate) fn is_lent_by(&self, lender: &Arc<GroupShared>) -> bool {
        self.any_line(|line| line.has(lender))
    }

    fn any_line(&self, is_so: impl Fn(&Line) -> bool) -> bool {
        if self.held.load(Ordering::Acquire) == 0 {
            return false;
        }
        let lines = self.lock();
        let mut latest = lines.iter().rev().take(LINES);
        latest.any(|held| is_so(&held.line))
    }

    /// A poll in the place of a lender begins at `now` (P1 to P3).
    pub(crate) fn begins_on_loan(&self, own: &Arc<GroupShared>, now: Nanos) {
        self.unlent_at.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !self.is_lent(own) {
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

    /// It has used `time` in a lender's place.
    pub(crate) fn uses_loan(&self, time: Nanos) {
        self.lent.fetch_add(time.as_nanos(), Ordering::Relaxed);
    }

    fn ends_loan(&self, now: Nanos) {
        let now = now.as_nanos().max(1);
        let _ = self
            .unlent_at
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn lock(&self) -> Shielded<'_, Vec<Held>> {
        lock_shielded(&self.lines)
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
