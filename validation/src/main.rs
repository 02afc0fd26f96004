//! `quotient-validation`: every scenario under the real kernel (twice, for its own spread) and under Quotient.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, value_parser};
use quotient_validation::cgroup::Controller;
use quotient_validation::outcome::{self, Comparison, Outcome};
use quotient_validation::real::judge::{self, Case};
use quotient_validation::real::{self, company};
use quotient_validation::runtime::{self, Settings};
use quotient_validation::scenario::{self, Scenario};
use quotient_validation::{Interrupt, Problem, advice, kernel, programs, simulator};
use serde_json::json;

/// Limited groups under the real kernel and under Quotient, side by side. Needs root and a cgroup cpu controller.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// One second a run: a look, not a figure
    #[arg(long)]
    quick: bool,
    /// Seconds a run (1..=600)
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// How long a poll of the runtime's spinners computes, microseconds (10..=100000)
    #[arg(long, value_name = "MICROS", default_value_t = 50, value_parser = value_parser!(u64).range(10..=100_000))]
    poll: u64,
    /// Only scenarios whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Instead: what the simulator says of limits, from a recording without one, against what they do. Needs no root
    #[arg(long)]
    advice: bool,
    /// Instead: `quotient advise` against the kernel. Records loads, predicts limits, sets them for real and judges. Needs tracefs
    #[arg(long, conflicts_with = "advice")]
    real: bool,
    /// Instead: schbench's wake-ups and rt-app, if it is installed, under the kernel and simulated; --runs and --only count
    #[arg(long, conflicts_with_all = ["advice", "real"])]
    programs: bool,
    /// With --real: the binary [default: the one beside this]
    #[arg(long, value_name = "FILE", requires = "real")]
    quotient: Option<PathBuf>,
    /// With --real and --programs: runs under each limit (1..=100); the kernel's own spread counts from 10
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u64).range(1..=100))]
    runs: u64,
    /// With --real: limits in per cent of what is used without one (50..=1000) [default: 110,150,200,300]
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', requires = "real", value_parser = value_parser!(u64).range(50..=1_000))]
    limits: Vec<u64>,
    /// With --real: the preset of the predictions
    #[arg(long, value_name = "RELEASE", default_value = "6.18")]
    preset: String,
    /// With --real: recordings without a limit only
    #[arg(long, requires = "real")]
    free_only: bool,
    /// With --real: the arrivals of the recording under the limits, too [default: others of the same kind]
    #[arg(long, requires = "real")]
    same_arrivals: bool,
    /// With --real: keep recordings and runs here; what is there already is not measured again, so a long measurement can be made in parts
    #[arg(long, value_name = "FOLDER", requires = "real")]
    keep: Option<PathBuf>,
    /// With --keep: only measure what is missing; the same command without this predicts and judges
    #[arg(long, requires = "keep")]
    measure_only: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let interrupt = Interrupt::default();
    let flag = interrupt.clone();
    if let Err(error) = ctrlc::set_handler(move || flag.raise()) {
        eprintln!("quotient-validation: cannot handle Ctrl-C: {error}");
        return ExitCode::FAILURE;
    }
    match run(&arguments, &interrupt) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Problem::Unavailable(reason)) => {
            if arguments.json {
                println!("{}", json!({ "skipped": reason, "rows": [] }));
            } else {
                println!("skipped: {reason}");
            }
            ExitCode::SUCCESS
        }
        Err(Problem::Interrupted) => {
            eprintln!("quotient-validation: interrupted; every group has been removed");
            ExitCode::from(130)
        }
        Err(problem) => {
            eprintln!("quotient-validation: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<(), Problem> {
    let seconds = if arguments.quick {
        1
    } else {
        arguments.seconds
    };
    let length = Duration::from_secs(seconds);
    if arguments.advice {
        return advised(length, arguments.json, interrupt);
    }
    if arguments.real {
        return for_real(arguments, length, interrupt);
    }
    if arguments.programs {
        return with_programs(arguments, length, interrupt);
    }
    let controller = Controller::find()?;
    let (mut rows, mut comparisons) = (Vec::new(), Vec::new());
    for scenario in scenario::all() {
        let wanted = arguments.only.as_ref();
        if wanted.is_some_and(|text| !scenario.name.contains(text.as_str())) {
            continue;
        }
        let settings = Settings {
            poll: Duration::from_micros(arguments.poll),
            ..Settings::like_this_machine()
        };
        let (outcomes, compared) = measure(&controller, &scenario, settings, length, interrupt)?;
        if !arguments.json {
            print_comparison(&outcomes, &compared);
        }
        rows.extend(outcomes);
        comparisons.extend(compared);
    }
    if arguments.json {
        let object = json!({
            "kernel": kernel_release(),
            "controller": controller.version(),
            "cpus": outcome::cpus(),
            "rows": rows,
            "comparison": comparisons,
        });
        println!("{object}");
    }
    Ok(())
}

/// The kernel, the others, the kernel again: a slow change of the machine's mood hits both sides.
fn measure(
    controller: &Controller,
    scenario: &Scenario,
    settings: Settings,
    length: Duration,
    interrupt: &Interrupt,
) -> Result<(Vec<Outcome>, Vec<Comparison>), Problem> {
    let first = kernel::run(controller, scenario, length, interrupt)?;
    let others = vec![
        runtime::run(settings, scenario, length, interrupt)?,
        runtime::run(settings.like_the_kernel(), scenario, length, interrupt)?,
        simulator::run(scenario, length)?,
    ];
    let second = kernel::run(controller, scenario, length, interrupt)?;
    let kernel = [first, second];
    let compared = outcome::compare(&kernel, &others);
    let all = kernel.into_iter().chain(others).collect();
    Ok((all, compared))
}

fn kernel_release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

fn print_comparison(outcomes: &[Outcome], compared: &[Comparison]) {
    for outcome in outcomes {
        for group in &outcome.groups {
            let per_period = group.per_period.map_or_else(String::new, |part| {
                format!("{:.2} {:.2} {:.2}", part.p5, part.p50, part.p95)
            });
            let jobs = [group.job_p50_ms, group.job_p99_ms, group.job_max_ms];
            let jobs = match jobs.map(|time| time.map(|time| format!("{time:.2}"))) {
                [Some(p50), Some(p99), Some(max)] => format!("job {p50}/{p99}/{max} ms"),
                _ => String::new(),
            };
            println!(
                "{:<26} {:<15} {:<21} others {:.2} cpu {:.4} ({:+.2} %) periods {:>5} throttled {:>5} {:>7.3} s  window {} {per_period} {jobs}",
                outcome.scenario,
                group.path,
                format!("{:?}", outcome.host),
                outcome.others_cpus.unwrap_or(f64::NAN),
                group.cpus,
                group.error_pct,
                group.nr_periods,
                group.nr_throttled,
                group.throttled_s,
                group
                    .worst_window_ratio
                    .map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            );
        }
    }
    for row in compared {
        let others: Vec<_> = row
            .others
            .iter()
            .map(|other| format!("{:?} {:+.2} %", other.host, other.from_kernel_pct))
            .collect();
        println!(
            "    {}: kernel's own spread {:+.2} %; against the kernel: {}",
            row.group,
            row.kernel_spread_pct,
            others.join(", ")
        );
    }
}

/// `quotient advise` against the kernel.
///
/// # Errors
/// What is missing, or the bars that were missed.
fn for_real(arguments: &Arguments, length: Duration, interrupt: &Interrupt) -> Result<(), Problem> {
    let settings = real::Settings {
        quotient: arguments.quotient.clone().map_or_else(real::beside, Ok)?,
        length,
        runs: usize::try_from(arguments.runs).unwrap_or(1),
        percents: if arguments.limits.is_empty() {
            real::SHARES_PERCENT.to_vec()
        } else {
            arguments.limits.clone()
        },
        only: arguments.only.clone(),
        preset: arguments.preset.clone(),
        limited: !arguments.free_only,
        same_arrivals: arguments.same_arrivals,
        keep: arguments.keep.clone(),
        measure_only: arguments.measure_only,
    };
    if !arguments.json && !settings.measure_only {
        println!(
            "load      recorded    limit  throttled %: predicted (low..high)  kernel (low..high)        p99 ms: predicted (low..high)  kernel (low..high)"
        );
    }
    let cases = real::compare(&settings, interrupt, |case| {
        if !arguments.json {
            print_case(case);
        }
    })?;
    if settings.measure_only {
        println!("all is measured: the same command without --measure-only judges");
        return Ok(());
    }
    let summary = judge::summary(&cases);
    if arguments.json {
        let object = json!({
            "kernel": kernel_release(),
            "preset": settings.preset,
            "seconds": length.as_secs(),
            "same_arrivals": settings.same_arrivals,
            "cases": cases.iter().map(|case| json!({"case": case, "verdict": case.verdict()})).collect::<Vec<_>>(),
            "summary": summary,
        });
        println!("{object}");
    } else {
        println!(
            "{} cases under {}: throttled ratio within 3 points in {:.1} % (bar {:.0}), p99 holds in {:.1} % (bar {:.0}), {} without a p99 (saturated): {}",
            summary.cases,
            kernel_release(),
            summary.ratio_percent,
            judge::RATIO_CASES_PERCENT,
            summary.p99_percent,
            judge::P99_CASES_PERCENT,
            summary.refused,
            if summary.pass { "pass" } else { "FAIL" }
        );
        println!(
            "{} runs do not count, since others used more than {} CPUs beside them, or {} in one of their seconds; they did so beside {} recordings",
            summary.disturbed,
            company::MEAN_MAX,
            company::BUSIEST_MAX,
            summary.disturbed_recordings
        );
    }
    if summary.pass {
        Ok(())
    } else {
        Err(Problem::Broken("the bars are missed".into()))
    }
}

fn print_case(case: &Case) {
    let verdict = case.verdict();
    let word = |held: bool| if held { "ok" } else { "MISS" };
    let recorded = case
        .recorded_under
        .map_or("free".to_owned(), |cpus| format!("under {cpus:.2}"));
    let spread = |spread: judge::Spread| format!("{spread:.1}");
    println!(
        "{:<9} {recorded:<10} {:>6.2}  {:>30} {:>20} {:<5} {:>30} {:>24} {}",
        case.load,
        case.cpus,
        spread(case.predicted_throttled),
        spread(case.throttled),
        word(verdict.ratio),
        if case.is_saturated {
            "saturated".to_owned()
        } else {
            spread(case.predicted_p99)
        },
        spread(case.p99),
        verdict.p99.map_or("-", word),
    );
}

/// Known programs on both sides.
fn with_programs(
    arguments: &Arguments,
    length: Duration,
    interrupt: &Interrupt,
) -> Result<(), Problem> {
    let runs = usize::try_from(arguments.runs).unwrap_or(1);
    let only = arguments.only.as_deref();
    let print = |figure: &programs::Figure| {
        if !arguments.json {
            let spread = |spread: judge::Spread| format!("{spread:.2}");
            println!(
                "{:<40} {:<22} kernel {:>26}  simulated {:>26} {:<4}  by the rules alone {:>26}",
                figure.of,
                figure.what,
                spread(figure.kernel),
                spread(figure.simulated),
                if figure.holds() { "ok" } else { "MISS" },
                spread(figure.by_rules)
            );
        }
    };
    let programs::Answer {
        figures,
        notes,
        left_out,
    } = programs::compare(length, runs, only, interrupt, print)?;
    if arguments.json {
        let rows: Vec<_> = figures
            .iter()
            .map(|figure| json!({ "figure": figure, "holds": figure.holds() }))
            .collect();
        println!(
            "{}",
            json!({ "kernel": kernel_release(), "seconds": length.as_secs(), "rows": rows, "notes": notes, "left_out": left_out })
        );
        return Ok(());
    }
    for note in notes {
        println!("{note}");
    }
    for reason in left_out {
        println!("left out: {reason}");
    }
    let held = figures.iter().filter(|figure| figure.holds()).count();
    println!(
        "{held} of {} within 15 % or inside the kernel's own spread",
        figures.len()
    );
    Ok(())
}

fn advised(length: Duration, json: bool, interrupt: &Interrupt) -> Result<(), Problem> {
    let rows = advice::compare(length, interrupt)?;
    if json {
        println!("{}", json!({ "seconds": length.as_secs(), "rows": rows }));
        return Ok(());
    }
    println!(
        "   limit, ms  arrivals  throttled periods: predicted (of seeds)  measured   points  added p99, ms: predicted  measured"
    );
    for row in rows {
        let predicted = row.predicted_throttled;
        println!(
            "{:>5.0} / {:<3.0}  {:<9} {:>22.1} % ({:.1}..{:.1}) {:>8.1} % {:>+8.1} {:>25.1} {:>9.1}",
            row.quota_ms,
            row.period_ms,
            if row.same_arrivals {
                "recorded"
            } else {
                "others"
            },
            100.0 * predicted.mid,
            100.0 * predicted.low,
            100.0 * predicted.high,
            100.0 * row.throttled,
            row.error_points,
            row.predicted_added_p99_ms,
            row.added_p99_ms,
        );
    }
    Ok(())
}
