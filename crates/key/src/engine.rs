//! Who flips keys: the engine, if the program has one, or this module, which only stores.
//!
//! **For engines.** A library has no business here: who moves [`counts`] beside the engine makes patched
//! branches disagree with their keys (which corrupts no memory). What is here follows the needs of `quotient-keys`, which asks for this
//! very version of the crate.
//!
//! # Protocol
//!
//! `Home::engine` is null at first. The first [`attach`] sets it, for ever. `Home::lock` is a spinning lock for flips without an
//! engine. All flips go through `flip`:
//!
//! 1. Engine there (Acquire): the flip is the engine's, under whatever lock it has.
//! 2. Otherwise take `lock` and look again. Engine there: give the lock back, and 1. Otherwise flip under the lock.
//!
//! `attach` stores the pointer while it holds `lock`. So every flip that did not see the engine has ended when `attach`
//! returns, and whatever it did happens before the engine's first flip; every later one sees the engine in step 2 at the latest.
//! At no time do two parties own a word of `counting`: first it is the holder of `lock`, then the engine.
//!
//! Under the lock run a compare-and-swap and some stores, no code of the user's, and nothing that blocks; so a wait for it
//! ends as soon as its holder has run for some dozens of instructions. A flip does not nest in another one (a signal handler
//! must not flip).
//!
//! The order of a flip is the engine's: the count becomes *owned*, `state` is stored (Release), the count is settled. Without
//! patched sites every site loads `state`, so its store is the instant of the flip.

use core::hint::spin_loop;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::change::Receipt;
pub use crate::change::{Action, Holder, Settle};
pub use crate::counting::{Applied, Count, Holders, Word};
use crate::error::FlipError;
use crate::key::Key;
pub use crate::registry::register;
pub use crate::site::HAS_SITES;
use crate::status::KeyStatus;

/// Flips keys. There is one a copy of this crate at most.
pub trait Engine: Sync {
    /// Makes one change to a key; the key is the same as before if it fails.
    ///
    /// # Errors
    /// As documented at the methods of [`Key`].
    fn flip(&self, key: &'static Key, action: Action, settle: Settle)
    -> Result<Receipt, FlipError>;

    /// The figures of a key; [`status`] knows those that need no engine.
    fn status(&self, key: &'static Key) -> KeyStatus;
}

/// What the keys of one copy of this crate have in common. Its address says which copy that is.
#[derive(Debug)]
pub(crate) struct Home {
    engine: AtomicPtr<&'static dyn Engine>,
    lock: AtomicBool,
}

pub(crate) static HOME: Home = Home::new();

/// Holds [`Home::lock`].
struct Locked<'a>(&'a AtomicBool);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Home {
    const fn new() -> Self {
        Self {
            engine: AtomicPtr::new(ptr::null_mut()),
            lock: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> Locked<'_> {
        // Bounded by what its holders do under it: see the module's notes.
        while self.lock.swap(true, Ordering::Acquire) {
            while self.lock.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
        Locked(&self.lock)
    }

    fn engine(&self) -> Option<&'static dyn Engine> {
        // SAFETY: null, or made by `attach` from a reference that lives for ever; Acquire pairs with its Release.
        unsafe { self.engine.load(Ordering::Acquire).as_ref() }.copied()
    }

    fn attach(&self, engine: &'static &'static dyn Engine) {
        let _locked = self.lock();
        let place = ptr::from_ref(engine).cast_mut();
        // A second engine would patch what the first one flips.
        let _ = self.engine.compare_exchange(
            ptr::null_mut(),
            place,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }

    fn flip(
        &self,
        key: &'static Key,
        action: Action,
        settle: Settle,
    ) -> Result<Receipt, FlipError> {
        if let Some(engine) = self.engine() {
            return engine.flip(key, action, settle);
        }
        let locked = self.lock();
        match self.engine() {
            Some(engine) => {
                drop(locked);
                engine.flip(key, action, settle)
            }
            None => flip_softly(key, action),
        }
    }
}

/// A flip of a key whose sites all load its state. The caller holds the lock.
fn flip_softly(key: &'static Key, action: Action) -> Result<Receipt, FlipError> {
    register(key);
    let counts = key.counts();
    let mut receipt = Receipt::default();
    if let Applied::Owned(_) = counts.holders.apply(action, key.name())? {
        let target = counts.holders.load().sum() > 0;
        if target != key.state() {
            key.store_state(target);
            counts.flips.fetch_add(1, Ordering::Relaxed);
            receipt.flipped = 1;
        }
        counts.holders.settle();
    }
    Ok(receipt)
}

/// Makes `engine` the one that flips all keys of this copy of the crate from now on. The first one stays, so a program must
/// not have two; `quotient-keys` sees to it by its `links`.
pub fn attach(engine: &'static &'static dyn Engine) {
    HOME.attach(engine);
}

/// Makes one change, by whoever is to make it.
pub(crate) fn flip(
    key: &'static Key,
    action: Action,
    settle: Settle,
) -> Result<Receipt, FlipError> {
    HOME.flip(key, action, settle)
}

pub(crate) fn status_of(key: &'static Key) -> KeyStatus {
    match HOME.engine() {
        Some(engine) => engine.status(key),
        None => status(key),
    }
}

/// What can be said of a key without an engine.
pub fn status(key: &'static Key) -> KeyStatus {
    KeyStatus::without_engine(key)
}

/// Whether a key belongs to this copy of the crate: another engine's keys are not to be touched.
pub fn is_ours(key: &Key) -> bool {
    ptr::eq(key.home(), &raw const HOME)
}

/// The words of a key that an engine writes, under its lock.
pub fn counts(key: &Key) -> &Counts {
    key.counts()
}

/// The value that branches follow at this moment. Acquire.
pub fn state(key: &Key) -> bool {
    key.state()
}

/// The single point of effect of a flip. Release.
///
/// # Safety
/// The caller is the engine in the middle of a flip of `key`, holds its lock, and brings the branches to `value` as well: a program
/// may rest the soundness of other unsafe code on branches that follow their key.
pub unsafe fn store_state(key: &Key, value: bool) {
    key.store_state(value);
}

/// The words of a key that change without a flip, on a cache line of their own so that counting disturbs no reader.
#[derive(Debug)]
#[repr(align(64))]
pub struct Counts {
    /// The count.
    pub holders: Holders,
    /// Completed changes of value.
    pub flips: AtomicU64,
    /// Barriers of the transactions that this key took part in.
    pub barriers: AtomicU64,
    /// Shortest time between two settlings of the sites, ns; 0 = no limit.
    pub rate_limit_ns: AtomicU64,
    /// When the sites were last settled, ns since the engine's first look at the clock; 0 = never.
    pub settled_at_ns: AtomicU64,
}

impl Counts {
    pub(crate) const fn new(is_on: bool) -> Self {
        Self {
            holders: Holders::new(is_on),
            flips: AtomicU64::new(0),
            barriers: AtomicU64::new(0),
            rate_limit_ns: AtomicU64::new(0),
            settled_at_ns: AtomicU64::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    crate::static_key! {
        /// Flipped once.
        static LATE = false;
    }

    /// Only counts.
    struct Counting(AtomicU32);

    impl Engine for Counting {
        fn flip(&self, _: &'static Key, _: Action, _: Settle) -> Result<Receipt, FlipError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Receipt::default())
        }

        fn status(&self, key: &'static Key) -> KeyStatus {
            status(key)
        }
    }

    #[test]
    fn a_flip_that_waited_while_the_engine_came_is_the_engines() {
        static COUNTING: Counting = Counting(AtomicU32::new(0));
        static ENGINE: &dyn Engine = &COUNTING;
        let home = Home::new();
        let begun = Barrier::new(2);
        std::thread::scope(|scope| {
            let locked = home.lock();
            scope.spawn(|| {
                begun.wait();
                home.flip(&LATE, Action::Enable, Settle::Now)
            });
            begun.wait();
            // It has looked for an engine and waits for the lock by now; if not, the test sees less, but fails never.
            std::thread::sleep(Duration::from_millis(20));
            let place = ptr::from_ref(&ENGINE).cast_mut();
            home.engine.store(place, Ordering::Release);
            drop(locked);
        });
        assert_eq!(
            (COUNTING.0.load(Ordering::Relaxed), LATE.state()),
            (1, false)
        );
    }
}
