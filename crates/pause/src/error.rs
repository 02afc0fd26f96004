//! What can be refused, and why.

use std::fmt;

use crate::demote::NICE_LEVELS_MAX;

/// Why pausing cannot be set up in this process. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// Only Linux on x86-64 and aarch64 is supported.
    Unsupported,
    /// The signal cannot be used for this.
    SignalRefused {
        /// The number that was given.
        value: i32,
    },
    /// The program handles or ignores the signal itself.
    SignalTaken {
        /// The signal's number.
        signal: i32,
    },
    /// Another part of the process has set pausing up with another signal.
    OtherSignal {
        /// The signal that was asked for.
        wanted: i32,
        /// The signal in use.
        installed: i32,
    },
    /// The system refuses a call that is needed: a seccomp filter, most likely.
    Refused {
        /// Name of the system call.
        call: &'static str,
        /// `errno`.
        errno: i32,
    },
}

impl fmt::Display for InstallError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => {
                formatter.write_str("threads can be paused only on Linux, on x86-64 and aarch64")
            }
            Self::SignalRefused { value } => write!(
                formatter,
                "signal {value} cannot be used to pause threads: SIGURG, SIGUSR1, SIGUSR2, SIGIO, SIGWINCH and real-time signals can"
            ),
            Self::SignalTaken { signal } => write!(
                formatter,
                "signal {signal} is handled or ignored by the program; another one can be chosen"
            ),
            Self::OtherSignal { wanted, installed } => write!(
                formatter,
                "signal {wanted} was asked for, but this process already pauses threads with signal {installed}"
            ),
            Self::Refused { call, errno } => {
                write!(formatter, "the system refuses {call} (errno {errno})")
            }
        }
    }
}

impl std::error::Error for InstallError {}

/// Why a thread cannot enter. The closure was not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnterError {
    /// This thread is inside [`Pauser::enter`](crate::Pauser::enter) already.
    Nested,
    /// Too many threads are inside at once.
    TooManyThreads {
        /// How many fit for certain only if their ids spread well; see [`Pauser::enter`](crate::Pauser::enter).
        max: usize,
    },
    /// The thread-local storage of this thread is being destroyed.
    ThreadEnds,
    /// The system refuses a call that is needed.
    Refused {
        /// Name of the system call.
        call: &'static str,
        /// `errno`.
        errno: i32,
    },
}

impl fmt::Display for EnterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nested => formatter.write_str("this thread can be paused already"),
            Self::TooManyThreads { max } => write!(
                formatter,
                "too many threads that can be paused: there is room for {max}"
            ),
            Self::ThreadEnds => formatter.write_str("this thread is ending"),
            Self::Refused { call, errno } => {
                write!(formatter, "the system refuses {call} (errno {errno})")
            }
        }
    }
}

impl std::error::Error for EnterError {}

/// Why a region was not detached. It goes on as if nobody had asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DetachError {
    /// It has ended, or the thread has left.
    Ended,
    /// It was detached before.
    AlreadyDetached,
    /// Somebody else asks something of the same thread in this very moment, or the region is ending: look again.
    Busy,
    /// The thread belongs to the process that this one was forked from.
    OtherProcess,
}

impl fmt::Display for DetachError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ended => "the region has ended",
            Self::AlreadyDetached => "the region was detached before",
            Self::Busy => "the region is ending, or somebody else asks something of its thread",
            Self::OtherProcess => "the thread belongs to the parent process",
        })
    }
}

impl std::error::Error for DetachError {}

/// Why a region is not going to be paused. It goes on as if nobody had asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PauseError {
    /// It has ended, or the thread has left.
    Ended,
    /// It is paused, or about to be: pauses do not nest.
    AlreadyPaused,
    /// As [`DetachError::Busy`].
    Busy,
    /// As [`DetachError::OtherProcess`].
    OtherProcess,
    /// Somebody else handles the signal now.
    Displaced {
        /// The signal's number.
        signal: i32,
    },
    /// The signal could not be sent.
    Refused {
        /// `errno`.
        errno: i32,
    },
}

impl fmt::Display for PauseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => DetachError::Ended.fmt(formatter),
            Self::AlreadyPaused => formatter.write_str("the region is paused already"),
            Self::Busy => DetachError::Busy.fmt(formatter),
            Self::OtherProcess => DetachError::OtherProcess.fmt(formatter),
            Self::Displaced { signal } => write!(
                formatter,
                "the program has put another handler in place for signal {signal}"
            ),
            Self::Refused { errno } => {
                write!(formatter, "the signal could not be sent (errno {errno})")
            }
        }
    }
}

impl std::error::Error for PauseError {}

/// Why a thread's priority was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DemoteError {
    /// The thread has left.
    Ended,
    /// As [`DetachError::OtherProcess`].
    OtherProcess,
    /// Out of the range of nice values.
    Levels {
        /// What was given; 1 to 19 are possible.
        value: u8,
    },
    /// The thread has a real-time or deadline policy, which has no nice value.
    Policy {
        /// The kernel's number of the policy.
        policy: u32,
    },
    /// The system refuses it.
    Refused {
        /// `errno`; `EACCES` or `EPERM` when raising without privileges.
        errno: i32,
    },
}

impl fmt::Display for DemoteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => formatter.write_str("the thread has left"),
            Self::OtherProcess => DetachError::OtherProcess.fmt(formatter),
            Self::Levels { value } => write!(
                formatter,
                "nice {value}: a thread can be lowered by 1 to {NICE_LEVELS_MAX} levels"
            ),
            Self::Policy { policy } => write!(
                formatter,
                "the thread's scheduling policy {policy} has no nice value"
            ),
            Self::Refused { errno } => write!(
                formatter,
                "the system refuses the change of priority (errno {errno})"
            ),
        }
    }
}

impl std::error::Error for DemoteError {}
