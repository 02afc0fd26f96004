//! Groups, as users hold them.

mod ahead;
mod builder;
mod dead;
mod kept;
mod kept_back;
mod members;
mod reading;
mod shared;

use crate::alarms::Alarm;
use crate::bandwidth::nanos;
use crate::preempt::at_usual_priority;
use crate::shared::CLOSED;
use crate::task_context::TaskRef;
use crate::tick::TICK;
use crate::unfinished::{Unfinished, has_ended};
use std::future::Future;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quotient_core::{Limit, Weight};

pub use self::builder::GroupBuilder;
pub(crate) use self::dead::SeatOfTheDead;
#[cfg(any(feature = "tower", feature = "hyper"))]
pub(crate) use self::members::{Seat, spawn_uncounted};
pub(crate) use self::members::{admits, spawn_at, spawn_member};
pub(crate) use self::shared::{GroupShared, finish_removals, known, lookup};
use crate::bandwidth::{LimitChange, Max};
use crate::error::{Error, SpawnError};
use crate::local;
use crate::local_tasks;
use crate::loss::{Loss, note};
use crate::scheduler::Handles;
use crate::shared::Shared;
use crate::spawn::refused;
use crate::stats::TaskStats;
use crate::task::JoinHandle;
use crate::task_builder::Origin;

/// How many tasks a kill aborts before it may be interrupted. Unit: tasks. 64 take some 0.2 ms, a fifth of a turn.
const ABORTED_AT_ONCE: usize = 64;

/// What becomes of live tasks when their group is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leftover {
    /// Refuse to remove a group that has any, as `rmdir` on a cgroup does.
    Refuse,
    /// Abort them.
    Kill,
    /// Move them to the parent group. What such a task spawns without naming a group, in the poll that it is in, goes there, too;
    /// [`Group::current`] is the removed group until that poll has ended, and refuses what is spawned by its handle.
    MoveToParent,
}

/// A group of tasks: a tenant. Cheap to clone; all clones mean the same group, which lives until it is removed.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) inner: Arc<GroupShared>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) _handles: Arc<Handles>,
    /// The group that whoever has this handle is inside of, if it comes from there: nothing is moved out of that with it.
    pub(crate) within: Option<Arc<GroupShared>>,
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Group {}

impl Group {
    /// The group whose CPU clock the caller's time is charged to: that of the task it runs in, of the innermost
    /// [`crate::InGroupExt::in_group`] around it, or of the innermost [`crate::ThreadMeter`] of a thread outside
    /// ([`crate::spawn_blocking`] is in one). `None` elsewhere, and for what others run of a group's when that is gone: destructors of what it
    /// [kept](Group::keep), and wakers that a thread of the scheduler's calls.
    ///
    /// The handle, and those of [children](Group::child) that are made with it, move no task out of this group: see [`Error::FromInside`].
    pub fn current() -> Option<Self> {
        let (shared, inner) = local::group_of_caller()?;
        let within = Some(inner.clone());
        Some(Self {
            within,
            ..Self::of(&shared, &inner)
        })
    }

    /// The group of what the caller spawns without naming one.
    pub(crate) fn to_spawn_in() -> Option<Self> {
        let (shared, inner) = local::group_to_spawn_in()?;
        Some(Self::of(&shared, &inner))
    }

    /// A handle of the group.
    pub(crate) fn of(shared: &Arc<Shared>, inner: &Arc<GroupShared>) -> Self {
        Self {
            inner: inner.clone(),
            shared: shared.clone(),
            _handles: shared.handles(),
            within: None,
        }
    }

    /// The path from the root, without a leading slash; empty for the root group.
    pub fn path(&self) -> &str {
        self.inner.core.path()
    }

    /// The weight in force.
    pub fn weight(&self) -> u32 {
        self.inner.core.weight().get()
    }

    /// Changes the weight, live: running tasks keep their lag. O(1) here, applied by each virtual CPU at its next pick.
    ///
    /// # Errors
    /// [`Error::Weight`] outside 1..=10000, [`Error::Root`] for the root group, [`Error::Removed`]; the old weight stays.
    pub fn set_weight(&self, weight: u32) -> Result<(), Error> {
        let weight = Weight::new(weight)?;
        let _shield = self.shared.shield();
        self.check_changeable()?;
        self.inner.core.set_weight(weight);
        Ok(())
    }

    /// Makes the group idle, or ordinary again (cgroup `cpu.idle`).
    ///
    /// # Errors
    /// [`Error::Root`] for the root group, [`Error::Removed`].
    pub fn set_idle(&self, idle: bool) -> Result<(), Error> {
        let _shield = self.shared.shield();
        self.check_changeable()?;
        self.inner.core.set_idle(idle);
        Ok(())
    }

    /// The limit in force, if any.
    pub fn max(&self) -> Option<Limit> {
        let _shield = self.shared.shield();
        self.inner.core.limit()
    }

    /// Sets, changes or (`"max"`) lifts the limit, live; see [`Max`] for the forms. Writing the limit in force again changes nothing.
    /// When the limit is raised or lifted, tasks that it throttled run again at once. O(virtual CPUs + groups below).
    ///
    /// A task can lift its own group's limit: it has a handle of that ([`Group::current`]), and of groups that it makes below it, but of none
    /// above. A limit against code that is not trusted belongs on the parent of the group that runs it.
    ///
    /// # Errors
    /// [`Error::Limit`] for what is malformed or out of range, and for the root group; the old limit stays in force.
    pub fn set_max(&self, max: impl Into<Max>) -> Result<(), Error> {
        self.change_limit(LimitChange {
            max: Some(max.into()),
            ..LimitChange::default()
        })
    }

    /// Sets how much unused quota may be carried over to later periods, live. It may be more than the quota, which the kernel refuses: a group
    /// that was idle for long has as much at once.
    ///
    /// # Errors
    /// [`Error::Limit`] out of range, [`Error::Unlimited`] without a limit; nothing has changed.
    pub fn set_burst(&self, burst: Duration) -> Result<(), Error> {
        self.change_limit(LimitChange {
            burst: Some(burst),
            ..LimitChange::default()
        })
    }

    /// Makes the limit soft or hard, live: a soft one may be exceeded on virtual CPUs that have nothing else to run.
    ///
    /// # Errors
    /// [`Error::Unlimited`] without a limit; [`Error::Limit`] if the scheduler's rules know only hard limits.
    pub fn set_soft(&self, soft: bool) -> Result<(), Error> {
        self.change_limit(LimitChange {
            soft: Some(soft),
            ..LimitChange::default()
        })
    }

    /// Refills smoothly or at the start of each period, live.
    ///
    /// # Errors
    /// As [`Group::set_soft`].
    pub fn set_smooth(&self, smooth: bool) -> Result<(), Error> {
        self.change_limit(LimitChange {
            smooth: Some(smooth),
            ..LimitChange::default()
        })
    }

    fn change_limit(&self, change: LimitChange) -> Result<(), Error> {
        if self.inner.is_removed() {
            let path = self.inner.path();
            return Err(Error::Removed { path });
        }
        change.apply(&self.shared, &self.inner)
    }

    /// Gets or makes a group below this one; `path` is relative to it. Once this one was removed, [`GroupBuilder::create`] fails with
    /// [`Error::Removed`], as every change by this handle does, also if its path is another group's by then.
    pub fn child(&self, path: &str) -> GroupBuilder {
        let full = if self.path().is_empty() {
            path.to_owned()
        } else {
            // An absolute child path stays absolute, so that it is refused rather than joined.
            let separator = if path.starts_with('/') { "" } else { "/" };
            let prefix = if separator.is_empty() {
                ""
            } else {
                self.path()
            };
            format!("{prefix}{separator}{path}")
        };
        GroupBuilder::below(self, &full)
    }

    /// Spawns a task into the group. As `tokio::spawn`: the handle may be dropped to detach the task. Tasks that it spawns with
    /// [`crate::spawn`] are children of the same group.
    ///
    /// A task that could not be spawned (see [`Group::try_spawn`]) has a handle that resolves at once to an error.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let origin = Origin::caller();
        spawn_at(&self.shared, &self.inner, future, origin).unwrap_or_else(|error| refused(&error))
    }

    /// As [`Group::spawn`], with the reason if it was refused.
    ///
    /// # Errors
    /// [`SpawnError::ShutDown`], [`SpawnError::GroupRemoved`], [`SpawnError::TooManyTasks`], [`SpawnError::QueueTooLong`]; the
    /// future was dropped.
    #[track_caller]
    pub fn try_spawn<F>(&self, future: F) -> Result<JoinHandle<F::Output>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        spawn_at(&self.shared, &self.inner, future, Origin::caller())
    }

    /// CPU time of the group and its descendants: exact while none of them runs, else behind by at most the polls in progress on
    /// other virtual CPUs. If the caller runs in the group (as a task, in `in_group`, or metered), its own time up to now counts.
    ///
    /// Never goes back, also between readers that hear of each other; never less than what one of its tasks or descendants
    /// was seen to have used. O(virtual CPUs), not tasks; no lock, and no write but the caller's own time.
    #[inline]
    pub fn cpu_time(&self) -> Duration {
        crate::cpu_clock::read(self)
    }

    /// The figures of each live task of the group itself. O(tasks).
    pub fn task_stats(&self) -> Vec<TaskStats> {
        let _shield = self.shared.shield();
        let tasks = self.inner.owned.snapshot();
        tasks
            .iter()
            .map(|task| task.context().stats(task.id()))
            .collect()
    }

    /// Stops the dispatch of the group's tasks and of its descendants'. Polls in progress end as usual, preempted ones too: they may
    /// hold a lock that others want. Idempotent.
    ///
    /// Under [`crate::Builder::preempt`] no blocking function begins either, nor a job in [`crate::ThreadMeter::run`]: functions wait without a thread
    /// (65,536 of a group; more are refused), and [`crate::ThreadMeter::checkpoint`] sleeps. What has begun ends as usual. Without preemption, and in groups that
    /// are not [`GroupBuilder::preemptible`], a freeze is not for these: the operating system schedules them.
    ///
    /// # Errors
    /// [`Error::Root`] for the root group, [`Error::Removed`].
    pub fn freeze(&self) -> Result<(), Error> {
        self.check_changeable()?;
        self.set_frozen(true, false);
        Ok(())
    }

    /// As [`Group::freeze`], and under [`crate::Builder::preempt`] polls in progress stop at the instruction that they are at, within some
    /// 10 ms. They go on there after [`Group::thaw`] or at the scheduler's end; a later `freeze`, an abort or a kill lets them run to their
    /// return. Polls of groups that are not [`GroupBuilder::preemptible`] are not stopped, nor sections under [`crate::uninterrupted`] (for
    /// 50 ms of CPU time at most). Without preemption this is `freeze`.
    ///
    /// A stopped poll keeps its locks, and its place in a channel or list that it was about to fill, before which what others put there waits; and it
    /// gets no short turns to give them back: where other groups need such a lock, use `freeze`. Only
    /// if a virtual CPU, the tokio runtime or the scheduler's own thread does not get on for 250 ms (the lock is tokio's, or the allocator's) do
    /// the frozen polls run for 200 us, at most every 160 ms per cause; [`crate::PreemptStats::missed_beats`] and `rescues` count that.
    ///
    /// # Errors
    /// As [`Group::freeze`].
    pub fn freeze_immediately(&self) -> Result<(), Error> {
        self.check_changeable()?;
        self.set_frozen(true, true);
        Ok(())
    }

    /// Ends [`Group::freeze`]; a frozen ancestor still holds the group. Idempotent. O(groups + tasks that were woken meanwhile).
    ///
    /// # Errors
    /// [`Error::Root`] for the root group, [`Error::Removed`].
    pub fn thaw(&self) -> Result<(), Error> {
        self.check_changeable()?;
        self.set_frozen(false, false);
        Ok(())
    }

    /// Whether [`Group::freeze`] of this group, or of one above it, is in force.
    pub fn is_frozen(&self) -> bool {
        self.inner.is_held()
    }

    /// Aborts every live task of the group and its descendants, frozen ones included, as cgroup v2's `cgroup.kill` does. A task that a
    /// killed task spawns into these groups, in the poll that it is in or in its destructor, is killed, too. The group stays, and what
    /// other tasks spawn into it afterwards lives. O(groups + tasks).
    ///
    /// # What it cannot end
    /// A poll in progress, which runs to its return: [`Group::kill_within`] waits and says which tasks are left. A task of
    /// [`Group::spawn_local`] is told, and ends at the next poll of its local set, on that thread; nobody waits for it, and what it spawns in
    /// the poll that it is in lives. Work that only bills the group: closures of [`crate::spawn_blocking`], metered threads, futures of other tasks inside `in_group`.
    ///
    /// # Errors
    /// [`Error::Root`] for the root group.
    pub fn kill(&self) -> Result<(), Error> {
        if self.path().is_empty() {
            return Err(Error::Root);
        }
        self.kill_subtree();
        Ok(())
    }

    /// As [`Group::kill`], for polls that are not expected to return. Under [`crate::Builder::preempt`] polls in progress lose their turns,
    /// blocking functions, too. No poll can be ended from outside, but a killed one gets no more than the short turns in which stopped
    /// polls may give locks back (1 % of a processor for all of a scheduler together); its future is dropped once the poll has returned.
    /// A poll that does return does so sooner after [`Group::kill`]. Once the scheduler [shuts down](crate::Scheduler::shutdown) such polls have turns
    /// again as any other, so that they return. Without preemption this is `kill`.
    ///
    /// Polls are stopped after all tasks of the subtree were told to end, so later the more there are; a poll that has its turn
    /// then loses it at the next choice, within some 10 ms where the scheduler's threads get their processors.
    ///
    /// # Errors
    /// As [`Group::kill`].
    pub fn kill_immediately(&self) -> Result<(), Error> {
        if self.path().is_empty() {
            return Err(Error::Root);
        }
        // Last, since the caller may be in one of those polls.
        let now = self.shared.now();
        self.kill_subtree();
        let _shape = self.shared.lock_shape();
        for group in self.subtree_of_shape() {
            group.kill_inside(now);
        }
        Ok(())
    }

    /// [`Group::kill`], and waits until the killed tasks have ended, for `timeout` at most: those of earlier kills, too, and what killed tasks have
    /// spawned into these groups. `None` if all have; else the tasks that have not. Looks once a tick. Neither a limit nor a freeze delays a killed task: a throttled group's destructors run at once, and its
    /// budget pays for them afterwards (for 10 ms of them; what takes longer waits for the limit).
    ///
    /// # Errors
    /// As [`Group::kill`].
    pub async fn kill_within(&self, timeout: Duration) -> Result<Option<Unfinished>, Error> {
        if self.path().is_empty() {
            return Err(Error::Root);
        }
        self.kill_subtree();
        let due = self.shared.now().saturating_add(nanos(timeout));
        let mut left = Vec::new();
        loop {
            left.retain(|task| !has_ended(task));
            if left.is_empty() {
                // Not the tasks that this kill has flagged: earlier ones may be in polls still, and what they spawn before their end was not there.
                left = self.killed();
                left.retain(|task| !has_ended(task));
            }
            let now = self.shared.now();
            if left.is_empty() || now >= due {
                let unfinished = Unfinished::of(&self.shared, &left);
                return Ok((!left.is_empty()).then_some(unfinished));
            }
            let mut alarm = Alarm::new(&self.shared, due.min(now.saturating_add(TICK)));
            poll_fn(|context| alarm.poll(context)).await;
            if self.shared.phase() == CLOSED {
                // Nothing lives any more, and nobody would ring.
                return Ok(None);
            }
        }
    }

    /// The tasks of this group and of all below it that were killed and are still listed. O(groups + tasks).
    fn killed(&self) -> Vec<TaskRef> {
        let shape = self.shared.lock_shape();
        let subtree = self.subtree_of_shape();
        drop(shape);
        let _shield = self.shared.shield();
        let is_left = |task: &TaskRef| task.context().killed.load(Ordering::Relaxed);
        let tasks = subtree
            .iter()
            .flat_map(|group| group.owned.all_that(is_left));
        tasks.collect()
    }

    /// Kills the tasks of this group and of all below it. Flagging them, some 50 ns each, is not interrupted; aborting them is, since it takes
    /// some microseconds each: a caller who may not run, or is to be ended itself, goes on with it later. Nobody waits for that: the dead are
    /// flagged, and those that are polled meanwhile end by it.
    fn kill_subtree(&self) {
        let own = self.clone();
        at_usual_priority(&self.shared, move || own.kill_subtree_here());
    }

    fn kill_subtree_here(&self) {
        let reason = "the group, or one above it, was killed";
        let (mut dead, mut lost) = (Vec::new(), Vec::new());
        let mut subtree = Vec::new();
        let mut local = Vec::new();
        {
            // A group that is made from here on takes over its parent's mark: it is made under the same lock.
            let _shape = self.shared.lock_shape();
            self.shared.kills.kill(|kill| {
                subtree = self.subtree_of_shape();
                for group in &subtree {
                    group.killed_at.mark(kill);
                }
                for group in &subtree {
                    let (tasks, losses) = group.owned.flag_killed();
                    lost.push(losses);
                    dead.extend(tasks);
                }
                let own = &self.inner.core;
                let is_below = |group: &GroupShared| group.core.is_within(own);
                // Before their gates' members, whose end lets a future go on that was not told.
                local = self.shared.local_tasks.tell(is_below);
            });
        }
        // With no lock: who hears of losses is the program.
        for (group, losses) in subtree.iter().zip(lost) {
            note(&self.shared, group, Loss::KilledTask, losses, &reason);
        }
        local_tasks::end(&self.shared, local, (Loss::KilledTask, reason), true);
        for some in dead.chunks(ABORTED_AT_ONCE) {
            let _shield = self.shared.shield();
            some.iter().for_each(TaskRef::abort);
        }
        for group in &subtree {
            let _shield = self.shared.shield();
            group.release_parked(&self.shared);
        }
        if let Some(preempting) = &self.shared.preempt {
            preempting.end_functions(&self.shared, &subtree, Loss::KilledTask, reason);
        }
    }

    /// Removes the group and everything below it. Spawns into it are refused from now on; its name is free again within a tick
    /// of its last task's end: of a poll that does not return, never.
    ///
    /// Polls and functions in progress that a freeze has stopped, of the group or of one above it, go on to their ends, since whoever thaws that
    /// would not find them. With [`Leftover::MoveToParent`] the group's own limit, and those of the groups below, are lifted: what is left there to its
    /// end is the parent's business, whose limit holds for it.
    ///
    /// # Errors
    /// [`Error::Root`]; [`Error::Removed`] if it was removed before; [`Error::Busy`] with [`Leftover::Refuse`] if the group or a
    /// descendant has live tasks; [`Error::FromInside`] with [`Leftover::MoveToParent`] if the handle is one that the group's own code has of it: nothing changed.
    pub fn remove(&self, leftover: Leftover) -> Result<(), Error> {
        self.check_changeable()?;
        let is_inside = self.within.as_ref();
        let is_inside = is_inside.is_some_and(|within| Arc::ptr_eq(within, &self.inner));
        if is_inside && leftover == Leftover::MoveToParent {
            let path = self.inner.path();
            return Err(Error::FromInside { path });
        }
        let own = self.clone();
        at_usual_priority(&self.shared, move || own.remove_here(leftover))
    }

    fn remove_here(&self, leftover: Leftover) -> Result<(), Error> {
        let subtree = {
            // What is made below from here on is removed from the start: it is made under the same lock.
            let _shape = self.shared.lock_shape();
            let subtree = self.subtree_of_shape();
            if leftover == Leftover::MoveToParent {
                subtree.iter().for_each(|group| group.will_move_up());
            }
            let population = &self.inner.population;
            if leftover == Leftover::Refuse {
                if let Err(tasks) = population.close_if_empty() {
                    let path = self.inner.path();
                    return Err(Error::Busy { path, tasks });
                }
            } else {
                population.close();
            }
            for group in &subtree {
                group.population.close();
                group.settle_held(&self.shared);
            }
            subtree
        };
        match (leftover, &self.inner.parent) {
            (Leftover::Refuse, _) => {}
            (Leftover::MoveToParent, Some(parent)) => {
                let _shield = self.shared.shield();
                for group in &subtree {
                    group.move_all(&self.shared, parent);
                }
                // What is not a task, and the rest of polls in progress: nobody could lift it any more, and theirs is what the parent has.
                for group in &subtree {
                    let _ = LimitChange::lifted().apply(&self.shared, group);
                }
            }
            _ => self.kill_subtree(),
        }
        if let Some(preempting) = &self.shared.preempt {
            // What a freeze has kept from beginning, and no kill has ended.
            preempting.freezes_have_changed(&self.shared, &subtree);
        }
        let _shield = self.shared.shield();
        for group in subtree.iter().rev() {
            if group.population.count() == 0 {
                group.queue_removal(&self.shared);
            }
        }
        finish_removals(&self.shared);
        Ok(())
    }

    /// Moves every live task of this group, not of those below it, to `target`, a group of the same scheduler; out of a frozen group,
    /// and of one without budget, too. A task that is being polled moves when its poll ends; a killed one stays. The bound of [`GroupBuilder::tasks_max`] does not hold for
    /// moves. Does nothing if `target` belongs to another scheduler or is this group.
    ///
    /// # Errors
    /// [`Error::Removed`] if `target` was removed. O(tasks).
    pub fn move_tasks_to(&self, target: &Group) -> Result<(), Error> {
        if target.inner.is_removed() {
            let path = target.inner.path();
            return Err(Error::Removed { path });
        }
        if !Arc::ptr_eq(&self.shared, &target.shared) || self == target {
            return Ok(());
        }
        let _shield = self.shared.shield();
        self.inner.move_all(&self.shared, &target.inner);
        // Those that its limit keeps back go along at once.
        self.inner.release_throttled(&self.shared);
        Ok(())
    }

    /// Whether a request that gets no task of its own may come in.
    #[cfg(feature = "tower")]
    pub(crate) fn check_open(&self) -> Result<(), SpawnError> {
        self::members::check_open(&self.shared, &self.inner)
    }

    fn check_changeable(&self) -> Result<(), Error> {
        if self.path().is_empty() {
            return Err(Error::Root);
        }
        if self.inner.is_removed() {
            let path = self.inner.path();
            return Err(Error::Removed { path });
        }
        Ok(())
    }

    /// `inside`: polls in progress stop, too.
    fn set_frozen(&self, frozen: bool, inside: bool) {
        let own = self.clone();
        at_usual_priority(&self.shared, move || own.set_frozen_here(frozen, inside));
    }

    fn set_frozen_here(&self, frozen: bool, inside: bool) {
        // Who comes between the two steps, and finds nothing to change, relies on the second one.
        let _shield = self.shared.shield();
        let subtree = {
            let _shape = self.shared.lock_shape();
            let was_frozen = self.inner.frozen.swap(frozen, Ordering::Relaxed);
            let was_inside = self.inner.frozen_inside.swap(inside, Ordering::Relaxed);
            if (was_frozen, was_inside) == (frozen, inside) {
                // Nothing to settle, and nobody to wake.
                return;
            }
            let subtree = self.subtree_of_shape();
            for group in &subtree {
                group.settle_held(&self.shared);
            }
            subtree
        };
        if let Some(preempting) = &self.shared.preempt {
            preempting.freezes_have_changed(&self.shared, &subtree);
        }
    }

    /// This group first, then its descendants, parents before children. Called under `Shared::shape`.
    fn subtree_of_shape(&self) -> Vec<Arc<GroupShared>> {
        let mut cores = vec![self.inner.core.clone()];
        let mut next = 0;
        while next < cores.len() {
            let children = cores[next].children();
            cores.extend(children);
            next += 1;
        }
        cores
            .iter()
            .map(|core| lookup(&self.shared, core))
            .collect()
    }
}
