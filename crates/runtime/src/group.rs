//! Groups: what users hold, and what the scheduler keeps for each.
//!
//! # Frozen tasks
//! A group is *held* while it or an ancestor is frozen. A virtual CPU that picks a task of a held group gives the token to
//! [`GroupShared::hold`] instead of polling it; thaw takes the tokens out and queues them. Both look at the flag under the
//! group's `parked` lock, so a token is either seen by thaw or goes back to its virtual CPU. Freezing costs nothing per task
//! and one relaxed load a dispatch.
//!
//! # Removal
//! `removed` is set first: spawns are refused from then on. The core gives the group up when its last task has left every run
//! queue; if the last task ends while it is still current there, the group waits in `Shared::leaving` for the next tick.

use std::future::Future;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use quotient_core::{Enqueue, TaskEntity, Weight};

use crate::error::{Error, SpawnError};
use crate::local;
use crate::owned::OwnedTasks;
use crate::scheduler::Handles;
use crate::shared::{OPEN, Shared};
use crate::stats::{GroupCpus, GroupStats, TaskStats};
use crate::task::{self, JoinHandle};
use crate::task_context::{Owned, Task, TaskContext};

/// What the scheduler keeps for a group.
#[derive(Debug)]
pub(crate) struct GroupShared {
    pub(crate) core: Arc<quotient_core::Group>,
    parent: Option<Weak<GroupShared>>,
    pub(crate) owned: OwnedTasks,
    pub(crate) cpus: GroupCpus,
    live: AtomicUsize,
    removed: AtomicBool,
    /// This group itself was frozen; written under `Shared::shape`.
    frozen: AtomicBool,
    /// This group or an ancestor is frozen; written under `Shared::shape`.
    held: AtomicBool,
    /// Tokens of tasks that were picked while held.
    parked: Mutex<Vec<Task>>,
}

impl GroupShared {
    pub(crate) fn new(
        core: Arc<quotient_core::Group>,
        parent: Option<&Arc<GroupShared>>,
        slots: usize,
    ) -> Self {
        Self {
            core,
            parent: parent.map(Arc::downgrade),
            owned: OwnedTasks::default(),
            cpus: GroupCpus::new(slots),
            live: AtomicUsize::new(0),
            removed: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            held: AtomicBool::new(parent.is_some_and(|parent| parent.is_held())),
            parked: Mutex::new(Vec::new()),
        }
    }

    /// Whether tasks of the group must not be polled now.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Keeps the token of a task that was picked while the group is held; gives it back if it no longer is.
    pub(crate) fn hold(&self, task: Task) -> Result<(), Task> {
        let mut parked = self.lock_parked();
        // A killed task goes on to its end: kill marks its tasks before it takes this lock to empty the list.
        if !self.is_held() || task.is_aborted() {
            return Err(task);
        }
        parked.push(task);
        Ok(())
    }

    fn lock_parked(&self) -> MutexGuard<'_, Vec<Task>> {
        self.parked
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    pub(crate) fn joined(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    /// A task has left the group for good.
    pub(crate) fn left(self: &Arc<Self>, shared: &Shared) {
        if self.live.fetch_sub(1, Ordering::AcqRel) == 1 && self.is_removed() {
            self.queue_removal(shared);
        }
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    fn queue_removal(self: &Arc<Self>, shared: &Shared) {
        let mut leaving = shared
            .leaving
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        if !leaving.iter().any(|known| Arc::ptr_eq(known, self)) {
            leaving.push(self.clone());
        }
        drop(leaving);
        shared.tick.run();
    }

    /// Aborts the group's own tasks, those that are held included. O(tasks).
    pub(crate) fn kill_own(&self) {
        for task in self.owned.snapshot() {
            task.abort();
        }
        let parked = std::mem::take(&mut *self.lock_parked());
        for task in parked {
            task.cancel();
        }
    }

    /// Sets `held` from the parent's and the own flag, for the whole subtree; queues what may run again.
    fn settle_held(self: &Arc<Self>, shared: &Shared, all: &[Arc<GroupShared>]) {
        let above = self
            .parent
            .as_ref()
            .and_then(Weak::upgrade)
            .is_some_and(|parent| parent.is_held());
        let held = above || self.frozen.load(Ordering::Relaxed);
        let released = {
            let mut parked = self.lock_parked();
            self.held.store(held, Ordering::Relaxed);
            if held {
                Vec::new()
            } else {
                std::mem::take(&mut *parked)
            }
        };
        for task in released {
            shared.submit_remote(task, Enqueue::Wake);
        }
        for child in all {
            let of_this = child
                .parent
                .as_ref()
                .is_some_and(|parent| std::ptr::eq(parent.as_ptr(), Arc::as_ptr(self)));
            if of_this {
                child.settle_held(shared, all);
            }
        }
    }

    fn path(&self) -> String {
        self.core.path().to_owned()
    }
}

/// Gives removed groups without tasks back to the core; returns whether any still waits.
pub(crate) fn finish_removals(shared: &Shared) -> bool {
    let mut leaving = shared
        .leaving
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    if leaving.is_empty() {
        return false;
    }
    let _shape = shared
        .shape
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    leaving.retain(|group| {
        if group.live.load(Ordering::Acquire) > 0 {
            // It was given a task by a move; that task's end will queue it again.
            return false;
        }
        let id = group.core.id();
        if shared.tree.remove(&group.core).is_err() {
            return true;
        }
        shared
            .groups
            .write()
            .unwrap_or_else(|poison| poison.into_inner())
            .remove(&id);
        false
    });
    !leaving.is_empty()
}

/// What becomes of live tasks when their group is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leftover {
    /// Refuse to remove a group that has any, as `rmdir` on a cgroup does.
    Refuse,
    /// Abort them.
    Kill,
    /// Move them to the parent group.
    MoveToParent,
}

/// Settings of a group that is looked up or made; see [`crate::Scheduler::group`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `create`"]
pub struct GroupBuilder {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) path: String,
    weight: Option<u32>,
    idle: Option<bool>,
}

impl GroupBuilder {
    pub(crate) fn new(shared: Arc<Shared>, handles: Arc<Handles>, path: &str) -> Self {
        Self {
            shared,
            handles,
            path: path.to_owned(),
            weight: None,
            idle: None,
        }
    }

    /// Relative share among siblings, 1 to 10000; 100 when never set. Checked by [`GroupBuilder::create`].
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// An idle group runs only with a sliver of the share of any other (cgroup `cpu.idle`).
    pub fn idle(mut self, idle: bool) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Gets the group of that path, or makes it and the ancestors it lacks; then applies the settings given.
    ///
    /// # Errors
    /// A malformed path or a weight out of range (nothing is created or changed then), a group that is being removed, a
    /// scheduler that was shut down. O(depth + log siblings).
    pub fn create(self) -> Result<Group, Error> {
        let weight = self.weight.map(Weight::new).transpose()?;
        if self.shared.phase() != OPEN {
            return Err(Error::ShutDown);
        }
        let group = {
            let _shape = self
                .shared
                .shape
                .lock()
                .unwrap_or_else(|poison| poison.into_inner());
            let core = self.shared.tree.group(&self.path)?;
            lookup(&self.shared, &core)
        };
        if group.is_removed() {
            return Err(Error::Removed { path: self.path });
        }
        if let Some(weight) = weight {
            group.core.set_weight(weight);
        }
        if let Some(idle) = self.idle {
            group.core.set_idle(idle);
        }
        Ok(Group {
            inner: group,
            shared: self.shared,
            _handles: self.handles,
        })
    }
}

/// The runtime's part of a core group, made for it and its ancestors on first use. Called under `Shared::shape`.
pub(crate) fn lookup(shared: &Shared, core: &Arc<quotient_core::Group>) -> Arc<GroupShared> {
    let Some(parent) = core.parent() else {
        return shared.root.clone();
    };
    let known = shared
        .groups
        .read()
        .unwrap_or_else(|poison| poison.into_inner())
        .get(&core.id())
        .cloned();
    if let Some(known) = known {
        return known;
    }
    let parent = lookup(shared, parent);
    let group = Arc::new(GroupShared::new(
        core.clone(),
        Some(&parent),
        shared.vcpus.len(),
    ));
    shared
        .groups
        .write()
        .unwrap_or_else(|poison| poison.into_inner())
        .insert(core.id(), group.clone());
    group
}

/// A group of tasks: a tenant. Cheap to clone; all clones mean the same group, which lives until it is removed.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) inner: Arc<GroupShared>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) _handles: Arc<Handles>,
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Group {}

impl Group {
    /// The group whose CPU clock the caller's time is charged to: that of the task it runs in, or of the innermost
    /// [`crate::InGroupExt::in_group`] around it. `None` outside.
    pub fn current() -> Option<Self> {
        let (shared, inner) = local::current_group()?;
        let _handles = shared.handles();
        Some(Self {
            inner,
            shared,
            _handles,
        })
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
        self.check_changeable()?;
        self.inner.core.set_weight(weight);
        Ok(())
    }

    /// Makes the group idle, or ordinary again (cgroup `cpu.idle`).
    ///
    /// # Errors
    /// [`Error::Root`] for the root group, [`Error::Removed`].
    pub fn set_idle(&self, idle: bool) -> Result<(), Error> {
        self.check_changeable()?;
        self.inner.core.set_idle(idle);
        Ok(())
    }

    /// Gets or makes a group below this one; `path` is relative to it.
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
        GroupBuilder::new(self.shared.clone(), self._handles.clone(), &full)
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
        spawn_at(&self.shared, &self.inner, future, Location::caller())
            .unwrap_or_else(|error| JoinHandle::failed(&error.to_string()))
    }

    /// As [`Group::spawn`], with the reason if it was refused.
    ///
    /// # Errors
    /// [`SpawnError::ShutDown`], [`SpawnError::GroupRemoved`]; the future was dropped.
    #[track_caller]
    pub fn try_spawn<F>(&self, future: F) -> Result<JoinHandle<F::Output>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        spawn_at(&self.shared, &self.inner, future, Location::caller())
    }

    /// CPU time of the group and its descendants; exact when they are quiet, else behind by at most the polls in progress.
    /// Never goes backwards for one reader. O(virtual CPUs); no writer is ever waited for.
    pub fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.inner.core.cpu_time().as_nanos())
    }

    /// Everything that is counted for the group. O(virtual CPUs), stops nobody.
    pub fn stats(&self) -> GroupStats {
        let mut stats = GroupStats {
            cpu: self.cpu_time(),
            tasks: self.inner.live.load(Ordering::Acquire),
            ..GroupStats::default()
        };
        self.inner.cpus.add_to(&mut stats);
        stats
    }

    /// The figures of each live task of the group itself. O(tasks).
    pub fn task_stats(&self) -> Vec<TaskStats> {
        let tasks = self.inner.owned.snapshot();
        tasks.iter().map(|task| task.context().stats()).collect()
    }

    /// Stops the dispatch of the group's tasks and of its descendants'. Polls in progress end as usual. Idempotent.
    ///
    /// # Errors
    /// [`Error::Root`] for the root group, [`Error::Removed`].
    pub fn freeze(&self) -> Result<(), Error> {
        self.check_changeable()?;
        self.set_frozen(true);
        Ok(())
    }

    /// Ends [`Group::freeze`]; a frozen ancestor still holds the group. Idempotent. O(groups + tasks that were woken meanwhile).
    ///
    /// # Errors
    /// [`Error::Root`] for the root group, [`Error::Removed`].
    pub fn thaw(&self) -> Result<(), Error> {
        self.check_changeable()?;
        self.set_frozen(false);
        Ok(())
    }

    /// Whether [`Group::freeze`] of this group, or of one above it, is in force.
    pub fn is_frozen(&self) -> bool {
        self.inner.is_held()
    }

    /// Aborts every live task of the group and its descendants, frozen ones included. The group stays. O(groups + tasks).
    ///
    /// # Errors
    /// [`Error::Root`] for the root group.
    pub fn kill(&self) -> Result<(), Error> {
        if self.path().is_empty() {
            return Err(Error::Root);
        }
        for group in self.subtree() {
            group.kill_own();
        }
        Ok(())
    }

    /// Removes the group and everything below it. Spawns into it are refused from now on; its name is free again as soon as
    /// its last task is gone (within a tick).
    ///
    /// # Errors
    /// [`Error::Root`]; [`Error::Removed`] if it was removed before; [`Error::Busy`] with [`Leftover::Refuse`] if the group or a
    /// descendant has live tasks: nothing changed.
    pub fn remove(&self, leftover: Leftover) -> Result<(), Error> {
        self.check_changeable()?;
        let subtree = self.subtree();
        if leftover == Leftover::Refuse {
            let tasks = subtree
                .iter()
                .map(|group| group.live.load(Ordering::Acquire))
                .sum();
            if tasks > 0 {
                let path = self.inner.path();
                return Err(Error::Busy { path, tasks });
            }
        }
        for group in &subtree {
            group.removed.store(true, Ordering::Release);
        }
        let parent = self.inner.parent.as_ref().and_then(Weak::upgrade);
        for group in subtree.iter().rev() {
            match (leftover, &parent) {
                (Leftover::MoveToParent, Some(parent)) => {
                    for task in group.owned.snapshot() {
                        move_task(&self.shared, &task, parent);
                    }
                    let parked = std::mem::take(&mut *group.lock_parked());
                    for task in parked {
                        self.shared.submit_remote(task, Enqueue::Wake);
                    }
                }
                _ => group.kill_own(),
            }
            if group.live.load(Ordering::Acquire) == 0 {
                group.queue_removal(&self.shared);
            }
        }
        finish_removals(&self.shared);
        Ok(())
    }

    /// Moves every live task of this group itself to `target`, a group of the same scheduler. A task that is being polled moves
    /// when its poll ends. Does nothing if `target` belongs to another scheduler or is this group.
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
        for task in self.inner.owned.snapshot() {
            move_task(&self.shared, &task, &target.inner);
        }
        Ok(())
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

    fn set_frozen(&self, frozen: bool) {
        let _shape = self
            .shared
            .shape
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        self.inner.frozen.store(frozen, Ordering::Relaxed);
        let all = self.shared.all_groups();
        self.inner.settle_held(&self.shared, &all);
    }

    /// This group first, then its descendants, parents before children.
    fn subtree(&self) -> Vec<Arc<GroupShared>> {
        let _shape = self
            .shared
            .shape
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
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

/// Relists a live task under another group; the holder of its token follows at the next dispatch.
fn move_task(shared: &Shared, task: &crate::task_context::TaskRef, target: &Arc<GroupShared>) {
    let context = task.context();
    let mut membership = context
        .membership
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let Some(member) = membership.as_mut() else {
        return;
    };
    if Arc::ptr_eq(&member.group, target) {
        return;
    }
    target.joined();
    let (shard, key) = target.owned.insert(task.clone(), member.shard);
    let old = std::mem::replace(&mut member.group, target.clone());
    old.owned.remove(member.shard, member.key);
    (member.shard, member.key) = (shard, key);
    context.moved.store(true, Ordering::Release);
    drop(membership);
    old.left(shared);
}

/// Makes a task, lists it and queues it.
pub(crate) fn spawn_at<F>(
    shared: &Arc<Shared>,
    group: &Arc<GroupShared>,
    future: F,
    location: &'static Location<'static>,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    if shared.phase() != OPEN {
        return Err(SpawnError::ShutDown);
    }
    if group.is_removed() {
        let path = group.path();
        return Err(SpawnError::GroupRemoved { path });
    }
    let here = local::current_vcpu(shared);
    let home = here.unwrap_or_else(|| shared.next_home());
    let context = TaskContext::new(shared.clone(), location, u32::try_from(home).unwrap_or(0));
    let owned = Owned {
        entity: TaskEntity::new(Weight::DEFAULT, None),
        group: group.clone(),
        since: quotient_core::Nanos::ZERO,
    };
    let (token, reference, handle) = task::spawn(future, context, owned);
    shared.list(group, &reference, home);
    // Close, kill and removal set their mark before they walk the lists: either they see the task, or it sees the mark.
    if shared.phase() != OPEN || group.is_removed() {
        reference.abort();
    }
    local::schedule(token, Enqueue::New);
    Ok(handle)
}
