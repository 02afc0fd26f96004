//! `quotient advise`: what would this CPU limit do to this workload?

mod show;

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, value_parser};
use quotient_core::{BandwidthRules, Nanos};
use quotient_sim::advise::{Advice, Subject, Sweep, Target, advise};
use quotient_sim::batch::{BatchError, Control};
use quotient_sim::replay::{Loop, Recording};
use quotient_sim::scenario::{Folder, Scenario, time};
use quotient_sim::{Machine, Plan};
use serde::Serialize;

use crate::failure::Failure;
use crate::sim::machine;
use crate::sim::progress::watched;

/// What `quotient advise` takes.
#[derive(Debug, Clone, Args)]
pub struct AdviseArguments {
    /// A recorded trace (ftrace or perf text, Quotient's log), or a scenario (.toml)
    input: PathBuf,
    /// The group to limit; in a trace only its tasks are played [default: the first group of a scenario, all of a trace]
    #[arg(long, value_name = "PATH")]
    group: Option<String>,
    /// The meter by which harm is measured [default: the first one of the scenario]
    #[arg(long, value_name = "NAME")]
    meter: Option<String>,
    /// The machine [default: the scenario's, or as many CPUs as the trace shows]
    #[arg(long, value_name = "SHAPE", value_parser = machine)]
    machine: Option<Machine>,
    /// CPUs to try, such as 0.5,1,2 [default: six around the mean usage]
    #[arg(long, value_delimiter = ',', value_name = "CPUS", value_parser = cpus)]
    cpus: Vec<u64>,
    /// Periods to try
    #[arg(long, value_delimiter = ',', value_name = "TIME", default_value = "100ms,20ms", value_parser = time)]
    period: Vec<Nanos>,
    /// Bursts to try, per cent of the quota (0..=100)
    #[arg(long, value_delimiter = ',', value_name = "PERCENT", default_value = "0,100", value_parser = value_parser!(u64).range(0..=100))]
    burst: Vec<u64>,
    /// Numbers of threads to try (1..=4096) [default: as recorded]
    #[arg(long, value_delimiter = ',', value_name = "COUNT", value_parser = value_parser!(u32).range(1..=4096))]
    threads: Vec<u32>,
    /// How often each setting is tried, each time with another phase and seed (1..=100)
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    seeds: u32,
    /// Throttled periods that are accepted, per cent (0..=100)
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = value_parser!(u64).range(0..=100))]
    throttled: u64,
    /// What a limit may add to the 99th percentile [default: a tenth of it, at least 1 ms]
    #[arg(long, value_name = "TIME", value_parser = time)]
    added_p99: Option<Nanos>,
    /// Whose limit it will be
    #[arg(long, value_enum, default_value_t = Rules::Kernel)]
    rules: Rules,
    /// Writes a page with the curves
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
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

/// What is simulated, before any limit.
struct Base {
    plan: Plan,
    group: usize,
    meter: usize,
    /// Kept to play it with other numbers of threads.
    recording: Option<Recording>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    input: String,
    notes: &'a [String],
    #[serde(flatten)]
    advice: &'a Advice,
}

/// Sweeps and recommends.
///
/// # Errors
/// An input that cannot be used, a file that cannot be written, or Ctrl-C.
pub fn run(arguments: &AdviseArguments) -> Result<(), Failure> {
    let mut base = match is_scenario(&arguments.input) {
        true => from_scenario(arguments)?,
        false => from_trace(arguments)?,
    };
    if arguments.rules == Rules::Kernel {
        base.plan.settings.config.bandwidth = BandwidthRules::KERNEL;
    }
    base.plan.groups[base.group].limit = None;
    let subject = Subject {
        plan: &|threads, seed| planned(&base, threads, seed),
        group: base.group,
        meter: base.meter,
    };
    let free = watched(2, |control, _| {
        free_run(&subject, &sweep(arguments, 1).threads, control)
    })?;
    let sweep = sweep(arguments, free.0);
    let tenth = Nanos((free.1 / 10).max(1_000_000));
    let target = Target {
        throttled_permille: arguments.throttled * 10,
        added_p99: arguments.added_p99.unwrap_or(tenth),
    };
    let runs = (sweep.settings() + sweep.threads.len()) * sweep.seeds as usize;
    let advice = watched(runs, |control, threads| {
        advise(&subject, &sweep, target, threads, control)
    })?;
    let report = Report {
        input: arguments.input.display().to_string(),
        notes: &base.notes,
        advice: &advice,
    };
    if arguments.json {
        let text = serde_json::to_string(&report).map_err(Failure::during("cannot write JSON"))?;
        println!("{text}");
    } else {
        show::print(&report, target);
    }
    if let Some(path) = &arguments.report {
        let page = show::page(&report);
        std::fs::write(path, page).map_err(Failure::during(&path.display().to_string()))?;
        eprintln!("written: {}", path.display());
    }
    Ok(())
}

/// Usage in thousandths of a CPU and p99 in ns without any limit.
fn free_run(
    subject: &Subject<'_>,
    threads: &[u32],
    control: &Control,
) -> Result<(u64, u64), BatchError> {
    // One setting that never binds gives the free run beside it.
    let wide = Sweep {
        cpus_permille: vec![4_096_000],
        periods: vec![Nanos::from_millis(100)],
        bursts_percent: vec![0],
        threads: threads[..1].to_vec(),
        seeds: 1,
    };
    let target = Target {
        throttled_permille: 0,
        added_p99: Nanos::ZERO,
    };
    let advice = advise(subject, &wide, target, 1, control)?;
    Ok((advice.free_usage_permille, advice.free_p99_ns))
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
    }
}

fn is_scenario(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "toml")
}

fn from_scenario(arguments: &AdviseArguments) -> Result<Base, Failure> {
    let usage = |error: quotient_sim::scenario::ScenarioError| Failure::Usage(error.to_string());
    let scenario = Scenario::load(&arguments.input).map_err(usage)?;
    let mut files = Folder::of(&arguments.input);
    let plan = scenario
        .plan(0, arguments.machine.as_ref(), None, &mut files)
        .map_err(usage)?;
    let groups: Vec<&str> = plan
        .groups
        .iter()
        .map(|group| group.path.as_str())
        .collect();
    let meters: Vec<&str> = plan.meters.iter().map(String::as_str).collect();
    let group = find("group", &groups, arguments.group.as_deref())?;
    let meter = find("meter", &meters, arguments.meter.as_deref())?;
    let notes = vec![format!(
        "scenario {:?}, group {}, judged by {}",
        scenario.name(),
        groups[group],
        meters[meter]
    )];
    Ok(Base {
        group,
        meter,
        recording: None,
        notes,
        plan,
    })
}

fn find(what: &str, names: &[&str], wanted: Option<&str>) -> Result<usize, Failure> {
    let found = match wanted {
        None => (!names.is_empty()).then_some(0),
        Some(wanted) => names.iter().position(|name| *name == wanted),
    };
    found.ok_or_else(|| {
        let wanted = wanted.unwrap_or("any");
        Failure::Usage(format!(
            "there is no {what} {wanted:?}; there are: {}",
            names.join(", ")
        ))
    })
}

fn from_trace(arguments: &AdviseArguments) -> Result<Base, Failure> {
    let name = arguments.input.display().to_string();
    let input: Box<dyn Read> = if arguments.input == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        let opened = File::open(&arguments.input);
        Box::new(opened.map_err(|error| Failure::Usage(format!("{name}: {error}")))?)
    };
    let mut recording = Recording::read(&mut BufReader::with_capacity(1 << 18, input))
        .map_err(Failure::during(&name))?;
    let mut notes = vec![format!(
        "{} tasks, {} bursts, {:.1} s on {} CPUs; {:.2} CPUs used, {:.2} more wanted that a limit cut off",
        recording.tasks(),
        recording.bursts(),
        recording.length.0 as f64 / 1e9,
        recording.cpus,
        recording.recorded.0 as f64 / recording.length.0.max(1) as f64,
        recording.restored.0 as f64 / recording.length.0.max(1) as f64
    )];
    if let Some(path) = &arguments.group {
        let groups: Vec<String> = recording
            .groups()
            .keys()
            .map(|path| (*path).to_owned())
            .collect();
        if !recording.keep_group(path) {
            let groups = groups.join(", ");
            return Err(Failure::Usage(format!(
                "no task of group {path:?}; there are: {groups}"
            )));
        }
        notes.push(format!("only group {path}"));
    }
    let cpus = recording.cpus.clamp(1, quotient_core::Config::CPUS_MAX);
    let machine = arguments.machine.clone().unwrap_or(Machine::flat(cpus));
    let mut plan = Plan::new(machine);
    plan.duration = recording.length;
    // The first group of the plan, whatever it was called.
    plan.group("limited");
    Ok(Base {
        plan,
        group: 0,
        meter: 0,
        recording: Some(recording),
        notes,
    })
}

fn planned(base: &Base, threads: u32, seed: u64) -> Plan {
    let mut plan = base.plan.clone();
    plan.seed = seed;
    if let Some(recording) = &base.recording {
        let group = Some(base.group as u32);
        match threads {
            0 => recording.add_to(&mut plan, "trace", group, Loop::Open),
            threads => recording.add_pooled(&mut plan, "trace", group, threads),
        }
        return plan;
    }
    if threads > 0 {
        for load in &mut plan.workloads {
            let is_limited = |task: &quotient_sim::TaskPlan| task.group == Some(base.group as u32);
            if let Some(task) = load.tasks.first().copied().filter(is_limited)
                && load.tasks.iter().all(|other| other.program == task.program)
            {
                load.tasks = vec![task; threads as usize];
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_thousandths() {
        assert_eq!(cpus("0.5"), Ok(500));
        for text in ["", "x", "0", "-1", "NaN", "1e9"] {
            assert!(cpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_found_or_listed() {
        assert_eq!(find("group", &["a", "b"], Some("b")).ok(), Some(1));
        assert_eq!(find("group", &["a", "b"], None).ok(), Some(0));
        assert!(find("group", &[], None).is_err());
    }
}
