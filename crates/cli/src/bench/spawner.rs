//! The one difference between the two sides of a benchmark: who spawns. Workloads are generic over [`Spawner`], so the
//! measured code is the same source for plain tokio and for Quotient.

use std::fmt::Display;
use std::future::Future;

use quotient::Group;

/// Spawns tasks on the runtime the caller runs on.
pub trait Spawner: Clone + Send + Sync + 'static {
    /// Why a task gave no output.
    type Error: Display + Send + 'static;
    /// Awaits a task's output.
    type Handle<T: Send + 'static>: Future<Output = Result<T, Self::Error>> + Send + 'static;

    /// Starts `future` as a task. Called from inside a task only.
    fn spawn<F>(&self, future: F) -> Self::Handle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static;
}

/// Plain tokio, as a program without Quotient uses it.
#[derive(Clone, Copy, Debug)]
pub struct TokioSpawner;

impl Spawner for TokioSpawner {
    type Error = tokio::task::JoinError;
    type Handle<T: Send + 'static> = tokio::task::JoinHandle<T>;

    fn spawn<F>(&self, future: F) -> Self::Handle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(future)
    }
}

/// Quotient: everything in one group.
#[derive(Clone, Debug)]
pub struct QuotientSpawner {
    /// Where the tasks are charged.
    pub group: Group,
}

impl Spawner for QuotientSpawner {
    type Error = quotient::JoinError;
    type Handle<T: Send + 'static> = quotient::JoinHandle<T>;

    fn spawn<F>(&self, future: F) -> Self::Handle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.group.spawn(future)
    }
}
