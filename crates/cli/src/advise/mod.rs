//! `quotient advise`: what would this CPU limit do to this workload?

mod base;
mod doubts;
mod fidelity;
mod load;
mod of_scenario;
mod of_trace;
mod parts;
mod show;
mod under;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use quotient_core::{BandwidthRules, Limit, Nanos};
use quotient_sim::Machine;
use quotient_sim::advise::{Advice, Subject, Sweep, Target, advise};
use quotient_sim::batch::{BatchError, Control};
use quotient_sim::replay::{Loop, Placement, RecordedLimit, Requests};
use quotient_sim::scenario::time;
use serde::Serialize;

use crate::failure::{Failure, print};
use crate::json::print_versioned;
use crate::output::Output;
use crate::sim::machine;
use crate::sim::progress::watched;
use crate::sim::set_kernel;
use base::{Base, Played};
use doubts::Doubts;
use fidelity::Recorded;
use load::{Draw, Load};
use quotient_sim::Kernel;

/// What `quotient advise` takes.
#[derive(Debug, Clone, Args)]
pub struct AdviseArguments {
    /// A recorded trace (ftrace or perf text, Quotient's log), or a scenario (.toml)
    input: PathBuf,
    /// The group to limit, with those below it [default: the first group of a scenario, everybody in a trace]
    #[arg(long, visible_alias = "cgroup", value_name = "PATH")]
    group: Option<String>,
    /// Of a trace: limit only tasks of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// Of a trace: limit only this thread, or this process with all its threads, by its number in the trace; may be repeated
    #[arg(long, value_name = "NUMBER")]
    pid: Vec<u32>,
    /// Of a trace: leave out whoever is not limited [default: they run beside it]
    #[arg(long)]
    alone: bool,
    /// How a trace is played [default: guessed, and the evidence printed]
    #[arg(long, value_enum)]
    r#loop: Option<How>,
    /// Of a trace: what a request is [default: chains where the trace says who woke whom, else bursts]
    #[arg(long, value_enum)]
    requests: Option<Unit>,
    /// Of a trace: a request begins with every burst of the threads of this name, and with nobody else's; may be repeated
    #[arg(long, value_name = "NAME")]
    request_from: Vec<String>,
    /// Of a trace: requests are what the program marked by this name (trace_marker: B|, E|, S|, F|); may be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "request_from")]
    marker: Vec<String>,
    /// Of a trace: the limit that it was recorded under, as cgroup's cpu.max and cpu.max.burst in microseconds, or `none`; one of at least all CPUs never bound [default: as the trace notes, else looked for]
    #[arg(long, value_name = "QUOTA/PERIOD[/BURST]", value_parser = recorded_limit)]
    recorded_limit: Option<Given>,
    /// Of a scenario: the meter by which harm is measured [default: the first one]
    #[arg(long, value_name = "NAME")]
    meter: Option<String>,
    /// The machine [default: the scenario's, or as many CPUs as the trace shows]
    #[arg(long, value_name = "SHAPE", value_parser = machine)]
    machine: Option<Machine>,
    /// CPUs to try, such as 0.5,1,2 [default: six around the mean usage]
    #[arg(long, value_delimiter = ',', value_name = "CPUS", value_parser = cpus)]
    cpus: Vec<u64>,
    /// Periods to try (1ms..=1s)
    #[arg(long, value_delimiter = ',', value_name = "TIME", default_value = "100ms,20ms", value_parser = period)]
    period: Vec<Nanos>,
    /// Bursts to try, per cent of the quota (0..=100)
    #[arg(long, value_delimiter = ',', value_name = "PERCENT", default_value = "0,100", value_parser = value_parser!(u64).range(0..=100))]
    burst: Vec<u64>,
    /// Numbers of threads to try (1..=4096) [default: as recorded]
    #[arg(long, value_delimiter = ',', value_name = "COUNT", value_parser = value_parser!(u32).range(1..=4096))]
    threads: Vec<u32>,
    /// How often each setting is tried, each time with another phase and seed, and of a trace with its blocks drawn anew (1..=100)
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=100))]
    seeds: u32,
    /// Throttled periods that are accepted, per cent (0..=100)
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = value_parser!(u64).range(0..=100))]
    throttled: u64,
    /// Work that must still be done, per cent of what is done without a limit (0..=100)
    #[arg(long, value_name = "PERCENT", default_value_t = 95, value_parser = value_parser!(u64).range(0..=100))]
    done: u64,
    /// What a limit may add to the 99th percentile [default: a tenth of it, at least 1 ms]
    #[arg(long, value_name = "TIME", value_parser = time)]
    added_p99: Option<Nanos>,
    /// Whose limit it will be, with all else after Quotient's own rules [default: kernel]
    #[arg(long, value_enum)]
    rules: Option<Rules>,
    /// Of a trace: lines that make no sense and are left out before it is called unreadable
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    skip_bad: u64,
    /// Everything after a release of Linux, not only the limit (ours, 6.6, 6.12, 6.18) [default: of a kernel's trace the nearest]
    #[arg(long, value_name = "RELEASE", value_parser = crate::sim::kernel, conflicts_with = "rules")]
    kernel: Option<Kernel>,
    /// Ticks a second of the machine (24..=1200, as kernels can be built; most have 100 to 1000) [default: 250, or what the scenario says]
    #[arg(long, value_parser = value_parser!(u32).range(24..=1_200))]
    hz: Option<u32>,
    /// Writes a page with the curves
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Runs computed at the same time (1..=1024) [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl AdviseArguments {
    fn selects_in_a_trace(&self) -> bool {
        self.alone
            || self.r#loop.is_some()
            || self.requests.is_some()
            || self.recorded_limit.is_some()
            || [&self.comm, &self.request_from, &self.marker]
                .iter()
                .any(|names| !names.is_empty())
            || !self.pid.is_empty()
    }

    /// What a request is, if that was said.
    fn unit(&self) -> Option<Unit> {
        self.requests
            .or((!self.request_from.is_empty()).then_some(Unit::Chains))
            .or((!self.marker.is_empty()).then_some(Unit::Marks))
    }
}

/// What a latency is that of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Unit {
    /// A chain of wake-ups, from who was woken from outside to the last who was woken in turn
    Chains,
    /// What the program marked in its trace
    Marks,
    /// A thread's burst, from its wake-up to its sleep: no request at all
    Bursts,
}

/// The limit that a trace was recorded under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    None,
    Limit(Limit),
}

/// Reads `60000/100000`, `60000/100000/5000`, or `none`, which the kernel calls `max` in place of a quota.
fn recorded_limit(text: &str) -> Result<Given, String> {
    if ["none", "max"].contains(&text) {
        return Ok(Given::None);
    }
    let expected = || {
        format!(
            "{text:?} is neither QUOTA/PERIOD[/BURST] in microseconds (quota 1000..=4096000000, period 1000..=1000000, burst 0..=quota) nor `none`"
        )
    };
    let (quota, period) = text.split_once('/').ok_or_else(expected)?;
    let is_none = quota.trim() == "max";
    let quota = if is_none { "1000000" } else { quota };
    let (period, burst) = period.split_once('/').unwrap_or((period, "0"));
    let micros = |text: &str| text.trim().parse::<u64>().map_err(|_| expected());
    let (quota, period, burst) = (micros(quota)?, micros(period)?, micros(burst)?);
    for (name, value, range) in [
        ("quota", quota, 1_000..=4_096_000_000),
        ("period", period, 1_000..=1_000_000),
    ] {
        if !range.contains(&value) {
            let (least, most) = range.into_inner();
            return Err(format!(
                "{text:?}: the {name}, {value} us, is not in {least}..={most}"
            ));
        }
    }
    if is_none {
        return Ok(Given::None);
    }
    if burst > quota {
        return Err(format!(
            "{text:?}: the burst, {burst} us, is not in 0..={quota}, the quota"
        ));
    }
    let limit = Limit::new(Nanos::from_micros(quota), Nanos::from_micros(period));
    Ok(Given::Limit(limit.with_burst(Nanos::from_micros(burst))))
}

/// How a trace is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum How {
    /// Bursts come when they came, whether or not the last one is done (arrivals from outside)
    Open,
    /// Each thread sleeps after a burst as long as it did (clients that wait for answers)
    Closed,
    /// All threads share all bursts, which come when they came (a pool at a queue)
    Pooled,
}

impl How {
    fn as_loop(self) -> Loop {
        match self {
            How::Closed => Loop::Closed,
            How::Open | How::Pooled => Loop::Open,
        }
    }

    fn name(self) -> &'static str {
        match self {
            How::Open => "open",
            How::Closed => "closed",
            How::Pooled => "pooled",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rules {
    /// Linux's CFS bandwidth control (cgroup v2, since 5.4)
    Kernel,
    /// Quotient's own
    Quotient,
}

/// Reads a number of CPUs as thousandths.
fn cpus(text: &str) -> Result<u64, String> {
    let range = "expected CPUs in 0.01..=4096";
    let value: f64 = text.parse().map_err(|_| range.to_owned())?;
    if (0.01..=4096.0).contains(&value) {
        Ok((value * 1000.0).round() as u64)
    } else {
        Err(range.to_owned())
    }
}

/// Reads a period.
fn period(text: &str) -> Result<Nanos, String> {
    let period = time(text)?;
    if (Limit::PERIOD_MIN..=Limit::PERIOD_MAX).contains(&period) {
        Ok(period)
    } else {
        Err("expected a time in 1ms..=1s".to_owned())
    }
}

#[derive(Serialize)]
struct Report<'a> {
    input: String,
    /// Whose rules are played, if not those of a scenario or our own.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<&'static str>,
    notes: &'a [String],
    /// What speaks against the figures; with any that is `decisive`, nothing is recommended.
    doubts: &'a Doubts,
    #[serde(rename = "loop", skip_serializing_if = "Option::is_none")]
    played: &'a Option<Played>,
    /// How well the kernel of a trace saw idle CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<Placement>,
    /// What p50 and p99 are those of.
    latency_of: &'static str,
    /// The requests of a trace, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a Requests>,
    /// The limit that the trace was recorded under.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_limit: Option<RecordedLimit>,
    /// What the trace itself says of usage and times.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<Recorded>,
    /// The same, played as it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    played_as_recorded: Option<fidelity::Played>,
    /// Why that is recommended, or nothing.
    verdict: Verdict,
    #[serde(flatten)]
    advice: &'a Advice,
}

/// What comes of a sweep, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// A limit is recommended.
    Limit,
    /// A doubt decides that nothing can be.
    Doubted,
    /// All that was tried gives at least all CPUs: none of it would ever bind.
    NeverBinds,
    /// All that was tried gives at least all CPUs, and some of it binds within single periods.
    BindsWithinPeriods,
    /// What gives less than the machine does harm, and what gives it does none.
    HarmUpToTheMachine,
    /// All that was tried does harm.
    Harm,
}

impl Verdict {
    fn of(advice: &Advice, doubts: &Doubts) -> Verdict {
        let mut rows = advice.predictions.iter();
        if advice.recommended.is_some() {
            Verdict::Limit
        } else if doubts.is_decisive() {
            Verdict::Doubted
        } else if rows.clone().all(|row| advice.never_binds(row)) {
            Verdict::NeverBinds
        } else if rows.clone().all(|row| advice.gives_the_machine(row)) {
            Verdict::BindsWithinPeriods
        } else if rows.any(|row| row.is_harmless && advice.gives_the_machine(row)) {
            Verdict::HarmUpToTheMachine
        } else {
            Verdict::Harm
        }
    }
}

/// Sweeps and recommends.
///
/// # Errors
/// An input that cannot be used, a file that cannot be written, or Ctrl-C.
pub fn run(arguments: &AdviseArguments) -> Result<(), Failure> {
    let mut base = Base::of(arguments)?;
    // What cannot be written is said before minutes are spent on it.
    let page = arguments
        .report
        .as_deref()
        .map(Output::create)
        .transpose()?;
    let jobs = |threads| arguments.jobs.map_or(threads, usize::from);
    if arguments.rules != Some(Rules::Quotient) {
        base.plan.settings.config.bandwidth = BandwidthRules::KERNEL;
    }
    let kernel = base.kernel(arguments);
    set_kernel(&mut base.plan, kernel, arguments.hz);
    if let Some(kernel) = kernel {
        base.place_as_recorded(kernel);
    }
    base.plan.groups[base.group].limit = None;
    let as_recorded = Subject {
        plan: &|threads, seed| base.planned(threads, seed, Draw::AsRecorded),
        group: base.group,
        meter: base.meter,
        work: base.work,
        blocks: 0,
        itself: None,
    };
    let beside_recorder = Subject {
        plan: &|threads, seed| base.planned(threads, seed, Draw::BesideRecorder),
        ..as_recorded
    };
    let subject = Subject {
        plan: &|threads, seed| base.planned(threads, seed, Draw::Anew),
        blocks: base.blocks(),
        itself: (base.blocks() > 0).then_some(as_recorded.plan),
        ..as_recorded
    };
    let mut of_company = Doubts::default();
    let free = watched(2, |control, _| {
        free_run(&as_recorded, &sweep(arguments, 1).threads, control)
    })?;
    let sweep = sweep(arguments, free.0);
    if let Some(company) = base.load.as_ref().and_then(Load::company) {
        let subject = Subject {
            plan: &|threads, seed| base.planned(threads, seed, Draw::Alone),
            ..as_recorded
        };
        let alone = watched(2, |control, _| free_run(&subject, &sweep.threads, control))?;
        doubts::about_company(company, (free.1, alone.1), &mut of_company);
    }
    let recorded = base.recorded(arguments);
    let again = match &recorded {
        Some(recorded) => {
            let runs = 2 * fidelity::SEEDS as usize;
            watched(runs, |control, threads| {
                recorded.play(&beside_recorder, jobs(threads), control)
            })?
        }
        None => None,
    };
    let tenth = Nanos((free.1 / 10).max(1_000_000));
    let target = Target {
        throttled_permille: arguments.throttled * 10,
        added_p99: arguments.added_p99.unwrap_or(tenth),
        done_permille: arguments.done * 10,
        used_permille: base.wanted_permille(),
    };
    let finer = if sweep.refine { sweep.finer() } else { 0 };
    let runs = (sweep.settings() + sweep.threads.len() + finer) * sweep.seeds as usize;
    let runs = runs * subject.runs_per_seed();
    let mut advice = watched(runs, |control, threads| {
        advise(&subject, &sweep, target, jobs(threads), control)
    })?;
    if let (Some(recorded), Some(again)) = (&recorded, &again) {
        recorded.judge(again, &mut base.notes, &mut base.doubts);
    }
    if let Some(limit) = base.recorded_limit() {
        let used = base.used_permille();
        // In as many seeds whatever `--seeds` says, where that can be compared.
        let free = match &again {
            Some(again) => again.free_usage_permille,
            None => advice.free_usage_permille,
        };
        under::about_use(&limit, used, free, &mut base.doubts);
    }
    base.notes.extend(raised(&sweep));
    doubts::about_seeds(sweep.seeds, &mut base.doubts);
    doubts::about_nothing_done(advice.free_done, &mut base.doubts);
    base.doubts.0.append(&mut of_company.0);
    if base.doubts.is_decisive() {
        advice.recommended = None;
    }
    let report = Report {
        input: arguments.input.display().to_string(),
        kernel: kernel.map(Kernel::name),
        notes: &base.notes,
        doubts: &base.doubts,
        played: &base.played,
        placement: base.placement,
        latency_of: base.latency_of(&sweep.threads),
        requests: base.requests(),
        recorded_limit: base.recorded_limit(),
        recorded,
        played_as_recorded: again,
        verdict: Verdict::of(&advice, &base.doubts),
        advice: &advice,
    };
    if arguments.json {
        print_versioned("quotient-advise/1", &report)?;
    } else {
        print(&show::table(&report, target))?;
    }
    if let (Some(mut output), Some(path)) = (page, &arguments.report) {
        output
            .write_all(show::page(&report, target).as_bytes())
            .map_err(Failure::writing(&path.display().to_string()))?;
        output.keep()?;
        eprintln!("written: {}", path.display());
    }
    Ok(())
}

/// A limit that never binds: a share in thousandths of a CPU, a period, and a burst in per cent of the quota.
const WIDE: (u64, Nanos, u64) = (4_096_000, Nanos::from_millis(100), 0);

/// Usage in thousandths of a CPU and p99 in ns without any limit.
fn free_run(
    subject: &Subject<'_>,
    threads: &[u32],
    control: &Control,
) -> Result<(u64, u64), BatchError> {
    // It gives the free run beside it.
    let advice = under(subject, WIDE, threads[0], (1, 1), control)?;
    Ok((advice.free_usage_permille, advice.free_p99_ns))
}

/// One limit, a share in thousandths of a CPU, a period and a burst in per cent of the quota, with so many threads of the load: what comes of it in so many seeds, on so many
/// threads of ours.
fn under(
    subject: &Subject<'_>,
    (permille, period, burst): (u64, Nanos, u64),
    load_threads: u32,
    (seeds, threads): (u32, usize),
    control: &Control,
) -> Result<Advice, BatchError> {
    let sweep = Sweep {
        cpus_permille: vec![permille],
        periods: vec![period],
        bursts_percent: vec![burst],
        threads: vec![load_threads],
        seeds,
        refine: false,
    };
    let target = Target {
        throttled_permille: 0,
        added_p99: Nanos::ZERO,
        done_permille: 0,
        used_permille: 0,
    };
    advise(subject, &sweep, target, threads, control)
}

/// What is tried in place of shares that no limit can express.
fn raised(sweep: &Sweep) -> Option<String> {
    let cpus = |permille: u64| permille as f64 / 1000.0;
    let raised = sweep.raised().into_iter().map(|(asked, period, tried)| {
        let period = period.0 as f64 / 1e6;
        let (asked, tried) = (cpus(asked), cpus(tried));
        format!("{asked:.2} CPUs in periods of {period} ms are tried as {tried:.2}")
    });
    let raised: Vec<String> = raised.collect();
    (!raised.is_empty()).then(|| {
        format!(
            "no quota is less than {} ms: {}; longer periods can have less",
            Limit::QUOTA_MIN.0 / 1_000_000,
            raised.join(", ")
        )
    })
}

fn sweep(arguments: &AdviseArguments, usage_permille: u64) -> Sweep {
    let default = Sweep::around(usage_permille);
    Sweep {
        cpus_permille: if arguments.cpus.is_empty() {
            default.cpus_permille
        } else {
            arguments.cpus.clone()
        },
        periods: arguments.period.clone(),
        bursts_percent: arguments.burst.clone(),
        threads: if arguments.threads.is_empty() {
            vec![0]
        } else {
            arguments.threads.clone()
        },
        seeds: arguments.seeds,
        refine: arguments.cpus.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_limits_are_read_as_the_kernel_writes_them_or_faults_named() {
        for text in ["none", "max", "max/100000", "max/100000/0"] {
            assert_eq!(recorded_limit(text), Ok(Given::None), "{text}");
        }
        let limit = Limit::new(Nanos::from_millis(60), Nanos::from_millis(100));
        assert_eq!(recorded_limit("60000/100000"), Ok(Given::Limit(limit)));
        for (text, words) in [
            ("maximal/100000", "nor `none`"),
            ("max/x", "nor `none`"),
            ("10", "period 1000..=1000000"),
            ("max/100", "the period, 100 us, is not in 1000..=1000000"),
            ("60000/100", "the period, 100 us, is not in 1000..=1000000"),
            ("60/100000", "the quota, 60 us, is not in 1000..=4096000000"),
            (
                "60000/100000/60001",
                "the burst, 60001 us, is not in 0..=60000",
            ),
        ] {
            let said = recorded_limit(text).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn cpus_are_thousandths() {
        assert_eq!(cpus("0.5"), Ok(500));
        for text in ["", "x", "0", "-1", "NaN", "1e9"] {
            assert!(cpus(text).is_err(), "{text}");
        }
    }
}
