//! Who holds a lock, who waits for it, and which waiter lends its place.
//!
//! # Who borrows
//! Every holder, and the first [`HEIRS`] waiters: tokio hands a lock over at the moment of the unlock, and from then on, though it
//! was not polled yet, the longest waiter is who holds up all others. (Several, since two waiters may come to tokio's line in another order than
//! into these books, and readers are let in together.) A waiter sleeps, so that its loan is worth nothing before it is woken.
//!
//! # Who lends
//! A group of which anybody waits, wherever in the line: the group of a limited holder may have a hundred tasks in front. Groups without a limit are asked first, each kind by who
//! has waited for longest, and each task borrows from the first that is of another group than its own. Who has no limit borrows from nobody who has one: it would be throttled there.
//!
//! Changes are serialised by one short lock, which is never held while a task is polled, woken, stopped or dropped; a loan changes
//! nothing but where its task is queued next. A loan is told only where it changes: who lends in a line of one group does not.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use slab::Slab;

use crate::bandwidth::{Deferral, Loan, ThrottleGuard};
use crate::group::GroupShared;
use crate::local::{self, Charged};
use crate::shielded::{Shielded, lock_shielded};

/// So many waiters at the front of the line borrow. Unit: tasks. More than come at the same moment, or are woken together before the first of
/// them has been polled, are found when those before them have left.
const HEIRS: usize = 4;
/// So many groups of each kind are looked at for one that may lend. Unit: groups. Two are enough in one scheduler, since at most one is the task's own.
const LENDERS: usize = 4;

/// The books of one lock.
#[derive(Debug, Default)]
pub(super) struct Loans {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    holders: Slab<Borrower>,
    /// In order of arrival; numbers are not used twice (2^64 waits).
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    /// Waiters that may borrow.
    borrowers: usize,
    lenders: Lenders,
}

#[derive(Debug)]
struct Waiter {
    home: Charged,
    borrower: Option<Borrower>,
}

/// A task that may need a place, and the group that lends it one.
#[derive(Debug)]
struct Borrower {
    deferral: Arc<Deferral>,
    lender: Option<Arc<GroupShared>>,
}

impl Borrower {
    fn new(deferral: Arc<Deferral>) -> Self {
        Self {
            deferral,
            lender: None,
        }
    }

    /// The loan `name` comes from `lender` now.
    fn borrow_from(&mut self, name: Loan, lender: Option<Arc<GroupShared>>) {
        let same = match (&self.lender, &lender) {
            (Some(known), Some(lender)) => Arc::ptr_eq(known, lender),
            (known, lender) => known.is_none() && lender.is_none(),
        };
        if !same {
            self.deferral.lend(name, lender.clone());
            self.lender = lender;
        }
    }

    fn give_back(self, name: Loan) {
        if self.lender.is_some() {
            self.deferral.lend(name, None);
        }
    }
}

/// The groups that wait.
#[derive(Debug, Default)]
struct Lenders {
    /// By address.
    groups: HashMap<usize, Lender>,
    /// Those without a limit, by the number of the first of them that came while no other of its group waited.
    free: BTreeMap<u64, Charged>,
    limited: BTreeMap<u64, Charged>,
}

#[derive(Debug)]
struct Lender {
    since: u64,
    /// As it came.
    is_limited: bool,
    /// So many of its tasks wait.
    tasks: usize,
}

impl Lenders {
    fn kind(&mut self, is_limited: bool) -> &mut BTreeMap<u64, Charged> {
        match is_limited {
            true => &mut self.limited,
            false => &mut self.free,
        }
    }

    /// Whether the group that came as number `since` is one of the first.
    fn is_asked(&mut self, since: u64, is_limited: bool) -> bool {
        let kind = self.kind(is_limited);
        kind.keys().take(LENDERS).any(|known| *known == since)
    }

    /// One more task of this group waits, as number `key`. Whether that may change who lends.
    fn join(&mut self, key: u64, home: &Charged) -> bool {
        let group = Arc::as_ptr(&home.1).addr();
        if let Some(known) = self.groups.get_mut(&group) {
            known.tasks += 1;
            return false;
        }
        let is_limited = home.1.is_limited();
        let lender = Lender {
            since: key,
            is_limited,
            tasks: 1,
        };
        self.groups.insert(group, lender);
        self.kind(is_limited).insert(key, home.clone());
        self.is_asked(key, is_limited)
    }

    /// One less. Whether that may change who lends.
    fn leave(&mut self, home: &Charged) -> bool {
        let Entry::Occupied(mut known) = self.groups.entry(Arc::as_ptr(&home.1).addr()) else {
            return false;
        };
        known.get_mut().tasks -= 1;
        if known.get().tasks > 0 {
            return false;
        }
        let known = known.remove();
        let was_asked = self.is_asked(known.since, known.is_limited);
        self.kind(known.is_limited).remove(&known.since);
        was_asked
    }

    /// Who lends to `borrower`.
    fn lender_of(&self, borrower: &Deferral) -> Option<Arc<GroupShared>> {
        let (free, limited) = (self.free.values(), self.limited.values());
        let mut lenders = free.take(LENDERS).chain(limited.take(LENDERS));
        let lender = lenders.find(|lender| borrower.can_borrow(lender));
        lender.map(|(_, group)| group.clone())
    }
}

impl Loans {
    fn lock(&self) -> Shielded<'_, Books> {
        lock_shielded(&self.books)
    }

    /// Names the lock among those that lend to one task.
    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The calling task, which `deferral` guards, waits until the result goes. O(log waiters), and O(holders) for the first of a group.
    pub(super) fn wait(&self, deferral: &ThrottleGuard) -> Waiting<'_> {
        let waiter = local::current_group().map(|home| {
            let borrower = deferral.deferral().cloned().map(Borrower::new);
            self.lock().join(self.name(), Waiter { home, borrower })
        });
        Waiting {
            loans: self,
            waiter,
        }
    }
}

impl Books {
    fn join(&mut self, lock: usize, waiter: Waiter) -> u64 {
        let key = self.next_waiter;
        self.next_waiter = key.wrapping_add(1);
        self.borrowers += usize::from(waiter.borrower.is_some());
        let changes = self.lenders.join(key, &waiter.home);
        self.waiters.insert(key, waiter);
        if changes {
            self.settle_holders(lock);
        }
        if changes || self.waiters.len() <= HEIRS {
            self.settle_heirs(lock);
        }
        key
    }

    fn leave(&mut self, lock: usize, key: u64) {
        let Some(waiter) = self.waiters.remove(&key) else {
            return;
        };
        let changes = self.lenders.leave(&waiter.home);
        if let Some(borrower) = waiter.borrower {
            self.borrowers -= 1;
            borrower.give_back(Loan::to_waiter(lock, key));
        }
        if changes {
            self.settle_holders(lock);
        }
        self.settle_heirs(lock);
    }

    /// Each holder borrows from whom it should.
    fn settle_holders(&mut self, lock: usize) {
        for (holder, borrower) in &mut self.holders {
            let lender = self.lenders.lender_of(&borrower.deferral);
            borrower.borrow_from(Loan::to_holder(lock, holder), lender);
        }
    }

    /// The same of those that are the next holders.
    fn settle_heirs(&mut self, lock: usize) {
        if self.borrowers == 0 {
            return;
        }
        for (key, waiter) in self.waiters.iter_mut().take(HEIRS) {
            if let Some(borrower) = &mut waiter.borrower {
                let lender = self.lenders.lender_of(&borrower.deferral);
                borrower.borrow_from(Loan::to_waiter(lock, *key), lender);
            }
        }
    }
}

/// A task that holds the lock. `L`: how its guard reaches the books, by reference or as their owner.
#[derive(Debug)]
pub(super) struct Holding<L: Deref<Target = Loans>> {
    loans: L,
    holder: Option<usize>,
}

impl<L: Deref<Target = Loans>> Holding<L> {
    /// The task that `deferral` guards holds the lock from now on, until the result goes. O(log waiters).
    pub(super) fn new(loans: L, deferral: &ThrottleGuard) -> Self {
        let holder = deferral.deferral().map(|deferral| {
            let mut books = loans.lock();
            let mut borrower = Borrower::new(deferral.clone());
            let lender = books.lenders.lender_of(deferral);
            let place = books.holders.vacant_key();
            borrower.borrow_from(Loan::to_holder(loans.name(), place), lender);
            books.holders.insert(borrower)
        });
        Self { loans, holder }
    }
}

impl<L: Deref<Target = Loans>> Drop for Holding<L> {
    fn drop(&mut self) {
        if let Some(holder) = self.holder {
            let name = Loan::to_holder(self.loans.name(), holder);
            // (Under the lock: the place, and with it the name, may be another's at once.)
            let mut books = self.loans.lock();
            books.holders.remove(holder).give_back(name);
        }
    }
}

/// A task that waits for the lock.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    loans: &'a Loans,
    waiter: Option<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.loans.lock().leave(self.loans.name(), waiter);
        }
    }
}
