//! Who holds a lock, who waits for it, and which waiter lends its place.
//!
//! # Who borrows
//! Every holder, and the first [`HEIRS`] waiters: tokio hands a lock over at the moment of the unlock, and from then on, though it
//! was not polled yet, the longest waiter is who holds up all others. (Several, since two waiters may come to tokio's line in another order than
//! into these books, and readers are let in together.) A waiter sleeps, so that its loan is worth nothing before it is woken.
//!
//! # Who lends
//! Of the first [`LENDERS_SEEN`] waiters, the first of two groups without a limit, and the first of two with one: in this order, each borrows from
//! the first that is of another group than its own. Two of each kind are enough, since at most one is its own. Who has no limit borrows from nobody who has one: it
//! would be throttled there.
//!
//! Changes are serialised by one short lock, which is never held while a task is polled, woken, stopped or dropped; a loan changes
//! nothing but where its task is queued next. A loan is told only where it changes: who lends in a line of one group does not.

use std::collections::BTreeMap;
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
/// So many waiters at the front of the line may lend: the bound on the search that follows when one of them leaves. Unit: tasks.
const LENDERS_SEEN: usize = 64;
/// Of each kind of group, so many lend. Unit: groups.
const LENDERS: usize = 2;

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

/// Numbers of waiters, of as many groups.
#[derive(Debug, Default)]
struct Lenders {
    free: Vec<u64>,
    limited: Vec<u64>,
}

impl Lenders {
    /// The first of those that wait.
    fn among(waiters: &BTreeMap<u64, Waiter>) -> Self {
        let mut lenders = Self::default();
        for key in waiters.keys().take(LENDERS_SEEN) {
            lenders.consider(*key, waiters);
        }
        lenders
    }

    /// Takes in one who waits, behind all that are known, if it is the first of a group that is needed. Whether it was.
    fn consider(&mut self, key: u64, waiters: &BTreeMap<u64, Waiter>) -> bool {
        let group = |key: &u64| waiters.get(key).map(|waiter| &waiter.home.1);
        let Some(own) = group(&key) else { return false };
        let kind = if own.is_limited() {
            &mut self.limited
        } else {
            &mut self.free
        };
        let is_known = |key: &u64| group(key).is_some_and(|known| Arc::ptr_eq(known, own));
        let needed = kind.len() < LENDERS && !kind.iter().any(is_known);
        if needed {
            kind.push(key);
        }
        needed
    }

    fn has(&self, key: u64) -> bool {
        self.free.contains(&key) || self.limited.contains(&key)
    }

    /// Who lends to `borrower`.
    fn lender_of(
        &self,
        borrower: &Deferral,
        waiters: &BTreeMap<u64, Waiter>,
    ) -> Option<Arc<GroupShared>> {
        let mut lenders = self.free.iter().chain(&self.limited);
        lenders.find_map(|key| {
            let lender = &waiters.get(key)?.home;
            borrower.can_borrow(lender).then(|| lender.1.clone())
        })
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
        self.waiters.insert(key, waiter);
        let seen = self.waiters.len() <= LENDERS_SEEN;
        if seen && self.lenders.consider(key, &self.waiters) {
            self.settle_holders(lock);
            self.settle_heirs(lock);
        } else if self.waiters.len() <= HEIRS {
            self.settle_heirs(lock);
        }
        key
    }

    fn leave(&mut self, lock: usize, key: u64) {
        let Some(waiter) = self.waiters.remove(&key) else {
            return;
        };
        if let Some(borrower) = waiter.borrower {
            borrower.give_back(Loan::to_waiter(lock, key));
        }
        if self.lenders.has(key) {
            self.lenders = Lenders::among(&self.waiters);
            self.settle_holders(lock);
        }
        self.settle_heirs(lock);
    }

    /// Each holder borrows from whom it should.
    fn settle_holders(&mut self, lock: usize) {
        for (holder, borrower) in &mut self.holders {
            let lender = self.lenders.lender_of(&borrower.deferral, &self.waiters);
            borrower.borrow_from(Loan::to_holder(lock, holder), lender);
        }
    }

    /// The same of those that are the next holders.
    fn settle_heirs(&mut self, lock: usize) {
        let heirs: Vec<u64> = self.waiters.keys().take(HEIRS).copied().collect();
        for key in heirs {
            let borrower = self.waiters.get(&key);
            let borrower = borrower.and_then(|waiter| waiter.borrower.as_ref());
            let lender = borrower
                .and_then(|borrower| self.lenders.lender_of(&borrower.deferral, &self.waiters));
            let waiter = self.waiters.get_mut(&key);
            if let Some(borrower) = waiter.and_then(|waiter| waiter.borrower.as_mut()) {
                borrower.borrow_from(Loan::to_waiter(lock, key), lender);
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
            let lender = books.lenders.lender_of(deferral, &books.waiters);
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
