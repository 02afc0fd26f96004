//! The ways in which an engine flips sites, and the reasons for not patching at all.

use core::fmt;

/// How the sites of a key are rewritten. One mode is in force for the whole engine; the engine's `set_mode`
/// changes it while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One opcode byte a site, written directly; one barrier when a site leaves its cheap form, none when it enters it.
    /// No traps.
    Biased,
    /// The same byte, but through a breakpoint: two barriers a transaction, and a thread that runs into the site
    /// meanwhile takes a trap (about 2 µs). For processors whose vendor does not promise that a single changed byte is
    /// seen either old or new.
    ///
    /// A thread that blocks `SIGTRAP` and runs into such a breakpoint is killed by the kernel.
    Strict,
    /// The Linux kernel's batch (2019): breakpoints everywhere, all tails, all first bytes, with a barrier after each
    /// step: three for up to 256 sites. Kept to reproduce its figures; the caution of [`Mode::Strict`] holds.
    Int3,
    /// The Linux kernel before that batch: the three steps for one site after the other, three barriers a site. Kept
    /// for the comparison; the caution of [`Mode::Strict`] holds.
    OneByOne,
    /// No patching: each site is a jump to a load of the key. Works everywhere.
    Soft,
}

impl Mode {
    /// Every mode, in the order of the documentation.
    pub const ALL: [Self; 5] = [
        Self::Biased,
        Self::Strict,
        Self::Int3,
        Self::OneByOne,
        Self::Soft,
    ];

    /// The mode's name in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Biased => "biased",
            Self::Strict => "strict",
            Self::Int3 => "int3",
            Self::OneByOne => "one-by-one",
            Self::Soft => "soft",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Why the engine is in [`Mode::Soft`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SoftReason {
    /// The program has no engine for these keys.
    NoEngine,
    /// The application has not asked for patching: see `quotient_keys::patch`.
    NotAsked,
    /// The environment variable `QUOTIENT_KEYS` says so, or says something that is no mode.
    Environment,
    /// Nobody vouches for this processor; the program may still choose a mode by `set_mode`.
    Processor,
    /// No patching has been written for this processor or operating system.
    Platform,
    /// The kernel refuses `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`: too old, or a sandbox.
    NoBarrier,
    /// Neither writer may change code: a sandbox.
    Unpatchable,
    /// Code was written but the old code kept running: an emulator or a binary translator.
    StaleCode,
    /// `soften_all` or `set_mode(Mode::Soft)` asked for it.
    Requested,
}

impl fmt::Display for SoftReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NoEngine => "the program has no engine",
            Self::NotAsked => "the application has not asked",
            Self::Environment => "the environment variable QUOTIENT_KEYS",
            Self::Processor => "nobody vouches for this processor",
            Self::Platform => "no patching on this platform",
            Self::NoBarrier => "no membarrier",
            Self::Unpatchable => "code cannot be written",
            Self::StaleCode => "written code is not executed (emulator?)",
            Self::Requested => "asked for",
        })
    }
}

/// How the engine writes code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// `pwrite` to the process's own memory file: no change of any mapping, works when pages may not become writable.
    ProcMem,
    /// Pages made writable for the length of the transaction; only if `allow_writable_code` was
    /// called.
    Mprotect,
}

impl fmt::Display for Writer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::ProcMem => "proc-mem",
            Self::Mprotect => "mprotect",
        })
    }
}
