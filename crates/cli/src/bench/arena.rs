//! Where the two sides run: each on its own tokio runtime with the same number of workers and all drivers on, so that
//! the one that is not measured is asleep.

use std::time::Duration;

use quotient::{Group, Scheduler};
use tokio::runtime::Runtime;

use super::spawner::{QuotientSpawner, Spawner, TokioSpawner};
use super::workload::{Measured, Shape};
use crate::failure::Failure;

/// A workload that takes longer than this hangs; rows take well under a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Plain tokio, and Quotient on tokio.
pub struct Arena {
    workers: usize,
    plain: Runtime,
    host: Runtime,
    scheduler: Scheduler,
    group: Group,
}

/// Which side of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Plain tokio.
    Tokio,
    /// Quotient on tokio.
    Quotient,
}

impl Arena {
    /// Builds both sides with `workers` workers each; Quotient gets as many vCPUs.
    ///
    /// # Errors
    /// When a runtime or the scheduler cannot be built.
    pub fn new(workers: usize) -> Result<Self, Failure> {
        let plain = runtime(workers)?;
        let (host, scheduler) = scheduler(workers)?;
        let group = scheduler
            .group("bench")
            .and_then(|builder| builder.create())
            .map_err(Failure::during("cannot create a group"))?;
        Ok(Self {
            workers,
            plain,
            host,
            scheduler,
            group,
        })
    }

    /// Runs `shape` once on `side` and checks its premise.
    ///
    /// # Errors
    /// When it does not end, or did not do what it should have done.
    pub fn run(&self, side: Side, shape: Shape, operations: u64) -> Result<Measured, Failure> {
        let outcome = match side {
            Side::Tokio => drive(&self.plain, TokioSpawner, shape, operations),
            Side::Quotient => {
                let spawner = QuotientSpawner {
                    group: self.group.clone(),
                };
                drive(&self.host, spawner, shape, operations)
            }
        };
        let what = format!("{shape:?} on {side:?} with {} workers", self.workers);
        let measured = outcome.map_err(Failure::during(&what))?;
        shape
            .check(self.workers, &measured)
            .map_err(Failure::during(&what))?;
        Ok(measured)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.host.block_on(self.scheduler.shutdown());
    }
}

fn drive<S: Spawner>(
    runtime: &Runtime,
    spawner: S,
    shape: Shape,
    operations: u64,
) -> Result<Measured, String> {
    runtime.block_on(async {
        // The measured code runs on a worker, not on this thread.
        let task = spawner.spawn(shape.run(spawner.clone(), operations));
        match tokio::time::timeout(PATIENCE, task).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("not finished after {} s", PATIENCE.as_secs())),
        }
    })
}

/// A multi-threaded tokio runtime as `#[tokio::main]` builds it.
///
/// # Errors
/// When the system refuses threads or descriptors.
pub fn runtime(workers: usize) -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .map_err(Failure::during("cannot build a tokio runtime"))
}

/// Such a runtime with a scheduler of as many vCPUs on it.
///
/// # Errors
/// When either cannot be built.
pub fn scheduler(workers: usize) -> Result<(Runtime, Scheduler), Failure> {
    let runtime = runtime(workers)?;
    let scheduler = {
        let _inside = runtime.enter();
        Scheduler::builder()
            .vcpus(workers)
            .build()
            .map_err(Failure::during("cannot build a scheduler"))?
    };
    Ok((runtime, scheduler))
}

/// The worker counts that make sense on this machine, of 1 and 2.
pub fn worker_counts() -> Vec<usize> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        eprintln!("one CPU only: rows with 2 workers are left out");
        return vec![1];
    }
    vec![1, 2]
}
