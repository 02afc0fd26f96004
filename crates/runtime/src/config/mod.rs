//! Settings of many groups as one value, which takes effect as one change.
//!
//! A [`Config`] says three things: the settings of named groups, the defaults of the groups directly below a path (the tenants), and by
//! its silence, what it leaves to the program. [`Scheduler::apply`](crate::Scheduler::apply) brings a scheduler from the config before to
//! this one (`apply`); between two of them groups that are *made* look here for their settings (`GroupBuilder::create`). Where configs
//! come from (a file, a service) is not this crate's: `quotient-config` reads TOML.

mod apply;

pub(crate) use self::apply::apply;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use quotient_core::{GroupTree, Weight};

use crate::bandwidth::{LimitChange, Max};
use crate::error::Error;

/// Settings of one group. A setting that is not given is left to the program, then to the defaults of the parent's children, and is else
/// that of a new group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupConfig {
    pub(crate) weight: Option<u32>,
    pub(crate) idle: Option<bool>,
    pub(crate) tasks_max: Option<u64>,
    pub(crate) queue_wait_max: Option<Duration>,
    pub(crate) preemptible: Option<bool>,
    pub(crate) limit: LimitChange,
}

impl GroupConfig {
    /// No settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`crate::GroupBuilder::weight`].
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// As [`crate::GroupBuilder::idle`].
    #[must_use]
    pub fn idle(mut self, idle: bool) -> Self {
        self.idle = Some(idle);
        self
    }

    /// As [`crate::GroupBuilder::tasks_max`].
    #[must_use]
    pub fn tasks_max(mut self, tasks: usize) -> Self {
        self.tasks_max = Some(u64::try_from(tasks).unwrap_or(u64::MAX));
        self
    }

    /// As [`crate::GroupBuilder::queue_wait_max`].
    #[must_use]
    pub fn queue_wait_max(mut self, wait: Duration) -> Self {
        self.queue_wait_max = Some(wait);
        self
    }

    /// As [`crate::GroupBuilder::preemptible`].
    #[must_use]
    pub fn preemptible(mut self, preemptible: bool) -> Self {
        self.preemptible = Some(preemptible);
        self
    }

    /// As [`crate::GroupBuilder::max`].
    #[must_use]
    pub fn max(mut self, max: impl Into<Max>) -> Self {
        self.limit.max = Some(max.into());
        self
    }

    /// As [`crate::GroupBuilder::burst`].
    #[must_use]
    pub fn burst(mut self, burst: Duration) -> Self {
        self.limit.burst = Some(burst);
        self
    }

    /// As [`crate::GroupBuilder::soft`].
    #[must_use]
    pub fn soft(mut self, soft: bool) -> Self {
        self.limit.soft = Some(soft);
        self
    }

    /// As [`crate::GroupBuilder::smooth`].
    #[must_use]
    pub fn smooth(mut self, smooth: bool) -> Self {
        self.limit.smooth = Some(smooth);
        self
    }

    /// These settings, and `defaults` for those that are not given. A limit is one setting: where these give `max`, the burst, soft and
    /// smooth of the defaults do not count.
    #[must_use]
    pub fn or(&self, defaults: &Self) -> Self {
        Self {
            weight: self.weight.or(defaults.weight),
            idle: self.idle.or(defaults.idle),
            tasks_max: self.tasks_max.or(defaults.tasks_max),
            queue_wait_max: self.queue_wait_max.or(defaults.queue_wait_max),
            preemptible: self.preemptible.or(defaults.preemptible),
            limit: if self.limit.max.is_some() {
                self.limit.clone()
            } else {
                self.limit.or(&defaults.limit)
            },
        }
    }

    /// Whether the settings could be a new group's in a scheduler of so many virtual CPUs, of which a
    /// [`Share`](crate::Share) is worked out. By the rules of [`crate::BandwidthRules::Default`].
    ///
    /// # Errors
    /// The first of [`GroupConfig::problems`].
    pub fn check(&self, path: &str, vcpus: usize) -> Result<(), Error> {
        self.problems(path, vcpus)
            .into_iter()
            .next()
            .map_or(Ok(()), Err)
    }

    /// Every setting that [`GroupConfig::check`] would not take: [`Error::Weight`], [`Error::Limit`], [`Error::Unlimited`] (with the path
    /// given), each with field, value and range. At most four.
    pub fn problems(&self, path: &str, vcpus: usize) -> Vec<Error> {
        let mut problems = Vec::new();
        let weight = self.weight.map(Weight::new).transpose();
        problems.extend(weight.err().map(Error::from));
        match self.limit.onto(path, None, vcpus) {
            Ok(Some(limit)) => problems.extend(limit.problems(false).map(Error::from)),
            Ok(None) => {}
            Err(error) => problems.push(error),
        }
        problems
    }
}

/// Settings of groups by path, and defaults of the groups below a path; see [`crate::Scheduler::apply`].
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use quotient::{Config, GroupConfig, Scheduler};
///
/// let mut config = Config::new();
/// config.set_group("tenants/acme", GroupConfig::new().weight(300));
/// config.set_children("tenants", GroupConfig::new().max("50ms/100ms")); // acme, and tenants that come later
/// let scheduler = Scheduler::builder().build()?;
/// scheduler.apply(&config)?;
/// let late = scheduler.group("tenants/late")?.create()?;
/// assert_eq!(late.max().map(|limit| limit.to_string()).as_deref(), Some("50000 100000"));
/// # scheduler.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    groups: BTreeMap<String, GroupConfig>,
    children: BTreeMap<String, GroupConfig>,
}

impl Config {
    /// A config without groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the settings of one group, in place of those given before. The path is checked together with the config.
    pub fn set_group(&mut self, path: impl Into<String>, config: GroupConfig) {
        self.groups.insert(path.into(), config);
    }

    /// Gives the defaults of all groups directly below `parent`; `""` is the root group.
    pub fn set_children(&mut self, parent: impl Into<String>, config: GroupConfig) {
        self.children.insert(parent.into(), config);
    }

    /// The groups that are named, by path.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (&str, &GroupConfig)> {
        self.groups
            .iter()
            .map(|(path, config)| (path.as_str(), config))
    }

    /// The paths whose children have defaults, with these defaults.
    pub fn children(&self) -> impl ExactSizeIterator<Item = (&str, &GroupConfig)> {
        self.children
            .iter()
            .map(|(path, config)| (path.as_str(), config))
    }

    /// The config's settings for a group: its own, then the defaults of its parent's children.
    pub fn settings_of(&self, path: &str) -> GroupConfig {
        let own = self.groups.get(path).cloned().unwrap_or_default();
        match self.children.get(parent_of(path)) {
            Some(defaults) => own.or(defaults),
            None => own,
        }
    }

    /// Whether a new scheduler of so many virtual CPUs would take the config. O(groups).
    ///
    /// # Errors
    /// The first of [`Config::problems`].
    pub fn check(&self, vcpus: usize) -> Result<(), ApplyError> {
        self.problems(vcpus).next().map_or(Ok(()), Err)
    }

    /// Everything for which settings of groups, and of parents with defaults for their children, cannot be put in force.
    pub fn problems(&self, vcpus: usize) -> impl Iterator<Item = ApplyError> + '_ {
        let all = move |path: &str, checked: Result<(), Error>, config: &GroupConfig| {
            let path = path.to_owned();
            let settings = config.problems(&path, vcpus);
            let errors = checked.err().into_iter().chain(settings);
            errors.map(move |error| ApplyError {
                path: path.clone(),
                error: error.into(),
            })
        };
        let named = self.groups.keys().flat_map(move |path| {
            let checked = GroupTree::check_path(path).map_err(Error::from);
            all(path, checked, &self.settings_of(path))
        });
        let defaults = self.children.iter().flat_map(move |(parent, config)| {
            let checked = match parent.as_str() {
                "" => Ok(()),
                parent => GroupTree::check_path(parent).map_err(Error::from),
            };
            all(parent, checked, config)
        });
        named.chain(defaults)
    }

    /// What a group is made with, if the program asks for `asked`: the file's word about this very group goes before the program's, and
    /// the program's before what the file says of all children of a group.
    pub(crate) fn for_new(&self, path: &str, asked: &GroupConfig) -> GroupConfig {
        let named = self.groups.get(path);
        let mut config = named.map_or_else(|| asked.clone(), |named| named.or(asked));
        if let Some(defaults) = self.children.get(parent_of(path)) {
            config = config.or(defaults);
        }
        config
    }
}

/// The path of the group above; the root's is empty.
fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Why a [`Config`] was refused: one group, and what is wrong with its settings. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ApplyError {
    /// The group, or the parent whose children's defaults are wrong; empty if it is about none.
    pub path: String,
    /// Field, value and range.
    pub error: Box<Error>,
}

impl fmt::Display for ApplyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error.as_ref() {
            Error::Weight(_) | Error::Limit(_) | Error::Gate(_) => {
                write!(formatter, "group {:?}: {}", self.path, self.error)
            }
            error => write!(formatter, "{error}"),
        }
    }
}

impl std::error::Error for ApplyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.error.as_ref())
    }
}

/// What [`crate::Scheduler::apply`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// Groups that were made, ancestors included.
    pub created: usize,
    /// Groups that existed and whose settings are others now.
    pub changed: usize,
}
