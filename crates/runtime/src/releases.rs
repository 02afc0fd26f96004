//! What a virtual CPU was asked to queue anew: tasks that wait in a limited group, and were lent a place elsewhere or moved
//! out of it, or were aborted. These are two lists: the first kind others wait for, the second is not worth holding up anybody.
//!
//! Whoever asks names a group; the virtual CPU looks through its queue for such tasks, by parts: a hundred thousand that are killed at once,
//! or a task in each of as many groups, keep nobody waiting for longer than a part takes, and are looked at once or a few times each. The
//! requests are behind a lock, a leaf; only the virtual CPU takes any out, between two polls, and puts back what it has not come to.
//!
//! *Nobody is missed*: who is queued at the time of a request stays in its slot until it is looked at or leaves the queue, and who is queued
//! later is given its place, or follows its move, by then (see `group::shared`, `vcpu::switch`). A request that comes while another is under way has a search of its own after that.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use quotient_core::DrainPart;

use crate::group::GroupShared;

/// A part of a search. Slots of nothing are looked at in some nanoseconds, tasks that are queued anew in about one microsecond: 50 to 100 us, a
/// fraction of a turn.
pub(crate) const PART: DrainPart = DrainPart {
    slots: 4_096,
    tasks: 64,
};
/// If more groups are asked for at a time, one search is for all groups. Unit: groups.
const GROUPS_MAX: usize = 4;

/// The requests of one virtual CPU.
#[derive(Debug, Default)]
pub(crate) struct Releases(Mutex<Requests>);

#[derive(Debug, Default)]
struct Requests {
    /// Searches that have come to where they cannot go on.
    waiting: VecDeque<Search>,
    groups: VecDeque<Arc<GroupShared>>,
    all: bool,
    under_way: Option<Search>,
}

impl Requests {
    fn ask(&mut self, group: &Arc<GroupShared>) {
        let is_known = |known: &Arc<GroupShared>| Arc::ptr_eq(known, group);
        if self.all || self.groups.iter().any(is_known) {
            return;
        }
        if self.groups.len() < GROUPS_MAX {
            self.groups.push_back(group.clone());
        } else {
            self.groups.clear();
            self.all = true;
        }
    }
}

/// One search: of the tasks of a group and below it, or of all; and where it goes on.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) group: Option<Arc<GroupShared>>,
    pub(crate) next: u32,
    /// It has passed some that could not go yet.
    pub(crate) skipped: bool,
}

impl Search {
    /// From the beginning.
    pub(crate) fn of(group: Option<Arc<GroupShared>>) -> Self {
        Self {
            group,
            next: 0,
            skipped: false,
        }
    }
}

impl Releases {
    /// Asks for the tasks of `group` and below it.
    pub(crate) fn ask(&self, group: &Arc<GroupShared>) {
        self.lock().ask(group);
    }

    /// What is to be looked for now.
    pub(crate) fn next(&self) -> Option<Search> {
        let mut requests = self.lock();
        if let Some(search) = requests.under_way.take() {
            return Some(search);
        }
        if std::mem::take(&mut requests.all) {
            return Some(Search::of(None));
        }
        let new = requests.groups.pop_front();
        let new = new.map(|group| Search::of(Some(group)));
        new.or_else(|| requests.waiting.pop_front())
    }

    /// Whether there is anything to look for.
    pub(crate) fn any(&self) -> bool {
        let requests = self.lock();
        requests.all
            || requests.under_way.is_some()
            || !requests.groups.is_empty()
            || !requests.waiting.is_empty()
    }

    /// The search goes on after all others.
    pub(crate) fn postpone(&self, search: Search) {
        let mut requests = self.lock();
        let same = |known: &Search| match (&known.group, &search.group) {
            (Some(known), Some(group)) => Arc::ptr_eq(known, group),
            (known, group) => known.is_none() && group.is_none(),
        };
        if let Some(known) = requests.waiting.iter_mut().find(|known| same(known)) {
            // The one that was asked for first has passed what came since.
            known.next = 0;
        } else if requests.waiting.len() < GROUPS_MAX {
            requests.waiting.push_back(search);
        } else {
            requests.waiting.clear();
            requests.waiting.push_back(Search::of(None));
        }
    }

    /// The search has not come to the end of the queue.
    pub(crate) fn go_on_later(&self, search: Search) {
        self.lock().under_way = Some(search);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Hazard: a task is killed in each of very many groups, and the queue is searched as often.
    #[test]
    fn the_dead_of_many_groups_are_looked_for_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let build = async { crate::Scheduler::builder().vcpus(1).build() };
        let scheduler = runtime.block_on(build).unwrap();
        let group = |number: usize| scheduler.group(&format!("g{number}")).unwrap().create();
        let groups: Vec<_> = (0..100).map(|number| group(number).unwrap()).collect();
        let releases = Releases::default();
        let searches = || std::iter::from_fn(|| releases.next()).collect::<Vec<_>>();
        for group in &groups[..2] {
            releases.ask(&group.inner);
            releases.ask(&group.inner);
        }
        let found = searches();
        assert_eq!(found.len(), 2);
        let first = found[0].group.as_ref().unwrap();
        assert!(Arc::ptr_eq(first, &groups[0].inner));
        for group in groups.iter().chain(&groups) {
            releases.ask(&group.inner);
        }
        let found = searches();
        assert!(found.len() == 1 && found[0].group.is_none(), "{found:?}");
        // One that is under way goes first; who asks meanwhile has one of his own.
        let search = Search {
            group: None,
            next: 7,
            skipped: false,
        };
        releases.go_on_later(search);
        releases.ask(&groups[3].inner);
        let found: Vec<_> = searches().iter().map(|search| search.next).collect();
        assert_eq!(found, [7, 0]);
    }
}
