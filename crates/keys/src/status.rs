//! What the engine can tell about itself and about one key.

use crate::mode::{Mode, ModeReason, SoftReason, Writer, Writes};

/// The figures of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyStatus {
    /// The key's name.
    pub name: &'static str,
    /// Whether branches take the key as on.
    pub enabled: bool,
    /// Number of holders.
    pub count: i32,
    /// Branch sites in this program or library, after inlining and merging by the compiler.
    pub sites: usize,
    /// Sites that are in their cheap form, one instruction and no load.
    pub patched: usize,
    /// Sites that hold an instruction that is not ours, and are left alone.
    pub foreign: usize,
    /// The mode in force.
    pub mode: Mode,
    /// Why the mode is [`Mode::Soft`], if it is.
    pub soft_reason: Option<SoftReason>,
    /// The writer that worked last; `None` before the first patch and in soft mode.
    pub writer: Option<Writer>,
    /// Completed changes of value.
    pub flips: u64,
    /// Barriers of all transactions that this key took part in.
    pub barriers: u64,
    /// Traps taken at this key's sites.
    pub traps: u64,
    /// Whether bringing the sites to their cheap form is put off (deferred or rate-limited disable).
    pub settling_later: bool,
}

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
