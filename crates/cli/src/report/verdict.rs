//! The sentence that says what happened, from the figures alone: it claims nothing that the rows do not show.

use super::{Facts, duration};
use crate::demo::mode::Mode;
use crate::demo::results::Row;

/// What happened, in a few sentences.
pub fn sentence(facts: &Facts, rows: &[Row]) -> String {
    let find = |mode| rows.iter().find(|row| row.mode == mode);
    let mut sentences = Vec::new();
    if let (Some(alone), Some(tokio)) = (find(Mode::Alone), find(Mode::Tokio)) {
        sentences.push(format!(
            "Beside {} hogs on one tokio runtime the victim's p99 went from {} to {}, with {:.0} of {:.0} req/s answered.",
            facts.hogs,
            duration(alone.p99_us),
            duration(tokio.p99_us),
            tokio.victim_rps,
            tokio.offered_rps
        ));
    }
    if let Some(split) = find(Mode::TwoRuntimes) {
        sentences.push(format!(
            "A second tokio runtime for the hogs, today's practice: {}.",
            duration(split.p99_us)
        ));
    }
    sentences.join(" ")
}
