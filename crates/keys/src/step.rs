//! What is asked of the engine, change by change, and what it answers.

use std::time::Duration;

use crate::counting::Holder;
use crate::key::Key;

/// One step of a [`transaction`].
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// As [`Key::inc`].
    Inc(&'static Key),
    /// As [`Key::dec`].
    Dec(&'static Key),
    /// As [`Key::enable`].
    Enable(&'static Key),
    /// As [`Key::disable`].
    Disable(&'static Key),
}

impl Change {
    /// The key that changes.
    pub const fn key(&self) -> &'static Key {
        match self {
            Self::Inc(key) | Self::Dec(key) | Self::Enable(key) | Self::Disable(key) => key,
        }
    }
}

/// What is to be done to a key's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Add(Holder),
    Remove(Holder),
    Enable,
    Disable,
}

/// A change as the engine sees it: of users' changes and of guards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) key: &'static Key,
    pub(crate) action: Action,
}

impl From<&Change> for Step {
    fn from(change: &Change) -> Self {
        let (key, action) = match *change {
            Change::Inc(key) => (key, Action::Add(Holder::Anonymous)),
            Change::Dec(key) => (key, Action::Remove(Holder::Anonymous)),
            Change::Enable(key) => (key, Action::Enable),
            Change::Disable(key) => (key, Action::Disable),
        };
        Self { key, action }
    }
}

/// What a flip cost. Calls from several threads that meet are made together: one of them is told what all of them cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// Keys that changed their value. 0: only counts changed, or nothing; or somebody else's change that was made together
    /// with this one took it back.
    pub flipped: usize,
    /// Sites rewritten, once for each change of form.
    pub sites: usize,
    /// Barriers (`membarrier` calls).
    pub barriers: u64,
    /// Calls of the code writer's system call, or stores if pages were made writable.
    pub writes: u64,
    /// Batches that were applied because the queue was full (mode `int3` only).
    pub overflow_flushes: u64,
    /// Sites patched singly because they could not be queued (mode `int3` only).
    pub single_steps: u64,
}

/// When step 3 happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settle {
    Now,
    After(Duration),
    /// As `Now`; and step 1 shows its work in time only.
    Relaxed,
}

/// When threads must have seen what step 1 wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Before step 2: that is the barrier.
    Now,
    /// When they next fetch the code anew, without a barrier. Invariant I does not hold until then, so a barrier is owed, which
    /// the next flip that needs one pays: a thread that still executes the cheap form decides the old value.
    InTime,
}

/// A change of value that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flip {
    pub(crate) key: &'static Key,
    pub(crate) target: bool,
    pub(crate) settle: Settle,
}
