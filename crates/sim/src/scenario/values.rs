//! Values as people write them: times with units, spans, counts that follow the machine. Each says what it would accept.

use crate::random::Span;
use quotient_core::Nanos;
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

/// Units of time, longest name first where one ends like another.
const UNITS: [(&str, u64); 5] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
];

/// A value without its place.
pub(super) fn of<T: Copy>(given: Option<&Spanned<T>>) -> Option<T> {
    given.map(|given| *given.get_ref())
}

/// A time without its place.
pub(super) fn time_of(given: Option<&Spanned<Time>>) -> Option<Nanos> {
    of(given).map(|Time(time)| time)
}

/// Reads a time such as `1.5ms`: a decimal number and one of ns, us, ms, s, min.
///
/// # Errors
/// What would be accepted.
pub fn time(text: &str) -> Result<Nanos, String> {
    let wrong = || format!("{text:?} is not a time such as \"5ms\" (ns, us, ms, s or min)");
    let trimmed = text.trim();
    let (number, scale) = UNITS
        .iter()
        .find_map(|(unit, scale)| Some((trimmed.strip_suffix(unit)?, *scale)))
        .ok_or_else(wrong)?;
    let (whole, fraction) = match number.trim().split_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None => (number.trim(), ""),
    };
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return Err(wrong());
    }
    let mut value: u64 = 0;
    for digit in whole.bytes() {
        value = value
            .checked_mul(10)
            .and_then(|value| value.checked_add(u64::from(digit - b'0')))
            .ok_or_else(wrong)?;
    }
    let mut nanos = value.checked_mul(scale).ok_or_else(wrong)?;
    let mut place = scale;
    for digit in fraction.bytes() {
        place /= 10;
        nanos = nanos
            .checked_add(u64::from(digit - b'0') * place)
            .ok_or_else(wrong)?;
    }
    Ok(Nanos(nanos))
}

/// Reads a span: `5ms` always, `1ms..3ms` evenly between, `~5ms` exponential with that mean.
///
/// # Errors
/// What would be accepted.
pub fn span(text: &str) -> Result<Span, String> {
    if let Some(mean) = text.trim().strip_prefix('~') {
        return Ok(Span::Exponential { mean: time(mean)? });
    }
    let Some((low, high)) = text.split_once("..") else {
        return Ok(Span::Fixed(time(text)?));
    };
    let (low, high) = (time(low)?, time(high)?);
    if low > high {
        return Err(format!("{text:?} ends before it begins"));
    }
    Ok(Span::Uniform { low, high })
}

/// What is read from a text, and what is said to be expected of anything else.
struct Written<T>(&'static str, fn(&str) -> Result<T, String>);

impl<T> de::Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }
}

/// A time in a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(pub Nanos);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let expected = "a time such as \"5ms\" (ns, us, ms, s or min)";
        deserializer.deserialize_any(Written(expected, |text| time(text).map(Time)))
    }
}

/// A span in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanValue(pub Span);

impl<'de> Deserialize<'de> for SpanValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SpanValue, D::Error> {
        let expected = "a span of time such as \"5ms\", \"1ms..3ms\" or \"~5ms\"";
        deserializer.deserialize_any(Written(expected, |text| span(text).map(SpanValue)))
    }
}

/// Most tasks of one workload.
const COUNT_MAX: u64 = 1_000_000;

/// A number of tasks: fixed, or so many for each CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// So many.
    Fixed(u32),
    /// `cpus * times / parts`, at least one.
    PerCpu {
        /// Factor.
        times: u32,
        /// Divisor.
        parts: u32,
    },
}

impl Count {
    /// The number on a machine of `cpus`.
    pub fn on(self, cpus: u32) -> u32 {
        match self {
            Count::Fixed(count) => count,
            Count::PerCpu { times, parts } => (cpus.saturating_mul(times) / parts).max(1),
        }
    }

    fn parse(text: &str) -> Result<Count, String> {
        let wrong = || {
            format!(
                "{text:?} is neither a number in 1..={COUNT_MAX} nor \"cpus\", \"2*cpus\" or \"cpus/2\""
            )
        };
        let trimmed = text.trim();
        let number = |part: &str| {
            let parsed = part.trim().parse::<u32>().ok();
            parsed
                .filter(|value| (1..=1024).contains(value))
                .ok_or_else(wrong)
        };
        if trimmed == "cpus" {
            return Ok(Count::PerCpu { times: 1, parts: 1 });
        }
        if let Some(times) = trimmed.strip_suffix("cpus") {
            let times = times.trim().strip_suffix('*').ok_or_else(wrong)?;
            return Ok(Count::PerCpu {
                times: number(times)?,
                parts: 1,
            });
        }
        let parts = trimmed.strip_prefix("cpus").ok_or_else(wrong)?;
        let parts = parts.trim().strip_prefix('/').ok_or_else(wrong)?;
        Ok(Count::PerCpu {
            times: 1,
            parts: number(parts)?,
        })
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Count;
            fn expecting(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(formatter, "a number in 1..={COUNT_MAX} or \"cpus\"")
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Count, E> {
                let count = u64::try_from(value).ok();
                match count.filter(|count| (1..=COUNT_MAX).contains(count)) {
                    Some(count) => Ok(Count::Fixed(count as u32)),
                    None => Err(E::custom(format!("{value} is outside 1..={COUNT_MAX}"))),
                }
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Count, E> {
                self.visit_i64(i64::try_from(value).unwrap_or(i64::MAX))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Count, E> {
                Count::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_exactly() {
        for (text, nanos) in [
            ("5ms", 5_000_000),
            ("1.5us", 1_500),
            ("0.000000001s", 1),
            (" 2 min", 120_000_000_000),
            ("7ns", 7),
            (".5s", 500_000_000),
        ] {
            assert_eq!(time(text), Ok(Nanos(nanos)), "{text}");
        }
        for text in [
            "",
            "5",
            "ms",
            "-1ms",
            "1e3ms",
            "1.2.3s",
            "99999999999999999999s",
            "5 h",
            ".",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_and_counts() {
        assert!(matches!(
            span("~2ms"),
            Ok(Span::Exponential {
                mean: Nanos(2_000_000)
            })
        ));
        assert!(matches!(span("1us..2us"), Ok(Span::Uniform { .. })));
        assert!(span("2us..1us").is_err());
        assert_eq!(Count::parse("2*cpus").unwrap().on(8), 16);
        assert_eq!(Count::parse("cpus / 4").unwrap().on(8), 2);
        for text in ["", "cpu", "0*cpus", "cpus/0", "cpus*2", "*cpus"] {
            assert!(Count::parse(text).is_err(), "{text}");
        }
    }
}
