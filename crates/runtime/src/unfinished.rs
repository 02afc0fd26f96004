//! What is left of tasks that should have ended: who is still being polled, and since when.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quotient_core::Nanos;

use crate::shared::Shared;
use crate::shielded::lock_shielded;
use crate::task::Id;
use crate::task_context::TaskRef;

/// A task in a poll that does not return.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StillPolling {
    /// The task.
    pub task: Id,
    /// The path of its group.
    pub group: String,
    /// Where it was spawned.
    pub location: &'static Location<'static>,
    /// How long the poll has taken so far, wall time.
    pub polled_for: Duration,
}

/// Tasks that have not ended in the time given. They will when their polls return: nothing else can end a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// Tasks that are left, those in `polling` included: others wait for a virtual CPU behind them.
    pub tasks: usize,
    /// Those that are being polled, the longest first.
    pub polling: Vec<StillPolling>,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have = if self.tasks == 1 {
            "task has"
        } else {
            "tasks have"
        };
        write!(formatter, "{} {have} not ended", self.tasks)?;
        for (index, task) in self.polling.iter().enumerate() {
            let start = if index == 0 { "; in a poll: " } else { ", " };
            write!(
                formatter,
                "{start}task {} of group {:?}, spawned at {}, for {:?}",
                task.task, task.group, task.location, task.polled_for
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for Unfinished {}

impl Unfinished {
    /// What is left of `tasks`. O(tasks), times the logarithm of the polls in progress.
    pub(crate) fn of(shared: &Shared, tasks: &[TaskRef]) -> Self {
        let polls = sorted(polls_in_progress(shared));
        Self::polled(tasks.len(), tasks, &polls)
    }

    /// `count` tasks are left, of which those of `tasks` are polled that are in `polls`.
    fn polled(count: usize, tasks: &[TaskRef], polls: &[(u64, Nanos)]) -> Self {
        let mut polling = Vec::new();
        for task in tasks {
            let poll = find(polls, task).map(|place| polls[place]);
            if let (Some((_, taken)), Some(group)) = (poll, group_of(task)) {
                polling.push(StillPolling {
                    task: task.id(),
                    group,
                    location: task.context().location,
                    polled_for: Duration::from_nanos(taken.as_nanos()),
                });
            }
        }
        polling.sort_by_key(|task| std::cmp::Reverse(task.polled_for));
        Self {
            tasks: count,
            polling,
        }
    }

    /// What is left of all tasks. Asked when time is up: takes out no more of them than are polled. O(tasks), as [`Unfinished::of`].
    pub(crate) fn of_all(shared: &Arc<Shared>) -> Self {
        let polls = sorted(polls_in_progress(shared));
        let (mut count, mut tasks) = (0, Vec::new());
        for group in shared.all_groups() {
            count += group.owned.len();
            let is_polled = |task: &TaskRef| find(&polls, task).is_some();
            tasks.extend(group.owned.all_that(is_polled));
        }
        Self::polled(count, &tasks, &polls)
    }
}

fn sorted(mut polls: Vec<(u64, Nanos)>) -> Vec<(u64, Nanos)> {
    polls.sort_unstable();
    polls
}

fn find(polls: &[(u64, Nanos)], task: &TaskRef) -> Option<usize> {
    let number = task.id().number();
    let place = polls.binary_search_by_key(&number, |(polled, _)| *polled);
    place.ok()
}

/// The numbers of the tasks that are being polled, and for how long they have been. O(virtual CPUs + polls that are borne).
pub(crate) fn polls_in_progress(shared: &Shared) -> Vec<(u64, Nanos)> {
    let now = shared.now();
    let on_vcpus = shared.used_vcpus().iter().filter_map(|vcpu| {
        let since = vcpu.polling_since.load(Ordering::Acquire);
        let task = vcpu.polling.load(Ordering::Relaxed);
        (since != 0).then(|| (task, now.saturating_sub(Nanos(since - 1))))
    });
    // Before the others are looked at: a poll that leaves its virtual CPU is with its bearer first.
    let mut polls: Vec<(u64, Nanos)> = on_vcpus.collect();
    // A poll that is preempted is on no virtual CPU any more.
    let borne = shared.preempt.as_ref();
    let borne = borne.map_or_else(Vec::new, |preempting| preempting.long_polls());
    let elsewhere = shared.handed_over.list().into_iter().chain(borne);
    polls.extend(elsewhere.map(|(task, since)| (task, now.saturating_sub(since))));
    polls
}

/// The path of a task's group; `None` once it has ended.
fn group_of(task: &TaskRef) -> Option<String> {
    let membership = lock_shielded(&task.context().membership);
    let group = &membership.as_ref()?.group;
    Some(group.core.path().to_owned())
}

/// Whether a task has ended: its future is dropped and its output stored.
pub(crate) fn has_ended(task: &TaskRef) -> bool {
    lock_shielded(&task.context().membership).is_none()
}
