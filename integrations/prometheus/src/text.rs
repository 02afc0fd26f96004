//! The text format. A page is laid out once: each value has a place, wide enough for years, with blanks before it (the format allows any
//! number of them). The next scrape writes values that have changed into their places and touches nothing else, since between two
//! scrapes figures change, and groups, names and labels seldom do.
//!
//! A scrape is two passes. The first reads all groups into a row of numbers ([`Refresh`]), the second compares it with the row of the
//! last page and writes digits. In one pass, what reading a group takes in locks would wait for the digits of the group before, each in a
//! line of the cache of its own.
//!
//! A page is laid out anew when a group or a figure comes or goes ([`Refresh`] meets another series than it expects, or its places
//! do not end with the figures) or a value has outgrown its place.

use std::sync::Arc;

use quotient::{Group, Scheduler};

use crate::digits::{DECIMALS, write_integer, write_seconds};
use crate::families::{FAMILIES, Lines, Series};

/// Room for a counter. Unit: digits. Default 12: a million a second for eleven days; more makes a page be laid out anew.
const INTEGER_WIDTH: usize = 12;
/// Room for a time in seconds: its point and nine decimals, and eight digits before them, three years.
const SECONDS_WIDTH: usize = DECIMALS + 1 + 8;

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

/// Where a value is, and how it is written.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    width: u8,
    is_time: bool,
}

impl Place {
    /// To the right of the place; `false` if it does not fit.
    fn write(self, text: &mut [u8], value: u64) -> bool {
        let room = &mut text[self.at..self.at + usize::from(self.width)];
        if self.is_time {
            write_seconds(room, value)
        } else {
            write_integer(room, value)
        }
    }
}

/// A page, and where its values are.
#[derive(Default)]
pub(crate) struct Page {
    text: Text,
    /// What is told, in the order in which it is visited; of each the place, what stands there, and what is to stand there.
    series: Vec<Series>,
    places: Vec<Place>,
    values: Vec<u64>,
    fresh: Vec<u64>,
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
        layout.finish(self);
    }

    /// Where the figures of the same groups go.
    pub(crate) fn refresh(&mut self) -> Refresh<'_> {
        Refresh {
            rest: self.series.iter().zip(&mut self.fresh),
            is_stale: false,
        }
    }

    /// Writes what has changed since the last page; `false` if something does not fit, and the page is to be laid out anew.
    pub(crate) fn write_changes(&mut self) -> bool {
        let text = Arc::make_mut(&mut self.text.0).as_mut_slice();
        let values = self.values.iter_mut().zip(&self.fresh).zip(&self.places);
        for ((value, fresh), place) in values {
            if value != fresh {
                *value = *fresh;
                if !place.write(text, *fresh) {
                    return false;
                }
            }
        }
        true
    }

    pub(crate) fn text(&self) -> Text {
        self.text.clone()
    }
}

/// A scrape of a page that is there, of the same groups.
pub(crate) struct Refresh<'a> {
    rest: std::iter::Zip<std::slice::Iter<'a, Series>, std::slice::IterMut<'a, u64>>,
    /// A figure has come or gone: what was read is of no use.
    is_stale: bool,
}

impl Refresh<'_> {
    /// Whether the page has a place for each value that was visited, and for no other.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_stale && self.rest.len() == 0
    }

    #[inline]
    fn put(&mut self, series: Series, value: u64) {
        match self.rest.next() {
            Some((expected, room)) if *expected == series => *room = value,
            _ => self.is_stale = true,
        }
    }
}

impl Lines for Refresh<'_> {
    fn group(&mut self, _path: &str) {}

    fn scheduler(&mut self) {}

    #[inline]
    fn integer(&mut self, series: Series, value: u64) {
        self.put(series, value);
    }

    #[inline]
    fn time(&mut self, series: Series, nanos: u64) {
        self.put(series, nanos);
    }
}

/// A page in the making: one buffer a family, since a family's samples stand together and figures come group by group.
#[derive(Default)]
pub(crate) struct Layout {
    families: Vec<Vec<u8>>,
    /// `{id="/path"`, without its closing brace, or nothing.
    group: Vec<u8>,
    series: Vec<Series>,
    places: Vec<Place>,
    values: Vec<u64>,
}

impl Layout {
    fn line(&mut self, series: Series, value: u64, is_time: bool) {
        self.families.resize_with(FAMILIES.len(), Vec::new);
        let family = series.family();
        let buffer = &mut self.families[family];
        for part in [
            FAMILIES[family].name.as_bytes(),
            series.suffix().as_bytes(),
            &self.group,
        ] {
            buffer.extend_from_slice(part);
        }
        let mut open = !self.group.is_empty();
        for (name, value) in series.labels() {
            buffer.extend_from_slice(if open { b"," } else { b"{" });
            for part in [name, "=\"", value, "\""] {
                buffer.extend_from_slice(part.as_bytes());
            }
            open = true;
        }
        buffer.extend_from_slice(if open { b"} " } else { b" " });
        let mut place = Place {
            at: buffer.len(),
            width: match is_time {
                _ if series.is_setting() => 1,
                true => SECONDS_WIDTH as u8,
                false => INTEGER_WIDTH as u8,
            },
            is_time,
        };
        // Twenty digits and a point: it ends.
        loop {
            buffer.resize(place.at + usize::from(place.width), b' ');
            if place.write(buffer, value) {
                break;
            }
            place.width += 1;
        }
        buffer.push(b'\n');
        self.series.push(series);
        self.places.push(place);
        self.values.push(value);
    }

    /// The families that have samples, each with its help and type.
    fn finish(mut self, page: &mut Page) {
        let mut text =
            Vec::with_capacity(self.families.iter().map(|lines| lines.len() + 256).sum());
        let mut begins = Vec::with_capacity(FAMILIES.len());
        for (family, lines) in FAMILIES.iter().zip(&self.families) {
            if !lines.is_empty() {
                let (name, help, kind) = (family.name, family.help, family.kind.name());
                let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
                text.extend_from_slice(head.as_bytes());
            }
            begins.push(text.len());
            text.extend_from_slice(lines);
        }
        for (place, series) in self.places.iter_mut().zip(&self.series) {
            place.at += begins[series.family()];
        }
        page.text = Text(Arc::new(text));
        page.series = self.series;
        page.places = self.places;
        page.fresh.clone_from(&self.values);
        page.values = self.values;
    }
}

impl Lines for Layout {
    fn group(&mut self, path: &str) {
        self.group.clear();
        self.group.extend_from_slice(b"{id=\"/");
        escaped(path, &mut self.group);
        self.group.push(b'"');
    }

    fn scheduler(&mut self) {
        self.group.clear();
    }

    fn integer(&mut self, series: Series, value: u64) {
        self.line(series, value, false);
    }

    fn time(&mut self, series: Series, nanos: u64) {
        self.line(series, nanos, true);
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
