//! The settings of a group: the one table that the reader, the printed reference and the schema are made of.

use std::time::Duration;

use quotient::{Cpus, GroupConfig, Max, Share};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// One setting.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Field {
    /// Its key in the file.
    pub name: &'static str,
    /// What may stand there.
    pub kind: Kind,
    /// What a group has of which nothing is said.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
    set: fn(GroupConfig, Value) -> GroupConfig,
}

/// What may stand at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// An integer in this range, both ends included.
    Integer {
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// `true` or `false`.
    Boolean,
    /// A text of digits and `ns`, `us`, `ms` or `s`.
    Duration,
    /// A limit: a text, `{ cpus = 1.5 }` or `{ share = 0.2 }`.
    Limit,
}

/// What was read.
#[derive(Debug)]
enum Value {
    Integer(u64),
    Boolean(bool),
    Duration(Duration),
    Limit(Max),
}

/// Every setting of a group, in the order of the reference.
pub const FIELDS: &[Field] = &[
    Field {
        name: "weight",
        kind: Kind::Integer {
            min: 1,
            max: 10_000,
        },
        default: "100",
        meaning: "share of the processors beside the siblings when there is not enough for all (cgroup cpu.weight)",
        set: |config, value| match value {
            Value::Integer(weight) => config.weight(u32::try_from(weight).unwrap_or(u32::MAX)),
            _ => config,
        },
    },
    Field {
        name: "idle",
        kind: Kind::Boolean,
        default: "false",
        meaning: "whether the group gets only a sliver beside any other (cgroup cpu.idle)",
        set: |config, value| match value {
            Value::Boolean(idle) => config.idle(idle),
            _ => config,
        },
    },
    Field {
        name: "max",
        kind: Kind::Limit,
        default: "\"max\"",
        meaning: "CPU time in each period, descendants included (cgroup cpu.max); quota from 1 ms, period 1 ms to 1 s",
        set: |config, value| match value {
            Value::Limit(max) => config.max(max),
            _ => config,
        },
    },
    Field {
        name: "burst",
        kind: Kind::Duration,
        default: "\"0ms\"",
        meaning: "unused quota that may be carried over to later periods (cgroup cpu.max.burst); needs max",
        set: |config, value| match value {
            Value::Duration(burst) => config.burst(burst),
            _ => config,
        },
    },
    Field {
        name: "soft",
        kind: Kind::Boolean,
        default: "false",
        meaning: "whether the limit may be exceeded on processors that have nothing else to run; needs max",
        set: |config, value| match value {
            Value::Boolean(soft) => config.soft(soft),
            _ => config,
        },
    },
    Field {
        name: "smooth",
        kind: Kind::Boolean,
        default: "false",
        meaning: "whether the quota is refilled in small parts over the period instead of at its start; needs max",
        set: |config, value| match value {
            Value::Boolean(smooth) => config.smooth(smooth),
            _ => config,
        },
    },
    Field {
        name: "tasks_max",
        kind: Kind::Integer {
            min: 0,
            max: i64::MAX,
        },
        default: "no bound",
        meaning: "tasks at a time, descendants' included (cgroup pids.max); further ones are refused",
        set: |config, value| match value {
            Value::Integer(tasks) => config.tasks_max(usize::try_from(tasks).unwrap_or(usize::MAX)),
            _ => config,
        },
    },
    Field {
        name: "queue_wait_max",
        kind: Kind::Duration,
        default: "no bound",
        meaning: "how long tasks and requests may wait for their first poll before new ones are refused",
        set: |config, value| match value {
            Value::Duration(wait) => config.queue_wait_max(wait),
            _ => config,
        },
    },
    Field {
        name: "preemptible",
        kind: Kind::Boolean,
        default: "true",
        meaning: "whether polls that do not return may be stopped, where the program preempts; what the topmost group says holds for its descendants",
        set: |config, value| match value {
            Value::Boolean(preemptible) => config.preemptible(preemptible),
            _ => config,
        },
    },
];

impl Field {
    /// The field of that key.
    pub(crate) fn find(name: &str) -> Option<&'static Field> {
        FIELDS.iter().find(|field| field.name == name)
    }

    /// The settings with what stands at this field's key.
    ///
    /// # Errors
    /// What is there, and what is allowed; the offset of each part that is wrong.
    pub(crate) fn read(
        &self,
        config: GroupConfig,
        value: &Spanned<DeValue<'_>>,
        vcpus: usize,
    ) -> Result<GroupConfig, Vec<(usize, String)>> {
        let at = value.span().start;
        let read = self.kind.read(value).map_err(|problem| vec![problem])?;
        if let Value::Limit(max) = &read {
            // Texts are read, and shares worked out, where they are used: so that is what has to be tried.
            let limit = GroupConfig::new().max(max.clone());
            let problems = limit.problems("", vcpus).into_iter();
            let problems: Vec<_> = problems.map(|error| (at, error.to_string())).collect();
            if !problems.is_empty() {
                return Err(problems);
            }
        }
        Ok((self.set)(config, read))
    }
}

impl Kind {
    /// What is allowed, in words.
    pub fn allowed(&self) -> String {
        match self {
            Self::Integer { min, max: i64::MAX } => format!("integers from {min}"),
            Self::Integer { min, max } => format!("{min} to {max}"),
            Self::Boolean => "true and false".to_owned(),
            Self::Duration => "digits with ns, us, ms or s, such as \"250ms\"".to_owned(),
            Self::Limit => {
                format!(
                    "\"50ms/100ms\", \"50000 100000\" (us), \"max\", {{ cpus = 1.5 }} (0.01 to {}) and {{ share = 0.2 }}",
                    quotient::MAX_VCPUS
                )
            }
        }
    }

    fn read(&self, value: &Spanned<DeValue<'_>>) -> Result<Value, (usize, String)> {
        let at = value.span().start;
        let refuse = || {
            (
                at,
                format!(
                    "is {}, allowed are {}",
                    shown(value.get_ref()),
                    self.allowed()
                ),
            )
        };
        match (self, value.get_ref()) {
            (Self::Boolean, DeValue::Boolean(flag)) => Ok(Value::Boolean(*flag)),
            (Self::Integer { min, max }, DeValue::Integer(number)) => {
                let read = i64::from_str_radix(number.as_str(), number.radix());
                let in_range = read.ok().filter(|number| (min..=max).contains(&number));
                let unsigned = in_range.and_then(|number| u64::try_from(number).ok());
                unsigned.map(Value::Integer).ok_or_else(refuse)
            }
            (Self::Duration, DeValue::String(text)) => {
                duration(text).map(Value::Duration).ok_or_else(refuse)
            }
            (Self::Limit, DeValue::String(text)) => Ok(Value::Limit(Max::from(text.as_ref()))),
            (Self::Limit, DeValue::Table(table)) => {
                part(table).map(Value::Limit).ok_or_else(refuse)
            }
            _ => Err(refuse()),
        }
    }
}

/// `{ cpus = 1.5 }` or `{ share = 0.2 }`.
fn part(table: &DeTable<'_>) -> Option<Max> {
    let mut entries = table.iter();
    let (key, value): (&Spanned<DeString<'_>>, _) = entries.next()?;
    if entries.next().is_some() {
        return None;
    }
    let number: f64 = match value.get_ref() {
        DeValue::Float(number) => number.as_str().parse().ok()?,
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok()?,
        _ => return None,
    };
    match key.get_ref().as_ref() {
        // More than any scheduler can have would never bind.
        "cpus" if number <= quotient::MAX_VCPUS as f64 => Some(Max::from(Cpus(number))),
        "share" => Some(Max::from(Share(number))),
        _ => None,
    }
}

/// Digits and a unit, nothing else.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "ns" => Some(Duration::from_nanos(amount)),
        "us" => Some(Duration::from_micros(amount)),
        "ms" => Some(Duration::from_millis(amount)),
        "s" => Some(Duration::from_secs(amount)),
        _ => None,
    }
}

/// A value as an error shows it: texts are cut, and collections are named.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => {
            let cut: String = text.chars().take(64).collect();
            format!("{cut:?}")
        }
        DeValue::Integer(number) => number.as_str().chars().take(64).collect(),
        DeValue::Float(number) => number.as_str().chars().take(64).collect(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(table) => {
            let mut entries = table.iter();
            match (entries.next(), entries.next()) {
                (Some((key, value)), None) if !matches!(value.get_ref(), DeValue::Table(_)) => {
                    let key: String = key.get_ref().chars().take(64).collect();
                    format!("{{ {key} = {} }}", shown(value.get_ref()))
                }
                _ => "a table of other keys or values".to_owned(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_digits_and_a_unit() {
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("2s"), Some(Duration::from_secs(2)));
        for bad in [
            "",
            "ms",
            "1",
            "1 s",
            "-1s",
            "1.5s",
            "1h",
            "99999999999999999999s",
            "1µs",
        ] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
