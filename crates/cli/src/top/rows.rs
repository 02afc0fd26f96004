//! From two looks at a process to what is shown of each group.

use std::cmp::Reverse;
use std::collections::HashMap;

use clap::ValueEnum;
use quotient_attach::{GroupFigures, Snapshot};
use serde_json::{Value, json};

use super::printable::printable;

/// The order of the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// The most CPU first
    Cpu,
    /// The tree, by path
    Path,
    /// The heaviest first
    Weight,
    /// The most throttled first
    Throttled,
    /// The longest run delay first
    Delay,
    /// The longest poll first
    Poll,
}

#[cfg(feature = "screen")]
impl Sort {
    /// The next one, for a key.
    pub fn next(self) -> Self {
        match self {
            Self::Cpu => Self::Path,
            Self::Path => Self::Weight,
            Self::Weight => Self::Throttled,
            Self::Throttled => Self::Delay,
            Self::Delay => Self::Poll,
            Self::Poll => Self::Cpu,
        }
    }
}

/// What is shown of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// As the process says it, which may be hostile: empty for the root.
    pub path: String,
    /// Thousandths of a processor, over the interval.
    pub cpu: u64,
    pub weight: u32,
    /// Thousandths of a processor.
    pub limit: Option<u64>,
    /// Thousandths of the interval's periods.
    pub throttled: u64,
    pub p99_ns: Option<u64>,
    pub longest_ns: u64,
    /// As the process says it.
    pub at: String,
    pub tasks: u64,
    pub frozen: bool,
}

/// The groups of `after` that `filter` lets through.
pub fn rows(before: &Snapshot, after: &Snapshot, sort: Sort, filter: &str) -> Vec<Row> {
    let known: HashMap<&str, &GroupFigures> = before
        .groups
        .iter()
        .map(|group| (group.path.as_str(), group))
        .collect();
    let elapsed = after.at_ns.saturating_sub(before.at_ns).max(1);
    let mut rows: Vec<Row> = after
        .groups
        .iter()
        .filter(|group| group.path.contains(filter))
        .map(|group| row(known.get(group.path.as_str()).copied(), group, elapsed))
        .collect();
    rows.sort_by(|left, right| left.path.cmp(&right.path));
    match sort {
        Sort::Path => {}
        Sort::Cpu => rows.sort_by_key(|row| Reverse(row.cpu)),
        Sort::Weight => rows.sort_by_key(|row| Reverse(row.weight)),
        Sort::Throttled => rows.sort_by_key(|row| Reverse(row.throttled)),
        Sort::Delay => rows.sort_by_key(|row| Reverse(row.p99_ns)),
        Sort::Poll => rows.sort_by_key(|row| Reverse(row.longest_ns)),
    }
    rows
}

fn row(before: Option<&GroupFigures>, group: &GroupFigures, elapsed: u64) -> Row {
    // A group that came in between, or another of the same name, began at nothing.
    let since =
        |now: u64, then: fn(&GroupFigures) -> u64| now.saturating_sub(before.map_or(0, then));
    let thousandths = |part: u64, whole: u64| {
        u64::try_from(u128::from(part) * 1_000 / u128::from(whole.max(1))).unwrap_or(u64::MAX)
    };
    let periods = since(group.periods, |group| group.periods);
    let throttled = since(group.throttled_periods, |group| group.throttled_periods);
    Row {
        path: group.path.clone(),
        cpu: thousandths(since(group.cpu_ns, |group| group.cpu_ns), elapsed),
        weight: group.weight,
        limit: group
            .quota_us
            .zip(group.period_us)
            .map(|(quota, period)| thousandths(quota, period)),
        throttled: thousandths(throttled, periods),
        p99_ns: group.run_delay_p99_ns(before),
        longest_ns: group.longest_poll_ns,
        at: group.longest_poll_at.clone().unwrap_or_default(),
        tasks: group.tasks,
        frozen: group.frozen,
    }
}

impl Row {
    /// One object of `--json`.
    pub fn json(&self) -> Value {
        json!({
            "path": format!("/{}", self.path),
            "cpus": self.cpu as f64 / 1e3,
            "weight": self.weight,
            "limit_cpus": self.limit.map(|limit| limit as f64 / 1e3),
            "throttled": self.throttled as f64 / 1e3,
            "run_delay_p99_ns": self.p99_ns,
            "longest_poll_ns": self.longest_ns,
            "longest_poll_at": self.at,
            "tasks": self.tasks,
            "frozen": self.frozen,
        })
    }

    /// The cells of a table, in the order of [`HEAD`].
    pub fn cells(&self) -> [String; 9] {
        let limit = self
            .limit
            .map_or("-".to_owned(), |limit| format!("{:.2}", limit as f64 / 1e3));
        [
            format!("{:.3}", self.cpu as f64 / 1e3),
            self.weight.to_string(),
            limit,
            if self.frozen {
                "frozen".to_owned()
            } else {
                format!("{:.1}%", self.throttled as f64 / 10.0)
            },
            self.p99_ns.map_or("-".to_owned(), time),
            match self.longest_ns {
                0 => "-".to_owned(),
                longest => time(longest),
            },
            self.tasks.to_string(),
            format!("/{}", printable(&self.path)),
            printable(&self.at),
        ]
    }
}

/// The heads of the columns.
pub const HEAD: [&str; 9] = [
    "CPU",
    "WEIGHT",
    "LIMIT",
    "THROTTLED",
    "DELAY99",
    "LONGEST",
    "TASKS",
    "GROUP",
    "LONGEST POLL OF",
];

/// Three digits and a unit.
fn time(nanos: u64) -> String {
    let (value, unit) = match nanos {
        0..1_000 => (nanos as f64, "ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        _ => (nanos as f64 / 1e9, "s"),
    };
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$}{unit}")
}

/// The rows as text, numbers to the right.
pub fn table(rows: &[Row]) -> String {
    let cells: Vec<[String; 9]> = rows.iter().map(Row::cells).collect();
    let heads = HEAD.map(str::to_owned);
    let mut text = String::new();
    let width = |column: usize| {
        let widths = cells.iter().map(|row| row[column].chars().count());
        widths.chain([HEAD[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    for row in std::iter::once(&heads).chain(&cells) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            line += &if column < 7 {
                format!("{cell:>width$}  ")
            } else {
                format!("{cell:<width$}  ")
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at_ns: u64, groups: &[(&str, u64)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.at_ns = at_ns;
        for (path, cpu_ns) in groups {
            let mut group = GroupFigures::default();
            (group.path, group.cpu_ns) = ((*path).to_owned(), *cpu_ns);
            snapshot.groups.push(group);
        }
        snapshot
    }

    #[test]
    fn rates_are_of_the_interval_and_names_are_harmless() {
        let before = look(1_000_000, &[("", 5_000), ("a", 1_000)]);
        let after = look(
            2_000_000,
            &[("", 505_000), ("a", 251_000), ("b\u{1b}[2J", 250_000)],
        );
        let shown = rows(&before, &after, Sort::Cpu, "");
        let found: Vec<_> = shown
            .iter()
            .map(|row| (row.cells()[7].clone(), row.cpu))
            .collect();
        let expected = [("/", 500), ("/a", 250), ("/b?[2J", 250)];
        assert_eq!(found, expected.map(|(path, cpu)| (path.to_owned(), cpu)));
        assert_eq!(rows(&before, &after, Sort::Path, "a").len(), 1);
        let text = table(&shown);
        assert_eq!(text.lines().count(), 4);
        assert!(text.starts_with("  CPU  WEIGHT"), "{text}");
    }

    #[test]
    fn times_have_three_digits() {
        assert_eq!(
            [time(0), time(1_500), time(12_340_000), time(2_000_000_000)],
            ["0.00ns", "1.50us", "12.3ms", "2.00s"]
        );
    }
}
