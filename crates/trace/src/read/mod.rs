//! Readers: from text to events, one line at a time, in bounded memory.
//!
//! [`Reader`] pulls items out of any format; [`Reader::pump`] drives a [`Sink`]. A trace that is nearly sorted by time
//! is sorted on the way, within [`REORDER_EVENTS`].

mod error;
mod gaps;
mod header;
mod lines;
mod marks;
mod noted;
mod possible;
mod reorder;
mod text;
mod weight;

use std::collections::{HashMap, VecDeque};
use std::io::BufRead;
use std::ops::ControlFlow;

use quotient_core::event::{Definition, Event, Kind, Sink, TaskId, TaskInfo};
use quotient_core::{Nanos, Nice};

use error::Fault;
pub use error::ReadError;
pub(crate) use error::seconds;
pub use gaps::Gaps;
use lines::Lines;
pub use marks::{Mark, MarkKind};
use noted::Noted;
pub use noted::{Note, NotedChange, NotedLimit, NotedThrottles, Recorder};
pub use possible::{CPU_NUMBERS, SPAN_MAX};
use possible::{Possible, Wrong};
use reorder::Reorder;
pub(crate) use text::{OWN_EVENT, PERIOD_TIMER};
pub use weight::NotedWeight;

use crate::record::{Meaning, Record, VERSION, in_a_line};

/// How far an event may be out of place. Unit: events. Default 1,024: perf and ftrace merge their CPUs by time and
/// miss by a few events; a trace that is further off was not merged.
pub const REORDER_EVENTS: usize = 1_024;

/// How late an event may be that one clock stamped. Default 1 s: the runtime's recorder waits 10 ms for who is about to write, and a busy machine
/// may keep somebody from it for far longer.
pub const LATE_MAX: Nanos = Nanos(1_000_000_000);

/// How many lines one may be: three names of fifteen bytes.
const JOINED_MAX: usize = 45;

/// How many names of tasks a reader keeps to notice changes. Default: the kernel's bound on thread ids. Beyond it, names
/// are forgotten and defined again.
const NAMES_MAX: usize = 1 << 22;

/// How often [`Reader::pump`] reports progress. Unit: events.
const PROGRESS_EVENTS: u64 = 1 << 16;

/// What a trace is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `perf sched script`, `perf script`, tracefs' `trace`, `trace-cmd report`: told apart line by line.
    Text,
    /// One JSON object a line: the log of the runtime and of the simulator.
    JsonLines,
}

impl Format {
    /// Recognises a format by its first bytes.
    ///
    /// # Errors
    /// `UnknownFormat` with a way out for the known binary formats, `Empty` for nothing.
    pub fn detect(head: &[u8]) -> Result<Format, ReadError> {
        let unknown = |hint| Err(ReadError::UnknownFormat { hint });
        let trimmed = head.trim_ascii_start();
        if head.is_empty() {
            Err(ReadError::Empty { lines: 0 })
        } else if head.starts_with(b"PERFILE") {
            unknown("this is perf.data; convert it with `perf sched script -i FILE`")
        } else if head.starts_with(b"\x17\x08\x44tracing") {
            unknown("this is trace.dat; convert it with `trace-cmd report -t FILE`")
        } else if trimmed.starts_with(b"<") && !trimmed.contains(&b'[') {
            unknown("this is a page, not a trace")
        } else if head.contains(&0) || head.first() == Some(&0x0a) && !head.is_ascii() {
            unknown("binary; traces are text of perf, ftrace or trace-cmd, or JSON lines")
        } else if trimmed.starts_with(b"{") {
            Ok(Format::JsonLines)
        } else {
            Ok(Format::Text)
        }
    }
}

/// One thing that a trace says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Something happened.
    Event(Event),
    /// A number got a name. May come a little before its place in time.
    Definition(Definition),
}

/// How far a reader has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub bytes: u64,
    /// Lines read.
    pub lines: u64,
    /// Events given away.
    pub events: u64,
    /// Time stamp of the last one.
    pub time: Nanos,
}

/// An event that came later in the trace than one [`LATE_MAX`] after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// Its line.
    pub line: u64,
    /// Its time stamp.
    pub time: Nanos,
    /// The newest time stamp before it.
    pub newest: Nanos,
}

/// Reads a trace.
pub struct Reader<R> {
    lines: Lines<R>,
    format: Format,
    reorder: Reorder,
    definitions: VecDeque<Definition>,
    noted: Noted,
    possible: Possible,
    names: HashMap<TaskId, KnownName>,
    state: State,
    line: u64,
    progress: Progress,
    has_events: bool,
    newest: Nanos,
    late: Option<Late>,
    skipped_max: u64,
    gaps: Gaps,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    AtEnd,
    Failed,
}

/// What a task is called. An explicit definition is worth more than what lines call it in passing, which may be
/// shortened, until they call it something else.
struct KnownName {
    text: String,
    /// What lines call it.
    shown: String,
    process: Option<TaskId>,
    nice: Option<Nice>,
    real_time: Option<u8>,
}

impl<R: BufRead> Reader<R> {
    /// Reads whatever `input` holds, by its first bytes.
    ///
    /// # Errors
    /// As [`Format::detect`], and `Io`.
    pub fn open(mut input: R) -> Result<Reader<R>, ReadError> {
        let head = input
            .fill_buf()
            .map_err(|error| ReadError::Io { line: 1, error })?;
        let format = Format::detect(head)?;
        Ok(Reader::new(input, format))
    }

    /// Reads `input` as `format`.
    pub fn new(input: R, format: Format) -> Reader<R> {
        Reader {
            lines: Lines::new(input),
            format,
            reorder: Reorder::new(REORDER_EVENTS),
            definitions: VecDeque::new(),
            noted: Noted::default(),
            possible: Possible::default(),
            names: HashMap::new(),
            state: State::Reading,
            line: 0,
            progress: Progress::default(),
            has_events: false,
            newest: Nanos::ZERO,
            late: None,
            skipped_max: 0,
            gaps: Gaps::default(),
        }
    }

    /// Leaves out up to so many lines that make no sense, instead of ending at the first; [`gaps`](Reader::gaps) counts
    /// them.
    pub fn skip_bad(&mut self, lines_max: u64) {
        self.skipped_max = lines_max;
    }

    /// Keeps the marks of programs for [`mark_before`](Reader::mark_before), which has to be called then.
    pub fn keep_marks(&mut self) {
        self.noted.marks = Some(VecDeque::new());
    }

    /// The oldest mark from before the event that was returned last, if it was not taken yet. To be asked before that event is used,
    /// until there is none.
    pub fn mark_before(&mut self) -> Option<Mark> {
        let place = (self.progress.time, self.line);
        let marks = self.noted.marks.as_mut()?;
        let is_due = marks
            .front()
            .is_some_and(|(line, mark)| (mark.time, *line) < place);
        if is_due {
            marks.pop_front().map(|(_, mark)| mark)
        } else {
            None
        }
    }

    /// The first event that came late since this was asked last, up to [`REORDER_EVENTS`] ahead of the event that was returned last: all are
    /// returned in the order of time.
    pub fn take_late(&mut self) -> Option<Late> {
        self.late.take()
    }

    /// When a period of a limit began, by the kernel's timer, from before the event that was returned last: the oldest one that was not taken yet, of the
    /// last [`REORDER_EVENTS`]. For [`Repair::period`](crate::Repair::period).
    pub fn period_before(&mut self) -> Option<Nanos> {
        let time = self.progress.time;
        let periods = &mut self.noted.periods;
        let is_due = periods.front().is_some_and(|period| *period < time);
        if is_due { periods.pop_front() } else { None }
    }

    /// The limit that the trace was recorded under, as far as it was read: `quotient record` notes it in a comment.
    pub fn noted_limit(&self) -> Option<&NotedLimit> {
        self.noted.limit.as_ref()
    }

    /// The process that recorded the trace, as far as it was read: `quotient record` notes itself in a comment.
    pub fn recording_process(&self) -> Option<TaskId> {
        self.noted.process
    }

    /// The release of the kernel that recorded the trace, as far as it was read; `None` where the trace does not say it.
    pub fn release(&self) -> Option<&str> {
        self.noted.release.as_deref()
    }

    /// How that limit was changed meanwhile, as far as it was read: noted behind the last event.
    pub fn noted_changes(&self) -> &[NotedChange] {
        &self.noted.changes
    }

    /// Weights of cgroups, as far as they were read: at first, and as they were seen to be others later.
    pub fn noted_weights(&self) -> &[NotedWeight] {
        &self.noted.weights
    }

    /// How often that limit was reached, as far as it was read: noted behind the last event.
    pub fn noted_throttles(&self) -> Option<NotedThrottles> {
        self.noted.throttles
    }

    /// Who recorded the trace. Known when the first item was read: before, it is what the format alone says.
    pub fn recorder(&self) -> Recorder {
        self.noted.recorder(self.format)
    }

    /// The same where the trace itself says it, as far as it was read.
    pub fn noted_recorder(&self) -> Option<Recorder> {
        self.noted.recorder
    }

    /// What is missing from what was read so far.
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// The format that is read.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The line of the event that was returned last.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The next item; `None` at the end, and after an error.
    ///
    /// # Errors
    /// Any [`ReadError`]; `Empty` at the end of a trace without events.
    pub fn next_item(&mut self) -> Result<Option<Item>, ReadError> {
        let result = self.read_on();
        if result.is_err() {
            self.state = State::Failed;
        }
        result
    }

    fn read_on(&mut self) -> Result<Option<Item>, ReadError> {
        loop {
            if self.state == State::Failed {
                return Ok(None);
            }
            if let Some(definition) = self.definitions.pop_front() {
                return Ok(Some(Item::Definition(definition)));
            }
            if let Some((line, event)) = self.reorder.pop(self.state == State::AtEnd) {
                self.line = line;
                self.progress.events += 1;
                self.progress.time = event.time;
                return Ok(Some(Item::Event(event)));
            }
            if self.state == State::AtEnd {
                if self.progress.events == 0 {
                    let lines = self.lines.line();
                    return Err(ReadError::Empty { lines });
                }
                return Ok(None);
            }
            if self.lines.advance()? {
                self.take_line()
                    .or_else(|error| self.take_joined(error))
                    .or_else(|error| self.skip(error))?;
                self.progress.bytes = self.lines.bytes();
                self.progress.lines = self.lines.line();
            } else {
                self.gaps.is_cut = self.lines.is_cut();
                self.state = State::AtEnd;
            }
        }
    }

    /// A task may have the end of a line in its name, and any line that names it is two, of which neither makes sense. So a line that makes none is
    /// joined with those after it, up to the next event or [`JOINED_MAX`], and taken if that makes sense, and only in the name of a task; else `error` stands, and
    /// each is a line again.
    fn take_joined(&mut self, error: ReadError) -> Result<(), ReadError> {
        if self.format != Format::Text || !matches!(error, ReadError::Syntax { .. }) {
            return Err(error);
        }
        for _ in 0..JOINED_MAX {
            if !self.lines.join().unwrap_or(false) {
                break;
            }
            if text::is_one_line(&self.lines.text()) {
                return self.take_line();
            }
            let next = self.lines.joined();
            if text::parse(&next, self.newest).is_ok_and(|line| line.event.is_some()) {
                break;
            }
        }
        self.lines.part();
        Err(error)
    }

    /// Passes over a line that makes no sense, if that is wanted.
    fn skip(&mut self, error: ReadError) -> Result<(), ReadError> {
        let is_bad_line = matches!(
            error,
            ReadError::Syntax { .. } | ReadError::Truncated { .. } | ReadError::Beyond { .. }
        );
        if !is_bad_line || self.gaps.skipped >= self.skipped_max {
            return Err(error);
        }
        self.gaps.skipped += 1;
        if self.gaps.first_skipped.is_none() {
            self.gaps.first_skipped = Some(error.to_string());
        }
        Ok(())
    }

    fn take_line(&mut self) -> Result<(), ReadError> {
        let number = self.lines.line();
        let is_cut = self.lines.is_cut();
        let text = self.lines.text();
        let place = |fault: Fault| fault.in_line(&text, number, is_cut);
        let (event, definition, names, process) = match self.format {
            Format::Text => {
                let line = text::parse(&text, self.newest).map_err(place)?;
                if self.noted.is_another(&text, number, self.has_events) {
                    return Err(ReadError::Another { line: number });
                }
                if let Some(note) = line.note.or_else(|| Note::in_remark(&text)) {
                    self.noted.take(note, number);
                }
                (line.event, line.definition, line.names, line.process)
            }
            Format::JsonLines => {
                let (mut event, mut definition) = (None, None);
                match parse_json(&text).map_err(place)? {
                    Some(Meaning::Event(that)) => event = Some(that),
                    Some(Meaning::Definition(that)) => definition = Some(that),
                    Some(Meaning::Note(note)) => self.noted.take(note, number),
                    Some(Meaning::Header(_))
                        if self.noted.is_another_log(number, self.has_events) =>
                    {
                        return Err(ReadError::Another { line: number });
                    }
                    Some(Meaning::Header(_)) | None => {}
                }
                if (event.is_some() || definition.is_some()) && !self.noted.has_heading() {
                    let heading =
                        format!("the first line of a log, {{\"quotient_trace\":{VERSION}}}");
                    return Err(place(Fault::new(0, heading)));
                }
                (event, definition, [None; 3], None)
            }
        };
        // A kernel's text names groups in passing, and not all of them.
        let is_whole = self.format == Format::JsonLines && self.gaps.skipped == 0;
        let wrong = |wrong: Wrong| place(wrong.in_text(&text));
        let said = (definition.as_ref(), event.as_ref());
        self.possible.take(said, (number, is_whole), wrong)?;
        if self.names.len() > NAMES_MAX {
            self.names.clear();
        }
        for (index, name) in names.into_iter().enumerate() {
            let process = process.filter(|_| index == 0);
            if let Some(name) = name {
                name_in_passing(&mut self.names, &mut self.definitions, name, process);
            }
        }
        if let Some(definition) = definition {
            if let Definition::Task { id, info } = &definition {
                let known = KnownName {
                    text: info.name.clone(),
                    shown: in_a_line(&info.name),
                    process: info.process,
                    nice: info.nice,
                    real_time: info.real_time,
                };
                self.names.insert(*id, known);
            }
            self.definitions.push_back(definition);
        }
        if let Some(event) = event {
            if let Kind::Switch { prev, state, .. } = event.kind
                && state.is_over()
            {
                self.names.remove(&prev);
            }
            if let Kind::Lost { count } = event.kind {
                let count = count.get().max(0).unsigned_abs();
                self.gaps.lost = self.gaps.lost.saturating_add(count);
            }
            self.has_events = true;
            let (time, newest) = (event.time, self.newest);
            if newest - time > LATE_MAX {
                self.late.get_or_insert(Late {
                    line: number,
                    time,
                    newest,
                });
            }
            self.newest = newest.max(time);
            self.reorder.push(number, event)?;
        }
        Ok(())
    }

    /// Reads to the end into `sink`. `watch` is called now and then and may stop it.
    ///
    /// # Errors
    /// Any [`ReadError`]. The sink has then taken everything before it.
    pub fn pump<S: Sink>(
        &mut self,
        sink: &mut S,
        mut watch: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Progress, ReadError> {
        while let Some(item) = self.next_item()? {
            match item {
                Item::Definition(definition) => sink.define(&definition),
                Item::Event(event) => sink.event(&event),
            }
            let is_due = self.progress.events.is_multiple_of(PROGRESS_EVENTS);
            if is_due && (sink.is_done() || watch(self.progress).is_break()) {
                break;
            }
        }
        Ok(self.progress)
    }
}

/// Defines a task by what a line calls it, unless that is no news.
fn name_in_passing(
    names: &mut HashMap<TaskId, KnownName>,
    definitions: &mut VecDeque<Definition>,
    name: text::Name<'_>,
    process: Option<TaskId>,
) {
    let text::Name {
        task,
        comm,
        nice,
        real_time,
    } = name;
    if task.is_idle() || comm.is_empty() || comm == "<...>" {
        return;
    }
    let known = names.get(&task);
    let process = process.or(known.and_then(|known| known.process));
    let nice = nice.or(known.and_then(|known| known.nice));
    let before = known.and_then(|known| known.real_time);
    // That somebody is not in the class is news only of those who were.
    let real_time = real_time.filter(|priority| *priority > 0 || before.is_some());
    let real_time = real_time.or(before);
    // Whoever writes a line may pad the name.
    let known = known.filter(|known| known.shown.trim() == comm.trim());
    if known.is_some_and(|known| {
        (known.process, known.nice, known.real_time) == (process, nice, real_time)
    }) {
        return;
    }
    let known = KnownName {
        text: known.map_or(comm, |known| &known.text).to_owned(),
        shown: comm.to_owned(),
        process,
        nice,
        real_time,
    };
    let info = TaskInfo {
        name: known.text.clone(),
        process,
        nice,
        real_time,
        ..TaskInfo::default()
    };
    names.insert(task, known);
    definitions.push_back(Definition::Task { id: task, info });
}

/// One line of the native log; an empty one says nothing.
fn parse_json(text: &str) -> Result<Option<Meaning>, Fault> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let record: Record = serde_json::from_str(text).map_err(|error| {
        Fault::new(
            error.column().saturating_sub(1),
            format!("a record of the log ({error})"),
        )
    })?;
    match record.meaning() {
        Some(Meaning::Header(version)) if version > VERSION => {
            Err(Fault::new(0, format!("a log of version {VERSION}")))
        }
        Some(Meaning::Note(note)) if !note.is_possible() => {
            Err(Fault::new(0, "a note that can be true"))
        }
        Some(meaning) => Ok(Some(meaning)),
        None => Err(Fault::new(
            0,
            "exactly one event, one definition or one note",
        )),
    }
}
