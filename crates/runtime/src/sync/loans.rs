//! Who holds a lock, who waits for it, and which waiter lends the holders its place.
//!
//! One waiter at a time lends, to every holder: the one that has waited longest. Changes are serialised by one short lock, which
//! is never held while a task is polled, woken, stopped or dropped; a loan changes nothing but where its task is queued next.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use slab::Slab;

use crate::bandwidth::{Deferral, ThrottleGuard};
use crate::local::{self, Charged};
use crate::shielded::{Shielded, lock_shielded};

/// The books of one lock.
#[derive(Debug, Default)]
pub(super) struct Loans {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    holders: Slab<Arc<Deferral>>,
    /// In order of arrival; numbers are not used twice (2^64 waits).
    waiters: BTreeMap<u64, Charged>,
    next_waiter: u64,
}

impl Loans {
    fn lock(&self) -> Shielded<'_, Books> {
        lock_shielded(&self.books)
    }

    /// Names the lock among those that lend to one task.
    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The calling task waits until the result goes. O(log waiters), and O(holders) for the first.
    pub(super) fn wait(&self) -> Waiting<'_> {
        let waiter = local::current_group().map(|lender| {
            let mut books = self.lock();
            let key = books.next_waiter;
            books.next_waiter = key.wrapping_add(1);
            books.waiters.insert(key, lender);
            if books.waiters.len() == 1 {
                books.settle(self.name());
            }
            key
        });
        Waiting {
            loans: self,
            waiter,
        }
    }
}

impl Books {
    /// Makes the longest waiter the lender of every holder.
    fn settle(&self, lock: usize) {
        let lender = self.waiters.first_key_value().map(|(_, lender)| lender);
        for (_, holder) in &self.holders {
            lend(lock, holder, lender);
        }
    }
}

fn lend(lock: usize, holder: &Deferral, lender: Option<&Charged>) {
    let lender = lender.filter(|lender| holder.can_borrow(lender));
    holder.lend(lock, lender.map(|(_, group)| group.clone()));
}

/// A task that holds the lock. `L`: how its guard reaches the books, by reference or as their owner.
#[derive(Debug)]
pub(super) struct Holding<L: Deref<Target = Loans>> {
    loans: L,
    holder: Option<usize>,
}

impl<L: Deref<Target = Loans>> Holding<L> {
    /// The task that `deferral` guards holds the lock from now on, until the result goes. O(log holders).
    pub(super) fn new(loans: L, deferral: &ThrottleGuard) -> Self {
        let holder = deferral.deferral().map(|deferral| {
            let mut books = loans.lock();
            if let Some((_, lender)) = books.waiters.first_key_value() {
                lend(loans.name(), deferral, Some(lender));
            }
            books.holders.insert(deferral.clone())
        });
        Self { loans, holder }
    }
}

impl<L: Deref<Target = Loans>> Drop for Holding<L> {
    fn drop(&mut self) {
        if let Some(holder) = self.holder {
            let deferral = self.loans.lock().holders.remove(holder);
            deferral.lend(self.loans.name(), None);
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
        let Some(waiter) = self.waiter else { return };
        let mut books = self.loans.lock();
        let lender = books.waiters.first_key_value().map(|(key, _)| *key);
        books.waiters.remove(&waiter);
        if lender == Some(waiter) {
            books.settle(self.loans.name());
        }
    }
}
