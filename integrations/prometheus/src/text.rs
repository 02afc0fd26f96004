//! The text format: samples of each family together, in one pass over the groups.

use std::time::Duration;

use crate::families::{FAMILIES, Kind};

/// Room for a line. Unit: bytes. Default 96: a longer one makes its buffer grow.
const LINE_BYTES: usize = 96;

/// One buffer a family, so that a group's figures are read once and each family's samples are still written together.
pub(crate) struct Page {
    families: Vec<String>,
}

impl Page {
    pub(crate) fn new(groups: usize, histograms: bool) -> Self {
        let room = |kind: Kind| match kind {
            Kind::Histogram if histograms => 14 * LINE_BYTES,
            Kind::Histogram => 0,
            _ => LINE_BYTES,
        };
        let buffers = FAMILIES
            .iter()
            .map(|family| String::with_capacity(groups.saturating_mul(room(family.kind))));
        Self {
            families: buffers.collect(),
        }
    }

    /// A sample with a whole number; `labels` begins with a brace and has none at its end, or is empty.
    pub(crate) fn integer(&mut self, family: usize, labels: &str, value: u64) {
        let buffer = self.begin(family, "", labels);
        integer(buffer, value);
        buffer.push('\n');
    }

    /// A sample in seconds, exact to the nanosecond.
    pub(crate) fn seconds(&mut self, family: usize, labels: &str, value: Duration) {
        let buffer = self.begin(family, "", labels);
        seconds(buffer, value);
        buffer.push('\n');
    }

    /// One line of a histogram: `suffix` is `_bucket`, `_sum` or `_count`.
    pub(crate) fn part(
        &mut self,
        family: usize,
        suffix: &str,
        labels: &str,
        le: Option<&str>,
    ) -> &mut String {
        let Some(le) = le else {
            return self.begin(family, suffix, labels);
        };
        let buffer = &mut self.families[family];
        buffer.push_str(FAMILIES[family].name);
        buffer.push_str(suffix);
        buffer.push_str(labels);
        buffer.push_str(",le=\"");
        buffer.push_str(le);
        buffer.push_str("\"} ");
        buffer
    }

    fn begin(&mut self, family: usize, suffix: &str, labels: &str) -> &mut String {
        let buffer = &mut self.families[family];
        buffer.push_str(FAMILIES[family].name);
        buffer.push_str(suffix);
        buffer.push_str(labels);
        buffer.push_str(if labels.is_empty() { " " } else { "} " });
        buffer
    }

    /// The families that have samples, each with its help and type.
    pub(crate) fn finish(self) -> String {
        let length: usize = self
            .families
            .iter()
            .map(|buffer| buffer.len() + 3 * LINE_BYTES)
            .sum();
        let mut page = String::with_capacity(length);
        for (family, samples) in FAMILIES.iter().zip(&self.families) {
            if samples.is_empty() {
                continue;
            }
            let head = [
                "# HELP ",
                family.name,
                " ",
                family.help,
                "\n# TYPE ",
                family.name,
                " ",
            ];
            head.iter().for_each(|part| page.push_str(part));
            page.push_str(family.kind.name());
            page.push('\n');
            page.push_str(samples);
        }
        page
    }
}

/// A label's value: names of groups come from users, and may hold quotes and backslashes.
pub(crate) fn escaped(value: &str, into: &mut String) {
    for letter in value.chars() {
        match letter {
            '\\' => into.push_str("\\\\"),
            '"' => into.push_str("\\\""),
            '\n' => into.push_str("\\n"),
            letter => into.push(letter),
        }
    }
}

/// Decimal digits. By hand, because formatting by traits is half of a scrape.
pub(crate) fn integer(into: &mut String, mut value: u64) {
    let mut digits = [b'0'; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        // A digit: below ten.
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    into.extend(digits[start..].iter().map(|digit| char::from(*digit)));
}

/// Seconds with nine decimals, or none if they are zeros.
pub(crate) fn seconds(into: &mut String, value: Duration) {
    integer(into, value.as_secs());
    let mut nanos = value.subsec_nanos();
    if nanos == 0 {
        return;
    }
    let mut digits = [b'0'; 9];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (nanos % 10) as u8;
        nanos /= 10;
    }
    into.push('.');
    into.extend(digits.iter().map(|digit| char::from(*digit)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_exactly() {
        let written = |value: u64| {
            let mut text = String::new();
            integer(&mut text, value);
            text
        };
        for value in [0, 7, 10, 1_000, u64::MAX] {
            assert_eq!(written(value), value.to_string());
        }
        for (value, expected) in [
            (Duration::ZERO, "0"),
            (Duration::from_secs(3), "3"),
            (Duration::from_nanos(1), "0.000000001"),
            (Duration::from_millis(1_050), "1.050000000"),
        ] {
            let mut text = String::new();
            seconds(&mut text, value);
            assert_eq!(text, expected);
        }
    }
}
