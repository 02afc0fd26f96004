//! Why a trace cannot be read, and where.

use std::fmt;
use std::io;

use quotient_core::Nanos;

/// Longest piece of a bad line that an error shows. Unit: characters.
const EXCERPT: usize = 40;

/// Why a trace cannot be read. Lines and columns count from 1; columns count characters.
#[derive(Debug)]
pub enum ReadError {
    /// The operating system could not deliver.
    Io {
        /// The line that was being read.
        line: u64,
        /// Its reason.
        error: io::Error,
    },
    /// The beginning is no format that can be read.
    UnknownFormat {
        /// What it looks like, and what to do about it.
        hint: &'static str,
    },
    /// A line without an end.
    LineTooLong {
        /// Which.
        line: u64,
        /// What is accepted, bytes.
        limit: usize,
    },
    /// A line that is not what its format says.
    Syntax {
        /// Which line.
        line: u64,
        /// From which character on.
        column: usize,
        /// What should stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// The last line breaks off.
    Truncated {
        /// Which line.
        line: u64,
        /// Where it breaks off.
        column: usize,
        /// What should have followed.
        expected: String,
    },
    /// An event that comes later in the trace than the reorder window allows.
    OutOfOrder {
        /// Which line.
        line: u64,
        /// When it happened.
        time: Nanos,
        /// What had been given away already.
        last: Nanos,
        /// Size of the window, events.
        window: usize,
    },
    /// An event that is further from the others than any recording lasts.
    Beyond {
        /// Which line.
        line: u64,
        /// When it happened.
        time: Nanos,
        /// When the one before it in the trace did.
        before: Nanos,
        /// How long a trace may be.
        span: Nanos,
    },
    /// A second recording begins in the same trace: what is between them is unknown, and each has a limit of its own.
    Another {
        /// Which line.
        line: u64,
    },
    /// Nothing happened.
    Empty {
        /// Lines that were read.
        lines: u64,
    },
}

impl ReadError {
    /// The line to look at; 0 if there is none.
    pub fn line(&self) -> u64 {
        match self {
            ReadError::Io { line, .. }
            | ReadError::LineTooLong { line, .. }
            | ReadError::Syntax { line, .. }
            | ReadError::Truncated { line, .. }
            | ReadError::Another { line }
            | ReadError::Beyond { line, .. }
            | ReadError::OutOfOrder { line, .. } => *line,
            ReadError::UnknownFormat { .. } | ReadError::Empty { .. } => 0,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io { line, error } => write!(formatter, "line {line}: {error}"),
            ReadError::UnknownFormat { hint } => write!(formatter, "unknown format: {hint}"),
            ReadError::LineTooLong { line, limit } => {
                write!(
                    formatter,
                    "line {line}, column {limit}: no end of line within {limit} bytes"
                )
            }
            ReadError::Syntax {
                line,
                column,
                expected,
                found,
            } => {
                write!(
                    formatter,
                    "line {line}, column {column}: expected {expected}, found {found:?}"
                )
            }
            ReadError::Truncated {
                line,
                column,
                expected,
            } => write!(
                formatter,
                "line {line}, column {column}: the trace breaks off, expected {expected}"
            ),
            ReadError::OutOfOrder {
                line,
                time,
                last,
                window,
            } => write!(
                formatter,
                "line {line}: time stamp {} comes after {}, more than {window} events too late; sort the trace by time",
                seconds(*time),
                seconds(*last)
            ),
            ReadError::Beyond {
                line,
                time,
                before,
                span,
            } => write!(
                formatter,
                "line {line}: time stamp {} is {} s {} the event before it, at {}: allowed are 0..={} s from the first event of a trace to its last",
                seconds(*time),
                seconds(if time > before {
                    *time - *before
                } else {
                    *before - *time
                }),
                if time > before { "behind" } else { "ahead of" },
                seconds(*before),
                span.as_nanos() / 1_000_000_000
            ),
            ReadError::Another { line } => write!(
                formatter,
                "line {line}: another recording begins here; give each its own file"
            ),
            ReadError::Empty { lines } => write!(
                formatter,
                "no scheduling event in {lines} lines: record sched_switch and sched_wakeup"
            ),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// What is wrong within one line, before anybody knows which line it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Byte where it begins.
    pub at: usize,
    /// What should stand there.
    pub expected: String,
}

impl Fault {
    pub(crate) fn new(at: usize, expected: impl Into<String>) -> Fault {
        Fault {
            at,
            expected: expected.into(),
        }
    }

    /// Places the fault in its trace. The last line of a trace that has no end of line has been cut.
    pub(crate) fn in_line(self, text: &str, line: u64, is_cut: bool) -> ReadError {
        let at = (0..=self.at.min(text.len()))
            .rev()
            .find(|&byte| text.is_char_boundary(byte))
            .unwrap_or(0);
        let column = text[..at].chars().count() + 1;
        if is_cut {
            ReadError::Truncated {
                line,
                column,
                expected: self.expected,
            }
        } else {
            ReadError::Syntax {
                line,
                column,
                expected: self.expected,
                found: text[at..].chars().take(EXCERPT).collect(),
            }
        }
    }
}

/// A time stamp as traces write it: seconds with nine digits.
pub(crate) fn seconds(time: Nanos) -> String {
    let nanos = time.as_nanos();
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}
