//! What is missing from a trace, as far as it shows: a verdict on the rest is worth so much less.

use std::fmt;

use serde::Serialize;

/// What a reader knows to be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gaps {
    /// Events of which the recorder says that they were lost. Stays at the largest number when it would overflow.
    pub lost: u64,
    /// Lines that made no sense and were left out because the reader was told to.
    pub skipped: u64,
    /// What was wrong with the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_skipped: Option<String>,
    /// The last line has no end: the trace may have been cut off within a number.
    pub is_cut: bool,
}

impl Gaps {
    /// Whether anything is missing.
    pub fn is_any(&self) -> bool {
        self.lost > 0 || self.skipped > 0 || self.is_cut
    }
}

impl fmt::Display for Gaps {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.lost > 0 {
            parts.push(format!("{} events were lost while recording", self.lost));
        }
        if self.skipped > 0 {
            let first = self.first_skipped.as_deref().unwrap_or("");
            parts.push(format!(
                "{} bad lines were left out (the first: {first})",
                self.skipped
            ));
        }
        if self.is_cut {
            parts.push("the last line has no end".to_owned());
        }
        if parts.is_empty() {
            parts.push("nothing is missing".to_owned());
        }
        formatter.write_str(&parts.join(", "))
    }
}
