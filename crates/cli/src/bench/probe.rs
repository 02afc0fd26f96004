//! One measurement of `bench scale`, in a process of its own: memory that an earlier measurement has given back would
//! hide what the next one takes.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::{Args, ValueEnum, value_parser};
use quotient::{Group, Scheduler};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::arena;
use super::memory::resident_bytes;
use super::print_json;
use super::spawner::{QuotientSpawner, Spawner, TokioSpawner};
use super::workload::{Shape, self_wake};
use crate::failure::Failure;

/// Tasks started at once before the probe waits until they sleep: keeps queues short, so that a task is counted and not
/// the longest queue that ever was.
const BATCH: u64 = 1_000;
/// Round trips of the ping-pong beside sleeping tasks.
const PINGPONG_ROUNDS: u64 = 100_000;
/// Wake-ups shared among the groups' tasks.
const GROUP_WAKES: u64 = 400_000;

/// What a probe counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Sleeping tasks on plain tokio.
    TasksTokio,
    /// Sleeping tasks in one group of Quotient.
    TasksQuotient,
    /// Groups of Quotient, then one task in each.
    Groups,
}

/// What a probe takes.
#[derive(Debug, Clone, Args)]
pub struct ProbeArguments {
    /// What to count
    #[arg(long)]
    pub kind: Kind,
    /// How many (1..=10000000)
    #[arg(long, value_parser = value_parser!(u64).range(1..=10_000_000))]
    pub count: u64,
    /// tokio workers and vCPUs (1..=1024)
    #[arg(long, value_parser = value_parser!(u32).range(1..=1024))]
    pub workers: u32,
}

/// What a probe found, tasks or groups.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Probe {
    /// What was counted.
    pub kind: Kind,
    /// How many.
    pub count: u64,
    /// tokio workers and vCPUs.
    pub workers: u32,
    /// Nanoseconds to create one: a task from spawn to its first sleep, a group without tasks.
    pub create_ns: f64,
    /// Bytes each beyond the task's future: state of the runtime, queues and allocator included.
    pub bytes: f64,
    /// Groups only: bytes each after a task in each has run, the task included.
    pub bytes_used: Option<f64>,
    /// Tasks only: nanoseconds of a round trip between two tasks beside the sleeping ones.
    pub pingpong_ns: Option<f64>,
    /// Groups only: nanoseconds to wake, pick and put to sleep one task, when all groups are woken from one task and
    /// their queue is as long as there are groups.
    pub wake_ns: Option<f64>,
}

/// Measures and prints one line of JSON.
///
/// # Errors
/// When a runtime cannot be built or a workload fails.
pub fn run(arguments: &ProbeArguments) -> Result<(), Failure> {
    let workers = arguments.workers as usize;
    let probe = match arguments.kind {
        Kind::TasksTokio => tasks(&arena::runtime(workers)?, &TokioSpawner, arguments)?,
        Kind::TasksQuotient => {
            let (runtime, scheduler) = arena::scheduler(workers)?;
            let spawner = QuotientSpawner {
                group: group(&scheduler, "bench")?,
            };
            tasks(&runtime, &spawner, arguments)?
        }
        Kind::Groups => {
            let (runtime, scheduler) = arena::scheduler(workers)?;
            groups(&runtime, &scheduler, arguments)?
        }
    };
    print_json(&probe)?;
    // A million tasks need not be taken apart one by one: the process ends here.
    std::process::exit(0)
}

fn group(scheduler: &Scheduler, path: &str) -> Result<Group, Failure> {
    scheduler
        .group(path)
        .and_then(|builder| builder.create())
        .map_err(Failure::during("cannot create a group"))
}

/// Counts the tasks that have been polled, and says when all have.
struct Asleep {
    awaited: AtomicU64,
    all: Notify,
}

impl Asleep {
    fn awaiting(count: u64) -> Self {
        Self {
            awaited: AtomicU64::new(count),
            all: Notify::new(),
        }
    }

    fn one_more(&self) {
        if self.awaited.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all.notify_one();
        }
    }
}

async fn sleeper(asleep: Arc<Asleep>) {
    asleep.one_more();
    drop(asleep);
    pending::<()>().await;
}

async fn sleepers<S: Spawner>(spawner: S, count: u64) {
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        let asleep = Arc::new(Asleep::awaiting(batch));
        for _ in 0..batch {
            drop(spawner.spawn(sleeper(asleep.clone())));
        }
        asleep.all.notified().await;
        left -= batch;
    }
}

fn block_on<S: Spawner, T: Send + 'static>(
    runtime: &Runtime,
    spawner: &S,
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T, Failure> {
    runtime
        .block_on(async { spawner.spawn(future).await })
        .map_err(Failure::during("a task of the probe failed"))
}

fn tasks<S: Spawner>(
    runtime: &Runtime,
    spawner: &S,
    arguments: &ProbeArguments,
) -> Result<Probe, Failure> {
    let future_bytes = size_of_val(&sleeper(Arc::new(Asleep::awaiting(1))));
    block_on(runtime, spawner, sleepers(spawner.clone(), BATCH))?;
    let before = resident_bytes()?;
    let start = Instant::now();
    block_on(runtime, spawner, sleepers(spawner.clone(), arguments.count))?;
    let elapsed = start.elapsed();
    let grown = resident_bytes()?.saturating_sub(before);
    let pingpong = Shape::PingPongNotify.run(spawner.clone(), PINGPONG_ROUNDS);
    let measured = block_on(runtime, spawner, pingpong)?.map_err(Failure::Run)?;
    Ok(Probe {
        kind: arguments.kind,
        count: arguments.count,
        workers: arguments.workers,
        create_ns: elapsed.as_nanos() as f64 / arguments.count as f64,
        bytes: grown as f64 / arguments.count as f64 - future_bytes as f64,
        bytes_used: None,
        pingpong_ns: Some(measured.nanos()),
        wake_ns: None,
    })
}

/// Groups that run before memory is looked at.
const WARM_UP_GROUPS: u64 = 64;

/// Spawns each task in the next of many groups.
#[derive(Clone)]
struct RoundRobin {
    groups: Arc<Vec<Group>>,
    next: Arc<AtomicU64>,
}

impl Spawner for RoundRobin {
    type Error = quotient::JoinError;
    type Handle<T: Send + 'static> = quotient::JoinHandle<T>;

    fn spawn<F>(&self, future: F) -> Self::Handle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let next = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        self.groups[next % self.groups.len()].spawn(future)
    }
}

fn groups(
    runtime: &Runtime,
    scheduler: &Scheduler,
    arguments: &ProbeArguments,
) -> Result<Probe, Failure> {
    let count = arguments.count;
    let home = QuotientSpawner {
        group: group(scheduler, "home")?,
    };
    block_on(runtime, &home, self_wake())?;
    // What the first groups make the program load and the allocator set aside is no group's memory.
    let mut first = Vec::with_capacity(WARM_UP_GROUPS as usize);
    for number in 0..WARM_UP_GROUPS {
        first.push(group(scheduler, &format!("first/{number}"))?);
    }
    let spawner = RoundRobin {
        groups: Arc::new(first),
        next: Arc::new(AtomicU64::new(0)),
    };
    let warm_up = Shape::Wake(WARM_UP_GROUPS).run(spawner, GROUP_WAKES);
    block_on(runtime, &home, warm_up)?.map_err(Failure::Run)?;
    let before = resident_bytes()?;
    let start = Instant::now();
    let mut created = Vec::with_capacity(count as usize);
    for number in 0..count {
        created.push(group(scheduler, &format!("tenants/{number}"))?);
    }
    let create_ns = start.elapsed().as_nanos() as f64 / count as f64;
    let handles = (created.capacity() * size_of::<Group>()) as u64;
    let grown = resident_bytes()?.saturating_sub(before + handles);
    let spawner = RoundRobin {
        groups: Arc::new(created),
        next: Arc::new(AtomicU64::new(0)),
    };
    let wakes = GROUP_WAKES.max(2 * count);
    // The coordinator runs in a group of its own, so that the groups have one task each.
    let woken =
        block_on(runtime, &home, Shape::Wake(count).run(spawner, wakes))?.map_err(Failure::Run)?;
    let grown_used = resident_bytes()?.saturating_sub(before + handles);
    Ok(Probe {
        kind: arguments.kind,
        count,
        workers: arguments.workers,
        create_ns,
        bytes: grown as f64 / count as f64,
        bytes_used: Some(grown_used as f64 / count as f64),
        pingpong_ns: None,
        wake_ns: Some(woken.nanos()),
    })
}
