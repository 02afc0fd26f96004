//! Getting or making a group, with its settings.

use std::sync::Arc;

use quotient_core::Weight;

use super::Group;
use super::shared::lookup;
use crate::error::Error;
use crate::scheduler::Handles;
use crate::shared::{OPEN, Shared};

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
            let _shape = self.shared.lock_shape();
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
