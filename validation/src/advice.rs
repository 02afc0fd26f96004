//! What the simulator says a limit would do, against what it then does.
//!
//! A service is recorded without a limit: requests that come at random and compute for a random time, each a task. The
//! recording is swept as by `quotient advise`. Then the service runs again under some of the limits that were tried:
//! once with the arrivals that were recorded, once with others of the same kind, which the simulator has never seen.
//! Compared is the part of the periods in which the service was throttled, and what the limit adds to the response
//! time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotient::{Group, Scheduler};
use quotient_core::{Limit, Nanos};
use quotient_sim::advise::{Interval, Prediction, Subject, Sweep, Target, Work, advise};
use quotient_sim::batch::Control;
use quotient_sim::replay::{Loop, Recording, Selection};
use quotient_sim::{Machine, Plan, Random};
use quotient_trace::JsonLines;
use serde::Serialize;

use crate::load::{JobLog, Mark, Worker};
use crate::outcome::quantile;
use crate::runtime::{Settings, yield_once};
use crate::{Interrupt, Problem};

/// Mean time between two requests. With [`WORK`], half a CPU.
const GAP: Duration = Duration::from_millis(8);
/// Mean CPU time of a request.
const WORK: Duration = Duration::from_millis(4);
/// Longest request, as a multiple of the mean: one request must not be the whole run.
const WORK_MAX: u32 = 8;
/// How long a poll computes.
const POLL: Duration = Duration::from_micros(50);
/// Events kept between two looks at the rings. Unit: events.
const RING: usize = 1 << 20;
/// Shares of a CPU that are tried for real, in thousandths, with their period in milliseconds.
const TRIED: [(u64, u64); 4] = [(600, 100), (750, 100), (1000, 100), (750, 20)];
/// The seeds of the arrivals that are recorded, and of the others.
const SEEDS: [u64; 2] = [1, 2];

/// One limit: predicted, and measured.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// CPU time for each period, ms.
    pub quota_ms: f64,
    /// ms.
    pub period_ms: f64,
    /// Whether the measured run had the arrivals of the recording.
    pub same_arrivals: bool,
    /// Predicted part of the periods that are throttled.
    pub predicted_throttled: Interval,
    /// Measured part.
    pub throttled: f64,
    /// Measured less predicted, in points (hundredths).
    pub error_points: f64,
    /// Predicted addition to the 99th percentile, ms.
    pub predicted_added_p99_ms: f64,
    /// Measured addition, ms, against the same arrivals without a limit.
    pub added_p99_ms: f64,
    /// Periods of the measured run.
    pub nr_periods: u64,
}

/// One request: when it comes, and what it computes.
#[derive(Clone, Copy, Debug)]
struct Request {
    at: Duration,
    work: Duration,
}

/// The requests of a run of `length`.
fn requests(seed: u64, length: Duration) -> Vec<Request> {
    let draw = |random: &mut Random, mean: Duration| {
        Duration::from_nanos(random.exponential(u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX)))
    };
    let (mut gaps, mut works) = (Random::new(seed, 1), Random::new(seed, 2));
    let mut requests = Vec::new();
    let mut at = draw(&mut gaps, GAP);
    while at < length {
        let work = draw(&mut works, WORK).clamp(POLL, WORK * WORK_MAX);
        requests.push(Request { at, work });
        at += draw(&mut gaps, GAP);
    }
    requests
}

/// What a run showed.
struct Run {
    nr_periods: u64,
    nr_throttled: u64,
    p99: f64,
    /// JSON lines, if it was recorded.
    log: Vec<u8>,
}

impl Run {
    fn throttled(&self) -> f64 {
        self.nr_throttled as f64 / self.nr_periods.max(1) as f64
    }
}

/// Records, predicts, tries.
///
/// # Errors
/// [`Problem::Interrupted`], or when a runtime, a scheduler or a simulation cannot be made.
pub fn compare(length: Duration, interrupt: &Interrupt) -> Result<Vec<Row>, Problem> {
    let mut free = Vec::new();
    for seed in SEEDS {
        free.push(run(
            &requests(seed, length),
            None,
            seed == SEEDS[0],
            interrupt,
        )?);
    }
    let predictions = predict(&free[0].log)?;
    let mut rows = Vec::new();
    for (prediction, limit) in predictions.iter().zip(limits()) {
        for (seed, free) in SEEDS.into_iter().zip(&free) {
            let tried = run(&requests(seed, length), Some(limit), false, interrupt)?;
            rows.push(row(prediction, free, &tried, seed == SEEDS[0]));
        }
    }
    Ok(rows)
}

fn row(prediction: &Prediction, free: &Run, tried: &Run, same_arrivals: bool) -> Row {
    Row {
        quota_ms: prediction.quota_ns as f64 / 1e6,
        period_ms: prediction.period_ns as f64 / 1e6,
        same_arrivals,
        predicted_throttled: prediction.throttled_ratio,
        throttled: tried.throttled(),
        error_points: 100.0 * (tried.throttled() - prediction.throttled_ratio.mid),
        predicted_added_p99_ms: prediction.added_p99_ns.mid / 1e6,
        added_p99_ms: (tried.p99 - free.p99) * 1e3,
        nr_periods: tried.nr_periods,
    }
}

fn limits() -> impl Iterator<Item = Limit> {
    TRIED.into_iter().map(|(share, period)| {
        let period = Nanos::from_millis(period);
        Limit::new(Nanos(share * period.0 / 1000), period)
    })
}

/// The sweep of `quotient advise` over the recorded service, for the limits that are tried.
fn predict(log: &[u8]) -> Result<Vec<Prediction>, Problem> {
    let mut input = log;
    let whole =
        Recording::read(&mut input).map_err(Problem::during("the service's own recording"))?;
    let service = Selection {
        groups: vec!["service".into()],
        ..Selection::default()
    };
    let (recording, _) = whole.split(&service);
    if recording.tasks() == 0 {
        return Err(Problem::Broken("no request was recorded".into()));
    }
    let plan = |_: u32, seed: u64| {
        let mut plan = Plan::new(Machine::flat(crate::outcome::cpus() as u32));
        plan.duration = recording.length;
        plan.seed = seed;
        let group = plan.group("service");
        recording.add_to(&mut plan, "requests", group, Loop::Open);
        plan
    };
    let subject = Subject {
        plan: &plan,
        group: 0,
        meter: 0,
        work: Work::Time,
        blocks: 0,
        itself: None,
    };
    let target = Target {
        throttled_permille: 1000,
        added_p99: Nanos::MAX,
        done_permille: 0,
        used_permille: 0,
    };
    let mut predictions = Vec::new();
    for (share, period) in TRIED {
        let sweep = Sweep {
            cpus_permille: vec![share],
            periods: vec![Nanos::from_millis(period)],
            bursts_percent: vec![0],
            threads: vec![0],
            seeds: 5,
            refine: false,
        };
        let advice = advise(&subject, &sweep, target, 1, &Control::default());
        let advice = advice.map_err(Problem::during("the simulator"))?;
        predictions.extend(advice.predictions);
    }
    Ok(predictions)
}

/// The service on a tokio runtime of its own.
fn run(
    requests: &[Request],
    limit: Option<Limit>,
    recorded: bool,
    interrupt: &Interrupt,
) -> Result<Run, Problem> {
    let (runtime, scheduler) = Settings::like_this_machine().build()?;
    let create = || {
        let mut builder = scheduler.group("service")?;
        if let Some(limit) = limit {
            let (quota, period): (Duration, Duration) = (limit.quota.into(), limit.period.into());
            builder = builder.max((quota, period));
        }
        builder.create()
    };
    let group = create().map_err(Problem::during("cannot make the group"))?;
    let result = runtime.block_on(serve(&scheduler, &group, requests, recorded, interrupt));
    runtime.block_on(scheduler.shutdown());
    result
}

async fn serve(
    scheduler: &Scheduler,
    group: &Group,
    requests: &[Request],
    recorded: bool,
    interrupt: &Interrupt,
) -> Result<Run, Problem> {
    let mut log = JsonLines::new(Vec::new());
    let recording = match recorded {
        true => Some(
            scheduler
                .record(RING)
                .map_err(Problem::during("cannot record"))?,
        ),
        false => None,
    };
    let (jobs, start) = (Arc::new(JobLog::default()), Instant::now());
    let mut tasks = Vec::new();
    for request in requests {
        if interrupt.is_raised() {
            return Err(Problem::Interrupted);
        }
        tokio::time::sleep_until((start + request.at).into()).await;
        tasks.push(group.spawn(answer(start + request.at, request.work, jobs.clone())));
        // A few times a second is often enough for rings of this size.
        if let Some(recording) = recording.as_ref().filter(|_| tasks.len() % 64 == 0) {
            recording.drain(&mut log);
        }
    }
    for task in tasks {
        task.await.map_err(Problem::during("a request"))?;
    }
    if let Some(recording) = recording {
        let lost = recording.finish(&mut log).lost;
        if lost > 0 {
            return Err(Problem::Broken(format!("{lost} events were lost")));
        }
    }
    let stats = group.stats().bandwidth;
    Ok(Run {
        nr_periods: stats.nr_periods,
        nr_throttled: stats.nr_throttled,
        p99: quantile(&jobs.seconds(), 0.99).unwrap_or(0.0),
        log: log.finish().map_err(Problem::during("memory"))?,
    })
}

async fn answer(intended: Instant, work: Duration, jobs: Arc<JobLog>) {
    let worker = Worker {
        meter: Arc::default(),
        log: None,
    };
    while worker.meter.seconds() < work.as_secs_f64() {
        worker.burn(POLL, Mark::now());
        yield_once().await;
    }
    jobs.note(intended.elapsed());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_the_same_for_a_seed_and_use_half_a_cpu() {
        let length = Duration::from_secs(100);
        let (one, again, other) = (
            requests(1, length),
            requests(1, length),
            requests(2, length),
        );
        let work = |requests: &[Request]| {
            requests
                .iter()
                .map(|request| request.work)
                .sum::<Duration>()
        };
        assert_eq!(work(&one), work(&again));
        assert_ne!(work(&one), work(&other));
        let share = work(&one).as_secs_f64() / length.as_secs_f64();
        assert!((0.4..0.6).contains(&share), "{share}");
    }

    #[test]
    fn a_short_comparison_has_a_row_for_each_limit_and_arrivals() {
        let rows = compare(Duration::from_millis(400), &Interrupt::default()).expect("it runs");
        assert_eq!(rows.len(), TRIED.len() * SEEDS.len());
        assert!(rows.iter().all(|row| row.nr_periods > 0), "{rows:?}");
    }
}
