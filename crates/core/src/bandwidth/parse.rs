//! The text forms of a limit.
//!
//! | text | meaning |
//! |---|---|
//! | `50ms/100ms` | quota / period, each with a unit: `ns`, `us`, `ms` or `s` |
//! | `50000 100000` | cgroup v2's `cpu.max`: quota and period in us |
//! | `50000` | quota in us, the period stays (100 ms for a new limit) |
//! | `max`, `max 100000` | no limit; the period is checked and otherwise ignored |

use super::limit::{Limit, LimitError};
use crate::units::Nanos;

/// What is said about a text that is none of the forms.
const EXPECTED: &str = "expected \"QUOTA/PERIOD\" in whole numbers with units (50ms/100ms, 1500us/5ms), \"QUOTA PERIOD\" in us (50000 100000), or \"max\"";

impl Limit {
    /// Reads a limit; `None` is no limit. The result's ranges are checked like those of [`Limit::validate`], but for
    /// the burst, which has no text form.
    ///
    /// # Errors
    /// [`LimitError::Text`] for what is none of the forms, [`LimitError::OutOfRange`] for a value out of range.
    pub fn parse(text: &str) -> Result<Option<Limit>, LimitError> {
        Limit::parse_onto(text, Limit::new(Limit::QUOTA_MIN, Limit::PERIOD_DEFAULT))
    }

    /// As [`Limit::parse`], taking what the text does not say (burst, kind, maybe the period) from `base`.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn parse_onto(text: &str, base: Limit) -> Result<Option<Limit>, LimitError> {
        let limit = Limit::read_onto(text, base)?;
        if let Some(limit) = limit {
            Limit {
                burst: Nanos::ZERO,
                ..limit
            }
            .validate(false)?;
        }
        Ok(limit)
    }

    /// As [`Limit::parse_onto`], but ranges are not looked at: for who asks for [`Limit::problems`] afterwards, of which there may be several.
    ///
    /// # Errors
    /// [`LimitError::Text`]; [`LimitError::OutOfRange`] for the period of a text that says `max`.
    pub fn read_onto(text: &str, base: Limit) -> Result<Option<Limit>, LimitError> {
        let trimmed = text.trim();
        let limit = if let Some((quota, period)) = trimmed.split_once('/') {
            Some((
                with_unit(text, quota.trim())?,
                with_unit(text, period.trim())?,
            ))
        } else {
            cgroup_form(text, trimmed, base.period)?
        };
        let Some((quota, period)) = limit else {
            return Ok(None);
        };
        Ok(Some(Limit {
            quota,
            period,
            ..base
        }))
    }
}

fn cgroup_form(
    text: &str,
    trimmed: &str,
    period: Nanos,
) -> Result<Option<(Nanos, Nanos)>, LimitError> {
    let mut words = trimmed.split_ascii_whitespace();
    let (first, second) = (words.next(), words.next());
    let Some(first) = first.filter(|_| words.next().is_none()) else {
        return Err(LimitError::text(text, EXPECTED));
    };
    let period = match second {
        Some(word) => micros(text, word)?,
        None => period,
    };
    if first == "max" {
        // Whatever a quota were, its period would have to be right.
        Limit::new(Limit::QUOTA_MIN, period).validate(false)?;
        return Ok(None);
    }
    Ok(Some((micros(text, first)?, period)))
}

/// Decimal digits only: no sign, no separators, as the kernel reads it.
fn number(text: &str, digits: &str) -> Result<u64, LimitError> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(LimitError::text(text, EXPECTED));
    }
    // Too many digits are a number that is out of every range.
    Ok(digits.parse().unwrap_or(u64::MAX))
}

fn micros(text: &str, digits: &str) -> Result<Nanos, LimitError> {
    Ok(Nanos::from_micros(number(text, digits)?))
}

fn with_unit(text: &str, word: &str) -> Result<Nanos, LimitError> {
    let digits = word.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let amount = number(text, digits)?;
    match &word[digits.len()..] {
        "ns" => Ok(Nanos(amount)),
        "us" => Ok(Nanos::from_micros(amount)),
        "ms" => Ok(Nanos::from_millis(amount)),
        "s" => Ok(Nanos::from_secs(amount)),
        _ => Err(LimitError::text(text, EXPECTED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(quota_us: u64, period_us: u64) -> Limit {
        Limit::new(Nanos::from_micros(quota_us), Nanos::from_micros(period_us))
    }

    #[test]
    fn every_form_is_read() {
        for (text, expected) in [
            ("50ms/100ms", Some(limit(50_000, 100_000))),
            (" 50ms / 1s ", Some(limit(50_000, 1_000_000))),
            ("1500us/2000000ns", Some(limit(1_500, 2_000))),
            ("50000 100000", Some(limit(50_000, 100_000))),
            ("50000\t100000\n", Some(limit(50_000, 100_000))),
            ("1000", Some(limit(1_000, 100_000))),
            ("max", None),
            ("max 100000", None),
        ] {
            assert_eq!(Limit::parse(text), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn what_a_text_does_not_say_stays() {
        let base = limit(5_000, 20_000).with_burst(Nanos(7)).with_soft(true);
        let read = Limit::parse_onto("6000", base).unwrap().unwrap();
        assert_eq!(
            read,
            Limit {
                quota: Nanos::from_micros(6_000),
                ..base
            }
        );
        let written = read.to_string();
        assert_eq!(written, "6000 20000");
        assert_eq!(Limit::parse_onto(&written, base).unwrap(), Some(read));
    }

    #[test]
    fn garbage_is_refused_with_the_text() {
        for text in [
            "",
            " ",
            "/",
            "50ms",
            "50ms/",
            "ms/ms",
            "50/100",
            "-1",
            "+5000",
            "5e3",
            "max max",
            "1 2 3",
            "50 ms/100 ms",
            "MAX",
            "0x1000",
            "1_000",
            "50ms/100ms/1s",
            "\u{663}000",
            "nan",
        ] {
            let error = Limit::parse(text).unwrap_err();
            assert!(
                matches!(&error, LimitError::Text { text: shown, .. } if shown == text),
                "{text:?}: {error}"
            );
        }
        let long = "9".repeat(500);
        assert!(matches!(
            Limit::parse(&long),
            Err(LimitError::OutOfRange { field: "quota", .. })
        ));
        let long = "x".repeat(500);
        assert!(Limit::parse(&long).unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn ranges_are_the_kernels() {
        for (text, field) in [
            ("999 100000", "quota"),
            ("0 100000", "quota"),
            ("1000 999", "period"),
            ("1000 1000001", "period"),
            ("max 999", "period"),
            ("17592186044416 100000", "quota"),
        ] {
            match Limit::parse(text) {
                Err(LimitError::OutOfRange { field: found, .. }) => {
                    assert_eq!(found, field, "{text}")
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        let error = Limit::parse("999 100000").unwrap_err().to_string();
        assert_eq!(
            error,
            "quota of 999 us is outside 1 ms to 17592186.044415 s"
        );
        let burst = limit(5_000, 100_000).with_burst(Nanos::from_micros(5_001));
        assert!(burst.validate(true).is_err() && burst.validate(false).is_ok());
        assert!(Limit::cpus(f64::NAN).is_err() && Limit::cpus(-1.0).is_err());
        assert_eq!(Limit::cpus(0.5), Ok(limit(50_000, 100_000)));
    }
}
