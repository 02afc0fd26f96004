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
//! it, and its own limit does not hold it at all. That is asked whenever the task is queued ([`Deferral::seat_on`]), of the latest [`LOCKS`] of its locks. Children that the holder spawns,
//! its statistics, and what it may spawn into stay with its own group.
//!
//! What is known of a task, its locks, where it was queued last if a limit may keep it back there, and in whose place, is behind one lock. So of a task that is handed a lock while it is
//! being queued one of the two sees the other. The lock comes before those of its lines, is short and shielded, and what is taken out is dropped after it.
//!
//! A holder that waits in a throttled group whose debt is used up would not be dispatched in time, so who comes to wait later asks the virtual CPU of its place to take it out. Who lends
//! pays for the search. (It was the limited group: two tasks that took a lock in turns with others owed three minutes of their limit after three seconds.) The place is where it *is*
//! queued: it may have been moved to another group since it took its first guard, or sit in a lender's place that has run out of budget, and was looked for in vain then.
//!
//! # What a loan is not for
//! - *What comes after it.* A poll on loan that gives the lock back goes on in the lender's place until its end, or the end of its turn if it is borne, which ends then: what comes
//!   [`GRACE`] after the loan's end is charged to the task's own group (`vcpu::bill`), and counts as what that uses although it should stand (`overtime`). A group that is
//!   50 ms ahead of its limit by that is lent nothing until it has earned it. (A tenant with a limit of 1 % that shared a lock with another had 0.4
//!   CPUs: it computed after it gave the lock back, in the poll in which the other had lent it a place.) The loan ends when *that lender* waits for nothing of the task's any more: others
//!   may go on waiting for another lock. (With an accomplice that did, of its own group, it had 0.92 CPUs.)
//! - *More than a critical section*: [`LOAN_MAX`] for each time that a lock is taken. (A permit that was leaked had its task run at others' cost for ever.)
//! - *Waiting.* Who only waits for a lock, and does something else meanwhile, is lent nothing.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use quotient_core::Nanos;
use quotient_pause::in_one_step;

use super::Line;
use super::line::{Asking, Note};
use crate::group::GroupShared;
use crate::local;
use crate::preempt;
use crate::shared::Shared;

/// So many of a task's locks are known, the latest: all that is done with them is bounded by it. Unit: locks.
const LOCKS: usize = 16;
/// What a task may use on loan for each time that it takes a lock. Unit: nanoseconds of CPU time. 250 ms: far more than a critical section, and no endless one.
const LOAN_MAX: Nanos = Nanos::from_millis(250);
/// So much of a poll after its loan's end is still the lender's. Unit: nanoseconds. 10 us: to give a lock back and to queue for it again takes some microseconds, and a task
/// that does nothing else should owe nothing for it. (In a debug build it takes ten times that.)
const GRACE: Nanos = Nanos::from_micros(if cfg!(debug_assertions) { 100 } else { 10 });

/// What is known of a task that has, or had, guards. 2^32 guards of one task would wrap; each is held by the user in 8 bytes of
/// its own. Guards that the program forgets keep this, and nothing of the scheduler.
#[derive(Debug)]
pub(crate) struct Deferral {
    guards: AtomicU32,
    scheduler: Weak<Shared>,
    books: Mutex<Books>,
    /// Number of its locks, and whether it has a place: saves the lock.
    held: AtomicUsize,
    has_place: AtomicBool,
    /// It is in the list of `kept_back`.
    pub(super) is_listed: AtomicBool,
    /// What it has used on loan. Unit: nanoseconds; 2^64 would wrap, after 584 years.
    lent: AtomicU64,
    /// When the loan ended in the poll in progress, if that began on loan; 0 if it did not. Unit: nanoseconds of the scheduler's clock.
    unlent_at: AtomicU64,
}

#[derive(Debug, Default)]
struct Books {
    /// The locks that the task holds, or was handed; the latest at the end.
    locks: Vec<Held>,
    /// Where it was queued last, if a limit may keep it back there.
    place: Option<Place>,
    /// Who has lent it the place that it was queued in last.
    lender: Option<Arc<GroupShared>>,
}

/// One lock of a task.
#[derive(Debug)]
struct Held {
    line: Arc<Line>,
    /// Permits, and a wait that was granted.
    times: u32,
    /// What the task had used on loan when it took it.
    from: u64,
    note: Option<Note>,
}

/// What is left to be done once a task has a lock.
#[must_use = "somebody may wait for it"]
pub(crate) struct Taken {
    evicted: Option<Held>,
    is_asked_for: bool,
}

/// Where a task is queued.
#[derive(Clone, Debug)]
struct Place {
    vcpu: u32,
    /// Its own group.
    own: Arc<GroupShared>,
    /// That, or the lender.
    of: Arc<GroupShared>,
}

impl Held {
    /// Whether it is a reason to lend the task anything, who has used `lent` on loan.
    fn counts(&self, lent: u64) -> bool {
        lent.wrapping_sub(self.from) < LOAN_MAX.as_nanos()
    }
}

/// Whether `lender` waits for one of the locks of a task that has used `lent` on loan.
fn are_wanted_by(locks: &[Held], lender: &Arc<GroupShared>, lent: u64) -> bool {
    let mut locks = locks.iter().filter(|held| held.counts(lent));
    locks.any(|held| held.line.has(lender))
}

impl Deferral {
    pub(crate) fn new(scheduler: &Arc<Shared>) -> Self {
        Self {
            guards: AtomicU32::new(0),
            scheduler: Arc::downgrade(scheduler),
            books: Mutex::default(),
            held: AtomicUsize::new(0),
            has_place: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            lent: AtomicU64::new(0),
            unlent_at: AtomicU64::new(0),
        }
    }

    /// Whether a guard lives.
    pub(crate) fn is_active(&self) -> bool {
        self.guards.load(Ordering::Relaxed) > 0
    }

    fn asking<'a>(self: &'a Arc<Self>, own: &'a Arc<GroupShared>) -> Asking<'a> {
        Asking {
            deferral: self,
            scheduler: self.scheduler.as_ptr().addr(),
            own,
        }
    }

    // ---- the side of the locks

    /// The task holds a lock, or is handed it; any thread. O(1). It may be queued at the time, having been woken for another reason, or borne: then it has not asked for a place with that lock,
    /// and does so when it is asked for, now or by who comes to wait.
    pub(crate) fn takes(self: &Arc<Self>, line: &Arc<Line>) {
        let taken = self.has_taken(line);
        self.follow(taken);
        preempt::notes_a_lock(self);
    }

    /// The first half of that, for who has a lock that comes before this one's; [`Deferral::follow`] is the second.
    pub(crate) fn has_taken(self: &Arc<Self>, line: &Arc<Line>) -> Taken {
        in_one_step(|| {
            let mut books = self.lock();
            let evicted = self.add(&mut books, line);
            let Books { locks, place, .. } = &mut *books;
            let is_asked_for = self.note_all(place.as_ref(), locks);
            Taken {
                evicted,
                is_asked_for,
            }
        })
    }

    /// The second half.
    pub(crate) fn follow(self: &Arc<Self>, taken: Taken) {
        self.forget(taken.evicted);
        if taken.is_asked_for {
            self.is_asked_for();
        }
    }

    /// What is not known any more for it.
    fn add(&self, books: &mut Books, line: &Arc<Line>) -> Option<Held> {
        let mut known = books.locks.iter_mut().rev();
        if let Some(held) = known.find(|held| Arc::ptr_eq(&held.line, line)) {
            held.times = held.times.saturating_add(1);
            return None;
        }
        let evicted = (books.locks.len() >= LOCKS).then(|| books.locks.remove(0));
        books.locks.push(Held {
            line: line.clone(),
            times: 1,
            from: self.lent.load(Ordering::Relaxed),
            note: None,
        });
        self.held.store(books.locks.len(), Ordering::Relaxed);
        evicted
    }

    /// It gives that back; any thread. O(1).
    pub(crate) fn lets_go(self: &Arc<Self>, line: &Arc<Line>) {
        let (gone, lender) = in_one_step(|| {
            let mut books = self.lock();
            let books = &mut *books;
            let mut known = books.locks.iter_mut().enumerate().rev();
            let found = known.find(|(_, held)| Arc::ptr_eq(&held.line, line));
            let Some((place, held)) = found else {
                return (None, None);
            };
            held.times = held.times.saturating_sub(1);
            if held.times > 0 {
                return (None, None);
            }
            let gone = books.locks.remove(place);
            self.held.store(books.locks.len(), Ordering::Relaxed);
            let lent = self.lent.load(Ordering::Relaxed);
            let locks = &books.locks;
            let ends = |lender: &mut Arc<GroupShared>| !are_wanted_by(locks, lender, lent);
            (Some(gone), books.lender.take_if(ends))
        });
        self.forget(gone);
        if lender.is_some()
            && let Some(shared) = self.scheduler.upgrade()
        {
            self.ends_loan(shared.now());
            preempt::ends_loan(&shared, self);
        }
    }

    /// One of its locks is not known any more.
    fn forget(self: &Arc<Self>, gone: Option<Held>) {
        if let Some(held) = gone
            && let Some(note) = held.note
        {
            held.line.forget(self, note);
        }
    }

    /// Somebody may lend it a place: it is to be queued anew if a limit keeps it back.
    pub(super) fn is_asked_for(&self) {
        if !self.has_place.load(Ordering::Relaxed) {
            return;
        }
        let place = in_one_step(|| self.lock().place.clone());
        if let Some(place) = place
            && let Some(shared) = self.scheduler.upgrade()
        {
            shared.ask_to_release(place.vcpu as usize, &place.of);
        }
    }

    // ---- the side of the virtual CPU that has the task

    /// The task, of the group `own`, is about to be queued on `vcpu`, where `is_throttled` says of groups: the group that lends it a place, if any does and that is
    /// better. O(locks x groups x depth), of [`LOCKS`] locks.
    pub(crate) fn seat_on(
        self: &Arc<Self>,
        vcpu: u32,
        own: &Arc<GroupShared>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Option<Arc<GroupShared>> {
        let holds = self.held.load(Ordering::Relaxed) > 0;
        // (Who is handed one just now is queued where nothing keeps it back.)
        if !holds && !own.is_limited() && !self.has_place.load(Ordering::Relaxed) {
            return None;
        }
        let asks = !self.has_gone_on(own);
        let (seat, is_waited_for, former) = in_one_step(|| {
            let mut books = self.lock();
            let (seat, is_waited_for) = match asks {
                true => self.ask(&mut books, own, is_throttled),
                false => (None, false),
            };
            let of = seat.as_ref().unwrap_or(own);
            let place = of.is_limited().then(|| Place {
                vcpu,
                own: own.clone(),
                of: of.clone(),
            });
            self.has_place.store(place.is_some(), Ordering::Relaxed);
            let is_waited_for = is_waited_for && place.is_some();
            let former = std::mem::replace(&mut books.place, place);
            let lender = std::mem::replace(&mut books.lender, seat.clone());
            (seat, is_waited_for, (former, lender))
        });
        drop(former);
        if is_waited_for
            && !self.is_listed.load(Ordering::Relaxed)
            && let Some(shared) = self.scheduler.upgrade()
        {
            shared.holders.list(self);
            shared.tick.run();
        }
        seat
    }

    /// Whose place is better, if anybody's is, and whether anybody waits; it is noted where it is to be.
    fn ask(
        self: &Arc<Self>,
        books: &mut Books,
        own: &Arc<GroupShared>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> (Option<Arc<GroupShared>>, bool) {
        let lent = self.lent.load(Ordering::Relaxed);
        let (mut seat, mut is_waited_for) = (None, false);
        let latest = books.locks.iter_mut().rev();
        for held in latest.filter(|held| held.counts(lent)) {
            let found = held
                .line
                .ask(&self.asking(own), &mut held.note, is_throttled);
            is_waited_for |= found.is_waited_for;
            match found.lender {
                Some(lender) if !lender.is_limited() => return (Some(lender), true),
                lender => seat = seat.or(lender),
            }
        }
        (seat, is_waited_for)
    }

    /// Whether `own`, or a group above it, has gone on after loans for 50 ms more than its limit has earned (`preempt::overtime`).
    fn has_gone_on(&self, own: &Arc<GroupShared>) -> bool {
        own.is_limited()
            && self.held.load(Ordering::Relaxed) > 0
            && self
                .scheduler
                .upgrade()
                .is_some_and(|shared| preempt::is_used_up(own, Nanos::ZERO, shared.now()))
    }

    /// The task sleeps, or has ended. By the holder of its token, before it lets go of that.
    pub(crate) fn is_not_kept_back(&self) {
        if self.has_place.swap(false, Ordering::Relaxed) {
            let former = in_one_step(|| self.lock().place.take());
            drop(former);
        }
    }

    /// What stands for the task, of the group `own`, was queued on `vcpu` before it took a lock: it is asked for now, or when somebody comes who may lend it a place.
    pub(crate) fn is_queued_on(self: &Arc<Self>, vcpu: u32, own: &Arc<GroupShared>) {
        let (is_asked_for, former) = in_one_step(|| {
            let mut books = self.lock();
            let place = own.is_limited().then(|| Place {
                vcpu,
                own: own.clone(),
                of: own.clone(),
            });
            self.has_place.store(place.is_some(), Ordering::Relaxed);
            let is_asked_for = self.note_all(place.as_ref(), &mut books.locks);
            (is_asked_for, std::mem::replace(&mut books.place, place))
        });
        drop(former);
        if is_asked_for {
            self.is_asked_for();
        }
    }

    /// Notes it in all its lines, if it has a place; whether anybody waits who may lend it another one. (Whether that is better is found out as it is queued anew.)
    fn note_all(self: &Arc<Self>, place: Option<&Place>, locks: &mut [Held]) -> bool {
        let Some(place) = place else { return false };
        let lent = self.lent.load(Ordering::Relaxed);
        let mut is_waited_for = false;
        for held in locks.iter_mut().filter(|held| held.counts(lent)) {
            is_waited_for |= held.line.note(&self.asking(&place.own), &mut held.note);
        }
        is_waited_for
    }

    /// Whether any group may lend the task, of the group `own`, a place. If not it is noted again, should it be queued where it may be kept back.
    pub(crate) fn is_lent(self: &Arc<Self>, own: &Arc<GroupShared>) -> bool {
        if self.held.load(Ordering::Relaxed) == 0 {
            return false;
        }
        in_one_step(|| {
            let mut books = self.lock();
            let Books { locks, place, .. } = &mut *books;
            if place.is_some() {
                return self.note_all(place.as_ref(), locks);
            }
            let lent = self.lent.load(Ordering::Relaxed);
            let scheduler = self.scheduler.as_ptr().addr();
            let mut counting = locks.iter().filter(|held| held.counts(lent));
            counting.any(|held| held.line.may_lend(scheduler, own))
        })
    }

    /// Whether `lender` still waits for what the task holds.
    pub(crate) fn is_lent_by(&self, lender: &Arc<GroupShared>) -> bool {
        let lent = self.lent.load(Ordering::Relaxed);
        self.held.load(Ordering::Relaxed) > 0
            && in_one_step(|| are_wanted_by(&self.lock().locks, lender, lent))
    }

    /// A poll in the place of a lender begins at `now`. Its loan's end is not missed: it was before, or is noted by who gives the lock back.
    pub(crate) fn begins_on_loan(&self, now: Nanos) {
        in_one_step(|| {
            let books = self.lock();
            self.unlent_at.store(0, Ordering::Relaxed);
            let lent = self.lent.load(Ordering::Relaxed);
            let lender = books.lender.as_ref();
            if !lender.is_some_and(|lender| are_wanted_by(&books.locks, lender, lent)) {
                self.ends_loan(now);
            }
        });
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

    /// How many locks it is known to hold.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn locks(&self) -> usize {
        self.lock().locks.len()
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
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
