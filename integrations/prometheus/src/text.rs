//! The text format: samples of each family together, in one pass over the groups.

use std::time::Duration;

use quotient::Histogram;

use crate::families::{FAMILIES, Kind, Sink, add_histogram};

/// Room for a line. Unit: bytes. Default 96: a longer one makes its buffer grow.
const LINE_BYTES: usize = 96;

/// One buffer a family, so that a group's figures are read once and each family's samples are still written together. Of bytes, which
/// are all UTF-8: what is copied is, and digits are.
#[derive(Default)]
pub(crate) struct Page {
    families: Vec<Vec<u8>>,
    /// `{id="/path"`, without its closing brace, or nothing.
    labels: Vec<u8>,
}

impl Page {
    /// Empty, with the room that it had before.
    pub(crate) fn clear(&mut self, groups: usize, histograms: bool) {
        self.labels.clear();
        let room = |kind: Kind| match kind {
            Kind::Histogram if histograms => 14 * LINE_BYTES,
            Kind::Histogram => 0,
            _ => LINE_BYTES,
        };
        self.families.resize_with(FAMILIES.len(), Vec::new);
        for (buffer, family) in self.families.iter_mut().zip(FAMILIES) {
            buffer.clear();
            buffer.reserve(groups.saturating_mul(room(family.kind)));
        }
    }

    /// The start of a line, up to its value. `suffix` is what a histogram's names end with.
    pub(crate) fn begin(
        &mut self,
        family: usize,
        suffix: &str,
        labels: &[(&str, &str)],
    ) -> &mut Vec<u8> {
        let buffer = &mut self.families[family];
        buffer.extend_from_slice(FAMILIES[family].name.as_bytes());
        buffer.extend_from_slice(suffix.as_bytes());
        buffer.extend_from_slice(&self.labels);
        let mut open = !self.labels.is_empty();
        for (name, value) in labels {
            buffer.extend_from_slice(if open { b"," } else { b"{" });
            for part in [name, "=\"", value, "\""] {
                buffer.extend_from_slice(part.as_bytes());
            }
            open = true;
        }
        buffer.extend_from_slice(if open { b"} " } else { b" " });
        buffer
    }

    /// The start of a bucket's line.
    pub(crate) fn bucket(&mut self, family: usize, le: &str) -> &mut Vec<u8> {
        self.begin(family, "_bucket", &[("le", le)])
    }

    /// The end of a line.
    pub(crate) fn end(&mut self, family: usize) {
        self.families[family].push(b'\n');
    }

    /// The families that have samples, each with its help and type.
    pub(crate) fn write(&self, page: &mut Vec<u8>) {
        let lengths = self
            .families
            .iter()
            .map(|buffer| buffer.len() + 3 * LINE_BYTES);
        page.reserve(lengths.sum());
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
                family.kind.name(),
                "\n",
            ];
            head.iter()
                .for_each(|part| page.extend_from_slice(part.as_bytes()));
            page.extend_from_slice(samples);
        }
    }
}

impl Sink for Page {
    fn group(&mut self, path: &str) {
        self.labels.clear();
        self.labels.extend_from_slice(b"{id=\"/");
        escaped(path, &mut self.labels);
        self.labels.push(b'"');
    }

    fn scheduler(&mut self) {
        self.labels.clear();
    }

    fn integer(&mut self, family: usize, labels: &[(&'static str, &'static str)], value: u64) {
        integer(self.begin(family, "", labels), value);
        self.end(family);
    }

    /// Exact to the nanosecond.
    fn seconds(&mut self, family: usize, labels: &[(&'static str, &'static str)], value: Duration) {
        seconds(self.begin(family, "", labels), value);
        self.end(family);
    }

    fn histogram(&mut self, family: usize, histogram: &Histogram) {
        add_histogram(self, family, histogram);
    }
}

/// A label's value: names of groups come from users, and may hold quotes and backslashes.
fn escaped(value: &str, into: &mut Vec<u8>) {
    for &byte in value.as_bytes() {
        match byte {
            b'\\' => into.extend_from_slice(b"\\\\"),
            b'"' => into.extend_from_slice(b"\\\""),
            b'\n' => into.extend_from_slice(b"\\n"),
            byte => into.push(byte),
        }
    }
}

/// Decimal digits. By hand, because formatting by traits is half of a scrape.
pub(crate) fn integer(into: &mut Vec<u8>, mut value: u64) {
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
    into.extend_from_slice(&digits[start..]);
}

/// Seconds with nine decimals, or none if they are zeros.
pub(crate) fn seconds(into: &mut Vec<u8>, value: Duration) {
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
    into.push(b'.');
    into.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_exactly() {
        let written = |value: u64| {
            let mut text = Vec::new();
            integer(&mut text, value);
            String::from_utf8(text).expect("digits")
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
            let mut text = Vec::new();
            seconds(&mut text, value);
            assert_eq!(text, expected.as_bytes());
        }
    }
}
