//! rayon pools whose threads work for a group of a [`quotient::Scheduler`].
//!
//! ```
//! use rayon::prelude::*;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = quotient::Scheduler::builder().build()?;
//! let acme = scheduler.group("tenants/acme")?.create()?;
//! let pool = quotient_rayon::Pool::new(&acme, 2)?;
//! let sum: u64 = pool.run(|| (0..1_000_000_u64).into_par_iter().sum()).await; // the task waits, its worker does not
//! assert_eq!(sum, 499_999_500_000);
//! # drop(pool);
//! # scheduler.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # A pool a group
//! rayon's threads steal from each other and have no hook at a steal: in a pool of several tenants a thread that waits inside one tenant's
//! job runs another's, and bills it to the first. So a pool works for one group, for all its life, and tenants have pools of their own,
//! with as many threads as they may have processors at a time. Idle threads of rayon sleep and cost nothing but their stacks.
//!
//! # What holds
//! With [`quotient::Builder::preempt`] the threads take turns with the group's tasks, at any instruction: its limit is a limit, and its weight
//! holds against tasks and against other pools. Such a pool takes one of `Preempt::max_borne` a thread. Without it the operating system
//! schedules the threads: the group's clock counts them, its tasks pay for them, and a task that waits for its own jobs is held
//! back by its limit; jobs that nobody waits for are not.
//!
//! # What does not reach a pool
//! Jobs are no tasks. A group that is frozen, killed or removed stops none of its pools: what runs goes on, and what is asked for is done, at
//! the group's expense. Only `freeze_immediately` stops a thread where it stands, under preemption, until its next job. Who ends a tenant
//! ends its pool: drop it, and let jobs look at something of yours now and then.
//!
//! # When the group pays
//! With preemption by turns, within some milliseconds. Without, a thread's time is looked at when a job of [`Pool::run`] or
//! [`Pool::install`] ends, on each thread as soon as it is free; and at its end.
//!
//! # Locks
//! A thread that stands while its group is throttled may hold a lock, rayon's own too; it gets short turns until it lets go. A task that
//! must not wait for that long asks by [`Pool::run`], which holds no worker.
#![forbid(unsafe_code)]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use quotient::{Group, ThreadMeter};
use rayon_core::{ThreadBuilder, ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// A pool of rayon whose threads work for one group. Cheap to clone; the threads end with the last clone.
#[derive(Clone, Debug)]
pub struct Pool {
    pool: Arc<ThreadPool>,
    group: Group,
}

impl Pool {
    /// `threads` of them for `group`, or one for each processor if 0.
    ///
    /// # Errors
    /// As [`ThreadPoolBuilder::build`]: a thread could not be started.
    pub fn new(group: &Group, threads: usize) -> Result<Self, ThreadPoolBuildError> {
        let name = format!("rayon {}", group.path());
        let builder = ThreadPoolBuilder::new().num_threads(threads);
        Self::build(group, builder.thread_name(move |_| name.clone()))
    }

    /// With names, stacks and handlers of the caller's own; what the builder says of spawning is replaced by [`threads_in`].
    ///
    /// # Errors
    /// As [`ThreadPoolBuilder::build`].
    pub fn build(group: &Group, builder: ThreadPoolBuilder) -> Result<Self, ThreadPoolBuildError> {
        Ok(Self {
            pool: Arc::new(builder.spawn_handler(threads_in(group)).build()?),
            group: group.clone(),
        })
    }

    /// The group that the threads work for.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The pool, for `scope`, `spawn`, `broadcast` and what else rayon offers.
    pub fn rayon(&self) -> &ThreadPool {
        &self.pool
    }

    /// Runs `job` in the pool, in which rayon's functions use its threads. The calling thread waits: in a task use [`Pool::run`].
    pub fn install<R: Send>(&self, job: impl FnOnce() -> R + Send) -> R {
        let result = self.pool.install(job);
        self.publish();
        result
    }

    /// Runs `job` in the pool while the calling task waits, without holding its worker. A panic of the job is the caller's. Dropping
    /// the future does not stop the job, as with rayon's own `spawn`.
    pub async fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let pool = self.clone();
        self.pool.spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(job));
            pool.publish();
            // The caller may have gone.
            let _ = sender.send(result);
        });
        match receiver.await {
            Ok(Ok(result)) => result,
            Ok(Err(payload)) => resume_unwind(payload),
            // `spawn` runs every job, and the job always sends.
            Err(_) => unreachable!("a job of rayon was dropped unrun"),
        }
    }

    /// Has each thread bill what it did so far, as soon as it is between two jobs.
    fn publish(&self) {
        let group = self.group.clone();
        // The clock of the group that a thread works for is brought up to date by reading it there.
        self.pool.spawn_broadcast(move |_| {
            let _ = group.cpu_time();
        });
    }
}

/// How a pool starts its threads so that they work for `group`, for [`ThreadPoolBuilder::spawn_handler`].
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let scheduler = quotient::Scheduler::builder().build()?;
/// # let acme = scheduler.group("tenants/acme")?.create()?;
/// let builder = rayon::ThreadPoolBuilder::new().num_threads(2);
/// let pool = builder.spawn_handler(quotient_rayon::threads_in(&acme)).build()?;
/// assert_eq!(pool.install(|| quotient::Group::current().unwrap()).path(), "tenants/acme");
/// # drop(pool);
/// # scheduler.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// Names and stacks are those of the builder. In a group that is gone when a thread starts it works for nobody: nothing of a
/// removed group holds any more, and jobs are not lost for it.
pub fn threads_in(group: &Group) -> impl FnMut(ThreadBuilder) -> io::Result<()> + use<> {
    let group = group.clone();
    move |thread| {
        let mut builder = std::thread::Builder::new();
        if let Some(name) = thread.name() {
            builder = builder.name(name.to_owned());
        }
        if let Some(size) = thread.stack_size() {
            builder = builder.stack_size(size);
        }
        let group = group.clone();
        builder.spawn(move || work(&group, thread))?;
        Ok(())
    }
}

/// The whole life of a thread of the pool.
fn work(group: &Group, thread: ThreadBuilder) {
    let mut thread = Some(thread);
    let mut run = || thread.take().map_or((), ThreadBuilder::run);
    if ThreadMeter::run(group, &mut run).is_err() {
        run();
    }
}
