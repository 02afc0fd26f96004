//! Which mode a process gets when it asks to be patched: what its operator says, otherwise what fits the processor.

use quotient_key::{Mode, SoftReason};

use super::arch::processor;
use crate::mode::ModeReason;

/// The operator's word: `soft` (no code is written, whatever the program asks for) or the name of another mode.
const VARIABLE: &str = "QUOTIENT_KEYS";

/// The mode and who chose it; or why there is none but soft. A word that is no mode counts as `soft`: somebody wanted
/// something else than the default, and soft is always right.
pub(super) fn mode() -> Result<(Mode, ModeReason), SoftReason> {
    match std::env::var_os(VARIABLE) {
        Some(word) => {
            let mode = word.to_str().and_then(mode_of);
            let mode = mode.ok_or(SoftReason::Environment)?;
            Ok((mode, ModeReason::Environment))
        }
        None => match processor::default_mode() {
            Mode::Soft => Err(SoftReason::Processor),
            mode => Ok((mode, ModeReason::Processor)),
        },
    }
}

fn mode_of(word: &str) -> Option<Mode> {
    let word = word.trim();
    let mut modes = Mode::ALL.into_iter();
    modes.find(|mode| mode.name() == word && *mode != Mode::Soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_mode_is_soft() {
        assert_eq!(mode_of("strict"), Some(Mode::Strict));
        assert_eq!(mode_of(" biased "), Some(Mode::Biased));
        assert_eq!(mode_of("soft"), None);
        assert_eq!(mode_of("of course"), None);
        assert_eq!(mode_of(""), None);
    }
}
