//! `quotient diff`: two traces side by side, such as a simulated run and the recorded one.

use std::path::{Path, PathBuf};

use clap::{Args, value_parser};
use quotient_trace::{Comparison, Figures, Metric, Statistics, compare};
use serde::Serialize;

use crate::convert::input::Input;
use crate::failure::{Failure, print};
use crate::json::versioned;

/// What `quotient diff` takes.
#[derive(Debug, Clone, Args)]
pub struct DiffArguments {
    /// The first trace: what the errors are relative to
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The second trace
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Leave out figures that differ by less, in percent (0..=1000)
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u32).range(0..=1_000))]
    above: u32,
    /// Lines that make no sense and are left out before the trace is called unreadable
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    skip_bad: u64,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    a: String,
    b: String,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

/// Compares.
///
/// # Errors
/// `Usage` for a file that cannot be opened, `Unreadable` for one that is no trace, `Interrupted`.
pub fn run(arguments: &DiffArguments) -> Result<(), Failure> {
    let mut comparison = compare(
        &figures(&arguments.a, arguments.skip_bad)?,
        &figures(&arguments.b, arguments.skip_bad)?,
    );
    let is_kept = |row: &Metric| {
        row.error_percent
            .is_none_or(|error| error.abs() >= f64::from(arguments.above))
    };
    comparison.rows.retain(is_kept);
    let (a, b) = (arguments.a.display(), arguments.b.display());
    let text = if arguments.json {
        let answer = Answer {
            a: a.to_string(),
            b: b.to_string(),
            comparison: &comparison,
        };
        versioned("quotient-diff/1", &answer)? + "\n"
    } else {
        format!("a: {a}\nb: {b}\n\n{}", table(&comparison))
    };
    print(&text)
}

fn figures(path: &Path, skip_bad: u64) -> Result<Figures, Failure> {
    let mut statistics = Statistics::new();
    let mut input = Input::open(path, None, skip_bad)?;
    input.pump_repaired(&mut statistics)?;
    input.tell_gaps();
    Ok(statistics.finish())
}

/// At most 80 columns.
fn table(comparison: &Comparison) -> String {
    let mut text = format!(
        "{:<16}{:>14}{:>14}{:>14}{:>11}\n",
        "figure", "a", "b", "b - a", "error"
    );
    let mut last = String::new();
    for row in &comparison.rows {
        let heading = format!("{} {}", row.of, row.name);
        if heading != last {
            text += &format!("{heading}\n");
            last = heading;
        }
        let error = row
            .error_percent
            .map_or_else(|| "new".to_owned(), |error| format!("{error:+.1} %"));
        text += &format!(
            "  {:<16}{:>12.3}{:>14.3}{:>14.3}{error:>11}\n",
            row.metric, row.a, row.b, row.difference
        );
    }
    for (what, names) in [("a", &comparison.only_in_a), ("b", &comparison.only_in_b)] {
        for name in names {
            text += &format!("only in {what}: {name}\n");
        }
    }
    text
}
