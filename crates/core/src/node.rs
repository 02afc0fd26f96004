//! The entities of one CPU: tasks and the local halves of groups, in one slab of cache-line-sized nodes.

use crate::moved::Moved;
use crate::units::VirtualTime;

/// "No such index": nodes and timelines are named by 32-bit indices.
pub(crate) const NONE: u32 = u32::MAX;

/// Where a node is. Debug builds and the checker compare it with where the node is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// In the slab's free list.
    Free,
    /// A group with nothing runnable here.
    Off,
    /// Chosen by its timeline.
    Current,
    /// In one of the queues of its timeline; see `key_queue`.
    ReadyRing,
    ReadyHeap,
    LaterRing,
    LaterHeap,
}

impl Place {
    #[inline]
    pub(crate) fn is_queued(self) -> bool {
        !matches!(self, Place::Free | Place::Off | Place::Current)
    }
}

/// A schedulable entity: a task, or a group as seen by one CPU.
pub(crate) struct Node<T> {
    pub(crate) v: VirtualTime,
    pub(crate) deadline: VirtualTime,
    /// CPU time of the task (unused for groups, whose clock is in their cell), ns.
    pub(crate) sum_exec: u64,
    /// The host's task, while it is queued; a running task is with the host.
    pub(crate) handle: Option<T>,
    /// Request length, ns.
    pub(crate) slice: u32,
    pub(crate) shares: u32,
    /// Neighbours in a ring list; in a heap, `prev` is the position.
    pub(crate) next: u32,
    pub(crate) prev: u32,
    /// The timeline that it competes in.
    pub(crate) timeline: u32,
    /// The timeline that it stands for, if it is a group.
    pub(crate) owned: u32,
    pub(crate) moved: Moved,
    pub(crate) place: Place,
    pub(crate) traits: Traits,
    /// What it missed since its last turn, as far as looks have seen; see [`crate::run_queue::floor`].
    pub(crate) passed_over: u16,
}

/// What else there is to know of an entity, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traits(u8);

impl Traits {
    /// Anything else preempts it.
    pub(crate) const IDLE: Traits = Traits(1);
    /// A task with a slice of its own.
    pub(crate) const CUSTOM_SLICE: Traits = Traits(2);
    /// A task during which its groups should not be throttled.
    pub(crate) const DEFERRING: Traits = Traits(4);

    #[inline]
    pub(crate) fn has(self, other: Traits) -> bool {
        self.0 & other.0 != 0
    }

    /// Those of `self` and, if `on`, the other too.
    #[inline]
    pub(crate) fn with(self, other: Traits, on: bool) -> Traits {
        Traits(self.0 & !other.0 | if on { other.0 } else { 0 })
    }
}

impl<T> Node<T> {
    #[inline]
    pub(crate) fn is_task(&self) -> bool {
        self.owned == NONE
    }
}

/// Room for so many entries is kept after a spike. Unit: entries; 1024 nodes are 64 KiB.
pub(crate) const KEPT: usize = 1024;

/// Cuts off what is free at the end of a table, as far as there are more than [`KEPT`], and gives its memory back. O(1) amortized: each
/// entry that goes was added once.
pub(crate) fn cut_off<T>(table: &mut Vec<T>, is_free: impl Fn(&T) -> bool) {
    while table.len() > KEPT && table.last().is_some_and(&is_free) {
        table.pop();
    }
    give_back(table);
}

/// Gives a table's memory back once three quarters of it are unused.
pub(crate) fn give_back<T>(table: &mut Vec<T>) {
    let kept = table.len().max(KEPT);
    if table.capacity() > 4 * kept {
        table.shrink_to(2 * kept);
    }
}

/// Nodes by index. The free ones at the end go, so that a spike's memory comes back once what it left there has gone; those in
/// between are used again.
pub(crate) struct Slab<T> {
    pub(crate) nodes: Vec<Node<T>>,
    /// Indices that were freed, the last first: each free node's, and those of nodes that were cut off since, or are used again. It is
    /// emptied before the slab grows, so it never has more than the most nodes there were.
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab {
            nodes: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Stores a node and returns its index. O(1) amortized.
    ///
    /// # Panics
    /// At 2^32 - 1 nodes, which is 256 GiB of them.
    #[inline]
    pub(crate) fn insert(&mut self, node: Node<T>) -> u32 {
        while let Some(index) = self.free.pop() {
            if let Some(slot) = self.nodes.get_mut(index as usize)
                && slot.place == Place::Free
            {
                *slot = node;
                return index;
            }
        }
        let index = u32::try_from(self.nodes.len()).unwrap_or(NONE);
        assert!(
            index != NONE,
            "a run queue holds fewer than 2^32 - 1 entities"
        );
        self.nodes.push(node);
        index
    }

    /// Where the next node is stored. O(1) amortized.
    pub(crate) fn next_index(&mut self) -> u32 {
        while let Some(&index) = self.free.last() {
            let node = self.nodes.get(index as usize);
            if node.is_some_and(|node| node.place == Place::Free) {
                return index;
            }
            self.free.pop();
        }
        u32::try_from(self.nodes.len()).unwrap_or(NONE)
    }

    #[inline]
    pub(crate) fn release(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        debug_assert!(!node.place.is_queued() && node.handle.is_none());
        node.place = Place::Free;
        if self.nodes.len() > KEPT && index as usize + 1 == self.nodes.len() {
            self.shrink();
        } else {
            self.free.push(index);
        }
    }

    #[cold]
    fn shrink(&mut self) {
        cut_off(&mut self.nodes, |node| node.place == Place::Free);
        let kept = self.nodes.len();
        if self.free.len() > 2 * kept {
            self.free.retain(|index| (*index as usize) < kept);
            self.free.shrink_to(2 * kept);
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<T>>() + self.free.capacity() * size_of::<u32>()
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Node<T> {
        &self.nodes[index as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Node<T> {
        &mut self.nodes[index as usize]
    }
}

// With a one-word handle a node fills exactly one cache line.
const _: () = assert!(size_of::<Node<Box<u8>>>() <= 64);
