//! What can go wrong when a key is flipped or the engine's mode is changed. Whatever error is returned, the key's
//! value, its count and every one of its sites still agree with each other: a failed flip is a flip that did not happen.

#[cfg(feature = "alloc")]
use alloc::string::String;
use core::fmt;

/// Why a key was not flipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlipError {
    /// `dec` of a key whose count is already 0.
    Underflow {
        /// Name of the key.
        key: &'static str,
    },
    /// `inc` of a key whose count is `i32::MAX`.
    Overflow {
        /// Name of the key.
        key: &'static str,
    },
    /// `dec` while the very first `inc` has not returned yet: somebody decrements what he did not increment.
    EnableInProgress {
        /// Name of the key.
        key: &'static str,
    },
    /// `disable` of a key that more than one holder has incremented.
    StillCounted {
        /// Name of the key.
        key: &'static str,
        /// Its count, at least 2.
        count: i32,
    },
    /// `disable` of a key that guards hold, or a `dec` when nobody but guards does: their counts are theirs.
    StillHeld {
        /// Name of the key.
        key: &'static str,
        /// Number of guards.
        guards: u64,
    },
    /// The same key twice in one transaction.
    DuplicateKey {
        /// Name of the key.
        key: &'static str,
    },
    /// No key of that name is registered in this program or library.
    #[cfg(feature = "alloc")]
    UnknownKey {
        /// The name that was asked for.
        name: String,
    },
    /// A directive that is not `pattern`, `pattern=on` or `pattern=off`.
    #[cfg(feature = "alloc")]
    Directive {
        /// As it was written.
        word: String,
    },
    /// A site that must change holds an instruction that is not ours: a debugger's breakpoint, a uprobe. It is left as
    /// it is, so the key must keep its value.
    UnexpectedOpcode {
        /// Name of the key.
        key: &'static str,
        /// Address of the site.
        address: usize,
        /// The first byte found there.
        found: u8,
    },
    /// A site that was patched earlier cannot be written any more: the program sandboxed itself without
    /// the engine's `soften_all`.
    Unpatchable {
        /// `errno` of the last writer that was tried.
        errno: i32,
    },
    /// The barrier that makes every thread see new code failed, for the same reasons.
    BarrierFailed {
        /// `errno` of `membarrier`.
        errno: i32,
    },
    /// A mode that works through breakpoints found a `SIGTRAP` handler in place of ours that does not lead to it.
    HandlerDisplaced,
    /// A mode that works through breakpoints found a thread that blocks `SIGTRAP`: a breakpoint would kill the process.
    TrapBlocked {
        /// The kernel's id of the thread.
        thread: i32,
    },
}

impl fmt::Display for FlipError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Underflow { key } => write!(formatter, "static key `{key}`: decremented below 0"),
            Self::Overflow { key } => {
                write!(
                    formatter,
                    "static key `{key}`: incremented above {}",
                    i32::MAX
                )
            }
            Self::EnableInProgress { key } => {
                write!(
                    formatter,
                    "static key `{key}`: decremented while its first increment was in progress"
                )
            }
            Self::StillCounted { key, count } => {
                write!(
                    formatter,
                    "static key `{key}`: cannot be disabled, {count} holders have incremented it"
                )
            }
            Self::StillHeld { key, guards } => {
                write!(
                    formatter,
                    "static key `{key}`: {guards} guards hold it, and only they can give it back"
                )
            }
            Self::DuplicateKey { key } => {
                write!(
                    formatter,
                    "static key `{key}`: named twice in one transaction"
                )
            }
            #[cfg(feature = "alloc")]
            Self::UnknownKey { name } => write!(formatter, "no static key is named `{name}`"),
            #[cfg(feature = "alloc")]
            Self::Directive { word } => write!(
                formatter,
                "`{word}` is not `pattern`, `pattern=on` or `pattern=off`"
            ),
            Self::UnexpectedOpcode {
                key,
                address,
                found,
            } => write!(
                formatter,
                "static key `{key}`: the site at {address:#x} holds byte {found:#04x}, which is not ours (a debugger?)"
            ),
            Self::Unpatchable { errno } => {
                write!(formatter, "code cannot be written any more (errno {errno})")
            }
            Self::BarrierFailed { errno } => write!(formatter, "membarrier failed (errno {errno})"),
            Self::HandlerDisplaced => write!(
                formatter,
                "another SIGTRAP handler replaced the one of the static keys"
            ),
            Self::TrapBlocked { thread } => write!(
                formatter,
                "thread {thread} blocks SIGTRAP: a breakpoint would kill the process"
            ),
        }
    }
}

impl core::error::Error for FlipError {}
