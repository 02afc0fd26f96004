//! Who waits for one lock, and lends its place to who holds it.
//!
//! # Who borrows
//! Who holds the lock, and who was handed it: tokio does so at the moment of the unlock, and from then on, though it was not polled yet, that waiter is who holds up all
//! others (`sync::loans`). A task that is about to be queued asks ([`Deferral`] keeps its locks), so that nothing is told to ten thousand holders when
//! somebody comes or goes.
//!
//! # Who lends
//! A group of which anybody waits, wherever in the line: the group of a limited holder may have a hundred tasks in front. A place is taken only where it is *better than the own one*,
//! on the virtual CPU where the task is to be queued:
//! - a group that is throttled there lends nothing;
//! - a task whose own group is throttled takes any other place;
//! - else one of a group that weighs more, under the first group that both are below, or as much, if the own group has a limit and that one has none: the limit may
//!   come before the turn. Who has no limit takes none of a group with one: it would be throttled there.
//!
//! Groups without a limit go first, then who has waited for longest. (Any place was taken once: a holder with budget of its own waited in the place of a waiter with a thousandth of it,
//! or a hundredth of its weight, and everybody behind it for seconds.)
//!
//! # Nobody is kept back for want of a question
//! Who is queued without such a place, and may be kept back there by a limit, is noted here under the same lock as it asks; the first waiter of another group that comes after
//! that takes the note and asks its virtual CPU, which looks when the queuing is over, since both are done by that virtual CPU. What it is noted for may be out of
//! date: it is asked for in vain then.
//!
//! The lock is short and shielded: no thread is stopped with it. Nobody is polled or woken under it, and what it gives back is dropped after it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use super::Deferral;
use crate::group::GroupShared;
use crate::local::Charged;
use crate::shared::Shared;
use crate::shielded::{Shielded, lock_shielded};

/// So many groups of each kind are looked at for one that may lend. Unit: groups. The first, the task's own, and two more.
const LENDERS: usize = 4;

/// The books of one lock.
#[derive(Debug, Default)]
pub(crate) struct Line(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    /// The groups that wait, by address.
    groups: HashMap<usize, Waiting>,
    /// Those that had no limit as they came, by the number of the first of them that came while no other of its group waited; and the others. Numbers are not used twice (2^64).
    free: BTreeMap<u64, Charged>,
    limited: BTreeMap<u64, Charged>,
    next: u64,
    /// Tasks that may be kept back in their own groups, by address: of the group, of the task's deferral.
    kept_back: HashMap<usize, HashMap<usize, KeptBack>>,
}

#[derive(Debug)]
struct Waiting {
    since: u64,
    /// As it came.
    is_limited: bool,
    /// So many of its tasks wait.
    tasks: usize,
}

#[derive(Debug)]
struct KeptBack {
    deferral: Arc<Deferral>,
    own: Arc<GroupShared>,
}

fn name<T>(what: &Arc<T>) -> usize {
    Arc::as_ptr(what).addr()
}

impl Books {
    fn kind(&mut self, is_limited: bool) -> &mut BTreeMap<u64, Charged> {
        match is_limited {
            true => &mut self.limited,
            false => &mut self.free,
        }
    }

    /// The groups that may lend to a task of `own`, in the order in which they are asked.
    fn lenders<'a>(
        &'a self,
        shared: &'a Arc<Shared>,
        own: &'a Arc<GroupShared>,
    ) -> impl Iterator<Item = &'a Arc<GroupShared>> {
        let (free, limited) = (self.free.values(), self.limited.values());
        free.take(LENDERS)
            .chain(limited.take(LENDERS))
            .filter(|(scheduler, _)| Arc::ptr_eq(scheduler, shared))
            .map(|(_, group)| group)
            .filter(|group| !Arc::ptr_eq(group, own))
    }

    /// Notes a task that may be kept back. What was noted of it before.
    fn note(&mut self, deferral: &Arc<Deferral>, own: &Arc<GroupShared>) -> Option<KeptBack> {
        let kept = KeptBack {
            deferral: deferral.clone(),
            own: own.clone(),
        };
        let of_group = self.kept_back.entry(name(own)).or_default();
        of_group.insert(name(deferral), kept)
    }

    /// See "Who lends".
    fn choose(
        &self,
        shared: &Arc<Shared>,
        own: &Arc<GroupShared>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Option<Arc<GroupShared>> {
        let waits = own.is_limited() && is_throttled(own);
        let mut second = None;
        for lender in self.lenders(shared, own) {
            let is_limited = lender.is_limited();
            let is_better = match (own.is_limited(), is_limited) {
                _ if waits => true,
                (true, false) => !own.outweighs(lender),
                (true, true) | (false, false) => lender.outweighs(own),
                (false, true) => false,
            };
            if !is_better || is_limited && is_throttled(lender) {
                continue;
            }
            if !is_limited {
                return Some(lender.clone());
            }
            second.get_or_insert(lender);
        }
        second.cloned()
    }
}

impl Line {
    fn lock(&self) -> Shielded<'_, Books> {
        lock_shielded(&self.0)
    }

    /// A task of this group waits. O(1), and O(those that are kept back) if it is the first of its group.
    pub(crate) fn join(&self, home: &Charged) {
        let asked = {
            let mut books = self.lock();
            let books = &mut *books;
            match books.groups.entry(name(&home.1)) {
                Entry::Occupied(mut known) => {
                    known.get_mut().tasks += 1;
                    return;
                }
                Entry::Vacant(place) => {
                    let since = books.next;
                    books.next = since.wrapping_add(1);
                    let is_limited = home.1.is_limited();
                    place.insert(Waiting {
                        since,
                        is_limited,
                        tasks: 1,
                    });
                    books.kind(is_limited).insert(since, home.clone());
                }
            }
            let own = books.kept_back.remove(&name(&home.1));
            let asked = std::mem::take(&mut books.kept_back);
            let own = own.map(|own| (name(&home.1), own));
            books.kept_back.extend(own);
            asked
        };
        for kept in asked.into_values().flat_map(HashMap::into_values) {
            kept.deferral.is_asked_for(&kept.own);
        }
    }

    /// One that has joined does not wait any more. O(log groups).
    pub(crate) fn leave(&self, home: &Charged) {
        let left = {
            let mut books = self.lock();
            let Entry::Occupied(mut known) = books.groups.entry(name(&home.1)) else {
                return;
            };
            known.get_mut().tasks -= 1;
            if known.get().tasks > 0 {
                return;
            }
            let known = known.remove();
            books.kind(known.is_limited).remove(&known.since)
        };
        drop(left);
    }

    /// Whose place a task that is about to be queued takes, if any is better than its own; else it is noted, if it may be kept back there. O(depth).
    pub(super) fn lender_or_note(
        &self,
        deferral: &Arc<Deferral>,
        (shared, own): (&Arc<Shared>, &Arc<GroupShared>),
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Option<Arc<GroupShared>> {
        let mut books = self.lock();
        let lender = books.choose(shared, own, is_throttled);
        let known = match lender {
            None if own.is_limited() => books.note(deferral, own),
            _ => None,
        };
        drop(books);
        drop(known);
        lender
    }

    /// A task that is queued, and may be kept back there, as [`Line::lender_or_note`] has it.
    pub(super) fn note(&self, deferral: &Arc<Deferral>, own: &Arc<GroupShared>) {
        let known = self.lock().note(deferral, own);
        drop(known);
    }

    /// The task has nothing to do with the lock any more. O(groups that are kept back).
    pub(super) fn forget(&self, deferral: &Arc<Deferral>) {
        let mut forgotten = Vec::new();
        let mut books = self.lock();
        books.kept_back.retain(|_, of_group| {
            forgotten.extend(of_group.remove(&name(deferral)));
            !of_group.is_empty()
        });
        drop(books);
    }

    /// Whether anybody waits who may lend to a task of `own`.
    pub(super) fn may_lend(&self, shared: &Arc<Shared>, own: &Arc<GroupShared>) -> bool {
        self.lock().lenders(shared, own).next().is_some()
    }

    /// Whether this group still waits.
    pub(super) fn has(&self, lender: &Arc<GroupShared>) -> bool {
        self.lock().groups.contains_key(&name(lender))
    }
}
