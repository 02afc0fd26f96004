//! What the engine can tell about itself.

use quotient_key::{Mode, SoftReason, Writer};

use crate::mode::{ModeReason, Writes};

/// The figures of the whole engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStatus {
    /// The mode in force.
    pub mode: Mode,
    /// The mode that this process and processor get without [`set_mode`](crate::set_mode); soft until the application has
    /// asked for patching, since it takes a try to know.
    pub default_mode: Mode,
    /// Who chose the mode, if it is not [`Mode::Soft`].
    pub mode_reason: Option<ModeReason>,
    /// Why the mode is [`Mode::Soft`], if it is.
    pub soft_reason: Option<SoftReason>,
    /// The writer that worked last.
    pub writer: Option<Writer>,
    /// Registered keys.
    pub keys: usize,
    /// Sites of all keys.
    pub sites: usize,
    /// Sites in their cheap form.
    pub patched: usize,
    /// Sites that hold an instruction that is not ours.
    pub foreign: usize,
    /// Barriers since the start.
    pub barriers: u64,
    /// Traps since the start, those of sites only.
    pub traps: u64,
    /// Transactions that were refused because the `SIGTRAP` handler was replaced.
    pub displaced: u64,
    /// How many bytes a write covers.
    pub writes: Writes,
    /// `errno` of the kernel's refusal to take the write permission from code pages again, if it refused the last time; see
    /// [`allow_writable_code`](crate::allow_writable_code).
    pub left_writable: Option<i32>,
}
