//! What the rows promise, judged: only the mode whose limit leaves the victim room promises more than the table shows.

use serde::Serialize;

use crate::demo::hogs::POLL_LONGEST;
use crate::demo::mode::Mode;
use crate::demo::results::Row;

/// Bar: the victim's closed-loop requests per second beside limited hogs, as a part of what it has alone.
const CAPACITY_PART_MIN: f64 = 0.9;
/// Bar: the victim's p99 beside limited hogs, above their longest poll. Unit: milliseconds.
const P99_ABOVE_POLL_MS: f64 = 1.5;

/// One promise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    name: &'static str,
    mode: Mode,
    value: f64,
    bar: f64,
    unit: &'static str,
    ok: bool,
}

/// The promises that these rows can be held to.
pub fn of(rows: &[Row]) -> Vec<Check> {
    let find = |mode| rows.iter().find(|row| row.mode == mode);
    let (Some(alone), Some(capped)) = (find(Mode::Alone), find(Mode::QuotientCapped)) else {
        return Vec::new();
    };
    let part = capped.capacity_rps / alone.capacity_rps.max(1e-9);
    let p99_ms = capped.p99_us as f64 / 1e3;
    let p99_bar = POLL_LONGEST.as_secs_f64() * 1e3 + P99_ABOVE_POLL_MS;
    let check = |name, value, bar, unit, ok| Check {
        name,
        mode: Mode::QuotientCapped,
        value,
        bar,
        unit,
        ok,
    };
    vec![
        check(
            "capacity of alone, at least",
            part,
            CAPACITY_PART_MIN,
            "x",
            part >= CAPACITY_PART_MIN,
        ),
        check("p99, at most", p99_ms, p99_bar, "ms", p99_ms <= p99_bar),
    ]
}

/// A line a check.
pub fn lines(checks: &[Check]) -> String {
    let line = |check: &Check| {
        let verdict = if check.ok { "ok" } else { "missed" };
        let unit = check.unit;
        format!(
            "{}: {} {:.2} {unit}: {:.2} {unit}, {verdict}\n",
            check.mode, check.name, check.bar, check.value
        )
    };
    checks.iter().map(line).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of the victim alone whose rounds differ.
    pub(in crate::report) fn row_with_range(capacity_range_rps: (f64, f64)) -> Row {
        Row {
            capacity_range_rps,
            ..row(Mode::Alone, capacity_range_rps.0, 500)
        }
    }

    fn row(mode: Mode, capacity_rps: f64, p99_us: u64) -> Row {
        Row {
            mode,
            victim_rps: 1.0,
            offered_rps: 1.0,
            p50_us: 1,
            p99_us,
            max_us: p99_us,
            unanswered: 0,
            hog_cpu: 0.0,
            victim_cpu: 0.0,
            hog_documents_per_second: 0.0,
            hog_group_cpu: None,
            victim_group_cpu: None,
            capacity_rps,
            capacity_range_rps: (capacity_rps, capacity_rps),
            capacity_hog_cpu: 0.0,
        }
    }

    #[test]
    fn promises_are_judged_each_for_itself() {
        let rows = [
            row(Mode::Alone, 100.0, 500),
            row(Mode::QuotientCapped, 91.0, 2_600),
        ];
        let checks = of(&rows);
        assert!(checks[0].ok && !checks[1].ok, "{checks:?}");
        let text = lines(&checks);
        assert!(text.contains("at least 0.90 x: 0.91 x, ok"), "{text}");
        assert!(text.contains("at most 2.50 ms: 2.60 ms, missed"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80));
        assert!(of(&rows[..1]).is_empty());
    }
}
