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
//! Groups without a limit go first, then those that weigh more, then who has waited for longest. (Any place was taken once: a holder with budget of its own waited in the place of a waiter with a thousandth of it,
//! or a hundredth of its weight, and everybody behind it for seconds.)
//!
//! # Nobody is kept back for want of a question
//! Who is queued is *noted* here under the same lock as it asks. The first waiter of another group that comes after that takes the notes of up to [`NOTES`] tasks, and asks for those that may
//! have a better place by it: the place that they have is limited, or weighs less. (Those in light groups without a limit were not noted once: 5 to 10 s beside others of ten thousand times
//! the weight.) Such a task is queued anew: it asks again, and is noted again. Who is not asked for, or is looked at in vain (`vcpu::release`), is noted again, too: else one who waited for a
//! moment took the note along that the next one needed. What changes where nobody comes, refills and limits, is seen by a look now and then (`super::kept_back`).
//!
//! The lock is short and shielded: no thread is stopped with it. Nobody is polled or woken under it, and what it gives back is dropped after it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use quotient_core::Nanos;

use super::Deferral;
use super::loan::Wait;
use crate::group::GroupShared;
use crate::local::Charged;
use quotient_pause::in_one_step;

/// So many groups of each kind are looked at for one that may lend: those that have waited for longest. Unit: groups. Default: 32, some microseconds at most.
const LENDERS: usize = 32;

/// So many notes are taken at once; whoever comes next goes on from there. Unit: tasks. With more holders of permits than that, one of them is enough for who waits.
const NOTES: usize = 64;

/// Of so many groups it is known when they left: who is not among them left long ago. Unit: groups.
const LEFT: usize = 16;

/// The books of one lock.
#[derive(Default)]
pub(crate) struct Line(Mutex<Books>);

type Tasks = BTreeMap<usize, Weak<Deferral>>;

/// Of tasks of the same group.
fn names(
    group: usize,
    tasks: &Tasks,
    bounds: (Bound<usize>, Bound<usize>),
) -> impl Iterator<Item = (usize, usize)> {
    tasks.range(bounds).map(move |(task, _)| (group, *task))
}

/// Without its books: who writes it out may do anything meanwhile.
impl fmt::Debug for Line {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Line").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Books {
    /// The groups that wait, by address.
    groups: BTreeMap<usize, Waiting>,
    /// Those that had no limit as they came, by scheduler and the number of the first of them that came while no other of its group waited; and the others. Numbers are not used twice
    /// (2^64).
    free: BTreeMap<(usize, u64), Charged>,
    limited: BTreeMap<(usize, u64), Charged>,
    next: u64,
    /// Groups that wait no more, and their last waits; the latest at the end, of [`LEFT`].
    left: VecDeque<(usize, Wait)>,
    /// Tasks that are queued, by the addresses of their own groups and their deferrals.
    queued: BTreeMap<usize, Tasks>,
    /// Up to where notes were taken last.
    taken_to: (usize, usize),
    /// How often notes were taken.
    taken: u64,
}

struct Waiting {
    since: u64,
    /// As it came.
    is_limited: bool,
    /// When that was.
    joined_at: Nanos,
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

/// Whether the place of `one` is better than that of `other`: without a limit, or of more weight.
pub(super) fn is_better(one: &Arc<GroupShared>, other: &Arc<GroupShared>) -> bool {
    match (one.is_limited(), other.is_limited()) {
        (false, true) => true,
        (true, false) => false,
        _ => one.outweighs(other),
    }
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

    /// Takes the notes of some, but not of tasks of the group `own`. O([`NOTES`] x log).
    fn take_notes(&mut self, own: usize) -> Vec<Weak<Deferral>> {
        if self.queued.is_empty() {
            return Vec::new();
        }
        self.taken = self.taken.wrapping_add(1);
        let (last, task) = self.taken_to;
        let other = |(group, _): &(&usize, &Tasks)| **group != own;
        let keys: Vec<_> = {
            let behind = self.queued.range(last..).filter(other);
            let behind = behind.flat_map(|(&group, tasks)| {
                let from = (group == last).then_some(task);
                let from = from.map_or(Bound::Unbounded, Bound::Excluded);
                names(group, tasks, (from, Bound::Unbounded))
            });
            let up_to = self.queued.range(..=last).filter(other);
            let up_to = up_to.flat_map(|(&group, tasks)| {
                let to = (group == last).then_some(task);
                let to = to.map_or(Bound::Unbounded, Bound::Included);
                names(group, tasks, (Bound::Unbounded, to))
            });
            behind.chain(up_to).take(NOTES).collect()
        };
        self.taken_to = keys.last().copied().unwrap_or(self.taken_to);
        let take = |(group, task)| self.remove_note(group, task);
        keys.into_iter().filter_map(take).collect()
    }

    fn remove_note(&mut self, group: usize, task: usize) -> Option<Weak<Deferral>> {
        let tasks = self.queued.get_mut(&group)?;
        let note = tasks.remove(&task);
        if tasks.is_empty() {
            self.queued.remove(&group);
        }
        note
    }

    /// Notes a task that is queued. What was noted of it before.
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
        let before = before.and_then(|before| self.remove_note(before.own, task));
        let tasks = self.queued.entry(own).or_default();
        let same = tasks.insert(task, Arc::downgrade(asking.deferral));
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
        let mut best: Option<&Arc<GroupShared>> = None;
        for lender in self.lenders(asking.scheduler, own) {
            let is_limited = lender.is_limited();
            let is_better = match (own.is_limited(), is_limited) {
                _ if waits => true,
                (true, false) => !own.outweighs(lender),
                (true, true) | (false, false) => lender.outweighs(own),
                (false, true) => false,
            };
            if !is_better
                || best.is_some_and(|best| !self::is_better(lender, best))
                || is_limited && is_throttled(lender)
            {
                continue;
            }
            best = Some(lender);
        }
        best.cloned()
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// A task of this group waits. O(log groups), and O([`NOTES`]) if it is the first of its group.
    pub(crate) fn join(&self, home: &Charged) {
        let own = name(&home.1);
        let joined_at = home.0.now();
        let asked = in_one_step(|| {
            let mut books = self.lock();
            let books = &mut *books;
            match books.groups.entry(own) {
                Entry::Occupied(mut known) => {
                    known.get_mut().tasks += 1;
                    return Vec::new();
                }
                Entry::Vacant(place) => {
                    let since = books.next;
                    books.next = since.wrapping_add(1);
                    let is_limited = home.1.is_limited();
                    place.insert(Waiting {
                        since,
                        is_limited,
                        joined_at,
                        tasks: 1,
                    });
                    let number = (name(&home.0), since);
                    books.kind(is_limited).insert(number, home.clone());
                }
            }
            books.take_notes(own)
        });
        for task in asked.into_iter().filter_map(|task| task.upgrade()) {
            task.is_asked_for_by(&home.1);
        }
    }

    /// One that has joined does not wait any more. O(log groups).
    pub(crate) fn leave(&self, home: &Charged) {
        let left_at = home.0.now();
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
            if books.left.len() >= LEFT {
                books.left.pop_front();
            }
            let wait = Wait {
                since: known.joined_at,
                until: Some(left_at),
            };
            books.left.push_back((name(&home.1), wait));
            let number = (name(&home.0), known.since);
            books.kind(known.is_limited).remove(&number)
        });
        drop(left);
    }

    /// Whose place a task that is about to be queued takes, if any is better than its own; it is noted. Called in a step.
    /// O(depth x groups), of [`LENDERS`] groups.
    pub(super) fn ask(
        &self,
        asking: &Asking<'_>,
        note: &mut Option<Note>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Found {
        let mut books = self.lock();
        let lender = books.choose(asking, is_throttled);
        let known = books.note(asking, note);
        let is_waited_for =
            lender.is_some() || books.lenders(asking.scheduler, asking.own).next().is_some();
        drop(books);
        drop(known);
        Found {
            lender,
            is_waited_for,
        }
    }

    /// Notes a task that is queued; whether anybody waits who may lend it a place. Called in a step.
    pub(super) fn note(&self, asking: &Asking<'_>, note: &mut Option<Note>) -> bool {
        let mut books = self.lock();
        // The note first: who comes after it takes it.
        let known = books.note(asking, note);
        let is_waited_for = books.lenders(asking.scheduler, asking.own).next().is_some();
        drop(books);
        drop(known);
        is_waited_for
    }

    /// The task has nothing to do with the lock any more. O(log tasks that are noted). Called in a step.
    pub(super) fn forget(&self, deferral: &Arc<Deferral>, note: Note) {
        let forgotten = self.lock().remove_note(note.own, name(deferral));
        drop(forgotten);
    }

    /// Whether anybody waits who may lend to a task of `own`, of this scheduler. Called in a step.
    pub(super) fn may_lend(&self, scheduler: usize, own: &Arc<GroupShared>) -> bool {
        self.lock().lenders(scheduler, own).next().is_some()
    }

    /// Whether any group waits that may lend to a task of `own`, of this scheduler, and has budget at `now`. O(groups x depth), and the locks of their budgets.
    pub(super) fn has_solvent(&self, scheduler: usize, own: &Arc<GroupShared>, now: Nanos) -> bool {
        let lenders: Vec<_> = in_one_step(|| {
            let books = self.lock();
            books.lenders(scheduler, own).cloned().collect()
        });
        lenders.iter().any(|lender| !lender.is_kept_back(now))
    }

    /// This group's last wait, as far as it is known. Called in a step. O(log groups), or O([`LEFT`]).
    pub(super) fn wait_of(&self, lender: &Arc<GroupShared>) -> Option<Wait> {
        let books = self.lock();
        let lender = name(lender);
        if let Some(known) = books.groups.get(&lender) {
            let since = known.joined_at;
            return Some(Wait { since, until: None });
        }
        let mut left = books.left.iter().rev();
        let known = left.find(|(group, _)| *group == lender);
        known.map(|(_, wait)| *wait)
    }

    /// Whether this group waits. Called in a step. O(log groups).
    pub(super) fn has(&self, lender: &Arc<GroupShared>) -> bool {
        self.lock().groups.contains_key(&name(lender))
    }
}
