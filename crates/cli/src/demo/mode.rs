//! The set-ups that the demo compares.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One set-up: who shares the process with the victim, and who decides which of them runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The victim alone on tokio: what it could have.
    Alone,
    /// The victim alone on Quotient: what Quotient costs.
    QuotientAlone,
    /// Victim and hogs on one tokio runtime.
    Tokio,
    /// Today's practice: the hogs on a second tokio runtime, so that the operating system schedules.
    TwoRuntimes,
    /// Victim and hogs in two Quotient groups of equal weight on one tokio runtime.
    Quotient,
    /// The same, and the hogs' group may use only what the victim can do without.
    QuotientCapped,
}

impl Mode {
    /// Every mode, in the order of one round. The first one is the yardstick of the others.
    pub const ALL: [Self; 6] = [
        Self::Alone,
        Self::QuotientAlone,
        Self::Tokio,
        Self::TwoRuntimes,
        Self::Quotient,
        Self::QuotientCapped,
    ];

    /// The name in tables, in `--json` and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::QuotientAlone => "quotient-alone",
            Self::Tokio => "tokio",
            Self::TwoRuntimes => "two-runtimes",
            Self::Quotient => "quotient",
            Self::QuotientCapped => "quotient-capped",
        }
    }

    /// One line that says what runs where, for the picture.
    pub fn description(self) -> &'static str {
        match self {
            Self::Alone => "the victim alone on tokio",
            Self::QuotientAlone => "the victim alone, in a Quotient group",
            Self::Tokio => "victim and hogs on one tokio runtime",
            Self::TwoRuntimes => "hogs on a second tokio runtime (today's practice)",
            Self::Quotient => {
                "one tokio runtime, two Quotient groups of equal weight, polls are interrupted"
            }
            Self::QuotientCapped => "the same, the hogs' group limited to 5 % of the CPUs",
        }
    }

    /// Whether the noisy neighbour runs.
    pub fn has_hogs(self) -> bool {
        match self {
            Self::Alone | Self::QuotientAlone => false,
            Self::Tokio | Self::TwoRuntimes | Self::Quotient | Self::QuotientCapped => true,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
