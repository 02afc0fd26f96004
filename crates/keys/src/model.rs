//! The engine under the model checker: the code of `flipping.rs`, `combine.rs` and the count of `quotient-key` itself, over the checker's
//! locks and words, with a stub for the text.
//!
//! A key of the stub has one site, whose bias is off. That the barrier shows a jump to everybody is that the form is
//! written and read in one order for all; a cheap form is shown to nobody in particular, as in the text (`settle` has no
//! barrier), so only the engine's own fence keeps it behind the state.

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;

use quotient_key::engine::{Action, Holder, Holders, Settle, Word};
use quotient_key::{FlipError, Receipt};

use crate::combine::{self, Outcome, Place};
use crate::flipping::{Host, Switch};
use crate::step::{Flip, Show, Step};

/// The checker's word.
struct ModelWord(AtomicU64);

impl Word for ModelWord {
    fn load(&self) -> u64 {
        self.0.load(Acquire)
    }

    fn store(&self, value: u64) {
        self.0.store(value, Release);
    }

    fn compare_exchange(&self, current: u64, new: u64) -> bool {
        let exchanged = self.0.compare_exchange(current, new, AcqRel, Acquire);
        exchanged.is_ok()
    }

    fn add(&self, value: u64) {
        self.0.fetch_add(value, AcqRel);
    }
}

/// What the stub's one errno is.
const STUCK: FlipError = FlipError::Unpatchable { errno: 5 };

/// A key and its site.
struct ModelKey {
    holders: Holders<ModelWord>,
    state: AtomicBool,
    is_cheap: AtomicBool,
    /// The site cannot be made a jump.
    is_stuck: bool,
}

impl ModelKey {
    fn new(anonymous: bool, is_stuck: bool) -> &'static Self {
        // A few words each interleaving, for as long as the test runs: steps are `Copy`, as those of statics are.
        Box::leak(Box::new(Self {
            holders: Holders::of_word(ModelWord(AtomicU64::new(u64::from(anonymous)))),
            state: AtomicBool::new(anonymous),
            is_cheap: AtomicBool::new(!anonymous),
            is_stuck,
        }))
    }

    /// What a thread at the site decides.
    fn evaluate(&self) -> bool {
        !self.is_cheap.load(SeqCst) && self.state.load(Acquire)
    }

    fn count(&self) -> i32 {
        self.holders.load().as_i32()
    }
}

impl Switch for &'static ModelKey {
    type Word = ModelWord;

    fn enter(self) {}

    fn name(self) -> &'static str {
        "k"
    }

    fn address(self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    fn holders(&self) -> &Holders<ModelWord> {
        &self.holders
    }

    fn value(self) -> bool {
        self.state.load(Acquire)
    }

    fn set_value(self, value: bool) {
        self.state.store(value, Release);
    }

    fn fence() {
        fence(SeqCst);
    }

    fn count_flip(self) {}
}

/// The text: rewrites what the keys know themselves.
struct Stub;

impl Host for Stub {
    type Key = &'static ModelKey;

    fn look(&mut self) {}

    fn release(
        &mut self,
        flips: &[Flip<Self::Key>],
        _show: Show,
        receipt: &mut Receipt,
    ) -> Result<(), FlipError> {
        for flip in flips.iter().filter(|flip| flip.target) {
            if flip.key.is_stuck {
                return Err(STUCK);
            }
            flip.key.is_cheap.store(false, SeqCst);
        }
        receipt.barriers += 1;
        Ok(())
    }

    fn settle(&mut self, flips: &[Flip<Self::Key>], _receipt: &mut Receipt) {
        for flip in flips.iter().filter(|flip| !flip.key.value()) {
            flip.key.is_cheap.store(true, Relaxed);
        }
    }

    fn account(&mut self, _flips: &[Flip<Self::Key>], _receipt: &Receipt) {}
}

struct Request {
    step: Step<&'static ModelKey>,
    settle: Settle,
    result: Mutex<Option<Outcome>>,
}

struct Model {
    engine: Mutex<Stub>,
    waiting: Mutex<Vec<Arc<Request>>>,
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            engine: Mutex::new(Stub),
            waiting: Mutex::new(Vec::new()),
        })
    }

    fn flip(&self, key: &'static ModelKey, action: Action) -> Outcome {
        combine::flip(self, Step { key, action }, Settle::Now)
    }

    /// As `Key::inc` and `Key::hold`.
    fn add(&self, key: &'static ModelKey, holder: Holder) -> Outcome {
        match key.holders.try_add(holder, "k")? {
            true => Ok(Receipt::default()),
            false => self.flip(key, Action::Add(holder)),
        }
    }

    /// As `Key::dec` and the drop of a guard.
    fn remove(&self, key: &'static ModelKey, holder: Holder) -> Outcome {
        match key.holders.try_remove(holder, "k")? {
            true => Ok(Receipt::default()),
            false => self.flip(key, Action::Remove(holder)),
        }
    }

    fn transact(&self, steps: &[(&'static ModelKey, Action)]) -> Outcome {
        let steps: Vec<_> = steps
            .iter()
            .map(|&(key, action)| Step { key, action })
            .collect();
        self.lock().transact(&steps, Settle::Now)
    }
}

impl Place for Model {
    type Key = &'static ModelKey;
    type Host = Stub;
    type Lock<'a> = MutexGuard<'a, Stub>;
    type Ticket = Arc<Request>;

    fn try_lock(&self) -> Option<Self::Lock<'_>> {
        self.engine.try_lock().ok()
    }

    fn lock(&self) -> Self::Lock<'_> {
        self.engine.lock().expect("no panic")
    }

    fn leave(&self, step: Step<Self::Key>, settle: Settle) -> Self::Ticket {
        let request = Arc::new(Request {
            step,
            settle,
            result: Mutex::new(None),
        });
        let mut waiting = self.waiting.lock().expect("no panic");
        waiting.push(Arc::clone(&request));
        request
    }

    fn take_waiting(&self) -> Vec<Self::Ticket> {
        core::mem::take(&mut *self.waiting.lock().expect("no panic"))
    }

    fn wanted(ticket: &Self::Ticket) -> (Step<Self::Key>, Settle) {
        (ticket.step, ticket.settle)
    }

    fn finish(ticket: &Self::Ticket, result: Outcome) {
        let before = ticket.result.lock().expect("no panic").replace(result);
        assert!(before.is_none(), "a request was done twice");
    }

    fn take_result(ticket: &Self::Ticket) -> Option<Outcome> {
        ticket.result.lock().expect("no panic").take()
    }
}

#[test]
fn model_whoever_holds_a_key_finds_it_on() {
    loom::model(|| {
        let (model, key) = (Model::new(), ModelKey::new(false, false));
        let holds = move |model: &Model| {
            model.add(key, Holder::Guard).expect("nothing hinders");
            assert!(key.evaluate(), "held, but off");
            model
                .remove(key, Holder::Guard)
                .expect("its count is its own");
        };
        let other = {
            let model = Arc::clone(&model);
            thread::spawn(move || holds(&model))
        };
        holds(&model);
        other.join().expect("no panic");
        assert!(!key.evaluate());
        assert_eq!((key.count(), key.value()), (0, false));
    });
}

#[test]
fn model_nobody_takes_a_guards_count() {
    loom::model(|| {
        let (model, key) = (Model::new(), ModelKey::new(false, false));
        let thief = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                let _ = model.flip(key, Action::Disable);
                let removed = model.remove(key, Holder::Anonymous).is_ok();
                assert!(!removed, "there never was an anonymous holder");
            })
        };
        model.add(key, Holder::Guard).expect("nothing hinders");
        assert!(key.evaluate(), "held, but off");
        thief.join().expect("no panic");
        assert!(key.evaluate(), "held, but off");
        model
            .remove(key, Holder::Guard)
            .expect("its count is its own");
        assert!(!key.evaluate());
    });
}

#[test]
fn model_an_operators_switch_meets_a_holder() {
    loom::model(|| {
        let (model, key) = (Model::new(), ModelKey::new(true, false));
        let operator = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.flip(key, Action::Disable).is_ok())
        };
        model.add(key, Holder::Guard).expect("nothing hinders");
        assert!(key.evaluate(), "held, but off");
        let was_disabled = operator.join().expect("no panic");
        assert!(key.evaluate(), "held, but off");
        model
            .remove(key, Holder::Guard)
            .expect("its count is its own");
        assert_eq!(key.evaluate(), !was_disabled);
    });
}

/// Whoever waits gets the result of his own request, whoever made it.
#[test]
fn model_calls_that_meet_each_get_their_own_result() {
    loom::model(|| {
        let model = Model::new();
        let (good, stuck) = (ModelKey::new(false, false), ModelKey::new(false, true));
        let others = [good, stuck].map(|key| {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                let result = model.flip(key, Action::Enable);
                assert_eq!(result.is_ok(), !key.is_stuck);
                assert_eq!(key.evaluate(), result.is_ok(), "a flip that is not told");
            })
        });
        // Holds the lock while they come, in some interleavings.
        drop(model.lock());
        for other in others {
            other.join().expect("no panic");
        }
        assert_eq!((good.count(), stuck.count()), (1, 0));
        assert_eq!((good.value(), stuck.value()), (true, false));
        let left = model.waiting.lock().expect("no panic").len();
        assert_eq!(left, 0, "a request was left behind");
    });
}

#[test]
fn model_a_transaction_that_fails_leaves_others_holders_alone() {
    loom::model(|| {
        let model = Model::new();
        let (shared, stuck) = (ModelKey::new(false, false), ModelKey::new(false, true));
        let holder = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                model.add(shared, Holder::Guard).expect("nothing hinders");
                assert!(shared.evaluate(), "held, but off");
            })
        };
        let enable = |key| (key, Action::Add(Holder::Anonymous));
        let result = model.transact(&[enable(shared), enable(stuck)]);
        assert_eq!(result, Err(STUCK));
        assert_eq!((stuck.count(), stuck.evaluate()), (0, false));
        holder.join().expect("no panic");
        assert_eq!((shared.count(), shared.evaluate()), (1, true));
    });
}

/// Invariant I: who can still execute the cheap form finds the state at the bias.
#[test]
fn model_no_cheap_form_gets_ahead_of_the_state() {
    loom::model(|| {
        let (model, key) = (Model::new(), ModelKey::new(true, false));
        let reader = thread::spawn(move || {
            if key.is_cheap.load(Relaxed) {
                fence(Acquire);
                assert!(!key.state.load(Relaxed), "cheap, and the state is on");
            }
        });
        model.flip(key, Action::Disable).expect("nothing hinders");
        reader.join().expect("no panic");
        assert!(!key.evaluate());
    });
}
