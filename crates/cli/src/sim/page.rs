//! What a run's page says before its pictures: which run it is, what it is about, what was measured and what was expected.

use std::fmt::Write;

use quotient_sim::MeterOutcome;
use quotient_sim::scenario::Finding;
use quotient_trace::chart::{duration, escape};

use super::table::figure;
use super::{Report, RunReport};

/// Rows of a table. Default 60: the page is for people; JSON has everything.
const ROWS_MAX: usize = 60;

/// The part of the page below its heading, about the run at `place`.
pub(super) fn front(report: &Report<'_>, place: usize) -> String {
    let mut text = String::new();
    if let Some(run) = report.runs.get(place) {
        let _ = writeln!(text, "<p>Run <b>{}</b></p>", escape(run.name));
    }
    if !report.about.is_empty() {
        let _ = writeln!(text, "<p>{}</p>", escape(report.about));
    }
    if let Some(note) = report.kernel {
        let _ = writeln!(text, "<p class=\"soft\">{}</p>", escape(note));
    }
    for source in report.sources {
        let _ = writeln!(text, "<p class=\"soft\">cost: {}</p>", escape(source));
    }
    text += &expectations(report.expectations);
    if let Some(run) = report.runs.get(place) {
        text += &meters(run);
    }
    text
}

fn table(heading: &str, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = columns.join("</th><th>");
    let mut text = format!(
        "<h2>{heading}</h2>\n<div class=\"scroll\"><table><thead><tr><th>{head}</th></tr></thead><tbody>\n"
    );
    let left_out = rows.len().saturating_sub(ROWS_MAX);
    for row in rows.into_iter().take(ROWS_MAX) {
        let _ = writeln!(text, "<tr><td>{}</td></tr>", row.join("</td><td>"));
    }
    text += "</tbody></table></div>\n";
    if left_out > 0 {
        let _ = writeln!(text, "<p class=\"soft\">and {left_out} more</p>");
    }
    text
}

fn expectations(findings: &[Finding]) -> String {
    let bound = |bound: Option<f64>| bound.map_or_else(String::new, figure);
    let rows = findings.iter().map(|finding| {
        let met = if finding.met { "ok" } else { "<b>MISS</b>" };
        vec![
            format!("{} {}", escape(&finding.what), escape(&finding.unit)),
            figure(finding.value),
            finding.seed.map_or_else(|| "-".to_owned(), figure),
            format!("{}..{}", bound(finding.min), bound(finding.max)),
            met.to_owned(),
        ]
    });
    table(
        "What was expected",
        &["", "value", "source says", "accepted", ""],
        rows,
    )
}

fn meters(run: &RunReport<'_>) -> String {
    let time = |nanos: u64| duration(nanos / 1_000);
    let row = |meter: &MeterOutcome| {
        let times = &meter.times;
        vec![
            escape(&meter.name),
            meter.done.to_string(),
            time(times.p50_ns),
            time(times.p99_ns),
            time(times.p999_ns),
            time(times.max_ns),
        ]
    };
    table(
        "Meters",
        &["", "done", "p50", "p99", "p99.9", "longest"],
        run.outcome.meters.iter().map(row),
    )
}
