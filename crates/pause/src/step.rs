//! Steps in which the calling thread is not paused: a shield that costs some 2 ns, for what is done often and is brief.
//!
//! The slot is found by a thread-local *pointer*: one with a destructor would have to be registered with the thread at its first use, which
//! allocates, and the standard library aborts a global allocator that does so.

use std::cell::Cell;
use std::ptr;

use crate::slot::Slot;

thread_local! {
    /// The slot of this thread while it is inside [`Pauser::enter`](crate::Pauser::enter), else null.
    static SLOT: Cell<*const Slot> = const { Cell::new(ptr::null()) };
}

/// The thread enters with `slot`, or leaves (`None`). Who enters keeps `slot` alive until the thread has left.
pub(crate) fn set(slot: Option<&Slot>) {
    SLOT.set(slot.map_or(ptr::null(), ptr::from_ref));
}

/// The shield of the calling thread, raised while this lives.
pub(crate) struct Shielded {
    slot: *const Slot,
}

impl Shielded {
    /// # Safety
    /// The result is dropped by the end of the function that called this, and not forgotten.
    #[inline]
    pub(crate) unsafe fn begin() -> Self {
        // Plain memory without a destructor: there from the thread's beginning to its end.
        let slot = SLOT.get();
        // SAFETY: it is null, or was set by `enter` of this very thread, which keeps the slot until it has set it to null again.
        if let Some(slot) = unsafe { slot.as_ref() } {
            slot.raise_shield();
        }
        Self { slot }
    }
}

impl Drop for Shielded {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: it is null, or was set by an `enter` that was in progress in `begin`. That call is below the function that has called `begin`
        // on this thread's stack, so it returns, or unwinds, after this one's end; and it keeps the slot until then. (None that begins
        // meanwhile changes anything: inside another one it is refused.)
        if let Some(slot) = unsafe { self.slot.as_ref() } {
            slot.lower_shield();
        }
    }
}

/// Runs `act`, in which the calling thread is not paused, as under [`uninterrupted`](crate::uninterrupted), for a fifth of its price: some 2 ns, and a
/// load and a branch outside of [`Pauser::enter`](crate::Pauser::enter).
#[inline(always)]
pub fn in_one_step<R>(act: impl FnOnce() -> R) -> R {
    // SAFETY: dropped at the end of this very function, by unwinding too.
    let _shielded = unsafe { Shielded::begin() };
    act()
}

/// The plea of the calling thread, raised while this lives.
struct Pleading {
    slot: *const Slot,
    region: u64,
}

impl Pleading {
    /// # Safety
    /// As [`Shielded::begin`].
    #[inline]
    unsafe fn begin() -> Self {
        let slot = SLOT.get();
        // SAFETY: as in `Shielded::begin`.
        let region = unsafe { slot.as_ref() }.map_or(0, Slot::raise_plea);
        Self { slot, region }
    }
}

impl Drop for Pleading {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in the drop of `Shielded`.
        if let Some(slot) = unsafe { self.slot.as_ref() } {
            slot.lower_plea(self.region);
        }
    }
}

/// Runs `act` as under [`undisturbed`](crate::undisturbed): for what is brief, but calls the program's own code, which may not be. Some 3 ns, and a load and a branch outside of
/// [`Pauser::enter`](crate::Pauser::enter).
#[inline]
pub fn in_one_plea<R>(act: impl FnOnce() -> R) -> R {
    // SAFETY: dropped at the end of this very function, by unwinding too.
    let _pleading = unsafe { Pleading::begin() };
    act()
}

// Without system calls, so that Miri runs them.
#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::slot::Identity;

    fn slot() -> Slot {
        Slot::new(
            Identity {
                process: 0,
                thread: 0,
            },
            None,
            false,
        )
    }

    #[test]
    fn the_shield_is_up_for_the_step_only() {
        let slot = slot();
        set(Some(&slot));
        assert!(!slot.is_shielded());
        in_one_step(|| {
            assert!(slot.is_shielded());
            in_one_step(|| assert!(slot.is_shielded()));
            assert!(slot.is_shielded(), "the inner one is not the last");
        });
        assert!(!slot.is_shielded());
        set(None);
    }

    #[test]
    fn a_plea_is_raised_for_the_step_only() {
        let slot = slot();
        set(Some(&slot));
        slot.begin(1);
        assert!(!slot.pleads(1));
        in_one_plea(|| {
            assert!(slot.pleads(1) && !slot.is_shielded());
            in_one_plea(|| assert!(slot.pleads(1)));
            assert!(slot.pleads(1), "the inner one is not the last");
        });
        assert!(!slot.pleads(1));
        let ended = catch_unwind(AssertUnwindSafe(|| in_one_plea(|| panic!("wanted"))));
        assert!(ended.is_err() && !slot.pleads(1));
        slot.end(1);
        set(None);
    }

    #[test]
    fn a_panic_lowers_the_shield() {
        let slot = slot();
        set(Some(&slot));
        let ended = catch_unwind(AssertUnwindSafe(|| in_one_step(|| panic!("wanted"))));
        assert!(ended.is_err());
        assert!(!slot.is_shielded());
        set(None);
    }

    #[test]
    fn a_thread_without_a_slot_has_none() {
        let slot = slot();
        in_one_step(|| assert!(!slot.is_shielded()));
        // Entered inside the step: the shield that goes down is the one that went up, none.
        in_one_step(|| set(Some(&slot)));
        assert!(!slot.is_shielded());
        set(None);
    }
}
