//! A thousand limited groups that are throttled and unthrottled, and ten thousand that are only refilled: for how long does a
//! virtual CPU poll nobody meanwhile?
//!
//! A task without a limit is always ready on every virtual CPU, so that one that polls nobody is busy with itself. Tasks note
//! the end of each poll for their thread; the next poll there sees the gap, in the thread's CPU time: what the machine gave
//! to other processes does not count.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quotient_validation::Problem;
use quotient_validation::load::thread_cpu;
use quotient_validation::observe::sleep_until;

use super::{Mode, Row, Ward, settings};
use crate::bench::workload::self_wake;

/// The pain's name.
pub const NAME: &str = "storm";
/// Bar: the longest gap between two polls of a virtual CPU, milliseconds.
const STALL_MS_MAX: f64 = 1.0;
/// A poll that computes.
const POLL: Duration = Duration::from_micros(50);
/// Quota and period of each group.
const MAX: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));
/// Time between two polls of a task that only keeps its group's period timer going.
const NAP: Duration = Duration::from_millis(500);
/// Before gaps count: everything is created and placed.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long gaps count.
const LENGTH: Duration = Duration::from_secs(6);

/// What the groups' tasks do.
#[derive(Clone, Copy, PartialEq)]
enum Task {
    /// Compute: the group is throttled in every period.
    Spin,
    /// A short poll now and then: the group is only refilled.
    Nap,
}

/// The longest gaps, in the default mode and with the kernel's rules.
pub fn measure(ward: &Ward) -> Result<Vec<Row>, Problem> {
    let mut rows = Vec::new();
    for mode in [Mode::Default, Mode::KernelRules] {
        rows.extend(run(ward, mode, 1_000, Task::Spin)?);
    }
    rows.extend(run(ward, Mode::Default, 10_000, Task::Nap)?);
    Ok(rows)
}

fn run(ward: &Ward, mode: Mode, count: usize, task: Task) -> Result<Vec<Row>, Problem> {
    let Some(settings) = settings(mode) else {
        return Ok(Vec::new());
    };
    let (runtime, scheduler) = settings.build()?;
    let longest = Arc::new(AtomicU64::new(0));
    let create = || {
        let beat = scheduler.group("beat")?.weight(10_000).create()?;
        for _ in 0..settings.vcpus * 2 {
            drop(beat.spawn(beating(longest.clone())));
        }
        let mut groups = Vec::with_capacity(count);
        for number in 0..count {
            let path = format!("limited-{number}");
            let group = scheduler.group(&path)?.max(MAX).create()?;
            match task {
                Task::Spin => drop(group.spawn(spinning(longest.clone()))),
                Task::Nap => drop(group.spawn(napping(longest.clone()))),
            }
            groups.push(group);
        }
        Ok::<_, quotient::Error>(groups)
    };
    let groups = create().map_err(Problem::during("cannot create the groups"))?;
    let began = Instant::now() + WARM_UP;
    let mut watched = sleep_until(began, &ward.interrupt);
    longest.store(0, Ordering::Relaxed);
    let counts = || {
        let stats = groups.iter().map(|group| group.stats().bandwidth);
        stats.fold((0, 0), |(periods, throttled), stats| {
            (periods + stats.nr_periods, throttled + stats.nr_throttled)
        })
    };
    let before = counts();
    if watched.is_ok() {
        watched = sleep_until(began + ward.length(LENGTH), &ward.interrupt);
    }
    let (after, stall_ns) = (counts(), longest.load(Ordering::Relaxed));
    let seconds = began.elapsed().as_secs_f64();
    runtime.block_on(scheduler.shutdown());
    watched?;
    let (stall, refills, throttles) = match task {
        Task::Spin => (
            "stall_1000_throttled",
            "refills_1000_throttled",
            "throttles_1000_throttled",
        ),
        Task::Nap => (
            "stall_10000_refilled",
            "refills_10000_refilled",
            "throttles_10000_refilled",
        ),
    };
    let per_second = |count: u64| count as f64 / seconds;
    Ok(vec![
        Row::new(NAME, mode, refills, per_second(after.0 - before.0), "/s"),
        Row::new(NAME, mode, throttles, per_second(after.1 - before.1), "/s"),
        Row::new(NAME, mode, stall, stall_ns as f64 / 1e6, "ms").at_most_by_default(STALL_MS_MAX),
    ])
}

thread_local! {
    /// The thread's CPU clock at the end of the last poll here.
    static LAST: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// A poll of `length`; the gap before it goes into `longest`.
fn poll(length: Duration, longest: &AtomicU64) {
    let (start, cpu) = (Instant::now(), thread_cpu());
    if let Some(last) = LAST.get() {
        let gap = cpu.saturating_sub(last).as_nanos();
        longest.fetch_max(u64::try_from(gap).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
    while start.elapsed() < length {
        std::hint::spin_loop();
    }
    LAST.set(Some(thread_cpu()));
}

async fn beating(longest: Arc<AtomicU64>) {
    loop {
        poll(Duration::ZERO, &longest);
        self_wake().await;
    }
}

async fn spinning(longest: Arc<AtomicU64>) {
    loop {
        poll(POLL, &longest);
        self_wake().await;
    }
}

async fn napping(longest: Arc<AtomicU64>) {
    loop {
        poll(Duration::ZERO, &longest);
        tokio::time::sleep(NAP).await;
    }
}
