//! `quotient advise`: what would this CPU limit do to this workload?

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, value_parser};
use quotient_core::{BandwidthRules, Nanos};
use quotient_sim::advise::{Advice, Prediction, Subject, Sweep, Target, advise};
use quotient_sim::batch::{BatchError, Control};
use quotient_sim::replay::{Loop, Recording};
use quotient_sim::scenario::{Folder, Scenario, time};
use quotient_sim::{Machine, Plan};
use quotient_trace::chart;
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
        print(&report, target);
    }
    if let Some(path) = &arguments.report {
        let page = page(&report);
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

fn print(report: &Report<'_>, target: Target) {
    let advice = report.advice;
    println!("{}", report.input);
    for note in report.notes {
        println!("  {note}");
    }
    println!(
        "without a limit: {:.2} CPUs, p50 {:.2} ms, p99 {:.2} ms\n",
        advice.free_usage_permille as f64 / 1000.0,
        advice.free_p50_ns as f64 / 1e6,
        advice.free_p99_ns as f64 / 1e6
    );
    println!(
        "{:>7} {:>7} {:>8} {:>8} {:>18} {:>10} {:>20} {:>7}",
        "cpus",
        "threads",
        "period",
        "burst",
        "throttled %",
        "+p50 ms",
        "+p99 ms (low..high)",
        "done %"
    );
    for (index, row) in advice.predictions.iter().enumerate() {
        let mark = match (advice.recommended == Some(index), row.is_harmless) {
            (true, _) => " <- recommended",
            (false, true) => " harmless",
            _ => "",
        };
        println!("{}{mark}", line(row));
    }
    println!(
        "\nharmless: at most {} % throttled periods and {:.1} ms added at p99, with every seed",
        target.throttled_permille as f64 / 10.0,
        target.added_p99.0 as f64 / 1e6
    );
    match advice.recommended.map(|index| &advice.predictions[index]) {
        Some(row) => println!(
            "recommended: cpu.max \"{} {}\"{}",
            row.quota_ns / 1000,
            row.period_ns / 1000,
            if row.burst_ns > 0 {
                format!(", cpu.max.burst {}", row.burst_ns / 1000)
            } else {
                String::new()
            }
        ),
        None => println!("recommended: none of these; try more CPUs (--cpus)"),
    }
}

fn line(row: &Prediction) -> String {
    let threads = match row.threads {
        0 => "-".to_owned(),
        threads => threads.to_string(),
    };
    let percent = |part: f64| 100.0 * part;
    let throttled = &row.throttled_ratio;
    format!(
        "{:>7.2} {threads:>7} {:>5} ms {:>5} ms {:>18} {:>10.2} {:>20} {:>7.1}",
        row.quota_ns as f64 / row.period_ns as f64,
        row.period_ns / 1_000_000,
        row.burst_ns / 1_000_000,
        format!(
            "{:.1} ({:.1}..{:.1})",
            percent(throttled.mid),
            percent(throttled.low),
            percent(throttled.high)
        ),
        row.added_p50_ns.mid / 1e6,
        format!(
            "{:.2} ({:.2}..{:.2})",
            row.added_p99_ns.mid / 1e6,
            row.added_p99_ns.low / 1e6,
            row.added_p99_ns.high / 1e6
        ),
        percent(row.done_ratio.mid)
    )
}

/// Colours that stay apart for most eyes (Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// One page with two pictures: throttled periods and what is added at p99, over CPUs, a line for each combination of
/// period, burst and threads.
fn page(report: &Report<'_>) -> String {
    let title = format!("What a limit would do: {}", report.input);
    let mut page = chart::page_start(&title, "", &title);
    for note in report.notes {
        page += &format!("<p>{}</p>\n", chart::escape(note));
    }
    let throttled = |row: &Prediction| {
        let ratio = row.throttled_ratio;
        [ratio.low * 100.0, ratio.mid * 100.0, ratio.high * 100.0]
    };
    page += &picture(report.advice, "throttled periods, %", &throttled);
    let added = |row: &Prediction| {
        let added = row.added_p99_ns;
        [added.low / 1e6, added.mid / 1e6, added.high / 1e6].map(|value| value.max(0.0))
    };
    page += &picture(report.advice, "added at p99, ms", &added);
    page += "<pre>";
    for row in &report.advice.predictions {
        page += &chart::escape(&line(row));
        page += "\n";
    }
    page += "</pre>";
    page + chart::PAGE_END
}

fn picture(advice: &Advice, label: &str, figures: &dyn Fn(&Prediction) -> [f64; 3]) -> String {
    const WIDTH: f64 = 760.0;
    const HEIGHT: f64 = 280.0;
    const MARGIN: f64 = 50.0;
    let share = |row: &Prediction| row.quota_ns as f64 / row.period_ns as f64;
    let right = advice.predictions.iter().map(share).fold(0.1, f64::max);
    let all = advice.predictions.iter().map(|row| figures(row)[2]);
    let top = all.fold(1.0, f64::max);
    let x = |value: f64| MARGIN + value / right * (WIDTH - 2.0 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN - value / top * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<h2>{label}</h2>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" role=\"img\" aria-label=\"{label}\">\n"
    );
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        svg += &format!(
            "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"4\" y=\"{y:.1}\" font-size=\"11\">{value:.1}</text>\n",
            WIDTH - MARGIN,
            y = y(value)
        );
    }
    let key = |row: &Prediction| (row.threads, row.period_ns, row.burst_ns > 0);
    let curves = advice
        .predictions
        .chunk_by(|one, other| key(one) == key(other));
    for (number, curve) in curves.enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> = curve
            .iter()
            .map(|row| format!("{:.1},{:.1}", x(share(row)), y(figures(row)[1])))
            .collect();
        svg += &format!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n",
            points.join(" ")
        );
        for row in curve {
            let [low, _, high] = figures(row);
            svg += &format!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>\n",
                y(low),
                y(high),
                x = x(share(row))
            );
        }
        let row = &curve[0];
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" font-size=\"12\">period {} ms{}{}</text>\n",
            WIDTH - 220.0,
            20.0 + 15.0 * number as f64,
            row.period_ns / 1_000_000,
            if row.burst_ns > 0 { ", burst" } else { "" },
            if row.threads > 0 {
                format!(", {} threads", row.threads)
            } else {
                String::new()
            }
        );
    }
    for row in &advice.predictions {
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\">{:.2}</text>\n",
            x(share(row)),
            HEIGHT - MARGIN + 16.0,
            share(row)
        );
    }
    svg + &format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12\">CPUs</text></svg>\n",
        WIDTH / 2.0,
        HEIGHT - 8.0
    )
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
