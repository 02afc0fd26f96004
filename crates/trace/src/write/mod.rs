//! Writers: sinks that turn events into text or bytes, as they come.

mod ftrace;
mod jsonl;
mod perfetto;
mod protobuf;

use std::io::{self, Write};

use quotient_core::event::Sink;

use crate::read::Note;

pub use ftrace::Ftrace;
pub use jsonl::JsonLines;
pub use perfetto::Perfetto;

/// A sink that can hold what a trace says beside its events.
pub trait NoteSink: Sink {
    /// Takes a note, in its place among the events.
    fn note(&mut self, note: &Note);
}

/// The output of a writer: remembers the first error, and writes nothing after it.
struct Output<W> {
    inner: W,
    error: Option<io::Error>,
}

impl<W: Write> Output<W> {
    fn new(inner: W) -> Output<W> {
        Output { inner, error: None }
    }

    fn put(&mut self, write: impl FnOnce(&mut W) -> io::Result<()>) {
        if self.error.is_none()
            && let Err(error) = write(&mut self.inner)
        {
            self.error = Some(error);
        }
    }

    fn finish(mut self) -> io::Result<W> {
        match self.error {
            Some(error) => Err(error),
            None => self.inner.flush().map(|()| self.inner),
        }
    }
}
