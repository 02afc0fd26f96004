//! Lines of a trace, one at a time and of bounded length.

use std::borrow::Cow;
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
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Lines<R> {
        Lines {
            input,
            buffer: Vec::new(),
            line: 0,
            bytes: 0,
            is_cut: false,
        }
    }

    /// Reads on to the next line; `false` at the end.
    ///
    /// # Errors
    /// `Io` and `LineTooLong`.
    pub(crate) fn advance(&mut self) -> Result<bool, ReadError> {
        self.buffer.clear();
        self.line += 1;
        let limit = LINE_BYTES_MAX as u64 + 1;
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
    fn an_endless_line_is_refused_without_being_kept() {
        let mut lines = Lines::new(std::io::BufReader::new(std::io::repeat(b'x')));
        assert!(matches!(
            lines.advance(),
            Err(ReadError::LineTooLong { line: 1, .. })
        ));
        assert!(lines.buffer.len() <= LINE_BYTES_MAX + 1);
    }
}
