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
use crate::scheduler::Handles;
use crate::shared::{OPEN, Shared};

/// Settings of a group that is looked up or made; see [`crate::Scheduler::group`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `create`"]
pub struct GroupBuilder {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) path: String,
    config: GroupConfig,
}

impl GroupBuilder {
    pub(crate) fn new(shared: Arc<Shared>, handles: Arc<Handles>, path: &str) -> Self {
        Self {
            shared,
            handles,
            path: path.to_owned(),
            config: GroupConfig::new(),
        }
    }

    /// Relative share among siblings, 1 to 10000; 100 when never set. Checked by [`GroupBuilder::create`].
    pub fn weight(mut self, weight: u32) -> Self {
        self.config = self.config.weight(weight);
        self
    }

    /// An idle group runs only with a sliver of the share of any other (cgroup `cpu.idle`).
    pub fn idle(mut self, idle: bool) -> Self {
        self.config = self.config.idle(idle);
        self
    }

    /// How many tasks the group may have at a time, its descendants' included (cgroup `pids.max`): further ones are refused with
    /// [`crate::SpawnError::TooManyTasks`]. `usize::MAX` lifts the bound; none when never set. Tasks that are there already, or are
    /// moved here, stay. A spawn costs one more step of a shared word then.
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
    /// - A *task* is refused ([`crate::SpawnError::QueueTooLong`]) while the oldest of the group's tasks that were not polled yet has
    ///   waited for longer; to a sixteenth of the bound. Those that were accepted wait for as long as it takes, so after a burst
    ///   some wait for longer: bound the burst by [`GroupBuilder::tasks_max`]. A spawn into such a group takes a
    ///   lock for a few instructions, and so does each task's first poll; without a bound, one load.
    /// - A *request* of the tower layer that waited for its handler for so long is dropped unstarted, and refused at once (503 with
    ///   `Retry-After`): to a tick of the scheduler, one to four ms. So a tenant that gets less than it is asked for answers what
    ///   it can in time, instead of everything too late.
    pub fn queue_wait_max(mut self, wait: Duration) -> Self {
        self.config = self.config.queue_wait_max(wait);
        self
    }

    /// Whether polls of the group and of all below it may be preempted, under [`crate::Builder::preempt`]; `true` when never set. What is said
    /// of a group holds for all below it, whatever is said of those: a tenant can make children of its own group
    /// ([`Group::current`]), so `true` belongs on the group that limits it, if it is not trusted. With
    /// `false` they run to their end on their virtual CPU, as without preemption: nothing stops or slows them, and all that waits
    /// for that virtual CPU waits for them. For code that must not be stopped at some instruction: what depends on its thread's
    /// priority, or calls libraries that handle no `EINTR`. Weights and limits then hold between polls only. For a section within a poll
    /// there is [`crate::uninterrupted`]. A change holds from each task's next poll on. O(groups below).
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

    /// A soft limit may be exceeded on virtual CPUs that have nothing else to run; what it uses so is booked as overage. Needs a
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

    /// As [`GroupBuilder::create`], but a group that exists keeps its settings; whether it was made.
    #[cfg(feature = "tower")]
    pub(crate) fn create_or_keep(self) -> Result<(Group, bool), Error> {
        self.create_unless(true)
    }

    /// The group, with the settings unless it existed and is to `keep` its own; whether it was made.
    fn create_unless(self, keep: bool) -> Result<(Group, bool), Error> {
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
