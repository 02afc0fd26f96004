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
//! Who is queued where a limit may keep it back, in its own group or in a limited lender's, is *noted* here under the same lock as it asks. The first waiter of another group that comes after
//! that takes the note and asks for the task, which is queued anew then: it asks again, and is noted again. Who is looked at in vain is noted again, too (`vcpu::release`): else one who waited
//! for a moment took the note along that the next one needed. What changes where nobody comes, refills, weights and limits, is seen by a look every [`super::kept_back`].
//!
//! The lock is short and shielded: no thread is stopped with it. Nobody is polled or woken under it, and what it gives back is dropped after it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::Deferral;
use crate::group::GroupShared;
use crate::local::Charged;
use quotient_pause::in_one_step;

/// So many groups of each kind are looked at for one that may lend: those that have waited for longest. Unit: groups. Default: 32, some microseconds at most.
const LENDERS: usize = 32;

/// The books of one lock.
#[derive(Debug, Default)]
pub(crate) struct Line(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    /// The groups that wait, by address.
    groups: BTreeMap<usize, Waiting>,
    /// Those that had no limit as they came, by scheduler and the number of the first of them that came while no other of its group waited; and the others. Numbers are not used twice
    /// (2^64).
    free: BTreeMap<(usize, u64), Charged>,
    limited: BTreeMap<(usize, u64), Charged>,
    next: u64,
    /// Tasks that a limit may keep back, by the addresses of their own groups and their deferrals.
    kept_back: BTreeMap<(usize, usize), Weak<Deferral>>,
    /// How often notes were taken.
    taken: u64,
}

#[derive(Debug)]
struct Waiting {
    since: u64,
    /// As it came.
    is_limited: bool,
    /// So many of its tasks wait.
    tasks: usize,
}

/// Where a task was noted last: its own group, and how often notes had been taken from there. The latter tells whether it still is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    own: usize,
    taken: u64,
}

/// Who asks for a place.
pub(super) struct Asking<'a> {
    pub(super) deferral: &'a Arc<Deferral>,
    /// Address of its scheduler.
    pub(super) scheduler: usize,
    pub(super) own: &'a Arc<GroupShared>,
}

/// What is found.
pub(super) struct Found {
    /// Whose place is better than the own one.
    pub(super) lender: Option<Arc<GroupShared>>,
    /// Somebody waits who may lend, once his place is better.
    pub(super) is_waited_for: bool,
}

pub(super) fn name<T>(what: &Arc<T>) -> usize {
    Arc::as_ptr(what).addr()
}

impl Books {
    fn kind(&mut self, is_limited: bool) -> &mut BTreeMap<(usize, u64), Charged> {
        match is_limited {
            true => &mut self.limited,
            false => &mut self.free,
        }
    }

    /// The groups that may lend to a task of `own`, in the order in which they are asked.
    fn lenders<'a>(
        &'a self,
        scheduler: usize,
        own: &'a Arc<GroupShared>,
    ) -> impl Iterator<Item = &'a Arc<GroupShared>> {
        let of = move |kind: &'a BTreeMap<(usize, u64), Charged>| {
            let mine = kind.range((scheduler, 0)..=(scheduler, u64::MAX));
            let others = mine.map(|(_, (_, group))| group);
            others
                .filter(move |group| !Arc::ptr_eq(group, own))
                .take(LENDERS)
        };
        of(&self.free).chain(of(&self.limited))
    }

    /// Notes a task that may be kept back. What was noted of it before.
    fn note(&mut self, asking: &Asking<'_>, note: &mut Option<Note>) -> Option<Weak<Deferral>> {
        let own = name(asking.own);
        let now = Note {
            own,
            taken: self.taken,
        };
        if *note == Some(now) {
            return None;
        }
        let before = note.replace(now).filter(|before| before.own != own);
        let task = name(asking.deferral);
        let before = before.and_then(|before| self.kept_back.remove(&(before.own, task)));
        let same = self
            .kept_back
            .insert((own, task), Arc::downgrade(asking.deferral));
        before.or(same)
    }

    /// See "Who lends".
    fn choose(
        &self,
        asking: &Asking<'_>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Option<Arc<GroupShared>> {
        let own = asking.own;
        let waits = own.is_limited() && is_throttled(own);
        let mut second = None;
        for lender in self.lenders(asking.scheduler, own) {
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
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// A task of this group waits. O(log groups), and O(those that are kept back) if it is the first of its group.
    pub(crate) fn join(&self, home: &Charged) {
        let own = name(&home.1);
        let asked = in_one_step(|| {
            let mut books = self.lock();
            let books = &mut *books;
            match books.groups.entry(own) {
                Entry::Occupied(mut known) => {
                    known.get_mut().tasks += 1;
                    return BTreeMap::new();
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
                    let number = (name(&home.0), since);
                    books.kind(is_limited).insert(number, home.clone());
                }
            }
            if books.kept_back.is_empty() {
                return BTreeMap::new();
            }
            books.taken = books.taken.wrapping_add(1);
            // All but those of its own group, to whom it lends nothing.
            let mut asked = std::mem::take(&mut books.kept_back);
            let mut mine = asked.split_off(&(own, 0));
            let mut others = mine.split_off(&(own + 1, 0));
            books.kept_back = mine;
            asked.append(&mut others);
            asked
        });
        for task in asked.into_values().filter_map(|task| task.upgrade()) {
            task.is_asked_for();
        }
    }

    /// One that has joined does not wait any more. O(log groups).
    pub(crate) fn leave(&self, home: &Charged) {
        let left = in_one_step(|| {
            let mut books = self.lock();
            let Entry::Occupied(mut known) = books.groups.entry(name(&home.1)) else {
                return None;
            };
            known.get_mut().tasks -= 1;
            if known.get().tasks > 0 {
                return None;
            }
            let known = known.remove();
            let number = (name(&home.0), known.since);
            books.kind(known.is_limited).remove(&number)
        });
        drop(left);
    }

    /// Whose place a task that is about to be queued takes, if any is better than its own; it is noted if it may be kept back in its own, or in that one. Called in a step.
    /// O(depth x groups), of [`LENDERS`] groups.
    pub(super) fn ask(
        &self,
        asking: &Asking<'_>,
        note: &mut Option<Note>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Found {
        let mut books = self.lock();
        let lender = books.choose(asking, is_throttled);
        let place = lender.as_ref().unwrap_or(asking.own);
        let known = match place.is_limited() {
            true => books.note(asking, note),
            false => None,
        };
        let is_waited_for =
            lender.is_some() || books.lenders(asking.scheduler, asking.own).next().is_some();
        drop(books);
        drop(known);
        Found {
            lender,
            is_waited_for,
        }
    }

    /// Notes a task that is queued, and may be kept back there; whether anybody waits who may lend it a place. Called in a step.
    pub(super) fn note(&self, asking: &Asking<'_>, note: &mut Option<Note>) -> bool {
        let mut books = self.lock();
        // The note first: who comes after it takes it.
        let known = books.note(asking, note);
        let is_waited_for = books.lenders(asking.scheduler, asking.own).next().is_some();
        drop(books);
        drop(known);
        is_waited_for
    }

    /// The task has nothing to do with the lock any more. O(log tasks that are noted).
    pub(super) fn forget(&self, deferral: &Arc<Deferral>, note: Note) {
        let forgotten = in_one_step(|| {
            let mut books = self.lock();
            books.kept_back.remove(&(note.own, name(deferral)))
        });
        drop(forgotten);
    }

    /// Whether anybody waits who may lend to a task of `own`, of this scheduler. Called in a step.
    pub(super) fn may_lend(&self, scheduler: usize, own: &Arc<GroupShared>) -> bool {
        self.lock().lenders(scheduler, own).next().is_some()
    }

    /// Whether this group still waits. Called in a step.
    pub(super) fn has(&self, lender: &Arc<GroupShared>) -> bool {
        self.lock().groups.contains_key(&name(lender))
    }
}
