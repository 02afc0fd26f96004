//! Two traces side by side: what was simulated against what was recorded.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::statistics::{Delays, Figures};

/// One figure of one task or group in both traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// `group`, `task` (all of one name and group together) or `trace`.
    pub of: &'static str,
    /// Its path or name.
    pub name: String,
    /// Which figure; the unit is its last part.
    pub metric: &'static str,
    /// In the first trace.
    pub a: f64,
    /// In the second.
    pub b: f64,
    /// `b - a`.
    pub difference: f64,
    /// `(b - a) / a` in percent; `None` if a is 0 and b is not.
    pub error_percent: Option<f64>,
}

/// All figures of two traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Figures that exist in both.
    pub rows: Vec<Metric>,
    /// Groups and tasks that only the first has.
    pub only_in_a: Vec<String>,
    /// Groups and tasks that only the second has.
    pub only_in_b: Vec<String>,
}

/// Compares. CPU time is a share of the trace's length (`cpus`), so that traces of different lengths compare.
pub fn compare(a: &Figures, b: &Figures) -> Comparison {
    let mut comparison = Comparison {
        rows: Vec::new(),
        only_in_a: Vec::new(),
        only_in_b: Vec::new(),
    };
    let whole = |figures: &Figures| {
        let busy = figures.cpus.iter().map(|cpu| cpu.busy_ns).sum::<u64>();
        let switches = figures.cpus.iter().map(|cpu| cpu.switches).sum::<u64>();
        vec![
            ("cpus", per_second(busy, figures) / 1e9),
            ("switches_per_s", per_second(switches, figures)),
            ("migrations_per_s", per_second(figures.migrations, figures)),
        ]
    };
    comparison.add("trace", "", &whole(a), &whole(b));
    comparison.pair("group", &groups(a), &groups(b));
    comparison.pair("task", &tasks(a), &tasks(b));
    comparison
}

type Values = Vec<(&'static str, f64)>;

fn per_second(amount: u64, figures: &Figures) -> f64 {
    amount as f64 * 1e9 / figures.duration_ns.max(1) as f64
}

fn delays(delay: &Delays) -> Values {
    vec![
        ("delay_p50_us", delay.p50_ns as f64 / 1e3),
        ("delay_p90_us", delay.p90_ns as f64 / 1e3),
        ("delay_p99_us", delay.p99_ns as f64 / 1e3),
        ("delay_max_us", delay.max_ns as f64 / 1e3),
    ]
}

fn groups(figures: &Figures) -> BTreeMap<String, Values> {
    let values = |group: &crate::GroupFigures| {
        let mut values = vec![
            ("cpus", per_second(group.cpu_ns, figures) / 1e9),
            ("nr_periods", group.nr_periods as f64),
            ("nr_throttled", group.nr_throttled as f64),
            ("throttled_ms", group.throttled_ns as f64 / 1e6),
            ("nr_bursts", group.nr_bursts as f64),
        ];
        values.extend(delays(&group.delay));
        values
    };
    let named = figures.groups.iter();
    named
        .map(|group| (format!("/{}", group.group), values(group)))
        .collect()
}

/// Tasks by group and name: numbers differ between runs. Of the delays of several tasks the sum stands, as a mean.
fn tasks(figures: &Figures) -> BTreeMap<String, Values> {
    let mut sums: BTreeMap<String, (u64, u64, u64, u64, u64)> = BTreeMap::new();
    for task in &figures.tasks {
        let key = format!("/{}:{}", task.group, task.name);
        let sum = sums.entry(key).or_default();
        sum.0 += task.cpu_ns;
        sum.1 += task.runs;
        sum.2 += task.delay.sum_ns;
        sum.3 += task.delay.count;
        sum.4 = sum.4.max(task.delay.max_ns);
    }
    let values = |(cpu, runs, delay, waits, longest): (u64, u64, u64, u64, u64)| {
        vec![
            ("cpus", per_second(cpu, figures) / 1e9),
            ("runs_per_s", per_second(runs, figures)),
            ("delay_mean_us", delay as f64 / waits.max(1) as f64 / 1e3),
            ("delay_max_us", longest as f64 / 1e3),
        ]
    };
    sums.into_iter()
        .map(|(key, sum)| (key, values(sum)))
        .collect()
}

impl Comparison {
    fn pair(
        &mut self,
        of: &'static str,
        a: &BTreeMap<String, Values>,
        b: &BTreeMap<String, Values>,
    ) {
        for (name, values) in a {
            match b.get(name) {
                Some(others) => self.add(of, name, values, others),
                None => self.only_in_a.push(format!("{of} {name}")),
            }
        }
        let new = b.keys().filter(|name| !a.contains_key(*name));
        self.only_in_b
            .extend(new.map(|name| format!("{of} {name}")));
    }

    fn add(&mut self, of: &'static str, name: &str, a: &Values, b: &Values) {
        for ((metric, a), (_, b)) in a.iter().zip(b) {
            let difference = b - a;
            let error_percent = if *a != 0.0 {
                Some(difference / a * 100.0)
            } else {
                (*b == 0.0).then_some(0.0)
            };
            self.rows.push(Metric {
                of,
                name: name.to_owned(),
                metric,
                a: *a,
                b: *b,
                difference,
                error_percent,
            });
        }
    }
}
