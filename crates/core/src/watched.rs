//! What a task beside child groups might be owed at most, having no more than one CPU ([`crate::group_time`], *Tasks beside groups*).

use crate::node::{NONE, Node};
use crate::units::{Nanos, to_virtual};

/// An own task beside child groups, and what it was owed by their clock when that was told last.
///
/// What it comes to be owed beyond the time for which it waited since is what it could not use, having no more than one CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// Its node, or `NONE`.
    pub(crate) index: u32,
    /// What it had got by then, ns.
    pub(crate) sum_exec: u64,
    /// What it might be owed, in virtual time.
    pub(crate) most: i64,
    pub(crate) at: Nanos,
}

impl Default for Watched {
    fn default() -> Watched {
        Watched {
            index: NONE,
            sum_exec: 0,
            most: 0,
            at: Nanos::ZERO,
        }
    }
}

impl Watched {
    /// What it may be owed `now`, in virtual time: by so much more as it has waited.
    pub(crate) fn may_be_owed<T>(&self, index: u32, node: &Node<T>, now: Nanos) -> i64 {
        if self.index != index {
            return i64::MAX;
        }
        let had = node.sum_exec.wrapping_sub(self.sum_exec);
        let waited = (now - self.at).0.saturating_sub(had);
        self.most
            .saturating_add_unsigned(to_virtual(waited, node.shares))
    }

    /// The node leaves.
    #[inline]
    pub(crate) fn forget(&mut self, index: u32) {
        if self.index == index {
            self.index = NONE;
        }
    }
}
