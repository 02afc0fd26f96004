//! Which groups a CPU has to unthrottle: filled by anybody, emptied by the CPU under its run queue's lock.

use super::sync::{Acquire, AtomicBool, Mutex, Release, lock};
use std::collections::VecDeque;

/// The groups (id and generation) that got budget, oldest first. Each is in it at most once ([`super::local::Local`]
/// knows), so it is never longer than the number of groups that the CPU has met.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    filled: AtomicBool,
    groups: Mutex<VecDeque<(u32, u32)>>,
}

impl Mailbox {
    pub(super) fn push(&self, group: (u32, u32)) {
        let mut groups = lock(&self.groups);
        groups.push_back(group);
        // Under the lock, so that the flag always matches the list.
        self.filled.store(true, Release);
    }

    /// Takes the oldest entry.
    pub(crate) fn pop(&self) -> Option<(u32, u32)> {
        if !self.is_filled() {
            return None;
        }
        let mut groups = lock(&self.groups);
        let group = groups.pop_front();
        self.filled.store(!groups.is_empty(), Release);
        group
    }

    /// Whether there is anything to do. One load.
    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Acquire)
    }
}
