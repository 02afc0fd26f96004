//! The gate between a foreign task and its group: who may let the inner future be polled, and who must be woken.
//!
//! # Sides
//! - **outer**: the foreign task, whose polls are the host's to order. One thread at a time (`&mut` of the wrap).
//! - **inner**: the wakers that the inner future was polled with. Any number, from any thread, at any time, for ever.
//! - **member**: the gate's task in the group. One at a time; it may be cancelled at any moment.
//!
//! # The state word
//!
//! | bit | meaning | set by | cleared by |
//! |---|---|---|---|
//! | `READY` | the inner future was woken since its last poll began, or was never polled | inner, outer (reopen) | outer, before it polls |
//! | `PASSED` | the member's turn came: the next outer poll may poll the inner future | member | outer, with `READY`, in one step |
//! | `ENDED` | there is no member, not yet or not any more: nothing orders the polls | at first; member's destructor | outer, before it spawns one |
//! | `CLOSED` | the wrap is gone: the member is to end, and nobody is woken any more | outer, at last | nobody |
//!
//! # Steps
//! - wake: (W1) `or READY`; it was set: done. (W2) `ENDED`: wake outer, else wake member.
//! - member: (M1) leave the waker in `member`; (M2) load; `READY` and not `PASSED`: `or PASSED`, wake outer.
//! - end: (E1) `or ENDED`; (E2) wake outer.
//! - outer, at last: (C1) `or CLOSED`; (C2) drop the waker in `outer`; (C3) cancel the member: if it waits for a wake-up, it ends
//!   here and now, else as soon as it is chosen or its poll is over.
//! - outer: (O1) leave the waker in `outer`; (O2) load; `ENDED` and `READY`: poll, or reopen; `PASSED`: poll; else pending.
//!   Poll means: (O3) `and-not READY, PASSED`, then the inner future.
//!
//! Both wakers lie behind locks; *wake outer* takes the waker out, *wake member* copies it (it is the same for a member's life).
//!
//! # Why no wake-up is lost
//! *Pending with nobody to wake it* would be an outer that saw neither `PASSED` nor `ENDED`-and-`READY` at O2, an inner that is
//! `READY`, and no wake-up to come. Take the wake that set `READY` (W1), later ones rely on it.
//! 1. It saw no `ENDED`, so it wakes the member. The member's next poll passes (M2) unless `PASSED` is set already; if there is no
//!    next poll, it is cancelled, and E2 comes. If it has not left its waker yet, its first M2 comes after W1 by the lock.
//! 2. It saw `ENDED`: it wakes outer itself.
//! 3. Each of these (M2, E1, W1) writes the word first and takes the outer waker then; O1 leaves the waker first and loads then. Of
//!    two sides that meet at the lock, the later one sees the other: either the waker is there to be woken, or O2 sees the bits.
//!
//! A waker that is gone from its place was taken to be woken: the poll that it brings leaves it there again. An outer poll that the
//! inner future did not ask for (a `select!`) sees no `PASSED` and answers what the inner future said last: pending. So a future
//! whose member is gone is polled only when it was woken, as before. O3 clears both bits before the inner future is polled: a
//! wake-up during that poll counts for the next.
//!
//! *After C1* no poll comes, whatever is written, and nothing is waited for: a pass that meets C1 makes a virtual CPU return to its
//! host once for nothing.
//!
//! *Reopen:* with `ENDED` seen there is no member, and none comes but by the outer itself: it clears `ENDED`, leaves `READY` set and
//! spawns a member, whose first poll passes. If that is refused, the member's destructor sets `ENDED` again.
//!
//! *Going ahead:* with `ENDED` seen the outer may poll the inner future at once, if its group may (`allowance`). That is the poll
//! of a gate whose member is gone: case 2 brings the next one.

use std::sync::Arc;
use std::task::{Wake, Waker};

use quotient_core::Nanos;

use crate::primitives::{AtomicU8, AtomicU64, Mutex, Ordering};

const READY: u8 = 1;
const PASSED: u8 = 2;
const ENDED: u8 = 4;
const CLOSED: u8 = 8;

/// What all sides share.
#[derive(Debug)]
pub(super) struct Gate {
    state: AtomicU8,
    /// What inner polls took that the member has not paid for inside its group yet. Unit: nanoseconds.
    debt: AtomicU64,
    outer: Mutex<Option<Waker>>,
    member: Mutex<Option<Waker>>,
}

/// What the outer poll is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Not yet: somebody will wake the outer task.
    Wait,
    /// Poll the inner future.
    Pass,
    /// The inner future was woken, or was never polled, and there is no member to wait for.
    Ended,
}

/// What the member is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing, until it is woken.
    Idle,
    /// It has let a wake-up through: the outer task should be next on this thread.
    Passed,
    /// The wrap is gone.
    Closed,
}

impl Gate {
    /// A gate before a future that was never polled, without a member.
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU8::new(READY | ENDED),
            debt: AtomicU64::new(0),
            outer: Mutex::new(None),
            member: Mutex::new(None),
        }
    }

    /// The inner future was woken.
    fn wake_inner(&self) {
        let before = self.state.fetch_or(READY, Ordering::AcqRel);
        if before & READY != 0 {
            return;
        }
        if before & ENDED != 0 {
            self.wake_outer();
        } else {
            self.wake_member();
        }
    }

    /// O1 and O2, by the outer poll. After [`Admission::Pass`], O3 is done.
    pub(super) fn admit(&self, outer: &Waker) -> Admission {
        leave(&self.outer, outer);
        let state = self.state.load(Ordering::Acquire);
        if state & PASSED != 0 {
            self.begin_poll();
            Admission::Pass
        } else if state & (ENDED | READY) == ENDED | READY {
            Admission::Ended
        } else {
            Admission::Wait
        }
    }

    /// O3: the inner future is about to be polled.
    pub(super) fn begin_poll(&self) {
        self.state.fetch_and(!(READY | PASSED), Ordering::AcqRel);
    }

    /// After [`Admission::Ended`], or at first: a member is about to be made, whose destructor will call [`Gate::end`].
    pub(super) fn reopen(&self) {
        self.state.fetch_and(!ENDED, Ordering::AcqRel);
    }

    /// The wrap is gone: from here on nobody is woken. The member is to be ended.
    pub(super) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        drop(lock(&self.outer).take());
    }

    /// M1 and M2, by the member's poll. A member with debts pays them first.
    pub(super) fn take_turn(&self, member: &Waker) -> Turn {
        leave(&self.member, member);
        let state = self.state.load(Ordering::Acquire);
        if state & CLOSED != 0 {
            return Turn::Closed;
        }
        if state & (READY | PASSED) != READY {
            return Turn::Idle;
        }
        self.state.fetch_or(PASSED, Ordering::AcqRel);
        self.wake_outer();
        Turn::Passed
    }

    /// E1 and E2, by the member's destructor.
    pub(super) fn end(&self) {
        let before = self.state.fetch_or(ENDED, Ordering::AcqRel);
        if before & CLOSED == 0 {
            self.wake_outer();
        }
    }

    /// Whether there is no member, not yet or not any more.
    #[cfg(feature = "tower")]
    pub(super) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) & ENDED != 0
    }

    /// An inner poll took `time`.
    pub(super) fn owe(&self, time: Nanos) {
        self.debt.fetch_add(time.as_nanos(), Ordering::AcqRel);
    }

    /// The caller pays everything.
    pub(super) fn take_debt(&self) -> Nanos {
        if self.debt.load(Ordering::Acquire) == 0 {
            return Nanos::ZERO;
        }
        Nanos(self.debt.swap(0, Ordering::AcqRel))
    }

    fn wake_member(&self) {
        let member = lock(&self.member).clone();
        if let Some(member) = member {
            member.wake();
        }
    }

    fn wake_outer(&self) {
        let outer = lock(&self.outer).take();
        if let Some(outer) = outer {
            outer.wake();
        }
    }
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // From W1 on nobody else does W2: a poll that is stopped for good between the two, by a freeze, would keep a future of another tenant from
        // being woken. W2 calls a waker that may be the program's, so whoever insists may stop it.
        let _guard = quotient_pause::undisturbed();
        self.wake_inner();
    }
}

/// Leaves a waker where others find it. No code of the waker's runs under the lock but its comparison; only the caller's side
/// stores here.
fn leave(place: &Mutex<Option<Waker>>, waker: &Waker) {
    let known = lock(place)
        .as_ref()
        .is_some_and(|known| known.will_wake(waker));
    if !known {
        let waker = Some(waker.clone());
        let before = std::mem::replace(&mut *lock(place), waker);
        drop(before);
    }
}

#[cfg(not(loom))]
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

#[cfg(loom)]
fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

#[cfg(all(test, loom))]
mod models;
