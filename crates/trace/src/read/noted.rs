//! What a trace says beside its events, of itself and for who plays it: text has comments and lines of its own for it, the native log records.

use core::fmt;
use std::collections::VecDeque;

use quotient_core::Nanos;
use quotient_core::event::TaskId;
use serde::{Deserialize, Serialize};

use super::marks::Mark;
use super::weight::NotedWeight;
use super::{Format, REORDER_EVENTS};

/// The comment of text that Quotient made of its own log.
const OWN: &str = "# recorded by Quotient itself, which leaves no switch out";

/// The comment of text that was made of a kernel's. Text without it is a kernel's as well.
const FOREIGN: &str = "# recorded by a kernel";

/// Begins the comment that names the release of the kernel which recorded.
const RELEASE: &str = "# recorded by Linux ";

/// What begins such a comment of `perf script --header`.
const RELEASE_OF_PERF: &str = "# os release : ";

/// Longest name of a release. Unit: bytes. The kernel's own bound.
const RELEASE_BYTES: usize = 64;

/// Begins the comment that names the process which recorded.
const PROCESS: &str = "# recorded by process ";

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
    /// The process that recorded it, by its number in the trace: it ran beside everybody else, and will not when nobody records.
    Process(TaskId),
    /// The release of the kernel that recorded it, as `uname -r` says it.
    Release(String),
    /// The limit that it was recorded under.
    Limit(NotedLimit),
    /// That limit was changed meanwhile.
    Change(NotedChange),
    /// How often that was reached.
    Throttles(NotedThrottles),
    /// What a cgroup gets beside its siblings.
    Weight(NotedWeight),
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
        if let Some(number) = text.trim_end().strip_prefix(PROCESS) {
            let process = number.parse().ok().map(TaskId);
            return process.map(Note::Process).filter(Note::is_possible);
        }
        if let Some(release) = release_in(text.trim_end()) {
            return Some(Note::Release(release.to_owned())).filter(Note::is_possible);
        }
        let limit = NotedLimit::in_remark(text).map(Note::Limit);
        let change = || NotedChange::in_remark(text).map(Note::Change);
        let throttles = || NotedThrottles::in_remark(text).map(Note::Throttles);
        let weight = || NotedWeight::in_remark(text).map(Note::Weight);
        limit.or_else(change).or_else(throttles).or_else(weight)
    }

    /// Whether it says something that can be.
    pub(super) fn is_possible(&self) -> bool {
        match self {
            Note::Limit(limit) => limit.is_possible(),
            Note::Change(change) => change.limit.as_ref().is_none_or(NotedLimit::is_possible),
            Note::Throttles(counted) => counted.throttled <= counted.periods,
            Note::Process(process) => !process.is_idle(),
            Note::Weight(weight) => weight.is_possible(),
            Note::Release(release) => {
                let is_plain = release.bytes().all(|byte| byte.is_ascii_graphic());
                is_plain && (1..=RELEASE_BYTES).contains(&release.len())
            }
            Note::Recorder(_) | Note::Period(_) | Note::Mark(_) => true,
        }
    }

    /// The comment that names the process which recorded, without an end of its line.
    pub(crate) fn process_remark(process: TaskId) -> String {
        format!("{PROCESS}{}", process.0)
    }

    /// The comment that names the kernel which recorded, without an end of its line.
    pub(crate) fn release_remark(release: &str) -> String {
        format!("{RELEASE}{release}")
    }
}

/// The release in a comment that names it: our own, perf's, or the first line of `quotient record`.
fn release_in(text: &str) -> Option<&str> {
    let plain = text.strip_prefix(RELEASE);
    let of_perf = || text.strip_prefix(RELEASE_OF_PERF);
    let of_record = || {
        let version = text.strip_prefix("# quotient record ")?;
        version.split_once(", Linux ").map(|(_, release)| release)
    };
    plain.or_else(of_perf).or_else(of_record)
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

/// Changes of a limit that are kept of a trace. Default 4,096: `quotient record` looks once a second, for an hour at most.
const CHANGES_MAX: usize = 4_096;

/// Weights that are kept of a trace, those that were changed included. Default 65,536: more cgroups than the kernel lets a machine have by number.
const WEIGHTS_MAX: usize = 1 << 16;

/// The notes of a trace, as far as it was read.
#[derive(Default)]
pub(super) struct Noted {
    pub recorder: Option<Recorder>,
    pub process: Option<TaskId>,
    pub release: Option<String>,
    pub limit: Option<NotedLimit>,
    pub throttles: Option<NotedThrottles>,
    /// The first [`CHANGES_MAX`] changes of the limit.
    pub changes: Vec<NotedChange>,
    /// The first [`WEIGHTS_MAX`] weights.
    pub weights: Vec<NotedWeight>,
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
            Note::Process(process) => self.process = Some(process),
            Note::Release(release) => self.release = Some(release),
            Note::Limit(limit) => self.limit = Some(limit),
            Note::Throttles(counted) => self.throttles = Some(counted),
            Note::Change(change) => {
                if self.changes.len() < CHANGES_MAX {
                    self.changes.push(change);
                }
            }
            Note::Weight(weight) => {
                if self.weights.len() < WEIGHTS_MAX {
                    self.weights.push(weight);
                }
            }
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

    /// Whether a native log has begun with its first line.
    pub fn has_heading(&self) -> bool {
        self.headings[0].is_some()
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
    /// What may be saved of it for later periods.
    #[serde(default)]
    pub burst: Nanos,
    /// Whose limit it is: a path below the root, without a slash before it.
    pub cgroup: String,
}

impl NotedLimit {
    /// Reads the comment; `None` if it is another one.
    pub(super) fn in_remark(text: &str) -> Option<NotedLimit> {
        let (cgroup, limit) = text.strip_prefix(REMARK)?.rsplit_once(": ")?;
        NotedLimit::parse(cgroup, limit)
    }

    /// Reads "60000 us in every 100000 us" and, where there is one, ", burst 5000 us".
    fn parse(cgroup: &str, limit: &str) -> Option<NotedLimit> {
        let (limit, burst) = match limit.split_once(", burst ") {
            Some((limit, burst)) => (limit, burst),
            None => (limit, "0 us"),
        };
        let (quota, period) = limit.split_once(" in every ")?;
        let micros = |text: &str| text.trim().strip_suffix(" us")?.parse::<u64>().ok();
        let nanos = |text: &str| Some(Nanos(micros(text)?.checked_mul(1_000)?));
        let limit = NotedLimit {
            quota: nanos(quota)?,
            period: nanos(period)?,
            burst: nanos(burst)?,
            cgroup: cgroup.to_owned(),
        };
        limit.is_possible().then_some(limit)
    }

    /// Whether a kernel has such limits: any quota but none, in 1 ms to 1 s, and no more saved than a quota.
    fn is_possible(&self) -> bool {
        let periods = Nanos::from_millis(1)..=Nanos::from_secs(1);
        self.quota > Nanos::ZERO && periods.contains(&self.period) && self.burst <= self.quota
    }

    /// What it allows, in words.
    fn amount(&self) -> String {
        let micros = |time: Nanos| time.0 / 1_000;
        let (quota, period) = (micros(self.quota), micros(self.period));
        let burst = match micros(self.burst) {
            0 => String::new(),
            burst => format!(", burst {burst} us"),
        };
        format!("{quota} us in every {period} us{burst}")
    }
}

/// The comment, without an end of its line. Control characters in the path become question marks.
impl fmt::Display for NotedLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{REMARK}{}: {}",
            in_line(&self.cgroup),
            self.amount()
        )
    }
}

/// A path with question marks for control characters.
pub(super) fn in_line(path: &str) -> String {
    let printable = |letter: char| if letter.is_control() { '?' } else { letter };
    path.chars().map(printable).collect()
}

/// Begins the comment about something that was seen later, behind the last event.
const LATER: &str = "# at ";

/// Reads the time of such a comment; what follows it.
pub(super) fn after_time(text: &str) -> Option<(Nanos, &str)> {
    let (at, rest) = text.trim_end().strip_prefix(LATER)?.split_once(" s ")?;
    let (seconds, micros) = at.split_once('.')?;
    let whole: u64 = seconds.parse().ok()?;
    let micros: u64 = micros.parse().ok().filter(|_| micros.len() == 6)?;
    let at = whole.checked_mul(1_000_000)?.checked_add(micros)?;
    Some((Nanos(at.checked_mul(1_000)?), rest))
}

/// Writes it.
pub(super) fn write_time(at: Nanos, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    let micros = at.0 / 1_000;
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    write!(formatter, "{LATER}{seconds}.{micros:06} s ")
}

/// Another limit than at first, or none any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotedChange {
    /// When it was seen, by the clock of the events.
    pub at: Nanos,
    /// To what; `None`: it was lifted.
    pub limit: Option<NotedLimit>,
}

impl NotedChange {
    /// Reads the comment; `None` if it is another one, or says nothing that can be.
    pub(super) fn in_remark(text: &str) -> Option<NotedChange> {
        let (at, rest) = after_time(text)?;
        if rest == "no limit any more" {
            return Some(NotedChange { at, limit: None });
        }
        let (cgroup, limit) = rest.strip_prefix("the limit of /")?.rsplit_once(": ")?;
        let limit = Some(NotedLimit::parse(cgroup, limit)?);
        Some(NotedChange { at, limit })
    }
}

/// The comment, without an end of its line.
impl fmt::Display for NotedChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_time(self.at, formatter)?;
        match &self.limit {
            None => formatter.write_str("no limit any more"),
            Some(limit) => write!(
                formatter,
                "the limit of /{}: {}",
                in_line(&limit.cgroup),
                limit.amount()
            ),
        }
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
    fn the_process_that_recorded_is_read() {
        let note = Note::Process(TaskId(4_242));
        let remark = Note::process_remark(TaskId(4_242));
        assert_eq!(Note::in_remark(&remark), Some(note));
        for text in ["", " -1", " 0", " 4294967296", " 7 8"]
            .map(|end| format!("# recorded by process{end}"))
        {
            assert_eq!(Note::in_remark(&text), None, "{text}");
        }
    }

    #[test]
    fn the_release_of_the_kernel_is_read_from_all_who_write_it() {
        let own = Note::release_remark("6.18.44-fc-v782");
        for text in [
            own.as_str(),
            "# quotient record 0.3.0, Linux 6.18.44-fc-v782",
            "# os release : 6.18.44-fc-v782",
        ] {
            let note = Note::Release("6.18.44-fc-v782".to_owned());
            assert_eq!(Note::in_remark(text), Some(note), "{text}");
        }
        let long = format!("# os release : {}", "6".repeat(65));
        for text in ["# os release : ", "# recorded by Linux a b", &long] {
            assert_eq!(Note::in_remark(text), None, "{text}");
        }
    }

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
            burst: Nanos::ZERO,
            cgroup: "odd: 1 us in every 2 us/a".into(),
        };
        let with_burst = NotedLimit {
            burst: Nanos::from_millis(5),
            ..limit.clone()
        };
        assert!(with_burst.to_string().ends_with("100000 us, burst 5000 us"));
        for limit in [limit, with_burst] {
            let read = NotedLimit::in_remark(&limit.to_string());
            assert_eq!(read.as_ref(), Some(&limit));
            for limit in [Some(limit), None] {
                let at = Nanos::from_micros(7_000_042);
                let change = NotedChange { at, limit };
                let text = change.to_string();
                assert!(text.starts_with("# at 7.000042 s "), "{text}");
                assert_eq!(NotedChange::in_remark(&text), Some(change));
            }
        }
        for text in [
            "# at 7 s no limit any more",
            "# at 7.1 s no limit any more",
            "# at 99999999999999999.000000 s no limit any more",
            "# at 7.000042 s something else",
            "# at 7.000042 s the limit of /a: 1 us in every 1 us",
        ] {
            assert_eq!(NotedChange::in_remark(text), None, "{text}");
        }
        for text in [
            "# recorded",
            "# recorded under the limit of /a: 1 us in every 0 us",
            "# recorded under the limit of /a: 1 us in every 18446744073709551 us",
            "# recorded under the limit of /a: 0 us in every 100000 us",
            "# recorded under the limit of /a: 10 us in every 100000 us, burst 11 us",
            "# recorded under the limit of /a: 99999999999999999999 us in every 1 us",
        ] {
            assert_eq!(NotedLimit::in_remark(text), None, "{text}");
        }
    }
}
