//! Many virtual CPUs, each with a task that does a little now and then, all together well below the quota. The kernel hands
//! out budget in slices to CPUs; what is left of them on CPUs that have nothing to do is stranded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotient_validation::load::{JobLog, Mark, Meter, Worker};
use quotient_validation::observe::sleep_until;
use quotient_validation::outcome::quantile;
use quotient_validation::{Problem, runtime::Settings};

use super::{Mode, Row, Ward, settings};

/// The pain's name.
pub const NAME: &str = "stranding";
/// Virtual CPUs, and tokio workers: more than slices fit into the quota.
const VCPUS: usize = 16;
/// Tasks: enough to wake on every virtual CPU.
const TASKS: usize = 16;
/// Each uses about 1 % of a CPU, all together 16 % of one.
const WORK: Duration = Duration::from_micros(100);
/// Time between two polls of a task.
const EVERY: Duration = Duration::from_millis(10);
/// The limit: a quarter above what is used.
const MAX: &str = "20ms/100ms";
/// How long each mode runs.
const LENGTH: Duration = Duration::from_secs(8);

/// Throttled periods and the wait of a task, in every mode. The real kernel has too few CPUs on most machines.
pub fn measure(ward: &Ward) -> Result<Vec<Row>, Problem> {
    let mut rows = Vec::new();
    for mode in [Mode::Default, Mode::KernelRules, Mode::KernelRulesExpiry] {
        if let Some(settings) = settings(mode) {
            rows.extend(run(ward, mode, settings)?);
        }
    }
    Ok(rows)
}

fn run(ward: &Ward, mode: Mode, settings: Settings) -> Result<Vec<Row>, Problem> {
    let settings = Settings {
        vcpus: VCPUS,
        ..settings
    };
    let (runtime, scheduler) = settings.build()?;
    let group = scheduler
        .group("quiet")
        .and_then(|builder| builder.max(MAX).create())
        .map_err(Problem::during("cannot create a group"))?;
    let delays = Arc::new(JobLog::default());
    let meters: Vec<Arc<Meter>> = (0..TASKS).map(|_| Arc::default()).collect();
    // All at once, so that they spread over the virtual CPUs.
    let start = Instant::now() + EVERY;
    for meter in &meters {
        let worker = Worker {
            meter: meter.clone(),
            log: None,
        };
        drop(group.spawn(now_and_then(worker, delays.clone(), start)));
    }
    let started = Instant::now();
    let watched = sleep_until(started + ward.length(LENGTH), &ward.interrupt);
    let stats = group.stats().bandwidth;
    let used: f64 = meters.iter().map(|meter| meter.seconds()).sum();
    let used = used / started.elapsed().as_secs_f64();
    runtime.block_on(scheduler.shutdown());
    watched?;
    let p99 = quantile(&delays.seconds(), 0.99).unwrap_or(f64::NAN) * 1e3;
    let throttled = stats.nr_throttled as f64;
    Ok(vec![
        Row::new(NAME, mode, "usage", used, "CPU"),
        Row::new(NAME, mode, "nr_periods", stats.nr_periods as f64, "periods"),
        Row::new(NAME, mode, "nr_throttled", throttled, "periods").at_most_by_default(0.0),
        Row::new(
            NAME,
            mode,
            "throttled",
            stats.throttled.as_secs_f64() * 1e3,
            "ms",
        ),
        Row::new(NAME, mode, "done_p99", p99, "ms"),
    ])
}

/// Does its bit at every tick of its own clock, and notes how late it was done.
async fn now_and_then(worker: Worker, delays: Arc<JobLog>, start: Instant) {
    let mut due = start;
    loop {
        tokio::time::sleep_until(due.into()).await;
        worker.burn(WORK, Mark::now());
        delays.note(due.elapsed());
        // A tick that was slept through is not made up for; the others stay together.
        while due <= Instant::now() {
            due += EVERY;
        }
    }
}
