//! Spawning with more to say than a future: a name, and a group.

use std::future::Future;
use std::panic::Location;

use crate::blocking;
use crate::error::SpawnError;
use crate::group::{Group, spawn_at};
use crate::local_set;
use crate::task::JoinHandle;

/// Where a task comes from and what it is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) location: &'static Location<'static>,
    pub(crate) name: Option<&'a str>,
}

impl Origin<'_> {
    /// A task without a name, spawned by the caller.
    #[track_caller]
    pub(crate) fn caller() -> Self {
        Self::unnamed(Location::caller())
    }

    /// A task without a name, spawned at a place.
    pub(crate) fn unnamed(location: &'static Location<'static>) -> Self {
        Self {
            location,
            name: None,
        }
    }
}

/// Makes a task with a name, in the caller's group or another; nothing is spawned before one of the `spawn` calls.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let scheduler = quotient::Scheduler::builder().build()?;
/// # let acme = scheduler.group("tenants/acme")?.create()?;
/// let import = quotient::task::Builder::new()
///     .name("import")
///     .group(&acme)
///     .spawn(async { 42 })?; // a refused task is an error here, with the reason
/// assert_eq!(import.await?, 42);
/// # scheduler.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// The name is shown by [`crate::TaskStats`], and by the task's `tracing` span with the feature `tracing`.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "nothing is spawned before one of the `spawn` calls"]
pub struct Builder<'a> {
    name: Option<&'a str>,
    group: Option<&'a Group>,
}

impl<'a> Builder<'a> {
    /// A task without a name, in the caller's group.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the task is called. Names need not differ.
    pub fn name(self, name: &'a str) -> Self {
        Self {
            name: Some(name),
            ..self
        }
    }

    /// The task's group, instead of the caller's.
    pub fn group(self, group: &'a Group) -> Self {
        Self {
            group: Some(group),
            ..self
        }
    }

    #[track_caller]
    fn origin(&self) -> Origin<'a> {
        Origin {
            location: Location::caller(),
            name: self.name,
        }
    }

    fn target(&self) -> Result<Group, SpawnError> {
        let given = self.group.cloned();
        given.or_else(Group::to_spawn_in).ok_or(SpawnError::NoGroup)
    }

    /// Spawns a task, as [`crate::try_spawn`] and [`Group::try_spawn`].
    ///
    /// # Errors
    /// [`SpawnError::NoGroup`] without a group given or around; else as [`Group::try_spawn`]. The future was dropped.
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> Result<JoinHandle<F::Output>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let origin = self.origin();
        let group = self.target()?;
        spawn_at(&group.shared, &group.inner, future, origin)
    }

    /// Runs a blocking function, as [`Group::spawn_blocking`].
    ///
    /// # Errors
    /// As [`Builder::spawn`]; the function was dropped.
    #[track_caller]
    pub fn spawn_blocking<F, R>(self, function: F) -> Result<JoinHandle<R>, SpawnError>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let origin = self.origin();
        blocking::spawn_at(&self.target()?, function, origin)
    }

    /// Spawns a `!Send` task, as [`Group::spawn_local`].
    ///
    /// # Errors
    /// As [`Builder::spawn`].
    ///
    /// # Panics
    /// As `tokio::task::spawn_local`: outside a local set.
    #[track_caller]
    pub fn spawn_local<F>(self, future: F) -> Result<JoinHandle<F::Output>, SpawnError>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let origin = self.origin();
        local_set::spawn_at(&self.target()?, future, origin)
    }
}
