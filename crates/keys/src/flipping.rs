//! The steps of the engine, for any place where keys and sites live: this process (`engine.rs`), or a model of one.
//!
//! What is here is the order of things: what is done to counts, when sites are released, when the state changes, what is
//! taken back. The argument for it stands in `engine.rs`. The model checker runs this very code, and that of `combine.rs` and
//! of the count, with a stub for the text (`model.rs`).

use core::sync::atomic::Ordering;

use quotient_key::engine::{Action, Applied, Holder, Holders, Settle, Word, counts};
use quotient_key::{FlipError, Receipt};

use crate::step::{Flip, Show, Step};

/// A key, as the steps need it: something small that leads to one.
pub(crate) trait Switch: Copy {
    type Word: Word;

    /// Makes it known, once.
    fn enter(self);

    fn name(self) -> &'static str;

    /// The same for no two keys.
    fn address(self) -> usize;

    fn holders(&self) -> &Holders<Self::Word>;

    /// The value that branches load.
    fn value(self) -> bool;

    /// The point of effect of a flip.
    fn set_value(self, value: bool);

    /// Orders all stores before it ahead of all after it, for everybody.
    fn fence();

    /// Counts a completed flip.
    fn count_flip(self);

    /// Whether the other is the same key.
    fn is(self, other: Self) -> bool {
        self.address() == other.address()
    }
}

/// Where keys and sites live. Whoever has it exclusively has the engine's lock.
pub(crate) trait Host {
    type Key: Switch;

    /// Finds the sites, once.
    fn look(&mut self);

    /// Step 1, for all flips together.
    ///
    /// # Errors
    /// Sites keep deciding as before.
    fn release(
        &mut self,
        flips: &[Flip<Self::Key>],
        show: Show,
        receipt: &mut Receipt,
    ) -> Result<(), FlipError>;

    /// Step 3, now or later.
    fn settle(&mut self, flips: &[Flip<Self::Key>], receipt: &mut Receipt);

    /// Adds what the flips cost to the figures.
    fn account(&mut self, flips: &[Flip<Self::Key>], receipt: &Receipt);

    /// Makes all the steps or none.
    fn transact(
        &mut self,
        steps: &[Step<Self::Key>],
        settle: Settle,
    ) -> Result<Receipt, FlipError> {
        self.look();
        if let [step] = steps {
            return self.make(step, settle);
        }
        refuse_duplicates(steps)?;
        let mut reserved = Reserved::new();
        let result = reserved
            .reserve(steps, settle)
            .and_then(|()| self.flip_together(&reserved.flips));
        if result.is_ok() {
            for (key, holder) in reserved.late {
                key.holders().add(holder);
            }
        } else {
            for (step, applied) in reserved.applied {
                take_back(&step, applied);
            }
        }
        result
    }

    /// One step.
    fn make(&mut self, step: &Step<Self::Key>, settle: Settle) -> Result<Receipt, FlipError> {
        step.key.enter();
        let holders = step.key.holders();
        let Applied::Owned(before) = holders.apply(step.action, step.key.name())? else {
            return Ok(Receipt::default());
        };
        let flip = Flip {
            key: step.key,
            target: holders.load().sum() > 0,
            settle,
        };
        let result = self.flip_together(&[flip]);
        if result.is_err() {
            holders.restore(before);
        }
        result
    }

    /// The three steps, for keys whose counts are owned.
    fn flip_together(&mut self, flips: &[Flip<Self::Key>]) -> Result<Receipt, FlipError> {
        let mut receipt = Receipt::default();
        let is_relaxed = flips.iter().all(|flip| flip.settle == Settle::Relaxed);
        let show = if is_relaxed { Show::InTime } else { Show::Now };
        let released = self.release(flips, show, &mut receipt);
        if let Err(error) = released {
            self.account(flips, &receipt);
            return Err(error);
        }
        for flip in flips {
            flip.key.set_value(flip.target);
        }
        // Where stores may be reordered, no cheap form gets ahead of the state.
        Self::Key::fence();
        for flip in flips {
            flip.key.holders().settle();
        }
        self.settle(flips, &mut receipt);
        receipt.flipped = flips.len();
        for flip in flips {
            flip.key.count_flip();
        }
        self.account(flips, &receipt);
        Ok(receipt)
    }
}

/// What a transaction has done to the counts, and what it will do.
struct Reserved<K> {
    applied: Vec<(Step<K>, Applied)>,
    flips: Vec<Flip<K>>,
    /// Holders that are added at the end.
    late: Vec<(K, Holder)>,
}

impl<K: Switch> Reserved<K> {
    const fn new() -> Self {
        Self {
            applied: Vec::new(),
            flips: Vec::new(),
            late: Vec::new(),
        }
    }

    fn reserve(&mut self, steps: &[Step<K>], settle: Settle) -> Result<(), FlipError> {
        for &step in steps {
            step.key.enter();
            let holders = step.key.holders();
            if let Some(holder) = holders.can_wait(step.action, step.key.name())? {
                self.late.push((step.key, holder));
                continue;
            }
            let applied = holders.apply(step.action, step.key.name())?;
            self.applied.push((step, applied));
            if matches!(applied, Applied::Owned(_)) {
                self.flips.push(Flip {
                    key: step.key,
                    target: holders.load().sum() > 0,
                    settle,
                });
            }
        }
        Ok(())
    }
}

fn take_back<K: Switch>(step: &Step<K>, applied: Applied) {
    let holders = step.key.holders();
    match (applied, step.action) {
        (Applied::Owned(before), _) => holders.restore(before),
        (Applied::Moved, Action::Remove(holder)) => holders.add(holder),
        _ => {}
    }
}

fn refuse_duplicates<K: Switch>(steps: &[Step<K>]) -> Result<(), FlipError> {
    if steps.len() < 2 {
        return Ok(());
    }
    let mut keys: Vec<K> = steps.iter().map(|step| step.key).collect();
    keys.sort_unstable_by_key(|key| key.address());
    match keys.windows(2).find(|pair| pair[0].is(pair[1])) {
        Some(pair) => Err(FlipError::DuplicateKey {
            key: pair[0].name(),
        }),
        None => Ok(()),
    }
}

impl Switch for &'static quotient_key::Key {
    type Word = core::sync::atomic::AtomicU64;

    fn enter(self) {
        quotient_key::engine::register(self);
    }

    fn name(self) -> &'static str {
        quotient_key::Key::name(self)
    }

    fn address(self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    fn holders(&self) -> &Holders {
        &counts(self).holders
    }

    fn value(self) -> bool {
        quotient_key::engine::state(self)
    }

    fn set_value(self, value: bool) {
        // SAFETY: Only the steps of a flip call this, under the engine's lock; they bring the branches to the value, too.
        unsafe { quotient_key::engine::store_state(self, value) };
    }

    fn fence() {
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    fn count_flip(self) {
        counts(self).flips.fetch_add(1, Ordering::Relaxed);
    }
}
