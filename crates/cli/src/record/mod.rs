//! `quotient record`: a trace of this machine by its own kernel, with what `advise` needs to choose from it.
//!
//! The file begins with every thread's process and cgroup as they were at first (a running service is never seen entering
//! its own) and with the weights of cgroups, then come the kernel's lines as they are. Everybody is recorded unless asked otherwise: who runs beside a
//! service is a part of its load.

mod limit;
mod members;
mod namespace;
mod pump;
mod tracefs;
mod weight;

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use quotient_core::Nanos;
use quotient_sim::Kernel;
use quotient_sim::scenario::time;
use quotient_trace::{Ftrace, Note, NoteSink, NotedChange, Sink};

use crate::convert::input::interruption;
use crate::failure::Failure;
use crate::output::Output;
use limit::{Limit, Watch};
use members::{Hierarchy, Members};
use pump::{Pumped, pump};
use tracefs::{Instance, Tracefs};
use weight::Weights;

/// What `quotient record` takes.
#[derive(Debug, Clone, Args)]
pub struct RecordArguments {
    /// For how long (10ms..=1h); Ctrl-C ends it earlier and keeps what was recorded
    #[arg(value_name = "TIME", default_value = "60s", value_parser = duration)]
    duration: Duration,
    /// A process or thread that the recording is about; may be repeated
    #[arg(long, value_name = "NUMBER")]
    pid: Vec<u32>,
    /// The cgroup that the recording is about, with those below it: as /proc/PID/cgroup names it, or its folder
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Leave out everybody else: less to write, but then nothing is known of the load beside it
    #[arg(long)]
    only: bool,
    /// Where the trace goes; `-` is standard output
    #[arg(long, short, value_name = "FILE", default_value = "trace.txt")]
    out: PathBuf,
    /// Buffer of each CPU, in KiB (64..=1048576): events are lost when it overflows between two reads
    #[arg(long, value_name = "KIB", default_value_t = 8192, value_parser = value_parser!(u32).range(64..=1_048_576))]
    buffer_kb: u32,
    /// Where tracefs is [default: looked for; mounted for this recording if it is not]
    #[arg(long, value_name = "FOLDER")]
    tracefs: Option<PathBuf>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let Nanos(nanos) = time(text)?;
    if (10_000_000..=3_600_000_000_000).contains(&nanos) {
        Ok(Duration::from_nanos(nanos))
    } else {
        Err("expected a time in 10ms..=1h".to_owned())
    }
}

/// Where processes are.
const PROC: &str = "/proc";

/// What was tried when the trace could not be written.
const WRITING: &str = "cannot write the trace";

/// Records.
///
/// # Errors
/// `Usage` where this process may not, or for a subject that does not exist; whatever breaks on the way. tracefs is as it
/// was in each case.
pub fn run(arguments: &RecordArguments) -> Result<(), Failure> {
    let hierarchy = Hierarchy::here();
    let members = Members::now(&hierarchy);
    let subjects = subjects(arguments, &hierarchy, &members)?;
    let only: &[u32] = if arguments.only { &subjects } else { &[] };
    let interrupted = interruption()?;
    let tracefs = Tracefs::find(arguments.tracefs.as_deref())?;
    namespace::check(Path::new(PROC))?;
    let instance = Instance::new(tracefs, arguments.buffer_kb, hierarchy.number, only)?;
    for stale in instance.stale() {
        eprintln!("{stale}");
        for partial in stale.remove_partial(&arguments.out) {
            eprintln!("removed {}, which it had not finished", partial.display());
        }
    }
    let cgroups = arguments.cgroups(&hierarchy, &members);
    let limit = limit_of(&hierarchy, &cgroups);
    let mut output = Output::create(&arguments.out)?;
    let weights = Weights::now(&hierarchy, members.paths(), Instant::now());
    output = head(output, members, (limit.as_ref(), &weights))?;
    let begin = Instant::now();
    let mut pipe = instance.pipe()?;
    let count = limit.as_ref().and_then(|limit| limit.count(&hierarchy));
    instance.run(true)?;
    let watch = RefCell::new(Watch::new(limit.clone(), begin));
    let weights = RefCell::new(weights);
    let look = |is_last| {
        let now = Instant::now();
        let limit = || limit_of(&hierarchy, &cgroups);
        watch.borrow_mut().look(now, is_last, limit);
        weights.borrow_mut().look(&hierarchy, now);
    };
    let is_over = || {
        look(false);
        interrupted.load(Relaxed) || begin.elapsed() >= arguments.duration
    };
    let mut counted = None;
    let stop = || {
        instance.run(false)?;
        look(true);
        let last = Members::now(&hierarchy);
        weights.borrow_mut().look_at_last(&hierarchy, last.paths());
        counted = count.and_then(|count| count.so_far());
        Ok(())
    };
    let pumped = match pump(&mut pipe, &mut output, is_over, stop) {
        Ok(pumped) => pumped,
        Err(error) => {
            // What was read until then is a trace, too, if it could be written.
            if matches!(error, Failure::Run(_)) {
                output.keep()?;
            }
            return Err(error);
        }
    };
    let length = begin.elapsed();
    drop((pipe, instance));
    let watch = watch.into_inner();
    for change in watch.changes() {
        writeln!(output, "{change}").map_err(Failure::writing(WRITING))?;
    }
    for weight in weights.into_inner().changes() {
        writeln!(output, "{weight}").map_err(Failure::writing(WRITING))?;
    }
    if let Some(counted) = counted {
        writeln!(output, "{counted}").map_err(Failure::writing(WRITING))?;
    }
    output.keep()?;
    let limits = (limit.as_ref(), watch.changes());
    let summary = summary(arguments, &hierarchy, pumped, length, limits);
    eprint!("{summary}");
    Ok(())
}

/// The threads that the recording is about.
fn subjects(
    arguments: &RecordArguments,
    hierarchy: &Hierarchy,
    members: &Members,
) -> Result<Vec<u32>, Failure> {
    for pid in &arguments.pid {
        if members.subjects(&[*pid], None).is_empty() {
            return Err(Failure::Usage(format!(
                "--pid {pid}: no such process or thread"
            )));
        }
    }
    let cgroup = arguments
        .cgroup
        .as_deref()
        .map(|path| hierarchy.within(path));
    let subjects = members.subjects(&arguments.pid, cgroup);
    if let Some(path) = cgroup {
        let folder = hierarchy.folder(path);
        let climbs = path.split('/').any(|part| part == "..");
        if climbs || !folder.is_some_and(|folder| folder.is_dir()) {
            return Err(Failure::Usage(format!(
                "--cgroup {path}: no such cgroup where CPU limits are set; /proc/PID/cgroup says what a process is in"
            )));
        }
    }
    if arguments.only && subjects.is_empty() {
        return Err(Failure::Usage(
            "--only needs somebody: a --pid, or a --cgroup with a process in it".to_owned(),
        ));
    }
    Ok(subjects)
}

impl RecordArguments {
    /// The cgroups of all of whom the recording is about; `None` of one that is gone.
    fn cgroups(&self, hierarchy: &Hierarchy, members: &Members) -> Vec<Option<String>> {
        let of_pids = self.pid.iter().map(|pid| members.cgroup_of(*pid));
        let of_cgroup = self
            .cgroup
            .as_deref()
            .map(|path| Some(hierarchy.within(path)));
        let paths = of_pids.chain(of_cgroup);
        paths.map(|path| path.map(str::to_owned)).collect()
    }
}

/// The tightest limit that all of these are under; `None` where there is none, or they are under different ones.
fn limit_of(hierarchy: &Hierarchy, cgroups: &[Option<String>]) -> Option<Limit> {
    let mut limits = cgroups
        .iter()
        .map(|path| hierarchy.limit_of(path.as_deref()?));
    let first = limits.next()??;
    limits
        .all(|other| other.as_ref() == Some(&first))
        .then_some(first)
}

/// Writes what was known before the first event.
fn head(
    output: Output,
    members: Members,
    (limit, weights): (Option<&Limit>, &Weights),
) -> Result<Output, Failure> {
    let mut writer = Ftrace::new(output);
    for definition in members.definitions() {
        writer.define(&definition);
    }
    if let Some(own) = namespace::own(Path::new(PROC)) {
        writer.note(&Note::Process(own));
    }
    let mut output = writer.finish().map_err(Failure::writing(WRITING))?;
    writeln!(
        output,
        "# quotient record {}, Linux {}",
        env!("CARGO_PKG_VERSION"),
        release().trim()
    )
    .map_err(Failure::writing(WRITING))?;
    if let Some(limit) = limit {
        writeln!(output, "{}", limit.noted()).map_err(Failure::writing(WRITING))?;
    }
    for weight in weights.noted() {
        writeln!(output, "{weight}").map_err(Failure::writing(WRITING))?;
    }
    Ok(output)
}

/// As `uname -r` says it.
fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()
}

fn summary(
    arguments: &RecordArguments,
    hierarchy: &Hierarchy,
    pumped: Pumped,
    length: Duration,
    (limit, changes): (Option<&Limit>, &[NotedChange]),
) -> String {
    let mut text = format!(
        "{:.1} s, {} lines, {:.1} MB: {}\n",
        length.as_secs_f64(),
        pumped.lines,
        pumped.bytes as f64 / 1e6,
        arguments.out.display()
    );
    if pumped.lost > 0 {
        text += &format!(
            "LOST {} events: a larger --buffer-kb keeps them; the trace says where\n",
            pumped.lost
        );
    }
    if let Some(limit) = limit {
        text += limit.noted().to_string().trim_start_matches("# ");
        text.push('\n');
    }
    for change in changes {
        text += change.to_string().trim_start_matches("# ");
        text.push('\n');
    }
    if !changes.is_empty() {
        text +=
            "THE LIMIT WAS CHANGED meanwhile: advise recommends nothing from such a recording\n";
    }
    if pumped.lines == 0 {
        text += "NOBODY RAN of whom the recording is about: the trace is empty\n";
    }
    // Without a trace there is nothing to ask, and of what went to standard output nobody knows where it is.
    if pumped.lines == 0 || arguments.out.as_os_str() == "-" {
        return text;
    }
    // `advise` is about processes or about a cgroup, not about both.
    let subject = match &arguments.cgroup {
        _ if !arguments.pid.is_empty() => {
            let pids = arguments.pid.iter().map(|pid| format!(" --pid {pid}"));
            pids.collect()
        }
        Some(path) => format!(" --cgroup {}", quoted(hierarchy.within(path))),
        None => String::new(),
    };
    let under = limit.map_or_else(String::new, |limit| {
        let burst = match limit.burst_us {
            0 => String::new(),
            burst => format!("/{burst}"),
        };
        let (quota, period) = (limit.quota_us, limit.period_us);
        format!(" --recorded-limit {quota}/{period}{burst}")
    });
    let kernel = Kernel::of_release(&release());
    let kernel = kernel.map_or_else(String::new, |kernel| format!(" --kernel {}", kernel.name()));
    let out = quoted(&arguments.out.to_string_lossy());
    text + &format!("now: quotient advise {out}{subject}{under}{kernel}\n")
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+:@%,".contains(letter);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let word: String = word.chars().filter(|letter| !letter.is_control()).collect();
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_for_a_shell_is_one_word() {
        for plain in ["trace.txt", "/web/a-1.slice"] {
            assert_eq!(quoted(plain), plain);
        }
        let cases = [
            ("m x.txt", "'m x.txt'"),
            ("a $(touch pwn)", "'a $(touch pwn)'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("a\u{1b}[31m", "'a[31m'"),
        ];
        for (word, expected) in cases {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn durations_have_bounds() {
        assert_eq!(duration("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        for text in ["9ms", "61min", "60", "-1s", ""] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
