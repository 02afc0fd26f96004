//! The tables.

use std::io::Write;

use super::costs::Cost;
use super::instructions::Count;
use super::row::{ALONE_P99_MAX_US, About, Ratio, Round, Row, STEAL_MAX, VALID_MIN};

/// The names of the columns.
pub fn head() {
    println!(
        "{:<6} {:<8} {:<9} {:>5} {:>5} {:>7} {:<23} {:>6} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>6}",
        "about",
        "hogs are",
        "setting",
        "vCPUs",
        "hogs",
        "poll ms",
        "mode",
        "answ.",
        "p50 us",
        "p99 us",
        "max us",
        "hog CPUs",
        "share",
        "window",
        "steal"
    );
}

fn number<T: std::fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn part(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}

fn poll(poll_ms: Option<f64>) -> String {
    poll_ms.map_or_else(|| "inf".to_owned(), |poll| poll.to_string())
}

/// One row.
pub fn row(row: &Row) {
    let about = match row.about {
        About::Echo => "echo",
        About::Shares => "shares",
        About::Limits => "limits",
    };
    let head = format!(
        "{about:<6} {:<8} {:<9} {:>5} {:>5} {:>7} {:<23}",
        row.kind,
        row.setting.as_deref().unwrap_or("-"),
        row.vcpus,
        row.hogs,
        poll(row.poll_ms),
        row.mode,
    );
    match &row.not_available {
        Some(reason) => println!("{head} not available here because {reason}"),
        None => println!(
            "{head} {:>6} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>6.3}",
            part(row.answered_ratio),
            number(row.p50_us),
            number(row.p99_us),
            number(row.max_us),
            part(row.hog_cpus),
            part(row.share),
            part(row.window_worst_ratio),
            row.steal_ratio
        ),
    }
    // Rows appear as they are measured, also through a pipe.
    let _ = std::io::stdout().flush();
}

/// Whether a round counts, and why.
pub fn round(round: &Round) {
    println!(
        "round {} {}: alone the victim's p99 is {} us (at most {ALONE_P99_MAX_US}), the host stole {:.3} (at most {STEAL_MAX})",
        round.round,
        if round.valid {
            "counts"
        } else {
            "is discarded"
        },
        round.alone_p99_us,
        round.steal_ratio
    );
}

/// How many rounds of one block count, and why no more were played.
pub fn rounds(valid: u64, played: usize, wanted: u64, most: u64) {
    println!(
        "{valid} of {played} rounds count ({wanted} are asked for, {most} are played at most); the others are in no ratio"
    );
}

/// The ratios of one block.
pub fn ratios(ratios: &[Ratio]) {
    for ratio in ratios {
        println!(
            "{} {} of {} ms, {:<23} by two-runtimes: p50 {:.2}, p99 {:.2} ({} by nice), hog CPUs {:.3}; median of {} rounds{}",
            ratio.hogs,
            ratio.kind,
            poll(ratio.poll_ms),
            ratio.mode,
            ratio.p50,
            ratio.p99,
            ratio
                .p99_by_nice
                .map_or_else(|| "-".to_owned(), |nice| format!("{nice:.2}")),
            ratio.hog_cpus,
            ratio.rounds,
            if ratio.rounds < VALID_MIN {
                ", fewer than five"
            } else {
                ""
            }
        );
    }
}

/// What stopping and waking cost.
pub fn costs(costs: &[Cost]) {
    println!("{:<62} {:>9} {:>9}", "", "median", "p99");
    for cost in costs {
        match &cost.not_available {
            Some(reason) => println!("{:<62} not available here because {reason}", cost.what),
            None => println!(
                "{:<62} {:>9} {:>9} {}",
                cost.what,
                part(cost.median),
                part(cost.p99),
                cost.unit
            ),
        }
    }
}

/// What was counted.
pub fn instructions(counts: &[Count], reason: Option<&str>) {
    if let Some(reason) = reason {
        println!("instructions are not counted: {reason}");
    }
    for count in counts {
        println!(
            "{:<12} preemption {:<28} {:>9.1} instructions, {:>7.1} branches a round, {:>+7.2} %",
            count.shape.name(),
            count.variant.name(),
            count.instructions,
            count.branches,
            count.more_pct
        );
    }
}
