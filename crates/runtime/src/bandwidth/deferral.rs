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
//! What is known of a task, its locks, where it is queued, and in whose place, is behind one lock. So of a task that is handed a lock while it is
//! being queued one of the two sees the other. The lock comes before those of its lines, is short and shielded, and what is taken out is dropped after it.
//!
//! A holder that waits in a throttled group whose debt is used up would not be dispatched in time, so who comes to wait later asks the virtual CPU of its place to take it out. Who lends
//! pays for the search. (It was the limited group: two tasks that took a lock in turns with others owed three minutes of their limit after three seconds.) The place is where it *is*
//! queued: it may have been moved to another group since it took its first guard, or sit in a lender's place that has run out of budget, and was looked for in vain then.
//!
//! # What a loan is not for
//! - *What comes after it.* A poll on loan that gives the lock back goes on in the lender's place until its end, or the end of its turn if it is borne, which ends then: what comes
//!   10 us after the loan's end is charged to the task's own group (`vcpu::bill`), and counts as what that uses although it should stand (`overtime`). A group that is
//!   50 ms ahead of its limit by that is lent nothing until it has earned it. (A tenant with a limit of 1 % that shared a lock with another had 0.4
//!   CPUs: it computed after it gave the lock back, in the poll in which the other had lent it a place.) The loan ends when *that lender* waits for nothing of the task's any more: others
//!   may go on waiting for another lock. (With an accomplice that did, of its own group, it had 0.92 CPUs.)
//! - *More than a critical section*: [`LOAN_MAX`] for each time that a lock is taken. (A permit that was leaked had its task run at others' cost for ever.)
//! - *Waiting.* Who only waits for a lock, and does something else meanwhile, is lent nothing.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use quotient_core::Nanos;
use quotient_pause::in_one_step;

use super::Line;
use super::line::{Asking, Note, is_better};
use super::loan::{LOAN_MAX, Loan};
use crate::group::GroupShared;
use crate::preempt;
use crate::shared::Shared;

/// So many of a task's locks are known, the latest: all that is done with them is bounded by it. Unit: locks.
const LOCKS: usize = 16;

/// What is known of a task that has, or had, guards. 2^32 guards of one task would wrap; each is held by the user in 8 bytes of
/// its own. Guards that the program forgets keep this, and nothing of the scheduler.
pub(crate) struct Deferral {
    /// Live guards.
    pub(super) guards: AtomicU32,
    scheduler: Weak<Shared>,
    books: Mutex<Books>,
    /// Number of its locks, and whether it has a place, for whoever has its token: saves the lock.
    held: AtomicUsize,
    has_place: AtomicBool,
    /// It is in the list of `kept_back`.
    pub(super) is_listed: AtomicBool,
    loan: Loan,
}

/// Without its books, as [`Line`].
impl fmt::Debug for Deferral {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Deferral")
            .field("guards", &self.guards)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Books {
    /// The locks that the task holds, or was handed; the latest at the end.
    locks: Vec<Held>,
    /// Where it was queued last, unless it was polled since.
    place: Option<Place>,
    /// Who has lent it the place that it was queued in last.
    lender: Option<Arc<GroupShared>>,
}

/// One lock of a task.
struct Held {
    line: Arc<Line>,
    /// Permits, and a wait that was granted.
    times: u32,
    /// What the task had used on loan when it took it.
    from: u64,
    note: Option<Note>,
}

/// What is left to be done once a task was handed a lock.
#[must_use = "somebody may wait for it"]
pub(crate) struct Taken {
    evicted: Option<Held>,
    is_asked_for: bool,
}

/// Where a task is queued.
#[derive(Clone)]
struct Place {
    vcpu: u32,
    /// Its own group.
    own: Arc<GroupShared>,
    /// That, or the lender.
    of: Arc<GroupShared>,
}

impl Held {
    /// What the task, which has used `lent` on loan, may have yet for it. Unit: nanoseconds.
    fn left(&self, lent: u64) -> u64 {
        let used = lent.wrapping_sub(self.from);
        LOAN_MAX.as_nanos().saturating_sub(used)
    }

    /// Whether it is a reason to lend the task anything.
    fn counts(&self, lent: u64) -> bool {
        self.left(lent) > 0
    }
}

/// What a task that has used `lent` on loan may have yet for those of its locks that `lender` waits for. Unit: nanoseconds.
fn left_of(locks: &[Held], lender: &Arc<GroupShared>, lent: u64) -> u64 {
    let wanted = locks.iter().filter(|held| held.line.has(lender));
    wanted.map(|held| held.left(lent)).max().unwrap_or(0)
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
            loan: Loan::default(),
        }
    }

    pub(crate) fn is_of(&self, scheduler: &Arc<Shared>) -> bool {
        std::ptr::eq(self.scheduler.as_ptr(), Arc::as_ptr(scheduler))
    }

    /// Makes it as new, if nothing is left of the task that had it: no guard, no lock, and nobody who knows it. Whether it is.
    pub(crate) fn renew(this: &mut Arc<Self>) -> bool {
        let Some(this) = Arc::get_mut(this) else {
            return false;
        };
        let books = this.books.get_mut();
        let books = books.unwrap_or_else(|poison| poison.into_inner());
        if *this.guards.get_mut() > 0 || !books.locks.is_empty() {
            return false;
        }
        books.place = None;
        books.lender = None;
        *this.held.get_mut() = 0;
        *this.has_place.get_mut() = false;
        *this.is_listed.get_mut() = false;
        this.loan = Loan::default();
        true
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

    /// The task has taken a lock, in its poll. O(1). If that is borne, its proxy has not asked for a place with that lock, and does so when it is asked for, now or by who comes to wait.
    pub(crate) fn takes(self: &Arc<Self>, line: &Arc<Line>) {
        let evicted = self.with(|books| self.add(books, line));
        drop(evicted);
        preempt::notes_a_lock(self);
    }

    /// The task, which waits, is handed the lock; any thread. It may be queued at the time, having been woken for another reason: as a proxy above. O(1). What is left to be done, by
    /// [`Deferral::follow`], when the caller has let go of a lock that comes before this one's.
    pub(crate) fn is_handed(self: &Arc<Self>, line: &Arc<Line>) -> Taken {
        self.with(|books| {
            let evicted = self.add(books, line);
            let is_asked_for = self.note_all(books);
            Taken {
                evicted,
                is_asked_for,
            }
        })
    }

    /// After [`Deferral::is_handed`].
    pub(crate) fn follow(self: &Arc<Self>, taken: Taken) {
        drop(taken.evicted);
        if taken.is_asked_for {
            self.is_asked_for();
        }
    }

    /// What is not known any more for it.
    fn add(self: &Arc<Self>, books: &mut Books, line: &Arc<Line>) -> Option<Held> {
        let mut known = books.locks.iter_mut().rev();
        if let Some(held) = known.find(|held| Arc::ptr_eq(&held.line, line)) {
            held.times = held.times.saturating_add(1);
            held.from = self.loan.used();
            return None;
        }
        let evicted = (books.locks.len() >= LOCKS).then(|| books.locks.remove(0));
        self.forget(evicted.as_ref());
        books.locks.push(Held {
            line: line.clone(),
            times: 1,
            from: self.loan.used(),
            note: None,
        });
        self.held.store(books.locks.len(), Ordering::Relaxed);
        evicted
    }

    /// It gives that back; any thread. O(1).
    pub(crate) fn lets_go(self: &Arc<Self>, line: &Arc<Line>) {
        let (gone, ended) = self.with(|books| {
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
            self.forget(Some(&gone));
            self.held.store(books.locks.len(), Ordering::Relaxed);
            let lent = self.loan.used();
            let locks = &books.locks;
            let ends = |lender: &mut Arc<GroupShared>| left_of(locks, lender, lent) == 0;
            let lender = books.lender.take_if(ends);
            let ended = lender.map(|lender| {
                let wait = gone.line.wait_of(&lender);
                if let Some(wait) = wait {
                    self.loan.was_wanted(wait.since);
                }
                (wait, lender)
            });
            (Some(gone), ended)
        });
        drop(gone);
        if let Some((wait, _lender)) = ended
            && let Some(shared) = self.scheduler.upgrade()
        {
            // Who lends may have given up waiting before.
            let until = wait.and_then(|wait| wait.until);
            self.loan.ends(until.unwrap_or_else(|| shared.now()));
            preempt::ends_loan(&shared, self);
        }
    }

    /// One of its locks is not known any more. Under the lock of the books: its next note there is another one.
    fn forget(self: &Arc<Self>, gone: Option<&Held>) {
        if let Some(held) = gone
            && let Some(note) = held.note
        {
            held.line.forget(self, note);
        }
    }

    /// Where it is queued. Always by the lock: who is being queued is noted in its lines first, and has its place a moment later, under one and the same lock. (Who took the note in that moment
    /// and went by `has_place` found nothing to ask for, and nobody else had the note: waits of 1 to 3 s, in one run of ten on a busy machine.)
    fn place(&self) -> Option<Place> {
        self.with(|books| books.place.clone())
    }

    /// Somebody may lend it a place: it is to be queued anew.
    fn is_asked_for(&self) {
        if let Some(place) = self.place()
            && let Some(shared) = self.scheduler.upgrade()
        {
            shared.ask_to_release(place.vcpu as usize, &place.of);
        }
    }

    /// A waiter of `group` has taken its note, and asks for it if that may have a better place.
    pub(super) fn is_asked_for_by(self: &Arc<Self>, group: &Arc<GroupShared>) {
        let Some(place) = self.place() else { return };
        if place.of.is_limited() || is_better(group, &place.of) {
            self.is_asked_for();
        } else {
            self.with(|books| self.note_all(books));
        }
    }

    /// It waits, and was waited for: whoever may lend it a place may have budget by `now`.
    pub(super) fn is_looked_at(self: &Arc<Self>, now: Nanos) {
        let Some(place) = self.place() else { return };
        let lent = self.loan.used();
        let lines: Vec<_> = self.with(|books| {
            let counting = books.locks.iter().filter(|held| held.counts(lent));
            counting.map(|held| held.line.clone()).collect()
        });
        let scheduler = self.scheduler.as_ptr().addr();
        let is_solvent = |line: &Arc<Line>| line.has_solvent(scheduler, &place.own, now);
        if lines.iter().any(is_solvent) {
            self.is_asked_for();
        } else if let Some(shared) = self.scheduler.upgrade() {
            shared.holders.list(self, &place.own);
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
        let asks = !self.has_gone_on(own);
        let (seat, is_waited_for, former) = self.with(|books| {
            let (seat, is_waited_for) = match asks {
                true => self.ask(books, own, is_throttled),
                false => (None, false),
            };
            let of = seat.as_ref().unwrap_or(own);
            let is_waited_for = is_waited_for && of.is_limited();
            let former = self.is_at(books, vcpu, own, of);
            let lender = std::mem::replace(&mut books.lender, seat.clone());
            (seat, is_waited_for, (former, lender))
        });
        drop(former);
        if is_waited_for
            && !self.is_listed.load(Ordering::Relaxed)
            && let Some(shared) = self.scheduler.upgrade()
        {
            shared.holders.list(self, own);
            shared.tick.run();
        }
        seat
    }

    /// It is queued on `vcpu`, in the place of the group `of`. Where it was before.
    fn is_at(
        &self,
        books: &mut Books,
        vcpu: u32,
        own: &Arc<GroupShared>,
        of: &Arc<GroupShared>,
    ) -> Option<Place> {
        self.has_place.store(true, Ordering::Relaxed);
        books.place.replace(Place {
            vcpu,
            own: own.clone(),
            of: of.clone(),
        })
    }

    /// Whose place is better, if anybody's is, and whether anybody waits; it is noted where it is to be.
    fn ask(
        self: &Arc<Self>,
        books: &mut Books,
        own: &Arc<GroupShared>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> (Option<Arc<GroupShared>>, bool) {
        let lent = self.loan.used();
        let (mut seat, mut is_waited_for) = (None, false);
        let latest = books.locks.iter_mut().rev();
        for held in latest.filter(|held| held.counts(lent)) {
            let found = held
                .line
                .ask(&self.asking(own), &mut held.note, is_throttled);
            is_waited_for |= found.is_waited_for;
            seat = match (seat, found.lender) {
                (Some(seat), Some(lender)) if is_better(&lender, &seat) => Some(lender),
                (seat, lender) => seat.or(lender),
            };
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

    /// The task is polled, sleeps, or has ended. By the holder of its token, before it lets go of that.
    pub(crate) fn is_not_queued(&self) {
        if self.has_place.swap(false, Ordering::Relaxed) {
            let former = self.with(|books| books.place.take());
            drop(former);
        }
    }

    /// What stands for the task, of the group `own`, was queued on `vcpu` before it took a lock: it is asked for now, or when somebody comes who may lend it a place.
    pub(crate) fn is_queued_on(self: &Arc<Self>, vcpu: u32, own: &Arc<GroupShared>) {
        let (is_asked_for, former) = self.with(|books| {
            let former = self.is_at(books, vcpu, own, own);
            (self.note_all(books), former)
        });
        drop(former);
        if is_asked_for {
            self.is_asked_for();
        }
    }

    /// Notes it in all its lines, if it has a place; whether anybody waits who may lend it another one. (Whether that is better is found out as it is queued anew.)
    fn note_all(self: &Arc<Self>, books: &mut Books) -> bool {
        let Books { locks, place, .. } = books;
        let Some(place) = place else { return false };
        let lent = self.loan.used();
        let mut is_waited_for = false;
        for held in locks.iter_mut().filter(|held| held.counts(lent)) {
            is_waited_for |= held.line.note(&self.asking(&place.own), &mut held.note);
        }
        is_waited_for
    }

    /// Whether any group may lend the task, of the group `own`, a place. It is noted again where it is queued.
    pub(crate) fn is_lent(self: &Arc<Self>, own: &Arc<GroupShared>) -> bool {
        if self.held.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.with(|books| {
            if books.place.is_some() {
                return self.note_all(books);
            }
            let lent = self.loan.used();
            let scheduler = self.scheduler.as_ptr().addr();
            let mut counting = books.locks.iter().filter(|held| held.counts(lent));
            counting.any(|held| held.line.may_lend(scheduler, own))
        })
    }

    /// Whether `lender` still waits for what the task holds.
    pub(crate) fn is_lent_by(&self, lender: &Arc<GroupShared>) -> bool {
        let lent = self.loan.used();
        self.held.load(Ordering::Relaxed) > 0
            && self.with(|books| left_of(&books.locks, lender, lent) > 0)
    }

    /// A poll in the place of a lender begins at `now`. Its loan's end is not missed: it was before, or is noted by who gives the lock back.
    pub(crate) fn begins_on_loan(&self, now: Nanos) {
        self.with(|books| {
            let lent = self.loan.used();
            let of = |lender| left_of(&books.locks, lender, lent);
            let left = books.lender.as_ref().map_or(0, of);
            self.loan.begins(left, now);
        });
    }

    /// What of the poll, on loan from `started` on, is the task's own affair at `now`.
    pub(crate) fn own_part(&self, started: Nanos, now: Nanos) -> Nanos {
        let waited = || self.waited(started, now);
        self.loan.own_part(started, now, waited)
    }

    /// For how much of the time from `from` to `to` its lender has waited for what it holds.
    fn waited(&self, from: Nanos, to: Nanos) -> Nanos {
        self.with(|books| {
            let Some(lender) = &books.lender else {
                return Nanos::ZERO;
            };
            let locks = books.locks.iter();
            let waits = locks.filter_map(|held| held.line.wait_of(lender));
            let waited = waits.map(|wait| wait.within(from, to));
            waited.max().unwrap_or(Nanos::ZERO)
        })
    }

    /// It has used `time` in a lender's place.
    pub(crate) fn uses_loan(&self, time: Nanos) {
        self.loan.uses(time);
    }

    /// How many locks it is known to hold.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn locks(&self) -> usize {
        self.with(|books| books.locks.len())
    }

    /// The one door to the books, in a step.
    fn with<R>(&self, act: impl FnOnce(&mut Books) -> R) -> R {
        in_one_step(|| {
            let books = self.books.lock();
            act(&mut books.unwrap_or_else(|poison| poison.into_inner()))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
