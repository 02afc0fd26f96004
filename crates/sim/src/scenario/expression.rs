//! Figures of runs, and arithmetic with them: `run:p99[web] / 1ms`, `close(usage[a], usage[b], 15)`.
//!
//! ```text
//! sum     = product (("+" | "-") product)*
//! product = atom (("*" | "/") atom)*
//! atom    = number [unit of time] | "(" sum ")" | "-" atom | close(sum, sum, sum) | [run ":"] figure
//! figure  = name | name "[" group, workload, meter or mechanism "]"
//! run     = a name, or a string in quotation marks
//! ```

use super::values::time;
use crate::outcome::Outcome;

/// How deep parentheses may nest.
const DEPTH_MAX: u32 = 32;

/// Figures of a run as a whole.
const WHOLE: [&str; 7] = [
    "elapsed",
    "cpus",
    "busy",
    "system",
    "user",
    "sampled_system",
    "sampled_user",
];
/// Figures of a group, by path.
const GROUP: [&str; 8] = [
    "usage",
    "group_system",
    "periods",
    "throttled",
    "throttled_time",
    "bursts",
    "burst_time",
    "throttled_share",
];
/// Figures of a meter, by name.
const METER: [&str; 8] = [
    "done", "last", "mean", "p50", "p90", "p99", "p999", "longest",
];
/// Figures of a workload, by name.
const WORKLOAD: [&str; 9] = [
    "finished",
    "work",
    "least",
    "most",
    "delay",
    "wake_p50",
    "wake_p99",
    "wake_p999",
    "wake_max",
];

/// Computes an expression over finished runs, the first of which is meant where none is named.
///
/// # Errors
/// What is wrong, and at which character of the expression (from 1).
pub(super) fn evaluate(text: &str, runs: &[(String, &Outcome)]) -> Result<f64, String> {
    let mut parser = Parser {
        text,
        at: 0,
        runs,
        depth: 0,
    };
    let value = parser.sum()?;
    parser.skip();
    if parser.at < text.len() {
        return Err(parser.wrong("an operator or the end"));
    }
    Ok(value)
}

/// Longest piece of an expression that an error shows. Unit: characters.
const EXCERPT: usize = 80;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    runs: &'a [(String, &'a Outcome)],
    depth: u32,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn wrong(&self, expected: &str) -> String {
        let before = self.text[..self.at].chars().count();
        // Around the place, since a text may be endless.
        let from = before.saturating_sub(EXCERPT / 2);
        let shown: String = self.text.chars().skip(from).take(EXCERPT).collect();
        let is_whole = from == 0 && shown.len() == self.text.len();
        let part = if is_whole {
            ""
        } else {
            "a longer text, there "
        };
        format!(
            "expected {expected} at character {} of {part}{shown:?}",
            before + 1
        )
    }

    /// Takes a character if it is next.
    fn take(&mut self, wanted: char) -> bool {
        self.skip();
        let found = self.rest().starts_with(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value += self.product()?;
            } else if self.take('-') {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.atom()?;
        loop {
            if self.take('*') {
                value *= self.atom()?;
            } else if self.take('/') {
                value /= self.atom()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn atom(&mut self) -> Result<f64, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong("at most 32 levels"));
        }
        let value = self.atom_inside();
        self.depth -= 1;
        value
    }

    fn atom_inside(&mut self) -> Result<f64, String> {
        if self.take('(') {
            let value = self.sum()?;
            return self.close_with(')', value);
        }
        if self.take('-') {
            return Ok(-self.atom()?);
        }
        self.skip();
        match self.rest().chars().next() {
            Some(first) if first.is_ascii_digit() => self.number(),
            Some(first) if first.is_alphabetic() || first == '"' => self.named(),
            _ => Err(self.wrong("a number, a figure or a parenthesis")),
        }
    }

    fn close_with(&mut self, end: char, value: f64) -> Result<f64, String> {
        if self.take(end) {
            Ok(value)
        } else {
            Err(self.wrong(&format!("{end:?}")))
        }
    }

    fn number(&mut self) -> Result<f64, String> {
        let rest = self.rest();
        let digits = |byte: u8| byte.is_ascii_digit() || byte == b'.';
        let length = rest.bytes().take_while(|&byte| digits(byte)).count();
        let letters = |byte: u8| byte.is_ascii_alphabetic();
        let unit = rest[length..]
            .bytes()
            .take_while(|&byte| letters(byte))
            .count();
        let (number, whole) = (&rest[..length], &rest[..length + unit]);
        let value = if unit == 0 {
            number.parse().ok()
        } else {
            time(whole).ok().map(|time| time.0 as f64)
        };
        let value = value.ok_or_else(|| self.wrong("a number or a time"))?;
        self.at += length + unit;
        Ok(value)
    }

    fn word(&mut self) -> Result<String, String> {
        self.skip();
        let rest = self.rest();
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted
                .find('"')
                .ok_or_else(|| self.wrong("a second quotation mark"))?;
            let word = quoted[..end].to_owned();
            self.at += end + 2;
            return Ok(word);
        }
        let part = |letter: char| letter.is_alphanumeric() || "_.-".contains(letter);
        let mut length: usize = rest
            .chars()
            .take_while(|&letter| part(letter))
            .map(char::len_utf8)
            .sum();
        // A minus at the end belongs to the arithmetic.
        while rest[..length].ends_with('-') {
            length -= 1;
        }
        let word = rest[..length].to_owned();
        self.at += length;
        Ok(word)
    }

    fn named(&mut self) -> Result<f64, String> {
        let start = self.at;
        let mut word = self.word()?;
        if word == "close" && self.take('(') {
            return self.closeness();
        }
        let mut run = 0;
        if self.rest().starts_with(':') {
            self.at += 1;
            run = match self.runs.iter().position(|(name, _)| *name == word) {
                Some(run) => run,
                None => {
                    self.at = start;
                    let names: Vec<&str> =
                        self.runs.iter().map(|(name, _)| name.as_str()).collect();
                    return Err(self.wrong(&format!("one of the runs {}", names.join(", "))));
                }
            };
            word = self.word()?;
        }
        let mut of = None;
        if self.rest().starts_with('[') {
            let rest = self.rest();
            let end = rest
                .find(']')
                .ok_or_else(|| self.wrong("a closing bracket"))?;
            of = Some(rest[1..end].to_owned());
            self.at += end + 1;
        }
        let Some((_, outcome)) = self.runs.get(run) else {
            return Err(self.wrong("a run"));
        };
        let value = figure(outcome, &word, of.as_deref());
        value.ok_or_else(|| {
            self.at = start;
            let of = of.unwrap_or_default();
            if word == "finished" && outcome.workload(&of).is_some() {
                return self.wrong(&format!("workload {of} to end, which it did not,"));
            }
            let found = kinds_of(&word);
            let names = match found {
                "group" => list(outcome.groups.iter().map(|group| &*group.path)),
                "meter" => list(outcome.meters.iter().map(|meter| &*meter.name)),
                "workload" => list(outcome.workloads.iter().map(|load| &*load.name)),
                "count" => COUNTS.join(", "),
                "spent" => SPENT.join(", "),
                _ => return self.wrong("a known figure (`quotient help scenario` lists them)"),
            };
            if names.is_empty() {
                return self.wrong(&format!(
                    "another figure than `{word}[...]`, which is of a {found}, and there is none,"
                ));
            }
            self.wrong(&format!("`{word}[...]` of a {found}, one of {names},"))
        })
    }

    /// The kernel selftests' tolerance: 1 if `a` and `b` differ by at most e per cent of their sum, else 0.
    fn closeness(&mut self) -> Result<f64, String> {
        let mut values = [0.0; 3];
        for (index, value) in values.iter_mut().enumerate() {
            if index > 0 && !self.take(',') {
                return Err(self.wrong("','"));
            }
            *value = self.sum()?;
        }
        let [one, other, percent] = values;
        let is_close = (one - other).abs() <= (one + other) / 100.0 * percent;
        self.close_with(')', f64::from(u8::from(is_close)))
    }
}

/// What a figure is of.
fn kinds_of(name: &str) -> &'static str {
    match name {
        "count" => "count",
        "spent" => "spent",
        _ if GROUP.contains(&name) => "group",
        _ if METER.contains(&name) => "meter",
        _ if WORKLOAD.contains(&name) => "workload",
        _ => "run",
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let shown: Vec<String> = names
        .filter(|name| !name.is_empty())
        .take(8)
        .map(|name| format!("{name:?}"))
        .collect();
    shown.join(", ")
}

/// A figure of a run. Times are in ns. 64-bit integers beyond 2^53 lose their last bits, which no expectation sees.
fn figure(outcome: &Outcome, name: &str, of: Option<&str>) -> Option<f64> {
    let value = match (name, of) {
        ("elapsed", None) => outcome.elapsed_ns,
        ("cpus", None) => u64::from(outcome.cpus),
        ("busy", None) => outcome.busy_ns,
        ("system", None) => outcome.system_ns,
        ("user", None) => outcome.busy_ns - outcome.system_ns,
        ("sampled_system", None) => return Some(outcome.sampled_system_ns()),
        ("sampled_user", None) => {
            return Some(outcome.busy_ns as f64 - outcome.sampled_system_ns());
        }
        ("count" | "spent", Some(of)) => mechanism(outcome, name == "spent", of)?,
        ("throttled_share", Some(of)) => {
            let group = outcome.group(of)?;
            return Some(group.nr_throttled as f64 / group.nr_periods.max(1) as f64);
        }
        (_, Some(of)) if GROUP.contains(&name) => group(outcome, name, of)?,
        (_, Some(of)) if METER.contains(&name) => meter(outcome, name, of)?,
        (_, Some(of)) if WORKLOAD.contains(&name) => workload(outcome, name, of)?,
        _ => return None,
    };
    Some(value as f64)
}

fn group(outcome: &Outcome, name: &str, path: &str) -> Option<u64> {
    let group = outcome.group(path)?;
    Some(match name {
        "usage" => group.usage_ns,
        "group_system" => group.system_ns,
        "periods" => group.nr_periods,
        "throttled" => group.nr_throttled,
        "throttled_time" => group.throttled_ns,
        "bursts" => group.nr_bursts,
        _ => group.burst_ns,
    })
}

fn meter(outcome: &Outcome, name: &str, of: &str) -> Option<u64> {
    let meter = outcome.meter(of)?;
    Some(match name {
        "done" => meter.done,
        "last" => meter.last_ns,
        "mean" => meter.times.mean_ns,
        "p50" => meter.times.p50_ns,
        "p90" => meter.times.p90_ns,
        "p99" => meter.times.p99_ns,
        "p999" => meter.times.p999_ns,
        _ => meter.times.max_ns,
    })
}

fn workload(outcome: &Outcome, name: &str, of: &str) -> Option<u64> {
    let load = outcome.workload(of)?;
    Some(match name {
        "finished" => load.finished_ns?,
        "work" => load.usage_ns,
        "least" => load.usage_min_ns,
        "most" => load.usage_max_ns,
        "delay" => load.run_delay_ns,
        "wake_p50" => load.latency.p50_ns,
        "wake_p99" => load.latency.p99_ns,
        "wake_p999" => load.latency.p999_ns,
        _ => load.latency.max_ns,
    })
}

/// How often things happened: `count[...]`.
const COUNTS: [&str; 10] = [
    "events",
    "switches",
    "wakeups",
    "migrations",
    "ticks",
    "ipis",
    "synchronizations",
    "average_updates",
    "rt_throttled",
    "refused",
];
/// What system time went to: `spent[...]`.
const SPENT: [&str; 13] = [
    "exposure",
    "switch",
    "tick",
    "load_average",
    "ipi",
    "wake",
    "migration",
    "syscall",
    "kernel",
    "clock",
    "noise",
    "bandwidth",
    "stolen",
];

/// Every figure, by what it is of.
pub(super) fn figures() -> [(&'static str, Vec<&'static str>); 6] {
    [
        ("of the run", WHOLE.to_vec()),
        ("[group]", GROUP.to_vec()),
        ("[meter]", METER.to_vec()),
        ("[workload]", WORKLOAD.to_vec()),
        ("count[...]", COUNTS.to_vec()),
        ("spent[...]", SPENT.to_vec()),
    ]
}

fn mechanism(outcome: &Outcome, spent: bool, of: &str) -> Option<u64> {
    let all = &outcome.mechanisms;
    let counts = [
        all.events,
        all.switches,
        all.wakeups,
        all.migrations,
        all.ticks,
        all.ipis,
        all.synchronizations,
        all.average_updates,
        all.rt_throttled,
        all.refused,
    ];
    let times = [
        all.exposure_ns,
        all.switch_ns,
        all.tick_ns,
        all.load_average_ns,
        all.ipi_ns,
        all.wake_ns,
        all.migration_ns,
        all.syscall_ns,
        all.kernel_ns,
        all.clock_ns,
        all.noise_ns,
        all.bandwidth_ns,
        all.stolen_ns,
    ];
    if spent {
        let place = SPENT.iter().position(|name| *name == of)?;
        Some(times[place])
    } else {
        let place = COUNTS.iter().position(|name| *name == of)?;
        Some(counts[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Plan, Simulation, synthetic};
    use quotient_trace::Discard;

    #[test]
    fn figures_and_arithmetic() {
        let mut plan = Plan::new(Machine::flat(2));
        let group = plan.group("a/b-c");
        synthetic::spinners(&mut plan, "spin", group, 2);
        let mut simulation = Simulation::new(&plan, Discard).unwrap();
        simulation.run().unwrap();
        let outcome = simulation.outcome();
        let runs = [("one".to_owned(), &outcome), ("x/2".to_owned(), &outcome)];
        for (text, expected) in [
            ("1 + 2 * 3 - 4 / 2", 5.0),
            ("-(1 - 3)", 2.0),
            ("1.5ms", 1_500_000.0),
            ("usage[a/b-c] / 1s", 2.0),
            ("one:elapsed - \"x/2\":elapsed", 0.0),
            ("close(99, 101, 1) + close(90, 110, 1)", 1.0),
            ("count[switches]", 2.0),
            ("most[spin]/least[spin]", 1.0),
        ] {
            assert_eq!(evaluate(text, &runs), Ok(expected), "{text}");
        }
        for (of, names) in figures() {
            for name in names {
                let text = match of {
                    "of the run" => name.to_owned(),
                    "[group]" => format!("{name}[a/b-c]"),
                    "[workload]" if name == "finished" => continue,
                    "[workload]" => format!("{name}[spin]"),
                    "[meter]" => continue,
                    _ => of.replace("...", name),
                };
                assert!(evaluate(&text, &runs).is_ok(), "{text}");
            }
        }
        let deep = "(".repeat(100_000);
        for text in [
            "",
            "1 +",
            "usage",
            "usage[x]",
            "two:elapsed",
            "1 2",
            "usage[a",
            "\"x",
            &deep,
            "close(1,2)",
            "é",
        ] {
            let said = evaluate(text, &runs).expect_err(text);
            assert!(said.len() < 1_000, "{said}");
        }
    }
}
