//! A place for one token: its owner fills and empties it, and anybody may empty it while the owner is stuck.
//!
//! # Protocol
//! One word: empty (0), closed (1), or the address of a cell with a tag in its low bits.
//!
//! | step | by | how | ordering |
//! |---|---|---|---|
//! | put, it looks empty | owner | load, store | Relaxed, Release |
//! | put, it is taken | owner | swap | AcqRel |
//! | put, it is closed | owner | load: refused, the token comes back | Relaxed |
//! | take | owner | load; swap with empty unless it was | Relaxed, AcqRel |
//! | seize | anybody | load; swap with closed | Relaxed, AcqRel |
//!
//! *The store needs no read-modify-write*: only the owner fills the place, so what is empty stays without a token until it does;
//! what may come in between is *closed*, and overwriting that opens the place again. *No token is lost or doubled*: what leaves the
//! place leaves by a swap, so each token is seen by one of those who take, seize or displace. *Its contents are seen*: put releases,
//! and every swap acquires. (`tests/loom_slot` models it, with the store as `fill` says.)
//!
//! *Closed* tells the owner, at no cost while it is not, that somebody else serves: what it wakes from then on is refused and goes
//! to where it is served. It lasts until the owner takes.
//!
//! Who breaks the rule of one owner loses a token (it leaks, and its task never runs), but not the memory's integrity.

use super::cell::Header;
use super::{Context, Task};
use crate::primitives::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

/// Bits of the word that an address leaves free.
const TAG_MASK: usize = 0b111;
const _: () = assert!(std::mem::align_of::<Header>() > TAG_MASK);
/// The word of a closed place: no address is that low.
const CLOSED: usize = 1;

/// What the owner's [`Slot::put`] met.
pub enum Put<C: Context> {
    /// The place was free.
    Stored,
    /// It was taken: this was there before.
    Displaced(Task<C>, u8),
    /// It is closed: the token comes back.
    Refused(Task<C>),
}

/// A place for one token and a tag.
pub struct Slot<C: Context> {
    word: AtomicPtr<Header>,
    context: PhantomData<fn() -> C>,
}

impl<C: Context> Slot<C> {
    /// An empty place.
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: AtomicPtr::new(ptr::null_mut()),
            context: PhantomData,
        }
    }

    /// Owner: fills the place. `tag` is below 8.
    #[inline]
    pub fn put(&self, task: Task<C>, tag: u8) -> Put<C> {
        debug_assert!(usize::from(tag) <= TAG_MASK);
        let before = self.word.load(Ordering::Relaxed);
        if before.addr() == CLOSED {
            return Put::Refused(task);
        }
        let cell = ManuallyDrop::new(task).task;
        let word = cell
            .as_ptr()
            .map_addr(|address| address | (usize::from(tag) & TAG_MASK));
        if before.is_null() {
            self.fill(word);
            return Put::Stored;
        }
        match Self::unpack(self.word.swap(word, Ordering::AcqRel)) {
            Some((task, tag)) => Put::Displaced(task, tag),
            None => Put::Stored,
        }
    }

    /// Owner, who saw no token: the store of a put.
    #[cfg(not(loom))]
    #[inline]
    fn fill(&self, word: *mut Header) {
        self.word.store(word, Ordering::Release);
    }

    /// The same for the model. An exchange is next to what it read in the order of modifications, so a store of the owner, who has
    /// seen what the exchange took out or what was there before, comes after it. loom does not derive that, and would let others
    /// miss the store. As an exchange the store stands where the argument puts it, and what it finds shows the other half
    /// of the argument: no token is there to be overwritten.
    #[cfg(loom)]
    fn fill(&self, word: *mut Header) {
        let before = self.word.swap(word, Ordering::Release);
        assert!(before.addr() <= CLOSED, "a token was overwritten");
    }

    /// Owner: empties the place, and opens it.
    #[inline]
    pub fn take(&self) -> Option<(Task<C>, u8)> {
        if self.word.load(Ordering::Relaxed).is_null() {
            return None;
        }
        Self::unpack(self.word.swap(ptr::null_mut(), Ordering::AcqRel))
    }

    /// Anybody: empties the place, and closes it until the owner takes.
    pub fn seize(&self) -> Option<(Task<C>, u8)> {
        if self.word.load(Ordering::Relaxed).addr() == CLOSED {
            return None;
        }
        let closed = ptr::without_provenance_mut(CLOSED);
        Self::unpack(self.word.swap(closed, Ordering::AcqRel))
    }

    /// Whether a token is in it; old news.
    pub fn is_filled(&self) -> bool {
        self.word.load(Ordering::Relaxed).addr() > CLOSED
    }

    /// The token in a word that a swap took out.
    #[inline]
    fn unpack(word: *mut Header) -> Option<(Task<C>, u8)> {
        if word.addr() <= CLOSED {
            return None;
        }
        let tag = (word.addr() & TAG_MASK) as u8;
        let cell = NonNull::new(word.map_addr(|address| address & !TAG_MASK))?;
        // SAFETY: every word above CLOSED was made by `put` from a token of context `C` that it forgot, so cell and context are
        // right; and the swap that the caller made took the word out of the place, so this is the only one to take that token over.
        Some((unsafe { Task::from_raw(cell) }, tag))
    }
}

impl<C: Context> Default for Slot<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Context> Drop for Slot<C> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<C: Context> std::fmt::Debug for Slot<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Slot")
            .field("filled", &self.is_filled())
            .finish_non_exhaustive()
    }
}
