//! Lines of a trace, one at a time and of bounded length.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{BufRead, Read};

use super::error::ReadError;

/// Longest line. Unit: bytes. Default 64 KiB: the kernel's longest is a page, ours are far shorter.
const LINE_BYTES_MAX: usize = 65_536;

/// Hands out lines without their ends.
pub(crate) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    line: u64,
    bytes: u64,
    is_cut: bool,
    /// Lines that were read ahead and given back, with whether they have no end.
    ahead: VecDeque<(Vec<u8>, bool)>,
    /// Where the line ended before others were joined to it, and whether it had an end.
    joints: Vec<(usize, bool)>,
}

/// Stands for the end of a line where two were joined.
pub(crate) const JOINT: char = '\u{fffd}';

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Lines<R> {
        Lines {
            input,
            buffer: Vec::new(),
            line: 0,
            bytes: 0,
            is_cut: false,
            ahead: VecDeque::new(),
            joints: Vec::new(),
        }
    }

    /// Reads on to the next line; `false` at the end.
    ///
    /// # Errors
    /// `Io` and `LineTooLong`.
    pub(crate) fn advance(&mut self) -> Result<bool, ReadError> {
        self.buffer.clear();
        self.joints.clear();
        self.append()
    }

    /// Joins the next line to this one; `false` at the end, where nothing changes.
    ///
    /// # Errors
    /// `Io` and `LineTooLong`.
    pub(crate) fn join(&mut self) -> Result<bool, ReadError> {
        let (length, was_cut) = (self.buffer.len(), self.is_cut);
        self.buffer
            .extend_from_slice(JOINT.encode_utf8(&mut [0; 4]).as_bytes());
        let joined = self.append()?;
        if joined {
            self.joints.push((length, was_cut));
        } else {
            self.buffer.truncate(length);
            self.is_cut = was_cut;
        }
        Ok(joined)
    }

    /// What was joined last.
    pub(crate) fn joined(&self) -> Cow<'_, str> {
        let begin = self
            .joints
            .last()
            .map_or(0, |(length, _)| length + JOINT.len_utf8());
        String::from_utf8_lossy(&self.buffer[begin..])
    }

    /// Gives all that was joined back: each is a line again.
    pub(crate) fn part(&mut self) {
        while let Some((length, was_cut)) = self.joints.pop() {
            let line = self.buffer.split_off(length + JOINT.len_utf8());
            self.buffer.truncate(length);
            self.ahead.push_front((line, self.is_cut));
            self.is_cut = was_cut;
            self.line -= 1;
        }
    }

    /// Reads on to the end of the next line, after what is there.
    fn append(&mut self) -> Result<bool, ReadError> {
        self.line += 1;
        if let Some((line, is_cut)) = self.ahead.pop_front() {
            self.buffer.extend_from_slice(&line);
            self.is_cut = is_cut;
            return Ok(true);
        }
        let limit = (LINE_BYTES_MAX + 1).saturating_sub(self.buffer.len()) as u64;
        let read = self
            .input
            .by_ref()
            .take(limit)
            .read_until(b'\n', &mut self.buffer)
            .map_err(|error| ReadError::Io {
                line: self.line,
                error,
            })?;
        if read == 0 {
            self.line -= 1;
            return Ok(false);
        }
        self.bytes += read as u64;
        self.is_cut = self.buffer.last() != Some(&b'\n');
        if self.is_cut && self.buffer.len() > LINE_BYTES_MAX {
            return Err(ReadError::LineTooLong {
                line: self.line,
                limit: LINE_BYTES_MAX,
            });
        }
        while matches!(self.buffer.last(), Some(b'\n' | b'\r')) {
            self.buffer.pop();
        }
        Ok(true)
    }

    /// The line. Bytes that are no UTF-8 (a task may call itself anything) are replaced.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.buffer)
    }

    /// Its number, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Bytes read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the line has no end: the last of a trace that was cut, or simply its last.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_their_ends_and_keep_their_numbers() {
        let mut lines = Lines::new(&b"one\r\n\n\xfftwo"[..]);
        let mut seen = Vec::new();
        while lines.advance().expect("a slice can be read") {
            seen.push((lines.line(), lines.text().into_owned(), lines.is_cut()));
        }
        let expected = [(1, "one", false), (2, "", false), (3, "\u{fffd}two", true)];
        assert_eq!(
            seen,
            expected.map(|(line, text, is_cut)| (line, text.to_owned(), is_cut))
        );
    }

    #[test]
    fn lines_are_joined_and_parted_again() {
        let mut lines = Lines::new(&b"one\n\ntwo\nthree"[..]);
        assert!(lines.advance().expect("a slice can be read"));
        assert!(lines.join().expect("a slice can be read"));
        assert!(lines.join().expect("a slice can be read"));
        assert_eq!(
            (lines.text().as_ref(), lines.line()),
            ("one\u{fffd}\u{fffd}two", 3)
        );
        assert_eq!(lines.joined(), "two");
        lines.part();
        let mut seen = vec![(lines.line(), lines.text().into_owned())];
        while lines.advance().expect("a slice can be read") {
            seen.push((lines.line(), lines.text().into_owned()));
        }
        let expected = [(1, "one"), (2, ""), (3, "two"), (4, "three")];
        assert_eq!(seen, expected.map(|(line, text)| (line, text.to_owned())));
        assert!(lines.is_cut());
        let mut last = Lines::new(&b"three"[..]);
        assert!(last.advance().expect("a slice can be read"));
        assert!(
            !last.join().expect("a slice can be read"),
            "nothing is left"
        );
        assert_eq!((last.text().as_ref(), last.is_cut()), ("three", true));
        let mut endless = Lines::new(std::io::BufReader::new(std::io::repeat(b'\n')));
        assert!(endless.advance().expect("read"));
        let joined = (0..LINE_BYTES_MAX).take_while(|_| endless.join().is_ok_and(|more| more));
        assert!(
            joined.count() < LINE_BYTES_MAX,
            "a joined line is bounded, too"
        );
    }

    #[test]
    fn an_endless_line_is_refused_without_being_kept() {
        let mut lines = Lines::new(std::io::BufReader::new(std::io::repeat(b'x')));
        assert!(matches!(
            lines.advance(),
            Err(ReadError::LineTooLong { line: 1, .. })
        ));
        assert!(lines.buffer.len() <= LINE_BYTES_MAX + 1);
    }
}
