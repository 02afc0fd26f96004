//! The text format. A page is laid out once: each value has a place, wide enough for years, with blanks before it (the format allows any
//! number of them). The next scrape writes values that have changed into their places and touches nothing else, since between two
//! scrapes figures change, and groups, names and labels seldom do.
//!
//! A page is laid out anew when a group or a figure comes or goes ([`Refresh`] meets another family or label than it expects, or its places
//! do not end with the figures) or a value has outgrown its place.

use std::sync::Arc;
use std::time::Duration;

use quotient::{Group, Histogram, Scheduler};

use crate::families::{BOUNDS, FAMILIES, Sink, is_setting};

/// Room for a counter. Unit: digits. Default 12: a million a second for eleven days; more makes a page be laid out anew.
const INTEGER_WIDTH: usize = 12;
/// Room for a time in seconds: its point and nine decimals, and eight digits before them, three years.
const SECONDS_WIDTH: usize = DECIMALS + 1 + 8;
/// Decimals of a time, which is exact to the nanosecond.
const DECIMALS: usize = 9;
/// Lines of a histogram: its buckets, that without bound, sum and count.
const HISTOGRAM_LINES: usize = BOUNDS.len() + 3;

/// The figures of one scrape, as [`crate::CONTENT_TYPE`] says: UTF-8.
///
/// Shares its memory with the exporter. While one is kept, the next scrape makes a copy, 4 KB a group; once it is dropped, the next one
/// writes in place.
#[derive(Clone, Debug, Default)]
pub struct Text(Arc<Vec<u8>>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Where a value is.
#[derive(Debug)]
struct Place {
    at: usize,
    /// What stands there.
    value: Value,
    /// The value of its own last label: it tells samples of a family apart.
    label: &'static str,
    family: u8,
    width: u8,
}

/// A page, and where its values are.
#[derive(Default)]
pub(crate) struct Page {
    text: Text,
    /// In the order in which figures are visited.
    places: Vec<Place>,
    /// The groups that it is of, and the number that their list had. They are kept until the next scrape, gone ones too.
    groups: Vec<Group>,
    version: Option<u64>,
}

impl Page {
    /// The groups, listed anew only if one has come or gone; whether the page is of the same ones.
    pub(crate) fn list(&mut self, scheduler: &Scheduler) -> (Vec<Group>, bool) {
        // Before the list: a group that comes in between makes the next page be laid out anew.
        let version = Some(scheduler.groups_version());
        let same = self.version == version;
        if !same {
            self.groups = scheduler.groups();
            self.version = version;
        }
        (std::mem::take(&mut self.groups), same)
    }

    /// Keeps them for the next scrape.
    pub(crate) fn keep(&mut self, groups: Vec<Group>) {
        self.groups = groups;
    }

    /// What a new layout says, of the same groups.
    pub(crate) fn lay_out(&mut self, layout: Layout) {
        (self.text, self.places) = layout.finished();
    }

    /// Writes what has changed.
    pub(crate) fn refresh(&mut self) -> Refresh<'_> {
        Refresh {
            text: Arc::make_mut(&mut self.text.0).as_mut_slice(),
            places: &mut self.places,
            next_place: 0,
            is_stale: false,
        }
    }

    pub(crate) fn text(&self) -> Text {
        self.text.clone()
    }
}

/// A scrape of a page that is there, of the same groups.
pub(crate) struct Refresh<'a> {
    text: &'a mut [u8],
    places: &'a mut [Place],
    next_place: usize,
    /// A figure has come, gone or outgrown its place: what follows is not looked at.
    is_stale: bool,
}

impl Refresh<'_> {
    /// Whether the page says what was visited.
    pub(crate) fn is_whole(&self) -> bool {
        self.next_place == self.places.len() && !self.is_stale
    }

    fn put(&mut self, family: usize, label: &str, value: Value) {
        if self.is_stale {
            return;
        }
        let place = self.places.get_mut(self.next_place);
        let Some(place) = place.filter(|place| is_for(place, family, label)) else {
            self.is_stale = true;
            return;
        };
        self.next_place += 1;
        if place.value != value {
            place.value = value;
            let room = &mut self.text[place.at..place.at + usize::from(place.width)];
            self.is_stale = !value.write(room);
        }
    }
}

fn is_for(place: &Place, family: usize, label: &str) -> bool {
    // Nearly always none, or the very same.
    let is_same = |one: &str, other: &str| {
        one.len() == other.len() && (one.is_empty() || std::ptr::eq(one, other) || one == other)
    };
    usize::from(place.family) == family && is_same(place.label, label)
}

impl Sink for Refresh<'_> {
    fn group(&mut self, _path: &str) {}

    fn scheduler(&mut self) {}

    fn integer(&mut self, family: usize, labels: &[(&'static str, &'static str)], value: u64) {
        self.put(family, last(labels), Value::Integer(value));
    }

    fn seconds(&mut self, family: usize, labels: &[(&'static str, &'static str)], value: Duration) {
        self.put(family, last(labels), Value::time(value));
    }

    fn histogram(&mut self, family: usize, histogram: &Histogram) {
        let count = histogram.count();
        if count == 0 || self.is_stale {
            return;
        }
        let end = self.next_place.saturating_add(HISTOGRAM_LINES);
        if let Some([.., sum, total]) = self.places.get(self.next_place..end)
            && is_for(total, family, COUNT)
            && (sum.value, total.value) == (Value::time(histogram.sum()), Value::Integer(count))
        {
            // No value has come.
            self.next_place = end;
            return;
        }
        lines(histogram, |_, label, value| self.put(family, label, value));
    }
}

/// A page in the making: one buffer a family, since a family's samples stand together and figures come group by group.
#[derive(Default)]
pub(crate) struct Layout {
    families: Vec<Vec<u8>>,
    /// `{id="/path"`, without its closing brace, or nothing.
    labels: Vec<u8>,
    places: Vec<Place>,
}

impl Layout {
    /// A line. `suffix` is what a histogram's names end with.
    fn line(
        &mut self,
        (family, suffix): (usize, &str),
        labels: &[(&str, &str)],
        own: &'static str,
        value: Value,
    ) {
        self.families.resize_with(FAMILIES.len(), Vec::new);
        let buffer = &mut self.families[family];
        for part in [
            FAMILIES[family].name.as_bytes(),
            suffix.as_bytes(),
            &self.labels,
        ] {
            buffer.extend_from_slice(part);
        }
        let mut open = !self.labels.is_empty();
        for (name, value) in labels {
            buffer.extend_from_slice(if open { b"," } else { b"{" });
            for part in [name, "=\"", value, "\""] {
                buffer.extend_from_slice(part.as_bytes());
            }
            open = true;
        }
        buffer.extend_from_slice(if open { b"} " } else { b" " });
        let at = buffer.len();
        let mut width = match value {
            _ if is_setting(family) => 1,
            Value::Integer(_) => INTEGER_WIDTH,
            Value::Nanos(_) => SECONDS_WIDTH,
        };
        // Twenty digits and a point: it ends.
        loop {
            buffer.resize(at + width, b' ');
            if value.write(&mut buffer[at..]) {
                break;
            }
            width += 1;
        }
        buffer.push(b'\n');
        self.places.push(Place {
            at,
            value,
            label: own,
            // There are some thirty.
            family: family as u8,
            width: width as u8,
        });
    }

    /// The families that have samples, each with its help and type.
    fn finished(mut self) -> (Text, Vec<Place>) {
        let mut page =
            Vec::with_capacity(self.families.iter().map(|lines| lines.len() + 256).sum());
        let mut begins = Vec::with_capacity(FAMILIES.len());
        for (family, lines) in FAMILIES.iter().zip(&self.families) {
            if !lines.is_empty() {
                let (name, help, kind) = (family.name, family.help, family.kind.name());
                let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
                page.extend_from_slice(head.as_bytes());
            }
            begins.push(page.len());
            page.extend_from_slice(lines);
        }
        for place in &mut self.places {
            place.at += begins[usize::from(place.family)];
        }
        (Text(Arc::new(page)), self.places)
    }
}

impl Sink for Layout {
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
        self.line((family, ""), labels, last(labels), Value::Integer(value));
    }

    fn seconds(&mut self, family: usize, labels: &[(&'static str, &'static str)], value: Duration) {
        self.line((family, ""), labels, last(labels), Value::time(value));
    }

    fn histogram(&mut self, family: usize, histogram: &Histogram) {
        if histogram.count() == 0 {
            return;
        }
        lines(histogram, |suffix, label, value| {
            let bound = [("le", label)];
            let labels = if suffix == BUCKET { &bound[..] } else { &[] };
            self.line((family, suffix), labels, label, value);
        });
    }
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Integer(u64),
    /// Written as seconds.
    Nanos(u64),
}

impl Value {
    /// 584 years at most.
    fn time(time: Duration) -> Self {
        Self::Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Writes it to the right of its place; `false` if it does not fit.
    fn write(self, place: &mut [u8]) -> bool {
        match self {
            Self::Integer(value) => write_integer(place, value),
            Self::Nanos(value) => write_seconds(place, value),
        }
    }
}

const BUCKET: &str = "_bucket";
const COUNT: &str = "_count";

/// The lines of a histogram with values: suffix, own label or (of those without one) the suffix again, value.
fn lines(histogram: &Histogram, mut line: impl FnMut(&'static str, &'static str, Value)) {
    // The n-th bucket ends at the n-th power of two.
    let mut buckets = histogram.buckets().map(|(_, count)| count);
    let (mut count, mut seen) = (0_u64, 0);
    for (power, le) in BOUNDS {
        let upto = (power as usize + 1).saturating_sub(seen);
        count = buckets.by_ref().take(upto).fold(count, u64::wrapping_add);
        seen += upto;
        line(BUCKET, le, Value::Integer(count));
    }
    let total = buckets.fold(count, u64::wrapping_add);
    line(BUCKET, "+Inf", Value::Integer(total));
    line("_sum", "_sum", Value::time(histogram.sum()));
    line(COUNT, COUNT, Value::Integer(total));
}

fn last(labels: &[(&'static str, &'static str)]) -> &'static str {
    labels.last().map_or("", |(_, value)| value)
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

/// "00" to "99".
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut index = 0;
    while index < 100 {
        pairs[index] = [b'0' + (index / 10) as u8, b'0' + (index % 10) as u8];
        index += 1;
    }
    pairs
};

/// Decimal digits, with blanks before them. By hand, because formatting by traits takes ten times as long; and by pairs, since a division takes
/// as long as all else.
fn write_integer(place: &mut [u8], mut value: u64) -> bool {
    let mut start = place.len();
    while value >= 100 {
        let Some(next) = start.checked_sub(2) else {
            return false;
        };
        place[next..start].copy_from_slice(&PAIRS[(value % 100) as usize]);
        start = next;
        value /= 100;
    }
    let last = &PAIRS[value as usize][usize::from(value < 10)..];
    let Some(next) = start.checked_sub(last.len()) else {
        return false;
    };
    place[next..start].copy_from_slice(last);
    // What stood here before was written so, too: where its blanks begin it ends.
    for byte in place[..next].iter_mut().rev() {
        if *byte == b' ' {
            break;
        }
        *byte = b' ';
    }
    true
}

/// Nanoseconds as seconds, with all their decimals.
fn write_seconds(place: &mut [u8], nanos: u64) -> bool {
    let Some(point) = place.len().checked_sub(1 + DECIMALS) else {
        return false;
    };
    let (whole, decimals) = place.split_at_mut(point);
    decimals[0] = b'.';
    // Below a thousand million: the last of nine digits, and four pairs.
    let mut rest = (nanos % 1_000_000_000) as u32;
    decimals[DECIMALS] = b'0' + (rest % 10) as u8;
    rest /= 10;
    for pair in decimals[1..DECIMALS].rchunks_exact_mut(2) {
        pair.copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    write_integer(whole, nanos / 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(width: usize, value: Value) -> Option<String> {
        let mut place = vec![b'x'; width];
        value
            .write(&mut place)
            .then(|| String::from_utf8(place).expect("digits"))
    }

    #[test]
    fn numbers_are_written_exactly() {
        for value in [0, 7, 10, 1_000, u64::MAX] {
            let text = written(20, Value::Integer(value)).expect("room");
            assert_eq!(text.trim_start(), value.to_string());
        }
        for (nanos, expected) in [
            (0, "0.000000000"),
            (3_000_000_000, "3.000000000"),
            (1, "0.000000001"),
            (1_050_000_000, "1.050000000"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            let text = written(22, Value::Nanos(nanos)).expect("room");
            assert_eq!(text.trim_start(), expected);
        }
    }

    /// A gauge that falls leaves no digits of before.
    #[test]
    fn what_stood_there_is_gone() {
        let mut place = vec![b' '; 20];
        for value in [u64::MAX, 123_456, 99, 100, 7, 0, 10_000, 9_999] {
            assert!(Value::Integer(value).write(&mut place));
            let text = std::str::from_utf8(&place).expect("digits");
            assert_eq!(text, format!("{value:>20}"));
        }
    }

    #[test]
    fn the_bounds_say_what_they_are() {
        let buckets: Vec<Duration> = Histogram::default()
            .buckets()
            .map(|(upper, _)| upper)
            .collect();
        for (power, text) in BOUNDS {
            assert_eq!(buckets[power as usize], Duration::from_nanos(1 << power));
            let bound = written(22, Value::Nanos(1 << power)).expect("room");
            assert_eq!(bound.trim_start(), text);
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_cut_off() {
        assert_eq!(written(2, Value::Integer(100)), None);
        assert_eq!(written(0, Value::Integer(0)), None);
        assert_eq!(written(10, Value::Nanos(0)), None);
        assert_eq!(written(11, Value::Nanos(10_000_000_000)), None);
        assert_eq!(written(2, Value::Integer(99)).as_deref(), Some("99"));
    }
}
