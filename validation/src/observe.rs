//! The observer: finds the phase of the periods, then reads all meters once a period.
//!
//! Samples are taken a little before a period ends. A group that has used up its quota stands still then, so that a
//! sample that comes a bit late reads the same, and usage between two samples is that of whole periods.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::cgroup::Counters;
use crate::load::{JobLog, Meter};
use crate::machine::Busy;
use crate::window::RunLog;
use crate::{Interrupt, Problem};

/// How often the counter of periods is looked at to find their phase.
const PHASE_PAUSE: Duration = Duration::from_micros(100);
/// Samples are taken this part of a period before its end, and may be this much late.
const LEAD: f64 = 0.05;
/// The longest sleep, so that Ctrl-C is noticed.
const NAP_MAX: Duration = Duration::from_millis(100);
/// Periods before the first sample: everything runs and has been throttled by then.
const WARM_UP_PERIODS: u32 = 3;

/// A group, as the observer sees it.
pub trait Watched {
    /// What its tasks publish.
    fn meters(&self) -> &[Arc<Meter>];

    /// When its tasks ran.
    fn logs(&self) -> &[Arc<RunLog>];

    /// How long its jobs took.
    fn jobs(&self) -> &JobLog;

    /// CPU seconds that the host has charged it, children included, where it says so.
    fn charged(&self) -> Option<f64> {
        None
    }

    /// Its bandwidth counters.
    ///
    /// # Errors
    /// When the host cannot read them.
    fn counters(&self) -> Result<Counters, Problem>;

    /// CPU seconds that its tasks have published.
    fn seconds(&self) -> f64 {
        self.meters().iter().map(|meter| meter.seconds()).sum()
    }
}

/// All meters at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When they were read.
    pub at: Instant,
    /// Whether they were read in time.
    pub punctual: bool,
    /// CPU seconds a group, by its tasks' own clocks, without its children's.
    pub seconds: Vec<f64>,
    /// CPU seconds a group that the host charged, where it says so.
    pub charged: Vec<Option<f64>>,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Observation {
    /// A sample a period, the first one at the start.
    pub samples: Vec<Sample>,
    /// CPUs that other processes used meanwhile, where the machine says so.
    pub others_cpus: Option<f64>,
    /// Counters over the same time, a group.
    pub counters: Vec<Counters>,
}

impl Observation {
    /// Wall seconds from the first sample to the last.
    pub fn wall(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.first(), self.samples.last()) else {
            return 0.0;
        };
        last.at.duration_since(first.at).as_secs_f64()
    }

    /// CPU seconds that a group used between the first and the last sample.
    pub fn used(&self, group: usize) -> f64 {
        let (Some(first), Some(last)) = (self.samples.first(), self.samples.last()) else {
            return 0.0;
        };
        last.seconds[group] - first.seconds[group]
    }

    /// CPU seconds that the host charged a group over the same time.
    pub fn charged(&self, group: usize) -> Option<f64> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        Some(last.charged[group]? - first.charged[group]?)
    }

    /// CPU seconds a period, where both of its samples were punctual.
    pub fn per_period(&self, group: usize) -> Vec<f64> {
        self.samples
            .windows(2)
            .filter(|pair| pair[0].punctual && pair[1].punctual)
            .map(|pair| pair[1].seconds[group] - pair[0].seconds[group])
            .collect()
    }
}

/// Watches `groups` for `length`, rounded up to whole periods of the group `focus`.
///
/// # Errors
/// [`Problem::Interrupted`], or when counters cannot be read.
pub fn watch<W: Watched>(
    groups: &[W],
    focus: usize,
    period: Duration,
    length: Duration,
    interrupt: &Interrupt,
) -> Result<Observation, Problem> {
    let phase = find_phase(&groups[focus], period, interrupt)?;
    let periods = u32::try_from(length.as_nanos().div_ceil(period.as_nanos().max(1)))
        .unwrap_or(u32::MAX)
        .max(1);
    let lead = period.mul_f64(LEAD);
    let due = |index: u32| phase + period * (WARM_UP_PERIODS + index) - lead;
    let counters =
        || -> Result<Vec<Counters>, Problem> { groups.iter().map(Watched::counters).collect() };
    let mut samples = Vec::new();
    let mut before = Vec::new();
    let mut busy = None;
    for index in 0..=periods {
        sleep_until(due(index), interrupt)?;
        let at = Instant::now();
        samples.push(Sample {
            at,
            punctual: at < due(index) + lead,
            seconds: groups.iter().map(Watched::seconds).collect(),
            charged: groups.iter().map(Watched::charged).collect(),
        });
        if index == 0 {
            before = counters()?;
            busy = Busy::now();
        }
    }
    let counters = counters()?
        .into_iter()
        .zip(before)
        .map(|(after, before)| after.since(before))
        .collect();
    let mut seen = Observation {
        samples,
        counters,
        others_cpus: None,
    };
    seen.others_cpus = Busy::now()
        .zip(busy)
        .map(|(now, earlier)| now.others_since(earlier, seen.wall()));
    Ok(seen)
}

/// When a period began: the moment its counter moved. Without a running timer any phase is as good.
fn find_phase(
    group: &impl Watched,
    period: Duration,
    interrupt: &Interrupt,
) -> Result<Instant, Problem> {
    let first = group.counters()?.nr_periods;
    let deadline = Instant::now() + period * 3;
    while Instant::now() < deadline {
        if group.counters()?.nr_periods != first {
            break;
        }
        if interrupt.is_raised() {
            return Err(Problem::Interrupted);
        }
        thread::sleep(PHASE_PAUSE);
    }
    Ok(Instant::now())
}

/// Sleeps, in naps that end early on an interrupt.
///
/// # Errors
/// [`Problem::Interrupted`].
pub fn sleep_until(due: Instant, interrupt: &Interrupt) -> Result<(), Problem> {
    loop {
        if interrupt.is_raised() {
            return Err(Problem::Interrupted);
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(NAP_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Still(Vec<Arc<Meter>>, JobLog);

    impl Watched for Still {
        fn meters(&self) -> &[Arc<Meter>] {
            &self.0
        }
        fn logs(&self) -> &[Arc<RunLog>] {
            &[]
        }
        fn jobs(&self) -> &JobLog {
            &self.1
        }
        fn counters(&self) -> Result<Counters, Problem> {
            Ok(Counters::default())
        }
    }

    #[test]
    fn whole_periods_are_watched() {
        let period = Duration::from_millis(2);
        let groups = [Still(vec![Arc::default()], JobLog::default())];
        let seen = watch(
            &groups,
            0,
            period,
            Duration::from_millis(5),
            &Interrupt::default(),
        )
        .expect("nothing stops it");
        assert_eq!(seen.samples.len(), 4, "three periods cover 5 ms");
        assert!(seen.wall() > 0.0 && seen.used(0).abs() < 1e-12);
        assert!(seen.per_period(0).len() <= 3);
    }

    #[test]
    fn an_interrupt_ends_the_watch() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        let groups = [Still::default()];
        let hour = Duration::from_secs(3_600);
        let result = watch(&groups, 0, Duration::from_millis(100), hour, &interrupt);
        assert!(matches!(result, Err(Problem::Interrupted)));
    }
}
