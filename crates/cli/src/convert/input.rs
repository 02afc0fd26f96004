//! A trace as the commands open it: any format, progress on standard error, Ctrl-C.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use quotient_trace::{
    Event, Format, Gaps, Item, Late, Missing, Note, NoteSink, Progress, Reader, Recorder, Repair,
    Sink,
};

use crate::failure::Failure;

/// Read at once. Unit: bytes. Default 256 KiB: enough that system calls do not show.
const BUFFER_BYTES: usize = 256 * 1024;

/// Between two looks at progress and at Ctrl-C. Unit: events.
const LOOK_EVENTS: u64 = 1 << 14;

/// Between two updates of the progress line.
const UPDATE: Duration = Duration::from_millis(200);

/// What can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum From {
    /// Text of tracefs or of `trace-cmd report`
    Ftrace,
    /// Text of `perf sched script`
    Perf,
    /// Quotient's own log
    Jsonl,
}

/// A trace that is being read.
pub struct Input {
    reader: Reader<Box<dyn BufRead>>,
    name: String,
    size: Option<u64>,
    interrupted: Arc<AtomicBool>,
    is_terminal: bool,
    updated: Instant,
    has_line: bool,
}

impl Input {
    /// Opens `path`, or standard input for `-`; `skip_bad` lines that make no sense are left out.
    ///
    /// # Errors
    /// `Usage` if it cannot be opened, `Unreadable` if it is no trace.
    pub fn open(path: &Path, from: Option<From>, skip_bad: u64) -> Result<Input, Failure> {
        let name = path.display().to_string();
        let (input, size): (Box<dyn BufRead>, _) = if path == Path::new("-") {
            (Box::new(BufReader::new(io::stdin())), None)
        } else {
            let file = opened(path)?;
            let metadata = file.metadata().ok();
            let size = metadata
                .filter(std::fs::Metadata::is_file)
                .map(|data| data.len());
            (Box::new(BufReader::with_capacity(BUFFER_BYTES, file)), size)
        };
        let mut reader = match from {
            Some(From::Ftrace | From::Perf) => Reader::new(input, Format::Text),
            Some(From::Jsonl) => Reader::new(input, Format::JsonLines),
            None => Reader::open(input).map_err(Failure::reading(&name))?,
        };
        reader.skip_bad(skip_bad);
        Ok(Input {
            reader,
            name,
            size,
            interrupted: interruption()?,
            is_terminal: io::stderr().is_terminal(),
            updated: Instant::now(),
            has_line: false,
        })
    }

    /// Whether a kernel recorded it: time stamps may be rounded to microseconds, and switches may be missing. To be asked behind the first item.
    pub fn is_kernels(&self) -> bool {
        self.reader.recorder() == Recorder::Kernel
    }

    /// An event that came late, which is a fault where Quotient recorded: a kernel's CPUs are written one after another.
    pub fn take_late(&mut self) -> Option<Late> {
        let late = self.reader.take_late();
        late.filter(|_| !self.is_kernels())
    }

    /// The line of the event that came last.
    pub fn line(&self) -> u64 {
        self.reader.line()
    }

    /// What is missing from what was read so far.
    pub fn gaps(&self) -> &Gaps {
        self.reader.gaps()
    }

    /// Says on standard error what is missing.
    pub fn tell_gaps(&mut self) {
        self.clear();
        if self.gaps().is_any() {
            print(&format!("{}: {}\n", self.name, self.gaps()));
        }
    }

    /// The next item.
    ///
    /// # Errors
    /// `Unreadable` with line and column, `Interrupted`.
    pub fn next_item(&mut self) -> Result<Option<Item>, Failure> {
        let progress = self.reader.progress();
        if progress.events.is_multiple_of(LOOK_EVENTS) && self.look(progress).is_break() {
            return Err(Failure::Interrupted);
        }
        let name = &self.name;
        let item = self.reader.next_item().map_err(Failure::reading(name))?;
        if item.is_none() {
            self.clear();
        }
        Ok(item)
    }

    /// Feeds all of it to `sink`, with what it says beside its events. `is_log`: it writes a log of Quotient's own;
    /// of one that does not say who recorded it, that says it neither.
    ///
    /// # Errors
    /// As [`Input::next_item`].
    pub fn pump(&mut self, sink: &mut impl NoteSink, is_log: bool) -> Result<(), Failure> {
        self.reader.keep_marks();
        let (mut has_begun, mut has_limit) = (false, false);
        let (mut has_process, mut has_release) = (false, false);
        let mut weights = 0;
        while let Some(item) = self.next_item()? {
            if !has_begun {
                has_begun = true;
                let was_log = self.reader.format() == Format::JsonLines;
                if self.reader.noted_recorder().is_some() || !(is_log && was_log) {
                    sink.note(&Note::Recorder(self.reader.recorder()));
                }
            }
            if let Some(process) = self.reader.recording_process().filter(|_| !has_process) {
                has_process = true;
                sink.note(&Note::Process(process));
            }
            if let Some(release) = self.reader.release().filter(|_| !has_release) {
                has_release = true;
                sink.note(&Note::Release(release.to_owned()));
            }
            if let Some(limit) = self.reader.noted_limit().filter(|_| !has_limit) {
                has_limit = true;
                sink.note(&Note::Limit(limit.clone()));
            }
            weights = self.pass_weights(weights, sink);
            match item {
                Item::Definition(definition) => sink.define(&definition),
                Item::Event(event) => {
                    while let Some(at) = self.reader.period_before() {
                        sink.note(&Note::Period(at));
                    }
                    while let Some(mark) = self.reader.mark_before() {
                        sink.note(&Note::Mark(mark));
                    }
                    sink.event(&event);
                }
            }
            if sink.is_done() {
                break;
            }
        }
        self.pass_weights(weights, sink);
        for change in self.reader.noted_changes() {
            sink.note(&Note::Change(change.clone()));
        }
        if let Some(counted) = self.reader.noted_throttles() {
            sink.note(&Note::Throttles(counted));
        }
        self.clear();
        Ok(())
    }

    /// Notes the weights behind the first so many; how many there are.
    fn pass_weights(&self, passed: usize, sink: &mut impl NoteSink) -> usize {
        let weights = self.reader.noted_weights();
        for weight in &weights[passed..] {
            sink.note(&Note::Weight(weight.clone()));
        }
        weights.len()
    }

    /// Feeds all of it to `sink`, with switches that a kernel's text left out ([`Repair`]): for figures and pictures. What is converted stays as it is.
    ///
    /// # Errors
    /// As [`Input::next_item`].
    pub fn pump_repaired(&mut self, sink: &mut impl Sink) -> Result<(), Failure> {
        let mut repair = Repair::default();
        self.feed(&mut repair, sink)?;
        let (filled_in, name) = (repair.count(), &self.name);
        if filled_in > 0 {
            print(&format!(
                "{name}: {filled_in} switches are missing and were filled in\n"
            ));
        }
        Ok(())
    }

    /// The switch that is missing before the event that was read last. None is where Quotient recorded: there it is a fault.
    pub fn missing(&mut self, repair: &mut Repair, event: &Event) -> Option<Missing> {
        if !self.is_kernels() {
            return None;
        }
        while let Some(at) = self.reader.period_before() {
            repair.period(at);
        }
        repair.missing(event)
    }

    fn feed(&mut self, repair: &mut Repair, sink: &mut impl Sink) -> Result<(), Failure> {
        while let Some(item) = self.next_item()? {
            match item {
                Item::Definition(definition) => sink.define(&definition),
                Item::Event(event) => {
                    if let Some(missing) = self.missing(repair, &event) {
                        sink.event(&missing.event);
                    }
                    sink.event(&event);
                }
            }
            if sink.is_done() {
                break;
            }
        }
        self.clear();
        Ok(())
    }

    fn look(&mut self, progress: Progress) -> ControlFlow<()> {
        // Nothing is published with the flag.
        if self.interrupted.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if self.is_terminal && self.updated.elapsed() >= UPDATE {
            self.updated = Instant::now();
            self.has_line = true;
            let part = self
                .size
                .filter(|size| *size > 0)
                .map_or_else(String::new, |size| {
                    format!("{:3} %  ", progress.bytes.saturating_mul(100) / size)
                });
            print(&format!(
                "\r\x1b[2K{}  {part}{} events",
                self.name, progress.events
            ));
        }
        ControlFlow::Continue(())
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.has_line) {
            print("\r\x1b[2K");
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A file of which a trace is to be read.
///
/// # Errors
/// `Usage` if it cannot be opened, `Unreadable` if it is a folder.
pub fn opened(path: &Path) -> Result<File, Failure> {
    let name = path.display();
    if path.is_dir() {
        return Err(Failure::Unreadable(format!(
            "{name}: a folder, and a trace is one file"
        )));
    }
    File::open(path).map_err(|error| Failure::Usage(format!("{name}: cannot be opened: {error}")))
}

/// A flag that Ctrl-C sets, so that the command can leave by its own door.
///
/// # Errors
/// `Run` if the system takes no handler.
pub fn interruption() -> Result<Arc<AtomicBool>, Failure> {
    // `diff` opens two traces, and a process has one handler.
    static FLAG: std::sync::OnceLock<Arc<AtomicBool>> = std::sync::OnceLock::new();
    if let Some(flag) = FLAG.get() {
        return Ok(Arc::clone(flag));
    }
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    ctrlc::set_handler(move || set.store(true, Ordering::Relaxed))
        .map_err(Failure::during("cannot handle Ctrl-C"))?;
    Ok(Arc::clone(FLAG.get_or_init(|| flag)))
}

fn print(text: &str) {
    // Progress that nobody can read must not stop the run.
    let mut error = io::stderr().lock();
    let _ = error
        .write_all(text.as_bytes())
        .and_then(|()| error.flush());
}
