//! A place for one token: its owner fills and empties it, and anybody may empty it while the owner is stuck.
//!
//! # Protocol
//! One word: empty (0, or an owner's *vacancy*), closed (1), or the address of a cell with a tag in its low bits.
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
//!
//! # Owners that are replaced
//! A thread that polls may lose its place to another one at any instruction, and learns of it later. So each owner of such a place has a
//! vacancy of its own, a number that no other one has: what the place looks like while it is this owner's and empty.
//!
//! | step | by | how | ordering |
//! |---|---|---|---|
//! | take over | the new owner, who alone may | count owners; swap with the new vacancy | Relaxed, AcqRel |
//! | offer | an owner, perhaps of yesterday | exchange its own vacancy for the token, or the token comes back | Release |
//! | vacate | the owner of today | load; swap with its vacancy unless it is that | Relaxed, AcqRel |
//! | seize | as above | | |
//!
//! *Nobody fills what is another one's*: an offer succeeds only in an exchange of its own vacancy, which is gone from the take-over on and
//! never comes back, as no number is given twice (2^61 owners). So it needs no look at whether it was replaced, before or after, and
//! there is no moment in which a token lies where nobody will look because the thread that put it there was stopped. *What an owner
//! put in before it was replaced is seen* by who takes over, in that swap. *What it wakes afterwards* comes back to it, and goes where it is
//! served. An older token is not displaced either: it might be the new owner's. (`tests/loom_slot` models it; with a look at the word and a
//! store in place of the exchange, tokens are lost there.)

use super::cell::Header;
use super::{Context, Task};
use crate::primitives::{AtomicPtr, AtomicUsize, Ordering};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};

/// Bits of the word that an address leaves free.
const TAG_MASK: usize = 0b111;
const _: () = assert!(std::mem::align_of::<Header>() > TAG_MASK);
/// The word of a closed place: no address is that low.
const CLOSED: usize = 1;
/// The tag of a vacancy, whose other bits are its number.
const VACANT: usize = TAG_MASK;

/// What the owner's [`Slot::put`] met.
pub enum Put<C: Context> {
    /// The place was free.
    Stored,
    /// It was taken: this was there before.
    Displaced(Task<C>, u8),
    /// It is closed: the token comes back.
    Refused(Task<C>),
}

/// What a place looks like to the owner that took it over, while it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacancy(NonZeroUsize);

impl Vacancy {
    /// That of the owner with this number.
    fn of(number: usize) -> Self {
        // (One bit of the tag says that it is not zero.)
        Self(NonZeroUsize::MIN | (number << TAG_MASK.count_ones() | VACANT))
    }

    #[inline]
    fn word(self) -> *mut Header {
        ptr::without_provenance_mut(self.0.get())
    }
}

/// A place for one token and a tag.
pub struct Slot<C: Context> {
    word: AtomicPtr<Header>,
    /// How often it was taken over.
    owners: AtomicUsize,
    context: PhantomData<fn() -> C>,
}

impl<C: Context> Slot<C> {
    /// An empty place.
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: AtomicPtr::new(ptr::null_mut()),
            owners: AtomicUsize::new(0),
            context: PhantomData,
        }
    }

    /// Owner: fills the place. `tag` is below 7.
    #[inline]
    pub fn put(&self, task: Task<C>, tag: u8) -> Put<C> {
        debug_assert!(usize::from(tag) < VACANT);
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

    /// The new owner: whoever had the place cannot fill it any more. What is in it comes out, and the place is open.
    pub fn take_over(&self) -> (Vacancy, Option<(Task<C>, u8)>) {
        let number = self.owners.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let vacancy = Vacancy::of(number);
        let before = self.word.swap(vacancy.word(), Ordering::AcqRel);
        (vacancy, Self::unpack(before))
    }

    /// Whether the place is empty, and of the owner with that vacancy; old news.
    #[inline]
    pub fn is_vacant(&self, vacancy: Vacancy) -> bool {
        self.word.load(Ordering::Relaxed).addr() == vacancy.0.get()
    }

    /// The owner with that vacancy, though it may have been replaced: fills the place if it is empty, open and still its own. `tag` is
    /// below 7.
    ///
    /// # Errors
    /// The token comes back.
    #[inline]
    pub fn offer(&self, vacancy: Vacancy, task: Task<C>, tag: u8) -> Result<(), Task<C>> {
        debug_assert!(usize::from(tag) < VACANT);
        let cell = ManuallyDrop::new(task).task;
        let word = cell
            .as_ptr()
            .map_addr(|address| address | (usize::from(tag) & TAG_MASK));
        match self.exchange(vacancy, word) {
            Ok(()) => Ok(()),
            // SAFETY: the cell is that of the token that was forgotten above, of context `C`, and the word was not stored, so nobody
            // else can have it.
            Err(()) => Err(unsafe { Task::from_raw(cell) }),
        }
    }

    /// The same with a store in place of the exchange: for the models, which must see that it loses tokens.
    #[cfg(all(test, loom))]
    pub(crate) fn offer_by_store(&self, vacancy: Vacancy, task: Task<C>) -> Result<(), Task<C>> {
        if !self.is_vacant(vacancy) {
            return Err(task);
        }
        let cell = ManuallyDrop::new(task).task;
        self.word.store(cell.as_ptr(), Ordering::Release);
        Ok(())
    }

    #[inline]
    fn exchange(&self, vacancy: Vacancy, word: *mut Header) -> Result<(), ()> {
        self.word
            .compare_exchange(vacancy.word(), word, Ordering::Release, Ordering::Relaxed)
            .map_or(Err(()), |_| Ok(()))
    }

    /// The owner with that vacancy, which was not replaced: empties the place, and opens it.
    #[inline]
    pub fn vacate(&self, vacancy: Vacancy) -> Option<(Task<C>, u8)> {
        if self.is_vacant(vacancy) {
            return None;
        }
        Self::unpack(self.word.swap(vacancy.word(), Ordering::AcqRel))
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
        Self::is_token(self.word.load(Ordering::Relaxed))
    }

    #[inline]
    fn is_token(word: *mut Header) -> bool {
        word.addr() > CLOSED && word.addr() & TAG_MASK != VACANT
    }

    /// The token in a word that a swap took out.
    #[inline]
    fn unpack(word: *mut Header) -> Option<(Task<C>, u8)> {
        if !Self::is_token(word) {
            return None;
        }
        let tag = (word.addr() & TAG_MASK) as u8;
        let cell = NonNull::new(word.map_addr(|address| address & !TAG_MASK))?;
        // SAFETY: every word above CLOSED that is no vacancy was made by `put` or `offer` from a token of context `C` that it forgot (a
        // tag is never VACANT), so cell and context are right; and the swap that the caller made took the word out of the place, so this is the only one to take that token over.
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
