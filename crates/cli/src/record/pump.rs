//! From tracefs' pipe to a file, counting what went through.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::WRITING;
use crate::failure::Failure;

/// Between two looks at an empty pipe. Default 20 ms: 8 MiB a CPU hold some 100,000 events, so nothing is lost below
/// five million a second, and the recorder takes a thousandth of a CPU when nothing happens.
const PAUSE: Duration = Duration::from_millis(20);

/// How long the rest may take that lies in the buffers when the recording ends. Default 60 s: far more than even full
/// buffers need.
const REST_MAX: Duration = Duration::from_secs(60);

/// Longest line that is looked at. Unit: bytes. What the kernel writes is at most a page.
const LINE_MAX: usize = 4_096;

/// What went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pumped {
    /// Bytes.
    pub(super) bytes: u64,
    /// Lines.
    pub(super) lines: u64,
    /// Events of which the kernel says that they were lost.
    pub(super) lost: u64,
}

/// Copies what the pipe has until `is_over`, then calls `stop` and copies the rest.
///
/// # Errors
/// A pipe that cannot be read, an output that cannot be written, or what `stop` says.
pub(super) fn pump(
    pipe: &mut impl Read,
    output: &mut impl Write,
    mut is_over: impl FnMut() -> bool,
    stop: impl FnOnce() -> Result<(), Failure>,
) -> Result<Pumped, Failure> {
    let mut tally = Tally::default();
    let mut buffer = vec![0; 1 << 16];
    while !is_over() {
        if !step(pipe, output, &mut buffer, &mut tally)? {
            std::thread::sleep(PAUSE);
        }
    }
    stop()?;
    let end = Instant::now() + REST_MAX;
    while step(pipe, output, &mut buffer, &mut tally)? {
        if Instant::now() > end {
            return Err(Failure::Run(
                "tracefs does not run dry: the trace is cut off".to_owned(),
            ));
        }
    }
    Ok(tally.pumped)
}

/// Copies once; whether there was anything.
fn step(
    pipe: &mut impl Read,
    output: &mut impl Write,
    buffer: &mut [u8],
    tally: &mut Tally,
) -> Result<bool, Failure> {
    match pipe.read(buffer) {
        Ok(0) => Ok(false),
        Ok(length) => {
            let read = &buffer[..length];
            tally.take(read);
            output.write_all(read).map_err(Failure::writing(WRITING))?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(Failure::Run(format!("cannot read tracefs: {error}"))),
    }
}

/// Counts lines, however they are cut into reads.
#[derive(Default)]
struct Tally {
    pumped: Pumped,
    line: Vec<u8>,
}

impl Tally {
    fn take(&mut self, read: &[u8]) {
        self.pumped.bytes += read.len() as u64;
        for part in read.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.pumped.lines += 1;
                self.pumped.lost += lost(&self.line);
                self.line.clear();
            }
        }
    }
}

/// "CPU:3 [LOST 17 EVENTS]"
fn lost(line: &[u8]) -> u64 {
    let count = || {
        let text = std::str::from_utf8(line.strip_prefix(b"CPU:")?).ok()?;
        let (_, after) = text.split_once(" [LOST ")?;
        after.split(' ').next()?.parse().ok()
    };
    count().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Gives a byte at a time, with holes, and keeps some until it is stopped.
    struct Dripping<'a> {
        text: &'a [u8],
        is_hole: bool,
    }

    impl Read for Dripping<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.is_hole = !self.is_hole && self.text.len() > 20;
            if self.is_hole {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let Some((first, rest)) = self.text.split_first() else {
                return Err(io::ErrorKind::WouldBlock.into());
            };
            buffer[0] = *first;
            self.text = rest;
            Ok(1)
        }
    }

    #[test]
    fn everything_is_copied_and_losses_are_counted() {
        let text = b"a: b\nCPU:1 [LOST 17 EVENTS]\nCPU:x\n\nCPU:0 [LOST 3 EVENTS]\nlast\n";
        let mut pipe = Dripping {
            text,
            is_hole: false,
        };
        let (mut output, looks, stops) = (Vec::new(), Cell::new(0), Cell::new(0));
        let is_over = || {
            looks.set(looks.get() + 1);
            looks.get() > 90
        };
        let stop = || {
            stops.set(stops.get() + 1);
            Ok(())
        };
        let pumped = pump(&mut pipe, &mut output, is_over, stop).unwrap();
        assert_eq!(output, text);
        assert_eq!(stops.get(), 1);
        let expected = Pumped {
            bytes: text.len() as u64,
            lines: 6,
            lost: 20,
        };
        assert_eq!(pumped, expected);
    }
}
