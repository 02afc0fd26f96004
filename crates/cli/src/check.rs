//! `quotient check`: the invariants on a recorded trace.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use quotient_trace::check::{Check, Findings, Options, Rule};
use quotient_trace::{Amount, Gaps, Item, Limit, Repair};
use serde::Serialize;

use crate::convert::input::{From, Input};
use crate::failure::{Failure, print};
use crate::json::versioned;

/// Clocks of two CPUs may seem this far apart in a kernel's trace, which rounds to microseconds.
const KERNEL_SKEW_US: u64 = 10;

/// What `quotient check` takes.
#[derive(Debug, Clone, Args)]
pub struct CheckArguments {
    /// The trace; `-` for standard input
    #[arg(value_name = "TRACE")]
    input: PathBuf,
    /// What it is [default: whatever its first bytes look like]
    #[arg(long)]
    from: Option<From>,
    /// How long a task may wait while a CPU that it uses is idle, in milliseconds (0..=3600000)
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u64).range(0..=3_600_000))]
    idle_wait_ms: u64,
    /// How long a task may wait at all, in milliseconds (1..=3600000)
    #[arg(long, default_value_t = 2_000, value_parser = value_parser!(u64).range(1..=3_600_000))]
    wait_ms: u64,
    /// How far the clocks of two CPUs may be apart, in microseconds (0..=1000000) [default: 10 for a kernel's trace, else 0]
    #[arg(long, value_parser = value_parser!(u64).range(0..=1_000_000))]
    skew_us: Option<u64>,
    /// The trace was recorded under CPU limits that it does not show: do not judge waits
    #[arg(long)]
    limited: bool,
    /// A limit that the trace does not show, as cgroup's cpu.max in microseconds; may be repeated
    #[arg(long = "limit", value_name = "GROUP=QUOTA/PERIOD", value_parser = parse_limit)]
    limits: Vec<(String, Limit)>,
    /// Lines that make no sense and are left out before the trace is called unreadable
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    skip_bad: u64,
    /// Judge a kernel's trace as it is, without filling in switches that it left out
    #[arg(long)]
    as_recorded: bool,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    trace: String,
    clean: bool,
    /// Switches that were filled in before the trace was judged.
    filled_in: u64,
    /// Tasks that the trace never shows leaving a CPU: what they do in their own context is missing.
    silent_tasks: usize,
    /// What is missing: `clean` says nothing about that.
    gaps: &'a Gaps,
    #[serde(flatten)]
    findings: &'a Findings,
}

/// Checks.
///
/// # Errors
/// `Run` if the trace breaks a rule, `Unreadable` if it is no trace, `Usage` if it cannot be opened or has no group of a limit that was given,
/// `Interrupted`.
pub fn run(arguments: &CheckArguments) -> Result<(), Failure> {
    let mut input = Input::open(&arguments.input, arguments.from, arguments.skip_bad)?;
    let mut item = input.next_item()?;
    let default_us = if input.is_kernels() {
        KERNEL_SKEW_US
    } else {
        0
    };
    let skew_us = arguments.skew_us.unwrap_or(default_us);
    let options = Options {
        clock_skew: Duration::from_micros(skew_us).into(),
        idle_wait_max: Duration::from_millis(arguments.idle_wait_ms).into(),
        wait_max: Duration::from_millis(arguments.wait_ms).into(),
        hidden_limits: arguments.limited,
        limits: arguments.limits.clone(),
        ..Options::default()
    };
    let mut check = Check::new(options);
    // Quotient's own logs leave nothing out: a switch that is missing there is what is looked for.
    let mut repair = (!arguments.as_recorded).then(Repair::default);
    while let Some(current) = item {
        if let Some(late) = input.take_late() {
            check.late(&late);
        }
        match current {
            Item::Definition(definition) => check.define(&definition),
            Item::Event(event) => {
                let missing = repair.as_mut();
                let missing = missing.and_then(|repair| input.missing(repair, &event));
                if let Some(missing) = missing {
                    check.fill_in(&missing, input.line());
                }
                check.event(&event, input.line());
                if let Some(found) = repair.as_mut().and_then(Repair::contradiction) {
                    check.contradict(&found, input.line());
                }
            }
        }
        item = input.next_item()?;
    }
    if let Some(group) = check.unknown_limit() {
        let what = format!(
            "--limit {group}: the trace names no such group, so that nothing was held against the limit"
        );
        return Err(Failure::Usage(what));
    }
    let filled_in = repair.as_ref().map_or(0, Repair::count);
    let silent_tasks = repair.as_ref().map_or(0, Repair::silent_count);
    let findings = check.finish();
    let name = arguments.input.display().to_string();
    let text = if arguments.json {
        let answer = Answer {
            trace: name,
            clean: findings.is_clean(),
            filled_in,
            silent_tasks,
            gaps: input.gaps(),
            findings: &findings,
        };
        versioned("quotient-check/1", &answer)? + "\n"
    } else {
        report(&name, &findings, input.gaps(), (filled_in, silent_tasks))
    };
    print(&text)?;
    if findings.is_clean() {
        return Ok(());
    }
    let count: u64 = findings.counts.values().sum();
    Err(Failure::Run(format!(
        "{count} breaches of {} rules",
        findings.counts.len()
    )))
}

fn report(name: &str, findings: &Findings, gaps: &Gaps, repaired: (u64, usize)) -> String {
    let (filled_in, silent_tasks) = repaired;
    let mut text = String::new();
    for breach in &findings.breaches {
        text += &format!(
            "{name}:{}: {}: {}\n",
            breach.line,
            breach.rule.name(),
            breach.message
        );
    }
    for (rule, count) in &findings.counts {
        text += &format!("{count:>8}  {}\n", rule.name());
    }
    if findings.counts.contains_key(&Rule::WorkConservation) {
        text += "          work_conservation: on a busy machine the thread of an idle CPU may itself have waited for a processor; \
                 --idle-wait-ms accepts longer waits\n";
    }
    if filled_in > 0 {
        text += &format!(
            "{filled_in:>8}  switches are missing from the trace and were filled in, from idle or away from tasks that no switch leaves; --as-recorded does without\n"
        );
    }
    if silent_tasks > 0 {
        text += &format!(
            "{silent_tasks:>8}  tasks are never seen to leave a CPU: what they do, whom they wake included, is missing\n"
        );
    }
    let verdict = match (findings.is_clean(), gaps.is_any()) {
        (true, false) => "every rule was kept".to_owned(),
        (true, true) => format!("no rule was seen broken, but {gaps}"),
        (false, false) => "rules were broken".to_owned(),
        (false, true) => format!("rules were broken, and {gaps}"),
    };
    text + &format!("{} events: {verdict}\n", findings.events)
}

/// `tenants/acme=20000/100000`: 20 ms in every 100 ms.
fn parse_limit(text: &str) -> Result<(String, Limit), String> {
    let expected = || format!("`{text}` is not GROUP=QUOTA/PERIOD in microseconds");
    let (group, limit) = text.rsplit_once('=').ok_or_else(expected)?;
    let (quota, period) = limit.split_once('/').ok_or_else(expected)?;
    let quota: u32 = quota.parse().map_err(|_| expected())?;
    let period_us: u32 = period.parse().map_err(|_| expected())?;
    if !(1_000..=1_000_000).contains(&period_us) {
        return Err(format!(
            "a period of {period_us} µs is not within 1000..=1000000"
        ));
    }
    let limit = Limit {
        quota: Amount::new(i64::from(quota) * 1_000),
        period_us,
        burst: Amount::ZERO,
    };
    Ok((group.trim_matches('/').to_owned(), limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_wait_says_what_else_it_may_be() {
        let said = |rule| {
            let findings = Findings {
                counts: [(rule, 3)].into(),
                ..Findings::default()
            };
            report("trace", &findings, &Gaps::default(), (0, 0))
        };
        assert!(said(Rule::WorkConservation).contains("--idle-wait-ms"));
        assert!(!said(Rule::Starvation).contains("--idle-wait-ms"));
    }

    #[test]
    fn limits_are_cgroup_values() {
        let (group, limit) = parse_limit("/a/b=20000/100000").expect("a good one");
        assert_eq!(
            (group.as_str(), limit.quota.get(), limit.period_us),
            ("a/b", 20_000_000, 100_000)
        );
        for bad in [
            "",
            "a",
            "a=1",
            "a=1/2/3",
            "a=x/100000",
            "a=1/999",
            "a=1/1000001",
        ] {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }
}
