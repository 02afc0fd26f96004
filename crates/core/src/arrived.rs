//! Who was moved to where it waits alone, and what it was owed as it came.

use crate::node::{NONE, Node};

/// A task that came from another CPU to where it is alone, and what it was owed among those that it left.
///
/// Who is alone is level with itself. If it waits there without a turn and is taken away again, it takes along what it came with: else one that is
/// handed from CPU to CPU for its group's sake, which each time has its turn elsewhere, is owed nothing for all its waiting. (Of two spinners
/// of a light group beside heavier ones one had all that the group got.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// Its node, or `NONE`.
    index: u32,
    /// In virtual time; nothing of who owes.
    lag: i64,
    /// What it had got by then, ns, without what 32 bits do not hold: it is only asked whether that is more by now.
    sum_exec: u32,
}

impl Default for Arrived {
    fn default() -> Arrived {
        Arrived {
            index: NONE,
            lag: 0,
            sum_exec: 0,
        }
    }
}

impl Arrived {
    pub(crate) fn at<T>(index: u32, node: &Node<T>, lag: i64) -> Arrived {
        Arrived {
            index,
            lag: lag.max(0),
            sum_exec: node.sum_exec as u32,
        }
    }

    /// What a task that leaves while it is alone takes along.
    #[inline]
    pub(crate) fn kept<T>(&self, index: u32, node: &Node<T>) -> i64 {
        if self.index == index && self.sum_exec == node.sum_exec as u32 {
            self.lag
        } else {
            0
        }
    }

    /// The node leaves.
    #[inline]
    pub(crate) fn forget(&mut self, index: u32) {
        if self.index == index {
            self.index = NONE;
        }
    }
}
