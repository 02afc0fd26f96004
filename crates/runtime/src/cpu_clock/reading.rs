//! Reading: the clocks as users see them.

use std::fmt;
use std::time::Duration;

use quotient_core::Nanos;

use super::show_own_time;
use crate::group::Group;
use crate::local;
use crate::scheduler::Scheduler;
use crate::task::{AbortHandle, Id, JoinHandle};
use crate::task_context::TaskRef;

/// Why there is no clock to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockError {
    /// No live task of that name in this scheduler: it has ended, or never was here. A [`TaskClock`] that was made while
    /// it lived goes on to tell its final time.
    UnknownTask {
        /// The name that was looked for.
        id: Id,
    },
    /// The task was never spawned: its handle says why.
    NotSpawned {
        /// The name of the handle.
        id: Id,
    },
    /// The handle is of a blocking function or a local task: their time is on their group's clock alone.
    NoClock {
        /// The name of the handle.
        id: Id,
    },
    /// The caller is not inside a task of a scheduler.
    NoTask,
}

impl fmt::Display for ClockError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTask { id } => write!(formatter, "no live task {id} in this scheduler"),
            Self::NotSpawned { id } => write!(formatter, "task {id} was never spawned"),
            Self::NoClock { id } => write!(
                formatter,
                "{id} is a blocking function or a local task: its time is on its group's clock alone"
            ),
            Self::NoTask => formatter.write_str("the caller is not inside a task of a scheduler"),
        }
    }
}

impl std::error::Error for ClockError {}

/// The CPU clock of one task. Keeps the task's memory (not its future), so it can be read after the task's end.
pub struct TaskClock {
    pub(crate) task: TaskRef,
}

impl TaskClock {
    /// The clock of the task that the caller runs in.
    ///
    /// # Errors
    /// [`ClockError::NoTask`] outside a poll of a scheduler's task.
    pub fn current() -> Result<Self, ClockError> {
        let task = TaskRef::current().ok_or(ClockError::NoTask)?;
        Ok(Self { task })
    }

    /// CPU time of the task: of all its polls, and from inside the task also of the poll in progress so far. Never goes
    /// back, also between readers that hear of each other; after the task's end it is what the task used in all.
    ///
    /// A poll in progress counts when it ends or shows itself, by a reading from inside. O(1): two loads; from inside, a
    /// clock reading and two stores more.
    pub fn cpu_time(&self) -> Duration {
        if self.task.is_current() {
            local::show_own_task_time(self.task.context());
        }
        duration(self.task.context().cpu_time())
    }

    /// The name of the task.
    pub fn id(&self) -> Id {
        self.task.id()
    }
}

impl fmt::Debug for TaskClock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TaskClock")
            .field("id", &self.id())
            .field("cpu_time", &self.cpu_time())
            .finish()
    }
}

/// Why a handle has no clock.
fn no_clock(id: Id, is_promised: bool) -> ClockError {
    if is_promised {
        ClockError::NoClock { id }
    } else {
        ClockError::NotSpawned { id }
    }
}

/// The clocks of tasks by their handles.
pub trait TaskClockExt {
    /// The task's CPU clock.
    ///
    /// # Errors
    /// [`ClockError::NotSpawned`] for the handle of a task that was refused, [`ClockError::NoClock`] for that of a blocking
    /// function or a local task.
    fn clock(&self) -> Result<TaskClock, ClockError>;

    /// CPU time of the task so far; zero if it has no clock of its own. See [`TaskClock::cpu_time`].
    fn cpu_time(&self) -> Duration {
        self.clock()
            .map_or(Duration::ZERO, |clock| clock.cpu_time())
    }
}

impl<T> TaskClockExt for JoinHandle<T> {
    fn clock(&self) -> Result<TaskClock, ClockError> {
        let task = self
            .task_ref()
            .ok_or_else(|| no_clock(self.id(), self.is_promised()))?;
        Ok(TaskClock { task })
    }
}

impl TaskClockExt for AbortHandle {
    fn clock(&self) -> Result<TaskClock, ClockError> {
        let task = self
            .task_ref()
            .ok_or_else(|| no_clock(self.id(), self.is_promised()))?;
        Ok(TaskClock { task })
    }
}

impl Group {
    /// [`Group::cpu_time`] without bringing the caller up to date: what everybody has published. Loads alone; for
    /// monitors outside the group it is the same.
    pub fn published_cpu_time(&self) -> Duration {
        duration(self.inner.core.cpu_time())
    }

    /// Threads that are in a [`crate::ThreadMeter`] of this group itself now (those in a nested one of another group are
    /// that group's).
    pub fn metered_threads(&self) -> usize {
        self.inner.core.members_outside()
    }
}

/// The group's clock, with the caller brought up to date.
#[inline]
pub(crate) fn read(group: &Group) -> Duration {
    show_own_time(&group.inner.core);
    duration(group.inner.core.cpu_time())
}

impl Scheduler {
    /// The clock of a live task by its name. O(tasks): keep the clock rather than ask again.
    ///
    /// # Errors
    /// [`ClockError::UnknownTask`] if no live task of this scheduler has that name.
    pub fn task_clock(&self, id: Id) -> Result<TaskClock, ClockError> {
        let groups = self.root().shared.all_groups();
        groups
            .iter()
            .find_map(|group| group.owned.find(id))
            .map(|task| TaskClock { task })
            .ok_or(ClockError::UnknownTask { id })
    }
}

pub(crate) fn duration(time: Nanos) -> Duration {
    Duration::from_nanos(time.as_nanos())
}
