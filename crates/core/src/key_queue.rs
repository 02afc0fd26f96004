//! An ordered queue of nodes by a virtual-time key, FIFO among equal keys, with removal from the middle.
//!
//! Two stores, because two kinds of traffic meet here:
//! - a **ring** of 64 FIFO lists, one for each quantum of keys from the smallest on, with a bitmap of those in use:
//!   push, pop and remove are O(1). It exists only with a quantum and once the queue has been longer than a few
//!   entries, so that 100,000 small groups stay small. Ready tasks of one group all fall into it: their keys lie
//!   within a slice or two of each other.
//! - a **4-ary heap** for everything else: exact order (no quantum), short queues, and keys outside of the ring's
//!   window. Positions are kept in the nodes.
//!
//! Keys are rounded down to the quantum by the queue. A tie between ring and heap goes to the heap: what is there
//! was queued before the ring existed or has fallen far behind.

use crate::node::{KEPT, NONE, Node, Place, give_back};
use crate::units::VirtualTime;

/// Lists in a ring: one bit each in a word.
const LISTS: u32 = u64::BITS;

/// Queue length from which a ring is worth its half KiB.
const RING_FROM: usize = 8;

/// Children of a heap entry; 4 keeps siblings in one cache line.
const ARITY: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Ready,
    Later,
}

impl Side {
    const fn ring(self) -> Place {
        match self {
            Side::Ready => Place::ReadyRing,
            Side::Later => Place::LaterRing,
        }
    }

    const fn heap(self) -> Place {
        match self {
            Side::Ready => Place::ReadyHeap,
            Side::Later => Place::LaterHeap,
        }
    }
}

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

struct Ring {
    /// Bit i: list i is not empty.
    occupied: u64,
    /// Every key in the ring lies in `base .. base + 64 quanta`.
    base: VirtualTime,
    lists: [List; LISTS as usize],
}

#[derive(Clone, Copy)]
struct Item {
    key: VirtualTime,
    /// Order of arrival, wrapping; compared by signed distance like the keys.
    sequence: u32,
    node: u32,
}

impl Item {
    #[inline]
    fn goes_before(&self, other: &Item) -> bool {
        match self.key.since(other.key) {
            0 => self.sequence.wrapping_sub(other.sequence).cast_signed() < 0,
            distance => distance < 0,
        }
    }
}

pub(crate) struct KeyQueue {
    side: Side,
    /// log2 of the quantum; 0 is exact order.
    shift: u8,
    sequence: u32,
    len: u32,
    ring: Option<Box<Ring>>,
    heap: Vec<Item>,
}

impl KeyQueue {
    /// An empty queue. The ready one gets room for one: in most, one a (group, CPU), more never wait, and a vector's first four would
    /// take 48 bytes more.
    pub(crate) fn new(side: Side, shift: u8) -> KeyQueue {
        let heap = match side {
            Side::Ready => Vec::with_capacity(1),
            Side::Later => Vec::new(),
        };
        KeyQueue {
            side,
            shift,
            sequence: 0,
            len: 0,
            ring: None,
            heap,
        }
    }

    #[inline]
    fn floor(&self, key: VirtualTime) -> VirtualTime {
        VirtualTime(key.0 >> self.shift << self.shift)
    }

    /// Adds a node that is in no queue. O(1) in the ring, O(log n) in the heap.
    #[inline(always)]
    pub(crate) fn push<T>(&mut self, nodes: &mut [Node<T>], index: u32, key: VirtualTime) {
        debug_assert!(!nodes[index as usize].place.is_queued());
        let key = self.floor(key);
        self.len += 1;
        if self.shift > 0 {
            if let Some(ring) = self.ring.as_deref_mut() {
                if ring.push(nodes, index, key, self.shift) {
                    nodes[index as usize].place = self.side.ring();
                    return;
                }
            } else if self.heap.len() >= RING_FROM {
                self.ring = Some(Box::new(Ring::new()));
            }
        }
        self.push_heap(nodes, index, key);
    }

    #[inline(never)]
    fn push_heap<T>(&mut self, nodes: &mut [Node<T>], index: u32, key: VirtualTime) {
        if self.heap.len() == self.heap.capacity() {
            // Apart, so that what nearly always happens calls nothing and saves no registers for it.
            return self.push_grown(nodes, index, key);
        }
        self.sequence = self.sequence.wrapping_add(1);
        let item = Item {
            key,
            sequence: self.sequence,
            node: index,
        };
        let position = self.heap.len();
        self.heap.push(item);
        let node = &mut nodes[index as usize];
        node.place = self.side.heap();
        node.prev = position as u32;
        // Most queues are short, and most come behind.
        if position > 0 && item.goes_before(&self.heap[(position - 1) / ARITY]) {
            self.sift_up(nodes, position, item);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_grown<T>(&mut self, nodes: &mut [Node<T>], index: u32, key: VirtualTime) {
        self.heap.reserve(1);
        self.push_heap(nodes, index, key);
    }

    /// The first node and its key, rounded down to the quantum. O(1).
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<(u32, VirtualTime)> {
        let from_ring = match self.ring.as_deref() {
            Some(ring) if ring.occupied != 0 => Some(ring.first(self.shift)),
            _ => None,
        };
        match (self.heap.first(), from_ring) {
            (None, found) => found,
            (Some(item), Some((index, key))) if key.is_before(item.key) => Some((index, key)),
            (Some(item), _) => Some((item.node, item.key)),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes out the node that `peek` returned, with the key that it returned.
    #[inline(always)]
    pub(crate) fn pop<T>(&mut self, nodes: &mut [Node<T>], index: u32, floor: VirtualTime) {
        let node = &mut nodes[index as usize];
        match self.ring.as_deref_mut() {
            Some(ring) if node.place == self.side.ring() => {
                self.len -= 1;
                node.place = Place::Off;
                ring.pop(node.next, floor, self.shift);
            }
            _ => self.remove(nodes, index, floor),
        }
    }

    /// Takes a node out, wherever it is in the queue; `key` must be what it was pushed with. Its place is then
    /// `Off` until the caller decides. O(1) in the ring, O(log n) in the heap.
    #[inline(always)]
    pub(crate) fn remove<T>(&mut self, nodes: &mut [Node<T>], index: u32, key: VirtualTime) {
        let node = &mut nodes[index as usize];
        let place = core::mem::replace(&mut node.place, Place::Off);
        self.len -= 1;
        if place == self.side.ring() {
            self.remove_ring(nodes, index, key);
            return;
        }
        debug_assert!(place == self.side.heap());
        let position = node.prev as usize;
        debug_assert!(self.heap[position].node == index);
        if self.heap.capacity() > KEPT {
            give_back(&mut self.heap);
        }
        // Most queues are short: often it is the last one itself.
        if let Some(last) = self.heap.pop()
            && position < self.heap.len()
        {
            let len = self.heap.len();
            let is_below_first = position == 0 || len <= ARITY + 1;
            if is_below_first && position * ARITY + 1 >= len {
                // In a short queue whoever is below the first has nobody else above or below, which takes no comparison: 14 instructions
                // for 66, in half of all cases.
                self.put(nodes, position, last);
            } else {
                self.fill_gap(nodes, position, last);
            }
        }
    }

    #[inline(never)]
    fn remove_ring<T>(&mut self, nodes: &mut [Node<T>], index: u32, key: VirtualTime) {
        let key = self.floor(key);
        if let Some(ring) = self.ring.as_deref_mut() {
            ring.remove(nodes, index, key, self.shift);
        }
    }

    /// The last one fills the place of one that was taken out.
    #[inline(never)]
    fn fill_gap<T>(&mut self, nodes: &mut [Node<T>], position: usize, last: Item) {
        // Taken from another branch, it may belong higher up.
        if position > 0 && last.goes_before(&self.heap[(position - 1) / ARITY]) {
            self.sift_up(nodes, position, last);
        } else {
            self.sift_down(nodes, position, last);
        }
    }

    /// Puts an item at a free position, or above it where it belongs.
    #[inline(never)]
    fn sift_up<T>(&mut self, nodes: &mut [Node<T>], start: usize, item: Item) {
        let mut position = start;
        while position > 0 {
            let parent = (position - 1) / ARITY;
            let above = self.heap[parent];
            if !item.goes_before(&above) {
                break;
            }
            self.put(nodes, position, above);
            position = parent;
        }
        self.put(nodes, position, item);
    }

    /// Puts an item at a free position, or below it where it belongs.
    fn sift_down<T>(&mut self, nodes: &mut [Node<T>], start: usize, item: Item) {
        let mut position = start;
        loop {
            let first = position * ARITY + 1;
            let end = (first + ARITY).min(self.heap.len());
            let children = self.heap.get(first..end).unwrap_or_default();
            let Some((&(mut least), others)) = children.split_first() else {
                break;
            };
            let mut child = first;
            for (other, sibling) in (first + 1..).zip(others) {
                if sibling.goes_before(&least) {
                    (least, child) = (*sibling, other);
                }
            }
            if !least.goes_before(&item) {
                break;
            }
            self.put(nodes, position, least);
            position = child;
        }
        self.put(nodes, position, item);
    }

    #[inline]
    fn put<T>(&mut self, nodes: &mut [Node<T>], position: usize, item: Item) {
        self.heap[position] = item;
        nodes[item.node as usize].prev = position as u32;
    }

    /// Visits queued nodes until `visit` returns false: the heap's in no particular order (the first first), the
    /// ring's in order. O(n).
    pub(crate) fn visit<T>(&self, nodes: &[Node<T>], mut visit: impl FnMut(u32) -> bool) {
        if !self.heap.iter().all(|item| visit(item.node)) {
            return;
        }
        let Some(ring) = self.ring.as_deref() else {
            return;
        };
        for offset in 0..LISTS {
            let slot = Ring::slot(ring.base.plus(u64::from(offset) << self.shift), self.shift);
            let mut index = if ring.occupied & (1 << slot) == 0 {
                NONE
            } else {
                ring.lists[slot].head
            };
            while index != NONE {
                if !visit(index) {
                    return;
                }
                index = nodes[index as usize].next;
            }
        }
    }

    /// Bytes held beyond the structure itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        let ring = if self.ring.is_some() {
            size_of::<Ring>()
        } else {
            0
        };
        ring + self.heap.capacity() * size_of::<Item>()
    }
}

impl Ring {
    fn new() -> Ring {
        let empty = List {
            head: NONE,
            tail: NONE,
        };
        Ring {
            occupied: 0,
            base: VirtualTime(0),
            lists: [empty; LISTS as usize],
        }
    }

    #[inline]
    fn slot(key: VirtualTime, shift: u8) -> usize {
        ((key.0 >> shift) % u64::from(LISTS)) as usize
    }

    /// Whether the key fits the window, after moving the window if that helps.
    #[inline]
    fn admit(&mut self, key: VirtualTime, shift: u8) -> bool {
        if self.occupied == 0 {
            self.base = key;
            return true;
        }
        let quanta = key.since(self.base) >> shift;
        if (0..i64::from(LISTS)).contains(&quanta) {
            return true;
        }
        // The window may slide as long as the lists in use stay inside.
        let rotated = self
            .occupied
            .rotate_right(Self::slot(self.base, shift) as u32);
        let (lowest, highest) = (
            rotated.trailing_zeros(),
            LISTS - 1 - rotated.leading_zeros(),
        );
        if quanta < 0 {
            let fits = i64::from(highest) - quanta < i64::from(LISTS);
            if fits {
                self.base = key;
            }
            return fits;
        }
        let fits = quanta - i64::from(lowest) < i64::from(LISTS);
        if fits {
            self.base = self.base.plus(u64::from(lowest) << shift);
        }
        fits
    }

    #[inline]
    fn push<T>(&mut self, nodes: &mut [Node<T>], index: u32, key: VirtualTime, shift: u8) -> bool {
        if !self.admit(key, shift) {
            return false;
        }
        let slot = Self::slot(key, shift);
        let bit = 1u64 << slot;
        let list = &mut self.lists[slot];
        let node = &mut nodes[index as usize];
        node.next = NONE;
        if self.occupied & bit == 0 {
            node.prev = NONE;
            list.head = index;
            self.occupied |= bit;
        } else {
            node.prev = list.tail;
            nodes[list.tail as usize].next = index;
        }
        list.tail = index;
        true
    }

    #[inline]
    fn first(&self, shift: u8) -> (u32, VirtualTime) {
        let start = Self::slot(self.base, shift) as u32;
        let offset = self.occupied.rotate_right(start).trailing_zeros();
        let slot = ((start + offset) % LISTS) as usize;
        (
            self.lists[slot].head,
            self.base.plus(u64::from(offset) << shift),
        )
    }

    /// Removes the head of the list of `floor`, whose successor is `next`.
    #[inline]
    fn pop(&mut self, next: u32, floor: VirtualTime, shift: u8) {
        let slot = Self::slot(floor, shift);
        // The tail's `next` is always NONE.
        if next == NONE {
            self.occupied &= !(1 << slot);
        } else {
            self.lists[slot].head = next;
        }
    }

    #[inline]
    fn remove<T>(&mut self, nodes: &mut [Node<T>], index: u32, key: VirtualTime, shift: u8) {
        let slot = Self::slot(key, shift);
        let (prev, next) = (nodes[index as usize].prev, nodes[index as usize].next);
        let list = &mut self.lists[slot];
        // The head's own `prev` and the tail's own `next` are not looked at, only the list's ends.
        match (list.head == index, list.tail == index) {
            (true, true) => self.occupied &= !(1 << slot),
            (true, false) => list.head = next,
            (false, true) => {
                list.tail = prev;
                nodes[prev as usize].next = NONE;
            }
            (false, false) => {
                nodes[prev as usize].next = next;
                nodes[next as usize].prev = prev;
            }
        }
    }
}
