//! The ways to flip sites, who chose one of them, and how much is written at a time.

use core::fmt;

use quotient_key::Mode;

/// Whether sites go through breakpoints, and their threads through `SIGTRAP`.
#[cfg_attr(not(patching), allow(dead_code))]
pub(crate) const fn traps(mode: Mode) -> bool {
    matches!(mode, Mode::Strict | Mode::Int3 | Mode::OneByOne)
}

/// Who chose the mode in force, when it is not [`Mode::Soft`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ModeReason {
    /// The processor's vendor, or the practice on its processors, vouches for it; `docs/design/static-keys.md` has the argument.
    Processor,
    /// The environment variable `QUOTIENT_KEYS`.
    Environment,
    /// The program, by [`set_mode`](crate::set_mode).
    Program,
}

impl fmt::Display for ModeReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Processor => "fits the processor",
            Self::Environment => "the environment variable QUOTIENT_KEYS",
            Self::Program => "the program's choice",
        })
    }
}

/// How many bytes a write covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Writes {
    /// No byte that is not the engine's: each site is written by a call of its own, save that sites which touch each other
    /// share one. The default.
    #[default]
    Exact,
    /// Sites that lie close together are written in one call, with what lies between them: many times fewer system calls for
    /// a key with hundreds of sites. Somebody else who changes that code in the same microsecond (a debugger, a uprobe,
    /// another patcher) may find his change lost, or taken back.
    Coalesced,
}
