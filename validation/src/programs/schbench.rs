//! schbench's loop: who waits is woken at memoryless times and computes; what is measured is the way from the wake-up to the CPU.
//!
//! As `schbench -R` does it, a request goes to a worker that sleeps if there is one, and only such wake-ups are timed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quotient_sim::{Notice, Random, Span, synthetic};

use super::{Answer, Figure, WARM_UP, at, beside_simulated, nanos, noticed, plan_for, simulated};
use crate::cgroup::{Cgroup, Controller};
use crate::real::loads::{exponential, serve, sleep_until};
use crate::scenario::Cap;
use crate::{Interrupt, Problem};

/// Workers: twice the CPUs of a small machine.
const WORKERS: usize = 4;
/// What a request computes.
const WORK: Duration = Duration::from_millis(5);
/// Between two arrivals of [`PARTS`] requests, on average. In all 0.5 CPUs.
const GAP: Duration = Duration::from_millis(20);
/// Requests that come at once.
const PARTS: u32 = 2;

/// The seed of the arrivals while it is recorded.
const RECORDED_SEED: u64 = 1;

/// What is limited how: not at all, with little to spare, and the same with burst.
fn caps() -> [(&'static str, Option<Cap>); 3] {
    [
        ("schbench, no limit", None),
        ("schbench, 70 ms in 100 ms", Some(Cap::ms(70, 100))),
        (
            "schbench, 70 ms in 100 ms, burst 70 ms",
            Some(Cap::ms(70, 100).with_burst_ms(70)),
        ),
    ]
}

const NAMES: [&str; 4] = [
    "wake-up p50, ms",
    "wake-up p99, ms",
    "wake-up p99.9, ms",
    "throttled, %",
];

/// The kernel's wake-ups beside simulated ones.
///
/// # Errors
/// See [`super::compare`].
pub fn compare(
    length: Duration,
    runs: usize,
    interrupt: &Interrupt,
    done: &mut impl FnMut(&Figure),
    answer: &mut Answer,
) -> Result<(), Problem> {
    let base = Controller::find()?.base()?;
    let free = Arc::new(base.group("service", false)?);
    let load = || measured(&free, length, RECORDED_SEED, interrupt).map(|_| ());
    let notice = noticed("schbench", length, load, answer)?;
    drop(free);
    for (name, cap) in caps() {
        let cgroup = Arc::new(base.group("service", false)?);
        cgroup.set_cap(cap)?;
        if let Some(cap) = cap.filter(|cap| !cap.burst.is_zero()) {
            cgroup.set_burst(cap.burst)?;
        }
        let mut kernel = Vec::new();
        for run in 0..runs {
            kernel.push(measured(&cgroup, length, 100 + run as u64, interrupt)?);
        }
        // Without the limit what is left over ends at once.
        cgroup.set_cap(None)?;
        let predict = |seed, notice| predicted(cap, length, seed, notice);
        let found = beside_simulated(name, NAMES, &kernel, notice, predict, done)?;
        answer.figures.extend(found);
    }
    Ok(())
}

/// Who is free, and what waits for somebody.
#[derive(Default)]
struct Desk {
    free: VecDeque<usize>,
    queued: u64,
}

/// From each wake-up to the CPU, with the moment of the wake-up.
type Log = Arc<Mutex<Vec<(Instant, f64)>>>;

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker's life: ends when nobody can send to it any more.
fn work(me: usize, desk: &Mutex<Desk>, asked: &mpsc::Receiver<Instant>, log: &Log) {
    loop {
        let is_next = {
            let mut desk = locked(desk);
            let is_next = desk.queued > 0;
            if is_next {
                desk.queued -= 1;
            } else {
                desk.free.push_back(me);
            }
            is_next
        };
        if !is_next {
            let Ok(sent) = asked.recv() else {
                return;
            };
            let waited = sent.elapsed().as_secs_f64() * 1e3;
            locked(log).push((sent, waited));
        }
        serve(WORK);
    }
}

fn worker(
    me: usize,
    cgroup: &Arc<Cgroup>,
    desk: &Arc<Mutex<Desk>>,
    log: &Log,
) -> Result<(mpsc::Sender<Instant>, JoinHandle<()>), Problem> {
    let (ask, asked) = mpsc::channel();
    let (entered, wait) = mpsc::channel();
    let (cgroup, desk, log) = (cgroup.clone(), desk.clone(), log.clone());
    let thread = thread::Builder::new()
        .name("schbench".into())
        .spawn(move || {
            let result = cgroup.enter();
            let is_inside = result.is_ok();
            // Whoever waits for it is there until it has the answer.
            let _ = entered.send(result);
            if is_inside {
                work(me, &desk, &asked, &log);
            }
        })
        .map_err(Problem::during("cannot start a thread"))?;
    wait.recv()
        .map_err(Problem::during("a worker ended early"))??;
    Ok((ask, thread))
}

fn measured(
    cgroup: &Arc<Cgroup>,
    length: Duration,
    seed: u64,
    interrupt: &Interrupt,
) -> Result<[f64; 4], Problem> {
    let (desk, log) = (Arc::<Mutex<Desk>>::default(), Log::default());
    let mut workers = Vec::new();
    for me in 0..WORKERS {
        workers.push(worker(me, cgroup, &desk, &log)?);
    }
    let mut random = Random::new(seed, 0);
    let mut due = Instant::now();
    let from = due + WARM_UP;
    let (mut before, end) = (None, from + length);
    while due < end && !interrupt.is_raised() {
        due += exponential(&mut random, GAP);
        sleep_until(due.min(end));
        if before.is_none() && due >= from {
            before = Some(cgroup.counters()?);
        }
        for _ in 0..PARTS {
            let mut desk = locked(&desk);
            match desk.free.pop_front() {
                Some(free) => {
                    drop(desk);
                    // A worker lives as long as it can be asked.
                    let _ = workers[free].0.send(Instant::now());
                }
                None => desk.queued += 1,
            }
        }
    }
    let counters = cgroup.counters()?.since(before.unwrap_or_default());
    locked(&desk).queued = 0;
    for (ask, thread) in workers {
        drop(ask);
        // One that panicked has said so.
        let _ = thread.join();
    }
    if interrupt.is_raised() {
        return Err(Problem::Interrupted);
    }
    let log = locked(&log);
    let since = log.iter().filter(|(sent, _)| *sent >= from);
    let mut waited: Vec<f64> = since.map(|(_, waited)| *waited).collect();
    let throttled = 100.0 * counters.nr_throttled as f64 / counters.nr_periods.max(1) as f64;
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|part| at(&mut waited, part));
    Ok([p50, p99, p999, throttled])
}

fn predicted(
    cap: Option<Cap>,
    length: Duration,
    seed: u64,
    notice: Notice,
) -> Result<[f64; 4], Problem> {
    let mut plan = plan_for(cap, length + WARM_UP, seed, notice);
    let shape = synthetic::OpenLoop {
        threads: WORKERS as u32,
        work: Span::Fixed(nanos(WORK)),
        gap: Span::Exponential { mean: nanos(GAP) },
        parts: PARTS,
        begin: quotient_core::Nanos::ZERO,
    };
    synthetic::open_loop(&mut plan, "workers", Some(0), shape);
    let outcome = simulated(&plan)?;
    let group = outcome.group("service");
    let throttled = group.map_or(0.0, |group| {
        100.0 * group.nr_throttled as f64 / group.nr_periods.max(1) as f64
    });
    let wakes = outcome.workload("workers").map(|load| load.latency);
    let millis = |figure: fn(&quotient_sim::Percentiles) -> u64| {
        wakes
            .as_ref()
            .map_or(0.0, |wakes| figure(wakes) as f64 / 1e6)
    };
    Ok([
        millis(|wakes| wakes.p50_ns),
        millis(|wakes| wakes.p99_ns),
        millis(|wakes| wakes.p999_ns),
        throttled,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_wake_ups_wait_for_the_next_period_under_a_limit_only() {
        if crate::outcome::cpus() < 2.0 {
            return; // On one CPU they wait for each other.
        }
        let length = Duration::from_secs(20);
        let run = |index: usize| {
            let (_, cap) = caps()[index];
            predicted(cap, length, 1, Notice::EVERYTHING).expect("a valid plan")
        };
        let (free, capped, burst) = (run(0), run(1), run(2));
        assert!(free[1] < 15.0 && free[3] == 0.0, "{free:?}");
        assert!(capped[2] > free[2] && capped[3] > 0.0, "{capped:?}");
        assert!(burst[3] < capped[3], "{burst:?} {capped:?}");
    }
}
