//! `quotient trace`: a recording of a running process, through its socket.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use quotient_attach::{Answer, Request, TRACE_MILLIS_MAX};
use quotient_core::Nanos;
use quotient_core::event::Sink;
use quotient_sim::scenario::time;
use quotient_trace::{Format, Item, JsonLines, ReadError, Reader};

use super::Link;
use super::printable::printable;
use crate::failure::Failure;
use crate::output::Output;

/// How much longer than the recording its transfer may take. Unit: time. Default 60 s: what full buffers of 32 virtual CPUs may need.
const TRANSFER_WITHIN: Duration = Duration::from_secs(60);

/// What `quotient trace` takes.
#[derive(Debug, Clone, Args)]
pub struct TraceArguments {
    #[command(flatten)]
    link: Link,
    /// How long (1ms..=60s), such as 500ms; Ctrl-C ends it earlier and keeps what was recorded
    #[arg(value_name = "TIME", default_value = "5s", value_parser = millis)]
    millis: u64,
    /// Where the events go, as JSON lines; `-` is standard output
    #[arg(long, value_name = "FILE", default_value = "trace.jsonl")]
    out: PathBuf,
}

/// Records the events of a process.
///
/// # Errors
/// `Usage` if nobody answers at the socket or the file cannot be written, `Unreadable` for an answer that is none, `Run` if the process
/// refuses, takes too long or ends. What came until then is kept.
pub fn trace(arguments: &TraceArguments) -> Result<(), Failure> {
    let (link, millis) = (&arguments.link, arguments.millis);
    let mut client = link.connect()?;
    let is_over = Arc::new(AtomicBool::new(false));
    let closer = client
        .closer()
        .map_err(Failure::during("cannot share the connection"))?;
    let set = is_over.clone();
    ctrlc::set_handler(move || {
        set.store(true, Ordering::Release);
        closer.close();
    })
    .map_err(Failure::during("cannot listen for Ctrl-C"))?;
    // Before the process begins, so that a whole trace never looks too short.
    let (began, length) = (Instant::now(), Duration::from_millis(millis));
    match client.ask(&Request::Trace { millis }) {
        Ok(Answer::Trace {}) => {}
        _ if is_over.load(Ordering::Acquire) => return Err(Failure::Interrupted),
        Ok(_) => {
            let message = format!("{}: the answer is to another question", link.name());
            return Err(Failure::Unreadable(message));
        }
        Err(error) => return Err(link.failure(error)),
    }
    let output = Output::create(&arguments.out)?;
    let rest = client.into_rest(length + TRANSFER_WITHIN);
    let mut reader = Reader::new(rest, Format::JsonLines);
    let mut sink = JsonLines::new(output);
    let copied = copy(&mut reader, &mut sink);
    sink.finish()
        .map_err(Failure::writing(&arguments.out.display().to_string()))?
        .keep()?;
    let events = reader.progress().events;
    let lost = reader.gaps().lost;
    eprintln!(
        "{}: {events} events in {:.1} s, {lost} lost",
        arguments.out.display(),
        began.elapsed().as_secs_f64()
    );
    match copied {
        _ if is_over.load(Ordering::Acquire) => Ok(()),
        Ok(()) | Err(ReadError::Empty { .. }) if began.elapsed() < length => Err(Failure::Run(
            format!("{}: the process ended the trace early", link.name()),
        )),
        Ok(()) | Err(ReadError::Empty { .. }) => Ok(()),
        Err(ReadError::Io { error, .. }) => Err(Failure::Run(format!(
            "{}: the trace broke off: {error}",
            link.name()
        ))),
        Err(error) => Err(Failure::Unreadable(format!(
            "{}: {}",
            link.name(),
            printable(&error.to_string())
        ))),
    }
}

/// Everything that comes, until nobody takes it any more.
fn copy<R: io::BufRead>(reader: &mut Reader<R>, sink: &mut impl Sink) -> Result<(), ReadError> {
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Definition(definition) => sink.define(&definition),
            Item::Event(event) => sink.event(&event),
        }
        if sink.is_done() {
            break;
        }
    }
    Ok(())
}

/// A time as in scenarios, within what a trace may take.
fn millis(text: &str) -> Result<u64, String> {
    let Nanos(nanos) = time(text)?;
    let millis = nanos / 1_000_000;
    if (1..=TRACE_MILLIS_MAX).contains(&millis) && nanos.is_multiple_of(1_000_000) {
        Ok(millis)
    } else {
        Err("expected whole milliseconds in 1ms..=60s".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_traces_are_bounded() {
        assert_eq!(
            (millis("5s"), millis("1ms"), millis("60s")),
            (Ok(5_000), Ok(1), Ok(60_000))
        );
        for bad in ["", "0s", "61s", "-1s", "s", "1us", "99999999999999999999s"] {
            assert!(millis(bad).is_err(), "{bad}");
        }
    }
}
