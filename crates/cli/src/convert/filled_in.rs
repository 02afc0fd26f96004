//! A kernel's trace as a log that is whole: with the switches that it left out, each in its place.

use std::collections::VecDeque;

use quotient_trace::{Definition, Event, Item, Repair, Sink};

use super::input::Input;
use crate::failure::Failure;

/// A switch that was left out.
struct Found {
    event: Event,
    /// The number of the event that shows it, before which it has to come.
    before: u64,
}

/// Writes to a sink what is read a second time, and between that what the first time has found. Memory grows with what was left out.
pub(super) struct FilledIn<'a, S> {
    sink: &'a mut S,
    /// By time.
    found: VecDeque<Found>,
    seen: u64,
}

impl<'a, S: Sink> FilledIn<'a, S> {
    /// Reads a trace for what it leaves out. Tasks that never leave a CPU ([`Repair::is_silent`]) are left as they are: what fills that in
    /// is not a log's event, since nobody knows whether they slept.
    ///
    /// # Errors
    /// As [`Input::next_item`].
    pub(super) fn of(mut input: Input, sink: &'a mut S) -> Result<FilledIn<'a, S>, Failure> {
        let mut repair = input.is_text().then(Repair::default);
        let (mut found, mut number) = (Vec::new(), 0);
        while let Some(item) = input.next_item()? {
            let Item::Event(event) = item else {
                continue;
            };
            let missing = repair.as_mut();
            let missing = missing.and_then(|repair| input.missing(repair, &event));
            let missing = missing.filter(|missing| missing.silent.is_none());
            found.extend(missing.map(|missing| Found {
                event: missing.event,
                before: number,
            }));
            number += 1;
        }
        found.sort_by_key(|found| found.event.time);
        Ok(FilledIn {
            sink,
            found: found.into(),
            seen: 0,
        })
    }
}

impl<S: Sink> Sink for FilledIn<'_, S> {
    fn event(&mut self, event: &Event) {
        while let Some(next) = self.found.front()
            && (next.event.time < event.time || next.before == self.seen)
        {
            self.sink.event(&next.event);
            self.found.pop_front();
        }
        self.seen += 1;
        self.sink.event(event);
    }

    fn define(&mut self, definition: &Definition) {
        self.sink.define(definition);
    }

    fn is_done(&self) -> bool {
        self.sink.is_done()
    }
}
