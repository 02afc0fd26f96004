//! What is asked of the engine, change by change.

use quotient_key::Key;
use quotient_key::engine::{Action, Holder, Settle};

/// One step of a [`transaction`](crate::transaction).
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

/// A change as the engine sees it: of users' changes and of guards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<K = &'static Key> {
    pub(crate) key: K,
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
pub(crate) struct Flip<K = &'static Key> {
    pub(crate) key: K,
    pub(crate) target: bool,
    pub(crate) settle: Settle,
}
