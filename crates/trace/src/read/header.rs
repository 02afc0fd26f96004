//! What stands before the colon of a text trace's line: who ran where when, and what sort of event it is.
//!
//! ```text
//!      comm-pid   (tgid) [cpu] flags seconds.fraction: event: arguments        ftrace
//!      comm  pid         [cpu]       seconds.fraction: group:event: arguments  perf
//! ```
//! A `comm` may hold spaces, dashes and brackets, so the line is read from its `[cpu]` outwards, and the first pair of
//! brackets with a task on its left and a time stamp on its right is the one.

use quotient_core::event::TaskId;
use quotient_core::{CpuId, Nanos};

use super::error::Fault;

/// Words between the CPU and the time stamp: flags, latency marks. The kernel writes one.
const FLAG_WORDS_MAX: usize = 2;

/// The parts of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header<'a> {
    pub comm: &'a str,
    pub task: TaskId,
    /// ftrace's option `record-tgid`: the process of `task`, where it knows it.
    pub process: Option<TaskId>,
    pub cpu: CpuId,
    pub time: Nanos,
    /// ftrace's third flag: a hard interrupt or an NMI is being served. perf does not say.
    pub in_interrupt: bool,
    /// Without the group that perf puts before it.
    pub event: &'a str,
    pub arguments: &'a str,
}

/// Takes a line apart.
///
/// # Errors
/// Where the most promising way to read it ended.
pub(crate) fn parse(text: &str) -> Result<Header<'_>, Fault> {
    let mut best = Fault::new(0, "a task, then its CPU in brackets");
    for (open, _) in text.match_indices('[') {
        match parse_around(text, open) {
            Ok(header) => return Ok(header),
            Err(fault) if fault.at >= best.at => best = fault,
            Err(_) => {}
        }
    }
    Err(best)
}

/// Where `part`, a piece of `text`, begins.
pub(crate) fn offset(text: &str, part: &str) -> usize {
    (part.as_ptr() as usize)
        .wrapping_sub(text.as_ptr() as usize)
        .min(text.len())
}

/// A decimal number, all of `part`.
pub(crate) fn number(text: &str, part: &str, what: &str) -> Result<u32, Fault> {
    let is_decimal = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    part.parse()
        .ok()
        .filter(|_| is_decimal)
        .ok_or_else(|| Fault::new(offset(text, part), what))
}

fn parse_around(text: &str, open: usize) -> Result<Header<'_>, Fault> {
    let inside = &text[open + 1..];
    let close = inside
        .find(']')
        .ok_or_else(|| Fault::new(text.len(), "the closing bracket of the CPU"))?;
    let cpu = number(text, &inside[..close], "the number of a CPU")?;
    let (comm, task, process) = parse_task(text, &text[..open])?;
    let (time, in_interrupt, rest) = parse_time(text, &inside[close + 1..])?;
    let (event, arguments) = parse_event(text, rest)?;
    Ok(Header {
        comm,
        task,
        process,
        cpu: CpuId(cpu),
        time,
        in_interrupt,
        event,
        arguments,
    })
}

fn parse_task<'a>(text: &str, left: &'a str) -> Result<(&'a str, TaskId, Option<TaskId>), Fault> {
    let mut left = left.trim_end();
    let mut process = None;
    if let Some(inner) = left.strip_suffix(')')
        && let Some((before, group)) = inner.rsplit_once('(')
        && group
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b' '))
    {
        left = before.trim_end();
        process = group.trim().parse().ok().map(TaskId);
    }
    let digits = trailing_digits(left);
    let task = number(text, digits, "the number of a task")?;
    let mut before = &left[..left.len() - digits.len()];
    if let Some(process) = before.strip_suffix('/') {
        let process_digits = trailing_digits(process);
        before = &process[..process.len() - process_digits.len()];
    }
    let comm = match before.as_bytes().last() {
        Some(b'-') => &before[..before.len() - 1],
        Some(b' ') => before,
        _ => {
            return Err(Fault::new(
                offset(text, digits),
                "a name before the number of the task",
            ));
        }
    };
    Ok((comm.trim(), TaskId(task), process))
}

fn trailing_digits(text: &str) -> &str {
    let kept = text
        .trim_end_matches(|letter: char| letter.is_ascii_digit())
        .len();
    &text[kept..]
}

fn parse_time<'a>(text: &str, right: &'a str) -> Result<(Nanos, bool, &'a str), Fault> {
    let mut rest = right.trim_start();
    let mut in_interrupt = false;
    for _ in 0..=FLAG_WORDS_MAX {
        let Some((word, after)) = rest.split_once([' ', '\t']) else {
            break;
        };
        if let Some(stamp) = word.strip_suffix(':')
            && let Some(time) = parse_stamp(stamp)
        {
            return Ok((time, in_interrupt, after.trim_start()));
        }
        in_interrupt |= matches!(word.as_bytes().get(2), Some(b'h' | b'H' | b'z' | b'Z'));
        rest = after.trim_start();
    }
    let at = offset(text, right.trim_start());
    Err(Fault::new(
        at,
        "a time stamp in seconds, such as 12.345678:",
    ))
}

/// Seconds with one to nine digits after the point.
fn parse_stamp(stamp: &str) -> Option<Nanos> {
    let (seconds, fraction) = stamp.split_once('.')?;
    let is_decimal = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !is_decimal(seconds) || !is_decimal(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u64.pow(9 - u32::try_from(fraction.len()).ok()?);
    let nanos = fraction.parse::<u64>().ok()?.checked_mul(scale)?;
    let seconds = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
    seconds.checked_add(nanos).map(Nanos)
}

fn parse_event<'a>(text: &str, rest: &'a str) -> Result<(&'a str, &'a str), Fault> {
    let missing = || Fault::new(offset(text, rest), "the name of an event and a colon");
    let (mut name, mut arguments) = split_name(rest).ok_or_else(missing)?;
    // `perf script` may put the period of the sample before the name.
    if let Some((period, after)) = name.split_once(' ')
        && period.bytes().all(|byte| byte.is_ascii_digit())
    {
        name = after.trim_start();
    }
    if name.is_empty() || name.contains(' ') {
        return Err(missing());
    }
    if let Some((_, short)) = name.rsplit_once(':') {
        name = short;
    }
    arguments = arguments.trim();
    Ok((name, arguments))
}

fn split_name(rest: &str) -> Option<(&str, &str)> {
    rest.split_once(": ")
        .or_else(|| rest.trim_end().strip_suffix(':').map(|name| (name, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, u32, u32, u64, String, String) {
        let header = parse(text).expect(text);
        (
            header.comm.to_owned(),
            header.task.0,
            header.cpu.0,
            header.time.0,
            header.event.to_owned(),
            header.arguments.to_owned(),
        )
    }

    #[test]
    fn both_dialects_and_strange_names() {
        let cases = [
            (
                "          <idle>-0     [001] d..2.  12.000001: sched_switch: a=b",
                ("<idle>", 0, 1, 12_000_001_000, "sched_switch", "a=b"),
            ),
            (
                "my [0] thing-x-77 (  123) [010] .... 1.5: x: y: z",
                ("my [0] thing-x", 77, 10, 1_500_000_000, "x", "y: z"),
            ),
            (
                "Web Content (2)  4711 [003] 3.123456789: sched:sched_waking: q",
                (
                    "Web Content (2)",
                    4711,
                    3,
                    3_123_456_789,
                    "sched_waking",
                    "q",
                ),
            ),
            (
                "perf 10/11 [000] 0.1:   1 sched:sched_switch:",
                ("perf", 11, 0, 100_000_000, "sched_switch", ""),
            ),
        ];
        for (text, (comm, task, cpu, time, event, arguments)) in cases {
            let expected = (
                comm.to_owned(),
                task,
                cpu,
                time,
                event.to_owned(),
                arguments.to_owned(),
            );
            assert_eq!(read(text), expected);
        }
    }

    #[test]
    fn the_fault_is_where_the_best_reading_ended() {
        let cases = [
            ("", 0),
            ("no brackets at all", 0),
            ("a-1 [x] 1.0: e: f", 5),
            ("a-1 [0] soon: e: f", 8),
            ("a-1 [0] 99999999999999999999.0: e: f", 8),
            ("a-1 [0] 1.0: nothing", 13),
            ("a-99999999999 [0] 1.0: e: f", 2),
        ];
        for (text, at) in cases {
            assert_eq!(parse(text).map_err(|fault| fault.at), Err(at), "{text:?}");
        }
    }
}
