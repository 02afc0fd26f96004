//! What the rows promise, judged: beside hogs of equal weight the victim keeps half, and is answered as fast as two runtimes do; beside a
//! limited neighbour it hardly notices.

use serde::Serialize;

use crate::demo::mode::Mode;
use crate::demo::results::Row;

/// Bar: the victim's closed-loop requests per second beside hogs of equal weight, as a part of what it has alone. Half is its due, less
/// what sharing costs.
const EQUAL_PART_MIN: f64 = 0.48;
/// The same beside hogs limited to a twentieth of the CPUs.
const CAPPED_PART_MIN: f64 = 0.92;
/// Bar: the victim's p99 beside limited hogs. Unit: milliseconds.
const CAPPED_P99_MAX_MS: f64 = 3.0;

/// One promise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    name: &'static str,
    mode: Mode,
    value: f64,
    bar: f64,
    unit: &'static str,
    /// Nothing where the run was disturbed: neither kept nor missed.
    ok: Option<bool>,
}

/// The promises that these rows can be held to, `judged` or not.
pub fn of(rows: &[Row], judged: bool) -> Vec<Check> {
    let mut checks = all(rows);
    for check in checks.iter_mut().filter(|_| !judged) {
        check.ok = None;
    }
    checks
}

fn all(rows: &[Row]) -> Vec<Check> {
    let find = |mode| rows.iter().find(|row| row.mode == mode);
    let Some(alone) = find(Mode::Alone) else {
        return Vec::new();
    };
    let part = |row: &Row| row.capacity_rps / alone.capacity_rps.max(1e-9);
    let ms = |row: &Row| row.p99_us as f64 / 1e3;
    let mut checks = Vec::new();
    if let Some(equal) = find(Mode::Quotient) {
        checks.push(at_least(equal.mode, part(equal), EQUAL_PART_MIN));
        if let Some(rival) = find(Mode::TwoRuntimes) {
            checks.push(at_most(
                equal.mode,
                "p99, at most two runtimes'",
                ms(equal),
                ms(rival),
            ));
        }
    }
    if let Some(capped) = find(Mode::QuotientCapped) {
        checks.push(at_least(capped.mode, part(capped), CAPPED_PART_MIN));
        let p99 = ms(capped);
        checks.push(at_most(capped.mode, "p99, at most", p99, CAPPED_P99_MAX_MS));
    }
    checks
}

fn at_least(mode: Mode, value: f64, bar: f64) -> Check {
    Check {
        name: "capacity of alone, at least",
        mode,
        value,
        bar,
        unit: "x",
        ok: Some(value >= bar),
    }
}

fn at_most(mode: Mode, name: &'static str, value: f64, bar: f64) -> Check {
    Check {
        name,
        mode,
        value,
        bar,
        unit: "ms",
        ok: Some(value <= bar),
    }
}

/// A line a check.
pub fn lines(checks: &[Check]) -> String {
    let line = |check: &Check| {
        let unit = check.unit;
        let found = match check.ok {
            Some(ok) => {
                let verdict = if ok { "ok" } else { "missed" };
                format!("{:.2} {unit}, {verdict}", check.value)
            }
            None => "disturbed: not judged".to_owned(),
        };
        format!(
            "{}: {} {:.2} {unit}: {found}\n",
            check.mode, check.name, check.bar
        )
    };
    checks.iter().map(line).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::report) fn row(mode: Mode, capacity_rps: f64, p99_us: u64) -> Row {
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
            row(Mode::TwoRuntimes, 50.0, 4_000),
            row(Mode::Quotient, 47.0, 4_000),
            row(Mode::QuotientCapped, 93.0, 3_100),
        ];
        let checks = of(&rows, true);
        let ok: Vec<bool> = checks.iter().filter_map(|check| check.ok).collect();
        assert_eq!(ok, [false, true, true, false], "{checks:?}");
        let text = lines(&checks);
        assert!(text.contains("at least 0.48 x: 0.47 x, missed"), "{text}");
        assert!(text.contains("at least 0.92 x: 0.93 x, ok"), "{text}");
        assert!(text.contains("at most 3.00 ms: 3.10 ms, missed"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80));
        assert!(of(&rows[..1], true).is_empty());
        let checks = of(&rows, false);
        assert!(checks.iter().all(|check| check.ok.is_none()), "{checks:?}");
        let text = lines(&checks);
        assert_eq!(text.matches("disturbed: not judged").count(), 4, "{text}");
        assert!(!text.contains("missed") && !text.contains(", ok"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 80));
    }
}
