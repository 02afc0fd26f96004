//! One task that is woken by a thread, beside polls without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::echo::WARM_UP;
use super::load::{Hogs, thread_cpu};
use super::mode::{Kind, Mode};
use super::sides::{Missing, Plan, Sides};
use crate::failure::Failure;

/// Time between two wake-ups where their cost is asked for: 1,800 a second.
const PERIOD: Duration = Duration::from_nanos(555_556);
/// The same where their latency is.
const LATENCY_PERIOD: Duration = Duration::from_millis(1);
/// Length of a stretch with or without wake-ups.
const STRETCH: Duration = Duration::from_millis(250);

/// The task and its waker.
struct Woken {
    notify: Notify,
    /// When it was woken last; zero once it has run.
    sent: AtomicU64,
    latency: AtomicU64,
    zero: Instant,
}

impl Woken {
    fn nanos(&self) -> u64 {
        u64::try_from(self.zero.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    async fn run(self: Arc<Self>) {
        loop {
            self.notify.notified().await;
            let sent = self.sent.load(Ordering::Acquire);
            let latency = self.nanos().saturating_sub(sent);
            self.latency.store(latency, Ordering::Relaxed);
            self.sent.store(0, Ordering::Release);
        }
    }

    /// Wakes it if it has run since it was woken last; what that one took.
    fn wake(&self) -> Option<u64> {
        if self.sent.load(Ordering::Acquire) != 0 {
            return None;
        }
        let latency = self.latency.load(Ordering::Relaxed);
        self.sent.store(self.nanos().max(1), Ordering::Release);
        self.notify.notify_one();
        Some(latency)
    }
}

/// Hogs without end and a task that sleeps.
struct Stage {
    sides: Sides,
    hogs: Hogs,
    woken: Arc<Woken>,
}

impl Stage {
    fn new(mode: Mode, hogs: u64, workers: usize) -> Result<Self, Failure> {
        let plan = Plan {
            weight: 100,
            limit: None,
        };
        let sides = match Sides::new(mode, Kind::Tasks, workers, workers, &[plan]) {
            Ok(sides) => sides,
            Err(Missing::Failed(failure)) => return Err(failure),
            Err(Missing::Unavailable(reason)) => return Err(Failure::Run(reason)),
        };
        let hogs = Hogs::new(1, hogs, None);
        let woken = Arc::new(Woken {
            notify: Notify::new(),
            sent: AtomicU64::new(0),
            latency: AtomicU64::new(0),
            zero: Instant::now(),
        });
        sides.spawn_victim(woken.clone().run());
        for hog in hogs.of(0) {
            sides.spawn_hog(Kind::Tasks, 0, hog.clone());
        }
        std::thread::sleep(WARM_UP);
        Ok(Self { sides, hogs, woken })
    }

    fn end(self) {
        self.hogs.stop();
        self.sides.end();
    }
}

/// From each wake-up to the poll that it brings. Unit: nanoseconds.
///
/// # Errors
/// When a runtime or a scheduler cannot be had.
pub fn latencies(mode: Mode, hogs: u64, workers: usize, seconds: f64) -> Result<Vec<u64>, Failure> {
    let stage = Stage::new(mode, hogs, workers)?;
    let mut latencies = Vec::new();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    stage.woken.wake();
    while Instant::now() < end {
        std::thread::sleep(LATENCY_PERIOD);
        latencies.extend(stage.woken.wake());
    }
    stage.end();
    Ok(latencies)
}

/// What the hogs lack while the task is woken 1,800 times a second, less what its polls and the thread that wakes it use: one figure
/// for each pair of stretches. Unit: CPUs.
///
/// # Errors
/// When a runtime or a scheduler cannot be had.
pub fn losses(mode: Mode, workers: usize, seconds: f64) -> Result<Vec<f64>, Failure> {
    let stage = Stage::new(mode, workers as u64, workers)?;
    let wakes = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    let driven = AtomicU64::new(0);
    let losses = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut due = Instant::now();
            while !over.load(Ordering::Relaxed) {
                if wakes.load(Ordering::Relaxed) {
                    stage.woken.wake();
                    due += PERIOD;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                } else {
                    std::thread::sleep(Duration::from_millis(5));
                    due = Instant::now();
                }
                let used = u64::try_from(thread_cpu().as_nanos()).unwrap_or(u64::MAX);
                driven.store(used, Ordering::Relaxed);
            }
        });
        let mut losses = Vec::new();
        let pairs = (seconds / (2.0 * STRETCH.as_secs_f64())) as u32;
        for _ in 0..pairs.max(1) {
            let quiet = stretch(&stage, &driven);
            wakes.store(true, Ordering::Relaxed);
            let woken = stretch(&stage, &driven);
            wakes.store(false, Ordering::Relaxed);
            losses.push(quiet.0 - woken.0 - woken.1);
        }
        over.store(true, Ordering::Relaxed);
        losses
    });
    stage.end();
    Ok(losses)
}

/// CPUs of the hogs over a stretch, and of the victim and whoever wakes it.
fn stretch(stage: &Stage, driven: &AtomicU64) -> (f64, f64) {
    let victim = || {
        let group = stage.sides.victim_group();
        group.map_or(Duration::ZERO, |group| group.cpu_time())
    };
    let others = || victim().as_secs_f64() + driven.load(Ordering::Relaxed) as f64 / 1e9;
    // Whoever wakes notices the change within some milliseconds.
    std::thread::sleep(Duration::from_millis(20));
    let (began, hogs, before) = (Instant::now(), stage.hogs.used()[0], others());
    std::thread::sleep(STRETCH);
    let wall = began.elapsed().as_secs_f64();
    let used = stage.hogs.used()[0].saturating_sub(hogs) as f64 / 1e9;
    (used / wall, (others() - before) / wall)
}
