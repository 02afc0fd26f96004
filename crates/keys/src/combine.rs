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

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use quotient_key::engine::{Settle, counts, state};
use quotient_key::{FlipError, Receipt};

use crate::engine::{ENGINE, Engine};
use crate::step::{Flip, Step};

/// One change that somebody waits for.
pub(crate) struct Request {
    step: Step,
    settle: Settle,
    /// Written once, under the engine's lock.
    result: Mutex<Option<Result<Receipt, FlipError>>>,
}

static WAITING: Mutex<Vec<Arc<Request>>> = Mutex::new(Vec::new());

/// Held across a fork, after the engine's lock.
pub(crate) fn lock_waiting() -> MutexGuard<'static, Vec<Arc<Request>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes one change, together with those of others who want one now.
pub(crate) fn flip(step: Step, settle: Settle) -> Result<Receipt, FlipError> {
    match ENGINE.try_lock() {
        Ok(mut engine) => {
            let result = engine.transact(&[step], settle);
            serve_waiting(&mut engine);
            return result;
        }
        Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => {}
    }
    let request = Arc::new(Request {
        step,
        settle,
        result: Mutex::new(None),
    });
    lock_waiting().push(Arc::clone(&request));
    let mut engine = crate::engine::lock();
    if let Some(result) = request.take_result() {
        return result;
    }
    serve_waiting(&mut engine);
    // It was in the list, unless a holder of the lock took it and panicked: then it is made now.
    request
        .take_result()
        .unwrap_or_else(|| engine.transact(&[step], settle))
}

impl Request {
    fn take_result(&self) -> Option<Result<Receipt, FlipError>> {
        self.result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn finish(&self, result: Result<Receipt, FlipError>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }
}

/// Makes all changes that somebody waits for.
fn serve_waiting(engine: &mut Engine) {
    let waiting = core::mem::take(&mut *lock_waiting());
    if !waiting.is_empty() {
        let steps: Vec<(Step, Settle)> = waiting
            .iter()
            .map(|request| (request.step, request.settle))
            .collect();
        for (request, result) in waiting.iter().zip(together(engine, &steps)) {
            request.finish(result);
        }
    }
}

/// A key whose word is owned by this round.
struct Owned {
    step: Step,
    before: quotient_key::engine::Count,
    settle: Settle,
    /// Those that took part since the word became owned.
    requests: Vec<usize>,
}

impl Owned {
    fn target(&self) -> bool {
        counts(self.step.key).holders.load().sum() > 0
    }

    fn is_flip(&self) -> bool {
        self.target() != state(self.step.key)
    }
}

/// Makes the changes in their order, with the barriers of one flip; the results are in the same order.
pub(crate) fn together(
    engine: &mut Engine,
    steps: &[(Step, Settle)],
) -> Vec<Result<Receipt, FlipError>> {
    use quotient_key::engine::Applied;

    engine.text.look();
    let mut results: Vec<Result<Receipt, FlipError>> = Vec::with_capacity(steps.len());
    let mut owned: Vec<Owned> = Vec::new();
    for (number, &(step, settle)) in steps.iter().enumerate() {
        quotient_key::engine::register(step.key);
        let applied = counts(step.key).holders.apply(step.action, step.key.name());
        results.push(applied.clone().map(|_| Receipt::default()));
        let Ok(Applied::Owned(before)) = applied else {
            continue;
        };
        let known = owned
            .iter_mut()
            .find(|known| core::ptr::eq(known.step.key, step.key));
        match known {
            Some(known) => {
                known.settle = settle;
                known.requests.push(number);
            }
            None => owned.push(Owned {
                step,
                before,
                settle,
                requests: vec![number],
            }),
        }
    }
    let (flipped, unchanged): (Vec<Owned>, Vec<Owned>) =
        owned.into_iter().partition(Owned::is_flip);
    for key in &unchanged {
        counts(key.step.key).holders.settle();
    }
    let flips: Vec<Flip> = flipped
        .iter()
        .map(|owned| Flip {
            key: owned.step.key,
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
                counts(owned.step.key).holders.restore(owned.before);
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
        let step = |action| {
            (
                Step {
                    key: &SINGLE,
                    action,
                },
                Settle::Now,
            )
        };
        let mut engine = lock();
        let mut run = |actions: &[quotient_key::engine::Action]| -> (Vec<bool>, i32, bool) {
            let steps: Vec<_> = actions.iter().map(|&action| step(action)).collect();
            let results = together(&mut engine, &steps);
            (
                results.iter().map(Result::is_ok).collect(),
                SINGLE.count(),
                state(&SINGLE),
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
