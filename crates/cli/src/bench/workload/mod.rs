//! What is measured: small programs, each written once and generic over [`Spawner`].
//!
//! Every workload starts its clock when all its tasks exist (unless spawning is the subject), stops it when the last
//! operation is done, and counts what really happened, so that a figure comes with its premise.

mod pingpong;
mod spawning;
mod waking;
mod yields;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::spawner::Spawner;
pub use yields::{YieldKind, self_wake};

/// Which workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Two tasks wake each other through two `Notify`; an operation is a round trip.
    PingPongNotify,
    /// Two tasks hand each other fresh oneshot channels; an operation is a round trip.
    PingPongOneshot,
    /// Two tasks over two bounded channels of one place; an operation is a round trip.
    PingPongMpsc,
    /// So many ready tasks yield in turn; an operation is one yield.
    Yields(YieldKind, u64),
    /// Spawn all, then join all; an operation is one task.
    SpawnJoin,
    /// Spawn one, await it, again; an operation is one task.
    SpawnAwait,
    /// One task wakes so many parked tasks; an operation is one of them woken, run and parked again.
    Wake(u64),
}

/// What a workload did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// From the first operation to the end of the last.
    pub elapsed: Duration,
    /// How many were done.
    pub operations: u64,
    /// How often the workload's tasks were polled.
    pub polls: u64,
    /// The fewest polls with which one worker can have done it.
    pub polls_min: u64,
}

impl Measured {
    /// Nanoseconds an operation.
    pub fn nanos(&self) -> f64 {
        self.elapsed.as_nanos() as f64 / self.operations as f64
    }
}

/// Why a figure would not mean what its name says.
pub type Premise = String;

impl Shape {
    /// Runs the workload inside a task of `spawner`.
    ///
    /// # Errors
    /// When a task failed, or fewer operations were done than asked for.
    pub async fn run<S: Spawner>(self, spawner: S, operations: u64) -> Result<Measured, Premise> {
        match self {
            Self::PingPongNotify => pingpong::notify(&spawner, operations).await,
            Self::PingPongOneshot => pingpong::oneshot(&spawner, operations).await,
            Self::PingPongMpsc => pingpong::mpsc(&spawner, operations).await,
            Self::Yields(kind, tasks) => yields::run(&spawner, kind, tasks, operations).await,
            Self::SpawnJoin => spawning::join(&spawner, operations).await,
            Self::SpawnAwait => spawning::one_by_one(&spawner, operations).await,
            Self::Wake(tasks) => waking::run(&spawner, tasks, operations).await,
        }
    }

    /// Checks that the polls were really made. Two workers can pass a message on before the receiver has gone to sleep,
    /// so there the count of a ping-pong is only printed.
    ///
    /// # Errors
    /// When there were fewer polls than the workload needs.
    pub fn check(self, workers: usize, measured: &Measured) -> Result<(), Premise> {
        let is_pingpong = matches!(
            self,
            Self::PingPongNotify | Self::PingPongOneshot | Self::PingPongMpsc
        );
        if measured.polls < measured.polls_min && (workers == 1 || !is_pingpong) {
            return Err(format!(
                "{} polls for {} operations, at least {} were needed",
                measured.polls, measured.operations, measured.polls_min
            ));
        }
        Ok(())
    }
}

/// Runs `future` and adds the number of its polls to `polls` when it is done.
async fn counted<F: Future>(future: F, polls: Arc<AtomicU64>) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut own = 0;
    let output = poll_fn(|context| {
        own += 1;
        future.as_mut().poll(context)
    })
    .await;
    polls.fetch_add(own, Ordering::Relaxed);
    output
}

/// Turns a task that gave no output into a broken premise.
fn joined<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, Premise> {
    result.map_err(|error| format!("a task of the workload failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::spawner::TokioSpawner;
    use super::*;

    const SHAPES: [(Shape, u64); 9] = [
        (Shape::PingPongNotify, 50),
        (Shape::PingPongOneshot, 50),
        (Shape::PingPongMpsc, 50),
        (Shape::Yields(YieldKind::SelfWake, 1), 50),
        (Shape::Yields(YieldKind::SelfWake, 10), 50),
        (Shape::Yields(YieldKind::Tokio, 10), 50),
        (Shape::SpawnJoin, 50),
        (Shape::SpawnAwait, 50),
        (Shape::Wake(10), 50),
    ];

    #[test]
    fn every_workload_does_what_was_asked_and_counts_it() {
        for workers in [1, 2] {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(workers)
                .enable_all()
                .build()
                .expect("a runtime can be built");
            for (shape, operations) in SHAPES {
                let task = runtime.spawn(shape.run(TokioSpawner, operations));
                let result = runtime.block_on(task).expect("the workload does not panic");
                let measured = result.expect("the premise holds");
                assert_eq!(measured.operations, operations, "{shape:?}");
                shape
                    .check(workers, &measured)
                    .expect("the polls were made");
            }
        }
    }

    #[test]
    fn missing_polls_are_a_broken_premise() {
        let measured = Measured {
            elapsed: Duration::from_secs(1),
            operations: 10,
            polls: 9,
            polls_min: 10,
        };
        assert!(Shape::SpawnJoin.check(2, &measured).is_err());
        assert!(Shape::PingPongNotify.check(1, &measured).is_err());
        assert!(Shape::PingPongNotify.check(2, &measured).is_ok());
    }
}
