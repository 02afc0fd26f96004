//! What a trace says beside its events, where the format is a picture and cannot hold it.

use std::path::Path;

use quotient_trace::{Definition, Event, Note, NoteSink, Sink};

/// Passes everything on but notes, and counts those.
pub(super) struct Pictured<'a, S> {
    sink: &'a mut S,
    has_limit: bool,
    has_weights: bool,
    periods: u64,
    marks: u64,
}

impl<'a, S: Sink> Pictured<'a, S> {
    pub(super) fn of(sink: &'a mut S) -> Pictured<'a, S> {
        Pictured {
            sink,
            has_limit: false,
            has_weights: false,
            periods: 0,
            marks: 0,
        }
    }

    /// Says on standard error what is not in the result.
    pub(super) fn tell(&self, output: &Path) {
        let mut parts = Vec::new();
        if self.has_limit {
            parts.push("the limit that it was recorded under".to_owned());
        }
        if self.has_weights {
            parts.push("the weights of cgroups".to_owned());
        }
        if self.periods > 0 {
            parts.push(format!("{} begins of limits' periods", self.periods));
        }
        if self.marks > 0 {
            parts.push(format!("{} marks of programs", self.marks));
        }
        if !parts.is_empty() {
            eprintln!(
                "{}: this format cannot hold {}",
                output.display(),
                parts.join(", ")
            );
        }
    }
}

impl<S: Sink> Sink for Pictured<'_, S> {
    fn event(&mut self, event: &Event) {
        self.sink.event(event);
    }

    fn define(&mut self, definition: &Definition) {
        self.sink.define(definition);
    }

    fn is_done(&self) -> bool {
        self.sink.is_done()
    }
}

impl<S: Sink> NoteSink for Pictured<'_, S> {
    fn note(&mut self, note: &Note) {
        match note {
            Note::Recorder(_) | Note::Process(_) | Note::Release(_) => {}
            Note::Weight(_) => self.has_weights = true,
            Note::Limit(_) | Note::Change(_) | Note::Throttles(_) => self.has_limit = true,
            Note::Period(_) => self.periods += 1,
            Note::Mark(_) => self.marks += 1,
        }
    }
}
