//! Getting or making a group, with its settings.

use std::sync::Arc;
use std::time::Duration;

use quotient_core::{GroupTree, Weight};

use super::Group;
use super::shared::{GroupShared, lookup};
use crate::bandwidth::Max;
use crate::config::GroupConfig;
use crate::error::Error;
use crate::idle::VcpuSet;
use crate::preempt::at_usual_priority;
use crate::scheduler::Handles;
use crate::shared::{OPEN, Shared};

/// Settings of a group that is looked up or made; see [`crate::Scheduler::group`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `create`"]
pub struct GroupBuilder {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) path: String,
    /// The group whose child it is to be, if it was asked for by that one's handle.
    parent: Option<Arc<GroupShared>>,
    /// As that handle's.
    within: Option<Arc<GroupShared>>,
    config: GroupConfig,
}

impl GroupBuilder {
    pub(crate) fn new(shared: Arc<Shared>, handles: Arc<Handles>, path: &str) -> Self {
        Self {
            shared,
            handles,
            path: path.to_owned(),
            parent: None,
            within: None,
            config: GroupConfig::new(),
        }
    }

    /// As [`GroupBuilder::new`], for a group below `parent`: none is made once that was removed, whoever has its path by then.
    pub(super) fn below(parent: &Group, path: &str) -> Self {
        let shared = parent.shared.clone();
        Self {
            parent: Some(parent.inner.clone()),
            within: parent.within.clone(),
            ..Self::new(shared, parent._handles.clone(), path)
        }
    }

    /// Relative share among siblings, 1 to 10000; 100 when never set. Checked by [`GroupBuilder::create`].
    pub fn weight(mut self, weight: u32) -> Self {
        self.config = self.config.weight(weight);
        self
    }

    /// An idle group gets only a sliver beside any other group that wants to run (cgroup `cpu.idle`).
    pub fn idle(mut self, idle: bool) -> Self {
        self.config = self.config.idle(idle);
        self
    }

    /// How many tasks the group may have at a time, its descendants' included (cgroup `pids.max`): further ones are refused with
    /// [`crate::SpawnError::TooManyTasks`]. `usize::MAX` lifts the bound; none when never set. Tasks that are there already, or are
    /// moved here, stay. With a bound each spawn changes one more shared word.
    ///
    /// What counts: each task; each request of the tower layer until its answer is complete; each connection or stream of a
    /// [`crate::hyper::GroupExecutor`], beside the requests on it; and each future [`in_group`](crate::InGroupExt::in_group) elsewhere
    /// while it has a place in the group's queue. Such a future is never refused, since it runs on a task that is there already.
    pub fn tasks_max(mut self, tasks: usize) -> Self {
        self.config = self.config.tasks_max(tasks);
        self
    }

    /// How long tasks and requests may wait for their first poll, in this group and below it, also while it is throttled or frozen.
    /// `Duration::MAX` lifts the bound; none when never set.
    ///
    /// - A new *task* is refused ([`crate::SpawnError::QueueTooLong`]) while the oldest of the group's unpolled tasks has waited for longer
    ///   than this, to a sixteenth of the bound. Tasks that were accepted are kept, so after a burst some wait for longer: bound the
    ///   burst by [`GroupBuilder::tasks_max`]. With a bound a spawn, and each task's first poll, take a lock for a few instructions;
    ///   without one, one load.
    /// - A *request* of the tower layer that has waited for its handler for this long, to a tick of one to four ms, is dropped unstarted
    ///   and refused (503 with `Retry-After`). So a tenant that is asked for more than it gets answers some requests in time, and not
    ///   all of them too late.
    pub fn queue_wait_max(mut self, wait: Duration) -> Self {
        self.config = self.config.queue_wait_max(wait);
        self
    }

    /// Whether polls of the group may be preempted, under [`crate::Builder::preempt`]; `true` when never set. A change holds from each
    /// task's next poll on. O(groups below).
    ///
    /// With `false` polls run to their end on their virtual CPU, as without preemption: nothing stops or slows them, and all tasks that wait
    /// for that virtual CPU wait for them. Weights and limits then hold between polls only. This is for code that must not be stopped, such as
    /// code that depends on its thread's priority or calls libraries that do not handle `EINTR`. For a section within a poll there is
    /// [`crate::uninterrupted`].
    ///
    /// A value that was set for a group holds for all groups below it, and overrules theirs. A tenant can make children of its own group
    /// ([`Group::current`]): so set `true` on the group that limits a tenant that is not trusted.
    pub fn preemptible(mut self, preemptible: bool) -> Self {
        self.config = self.config.preemptible(preemptible);
        self
    }

    /// How much CPU time the group may use in each period, descendants included: `"50ms/100ms"`, `Cpus(0.5)`, `"max"` and the other
    /// forms of [`Max`]. No limit when never set. Checked by [`GroupBuilder::create`].
    pub fn max(mut self, max: impl Into<Max>) -> Self {
        self.config = self.config.max(max);
        self
    }

    /// How much unused quota may be carried over to later periods (cgroup `cpu.max.burst`); needs a limit.
    pub fn burst(mut self, burst: Duration) -> Self {
        self.config = self.config.burst(burst);
        self
    }

    /// A soft limit may be exceeded on virtual CPUs that have nothing else to run; CPU time used so is counted as overage. Needs a
    /// limit.
    pub fn soft(mut self, soft: bool) -> Self {
        self.config = self.config.soft(soft);
        self
    }

    /// Refills the quota in small parts spread over the period rather than all at its start. Needs a limit.
    pub fn smooth(mut self, smooth: bool) -> Self {
        self.config = self.config.smooth(smooth);
        self
    }

    /// Gets the group of that path, or makes it and the ancestors it lacks; then applies the settings given. Groups that are made get
    /// what the scheduler's config says of them, too: see [`crate::Scheduler::apply`].
    ///
    /// # Errors
    /// A malformed path, a weight or a limit out of range (nothing is created or changed then), a group that is being removed, a
    /// scheduler that was shut down. O(depth + log siblings).
    pub fn create(self) -> Result<Group, Error> {
        self.create_unless(false).map(|(group, _)| group)
    }

    /// As [`GroupBuilder::create`], but a group that exists keeps its settings. Also returns whether the group was made.
    #[cfg(feature = "tower")]
    pub(crate) fn create_or_keep(self) -> Result<(Group, bool), Error> {
        self.create_unless(true)
    }

    /// The group, with the settings unless it existed and is to `keep` its own; whether it was made.
    fn create_unless(self, keep: bool) -> Result<(Group, bool), Error> {
        let shared = self.shared.clone();
        at_usual_priority(&shared, move || self.create_here(keep))
    }

    fn create_here(self, keep: bool) -> Result<(Group, bool), Error> {
        self.config.weight.map(Weight::new).transpose()?;
        if self.shared.phase() != OPEN {
            return Err(Error::ShutDown);
        }
        let shared = self.shared.clone();
        let _shield = shared.shield();
        self.config.limit.check(&self.shared, &self.path)?;
        let mut kicked = VcpuSet::default();
        let looked_up = {
            let _shape = self.shared.lock_shape();
            self.look_up(keep, &mut kicked)
        };
        self.shared.kick(&kicked);
        let (group, made) = looked_up?;
        if group.is_removed() {
            // It may have been made just now, below a group that was removed before.
            if group.population.count() == 0 {
                group.queue_removal(&self.shared);
            }
            return Err(Error::Removed { path: self.path });
        }
        let group = Group {
            inner: group,
            shared: self.shared,
            _handles: self.handles,
            within: self.within,
        };
        Ok((group, made))
    }

    /// The group with its settings, and whether it was made. Called under `Shared::shape`, so that a group is never seen without the
    /// settings that the scheduler's config has for it.
    ///
    /// # Errors
    /// A malformed path, a tree that is too deep, settings that do not go together with those of the config: nothing was made.
    fn look_up(&self, keep: bool, kicked: &mut VcpuSet) -> Result<(Arc<GroupShared>, bool), Error> {
        let shared = &self.shared;
        GroupTree::check_path(&self.path)?;
        if let Some(parent) = self.parent.as_ref().filter(|parent| parent.is_removed()) {
            // A removal closes the group under the same lock: either it is seen here, or it finds the child.
            let path = parent.path();
            return Err(Error::Removed { path });
        }
        if let Ok(core) = shared.tree.find(&self.path) {
            let group = lookup(shared, &core);
            if !keep && !group.is_removed() {
                set(shared, &group, &self.config, kicked)?;
            }
            return Ok((group, false));
        }
        let config = shared.config();
        let ends = self.path.match_indices('/').map(|(end, _)| end);
        let mut missing = Vec::new();
        for end in ends.chain([self.path.len()]) {
            let path = &self.path[..end];
            if shared.tree.find(path).is_err() {
                let none = GroupConfig::new();
                let is_last = end == self.path.len();
                let asked = if is_last { &self.config } else { &none };
                let settings = config.for_new(path, asked);
                settings.limit.check(shared, path)?;
                missing.push((path, settings));
            }
        }
        let group = lookup(shared, &shared.tree.group(&self.path)?);
        if !group.is_removed() {
            for (path, settings) in missing {
                let made = lookup(shared, &shared.tree.find(path)?);
                set(shared, &made, &settings, kicked)?;
            }
        }
        Ok((group, true))
    }
}

/// Applies settings to a group, under `Shared::shape`.
fn set(
    shared: &Shared,
    group: &Arc<GroupShared>,
    config: &GroupConfig,
    kicked: &mut VcpuSet,
) -> Result<(), Error> {
    let weight = config.weight.map(Weight::new).transpose()?;
    config.limit.apply_under_shape(shared, group, kicked)?;
    if let Some(weight) = weight {
        group.core.set_weight(weight);
    }
    if let Some(idle) = config.idle {
        group.core.set_idle(idle);
    }
    if let Some(max) = config.tasks_max {
        group.population.set_max(max);
    }
    if let Some(wait) = config.queue_wait_max {
        group.settle_queue_wait_max(shared, wait);
    }
    if let Some(preemptible) = config.preemptible {
        group.settle_preemptible(shared, Some(preemptible));
    }
    Ok(())
}
