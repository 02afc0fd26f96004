//! Flips that meet are made together: whoever has the lock takes all that wait.
//!
//! # Protocol
//!
//! A caller that finds the engine's lock free flips. Otherwise it leaves its request in the list of those that wait and
//! then waits for the lock. The holder of the lock takes the list before it gives the lock back, and so does every waiter
//! that gets it and finds its request not done. So a request is done by the holder that takes it, or by its caller: a caller
//! that has the lock finds its request either done or in the list, because requests are taken and done under the lock.
//!
//! Requests taken together are applied to the counts one after the other, in the order of the list. That is their order in
//! time: each takes effect at an instant between its call and its return. Then the keys whose value has changed in the sum
//! are flipped together, with the barriers of one flip; a key that was turned off and on again is not touched.
//!
//! If some site cannot be written, the keys that would have flipped get their counts back, and their requests are made again
//! one by one, so that each gets the error that it would have got alone.
//!
//! A request of several changes (a transaction) is made alone: it happens as a whole or not at all.
//!
//! # Locks
//!
//! The list's lock is a leaf: taken with the engine's held, or without, for a push or a take.

use core::ops::DerefMut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quotient_key::engine::{Applied, Count, Settle};
use quotient_key::{FlipError, Key, Receipt};

use crate::engine::{ENGINE, Engine};
use crate::flipping::{Host, Switch};
use crate::step::{Flip, Step};

/// Where calls meet: this process, or a model of one.
pub(crate) trait Place {
    type Key: Switch;
    type Host: Host<Key = Self::Key>;
    /// Holds the lock.
    type Lock<'a>: DerefMut<Target = Self::Host>
    where
        Self: 'a;
    /// Leads to a request, for its caller and for the list.
    type Ticket;

    fn try_lock(&self) -> Option<Self::Lock<'_>>;

    fn lock(&self) -> Self::Lock<'_>;

    /// Puts a request into the list of those that wait.
    fn leave(&self, step: Step<Self::Key>, settle: Settle) -> Self::Ticket;

    /// Takes the list.
    fn take_waiting(&self) -> Vec<Self::Ticket>;

    /// What a request asks for.
    fn wanted(ticket: &Self::Ticket) -> (Step<Self::Key>, Settle);

    /// Done under the lock, once.
    fn finish(ticket: &Self::Ticket, result: Outcome);

    /// The result, if it is there. Asked under the lock.
    fn take_result(ticket: &Self::Ticket) -> Option<Outcome>;
}

/// What became of a request.
pub(crate) type Outcome = Result<Receipt, FlipError>;

/// One change that somebody waits for.
pub(crate) struct Request {
    step: Step,
    settle: Settle,
    /// Written once, under the engine's lock.
    result: Mutex<Option<Outcome>>,
}

static WAITING: Mutex<Vec<Arc<Request>>> = Mutex::new(Vec::new());

/// Held across a fork, after the engine's lock.
pub(crate) fn lock_waiting() -> MutexGuard<'static, Vec<Arc<Request>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine and the list of this program or library.
pub(crate) struct Process;

impl Place for Process {
    type Key = &'static Key;
    type Host = Engine;
    type Lock<'a> = MutexGuard<'static, Engine>;
    type Ticket = Arc<Request>;

    fn try_lock(&self) -> Option<Self::Lock<'_>> {
        // Behind a poisoned lock the engine is usable, but `lock` is the one to say so.
        ENGINE.try_lock().ok()
    }

    fn lock(&self) -> Self::Lock<'_> {
        crate::engine::lock()
    }

    fn leave(&self, step: Step, settle: Settle) -> Self::Ticket {
        let request = Arc::new(Request {
            step,
            settle,
            result: Mutex::new(None),
        });
        lock_waiting().push(Arc::clone(&request));
        request
    }

    fn take_waiting(&self) -> Vec<Self::Ticket> {
        core::mem::take(&mut *lock_waiting())
    }

    fn wanted(ticket: &Self::Ticket) -> (Step, Settle) {
        (ticket.step, ticket.settle)
    }

    fn finish(ticket: &Self::Ticket, result: Outcome) {
        *ticket.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    fn take_result(ticket: &Self::Ticket) -> Option<Outcome> {
        let mut result = ticket.result.lock().unwrap_or_else(PoisonError::into_inner);
        result.take()
    }
}

/// Makes one change, together with those of others who want one now.
pub(crate) fn flip<P: Place>(place: &P, step: Step<P::Key>, settle: Settle) -> Outcome {
    if let Some(mut engine) = place.try_lock() {
        let result = engine.transact(&[step], settle);
        serve_waiting(place, &mut *engine);
        return result;
    }
    let ticket = place.leave(step, settle);
    let mut engine = place.lock();
    if let Some(result) = P::take_result(&ticket) {
        return result;
    }
    serve_waiting(place, &mut *engine);
    // It was in the list, unless a holder of the lock took it and panicked: then it is made now.
    P::take_result(&ticket).unwrap_or_else(|| engine.transact(&[step], settle))
}

/// Makes all changes that somebody waits for.
fn serve_waiting<P: Place>(place: &P, engine: &mut P::Host) {
    let waiting = place.take_waiting();
    if !waiting.is_empty() {
        let steps: Vec<(Step<P::Key>, Settle)> = waiting.iter().map(P::wanted).collect();
        for (ticket, result) in waiting.iter().zip(together(engine, &steps)) {
            P::finish(ticket, result);
        }
    }
}

/// A key whose word is owned by this round.
struct Owned<K> {
    key: K,
    before: Count,
    settle: Settle,
    /// Those that took part since the word became owned.
    requests: Vec<usize>,
}

impl<K: Switch> Owned<K> {
    fn target(&self) -> bool {
        self.key.holders().load().sum() > 0
    }

    fn is_flip(&self) -> bool {
        self.target() != self.key.value()
    }
}

/// Makes the changes in their order, with the barriers of one flip; the results are in the same order.
pub(crate) fn together<H: Host>(engine: &mut H, steps: &[(Step<H::Key>, Settle)]) -> Vec<Outcome> {
    engine.look();
    let (mut results, owned) = apply(steps);
    let (flipped, unchanged): (Vec<_>, Vec<_>) = owned.into_iter().partition(Owned::is_flip);
    for owned in &unchanged {
        owned.key.holders().settle();
    }
    let flips: Vec<Flip<H::Key>> = flipped
        .iter()
        .map(|owned| Flip {
            key: owned.key,
            target: owned.target(),
            settle: owned.settle,
        })
        .collect();
    match engine.flip_together(&flips) {
        Ok(receipt) => {
            for owned in &flipped {
                for &number in &owned.requests {
                    results[number] = Ok(flipped_one(Receipt::default()));
                }
            }
            // What it cost is told once.
            if let Some(&first) = flipped.first().and_then(|owned| owned.requests.first()) {
                results[first] = Ok(flipped_one(receipt));
            }
        }
        Err(_) => {
            for owned in &flipped {
                owned.key.holders().restore(owned.before);
            }
            let mut again: Vec<usize> = flipped
                .into_iter()
                .flat_map(|owned| owned.requests)
                .collect();
            again.sort_unstable();
            for number in again {
                let (step, settle) = steps[number];
                results[number] = engine.transact(&[step], settle);
            }
        }
    }
    results
}

/// Applies all changes to the counts: what became of each so far, and the keys that are owned now.
fn apply<K: Switch>(steps: &[(Step<K>, Settle)]) -> (Vec<Outcome>, Vec<Owned<K>>) {
    let mut results: Vec<Outcome> = Vec::with_capacity(steps.len());
    let mut owned: Vec<Owned<K>> = Vec::new();
    for (number, &(step, settle)) in steps.iter().enumerate() {
        step.key.enter();
        let applied = step.key.holders().apply(step.action, step.key.name());
        results.push(applied.clone().map(|_| Receipt::default()));
        let Ok(Applied::Owned(before)) = applied else {
            continue;
        };
        match owned.iter_mut().find(|known| known.key.is(step.key)) {
            Some(known) => {
                known.settle = settle;
                known.requests.push(number);
            }
            None => owned.push(Owned {
                key: step.key,
                before,
                settle,
                requests: vec![number],
            }),
        }
    }
    (results, owned)
}

const fn flipped_one(mut receipt: Receipt) -> Receipt {
    receipt.flipped = 1;
    receipt
}

#[cfg(all(test, patching))]
mod tests {
    use super::*;
    use crate::engine::lock;
    use crate::{Key, Mode, set_mode, static_branch_unlikely, static_key};

    static_key! {
        /// Flipped by threads that meet.
        static MET = [false; 6];
    }

    #[inline(never)]
    fn outcomes() -> [bool; 6] {
        [
            static_branch_unlikely!(MET[0]),
            static_branch_unlikely!(MET[1]),
            static_branch_unlikely!(MET[2]),
            static_branch_unlikely!(MET[3]),
            static_branch_unlikely!(MET[4]),
            static_branch_unlikely!(MET[5]),
        ]
    }

    /// Lets one thread for each of `flips` come while the lock is held, then gives it back; their results.
    fn meet<T: Send>(flips: Vec<Box<dyn FnOnce() -> T + Send>>) -> Vec<T> {
        let expected = flips.len();
        let engine = lock();
        std::thread::scope(|scope| {
            let threads: Vec<_> = flips.into_iter().map(|flip| scope.spawn(flip)).collect();
            while lock_waiting().len() < expected {
                std::thread::yield_now();
            }
            drop(engine);
            let results = threads.into_iter().map(|thread| thread.join());
            results.map(|result| result.expect("no panic")).collect()
        })
    }

    #[test]
    fn calls_that_meet_share_a_barrier() {
        let _user = crate::engine::for_test();
        if set_mode(Mode::Biased).is_err() {
            return;
        }
        assert_eq!(outcomes(), [false; 6]);
        let enables = (0..6).map(|index| {
            let key: &'static Key = &MET[index];
            Box::new(move || key.enable()) as Box<dyn FnOnce() -> Result<Receipt, FlipError> + Send>
        });
        let receipts = meet(enables.collect());
        let sum = |of: fn(&Receipt) -> u64| -> u64 {
            receipts
                .iter()
                .map(|receipt| of(receipt.as_ref().expect("nothing hinders")))
                .sum()
        };
        assert_eq!(
            (
                sum(|receipt| receipt.flipped as u64),
                sum(|receipt| receipt.barriers)
            ),
            (6, 1)
        );
        assert_eq!(outcomes(), [true; 6]);

        // Some hold the last key, some turn it off and on again; none of it needs any code to be written.
        let holds = (0..5).map(|_| {
            Box::new(|| {
                let off = MET[5].disable();
                let guard = MET[5].hold().expect("nothing hinders");
                (off.is_ok(), guard)
            }) as Box<dyn FnOnce() -> _ + Send>
        });
        let guards = meet(holds.collect());
        assert!(guards.iter().any(|(was_disabled, _)| *was_disabled));
        assert!(outcomes()[5] && MET[5].count() >= 5);
        drop(guards);
        crate::disable_transaction(&MET.each_ref().map(|key| &**key)).expect("nobody holds them");
        assert_eq!(outcomes(), [false; 6]);
    }

    #[test]
    fn together_is_as_one_after_the_other() {
        let _user = crate::engine::for_test();
        use quotient_key::engine::Action::{Add, Disable, Enable, Remove};
        static_key! {
            /// Flipped in one thread.
            static SINGLE = false;
        }
        use quotient_key::engine::Holder::{Anonymous, Guard};
        let single: &'static Key = &SINGLE;
        let step = |action| {
            (
                Step {
                    key: single,
                    action,
                },
                Settle::Now,
            )
        };
        let mut engine = lock();
        let mut run = |actions: &[quotient_key::engine::Action]| -> (Vec<bool>, i32, bool) {
            let steps: Vec<_> = actions.iter().map(|&action| step(action)).collect();
            let results = together(&mut *engine, &steps);
            (
                results.iter().map(Result::is_ok).collect(),
                SINGLE.count(),
                quotient_key::engine::state(&SINGLE),
            )
        };
        assert_eq!(run(&[Enable, Disable]), (vec![true, true], 0, false));
        assert_eq!(
            run(&[Remove(Anonymous), Add(Guard)]),
            (vec![false, true], 1, true)
        );
        assert_eq!(
            run(&[Disable, Remove(Anonymous)]),
            (vec![false, false], 1, true)
        );
        assert_eq!(
            run(&[Remove(Guard), Enable, Enable]),
            (vec![true, true, true], 1, true)
        );
        assert_eq!(
            run(&[Add(Anonymous), Disable, Add(Guard)]),
            (vec![true, false, true], 3, true)
        );
        let all_off = [Remove(Guard), Remove(Anonymous), Disable, Disable];
        assert_eq!(run(&all_off), (vec![true, true, true, true], 0, false));
        assert_eq!(SINGLE.try_inc(), Ok(false));
    }
}
