//! The count of a key: one word, and who may move it when.
//!
//! # The word
//!
//! | bits | what |
//! |---|---|
//! | 0 to 31 | anonymous holders: `inc`, `enable` |
//! | 32 to 62 | guards: `hold` |
//! | 63 | *turning*: the word belongs to the holder of the engine's lock |
//!
//! Guards are counted apart, so that nobody can take a guard's count away: `dec` takes anonymous holders only, and
//! `disable` refuses a key that guards hold. The key is on while the sum of both is above 0.
//!
//! # Who may move it
//!
//! * Sum 0, or *turning*: only the holder of the engine's lock. The word is *owned*, so plain loads and stores do.
//! * Sum above 0 and not *turning*: anybody, by compare-and-swap, and never to a sum of 0. Going there means rewriting code,
//!   so the holder of the lock does it: its compare-and-swap of the last holder to 0 makes the word owned.
//!
//! *Turning* is set when the first holder comes and cleared (Release) after the last site has changed. Whoever sees a sum
//! above 0 without it therefore sees patched code; whoever meets it waits for the lock, and thereby for the flip.
//!
//! # Failure
//!
//! What needs no code to be written is final at once. Otherwise the word is owned from the change on, and undoing is storing
//! what was there before: nobody can have moved it.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::change::{Action, Holder};
use crate::error::FlipError;

const GUARD: u64 = 1 << 32;
const TURNING: u64 = 1 << 63;
const ANONYMOUS_MASK: u64 = GUARD - 1;
const GUARDS_MASK: u64 = !(ANONYMOUS_MASK | TURNING);
/// Most holders of a kind.
const HOLDERS_MAX: u64 = i32::MAX as u64;

impl Holder {
    const fn unit(self) -> u64 {
        match self {
            Self::Anonymous => 1,
            Self::Guard => GUARD,
        }
    }
}

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    word: u64,
}

impl Count {
    const fn anonymous(self) -> u64 {
        self.word & ANONYMOUS_MASK
    }

    const fn guards(self) -> u64 {
        (self.word & GUARDS_MASK) >> 32
    }

    const fn of(self, holder: Holder) -> u64 {
        match holder {
            Holder::Anonymous => self.anonymous(),
            Holder::Guard => self.guards(),
        }
    }

    const fn is_turning(self) -> bool {
        self.word & TURNING != 0
    }

    /// Holders of both kinds.
    pub const fn sum(self) -> u64 {
        self.anonymous() + self.guards()
    }

    /// Whether only the holder of the engine's lock may move it.
    const fn is_owned(self) -> bool {
        self.is_turning() || self.sum() == 0
    }

    /// Holders of both kinds, as far as 31 bits go.
    pub fn as_i32(self) -> i32 {
        i32::try_from(self.sum()).unwrap_or(i32::MAX)
    }
}

/// An atomic word; models have their own.
pub trait Word {
    /// Acquire.
    fn load(&self) -> u64;
    /// Release.
    fn store(&self, value: u64);
    /// Whether it was `current`; may fail for nothing.
    fn compare_exchange(&self, current: u64, new: u64) -> bool;
    /// Adds, wrapping.
    fn add(&self, value: u64);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn compare_exchange(&self, current: u64, new: u64) -> bool {
        self.compare_exchange_weak(current, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    #[inline]
    fn add(&self, value: u64) {
        self.fetch_add(value, Ordering::AcqRel);
    }
}

/// The word.
#[derive(Debug)]
pub struct Holders<W = AtomicU64>(W);

/// What has been done to a key's count on behalf of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The step asks for what is already so.
    Unchanged,
    /// The step is over: it needs no code to be written.
    Moved,
    /// The word is owned, and was this before: whether code must be written shows when all steps on it are applied.
    Owned(Count),
}

impl Holders {
    pub(crate) const fn new(anonymous: bool) -> Self {
        Self(AtomicU64::new(anonymous as u64))
    }
}

impl<W: Word> Holders<W> {
    /// A count of so many anonymous holders around a word of a model, which holds that number.
    pub const fn of_word(word: W) -> Self {
        Self(word)
    }

    /// What it says now. Acquire.
    pub fn load(&self) -> Count {
        Count {
            word: self.0.load(),
        }
    }

    fn swap(&self, seen: Count, word: u64) -> bool {
        self.0.compare_exchange(seen.word, word)
    }

    /// Adds a holder to a key that has one already, without the lock. `Ok(false)`: the key is off, or turning.
    pub fn try_add(&self, holder: Holder, key: &'static str) -> Result<bool, FlipError> {
        loop {
            let seen = self.load();
            if seen.is_owned() {
                return Ok(false);
            }
            refuse_overflow(seen, holder, key)?;
            if self.swap(seen, seen.word + holder.unit()) {
                return Ok(true);
            }
        }
    }

    /// Removes a holder that is not the last one, without the lock. `Ok(false)`: it may be the last, or the key is turning.
    pub fn try_remove(&self, holder: Holder, key: &'static str) -> Result<bool, FlipError> {
        loop {
            let seen = self.load();
            if seen.is_turning() {
                // The first holder has not come back from taking its count: this cannot be its giving back.
                return Err(FlipError::EnableInProgress { key });
            }
            refuse_underflow(seen, holder, key)?;
            if seen.sum() == 1 {
                return Ok(false);
            }
            if self.swap(seen, seen.word - holder.unit()) {
                return Ok(true);
            }
        }
    }

    /// Applies a step. The engine's lock is held.
    pub fn apply(&self, action: Action, key: &'static str) -> Result<Applied, FlipError> {
        loop {
            let seen = self.load();
            let word = match action {
                Action::Add(holder) => {
                    refuse_overflow(seen, holder, key)?;
                    added(seen, holder)
                }
                Action::Remove(holder) => {
                    refuse_underflow(seen, holder, key)?;
                    removed(seen, holder)
                }
                Action::Enable if seen.sum() == 0 => added(seen, Holder::Anonymous),
                Action::Enable => seen.word,
                Action::Disable => match (seen.anonymous(), seen.guards()) {
                    (0, 0) => seen.word,
                    (1, 0) => removed(seen, Holder::Anonymous),
                    (_, 0) => {
                        let count = seen.as_i32();
                        return Err(FlipError::StillCounted { key, count });
                    }
                    (_, guards) => return Err(FlipError::StillHeld { key, guards }),
                },
            };
            let becomes = Count { word };
            if !(seen.is_owned() || becomes.is_owned()) {
                if word == seen.word {
                    return Ok(Applied::Unchanged);
                }
                if self.swap(seen, word) {
                    return Ok(Applied::Moved);
                }
            } else if word == seen.word && !seen.is_turning() {
                return Ok(Applied::Unchanged);
            } else if seen.is_owned() {
                self.0.store(word);
                return Ok(Applied::Owned(seen));
            } else if self.swap(seen, word) {
                return Ok(Applied::Owned(seen));
            }
        }
    }

    /// Whether a step only adds a holder to a key that is on. Nobody can turn the key off while the engine's lock is held, so
    /// this can wait for the end of a transaction, where it cannot fail any more.
    pub fn can_wait(&self, action: Action, key: &'static str) -> Result<Option<Holder>, FlipError> {
        let seen = self.load();
        match action {
            Action::Add(holder) if !seen.is_owned() => {
                refuse_overflow(seen, holder, key)?;
                Ok(Some(holder))
            }
            _ => Ok(None),
        }
    }

    /// Adds a holder to a key that is on. The field has room for as many beyond the maximum as there can be threads.
    pub fn add(&self, holder: Holder) {
        self.0.add(holder.unit());
    }

    /// Takes back what was done since the word became owned.
    pub fn restore(&self, before: Count) {
        self.0.store(before.word);
    }

    /// All steps are applied and every site follows: others may move the word again, if the key is on.
    pub fn settle(&self) {
        let seen = self.load();
        if seen.is_turning() {
            self.0.store(seen.word & !TURNING);
        }
    }
}

/// The word with a holder more: owned if it was, or is the first.
const fn added(seen: Count, holder: Holder) -> u64 {
    let more = seen.word + holder.unit();
    if seen.is_owned() {
        more | TURNING
    } else {
        more
    }
}

/// The word with a holder less: nothing if it was the last.
const fn removed(seen: Count, holder: Holder) -> u64 {
    if seen.sum() == 1 {
        0
    } else {
        seen.word - holder.unit()
    }
}

fn refuse_overflow(seen: Count, holder: Holder, key: &'static str) -> Result<(), FlipError> {
    if seen.of(holder) >= HOLDERS_MAX {
        return Err(FlipError::Overflow { key });
    }
    Ok(())
}

fn refuse_underflow(seen: Count, holder: Holder, key: &'static str) -> Result<(), FlipError> {
    match (seen.of(holder), seen.guards()) {
        (0, 0) => Err(FlipError::Underflow { key }),
        (0, guards) => Err(FlipError::StillHeld { key, guards }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remove(holders: &Holders, holder: Holder) -> Result<bool, FlipError> {
        holders.try_remove(holder, "k")
    }

    #[test]
    fn a_guards_count_is_its_own() {
        let holders = Holders(AtomicU64::new(GUARD + 1));
        assert_eq!(remove(&holders, Holder::Anonymous), Ok(true));
        assert_eq!(
            remove(&holders, Holder::Anonymous),
            Err(FlipError::StillHeld {
                key: "k",
                guards: 1
            })
        );
        assert_eq!(
            remove(&holders, Holder::Guard),
            Ok(false),
            "the last one needs the lock"
        );
        assert_eq!(holders.load().sum(), 1);
    }

    #[test]
    fn the_last_count_of_each_kind_is_refused() {
        let full = Holders(AtomicU64::new(HOLDERS_MAX));
        let refused = Err(FlipError::Overflow { key: "k" });
        assert_eq!(full.try_add(Holder::Anonymous, "k"), refused);
        assert_eq!(full.try_add(Holder::Guard, "k"), Ok(true));
        assert_eq!(full.load().as_i32(), i32::MAX);
        let full = Holders(AtomicU64::new(HOLDERS_MAX * GUARD));
        assert_eq!(full.try_add(Holder::Guard, "k"), refused);
        assert_eq!(full.load().guards(), HOLDERS_MAX);
    }
}

/// Counting and the three steps of a flip under the model checker. The count is the real code, over the checker's word; the
/// text is a stub of one site, whose barrier is that its form is read and written in one order for all.
#[cfg(all(test, feature = "model"))]
mod model {
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    impl Word for AtomicU64 {
        fn load(&self) -> u64 {
            self.load(Acquire)
        }

        fn store(&self, value: u64) {
            self.store(value, Release);
        }

        fn compare_exchange(&self, current: u64, new: u64) -> bool {
            self.compare_exchange(current, new, AcqRel, Acquire).is_ok()
        }

        fn add(&self, value: u64) {
            self.fetch_add(value, AcqRel);
        }
    }

    struct Board {
        lock: Mutex<()>,
        holders: Holders<AtomicU64>,
        state: AtomicBool,
        /// The form of the one site, whose bias is off.
        is_cheap: AtomicBool,
    }

    impl Board {
        fn new(anonymous: bool) -> Arc<Self> {
            Arc::new(Self {
                lock: Mutex::new(()),
                holders: Holders(AtomicU64::new(anonymous as u64)),
                state: AtomicBool::new(anonymous),
                is_cheap: AtomicBool::new(!anonymous),
            })
        }

        fn evaluate(&self) -> bool {
            !self.is_cheap.load(SeqCst) && self.state.load(Acquire)
        }

        fn flip(&self, action: Action) -> Result<(), FlipError> {
            let _engine = self.lock.lock();
            let Applied::Owned(_) = self.holders.apply(action, "k")? else {
                return Ok(());
            };
            let target = self.holders.load().sum() > 0;
            if target {
                self.is_cheap.store(false, SeqCst);
            }
            self.state.store(target, Release);
            self.holders.settle();
            if !target {
                self.is_cheap.store(true, SeqCst);
            }
            Ok(())
        }

        fn add(&self, holder: Holder) -> Result<(), FlipError> {
            match self.holders.try_add(holder, "k")? {
                true => Ok(()),
                false => self.flip(Action::Add(holder)),
            }
        }

        fn remove(&self, holder: Holder) -> Result<(), FlipError> {
            match self.holders.try_remove(holder, "k")? {
                true => Ok(()),
                false => self.flip(Action::Remove(holder)),
            }
        }
    }

    #[test]
    fn model_whoever_holds_a_key_finds_it_on() {
        loom::model(|| {
            let board = Board::new(false);
            let threads = [Holder::Guard, Holder::Guard].map(|holder| {
                let board = Arc::clone(&board);
                thread::spawn(move || {
                    board.add(holder).expect("nothing hinders");
                    assert!(board.evaluate(), "held, but off");
                    board.remove(holder).expect("its count is its own");
                })
            });
            for thread in threads {
                thread.join().expect("no panic");
            }
            assert!(!board.evaluate());
            assert_eq!(board.holders.load(), Count { word: 0 });
        });
    }

    #[test]
    fn model_nobody_takes_a_guards_count() {
        loom::model(|| {
            let board = Board::new(false);
            let thief = {
                let board = Arc::clone(&board);
                thread::spawn(move || {
                    let taken = board.flip(Action::Disable).is_ok();
                    let removed = board.remove(Holder::Anonymous).is_ok();
                    assert!(!removed, "there never was an anonymous holder");
                    taken
                })
            };
            board.add(Holder::Guard).expect("nothing hinders");
            assert!(board.evaluate(), "held, but off");
            thief.join().expect("no panic");
            assert!(board.evaluate(), "held, but off");
            board.remove(Holder::Guard).expect("its count is its own");
            assert!(!board.evaluate());
        });
    }

    #[test]
    fn model_an_operators_switch_meets_a_holder() {
        loom::model(|| {
            let board = Board::new(true);
            let operator = {
                let board = Arc::clone(&board);
                thread::spawn(move || board.flip(Action::Disable).is_ok())
            };
            board.add(Holder::Guard).expect("nothing hinders");
            assert!(board.evaluate(), "held, but off");
            let was_disabled = operator.join().expect("no panic");
            assert!(board.evaluate(), "held, but off");
            board.remove(Holder::Guard).expect("its count is its own");
            assert_eq!(board.evaluate(), !was_disabled);
        });
    }
}
