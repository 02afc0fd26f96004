//! What a thread and its askers share, and every step of the protocol in the crate's header. No `unsafe`, no system calls
//! but the futex; the model checker runs exactly this code.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

use crate::error::{DetachError, PauseError};
use crate::handle::PauseState;
use crate::sync::{
    AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence, handler_fence, heavy_barrier,
    light_barrier, wait, wake_all,
};
use crate::system::Attributes;

/// Nobody wants the thread to stop.
const RUN: u32 = 0;
/// Somebody does; the signal is on its way.
const WANTED: u32 = 1;
/// It stands, in its handler.
const PAUSED: u32 = 2;
/// The states' part of the word; the rest is the sequence number.
const STATE: u32 = 3;
/// One step of the sequence number.
const SEQUENCE_STEP: u32 = 4;

/// Numbers a thread and its process for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Process id at the time of entering.
    pub(crate) process: i32,
    /// The kernel's thread id.
    pub(crate) thread: i32,
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Verdicts {
    /// The thread is inside `enter`, so its id is its own.
    pub(crate) alive: bool,
    /// Number of the last region that was detached; 0 for none.
    detached: u64,
}

/// The shared part of one thread.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) identity: Identity,
    /// The thread's priority when it entered, if that could be read.
    pub(crate) before: Option<Attributes>,
    /// Whether askers of a detachment issue a membarrier.
    asymmetric: bool,
    current: AtomicU64,
    attention: AtomicU64,
    target: AtomicU64,
    word: AtomicU32,
    shield: AtomicU32,
    /// Depth of the guards that ask politely, and the region that they are of.
    plea: AtomicU32,
    plea_of: AtomicU64,
    /// Number of the last region whose pleas somebody overrode.
    insisted: AtomicU64,
    /// 1 once the thread has left. As `alive` of the verdicts, for who only reads.
    left: AtomicU32,
    verdicts: Mutex<Verdicts>,
}

impl Slot {
    pub(crate) fn new(identity: Identity, before: Option<Attributes>, asymmetric: bool) -> Self {
        Self {
            identity,
            before,
            asymmetric,
            current: AtomicU64::new(0),
            attention: AtomicU64::new(0),
            target: AtomicU64::new(0),
            word: AtomicU32::new(RUN),
            shield: AtomicU32::new(0),
            plea: AtomicU32::new(0),
            plea_of: AtomicU64::new(0),
            insisted: AtomicU64::new(0),
            left: AtomicU32::new(0),
            verdicts: Mutex::new(Verdicts {
                alive: true,
                detached: 0,
            }),
        }
    }

    /// The nice value when the thread entered; 0, the usual one, if that could not be read.
    pub(crate) fn base_nice(&self) -> i32 {
        self.before.map_or(0, |before| before.nice)
    }

    // ---- the thread's side

    /// B1. Releases what the thread did before to who sees the number.
    #[inline]
    pub(crate) fn begin(&self, number: u64) {
        self.current.store(number, Ordering::Release);
        handler_fence();
    }

    /// E1 and E2; whether the region was detached.
    #[inline]
    pub(crate) fn end(&self, number: u64) -> bool {
        handler_fence();
        self.current.store(0, Ordering::Release);
        light_barrier(self.asymmetric);
        self.attention.load(Ordering::Relaxed) == number && self.end_asked(number)
    }

    /// Somebody asked for something: waits for the verdict, and withdraws a pause that missed.
    #[cold]
    fn end_asked(&self, number: u64) -> bool {
        if !self.is_of_this_process() {
            // A child of `fork`: the lock may have been held by a thread that does not exist here.
            return false;
        }
        let verdicts = self.lock();
        self.withdraw(number);
        verdicts.detached == number
    }

    /// The thread leaves `enter`: afterwards nobody uses its id any more.
    pub(crate) fn leave(&self) {
        if self.is_of_this_process() {
            let mut verdicts = self.lock();
            verdicts.alive = false;
            self.left.store(1, Ordering::Release);
        }
    }

    /// The handler, or the end of the last shield: stands still if that is what is wanted of the region in progress.
    /// Async-signal-safe. Waits as long as the asker wants.
    pub(crate) fn stand_if_wanted(&self) {
        let number = self.current.load(Ordering::Relaxed);
        if number == 0 || self.shield.load(Ordering::Relaxed) != 0 || self.pleads(number) {
            return;
        }
        let wanted = self.word.load(Ordering::Acquire);
        if wanted & STATE != WANTED || self.target.load(Ordering::Relaxed) != number {
            return;
        }
        let paused = wanted - WANTED + PAUSED;
        let stands = self
            .word
            .compare_exchange(wanted, paused, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if !stands {
            return;
        }
        wake_all(&self.word);
        while self.word.load(Ordering::Acquire) == paused {
            wait(&self.word, paused, None);
        }
    }

    /// The thread does not want to be stopped until [`Slot::lower_shield`]. Saturates at 2^32 - 1 guards, and stays up then.
    #[inline]
    pub(crate) fn raise_shield(&self) {
        let depth = self.shield.load(Ordering::Relaxed);
        self.shield
            .store(depth.saturating_add(1), Ordering::Relaxed);
        handler_fence();
    }

    /// The thread asks not to be stopped until [`Slot::lower_plea`], the end of its region, or somebody's insisting. Returns the region. Saturates
    /// as [`Slot::raise_shield`].
    pub(crate) fn raise_plea(&self) -> u64 {
        let number = self.current.load(Ordering::Relaxed);
        // Depth zero comes first: a signal between the two stores finds no plea that is nobody's.
        if self.plea_of.load(Ordering::Relaxed) != number {
            self.plea.store(0, Ordering::Relaxed);
            handler_fence();
            self.plea_of.store(number, Ordering::Relaxed);
        }
        let depth = self.plea.load(Ordering::Relaxed);
        self.plea.store(depth.saturating_add(1), Ordering::Relaxed);
        handler_fence();
        number
    }

    /// The end of a guard of region `number`; stands still at once if that was wanted meanwhile.
    pub(crate) fn lower_plea(&self, number: u64) {
        handler_fence();
        let depth = self.plea.load(Ordering::Relaxed);
        if self.plea_of.load(Ordering::Relaxed) != number || depth == u32::MAX {
            // Of a region that is over, or one of too many.
            return;
        }
        self.plea.store(depth.saturating_sub(1), Ordering::Relaxed);
        self.stand_after_guard();
    }

    /// Whether the region in progress asks not to be stopped, and nobody has overridden that.
    pub(crate) fn pleads(&self, number: u64) -> bool {
        self.plea_of.load(Ordering::Relaxed) == number
            && self.plea.load(Ordering::Relaxed) != 0
            && self.insisted.load(Ordering::Acquire) != number
    }

    /// The end of a guard; stands still at once if that was wanted meanwhile.
    #[inline]
    pub(crate) fn lower_shield(&self) {
        handler_fence();
        let depth = self.shield.load(Ordering::Relaxed);
        if depth != u32::MAX {
            self.shield
                .store(depth.saturating_sub(1), Ordering::Relaxed);
        }
        self.stand_after_guard();
    }

    #[inline]
    fn stand_after_guard(&self) {
        handler_fence();
        if self.word.load(Ordering::Relaxed) & STATE == WANTED {
            self.stand_if_asked_here();
        }
    }

    #[cold]
    fn stand_if_asked_here(&self) {
        if self.is_of_this_process() {
            self.stand_if_wanted();
        }
    }

    // ---- the askers' side

    /// The region in progress, 0 for none. A hint, unless it is followed by D1 to D3.
    #[inline]
    pub(crate) fn current(&self) -> u64 {
        self.current.load(Ordering::Acquire)
    }

    /// The lock, for a system call by the thread's id, or `None` once it has left.
    pub(crate) fn lock_alive(&self) -> Option<MutexGuard<'_, Verdicts>> {
        let verdicts = self.lock();
        verdicts.alive.then_some(verdicts)
    }

    /// Whether the thread keeps itself from being stopped just now. A hint.
    pub(crate) fn is_shielded(&self) -> bool {
        self.shield.load(Ordering::Relaxed) != 0
    }

    /// As [`Slot::lock_alive`], or `None` if somebody has the lock.
    pub(crate) fn try_lock_alive(&self) -> Option<MutexGuard<'_, Verdicts>> {
        self.try_lock().filter(|verdicts| verdicts.alive)
    }

    /// Whether the thread has left. What was read by its id before this says no was its own.
    pub(crate) fn has_left(&self) -> bool {
        // The reading before must not move behind the look.
        fence(Ordering::SeqCst);
        self.left.load(Ordering::SeqCst) != 0
    }

    /// D1 to D3. The region is caught for as long as the result is held.
    pub(crate) fn catch(&self, number: u64) -> Result<Caught<'_>, DetachError> {
        if !self.is_of_this_process() {
            return Err(DetachError::OtherProcess);
        }
        let verdicts = self.try_lock().ok_or(DetachError::Busy)?;
        if verdicts.detached == number {
            return Err(DetachError::AlreadyDetached);
        }
        // Spares the barrier when it has ended for certain.
        if !verdicts.alive || self.current() != number {
            return Err(DetachError::Ended);
        }
        self.attention.fetch_max(number, Ordering::Relaxed);
        heavy_barrier(self.asymmetric);
        if self.current() != number {
            return Err(DetachError::Ended);
        }
        Ok(Caught {
            slot: self,
            verdicts,
            number,
        })
    }

    /// Asks for a pause; `send` makes the thread look. Returns the pause's sequence number.
    pub(crate) fn ask(
        &self,
        number: u64,
        send: impl FnOnce() -> Result<(), PauseError>,
    ) -> Result<u32, PauseError> {
        if !self.is_of_this_process() {
            return Err(PauseError::OtherProcess);
        }
        let verdicts = self.try_lock().ok_or(PauseError::Busy)?;
        if !verdicts.alive || self.current() != number {
            return Err(PauseError::Ended);
        }
        let known = self.word.load(Ordering::Relaxed);
        if known & STATE != RUN && self.target.load(Ordering::Relaxed) == number {
            return Err(PauseError::AlreadyPaused);
        }
        // What is left of a request that missed goes first, so that no handler takes it for this one.
        self.step(known, RUN);
        let sequence = (known & !STATE).wrapping_add(SEQUENCE_STEP);
        self.target.store(number, Ordering::Relaxed);
        self.word.store(sequence | WANTED, Ordering::Release);
        self.attention.fetch_max(number, Ordering::Relaxed);
        let sent = send();
        if sent.is_err() {
            // An unrelated signal may have stopped it meanwhile: as if it had been resumed.
            self.resume(sequence);
        }
        drop(verdicts);
        sent.map(|()| sequence)
    }

    /// Pleas of region `number` count no more; `send` makes the thread look again. Without effect once the pause of that sequence number is over
    /// or stands.
    pub(crate) fn insist(
        &self,
        sequence: u32,
        number: u64,
        send: impl FnOnce() -> Result<(), PauseError>,
    ) -> Result<(), PauseError> {
        if !self.is_of_this_process() {
            return Err(PauseError::OtherProcess);
        }
        let verdicts = self.try_lock().ok_or(PauseError::Busy)?;
        if !verdicts.alive || self.standing(sequence, number) != PauseState::Asked {
            return Err(PauseError::Ended);
        }
        // Before the signal: whoever handles that sees it.
        self.insisted.store(number, Ordering::Release);
        let sent = send();
        drop(verdicts);
        sent
    }

    /// Ends the pause of that sequence number, whatever has come of it; whether the thread stood. Takes no lock.
    pub(crate) fn resume(&self, sequence: u32) -> bool {
        loop {
            let known = self.word.load(Ordering::Relaxed);
            if known & !STATE != sequence || known & STATE == RUN {
                return false;
            }
            if self.step(known, RUN) {
                if known & STATE == PAUSED {
                    wake_all(&self.word);
                    return true;
                }
                return false;
            }
        }
    }

    /// What has become of the pause of that sequence number.
    pub(crate) fn standing(&self, sequence: u32, number: u64) -> PauseState {
        let known = self.word.load(Ordering::Acquire);
        if known & !STATE != sequence {
            return PauseState::Missed;
        }
        match known & STATE {
            PAUSED => PauseState::Standing,
            WANTED if self.current() == number => PauseState::Asked,
            _ => PauseState::Missed,
        }
    }

    /// Sleeps until the pause of that sequence number is no longer only asked for, or for `timeout`. The end of a region
    /// that nobody's request reached does not wake: a hint only, as every timeout is.
    pub(crate) fn wait_while_asked(&self, sequence: u32, timeout: Duration) {
        wait(&self.word, sequence | WANTED, Some(timeout));
    }

    /// A pause of the region that did not come about before its end. The caller holds the lock.
    fn withdraw(&self, number: u64) {
        let known = self.word.load(Ordering::Relaxed);
        if known & STATE == WANTED && self.target.load(Ordering::Relaxed) == number {
            self.step(known, RUN);
            wake_all(&self.word);
        }
    }

    /// One step of the word's state; false if it is no longer `known`.
    fn step(&self, known: u32, state: u32) -> bool {
        self.word
            .compare_exchange(
                known,
                (known & !STATE) | state,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Verdicts> {
        // Nothing that can panic runs under the lock but the caller's code of a detachment, which leaves the verdicts whole.
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Verdicts>> {
        match self.verdicts.try_lock() {
            Ok(verdicts) => Some(verdicts),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn is_of_this_process(&self) -> bool {
        cfg!(loom) || self.identity.process == crate::system::process_id()
    }
}

/// A region that cannot end unseen.
#[derive(Debug)]
pub(crate) struct Caught<'a> {
    slot: &'a Slot,
    verdicts: MutexGuard<'a, Verdicts>,
    number: u64,
}

impl Caught<'_> {
    pub(crate) fn slot(&self) -> &Slot {
        self.slot
    }

    /// The verdict: detached.
    pub(crate) fn commit(mut self) {
        self.verdicts.detached = self.number;
    }
}

#[cfg(all(test, loom))]
#[path = "slot_model.rs"]
mod model;
