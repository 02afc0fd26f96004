//! The engine: one lock, one order of steps, for every mode and every platform.
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

use core::sync::atomic::{Ordering, fence};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::counting::{Applied, Holder};
use crate::deferred::Deferred;
use crate::error::{FlipError, ModeError};
use crate::key::Key;
use crate::mode::{Mode, Writes};
use crate::registry;
use crate::status::{EngineStatus, KeyStatus};
use crate::text::Text;

/// The one engine of this program or library.
pub(crate) static ENGINE: Mutex<Engine> = Mutex::new(Engine::new());

/// What times of settling are counted from.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn lock() -> MutexGuard<'static, Engine> {
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

/// One step of a [`transaction`].
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// As [`Key::inc`].
    Inc(&'static Key),
    /// As [`Key::dec`].
    Dec(&'static Key),
    /// As [`Key::enable`].
    Enable(&'static Key),
    /// As [`Key::disable`].
    Disable(&'static Key),
}

impl Change {
    /// The key that changes.
    pub const fn key(&self) -> &'static Key {
        match self {
            Self::Inc(key) | Self::Dec(key) | Self::Enable(key) | Self::Disable(key) => key,
        }
    }
}

/// What is to be done to a key's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Add(Holder),
    Remove(Holder),
    Enable,
    Disable,
}

/// A change as the engine sees it: of users' changes and of guards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) key: &'static Key,
    pub(crate) action: Action,
}

impl From<&Change> for Step {
    fn from(change: &Change) -> Self {
        let (key, action) = match *change {
            Change::Inc(key) => (key, Action::Add(Holder::Anonymous)),
            Change::Dec(key) => (key, Action::Remove(Holder::Anonymous)),
            Change::Enable(key) => (key, Action::Enable),
            Change::Disable(key) => (key, Action::Disable),
        };
        Self { key, action }
    }
}

/// What a flip cost. Calls from several threads that meet are made together: one of them is told what all of them cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// Keys that changed their value. 0: only counts changed, or nothing; or somebody else's change that was made together
    /// with this one took it back.
    pub flipped: usize,
    /// Sites rewritten, once for each change of form.
    pub sites: usize,
    /// Barriers (`membarrier` calls).
    pub barriers: u64,
    /// Calls of the code writer's system call, or stores if pages were made writable.
    pub writes: u64,
    /// Batches that were applied because the queue was full (mode `int3` only).
    pub overflow_flushes: u64,
    /// Sites patched singly because they could not be queued (mode `int3` only).
    pub single_steps: u64,
}

/// When step 3 happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settle {
    Now,
    After(Duration),
    /// As `Now`; and step 1 shows its work in time only.
    Relaxed,
}

/// When threads must have seen what step 1 wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Before step 2: that is the barrier.
    Now,
    /// When they next fetch the code anew, without a barrier. Invariant I does not hold until then, so a barrier is owed, which
    /// the next flip that needs one pays: a thread that still executes the cheap form decides the old value.
    InTime,
}

/// A change of value that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flip {
    pub(crate) key: &'static Key,
    pub(crate) target: bool,
    pub(crate) settle: Settle,
}

pub(crate) struct Engine {
    pub(crate) text: Text,
    pub(crate) deferred: Deferred,
    barriers: u64,
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

    /// Makes all the steps or none.
    pub(crate) fn transact(
        &mut self,
        steps: &[Step],
        settle: Settle,
    ) -> Result<Receipt, FlipError> {
        self.text.look();
        if let [step] = steps {
            return self.make(step, settle);
        }
        refuse_duplicates(steps)?;
        let mut reserved = Reserved::default();
        let result = self
            .reserve(steps, settle, &mut reserved)
            .and_then(|()| self.flip_together(&reserved.flips));
        if result.is_ok() {
            for (key, holder) in reserved.late {
                key.counts.holders.add(holder);
            }
        } else {
            for (step, applied) in reserved.applied {
                take_back(&step, applied);
            }
        }
        result
    }

    /// One step.
    fn make(&mut self, step: &Step, settle: Settle) -> Result<Receipt, FlipError> {
        registry::register(step.key);
        let holders = &step.key.counts.holders;
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

    fn reserve(
        &mut self,
        steps: &[Step],
        settle: Settle,
        reserved: &mut Reserved,
    ) -> Result<(), FlipError> {
        for &step in steps {
            registry::register(step.key);
            let holders = &step.key.counts.holders;
            if let Some(holder) = holders.can_wait(step.action, step.key.name())? {
                reserved.late.push((step.key, holder));
                continue;
            }
            let applied = holders.apply(step.action, step.key.name())?;
            reserved.applied.push((step, applied));
            if matches!(applied, Applied::Owned(_)) {
                reserved.flips.push(Flip {
                    key: step.key,
                    target: holders.load().sum() > 0,
                    settle,
                });
            }
        }
        Ok(())
    }

    /// The three steps, for keys whose counts are owned.
    pub(crate) fn flip_together(&mut self, flips: &[Flip]) -> Result<Receipt, FlipError> {
        let mut receipt = Receipt::default();
        let is_relaxed = flips.iter().all(|flip| flip.settle == Settle::Relaxed);
        let show = if is_relaxed { Show::InTime } else { Show::Now };
        let released = self.text.release(flips, show, &mut receipt);
        if let Err(error) = released {
            self.account(flips, &receipt);
            return Err(error);
        }
        for flip in flips {
            flip.key.store_state(flip.target);
        }
        // Where stores may be reordered, no cheap form gets ahead of the state.
        fence(Ordering::SeqCst);
        for flip in flips {
            flip.key.counts.holders.settle();
        }
        self.settle(flips, &mut receipt);
        receipt.flipped = flips.len();
        for flip in flips {
            flip.key.counts.flips.fetch_add(1, Ordering::Relaxed);
        }
        self.account(flips, &receipt);
        Ok(receipt)
    }

    /// Step 3, now or later, for the keys that changed.
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

    fn settle_keys(&mut self, keys: &[&'static Key], receipt: &mut Receipt) {
        if keys.is_empty() {
            return;
        }
        self.text.settle(keys, receipt);
        for key in keys {
            if key.counts.rate_limit_ns.load(Ordering::Relaxed) != 0 {
                let now_ns = ns_since_epoch();
                key.counts.settled_at_ns.store(now_ns, Ordering::Relaxed);
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
                target: key.state(),
                settle: Settle::Now,
            })
            .collect();
        self.account(&flips, &receipt);
        self.deferred.next_delay()
    }

    fn account(&mut self, flips: &[Flip], receipt: &Receipt) {
        self.barriers += receipt.barriers;
        for flip in flips {
            flip.key
                .counts
                .barriers
                .fetch_add(receipt.barriers, Ordering::Relaxed);
        }
    }

    fn set_mode(&mut self, mode: Mode) -> Result<Receipt, ModeError> {
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

    fn patch_all(&mut self) -> Mode {
        self.text.prepare();
        let mut receipt = Receipt::default();
        self.text.patch_all(&mut receipt);
        self.deferred.forget_all();
        self.barriers += receipt.barriers;
        self.text.mode()
    }

    fn patch(&mut self, keys: &[&'static Key]) -> Mode {
        self.text.prepare();
        for &key in keys {
            registry::register(key);
            self.deferred.forget(key);
        }
        let mut receipt = Receipt::default();
        self.settle_keys(keys, &mut receipt);
        self.barriers += receipt.barriers;
        self.text.mode()
    }
}

/// What a transaction has done to the counts, and what it will do.
#[derive(Default)]
struct Reserved {
    applied: Vec<(Step, Applied)>,
    flips: Vec<Flip>,
    /// Holders that are added at the end.
    late: Vec<(&'static Key, Holder)>,
}

fn take_back(step: &Step, applied: Applied) {
    let holders = &step.key.counts.holders;
    match (applied, step.action) {
        (Applied::Owned(before), _) => holders.restore(before),
        (Applied::Moved, Action::Remove(holder)) => holders.add(holder),
        _ => {}
    }
}

fn refuse_duplicates(steps: &[Step]) -> Result<(), FlipError> {
    if steps.len() < 2 {
        return Ok(());
    }
    let mut keys: Vec<&'static Key> = steps.iter().map(|step| step.key).collect();
    keys.sort_unstable_by_key(|&key| core::ptr::from_ref(key).addr());
    match keys.windows(2).find(|pair| core::ptr::eq(pair[0], pair[1])) {
        Some(pair) => Err(FlipError::DuplicateKey {
            key: pair[0].name(),
        }),
        None => Ok(()),
    }
}

fn ns_since_epoch() -> u64 {
    u64::try_from(EPOCH.elapsed().as_nanos())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// How long the key's rate limit puts off the next settling.
fn delay_of_rate_limit(key: &Key) -> Duration {
    let interval_ns = key.counts.rate_limit_ns.load(Ordering::Relaxed);
    let settled_at_ns = key.counts.settled_at_ns.load(Ordering::Relaxed);
    if interval_ns == 0 || settled_at_ns == 0 {
        return Duration::ZERO;
    }
    let allowed_at_ns = settled_at_ns.saturating_add(interval_ns);
    Duration::from_nanos(allowed_at_ns.saturating_sub(ns_since_epoch()))
}

/// Applies several changes together, with the barriers of one. All or none of them happen; see the crate's notes on
/// what that means for readers.
///
/// # Errors
/// [`FlipError::DuplicateKey`], or the first error that one of the changes would return on its own; no key changes.
///
/// # Complexity
/// Proportional to the sites of the keys that change their value.
pub fn transaction(changes: &[Change]) -> Result<Receipt, FlipError> {
    let steps: Vec<Step> = changes.iter().map(Step::from).collect();
    lock().transact(&steps, Settle::Now)
}

/// [`transaction`] that enables all of `keys`.
///
/// # Errors
/// As [`transaction`].
pub fn enable_transaction(keys: &[&'static Key]) -> Result<Receipt, FlipError> {
    transaction(
        &keys
            .iter()
            .map(|&key| Change::Enable(key))
            .collect::<Vec<_>>(),
    )
}

/// [`transaction`] that disables all of `keys`.
///
/// # Errors
/// As [`transaction`].
pub fn disable_transaction(keys: &[&'static Key]) -> Result<Receipt, FlipError> {
    transaction(
        &keys
            .iter()
            .map(|&key| Change::Disable(key))
            .collect::<Vec<_>>(),
    )
}

/// Lets this program's code be rewritten: brings every site of every key to its cheap form, in the mode that fits this
/// process, and returns that mode. Also undoes [`soften_all`].
///
/// For the application, once, in `main`: whether its code may change while it runs is its decision, so no library makes
/// this call for it. Without it every site stays the load and the branch that it was compiled to, flips write nothing but
/// the key's value, and [`status`] says [`SoftReason::NotAsked`](crate::SoftReason::NotAsked).
///
/// # Complexity
/// Linear in the number of sites; about 1 ms for 19,000. The first call of the process registers with the kernel; with
/// several threads running that takes some 10 ms, so call it before they start.
pub fn patch() -> Mode {
    lock().patch_all()
}

/// [`patch`] by its older name.
pub fn patch_all() -> Mode {
    patch()
}

/// As [`patch`] for the sites of some keys only, and without undoing [`soften_all`]; other keys' sites take their cheap form
/// at their next flip. Returns the mode in force.
///
/// # Complexity
/// Proportional to the sites of the keys.
pub fn patch_keys(keys: &[&'static Key]) -> Mode {
    lock().patch(keys)
}

/// Takes every site back to a jump and stops patching, so that keys can be flipped without any system call. For
/// programs that are about to sandbox themselves. [`patch_all`] or [`set_mode`] start patching again.
///
/// # Errors
/// [`ModeError::Flip`] if some site could not be rewritten: the mode is then unchanged.
pub fn soften_all() -> Result<(), ModeError> {
    set_mode(Mode::Soft).map(|_| ())
}

/// Puts `mode` in force: takes every site back to a jump in the old mode, then settles all of them in the new one.
///
/// # Errors
/// [`ModeError::Unavailable`] if this process cannot patch, [`ModeError::Flip`] if the sites could not be taken back;
/// the old mode stays in force.
pub fn set_mode(mode: Mode) -> Result<Receipt, ModeError> {
    lock().set_mode(mode)
}

/// Decides how many bytes a write covers from now on: see [`Writes`].
pub fn set_writes(writes: Writes) {
    lock().text.set_writes(writes);
}

/// Decides whether pages of code may be made writable *while they are executable*, for the length of a flip, where the
/// process's memory file cannot be had. Not unless this is called with `true`: meanwhile a stray write becomes code. If the
/// kernel refuses to take the permission back, [`EngineStatus::left_writable`] says so. To be called before [`patch`].
pub fn allow_writable_code(allowed: bool) {
    lock().text.allow_writable_code(allowed);
}

/// The figures of the engine.
pub fn status() -> EngineStatus {
    let mut engine = lock();
    engine.text.look();
    let totals = engine.text.totals();
    EngineStatus {
        mode: engine.text.mode(),
        default_mode: engine.text.default_mode(),
        mode_reason: engine.text.mode_reason(),
        soft_reason: engine.text.soft_reason(),
        writer: engine.text.writer(),
        keys: registry::keys().len(),
        sites: totals.sites,
        patched: totals.patched,
        foreign: totals.foreign,
        barriers: engine.barriers,
        traps: totals.traps,
        displaced: engine.text.displaced(),
        writes: engine.text.writes(),
        left_writable: engine.text.left_writable(),
    }
}

pub(crate) fn key_status(key: &'static Key) -> KeyStatus {
    let mut engine = lock();
    engine.text.look();
    let figures = engine.text.figures(key);
    KeyStatus {
        name: key.name(),
        enabled: key.state(),
        count: key.count(),
        sites: figures.sites,
        patched: figures.patched,
        foreign: figures.foreign,
        mode: engine.text.mode(),
        soft_reason: engine.text.soft_reason(),
        writer: engine.text.writer(),
        flips: key.counts.flips.load(Ordering::Relaxed),
        barriers: key.counts.barriers.load(Ordering::Relaxed),
        traps: figures.traps,
        settling_later: engine.deferred.contains(key),
    }
}
