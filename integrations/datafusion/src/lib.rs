//! DataFusion in the groups of a [`quotient::Scheduler`]: what a query spawns runs in the group of the query.
//!
//! ```
//! # async fn example(scheduler: &quotient::Scheduler) -> Result<(), Box<dyn std::error::Error>> {
//! quotient_datafusion::install()?; // once a process, in `main`
//! let acme = scheduler.group("tenants/acme")?.create()?;
//! let rows = acme.spawn(async { /* ctx.sql("...").await?.collect().await */ });
//! # let _ = rows.await?;
//! # Ok(())
//! # }
//! ```
//!
//! Without it a query in a group keeps to it for its own polls only: DataFusion starts a task for each partition by `tokio::spawn`, and some
//! hundredths of the CPU time are seen.
//!
//! # How
//! DataFusion hands every future and every blocking job that it spawns to a [`JoinSetTracer`], one a process, in the task that
//! spawns. If that is in a group, so becomes what is spawned: a future is spawned as a task of the group, for which DataFusion's own
//! task waits, a job runs under a [`ThreadMeter`], by turns if the scheduler preempts. Outside all groups nothing changes.
//!
//! # Ends
//! When DataFusion drops or aborts what it spawned, the group's task is aborted with it; its panic is the spawned task's. A group that
//! is killed, removed or full ends what it has of a query by a panic of the spawned task, in words: DataFusion's interface has no room
//! for a refusal, and passes it on to who collects the query.
//!
//! # Sessions
//! [`Tenant`] is an extension that names a session's group, for code that gets a session and no group.
#![forbid(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

use datafusion_common_runtime::{JoinSetTracer, set_join_set_tracer};
use futures::future::BoxFuture;
use quotient::{AbortOnDropHandle, Group, JoinHandle, ThreadMeter};

pub use datafusion_common_runtime::JoinSetTracerError;

/// An output whose type only DataFusion knows.
type Erased = Box<dyn Any + Send>;

/// Has what DataFusion spawns inherit the group of who spawns it, in the whole process.
///
/// # Errors
/// [`JoinSetTracerError`] if the process has a tracer already: whoever installed it may use [`install_over`] instead.
pub fn install() -> Result<(), JoinSetTracerError> {
    set_join_set_tracer(&Inherit { previous: None })
}

/// As [`install`], with another tracer, which wraps everything first: its spans are entered inside the group's polls.
///
/// # Errors
/// As [`install`].
pub fn install_over(previous: &'static dyn JoinSetTracer) -> Result<(), JoinSetTracerError> {
    let previous = Some(previous);
    // Once a process, like the place that it goes to.
    set_join_set_tracer(Box::leak(Box::new(Inherit { previous })))
}

struct Inherit {
    previous: Option<&'static dyn JoinSetTracer>,
}

impl JoinSetTracer for Inherit {
    fn trace_future(&self, future: BoxFuture<'static, Erased>) -> BoxFuture<'static, Erased> {
        let future = match self.previous {
            Some(previous) => previous.trace_future(future),
            None => future,
        };
        match Group::current() {
            // Before its first poll, too, the task goes with who waits for it.
            Some(group) => Box::pin(in_group(group.spawn(future).abort_on_drop())),
            None => future,
        }
    }

    fn trace_block(
        &self,
        job: Box<dyn FnOnce() -> Erased + Send>,
    ) -> Box<dyn FnOnce() -> Erased + Send> {
        let job = match self.previous {
            Some(previous) => previous.trace_block(job),
            None => job,
        };
        match Group::current() {
            Some(group) => Box::new(move || metered(&group, job)),
            None => job,
        }
    }
}

/// Waits for a group's task, which goes when this is dropped.
async fn in_group(task: AbortOnDropHandle<Erased>) -> Erased {
    match task.await {
        Ok(output) => output,
        Err(error) => match error.try_into_panic() {
            Ok(payload) => std::panic::resume_unwind(payload),
            // The type of the output is not known here, so there is nothing else to end with.
            Err(error) => {
                std::panic::resume_unwind(Box::new(format!("a task of a query: {error}")))
            }
        },
    }
}

fn metered(group: &Group, job: Box<dyn FnOnce() -> Erased + Send>) -> Erased {
    let mut job = Some(job);
    let mut run = || job.take().map(|job| job());
    // In a group that is gone, or a task that is billed already, the job runs all the same.
    let output = ThreadMeter::run(group, &mut run).unwrap_or_else(|_| run());
    match output {
        Some(output) => output,
        None => unreachable!("`ThreadMeter::run` refuses or runs, not both"),
    }
}

/// The group of a session: an extension of DataFusion's `SessionConfig`.
///
/// ```ignore
/// let config = SessionConfig::new().with_extension(Tenant::of(&acme));
/// let context = SessionContext::new_with_config(config);
/// // Anywhere else:
/// let tenant = context.copied_config().get_extension::<Tenant>().ok_or("a session of nobody")?;
/// let rows = tenant.spawn(async move { context.sql(query).await?.collect().await }).await??;
/// ```
#[derive(Clone, Debug)]
pub struct Tenant {
    group: Group,
}

impl Tenant {
    /// For `SessionConfig::with_extension`.
    pub fn of(group: &Group) -> Arc<Self> {
        let group = group.clone();
        Arc::new(Self { group })
    }

    /// The session's group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Runs what plans or collects a query in the session's group; what it spawns follows, after [`install`].
    #[track_caller]
    pub fn spawn<F>(&self, query: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.group.spawn(query)
    }
}
