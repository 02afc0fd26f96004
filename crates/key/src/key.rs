//! A key: the value that sites load, and the count that decides it.
//!
//! The count is `counting.rs`.
//!
//! # The value
//!
//! `state` is what a site loads when it is not in its cheap form. Only the engine writes it, under its lock, at the
//! single point where the flip takes effect. Branches follow `state`; the count runs ahead of it while a flip is in
//! progress, as in the kernel.

use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use core::time::Duration;

use crate::change::{Action, Holder, Receipt, Settle};
use crate::engine::{self, Counts, HOME, Home};
use crate::error::FlipError;
use crate::guard::EnableGuard;
use crate::status::KeyStatus;

/// What every key offers, whatever its default: counting, plain switching, its name and its figures.
///
/// Made by [`static_key!`](crate::static_key) only. All methods that flip may be called from any thread, but not from a
/// signal handler: they take a lock.
///
/// **Quiescing is the caller's business:** when a disabling call has returned, no thread *enters* the branch any more,
/// but one that entered it before may still be inside.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Key {
    /// First cache line: read by every soft site, written only when the key flips.
    state: AtomicBool,
    default: bool,
    registered: AtomicBool,
    name: &'static str,
    documentation: &'static str,
    next_registered: AtomicPtr<Key>,
    /// Which copy of this crate the key belongs to.
    home: &'static Home,
    /// Second cache line: written by counting.
    counts: Counts,
}

/// Where the value that sites load stands in a key, bytes.
pub const STATE_OFFSET: usize = core::mem::offset_of!(Key, state);

impl Key {
    const fn new(name: &'static str, documentation: &'static str, default: bool) -> Self {
        Self {
            state: AtomicBool::new(default),
            default,
            registered: AtomicBool::new(false),
            name,
            documentation,
            next_registered: AtomicPtr::new(core::ptr::null_mut()),
            home: &HOME,
            counts: Counts::new(default),
        }
    }

    /// The key's name: its module path and identifier, unless its definition gave another.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The documentation of the key's definition.
    pub const fn documentation(&self) -> &'static str {
        self.documentation
    }

    /// The value that the key was defined with.
    pub const fn default_value(&self) -> bool {
        self.default
    }

    /// Number of holders, guards among them; while the first one is coming, it counts already.
    pub fn count(&self) -> i32 {
        self.counts.holders.load().as_i32()
    }

    /// Whether the count is above 0. A slow way to ask: branches use the macros.
    pub fn is_enabled(&self) -> bool {
        self.count() > 0
    }

    /// The value that branches follow at this moment. Acquire: what was written before the flip is visible to a
    /// thread that sees its result here.
    #[inline(always)]
    pub(crate) fn state(&self) -> bool {
        self.state.load(Ordering::Acquire)
    }

    /// The engine's single point of effect of a flip; the caller holds the engine's lock.
    pub(crate) fn store_state(&self, value: bool) {
        self.state.store(value, Ordering::Release);
    }

    /// Adds a holder; the first one turns the key on. Returns when every site follows.
    ///
    /// # Errors
    /// [`FlipError::Overflow`], or one of the engine's errors: the key is as it was.
    ///
    /// # Complexity
    /// One compare-and-swap if the key is on; otherwise proportional to the key's sites, with at most the mode's
    /// number of barriers.
    pub fn inc(&'static self) -> Result<Receipt, FlipError> {
        self.add(Holder::Anonymous)
    }

    /// Removes a holder; the last one turns the key off.
    ///
    /// # Errors
    /// [`FlipError::Underflow`], [`FlipError::StillHeld`] and [`FlipError::EnableInProgress`] for an unbalanced call, or one
    /// of the engine's.
    ///
    /// # Complexity
    /// As [`Key::inc`].
    pub fn dec(&'static self) -> Result<Receipt, FlipError> {
        self.remove(Holder::Anonymous, Settle::Now)
    }

    /// As [`Key::dec`], for a key that is likely to be enabled again soon: the key is off when this returns, but its
    /// sites keep the form that costs a load for `delay`, and if it is enabled within that time no code is written at
    /// all. (The kernel's deferred decrement delays the effect as well; here only the rewriting waits.)
    ///
    /// # Errors
    /// As [`Key::dec`].
    pub fn dec_deferred(&'static self, delay: Duration) -> Result<Receipt, FlipError> {
        self.remove(Holder::Anonymous, Settle::After(delay))
    }

    /// Adds a holder if the key is on already: never a flip, never the engine's lock. `false`: the key is off, or just being
    /// enabled.
    ///
    /// # Errors
    /// [`FlipError::Overflow`].
    pub fn try_inc(&'static self) -> Result<bool, FlipError> {
        self.counts.holders.try_add(Holder::Anonymous, self.name)
    }

    pub(crate) fn add(&'static self, holder: Holder) -> Result<Receipt, FlipError> {
        match self.counts.holders.try_add(holder, self.name)? {
            true => Ok(Receipt::default()),
            false => self.flip(Action::Add(holder), Settle::Now),
        }
    }

    pub(crate) fn remove(
        &'static self,
        holder: Holder,
        settle: Settle,
    ) -> Result<Receipt, FlipError> {
        match self.counts.holders.try_remove(holder, self.name)? {
            true => Ok(Receipt::default()),
            false => self.flip(Action::Remove(holder), settle),
        }
    }

    fn flip(&'static self, action: Action, settle: Settle) -> Result<Receipt, FlipError> {
        engine::flip(self, action, settle)
    }

    /// Turns the key on if it is off: count 0 becomes 1, any other count stays.
    ///
    /// # Errors
    /// One of the engine's errors: the key is still off.
    pub fn enable(&'static self) -> Result<Receipt, FlipError> {
        self.flip(Action::Enable, Settle::Now)
    }

    /// As [`Key::enable`], without a barrier: for tracing, where it does not matter that some threads take the old branch for
    /// some microseconds more. Until a thread next fetches the code anew (when it takes an interrupt, at the latest when it is
    /// scheduled again) it may go on as before, even after this has returned and whatever synchronised it with the caller.
    /// In modes other than [`Mode::Biased`](crate::Mode::Biased) this is [`Key::enable`].
    ///
    /// # Errors
    /// As [`Key::enable`].
    pub fn enable_relaxed(&'static self) -> Result<Receipt, FlipError> {
        self.flip(Action::Enable, Settle::Relaxed)
    }

    /// Turns the key off if nobody but a single holder has it on: count 1 becomes 0, 0 stays.
    ///
    /// # Errors
    /// [`FlipError::StillCounted`] if the count is above 1, [`FlipError::StillHeld`] if guards hold it, or one of the engine's
    /// errors.
    pub fn disable(&'static self) -> Result<Receipt, FlipError> {
        self.flip(Action::Disable, Settle::Now)
    }

    /// As [`Key::disable`] with the delay of [`Key::dec_deferred`].
    ///
    /// # Errors
    /// As [`Key::disable`].
    pub fn disable_deferred(&'static self, delay: Duration) -> Result<Receipt, FlipError> {
        self.flip(Action::Disable, Settle::After(delay))
    }

    /// [`Key::enable`] or [`Key::disable`].
    ///
    /// # Errors
    /// As those.
    pub fn set(&'static self, on: bool) -> Result<Receipt, FlipError> {
        if on { self.enable() } else { self.disable() }
    }

    /// [`Key::inc`], undone when the guard is dropped. The guard owns its count: no [`Key::dec`] or [`Key::disable`] takes it.
    ///
    /// # Errors
    /// As [`Key::inc`].
    pub fn hold(&'static self) -> Result<EnableGuard, FlipError> {
        EnableGuard::new(self)
    }

    /// For keys that flap: from now on the sites are brought to their cheap form at most once per `interval`; a flip
    /// that comes earlier takes effect at once but leaves that step for later, as [`Key::dec_deferred`] does. Zero (the
    /// default) lifts the limit.
    pub fn set_rate_limit(&self, interval: Duration) {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.counts
            .rate_limit_ns
            .store(interval_ns, Ordering::Relaxed);
    }

    /// The key's figures. Takes the engine's lock.
    pub fn status(&'static self) -> KeyStatus {
        engine::status_of(self)
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(crate) fn home(&self) -> &'static Home {
        self.home
    }

    pub(crate) fn mark_registered(&self) -> bool {
        !self.registered.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn next_registered(&self) -> &AtomicPtr<Key> {
        &self.next_registered
    }
}

/// A key that is off (`DEFAULT = false`) or on (`DEFAULT = true`) when the program starts. Defined by
/// [`static_key!`](crate::static_key), switched through [`Key`], to which it dereferences.
#[derive(Debug)]
#[repr(transparent)]
pub struct StaticKey<const DEFAULT: bool>(Key);

/// A key that starts off.
pub type StaticKeyFalse = StaticKey<false>;

/// A key that starts on.
pub type StaticKeyTrue = StaticKey<true>;

impl<const DEFAULT: bool> StaticKey<DEFAULT> {
    /// For `static_key!` only.
    #[doc(hidden)]
    pub const fn __new(name: &'static str, documentation: &'static str) -> Self {
        Self(Key::new(name, documentation, DEFAULT))
    }
}

impl<const DEFAULT: bool> Deref for StaticKey<DEFAULT> {
    type Target = Key;

    #[inline(always)]
    fn deref(&self) -> &Key {
        &self.0
    }
}
