//! What would this limit do? A sweep over limits, and the smallest that does no harm.
//!
//! **The middle of every figure is that of the recording itself**, as the point estimate of a bootstrap is the statistic of the sample: draws of blocks
//! say how far other recordings lie from it, and nothing else. Joints of blocks break up what piled up across them, and pile up what was apart, so
//! the draws' own middle is off where a limit is tight. Both have the same seeds, and so the same phases of the period.

mod interval;
mod sweep;

use interval::Draws;
pub use interval::Interval;
pub use sweep::Sweep;
use sweep::refine;

use crate::batch::{BatchError, Control, run_all};
use crate::meters::{Percentiles, Times};
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::random::Random;
use quotient_core::{Limit, Nanos};
use serde::Serialize;

/// What one setting is predicted to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// CPU time for each period, ns.
    pub quota_ns: u64,
    /// ns.
    pub period_ns: u64,
    /// ns.
    pub burst_ns: u64,
    /// Threads; 0 as they are.
    pub threads: u32,
    /// Part of the periods in which the group is throttled.
    pub throttled_ratio: Interval,
    /// The median under the limit, ns.
    pub p50_ns: Interval,
    /// The 99th percentile under the limit, ns.
    pub p99_ns: Interval,
    /// What the limit adds to the median, ns.
    pub added_p50_ns: Interval,
    /// What it adds to the 99th percentile, ns.
    pub added_p99_ns: Interval,
    /// Part of the work that is done in the same time; see [`Subject::work`].
    pub done_ratio: Interval,
    /// Whether work piles up without end: then a percentile says how long was looked, not what would be.
    pub is_saturated: bool,
    /// Whether it keeps what was asked for, in draws and in the recording itself.
    pub is_harmless: bool,
}

impl Prediction {
    /// Takes the middle of every figure from the recording itself. Intervals are those of draws, and hold it.
    fn centre(&mut self, itself: &Prediction) {
        for (interval, middle) in [
            (&mut self.throttled_ratio, itself.throttled_ratio),
            (&mut self.p50_ns, itself.p50_ns),
            (&mut self.p99_ns, itself.p99_ns),
            (&mut self.added_p50_ns, itself.added_p50_ns),
            (&mut self.added_p99_ns, itself.added_p99_ns),
            (&mut self.done_ratio, itself.done_ratio),
        ] {
            interval.centre(middle.mid);
        }
        // It is told from middles.
        self.is_saturated = itself.is_saturated;
        self.is_harmless &= itself.is_harmless;
    }
}

/// What counts as harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Most throttled periods, in thousandths, at the upper end of their interval.
    pub throttled_permille: u64,
    /// Most added to the 99th percentile, on average over the seeds; in 19 of 20 cases, by how these differ.
    pub added_p99: Nanos,
    /// Least part of the work that is done, in thousandths, at the lower end of its interval. A limit under which little is done adds little to p99.
    pub done_permille: u64,
    /// CPU time that is known to be used, in thousandths of a CPU: no limit below that is harmless, whatever is played. 0: not known.
    pub used_permille: u64,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Median and 99th percentile without a limit, ns, for the first number of threads: the medians of all seeds', of the recording itself if there is
    /// one.
    pub free_p50_ns: u64,
    /// See `free_p50_ns`.
    pub free_p99_ns: u64,
    /// CPU time used without a limit, in thousandths of a CPU.
    pub free_usage_permille: u64,
    /// What the meter saw done without a limit: the most of any seed.
    #[serde(skip)]
    pub free_done: u64,
    /// Every setting, in the order threads, period, burst, quota; finer ones in their place.
    pub predictions: Vec<Prediction>,
    /// Index of the recommended one: the harmless one with the smallest share, of those as small as that the first period and burst. A
    /// limit of at least all CPUs limits nothing in the long run, and is not recommended.
    pub recommended: Option<usize>,
    /// CPUs of the machine.
    pub cpus: u32,
}

impl Advice {
    /// Whether a setting gives the whole machine, or more. It may bind all the same, within a period: a CPU takes its quota by slices, and what one
    /// keeps of them another one lacks; of periods of 1 ms that is all.
    pub fn gives_the_machine(&self, row: &Prediction) -> bool {
        u128::from(row.quota_ns) >= u128::from(row.period_ns) * u128::from(self.cpus)
    }

    /// Whether a setting never binds: the machine has no more than it gives, and nothing was throttled in any seed.
    pub fn never_binds(&self, row: &Prediction) -> bool {
        self.gives_the_machine(row) && row.throttled_ratio.most <= 0.0
    }
}

/// What is asked about: a plan for a number of threads (0: as it is) and a seed, the group to limit, and the meter by
/// which harm is measured.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Makes the plan, without the limit.
    pub plan: &'a (dyn Fn(u32, u64) -> Plan + Sync),
    /// Index of the group in the plan.
    pub group: usize,
    /// Index of the meter in the plan.
    pub meter: usize,
    /// What counts as done.
    pub work: Work,
    /// Of how many blocks of a recording the load of each seed is drawn; 0 where each seed makes a load of its own.
    pub blocks: u64,
    /// The plan of the recording itself, where `plan` draws its blocks anew: the middle of every figure is that of the recording. `None` where seeds
    /// make loads of their own: then it is the median of the seeds.
    pub itself: Option<&'a (dyn Fn(u32, u64) -> Plan + Sync)>,
}

impl<'a> Subject<'a> {
    /// The recording itself, if draws of it are asked about.
    fn itself(&self) -> Option<Subject<'a>> {
        self.itself.map(|plan| Subject {
            plan,
            itself: None,
            blocks: 0,
            ..*self
        })
    }

    /// How many runs each seed makes of a setting: a draw, and the recording itself.
    pub fn runs_per_seed(&self) -> usize {
        1 + usize::from(self.itself.is_some())
    }
}

/// What counts as work that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// CPU time of the group: right for recordings, whose bursts may be of any length.
    Time,
    /// Laps of the meter: right where the group also has work that nobody waits for.
    Laps,
}

/// Recommendations whose shares are closer than this, in millionths, are equally small: then the first period and burst of the
/// sweep is taken, so that equal inputs do not get one or the other.
const SAME_SHARE: u128 = 50_000;
/// Less done than this, and work may be piling up.
const DONE_IN_TIME: f64 = 0.98;
/// If at least this part of the limit is wanted in the long run.
const LOADED: f64 = 0.97;

#[derive(Clone, Copy)]
struct Setting {
    limit: Option<Limit>,
    threads: u32,
    seed: u64,
    /// Whether it is the recording itself, or a draw.
    is_itself: bool,
}

/// The runs of a limit: those of all seeds, then those of the recording itself, if it is asked about.
fn settings(
    subject: &Subject<'_>,
    limit: Option<Limit>,
    threads: u32,
    seeds: u64,
) -> impl Iterator<Item = Setting> {
    let kinds = [false, true].into_iter().take(subject.runs_per_seed());
    kinds.flat_map(move |is_itself| {
        (1..=seeds).map(move |seed| Setting {
            limit,
            threads,
            seed,
            is_itself,
        })
    })
}

/// Tries every setting with every seed on `threads` threads.
///
/// # Errors
/// See [`BatchError`]; among them a share that no limit can express.
pub fn advise(
    subject: &Subject<'_>,
    sweep: &Sweep,
    target: Target,
    threads: usize,
    control: &Control,
) -> Result<Advice, BatchError> {
    let curves = sweep.curves();
    let limits = curves.concat();
    let seeds = u64::from(sweep.seeds.max(1));
    let mut runs = Vec::new();
    for &count in &sweep.threads {
        for limit in core::iter::once(None).chain(limits.iter().copied().map(Some)) {
            runs.extend(settings(subject, limit, count, seeds));
        }
    }
    let run = |runs: &[Setting]| {
        run_all(runs.len(), threads, control, &|index| {
            planned(subject, runs[index])
        })
    };
    let outcomes = run(&runs)?;
    let per_limit = seeds as usize * subject.runs_per_seed();
    let per_threads = (limits.len() + 1) * per_limit;
    let mut advice = Advice {
        free_p50_ns: 0,
        free_p99_ns: 0,
        free_usage_permille: 0,
        free_done: 0,
        predictions: Vec::new(),
        recommended: None,
        cpus: outcomes.first().map_or(0, |outcome| outcome.cpus),
    };
    for (block, &count) in outcomes.chunks(per_threads).zip(&sweep.threads) {
        let (free, limited) = block.split_at(per_limit);
        if advice.predictions.is_empty() {
            (
                advice.free_p50_ns,
                advice.free_p99_ns,
                advice.free_usage_permille,
            ) = free_figures(subject, &free[per_limit - seeds as usize..]);
            let done = free.iter().map(|free| free.meters[subject.meter].done);
            advice.free_done = done.max().unwrap_or(0);
        }
        let judged = |tried: &[Outcome], limit| judge(subject, free, tried, limit, count, target);
        let mut predictions = Vec::new();
        for (tried, limit) in limited.chunks(per_limit).zip(&limits) {
            predictions.push(judged(tried, *limit));
        }
        if sweep.refine {
            let one = |limit: Limit| {
                let runs: Vec<Setting> = settings(subject, Some(limit), count, seeds).collect();
                Ok(judged(&run(&runs)?, limit))
            };
            predictions = refine(predictions, curves.iter().map(Vec::len), &one)?;
        }
        advice.predictions.extend(predictions);
    }
    advice.recommended = recommend(&advice);
    Ok(advice)
}

/// Median, 99th percentile and usage in thousandths of a CPU without a limit: medians over the seeds.
fn free_figures(subject: &Subject<'_>, free: &[Outcome]) -> (u64, u64, u64) {
    let times = |outcome: &Outcome| outcome.meters[subject.meter].times;
    (
        median(free, &|outcome| times(outcome).p50_ns),
        median(free, &|outcome| times(outcome).p99_ns),
        median(free, &|outcome| {
            let used = outcome.groups[subject.group + 1].usage_ns;
            used.saturating_mul(1000) / outcome.elapsed_ns.max(1)
        }),
    )
}

/// The times of a meter in all of these runs.
fn all_together(runs: &[Outcome], meter: usize) -> Percentiles {
    let mut times = Times::new();
    for run in runs {
        times.add(&run.meters[meter].parts);
    }
    Percentiles::of(&times)
}

/// The median of a figure over the seeds.
fn median(outcomes: &[Outcome], figure: &dyn Fn(&Outcome) -> u64) -> u64 {
    let mut figures: Vec<u64> = outcomes.iter().map(figure).collect();
    figures.sort_unstable();
    figures.get(figures.len() / 2).copied().unwrap_or(0)
}

fn planned(subject: &Subject<'_>, setting: Setting) -> Plan {
    let itself = subject.itself.filter(|_| setting.is_itself);
    let mut plan = itself.unwrap_or(subject.plan)(setting.threads, setting.seed);
    plan.groups[subject.group].limit = setting.limit;
    let shift = phase(setting.seed).0;
    for source in &mut plan.sources {
        source.begin.0 += shift;
    }
    let sources = plan.sources.iter_mut().map(|source| &mut source.times);
    let above = plan.real_time.iter_mut().map(|load| &mut load.times);
    for time in sources.chain(above).flatten() {
        time.0 += shift;
    }
    plan
}

/// How much later than recorded everything is with that seed: nobody knows where in a period the workload begins.
pub fn phase(seed: u64) -> Nanos {
    Nanos(Random::new(seed, 0).below(Limit::PERIOD_DEFAULT.0))
}

/// What a limit does, by all of its runs and all of those without one, in the order of [`settings`].
fn judge(
    subject: &Subject<'_>,
    free: &[Outcome],
    tried: &[Outcome],
    limit: Limit,
    threads: u32,
    target: Target,
) -> Prediction {
    let Some(itself) = subject.itself() else {
        return compare(subject, free, tried, limit, threads, target);
    };
    let (free, own_free) = free.split_at(free.len() / 2);
    let (tried, own) = tried.split_at(tried.len() / 2);
    let mut prediction = compare(subject, free, tried, limit, threads, target);
    prediction.centre(&compare(&itself, own_free, own, limit, threads, target));
    prediction
}

fn compare(
    subject: &Subject<'_>,
    free: &[Outcome],
    tried: &[Outcome],
    limit: Limit,
    threads: u32,
    target: Target,
) -> Prediction {
    let draws = Draws {
        blocks: subject.blocks,
    };
    let each = |figure: &dyn Fn(&Outcome, &Outcome) -> f64| {
        let pairs = free.iter().zip(tried);
        pairs
            .map(|(free, tried)| figure(free, tried))
            .collect::<Vec<f64>>()
    };
    let meter = |outcome: &Outcome| outcome.meters[subject.meter].times;
    let groups = || tried.iter().map(|tried| &tried.groups[subject.group + 1]);
    // Periods in which the group was not even active cannot be throttled, but they pass for whoever watches.
    let parts = groups().map(|group| group.nr_throttled as f64 / group.nr_periods.max(1) as f64);
    let periods: u64 = groups().map(|group| group.nr_periods).sum();
    let throttled_ratio = draws.of_parts(parts.collect(), periods / tried.len().max(1) as u64);
    let [free_together, together] = [free, tried].map(|runs| all_together(runs, subject.meter));
    let added = |figure: fn(&Percentiles) -> u64| {
        let values =
            each(&|free, tried| figure(&meter(tried)) as f64 - figure(&meter(free)) as f64);
        let all = figure(&together) as f64 - figure(&free_together) as f64;
        (draws.interval(values.clone(), Some(all)), values)
    };
    let (added_p50_ns, _) = added(|times| times.p50_ns);
    let (added_p99_ns, added_p99) = added(|times| times.p99_ns);
    let done = |outcome: &Outcome| match subject.work {
        Work::Time => outcome.groups[subject.group + 1].usage_ns,
        Work::Laps => outcome.meters[subject.meter].done,
    };
    let done_ratio = each(&|free, tried| done(tried) as f64 / done(free).max(1) as f64);
    let done_ratio = draws.interval(done_ratio, None);
    let elapsed = free
        .first()
        .map_or(0.0, |outcome| outcome.elapsed_ns as f64);
    let times = |figure: fn(&Percentiles) -> u64| {
        let values = tried.iter().map(|tried| figure(&meter(tried)) as f64);
        let interval = draws.of_times(values.collect(), figure(&together) as f64);
        interval.within(elapsed)
    };
    let p50_ns = times(|times| times.p50_ns);
    let p99_ns = times(|times| times.p99_ns);
    // What is not done waits at the end: a percentile of that size is a matter of how long was looked.
    let wanted: u64 = free
        .iter()
        .map(|free| free.groups[subject.group + 1].usage_ns)
        .sum();
    let passed: u64 = free.iter().map(|free| free.elapsed_ns).sum();
    // Less is wanted than the limit gives: what waits at the end is the last burst of arrivals, and would be done.
    let is_too_much =
        wanted as f64 * limit.period.0 as f64 > LOADED * passed as f64 * limit.quota.0 as f64;
    let is_saturated = is_too_much
        && done_ratio.mid < DONE_IN_TIME
        && p99_ns.mid > (1.0 - done_ratio.mid) * elapsed / 2.0;
    let is_harmless = throttled_ratio.high * 1000.0 <= target.throttled_permille as f64
        && draws.mean_at_most(&added_p99) <= target.added_p99.0 as f64
        && done_ratio.low * 1000.0 >= target.done_permille as f64
        && u128::from(limit.quota.0) * 1000
            > u128::from(limit.period.0) * u128::from(target.used_permille);
    Prediction {
        quota_ns: limit.quota.0,
        period_ns: limit.period.0,
        burst_ns: limit.burst.0,
        threads,
        throttled_ratio,
        p50_ns,
        p99_ns,
        added_p50_ns,
        added_p99_ns,
        done_ratio,
        is_saturated,
        is_harmless,
    }
}

/// More than the machine has is no limit, and nothing to recommend.
fn recommend(advice: &Advice) -> Option<usize> {
    let share = |prediction: &Prediction| {
        u128::from(prediction.quota_ns) * 1_000_000 / u128::from(prediction.period_ns.max(1))
    };
    let harmless = advice
        .predictions
        .iter()
        .enumerate()
        .filter(|(_, row)| row.is_harmless && !advice.gives_the_machine(row));
    let least = harmless.clone().map(|(_, row)| share(row)).min()?;
    let near = |row: &Prediction| share(row) * 1_000_000 <= least * (1_000_000 + SAME_SHARE);
    let combination = |row: &Prediction| (row.threads, row.period_ns, row.burst_ns > 0);
    let (_, first) = harmless.clone().find(|(_, row)| near(row))?;
    // Of that period and burst the smallest.
    harmless
        .filter(|(_, row)| combination(row) == combination(first))
        .min_by_key(|(_, row)| share(row))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests;
