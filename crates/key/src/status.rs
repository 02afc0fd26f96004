//! What can be told of one key.

use core::sync::atomic::Ordering;

use crate::key::Key;
use crate::mode::{Mode, SoftReason, Writer};

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
    /// Branch sites in this program or library, after inlining and merging by the compiler. Those that an engine found: 0
    /// without one.
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

impl KeyStatus {
    pub(crate) fn without_engine(key: &'static Key) -> Self {
        let counts = key.counts();
        Self {
            name: key.name(),
            enabled: key.state(),
            count: key.count(),
            sites: 0,
            patched: 0,
            foreign: 0,
            mode: Mode::Soft,
            soft_reason: Some(SoftReason::NoEngine),
            writer: None,
            flips: counts.flips.load(Ordering::Relaxed),
            barriers: counts.barriers.load(Ordering::Relaxed),
            traps: 0,
            settling_later: false,
        }
    }
}
