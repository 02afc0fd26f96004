//! The tables.

use std::io::Write;

use super::{Results, Row};
use crate::bench::goal;

/// Prints the rows of a block under a headline of their own.
pub fn block(rows: &[Row]) {
    let Some(first) = rows.first() else {
        return;
    };
    println!(
        "\n{:?}, {:?}, {} rounds, depth {}: percent more than the first row",
        first.case.player, first.case.workload, first.rounds, first.case.depth
    );
    println!(
        "{:<13} {:>9} {:>3} {:>13} {:>8} {:>12} {:>8} {:>9} {:>8}",
        "variant", "period", "run", "instructions", "%", "branches", "%", "time ms", "%"
    );
    for row in rows {
        println!(
            "{:<13} {:>9} {:>3} {:>13} {:>8} {:>12} {:>8} {:>9.3} {:>+8.2}",
            row.case.variant.name(),
            row.case
                .period_us
                .map_or_else(|| "-".to_owned(), |us| format!("{} ms", us / 1000)),
            row.run,
            whole(row.instructions),
            percent(row.instructions_pct),
            whole(row.branches),
            percent(row.branches_pct),
            row.time_ms,
            row.time_pct,
        );
    }
    // Blocks appear as they are measured, also through a pipe.
    let _ = std::io::stdout().flush();
}

/// Prints what was made of all blocks.
pub fn end(results: &Results) {
    println!("\ntwo identical runs without a limit: percent that the second differs");
    for variance in &results.variance {
        println!(
            "{:?} {:<13} instructions {:>8}  branches {:>8}  time {:>+8.2}",
            variance.workload,
            variance.variant.name(),
            percent(variance.instructions_pct),
            percent(variance.branches_pct),
            variance.time_pct,
        );
    }
    if let Some(reason) = &results.not_counted {
        println!("\ninstructions are not counted: {reason}");
    }
    goal::print(&results.goals);
}

fn whole(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:+.3}"))
}
