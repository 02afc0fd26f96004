//! The engine: one lock, one order of steps, for every mode and every platform. The steps themselves are `flipping.rs`.
//!
//! # Sites
//!
//! A branch site is compiled as `jmp slow`, where `slow` loads the key and decides. That is always right, so a site
//! needs no initialisation, and stays as it is until the application asks (`patch`, `set_mode`): until then nothing here
//! writes code, tries to, or asks the kernel for a barrier, and a flip is step 2 below alone. Each site has a *bias*, the value of the key for which it falls through. While the key is
//! certainly at the bias, the jump may be replaced by an instruction that does nothing (the *cheap form*). One
//! invariant carries everything:
//!
//! > **I.** If any thread can still execute a site's cheap form, the key's `state` is the site's bias.
//!
//! # A flip from `old` to `new`, under the engine's lock
//!
//! 1. **Release**: every site with bias `old` becomes a jump, and a barrier makes every thread execute it.
//! 2. **Effect**: `state = new` (Release). Until here all sites of the key decided `old`; from here on they decide `new`.
//! 3. **Settle**: every site with bias `new` may take its cheap form. Nothing depends on when, so this step can wait
//!    (deferred disable), fail (a sandbox) or be left out (soft mode).
//!
//! # Why this is right
//!
//! * *Before 2, no thread decides `new`*: a cheap form with bias `new` does not exist (I), and a jump loads `old`.
//! * *After 2, no thread newly decides `old`*: cheap forms with bias `old` were all replaced in step 1. The barrier
//!   (`membarrier` with `SYNC_CORE`) returns when each thread of the process that was running has executed a
//!   serialising instruction since the replacement, and a thread that was not running executes one before it returns
//!   to user mode. A serialising instruction discards what was prefetched, so from then on each thread fetches the
//!   jump. It loads `state`: the store of step 2 happens-before whatever the flipping call's return synchronises with,
//!   so coherence forbids the old value there. Step 2 is therefore the point of linearisation of the flip.
//! * *Step 3 needs no barrier*: a thread that still executes the jump loads `state` and decides `new`, as the cheap
//!   form does. The cheap form is written after the store of step 2 (a fence stands between them), so a thread that fetches it is past the flip: invariant I holds.
//! * *A failed step 1 changes nothing*: jumps that were already written decide `old` as before. If only the barrier
//!   failed, the engine owes one, and no later flip passes step 1 before a barrier has succeeded.
//!
//! What a site promises to the code behind it: a branch that was decided by the load happens-after the flip (Acquire
//! against the Release of step 2). A branch decided by the cheap form orders nothing, it is not even a load.
//!
//! # Several keys
//!
//! A transaction runs step 1 for all its keys with one barrier, then step 2 key after key, then step 3. Each key is
//! linearisable; two keys of one transaction do not change at the same instant.
//!
//! # Lock
//!
//! The lock is held during the whole flip, and across `fork` (see the `fork` module), so a child never inherits a
//! half-written site or a lock whose owner does not exist. Nothing under the lock executes a site.

use core::sync::atomic::Ordering;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotient_key::engine::{Settle, counts, register, state};
use quotient_key::{FlipError, Key, Mode, Receipt};

use crate::attach::attach;
use crate::deferred::Deferred;
use crate::error::ModeError;
use crate::flipping::Host;
use crate::step::{Flip, Show};
use crate::text::Text;

/// The one engine of this program or library.
pub(crate) static ENGINE: Mutex<Engine> = Mutex::new(Engine::new());

/// What times of settling are counted from.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn lock() -> MutexGuard<'static, Engine> {
    attach();
    // Nothing under the lock panics on purpose. Should it happen, the invariant still holds after each single step, so
    // the state behind a poisoned lock is usable.
    ENGINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other tests away from the engine, whose mode is one for the process.
#[cfg(all(test, patching))]
pub(crate) fn for_test() -> MutexGuard<'static, ()> {
    static USER: Mutex<()> = Mutex::new(());
    USER.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Engine {
    pub(crate) text: Text,
    pub(crate) deferred: Deferred,
    pub(crate) barriers: u64,
    /// Keys that are settled at once: kept, because fresh memory would be most of a small flip's instructions.
    now: Vec<&'static Key>,
}

impl Engine {
    const fn new() -> Self {
        Self {
            text: Text::new(),
            deferred: Deferred::new(),
            barriers: 0,
            now: Vec::new(),
        }
    }

    fn settle_keys(&mut self, keys: &[&'static Key], receipt: &mut Receipt) {
        if keys.is_empty() {
            return;
        }
        self.text.settle(keys, receipt);
        for key in keys {
            if counts(key).rate_limit_ns.load(Ordering::Relaxed) != 0 {
                let now_ns = ns_since_epoch();
                counts(key).settled_at_ns.store(now_ns, Ordering::Relaxed);
            }
        }
    }

    /// Settles every key whose delay is over; returns the time to the next one.
    pub(crate) fn settle_due(&mut self) -> Option<Duration> {
        let due = self.deferred.take_due();
        let mut receipt = Receipt::default();
        self.settle_keys(&due, &mut receipt);
        let flips: Vec<Flip> = due
            .iter()
            .map(|&key| Flip {
                key,
                target: state(key),
                settle: Settle::Now,
            })
            .collect();
        self.account(&flips, &receipt);
        self.deferred.next_delay()
    }

    pub(crate) fn set_mode(&mut self, mode: Mode) -> Result<Receipt, ModeError> {
        // Going soft needs nothing of the process, so nothing is tried: under some filters asking for a barrier is death.
        if mode == Mode::Soft {
            self.text.look();
        } else {
            self.text.prepare();
        }
        let mut receipt = Receipt::default();
        let result = self.text.set_mode(mode, &mut receipt);
        self.deferred.forget_all();
        self.barriers += receipt.barriers;
        result.map(|()| receipt)
    }

    pub(crate) fn patch_all(&mut self) -> Mode {
        self.text.prepare();
        let mut receipt = Receipt::default();
        self.text.patch_all(&mut receipt);
        self.deferred.forget_all();
        self.barriers += receipt.barriers;
        self.text.mode()
    }

    pub(crate) fn patch(&mut self, keys: &[&'static Key]) -> Mode {
        self.text.prepare();
        for &key in keys {
            register(key);
            self.deferred.forget(key);
        }
        let mut receipt = Receipt::default();
        self.settle_keys(keys, &mut receipt);
        self.barriers += receipt.barriers;
        self.text.mode()
    }
}

impl Host for Engine {
    type Key = &'static Key;

    fn look(&mut self) {
        self.text.look();
    }

    fn release(
        &mut self,
        flips: &[Flip],
        show: Show,
        receipt: &mut Receipt,
    ) -> Result<(), FlipError> {
        self.text.release(flips, show, receipt)
    }

    fn settle(&mut self, flips: &[Flip], receipt: &mut Receipt) {
        let mut now = core::mem::take(&mut self.now);
        now.clear();
        for flip in flips {
            self.deferred.forget(flip.key);
            let delay = match flip.settle {
                Settle::After(delay) => delay,
                Settle::Now | Settle::Relaxed => delay_of_rate_limit(flip.key),
            };
            if delay.is_zero() || !self.text.can_patch() || !self.deferred.add(flip.key, delay) {
                now.push(flip.key);
            }
        }
        self.settle_keys(&now, receipt);
        self.now = now;
    }

    fn account(&mut self, flips: &[Flip], receipt: &Receipt) {
        self.barriers += receipt.barriers;
        for flip in flips {
            counts(flip.key)
                .barriers
                .fetch_add(receipt.barriers, Ordering::Relaxed);
        }
    }
}

fn ns_since_epoch() -> u64 {
    u64::try_from(EPOCH.elapsed().as_nanos())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// How long the key's rate limit puts off the next settling.
fn delay_of_rate_limit(key: &Key) -> Duration {
    let interval_ns = counts(key).rate_limit_ns.load(Ordering::Relaxed);
    let settled_at_ns = counts(key).settled_at_ns.load(Ordering::Relaxed);
    if interval_ns == 0 || settled_at_ns == 0 {
        return Duration::ZERO;
    }
    let allowed_at_ns = settled_at_ns.saturating_add(interval_ns);
    Duration::from_nanos(allowed_at_ns.saturating_sub(ns_since_epoch()))
}
