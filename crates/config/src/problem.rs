//! What is wrong with a text, and where.

use std::fmt;

/// How many problems of one text are kept; the rest is counted. Unit: problems. Default 100: more than anybody reads.
pub const PROBLEMS_MAX: usize = 100;

/// One thing that is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Field, value and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Everything that is wrong with a text, in its order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    pub(crate) list: Vec<Problem>,
    pub(crate) more: usize,
    pub(crate) is_syntax: bool,
}

impl Problems {
    /// The problems, at most [`PROBLEMS_MAX`].
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Problem> {
        self.list.iter()
    }

    /// Whether the text is no TOML at all, so that nothing is known of its settings.
    pub fn is_syntax(&self) -> bool {
        self.is_syntax
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.list.len().saturating_add(self.more)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{problem}")?;
        }
        if self.more > 0 {
            write!(formatter, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Collects problems of a text by byte offsets.
pub(crate) struct Collector<'text> {
    text: &'text str,
    found: Vec<(usize, String)>,
    more: usize,
}

impl<'text> Collector<'text> {
    pub(crate) fn new(text: &'text str) -> Self {
        Self {
            text,
            found: Vec::new(),
            more: 0,
        }
    }

    pub(crate) fn add(&mut self, offset: usize, message: impl Into<String>) {
        if self.found.len() < PROBLEMS_MAX {
            self.found.push((offset, message.into()));
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// `Ok` if there is none.
    pub(crate) fn finish(&mut self, is_syntax: bool) -> Result<(), Problems> {
        if self.found.is_empty() {
            return Ok(());
        }
        self.found.sort_by_key(|(offset, _)| *offset);
        let list = std::mem::take(&mut self.found)
            .into_iter()
            .map(|(offset, message)| {
                let (line, column) = place(self.text, offset);
                Problem {
                    line,
                    column,
                    message,
                }
            })
            .collect();
        Err(Problems {
            list,
            more: self.more,
            is_syntax,
        })
    }
}

/// Line and column of a byte. O(length of the text).
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n');
    let row = &before[start.map_or(0, |newline| newline + 1)..];
    // Bytes that continue a character are not counted.
    let column = row.iter().filter(|byte| **byte & 0xc0 != 0x80).count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_characters() {
        assert_eq!(place("é = 1\nü = 2", 0), (1, 1));
        assert_eq!(place("é = 1\nü = 2", 5), (1, 5));
        assert_eq!(place("é = 1\nü = 2", 12), (2, 5));
        assert_eq!(place("", 7), (1, 1));
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let mut collector = Collector::new("x");
        for _ in 0..PROBLEMS_MAX + 7 {
            collector.add(0, "bad");
        }
        let problems = collector.finish(false).expect_err("there are some");
        assert_eq!((problems.iter().len(), problems.count()), (100, 107));
        assert!(problems.to_string().ends_with("and 7 more"));
    }
}
