//! What a scenario says and no run of it has a use for: what comes after the end, and settings of rules that are not in force. One run may
//! be shorter than another, or follow other rules, so each thing is held against all of them.

use super::Fault;
use super::document::Document;
use super::values::Time;
use crate::plan::Plan;
use core::ops::Range;
use quotient_core::{BandwidthRules, Nanos, Policy};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use toml::Spanned;

/// Something that a run may have no use for, of a number where there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Workload(usize),
    Change(usize),
    RealTime(usize),
    Hotplug(usize),
    SliceExpiry,
    LastBuddy,
}

impl Thing {
    /// When an event is, in a document that has it.
    fn time(self, document: &Document) -> Option<&Spanned<Time>> {
        match self {
            Thing::Workload(number) => document.workload.get(number)?.begin.as_ref(),
            Thing::Change(number) => Some(&document.change.get(number)?.at),
            Thing::RealTime(number) => document.realtime.get(number)?.begin.as_ref(),
            Thing::Hotplug(number) => Some(&document.hotplug.get(number)?.at),
            Thing::SliceExpiry | Thing::LastBuddy => None,
        }
    }

    /// A setting, in a document that has it.
    fn flag(self, document: &Document) -> Option<&Spanned<bool>> {
        match self {
            Thing::SliceExpiry => document.scheduler.slice_expiry.as_ref(),
            Thing::LastBuddy => document.scheduler.last_buddy.as_ref(),
            _ => None,
        }
    }

    /// What is wrong with an event that comes when the run is over.
    fn late(self, document: &Document, time: Nanos, end: Nanos) -> String {
        let (of, field) = match self {
            Thing::Workload(number) => {
                let name = document.workload.get(number).map(|load| &load.name);
                let name = name.map_or("", |name| name.get_ref());
                (format!("workload {name}: "), "begin")
            }
            Thing::RealTime(number) => {
                let name = document.realtime.get(number).map(|load| &load.name);
                let name = name.map_or("", |name| name.get_ref());
                (format!("[[realtime]] {name:?}: "), "begin")
            }
            _ => (String::new(), "at"),
        };
        let first = Nanos::ZERO;
        format!("{of}{field} = {time} is outside {first}..={end}: the run is over by then")
    }
}

/// What the runs of a scenario have no use for, as far as they were seen.
#[derive(Default)]
pub(super) struct Unused {
    /// Why, and how long that run is, of several the longest; `None` once a run has a use for it.
    found: BTreeMap<Thing, Option<(Nanos, String)>>,
}

impl Unused {
    /// Takes a run: what it says, and what came of that. O(what it says).
    pub(super) fn see(&mut self, document: &Document, plan: &Plan) {
        let events = (0..document.workload.len())
            .map(Thing::Workload)
            .chain((0..document.change.len()).map(Thing::Change))
            .chain((0..document.realtime.len()).map(Thing::RealTime))
            .chain((0..document.hotplug.len()).map(Thing::Hotplug));
        for event in events {
            if let Some(time) = event.time(document) {
                let (Time(time), end) = (*time.get_ref(), plan.duration);
                let what = (time > end).then(|| event.late(document, time, end));
                self.add(event, end, what);
            }
        }
        let config = &plan.settings.config;
        for (setting, is_unused, what) in [
            (
                Thing::SliceExpiry,
                config.bandwidth == BandwidthRules::Default,
                "slice_expiry = true is of the kernel's limits: without bandwidth = \"kernel\" only false is allowed",
            ),
            (
                Thing::LastBuddy,
                config.policy != Policy::Cfs,
                "last_buddy = true is of CFS: without pick = \"cfs\" only false is allowed",
            ),
        ] {
            if setting.flag(document).is_some_and(|flag| *flag.get_ref()) {
                let what = is_unused.then(|| what.to_owned());
                self.add(setting, plan.duration, what);
            }
        }
    }

    fn add(&mut self, thing: Thing, end: Nanos, what: Option<String>) {
        let new = what.map(|what| (end, what));
        match self.found.entry(thing) {
            Entry::Vacant(place) => {
                place.insert(new);
            }
            Entry::Occupied(mut place) => {
                let known = place.get_mut();
                match (&known, new) {
                    (Some((longest, _)), Some(new)) if new.0 > *longest => *known = Some(new),
                    (_, None) => *known = None,
                    _ => {}
                }
            }
        }
    }

    /// The first thing that none of the runs has a use for, with its place in `document`, which is the file's own.
    pub(super) fn first(self, document: &Document) -> Option<Fault> {
        let mut found = self.found.into_iter();
        let (thing, what) = found.find_map(|(thing, found)| Some((thing, found?.1)))?;
        let time = thing.time(document).map(Spanned::span);
        let span: Option<Range<usize>> = time.or_else(|| Some(thing.flag(document)?.span()));
        Some(Fault { span, what })
    }
}
