//! What a trace says beside its events, of itself and for who plays it: text has comments and lines of its own for it, the native log records.

use core::fmt;
use std::collections::VecDeque;

use quotient_core::Nanos;
use serde::{Deserialize, Serialize};

use super::marks::Mark;
use super::{Format, REORDER_EVENTS};

/// The comment of text that Quotient made of its own log.
const OWN: &str = "# recorded by Quotient itself, which leaves no switch out";

/// The comment of text that was made of a kernel's. Text without it is a kernel's as well.
const FOREIGN: &str = "# recorded by a kernel";

/// What begins a recording, in the formats that have such a line. A second one begins another recording.
const HEADINGS: [&str; 4] = ["# tracer: ", "# quotient record ", "# captured on", "cpus="];

/// Who recorded a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recorder {
    /// A kernel: time stamps may be rounded to microseconds, and switches may be missing ([`Repair`](crate::Repair)).
    Kernel,
    /// Quotient: a switch that is missing is a fault.
    Quotient,
}

/// What a trace says beside its events and definitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// Who recorded it.
    Recorder(Recorder),
    /// The limit that it was recorded under.
    Limit(NotedLimit),
    /// How often that was reached.
    Throttles(NotedThrottles),
    /// A period of a limit began then, by the kernel's timer.
    Period(Nanos),
    /// A program says what it does.
    Mark(Mark),
}

impl Note {
    /// Reads a comment; `None` if it is another one.
    pub(super) fn in_remark(text: &str) -> Option<Note> {
        match text.trim_end() {
            OWN => return Some(Note::Recorder(Recorder::Quotient)),
            FOREIGN => return Some(Note::Recorder(Recorder::Kernel)),
            _ => {}
        }
        let limit = NotedLimit::in_remark(text).map(Note::Limit);
        limit.or_else(|| NotedThrottles::in_remark(text).map(Note::Throttles))
    }

    /// Whether it says something that can be.
    pub(super) fn is_possible(&self) -> bool {
        match self {
            Note::Limit(limit) => limit.is_possible(),
            Note::Throttles(counted) => counted.throttled <= counted.periods,
            Note::Recorder(_) | Note::Period(_) | Note::Mark(_) => true,
        }
    }
}

impl Recorder {
    /// The comment, without an end of its line.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            Recorder::Kernel => FOREIGN,
            Recorder::Quotient => OWN,
        }
    }
}

/// The notes of a trace, as far as it was read.
#[derive(Default)]
pub(super) struct Noted {
    pub recorder: Option<Recorder>,
    pub limit: Option<NotedLimit>,
    pub throttles: Option<NotedThrottles>,
    /// Marks that nobody has taken, with their lines; `None` if nobody wants them.
    pub marks: Option<VecDeque<(u64, Mark)>>,
    /// Begins of limits' periods that nobody has taken: the last [`REORDER_EVENTS`].
    pub periods: VecDeque<Nanos>,
    /// Where each of the [`HEADINGS`] stands; those of the native log count as the first.
    headings: [Option<u64>; HEADINGS.len()],
}

impl Noted {
    /// Takes a note of `line`.
    pub fn take(&mut self, note: Note, line: u64) {
        match note {
            Note::Recorder(recorder) => self.recorder = Some(recorder),
            Note::Limit(limit) => self.limit = Some(limit),
            Note::Throttles(counted) => self.throttles = Some(counted),
            Note::Period(at) => {
                if self.periods.len() == REORDER_EVENTS {
                    self.periods.pop_front();
                }
                self.periods.push_back(at);
            }
            Note::Mark(mark) => {
                if let Some(marks) = &mut self.marks {
                    marks.push_back((line, mark));
                }
            }
        }
    }

    /// Takes a line of text that may be a heading; whether a recording begins there, though one has begun before.
    pub fn is_another(&mut self, text: &str, line: u64, has_events: bool) -> bool {
        let kind = HEADINGS
            .iter()
            .position(|heading| text.starts_with(heading));
        kind.is_some_and(|kind| self.begins(kind, line, has_events))
    }

    /// The same for the first line of a native log.
    pub fn is_another_log(&mut self, line: u64, has_events: bool) -> bool {
        self.begins(0, line, has_events)
    }

    fn begins(&mut self, kind: usize, line: u64, has_events: bool) -> bool {
        has_events || self.headings[kind].replace(line).is_some()
    }

    /// Who recorded it, by what it says, else by its format.
    pub fn recorder(&self, format: Format) -> Recorder {
        self.recorder.unwrap_or(match format {
            Format::Text => Recorder::Kernel,
            Format::JsonLines => Recorder::Quotient,
        })
    }
}

/// Begins the comment.
const REMARK: &str = "# recorded under the limit of /";

/// A limit that a trace was recorded under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotedLimit {
    /// CPU time in each period.
    pub quota: Nanos,
    /// The period, 1 ms to 1 s.
    pub period: Nanos,
    /// Whose limit it is: a path below the root, without a slash before it.
    pub cgroup: String,
}

impl NotedLimit {
    /// Reads the comment; `None` if it is another one.
    pub(super) fn in_remark(text: &str) -> Option<NotedLimit> {
        let (cgroup, limit) = text.strip_prefix(REMARK)?.rsplit_once(": ")?;
        let (quota, period) = limit.split_once(" in every ")?;
        let micros = |text: &str| text.trim().strip_suffix(" us")?.parse::<u64>().ok();
        let nanos = |text: &str| Some(Nanos(micros(text)?.checked_mul(1_000)?));
        let limit = NotedLimit {
            quota: nanos(quota)?,
            period: nanos(period)?,
            cgroup: cgroup.to_owned(),
        };
        limit.is_possible().then_some(limit)
    }

    /// Whether a kernel has such limits: any quota but none, in 1 ms to 1 s.
    fn is_possible(&self) -> bool {
        let periods = Nanos::from_millis(1)..=Nanos::from_secs(1);
        self.quota > Nanos::ZERO && periods.contains(&self.period)
    }
}

/// The comment, without an end of its line. Control characters in the path become question marks.
impl fmt::Display for NotedLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printable = |letter: char| if letter.is_control() { '?' } else { letter };
        let cgroup: String = self.cgroup.chars().map(printable).collect();
        let (quota, period) = (self.quota.0 / 1_000, self.period.0 / 1_000);
        write!(
            formatter,
            "{REMARK}{cgroup}: {quota} us in every {period} us"
        )
    }
}

/// Begins the comment behind the last event.
const THROTTLES: &str = "# meanwhile throttled in ";

/// How often the noted limit was reached while the trace was recorded, by the kernel's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotedThrottles {
    /// Periods in which the cgroup was throttled, at most all of them.
    pub throttled: u64,
    /// Periods in which it had something to do.
    pub periods: u64,
}

impl NotedThrottles {
    /// Reads the comment; `None` if it is another one, or says nothing that can be.
    pub(super) fn in_remark(text: &str) -> Option<NotedThrottles> {
        let (throttled, periods) = text.strip_prefix(THROTTLES)?.split_once(" of ")?;
        let throttled = throttled.parse().ok()?;
        let periods = periods.trim_end().strip_suffix(" periods")?.parse().ok()?;
        (throttled <= periods).then_some(NotedThrottles { throttled, periods })
    }
}

/// The comment, without an end of its line.
impl fmt::Display for NotedThrottles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotedThrottles { throttled, periods } = self;
        write!(formatter, "{THROTTLES}{throttled} of {periods} periods")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_counted_is_read() {
        let counted = NotedThrottles {
            throttled: 7,
            periods: 60,
        };
        let text = counted.to_string();
        assert_eq!(NotedThrottles::in_remark(&text), Some(counted));
        for text in [
            "# meanwhile throttled in 7 of 6 periods",
            "# meanwhile throttled in 7 of x periods",
            "# meanwhile throttled in 7",
        ] {
            assert_eq!(NotedThrottles::in_remark(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_noted_is_read() {
        let limit = NotedLimit {
            quota: Nanos::from_millis(60),
            period: Nanos::from_millis(100),
            cgroup: "odd: 1 us in every 2 us/a".into(),
        };
        assert_eq!(NotedLimit::in_remark(&limit.to_string()), Some(limit));
        for text in [
            "# recorded",
            "# recorded under the limit of /a: 1 us in every 0 us",
            "# recorded under the limit of /a: 1 us in every 18446744073709551 us",
            "# recorded under the limit of /a: 0 us in every 100000 us",
            "# recorded under the limit of /a: 99999999999999999999 us in every 1 us",
        ] {
            assert_eq!(NotedLimit::in_remark(text), None, "{text}");
        }
    }
}
