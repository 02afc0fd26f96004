//! The state word: every transition is one function here, with its orderings.
//!
//! ```text
//!  63       34 33           4 3            2               1       0
//! |   WAKES   |  REFERENCES  | JOIN_WAKER | JOIN_INTEREST | ABORT | COMPLETE |
//! ```
//! See the header of [`task`](super) for the protocol that these transitions make up.

use crate::primitives::{AtomicU64, Ordering};

/// The future is gone and the output is stored; `WAKES` means nothing from here on. Never cleared.
const COMPLETE: u64 = 1;
/// Somebody asked for cancellation. Never cleared; whoever set it also wakes the task.
const ABORT: u64 = 1 << 1;
/// A `JoinHandle` exists (before `COMPLETE`), or existed at `COMPLETE` and owns the output.
const JOIN_INTEREST: u64 = 1 << 2;
/// The join waker's slot is filled and belongs to whoever completes the task. Set and cleared by the handle only.
const JOIN_WAKER: u64 = 1 << 3;

/// Bits 4..34: counted references. The run token is not among them.
const REFERENCE_SHIFT: u32 = 4;
const REFERENCE: u64 = 1 << REFERENCE_SHIFT;
const REFERENCE_MASK: u64 = ((1 << 30) - 1) << REFERENCE_SHIFT;

/// Bits 34..64: wake-ups since the task was last idle. On top, so that a carry leaves the word.
const WAKE_SHIFT: u32 = 34;
const WAKE: u64 = 1 << WAKE_SHIFT;

/// Most references to one task before the process aborts. Unit: references; half the field's width, so that
/// threads racing past the check cannot overflow it. (4 GiB of wakers to a single task.)
const REFERENCES_MAX: u64 = 1 << 28;

/// Wake counts above this are cut back to it. Unit: wake-ups; origin: `WAKES_LIMIT + REFERENCES_MAX + threads` must
/// stay below 2^30 (see [`State::cut_wakes`]). Tiny under loom, to bring the cut within the model's reach.
const WAKES_LIMIT: u64 = if cfg!(loom) { 2 } else { 1 << 28 };

/// One reading of the state word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Snapshot(u64);

/// How many wake-ups a poll has seen before it began. Always at least 1 and below `WAKES_LIMIT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wakes(u64);

impl Snapshot {
    #[inline]
    pub(super) fn is_complete(self) -> bool {
        self.0 & COMPLETE != 0
    }

    #[inline]
    pub(super) fn is_aborted(self) -> bool {
        self.0 & ABORT != 0
    }

    #[inline]
    pub(super) fn has_join_interest(self) -> bool {
        self.0 & JOIN_INTEREST != 0
    }

    #[inline]
    pub(super) fn has_join_waker(self) -> bool {
        self.0 & JOIN_WAKER != 0
    }

    #[inline]
    pub(super) fn wakes(self) -> Wakes {
        Wakes(self.0 >> WAKE_SHIFT)
    }

    #[inline]
    fn references(self) -> u64 {
        (self.0 & REFERENCE_MASK) >> REFERENCE_SHIFT
    }

    /// Whether a run token exists.
    #[inline]
    fn has_token(self) -> bool {
        !self.is_complete() && self.wakes().0 != 0
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Snapshot")
            .field("wakes", &self.wakes().0)
            .field("references", &self.references())
            .field("complete", &self.is_complete())
            .field("aborted", &self.is_aborted())
            .field("join_interest", &self.has_join_interest())
            .field("join_waker", &self.has_join_waker())
            .finish()
    }
}

/// What a dropped reference leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Released {
    /// Others still keep the memory.
    Kept,
    /// The task is complete and nobody else knows it: free the memory.
    Free,
    /// The task was idle and nobody else knows it, so nothing can ever wake it. The caller now holds the token of an
    /// aborted task.
    Orphaned,
}

/// What a wake-up that consumes its reference must do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Woken {
    /// The caller now holds the run token: schedule it.
    Schedule,
    /// Nothing: a token exists, or the task is complete and others keep its memory.
    Nothing,
    /// The task is complete and this was the last reference: free the memory.
    Free,
}

/// What became of a task whose poll was pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AfterPoll {
    /// Idle; the token is gone and the memory may be gone too.
    Idle,
    /// Woken since the poll began; the caller keeps the token.
    Woken,
    /// As [`Released::Orphaned`].
    Orphaned,
}

/// The state word of a task.
pub(super) struct State(AtomicU64);

impl State {
    /// A task that is queued (one token), with a join handle and one more reference.
    pub(super) fn spawned() -> Self {
        Self(AtomicU64::new(WAKE + 2 * REFERENCE + JOIN_INTEREST))
    }

    /// A task that never was, with a join handle only, its output stored.
    pub(super) fn completed() -> Self {
        Self(AtomicU64::new(COMPLETE + REFERENCE + JOIN_INTEREST))
    }

    /// Acquire: seeing `COMPLETE` shows the output; seeing a wake-up shows what its waker did before.
    #[inline]
    pub(super) fn load(&self) -> Snapshot {
        Snapshot(self.0.load(Ordering::Acquire))
    }

    // --- wake-ups -------------------------------------------------------------------------------------------------

    /// Wakes without giving up the caller's reference. True: the caller now holds the run token and must schedule it.
    ///
    /// Release: the next poll, which loads the word with Acquire, sees what the waker did before. Acquire: a new
    /// token's holder may touch what the last one left.
    #[inline]
    pub(super) fn wake_by_ref(&self) -> bool {
        let before = Snapshot(self.0.fetch_add(WAKE, Ordering::AcqRel));
        if before.is_complete() {
            return false;
        }
        if before.wakes().0 >= WAKES_LIMIT {
            self.cut_wakes();
        }
        before.wakes().0 == 0
    }

    /// Wakes and gives up the caller's reference in one step. Orderings as [`wake_by_ref`](Self::wake_by_ref), and
    /// those of [`release`](Self::release).
    ///
    /// Does not cut the wake count: the memory may be gone after this step.
    #[inline]
    pub(super) fn wake_by_value(&self) -> Woken {
        let before = Snapshot(self.0.fetch_add(WAKE - REFERENCE, Ordering::AcqRel));
        debug_assert!(before.references() >= 1, "{before:?}");
        if before.is_complete() {
            if before.references() == 1 {
                Woken::Free
            } else {
                Woken::Nothing
            }
        } else if before.wakes().0 == 0 {
            Woken::Schedule
        } else {
            Woken::Nothing
        }
    }

    /// Cuts a wake count above the limit back to it. The caller holds a reference.
    ///
    /// Loses no wake-up: the only use of the count is the comparison with what the current poll has seen, and that is
    /// below the limit, so that "more than seen" stays true. Bounds the count: a wake-up by value moves one from
    /// `REFERENCES` to `WAKES`; everything else that adds to either cuts afterwards. Hence `WAKES + REFERENCES` never
    /// exceeds `WAKES_LIMIT + REFERENCES_MAX + threads`, which is below 2^30.
    ///
    /// Relaxed: a read-modify-write carries on the release sequences of the wake-ups before it.
    #[cold]
    fn cut_wakes(&self) {
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                let now = Snapshot(word);
                let above = now.wakes().0.saturating_sub(WAKES_LIMIT);
                (above > 0 && !now.is_complete()).then(|| word - above * WAKE)
            });
    }

    // --- the run token --------------------------------------------------------------------------------------------

    /// The token's holder is about to poll. The wake-ups counted here are answered by that poll.
    ///
    /// Acquire: all of them happen before the poll (each is a Release read-modify-write, so that the one read here
    /// ends the release sequences of all the others).
    #[inline]
    pub(super) fn begin(&self) -> Snapshot {
        let now = self.load();
        debug_assert!(now.has_token(), "{now:?}");
        if now.wakes().0 >= WAKES_LIMIT {
            self.begin_saturated()
        } else {
            now
        }
    }

    /// [`begin`](Self::begin) at a full wake count: starts it again at 1, so that this poll too can tell new wake-ups
    /// from old ones.
    #[cold]
    fn begin_saturated(&self) -> Snapshot {
        let set_one = |word: u64| (word & (WAKE - 1)) | WAKE;
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            match self.0.compare_exchange_weak(
                word,
                set_one(word),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(before) => return Snapshot(set_one(before)),
                Err(actual) => word = actual,
            }
        }
    }

    /// The poll that began with `seen` wake-ups is pending: gives the token up unless more wake-ups came.
    ///
    /// Release: the next token's holder sees what this one did. Acquire: an orphan's last references are gone.
    #[inline]
    pub(super) fn idle(&self, seen: Wakes) -> AfterPoll {
        let before = Snapshot(self.0.fetch_sub(seen.0 * WAKE, Ordering::AcqRel));
        debug_assert!(
            before.has_token() && before.wakes().0 >= seen.0,
            "{before:?}"
        );
        if before.wakes() != seen {
            AfterPoll::Woken
        } else if before.references() == 0 {
            self.adopt();
            AfterPoll::Orphaned
        } else {
            AfterPoll::Idle
        }
    }

    /// Makes the token of an idle task that nobody else knows. The caller has exclusive access.
    fn adopt(&self) {
        self.0.fetch_or(WAKE | ABORT, Ordering::Relaxed);
    }

    /// The future is gone and the output stored: turns the token into a counted reference. Returns the word before.
    ///
    /// Release: the handle that sees `COMPLETE` sees the output. Acquire: the join waker stored before is visible.
    #[inline]
    pub(super) fn complete(&self) -> Snapshot {
        let before = Snapshot(self.0.fetch_add(COMPLETE + REFERENCE, Ordering::AcqRel));
        debug_assert!(before.has_token(), "{before:?}");
        debug_assert!(
            before.has_join_interest() || !before.has_join_waker(),
            "{before:?}"
        );
        before
    }

    // --- references -----------------------------------------------------------------------------------------------

    /// One more reference; the caller holds one, or the token.
    ///
    /// Relaxed: a reference comes from a reference, and however that one got here, it was ordered on the way.
    #[inline]
    pub(super) fn retain(&self) {
        let before = Snapshot(self.0.fetch_add(REFERENCE, Ordering::Relaxed));
        if before.references() >= REFERENCES_MAX {
            // As `Arc` does: nothing sensible is left to do, and going on would end in use after free.
            std::process::abort();
        }
        if before.wakes().0 > WAKES_LIMIT {
            self.cut_wakes();
        }
    }

    /// One reference less.
    ///
    /// Release: the last owner's clean-up comes after everything done through this reference; Acquire: for that owner.
    #[inline]
    pub(super) fn release(&self) -> Released {
        let now = self.load();
        if now.references() == 1 && now.is_complete() {
            // Nobody else holds anything, hence nobody can change the word: spare the read-modify-write.
            return Released::Free;
        }
        let before = Snapshot(self.0.fetch_sub(REFERENCE, Ordering::AcqRel));
        debug_assert!(before.references() >= 1, "{before:?}");
        if before.references() > 1 || before.has_token() {
            Released::Kept
        } else if before.is_complete() {
            Released::Free
        } else {
            self.adopt();
            Released::Orphaned
        }
    }

    // --- abort ----------------------------------------------------------------------------------------------------

    /// Asks for cancellation. True: the caller was the first to ask, in time, and must wake the task.
    #[inline]
    pub(super) fn request_abort(&self) -> bool {
        let before = Snapshot(self.0.fetch_or(ABORT, Ordering::AcqRel));
        !before.is_complete() && !before.is_aborted()
    }

    // --- the join handle ------------------------------------------------------------------------------------------

    /// The handle has filled the join waker's slot. False: the task completed before; the slot stays the handle's.
    #[inline]
    pub(super) fn offer_join_waker(&self) -> bool {
        !Snapshot(self.0.fetch_or(JOIN_WAKER, Ordering::AcqRel)).is_complete()
    }

    /// The handle wants the slot back. False: the task completed before; the slot belongs to whoever completed it.
    #[inline]
    pub(super) fn retract_join_waker(&self) -> bool {
        !Snapshot(self.0.fetch_and(!JOIN_WAKER, Ordering::AcqRel)).is_complete()
    }

    /// The handle goes away and the slot is empty: gives up interest and reference in one step if the task is not
    /// complete and others keep the memory. False: nothing changed.
    #[inline]
    pub(super) fn try_detach(&self, now: Snapshot) -> bool {
        if now.is_complete() || now.has_join_waker() || (now.references() == 1 && !now.has_token())
        {
            return false;
        }
        let detached = now.0 - JOIN_INTEREST - REFERENCE;
        self.0
            .compare_exchange(now.0, detached, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// The handle goes away: gives up its interest and takes the slot back. Returns the word before: if the task was
    /// not complete, a filled slot is the handle's again; if it was, the output is.
    #[inline]
    pub(super) fn drop_join_interest(&self) -> Snapshot {
        Snapshot(
            self.0
                .fetch_and(!(JOIN_INTEREST | JOIN_WAKER), Ordering::AcqRel),
        )
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A queued task with so many wake-ups and one reference.
    fn queued(wakes: u64) -> State {
        State(AtomicU64::new(wakes * WAKE + REFERENCE))
    }

    #[test]
    fn wake_counts_stay_at_the_limit() {
        let state = queued(WAKES_LIMIT - 1);
        for _ in 0..4 {
            assert!(!state.wake_by_ref());
        }
        assert_eq!(state.load().wakes(), Wakes(WAKES_LIMIT));
        assert_eq!(state.load().references(), 1);
    }

    #[test]
    fn a_poll_below_the_limit_sees_wake_ups_that_were_cut() {
        let state = queued(WAKES_LIMIT - 1);
        let start = state.begin();
        for _ in 0..4 {
            state.wake_by_ref();
        }
        assert_eq!(state.idle(start.wakes()), AfterPoll::Woken);
        assert_eq!(state.load().wakes(), Wakes(1));
    }

    #[test]
    fn a_poll_at_the_limit_starts_the_count_again() {
        let state = queued(WAKES_LIMIT);
        let start = state.begin();
        assert_eq!((start.wakes(), start.references()), (Wakes(1), 1));
        assert!(!state.wake_by_ref());
        assert_eq!(state.idle(start.wakes()), AfterPoll::Woken);
        assert_eq!(state.idle(state.begin().wakes()), AfterPoll::Idle);
        assert!(state.wake_by_ref(), "the next wake-up makes the token");
    }

    #[test]
    fn wakes_by_value_are_cut_by_the_next_clone() {
        let state = queued(WAKES_LIMIT);
        for _ in 0..5 {
            state.retain();
        }
        for _ in 0..5 {
            assert_eq!(state.wake_by_value(), Woken::Nothing);
        }
        assert_eq!(state.load().wakes(), Wakes(WAKES_LIMIT + 5));
        state.retain();
        assert_eq!(
            (state.load().wakes(), state.load().references()),
            (Wakes(WAKES_LIMIT), 2)
        );
    }

    #[test]
    fn fields_do_not_overlap() {
        let flags = COMPLETE | ABORT | JOIN_INTEREST | JOIN_WAKER;
        assert_eq!(flags, REFERENCE - 1);
        assert_eq!(flags & REFERENCE_MASK, 0);
        assert_eq!(REFERENCE_MASK + REFERENCE, WAKE);
        const { assert!(WAKES_LIMIT + REFERENCES_MAX < u64::MAX / WAKE) };
    }

    #[test]
    fn wake_ups_after_completion_may_wrap() {
        let state = State(AtomicU64::new(
            (u64::MAX / WAKE) * WAKE + COMPLETE + REFERENCE,
        ));
        assert!(!state.wake_by_ref());
        let now = state.load();
        assert!(now.is_complete() && now.references() == 1 && now.wakes() == Wakes(0));
        assert_eq!(state.release(), Released::Free);
    }
}
