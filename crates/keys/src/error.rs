//! What can go wrong when the engine's mode is changed. What can go wrong when a key is flipped is [`FlipError`].

use core::fmt;

use quotient_key::{FlipError, Mode, SoftReason};

/// Why the engine's mode was not changed. The old mode stays in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModeError {
    /// This process can only run keys in [`Mode::Soft`].
    Unavailable {
        /// The mode that was asked for.
        mode: Mode,
        /// What is missing.
        reason: SoftReason,
    },
    /// The sites could not be taken back to their neutral form.
    Flip(FlipError),
}

impl fmt::Display for ModeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { mode, reason } => {
                write!(formatter, "mode {mode} is not available: {reason}")
            }
            Self::Flip(error) => write!(formatter, "the sites could not be made neutral: {error}"),
        }
    }
}

impl std::error::Error for ModeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Flip(error) => Some(error),
            Self::Unavailable { .. } => None,
        }
    }
}
