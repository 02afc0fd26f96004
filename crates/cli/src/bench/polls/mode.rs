//! Where victim and hogs run, and what the hogs are.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

/// Where victim and hogs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The victim without hogs, at the end of each round.
    #[value(skip)]
    Alone,
    /// All on one tokio runtime
    Tokio,
    /// The hogs on a second tokio runtime: today's practice
    TwoRuntimes,
    /// The same, that runtime's threads at nice 10
    TwoRuntimesNice,
    /// The same, that runtime's threads in a group of the kernel's with a tenth of the weight (Linux, root)
    TwoRuntimesCgroup,
    /// Two groups of equal weight
    Quotient,
    /// The same with preemption
    QuotientPreempt,
    /// The hogs' group limited to 10 ms in 100
    QuotientCapped,
    /// The same with preemption
    QuotientPreemptCapped,
}

impl Mode {
    /// All that are compared with each other, in the order of a round.
    pub const ALL: [Self; 8] = [
        Self::Tokio,
        Self::TwoRuntimes,
        Self::TwoRuntimesNice,
        Self::TwoRuntimesCgroup,
        Self::Quotient,
        Self::QuotientPreempt,
        Self::QuotientCapped,
        Self::QuotientPreemptCapped,
    ];

    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Tokio => "tokio",
            Self::TwoRuntimes => "two-runtimes",
            Self::TwoRuntimesNice => "two-runtimes-nice",
            Self::TwoRuntimesCgroup => "two-runtimes-cgroup",
            Self::Quotient => "quotient",
            Self::QuotientPreempt => "quotient-preempt",
            Self::QuotientCapped => "quotient-capped",
            Self::QuotientPreemptCapped => "quotient-preempt-capped",
        }
    }

    /// Whether there is a scheduler.
    pub fn has_groups(self) -> bool {
        matches!(
            self,
            Self::Quotient
                | Self::QuotientPreempt
                | Self::QuotientCapped
                | Self::QuotientPreemptCapped
        )
    }

    /// Whether polls are interrupted.
    pub fn preempts(self) -> bool {
        matches!(self, Self::QuotientPreempt | Self::QuotientPreemptCapped)
    }

    /// Whether the hogs have a limit.
    pub fn is_capped(self) -> bool {
        matches!(self, Self::QuotientCapped | Self::QuotientPreemptCapped)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// What the hogs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Tasks, whose single polls take that long
    Tasks,
    /// Closures of `spawn_blocking`, one after the other
    Blocking,
    /// Jobs of a rayon pool with as many threads as workers, in `ThreadMeter::run` where there are groups
    Rayon,
}

impl Kind {
    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tasks => "tasks",
            Self::Blocking => "blocking",
            Self::Rayon => "rayon",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
