//! What stopping a thread, handing a virtual CPU over, waking somebody beside long polls, and the polls' threads cost.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quotient::{Group, Preempt, Scheduler};
use quotient_pause::{Demotion, Handle, PauseState, Pauser, Region, Settings};
use serde::Serialize;
use tokio::runtime::Runtime;

use super::mode::Mode;
use super::wakes;
use crate::bench::arena;
use crate::bench::goal::Goal;
use crate::bench::memory::resident_bytes;
use crate::demo::confine;
use crate::failure::Failure;

/// Pauses a second of measuring: each takes some 100 us, the moment between two included.
const PAUSES_A_SECOND: f64 = 1_000.0;
/// A moment of work between two pauses, as in life.
const BETWEEN_PAUSES: Duration = Duration::from_micros(50);
/// A change of bearers counts if the one that stops had run for this long: short turns of stopped polls do not. Unit: nanoseconds.
const TURN_MIN: u64 = 1_000_000;

/// The names that have a bar.
const NEXT_BORNE: &str = "one borne poll's last step to the next one's first, one CPU";
const WAKE_UP: &str = "wake-up to poll beside 2 endless polls, quotient-preempt";
const BURDEN: &str = "what 1,800 wake-ups a second take from 2 hogs, quotient-preempt";

const MEMORY: &str = "memory of one poll that another thread bears";

/// Long polls at once whose memory is looked at, and how long their threads are waited for.
const MEMORY_POLLS: [usize; 3] = [64, 128, 250];
const MEMORY_PATIENCE: Duration = Duration::from_secs(30);

/// One row.
#[derive(Debug, Serialize)]
pub struct Cost {
    pub what: String,
    pub median: Option<f64>,
    pub p99: Option<f64>,
    pub unit: &'static str,
    /// How many times it was measured.
    pub samples: usize,
    /// Why it is not measured here.
    pub not_available: Option<String>,
}

impl Cost {
    /// Of samples in nanoseconds.
    fn micros(what: &str, samples: &[u64]) -> Self {
        let samples: Vec<f64> = samples.iter().map(|ns| *ns as f64 / 1e3).collect();
        Self::of(what, samples, "us")
    }

    fn of(what: &str, mut samples: Vec<f64>, unit: &'static str) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let last = samples.len().saturating_sub(1) as f64;
            samples.get((last * part) as usize).copied()
        };
        Self {
            what: what.to_owned(),
            median: at(0.5),
            p99: at(0.99),
            unit,
            samples: samples.len(),
            not_available: None,
        }
    }

    fn missing(what: &str, reason: String) -> Self {
        Self {
            not_available: Some(reason),
            ..Self::of(what, Vec::new(), "us")
        }
    }
}

/// All rows, each of which takes about `seconds`.
///
/// # Errors
/// When a runtime or a scheduler cannot be had.
pub fn measure(workers: usize, seconds: f64) -> Result<Vec<Cost>, Failure> {
    let mut costs = match pauses(seconds) {
        Ok(costs) => costs,
        Err(reason) => vec![Cost::missing("stopping a thread in a region", reason)],
    };
    let handed_over = std::thread::spawn(move || hand_overs(seconds)).join();
    let handed_over =
        handed_over.map_err(|_| Failure::Run("a thread of the benchmark panicked".into()))??;
    costs.push(Cost::micros(NEXT_BORNE, &handed_over));
    for hogs in [2, 6] {
        for mode in [
            Mode::TwoRuntimes,
            Mode::TwoRuntimesNice,
            Mode::QuotientPreempt,
        ] {
            let latencies = wakes::latencies(mode, hogs, workers, seconds)?;
            let what = format!("wake-up to poll beside {hogs} endless polls, {mode}");
            costs.push(Cost::micros(&what, &latencies));
        }
    }
    for mode in [Mode::TwoRuntimes, Mode::QuotientPreempt] {
        let losses = wakes::losses(mode, workers, seconds)?;
        let what = format!("what 1,800 wake-ups a second take from 2 hogs, {mode}");
        costs.push(Cost::of(&what, losses, "CPUs beyond the victim's work"));
    }
    costs.push(match memory() {
        Ok(samples) => Cost::of(MEMORY, samples, "KiB resident"),
        Err(failure) => Cost::missing(MEMORY, failure.to_string()),
    });
    Ok(costs)
}

/// A preempting scheduler of one virtual CPU on a runtime of one worker, and the group of its hogs.
fn one_virtual_cpu() -> Result<(Runtime, Scheduler, Group), Failure> {
    let runtime = arena::runtime(1)?;
    let scheduler = Scheduler::builder()
        .handle(runtime.handle().clone())
        .vcpus(1)
        .preempt(Preempt::default())
        .build()
        .map_err(Failure::during("cannot build a scheduler"))?;
    let group = scheduler.group("hogs").and_then(|group| group.create());
    let group = group.map_err(Failure::during("cannot create a group"))?;
    Ok((runtime, scheduler, group))
}

/// What a long poll takes that others do not: its thread, as far as that is resident. One sample for each of some numbers of polls.
fn memory() -> Result<Vec<f64>, Failure> {
    let (runtime, scheduler, group) = one_virtual_cpu()?;
    let stop = Arc::new(AtomicBool::new(false));
    let before = resident_bytes()?;
    let patience = Instant::now() + MEMORY_PATIENCE;
    let mut samples = Vec::new();
    for polls in MEMORY_POLLS {
        let borne = || scheduler.preempt_stats().map_or(0, |stats| stats.borne);
        let missing = polls.saturating_sub(borne());
        for _ in 0..missing {
            let stop = stop.clone();
            drop(group.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            }));
        }
        // The last one to come may have its virtual CPU alone.
        while borne() + 1 < polls && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        let more = resident_bytes()?.saturating_sub(before);
        if borne() + 1 >= polls {
            samples.push(more as f64 / 1_024.0 / borne().max(1) as f64);
        }
    }
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(scheduler.shutdown());
    runtime.shutdown_timeout(Duration::from_millis(500));
    Ok(samples)
}

/// The bars.
pub fn goals(costs: &[Cost]) -> Vec<Goal> {
    let bars = [(NEXT_BORNE, 25.0), (WAKE_UP, 15.0), (BURDEN, 0.02)];
    let goal = |(what, bound): (&str, f64)| {
        let cost = costs.iter().find(|cost| cost.what == what)?;
        Some(Goal::at_most(what, cost.median?, bound))
    };
    bars.into_iter().filter_map(goal).collect()
}

fn nanos(zero: Instant) -> u64 {
    u64::try_from(zero.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A thread in one endless region that writes the time it sees, so that others see until when it ran.
struct Stoppable {
    handle: Handle,
    region: Region,
    seen: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Stoppable {
    fn start(pauser: Pauser, zero: Instant) -> Result<Self, String> {
        let (seen, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (sender, receiver) = std::sync::mpsc::channel();
        let (time, end) = (seen.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            // Refused, the sender goes, and whoever waits for it knows.
            let _ = pauser.enter(|thread| {
                let region = thread.next_region();
                drop(sender.send((thread.handle(), region)));
                let ((), _) = thread.region(|| {
                    while !end.load(Ordering::Relaxed) {
                        time.store(nanos(zero), Ordering::Release);
                    }
                });
            });
        });
        let entered = receiver.recv();
        let (handle, region) = entered.map_err(|_| "a thread cannot be entered".to_owned())?;
        while handle.region().is_none() {
            std::thread::yield_now();
        }
        Ok(Self {
            handle,
            region,
            seen,
            stop,
            thread,
        })
    }
}

/// Stopping a thread anywhere, and letting it go on, as seen from another processor.
fn pauses(seconds: f64) -> Result<Vec<Cost>, String> {
    let pauser = Pauser::install(Settings::default()).map_err(|error| error.to_string())?;
    let zero = Instant::now();
    let hog = Stoppable::start(pauser, zero)?;
    let (mut stop, mut standing, mut resume, mut demote) = (vec![], vec![], vec![], vec![]);
    for _ in 0..(seconds * PAUSES_A_SECOND) as u32 {
        let asked = nanos(zero);
        let pause = hog.handle.pause(hog.region);
        let pause = pause.map_err(|error| error.to_string())?;
        while pause.state() != PauseState::Standing {
            spin_loop();
        }
        standing.push(nanos(zero) - asked);
        let last = hog.seen.load(Ordering::Acquire);
        stop.push(last.saturating_sub(asked));
        let resumed = nanos(zero);
        pause.resume();
        while hog.seen.load(Ordering::Acquire) == last {
            spin_loop();
        }
        resume.push(hog.seen.load(Ordering::Acquire).saturating_sub(resumed));
        std::thread::sleep(BETWEEN_PAUSES);
    }
    for _ in 0..(seconds * PAUSES_A_SECOND) as u32 {
        let started = nanos(zero);
        let caught = hog.handle.detach(hog.region);
        let caught = caught.map_err(|error| error.to_string())?;
        // Where it is refused, the row is that of detaching alone. Let go: the same region can be caught again.
        let _ = caught.demote(Demotion::default());
        demote.push(nanos(zero) - started);
    }
    hog.stop.store(true, Ordering::Relaxed);
    let joined = hog.thread.join();
    joined.map_err(|_| "a thread of the benchmark panicked".to_owned())?;
    Ok(vec![
        Cost::micros("pause: signal to the region's last step", &stop),
        Cost::micros("pause: signal to standing, seen from outside", &standing),
        Cost::micros("resume: call to the region's next step", &resume),
        Cost::micros("detach and lower: membarrier, sched_setattr", &demote),
    ])
}

/// Who ran last, since when, and until when.
#[derive(Default)]
struct Relay {
    who: AtomicU64,
    since: AtomicU64,
    until: AtomicU64,
}

/// Two polls without end on one virtual CPU, all threads on one processor: from the last step of one to the first of the other. The
/// calling thread is bound to that processor for good.
fn hand_overs(seconds: f64) -> Result<Vec<u64>, Failure> {
    confine::to_last(1).map_err(Failure::during("cannot choose a processor"))?;
    let (runtime, scheduler, group) = one_virtual_cpu()?;
    let (relay, zero) = (Arc::new(Relay::default()), Instant::now());
    let stop = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = [1, 2]
        .map(|me| {
            let (relay, stop) = (relay.clone(), stop.clone());
            group.spawn(async move { take_over(me, &relay, &stop, zero) })
        })
        .into();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    stop.store(true, Ordering::Relaxed);
    let mut gaps = Vec::new();
    for hog in hogs {
        let of_one = runtime.block_on(hog);
        gaps.extend(of_one.map_err(Failure::during("a hog ended"))?);
    }
    drop(group);
    drop(scheduler);
    runtime.shutdown_timeout(Duration::from_millis(500));
    Ok(gaps)
}

/// Runs without end and notes each time that somebody else has run in between.
fn take_over(me: u64, relay: &Relay, stop: &AtomicBool, zero: Instant) -> Vec<u64> {
    let mut gaps = Vec::with_capacity(100_000);
    while !stop.load(Ordering::Relaxed) {
        let now = nanos(zero);
        if relay.who.load(Ordering::Relaxed) != me {
            let (since, until) = (
                relay.since.load(Ordering::Relaxed),
                relay.until.load(Ordering::Relaxed),
            );
            if since != 0 && until.saturating_sub(since) >= TURN_MIN && gaps.len() < gaps.capacity()
            {
                gaps.push(now.saturating_sub(until));
            }
            relay.since.store(now, Ordering::Relaxed);
            relay.who.store(me, Ordering::Relaxed);
        }
        relay.until.store(now, Ordering::Relaxed);
    }
    gaps
}
