//! What is asked of whoever flips a key, and what it answers.

use core::time::Duration;

/// What is to be done to a key's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// One holder more.
    Add(Holder),
    /// One holder less.
    Remove(Holder),
    /// A holder, unless there is one.
    Enable,
    /// None, if there is one at most.
    Disable,
}

/// Who holds a key on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Whoever called `inc` or `enable`.
    Anonymous,
    /// A value that gives back what it took.
    Guard,
}

/// When the sites take their cheap form, if somebody patches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Before the call returns.
    Now,
    /// Some time later.
    After(Duration),
    /// As `Now`; and what must be written before the flip is shown to other threads in time only.
    Relaxed,
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
