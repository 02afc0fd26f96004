//! What can be refused, and why. Every error names the field, the value and the allowed range, and nothing has changed.

use std::fmt;
use std::time::Duration;

use quotient_pause::InstallError;

use quotient_core::{ConfigError, GroupError, LimitError, SliceError, WeightError};

/// Largest number of virtual CPUs of one scheduler. Unit: virtual CPUs. Origin: the core's 4,096
/// CPUs and the threads that can be paused, with a slot for a stand-in beside each; nothing is sized by it.
pub const MAX_VCPUS: usize = 1_024;

/// Why a scheduler was not built.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// `build` was called outside a tokio runtime, and no handle was given to the builder.
    NoRuntime,
    /// `vcpus` is outside `1..=`[`MAX_VCPUS`].
    Vcpus {
        /// The value that was given.
        value: usize,
    },
    /// `slice` is outside 0.1 to 100 ms.
    Slice(SliceError),
    /// A scheduling parameter is out of its range.
    Config(ConfigError),
    /// The operating system refused the scheduler's tick thread.
    TickThread(String),
    /// A setting of [`Preempt`](crate::Preempt) is out of its range; the text names it.
    Preempt(String),
    /// Polls cannot be preempted in this process.
    Pause(InstallError),
    /// The operating system refused the threads that preemption needs.
    PreemptThread(String),
    /// The code that asks for preemption cannot be rewritten now (a debugger's breakpoint in it).
    Gate(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRuntime => formatter.write_str(
                "no tokio runtime here: call `build` inside one, or give the builder a `tokio::runtime::Handle`",
            ),
            Self::Vcpus { value } => {
                write!(formatter, "vcpus is {value}, allowed are 1 to {MAX_VCPUS}")
            }
            Self::Slice(error) => write!(formatter, "{error}"),
            Self::Config(error) => write!(formatter, "{error}"),
            Self::TickThread(reason) => write!(formatter, "the tick thread did not start: {reason}"),
            Self::Preempt(reason) => write!(formatter, "preempt: {reason}"),
            Self::Pause(reason) => write!(formatter, "polls cannot be preempted: {reason}"),
            Self::Gate(reason) => {
                write!(formatter, "preemption cannot be turned on: {reason}")
            }
            Self::PreemptThread(reason) => {
                write!(formatter, "a thread of the preemption did not start: {reason}")
            }
        }
    }
}

impl std::error::Error for BuildError {}

impl From<ConfigError> for BuildError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

/// Why a group was not found, created, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The weight is outside 1..=10000.
    Weight(WeightError),
    /// The group path is malformed, unknown, or the tree refused the change.
    Group(GroupError),
    /// A limit is malformed or out of range; the old one stays in force.
    Limit(LimitError),
    /// A burst, or how a limit is kept, was given for a group without a limit.
    Unlimited {
        /// The group's path.
        path: String,
    },
    /// The code of the feature could not be switched on now (a debugger's breakpoint in the way).
    Gate(String),
    /// The group was removed.
    Removed {
        /// Its path while it lived.
        path: String,
    },
    /// The group still has tasks, and the caller asked not to touch them.
    Busy {
        /// The group's path.
        path: String,
        /// Live tasks in the group and below it.
        tasks: usize,
    },
    /// A group's own code asked for its tasks to be moved to the parent, by a handle from [`Group::current`](crate::Group::current): they would be out of its
    /// limit. Whoever has made the group, or found it from outside, may ask for it.
    FromInside {
        /// The group's path.
        path: String,
    },
    /// The root group cannot be frozen, killed, removed or given a weight.
    Root,
    /// The scheduler was shut down.
    ShutDown,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight(error) => write!(formatter, "{error}"),
            Self::Group(error) => write!(formatter, "{error}"),
            Self::Limit(error) => write!(formatter, "{error}"),
            Self::Unlimited { path } => write!(
                formatter,
                "group {path:?} has no limit: set max together with burst, soft or smooth"
            ),
            Self::Gate(reason) => write!(formatter, "limits cannot be switched on now: {reason}"),
            Self::Removed { path } => write!(formatter, "group {path:?} was removed"),
            Self::Busy { path, tasks } => write!(
                formatter,
                "group {path:?} has {tasks} live tasks, allowed are 0: kill them, or move them to the parent"
            ),
            Self::FromInside { path } => write!(
                formatter,
                "the tasks of group {path:?} cannot be moved to its parent by a handle from `Group::current()`: that takes one from outside the group"
            ),
            Self::Root => formatter.write_str("the root group is not open to this change"),
            Self::ShutDown => formatter.write_str("the scheduler was shut down"),
        }
    }
}

impl std::error::Error for Error {}

impl From<WeightError> for Error {
    fn from(error: WeightError) -> Self {
        Self::Weight(error)
    }
}

impl From<LimitError> for Error {
    fn from(error: LimitError) -> Self {
        Self::Limit(error)
    }
}

impl From<GroupError> for Error {
    fn from(error: GroupError) -> Self {
        Self::Group(error)
    }
}

/// Why a task was not spawned. The future was dropped; nothing else happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpawnError {
    /// The scheduler was shut down.
    ShutDown,
    /// The group was removed.
    GroupRemoved {
        /// Its path while it lived.
        path: String,
    },
    /// The group, or one above it, has as many tasks as it may have.
    TooManyTasks {
        /// Its path.
        path: String,
        /// How many it may have, descendants' included: [`crate::GroupBuilder::tasks_max`].
        max: u64,
    },
    /// The oldest of the tasks of the group, or of one above it, that were not polled yet has waited for too long.
    QueueTooLong {
        /// Its path.
        path: String,
        /// For how long.
        wait: Duration,
        /// How long it may be, descendants' included: [`crate::GroupBuilder::queue_wait_max`].
        max: Duration,
    },
    /// The caller runs in no group: it is neither a task of a scheduler nor inside `in_group`.
    NoGroup,
    /// There is no tokio runtime on the calling thread.
    NoRuntime,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShutDown => formatter.write_str("the scheduler was shut down"),
            Self::GroupRemoved { path } => write!(formatter, "group {path:?} was removed"),
            Self::TooManyTasks { path, max } => write!(
                formatter,
                "group {path:?} has its {max} tasks already, no more are allowed"
            ),
            Self::QueueTooLong { path, wait, max } => write!(
                formatter,
                "a task of group {path:?} has waited for its first poll for {wait:?}, allowed are {max:?}"
            ),
            Self::NoGroup => formatter.write_str(
                "the caller runs in no group: spawn with `Group::spawn`, or from a task that runs in a group",
            ),
            Self::NoRuntime => formatter.write_str("no tokio runtime on the calling thread"),
        }
    }
}

impl std::error::Error for SpawnError {}
