//! `quotient bench locks`: what a lock of `quotient::sync` costs beside tokio's, in the same tasks of the same scheduler.
//!
//! A lock that knows groups has something to do only where a limit may hold its holder up. So each shape is measured while the process has no limit, while another group has
//! one, and in groups that have one themselves (far above what they use). Both kinds of lock are taken in turns, round by round.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use quotient::{Group, Scheduler};
use serde::Serialize;

use super::arena;
use super::statistics::Spread;
use super::workload::self_wake;
use super::{print_json, selected};
use crate::failure::Failure;

/// Rounds a row and kind. Odd, so that the median is a round.
const ROUNDS: usize = 9;
/// The same with `--quick`.
const ROUNDS_QUICK: usize = 3;
/// Takes a round: 20 to 200 ms on a machine of 2026.
const TAKES: u64 = 200_000;
/// The same with `--quick`.
const TAKES_QUICK: u64 = 20_000;
/// Takes of [`Shape::Many`] between two yields.
const TAKES_A_POLL: u64 = 100;
/// Tasks of [`Shape::Contended`].
const TASKS: u64 = 4;
/// A round that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What `bench locks` takes.
#[derive(Debug, Clone, Args)]
pub struct LocksArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// A tenth of the work: a look, not a figure
    #[arg(long)]
    quick: bool,
    /// Only rows whose name, such as "Mutex, free, no limit", contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// A lock of either kind.
trait Lock: Send + Sync + 'static {
    fn new() -> Self;
    /// Waits for the lock; it is held while the output lives.
    fn take(&self) -> impl Future<Output = impl Send> + Send;
}

macro_rules! lock {
    ($name:ident, $lock:ty, $new:expr, $take:ident) => {
        struct $name($lock);

        impl Lock for $name {
            fn new() -> Self {
                Self($new)
            }

            fn take(&self) -> impl Future<Output = impl Send> + Send {
                self.0.$take()
            }
        }
    };
}

lock!(
    OurMutex,
    quotient::sync::Mutex<u64>,
    quotient::sync::Mutex::new(0),
    lock
);
lock!(
    TokioMutex,
    tokio::sync::Mutex<u64>,
    tokio::sync::Mutex::new(0),
    lock
);
lock!(
    OurRwLock,
    quotient::sync::RwLock<u64>,
    quotient::sync::RwLock::new(0),
    write
);
lock!(
    TokioRwLock,
    tokio::sync::RwLock<u64>,
    tokio::sync::RwLock::new(0),
    write
);
lock!(
    OurSemaphore,
    quotient::sync::Semaphore,
    quotient::sync::Semaphore::new(1),
    acquire
);
lock!(
    TokioSemaphore,
    tokio::sync::Semaphore,
    tokio::sync::Semaphore::new(1),
    acquire
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// One task takes a lock of its own and gives it back, once a poll.
    Free,
    /// The same, [`TAKES_A_POLL`] times a poll.
    Many,
    /// [`TASKS`] tasks, every second one in another group, hold one lock across a yield each.
    Contended,
}

impl Shape {
    const ALL: [Self; 3] = [Self::Free, Self::Many, Self::Contended];

    fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Many => "many a poll",
            Self::Contended => "contended",
        }
    }

    /// A round. Nanoseconds a take.
    async fn run<L: Lock>(self, groups: [Group; 2], takes: u64) -> Result<f64, String> {
        let lock = Arc::new(L::new());
        let tasks = if self == Self::Contended { TASKS } else { 1 };
        let started = Instant::now();
        let handles: Vec<_> = groups
            .iter()
            .cycle()
            .take(tasks as usize)
            .map(|group| group.spawn(self.take_again_and_again(lock.clone(), takes / tasks)))
            .collect();
        let mut taken = 0;
        for handle in handles {
            taken += handle.await.map_err(|error| error.to_string())?;
        }
        let elapsed = started.elapsed();
        if taken != takes {
            return Err(format!("taken {taken} times instead of {takes}"));
        }
        Ok(elapsed.as_secs_f64() * 1e9 / takes as f64)
    }

    async fn take_again_and_again<L: Lock>(self, lock: Arc<L>, takes: u64) -> u64 {
        for take in 0..takes {
            let guard = lock.take().await;
            match self {
                Self::Contended => self_wake().await,
                Self::Many if take % TAKES_A_POLL != 0 => {}
                Self::Many | Self::Free => {
                    drop(guard);
                    self_wake().await;
                    continue;
                }
            }
            drop(guard);
        }
        takes
    }
}

/// Where the process has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limits {
    None,
    Elsewhere,
    Own,
}

impl Limits {
    const ALL: [Self; 3] = [Self::None, Self::Elsewhere, Self::Own];

    fn name(self) -> &'static str {
        match self {
            Self::None => "no limit",
            Self::Elsewhere => "of another group",
            Self::Own => "of the own groups",
        }
    }
}

/// A lock, by both kinds.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Mutex,
    RwLock,
    Semaphore,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Mutex, Self::RwLock, Self::Semaphore];

    fn name(self) -> &'static str {
        match self {
            Self::Mutex => "Mutex",
            Self::RwLock => "RwLock, write",
            Self::Semaphore => "Semaphore",
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    lock: &'static str,
    shape: &'static str,
    limits: &'static str,
    /// Median nanoseconds a take of tokio's lock, the yield and all else included.
    tokio_ns: f64,
    /// The same of ours.
    quotient_ns: f64,
    /// `quotient_ns / tokio_ns`.
    ratio: f64,
    tokio: Spread,
    quotient: Spread,
}

#[derive(Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
}

/// Measures and prints a table, or one JSON object.
///
/// # Errors
/// When a round hangs or did not take the lock as often as it should have.
pub fn run(arguments: &LocksArguments) -> Result<(), Failure> {
    let (runtime, scheduler) = arena::scheduler(1)?;
    let mut rows = Vec::new();
    if !arguments.json {
        println!(
            "ns a take, medians of rounds in turns, one virtual CPU; the task's own work included"
        );
        println!(
            "{:<14} {:<12} {:<18} {:>9} {:>9} {:>6}",
            "lock", "shape", "limit", "tokio", "quotient", "ratio"
        );
    }
    for limits in Limits::ALL {
        for kind in Kind::ALL {
            for shape in Shape::ALL {
                let name = format!("{}, {}, {}", kind.name(), shape.name(), limits.name());
                let wanted = arguments.only.as_ref();
                if !wanted.is_none_or(|text| name.contains(text.as_str())) {
                    continue;
                }
                let measured = measure(
                    &scheduler,
                    &runtime,
                    (rows.len(), kind, shape, limits),
                    arguments.quick,
                );
                let row = measured.map_err(Failure::during(&name))?;
                if !arguments.json {
                    print_row(&row);
                }
                rows.push(row);
            }
        }
    }
    runtime.block_on(scheduler.shutdown());
    selected(&rows)?;
    if arguments.json {
        return print_json(&Results { rows });
    }
    Ok(())
}

/// The groups in which a row is measured, and those that only have a limit.
///
/// # Errors
/// Those of the builder, as text.
fn groups(
    scheduler: &Scheduler,
    row: usize,
    limits: Limits,
) -> Result<([Group; 2], Option<Group>), String> {
    let make = |name: &str, is_limited: bool| -> Result<Group, String> {
        // A name is free again a moment after its group was removed.
        let path = format!("{name}-{row}");
        let group = scheduler.group(&path).map_err(|error| error.to_string())?;
        // More than there is: it holds nobody up.
        let group = if is_limited {
            group.max("1s/100ms")
        } else {
            group
        };
        group.create().map_err(|error| error.to_string())
    };
    let own = limits == Limits::Own;
    let elsewhere = (limits == Limits::Elsewhere).then(|| make("elsewhere", true));
    Ok(([make("a", own)?, make("b", own)?], elsewhere.transpose()?))
}

fn measure(
    scheduler: &Scheduler,
    runtime: &tokio::runtime::Runtime,
    (row, kind, shape, limits): (usize, Kind, Shape, Limits),
    quick: bool,
) -> Result<Row, String> {
    let (rounds, takes) = if quick {
        (ROUNDS_QUICK, TAKES_QUICK)
    } else {
        (ROUNDS, TAKES)
    };
    let (groups, elsewhere) = groups(scheduler, row, limits)?;
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..2 * (rounds + 1) {
        let is_ours = round % 2 == 1;
        let groups = groups.clone();
        let time = runtime.block_on(async {
            let round = one_round(kind, shape, is_ours, groups, takes);
            tokio::time::timeout(PATIENCE, round)
                .await
                .map_err(|_| format!("not finished after {} s", PATIENCE.as_secs()))?
        })?;
        // One each, unmeasured: allocators and caches warm up.
        if round > 1 {
            times[usize::from(is_ours)].push(time);
        }
    }
    for group in groups.iter().chain(&elsewhere) {
        group
            .remove(quotient::Leftover::Kill)
            .map_err(|error| error.to_string())?;
    }
    let spread = |times: &[f64]| Spread::of(times).ok_or("no round");
    let (tokio, quotient) = (spread(&times[0])?, spread(&times[1])?);
    Ok(Row {
        lock: kind.name(),
        shape: shape.name(),
        limits: limits.name(),
        tokio_ns: tokio.median,
        quotient_ns: quotient.median,
        ratio: quotient.median / tokio.median,
        tokio,
        quotient,
    })
}

async fn one_round(
    kind: Kind,
    shape: Shape,
    is_ours: bool,
    groups: [Group; 2],
    takes: u64,
) -> Result<f64, String> {
    match (kind, is_ours) {
        (Kind::Mutex, false) => shape.run::<TokioMutex>(groups, takes).await,
        (Kind::Mutex, true) => shape.run::<OurMutex>(groups, takes).await,
        (Kind::RwLock, false) => shape.run::<TokioRwLock>(groups, takes).await,
        (Kind::RwLock, true) => shape.run::<OurRwLock>(groups, takes).await,
        (Kind::Semaphore, false) => shape.run::<TokioSemaphore>(groups, takes).await,
        (Kind::Semaphore, true) => shape.run::<OurSemaphore>(groups, takes).await,
    }
}

fn print_row(row: &Row) {
    println!(
        "{:<14} {:<12} {:<18} {:>9.1} {:>9.1} {:>6.2}",
        row.lock, row.shape, row.limits, row.tokio_ns, row.quotient_ns, row.ratio
    );
}
