//! The native log: one JSON object a line.

use std::io::{self, Write};

use quotient_core::event::{Definition, Event, Sink};

use super::{NoteSink, Output};
use crate::read::Note;
use crate::record::{Record, VERSION};

/// Writes the native log. Everything survives: reading it back gives the same definitions and events.
pub struct JsonLines<W> {
    output: Output<W>,
}

impl<W: Write> JsonLines<W> {
    /// Writes the first line. Give it something buffered.
    pub fn new(inner: W) -> JsonLines<W> {
        let mut writer = JsonLines {
            output: Output::new(inner),
        };
        writer.record(&Record {
            quotient_trace: Some(VERSION),
            ..Record::default()
        });
        writer
    }

    /// Flushes and hands the output back.
    ///
    /// # Errors
    /// The first error of the output, whenever it happened.
    pub fn finish(self) -> io::Result<W> {
        self.output.finish()
    }

    fn record(&mut self, record: &Record) {
        self.output.put(|output| {
            serde_json::to_writer(&mut *output, record)?;
            output.write_all(b"\n")
        });
    }
}

impl<W: Write> NoteSink for JsonLines<W> {
    fn note(&mut self, note: &Note) {
        self.record(&Record {
            note: Some(note.clone()),
            ..Record::default()
        });
    }
}

impl<W: Write> Sink for JsonLines<W> {
    fn define(&mut self, definition: &Definition) {
        self.record(&Record::of_definition(definition));
    }

    fn event(&mut self, event: &Event) {
        self.record(&Record::of_event(event));
    }

    fn is_done(&self) -> bool {
        self.output.error.is_some()
    }
}
