//! Runs of a scenario as tables.

use std::fmt::{self, Write};

use quotient_sim::Outcome;

use super::Report;

/// What a person sees of a scenario's runs.
pub(super) fn table(report: &Report<'_>) -> String {
    let mut text = String::new();
    // A string takes everything.
    let _ = write(report, &mut text);
    text
}

fn write(report: &Report<'_>, text: &mut String) -> fmt::Result {
    writeln!(text, "{}", report.scenario)?;
    if !report.about.is_empty() {
        writeln!(text, "{}", report.about)?;
    }
    for source in report.sources {
        writeln!(text, "  cost: {source}")?;
    }
    if let Some(note) = report.kernel {
        writeln!(text, "  {note}")?;
    }
    writeln!(
        text,
        "\n{:<26} {:>10} {:>7} {:>9} {:>10} {:>10} {:>9}",
        "run", "elapsed", "busy %", "system %", "switches", "migrations", "ipis"
    )?;
    for run in &report.runs {
        let outcome = run.outcome;
        let whole = outcome.elapsed_ns as f64 * f64::from(outcome.cpus);
        writeln!(
            text,
            "{:<26} {:>8.3} s {:>7.2} {:>9.3} {:>10} {:>10} {:>9}",
            run.name,
            outcome.elapsed_ns as f64 / 1e9,
            100.0 * outcome.busy_ns as f64 / whole.max(1.0),
            100.0 * outcome.system_ns as f64 / (outcome.busy_ns as f64).max(1.0),
            outcome.mechanisms.switches,
            outcome.mechanisms.migrations,
            outcome.mechanisms.ipis
        )?;
    }
    if report.runs.len() == 1 {
        details(report.runs[0].outcome, text)?;
    }
    if report.expectations.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<4} {:>12} {:>12} {:>20}  expectation",
        "", "value", "source says", "accepted"
    )?;
    for finding in report.expectations {
        let bound = |bound: Option<f64>| bound.map_or_else(String::new, figure);
        writeln!(
            text,
            "{:<4} {:>12} {:>12} {:>20}  {} {}",
            if finding.met { "ok" } else { "MISS" },
            figure(finding.value),
            finding.seed.map_or_else(|| "-".to_owned(), figure),
            format!("{}..{}", bound(finding.min), bound(finding.max)),
            finding.what,
            finding.unit
        )?;
    }
    Ok(())
}

/// Groups, workloads and meters of one run. Long lists are cut; JSON has everything.
fn details(outcome: &Outcome, text: &mut String) -> fmt::Result {
    const ROWS_MAX: usize = 40;
    writeln!(
        text,
        "\n{:<24} {:>12} {:>9} {:>9} {:>12}",
        "group", "usage ms", "periods", "throttled", "throttled ms"
    )?;
    for group in outcome.groups.iter().take(ROWS_MAX) {
        writeln!(
            text,
            "{:<24} {:>12.3} {:>9} {:>9} {:>12.3}",
            if group.path.is_empty() {
                "(all)"
            } else {
                &group.path
            },
            group.usage_ns as f64 / 1e6,
            group.nr_periods,
            group.nr_throttled,
            group.throttled_ns as f64 / 1e6
        )?;
    }
    writeln!(
        text,
        "\n{:<24} {:>9} {:>10} {:>10} {:>10} {:>10}",
        "meter (us)", "done", "p50", "p99", "p99.9", "max"
    )?;
    for meter in outcome.meters.iter().take(ROWS_MAX) {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        writeln!(
            text,
            "{:<24} {:>9} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
            meter.name,
            meter.done,
            micros(meter.times.p50_ns),
            micros(meter.times.p99_ns),
            micros(meter.times.p999_ns),
            micros(meter.times.max_ns)
        )?;
    }
    Ok(())
}

/// Four digits are enough for anybody.
pub(super) fn figure(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1000.0 {
        return format!("{value:.0}");
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let places = usize::try_from(digits.clamp(0, 9)).unwrap_or(0);
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1234567.0, "1234567"),
            (2.34567, "2.346"),
            (0.0123456, "0.01235"),
            (2.0, "2"),
            (50.0, "50"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
