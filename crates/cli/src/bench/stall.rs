//! How long other tasks stand still when a task on every worker blocks in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::runtime::Runtime;

use super::arena;
use super::spawner::{QuotientSpawner, Spawner, TokioSpawner};
use super::statistics::Spread;
use super::workload::self_wake;
use crate::failure::Failure;

/// The key of the figure in the JSON object.
pub const NAME: &str = "block_in_place_stall_ms";
/// How long each worker is blocked.
pub const BLOCKED: Duration = Duration::from_millis(400);
/// Tasks that note the time of every poll.
const HEARTBEATS: usize = 4;
/// How often it is tried; the figure is the median.
const ROUNDS: usize = 5;

/// Longest gaps between two polls of a heartbeat, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Stalls {
    /// On plain tokio.
    pub tokio_ms: f64,
    /// On Quotient.
    pub quotient_ms: f64,
    /// The rounds behind `tokio_ms`.
    pub tokio: Spread,
    /// The rounds behind `quotient_ms`.
    pub quotient: Spread,
}

/// Measures both sides in turn.
///
/// # Errors
/// When a runtime or scheduler cannot be built or a task fails.
pub fn measure(workers: usize) -> Result<Stalls, Failure> {
    let (mut tokio, mut quotient) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let runtime = arena::runtime(workers)?;
        let block = || tokio::task::block_in_place(|| std::thread::sleep(BLOCKED));
        tokio.push(longest_gap_ms(
            &runtime,
            &TokioSpawner,
            &TokioSpawner,
            workers,
            block,
        )?);
        quotient.push(on_quotient(workers)?);
    }
    let none = || Failure::Run("no rounds".into());
    let (tokio, quotient) = (
        Spread::of(&tokio).ok_or_else(none)?,
        Spread::of(&quotient).ok_or_else(none)?,
    );
    Ok(Stalls {
        tokio_ms: tokio.median,
        quotient_ms: quotient.median,
        tokio,
        quotient,
    })
}

fn on_quotient(workers: usize) -> Result<f64, Failure> {
    let (runtime, scheduler) = arena::scheduler(workers)?;
    let spawner = |path: &str| {
        let group = scheduler.group(path).and_then(|builder| builder.create());
        group
            .map(|group| QuotientSpawner { group })
            .map_err(Failure::during("cannot create a group"))
    };
    let block = || quotient::block_in_place(|| std::thread::sleep(BLOCKED));
    let gap = longest_gap_ms(
        &runtime,
        &spawner("blocking")?,
        &spawner("beating")?,
        workers,
        block,
    );
    runtime.block_on(scheduler.shutdown());
    gap
}

fn longest_gap_ms<S: Spawner>(
    runtime: &Runtime,
    blocking: &S,
    beating: &S,
    workers: usize,
    block: fn(),
) -> Result<f64, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let longest_ns = Arc::new(AtomicU64::new(0));
    let _inside = runtime.enter();
    let beats: Vec<_> = (0..HEARTBEATS)
        .map(|_| beating.spawn(heartbeat(stop.clone(), longest_ns.clone())))
        .collect();
    // Heartbeats are up and their first, slow polls over before anything blocks.
    std::thread::sleep(Duration::from_millis(50));
    longest_ns.store(0, Ordering::Relaxed);
    let blockers: Vec<_> = (0..workers)
        .map(|_| blocking.spawn(async move { block() }))
        .collect();
    runtime.block_on(async {
        for blocker in blockers {
            blocker
                .await
                .map_err(Failure::during("a blocking task failed"))?;
        }
        let longest_ns = longest_ns.load(Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        for beat in beats {
            beat.await.map_err(Failure::during("a heartbeat failed"))?;
        }
        Ok(longest_ns as f64 / 1e6)
    })
}

async fn heartbeat(stop: Arc<AtomicBool>, longest_ns: Arc<AtomicU64>) {
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let gap_ns = u64::try_from(now.duration_since(last).as_nanos()).unwrap_or(u64::MAX);
        longest_ns.fetch_max(gap_ns, Ordering::Relaxed);
        last = now;
        self_wake().await;
    }
}
