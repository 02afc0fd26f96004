//! Counted references: what handles, wakers and owned lists hold.

use super::Id;
use super::cell::Header;
use super::state::{Released, Snapshot, State};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// One counted reference to a task of any type. While it lives, so does the memory.
///
/// In a `ManuallyDrop` it is a borrowed look through somebody else's claim: a waker's, or the run token's.
pub(super) struct Reference(NonNull<Header>);

// SAFETY: a reference gives access to the state word (atomic), to the identifier and the table (never written after
// allocation), and through the table to actions on the future, context and output, all of which are `Send`, the context
// `Sync` too: `spawn` demands it. Who may start those actions, from whatever thread, is the protocol's business.
unsafe impl Send for Reference {}
// SAFETY: as for `Send`; all that `&Reference` does is made of atomic steps on the state word.
unsafe impl Sync for Reference {}

impl Reference {
    /// Takes over a counted reference, or borrows a claim if the result goes into a `ManuallyDrop`.
    ///
    /// # Safety
    /// `task` comes from `cell::allocate`, and the caller owns a counted reference, which the result takes over; or the
    /// result is never dropped and not used after the claim that it borrows ends.
    #[inline(always)]
    pub(super) unsafe fn from_raw(task: NonNull<Header>) -> Self {
        Self(task)
    }

    /// The pointer; the count stays with `self`.
    #[inline(always)]
    pub(super) fn as_ptr(&self) -> NonNull<Header> {
        self.0
    }

    /// The pointer, with the counted reference.
    #[inline(always)]
    pub(super) fn into_raw(self) -> NonNull<Header> {
        ManuallyDrop::new(self).0
    }

    #[inline(always)]
    pub(super) fn header(&self) -> &Header {
        // SAFETY: the memory lives while `self` does, and of a header only what lies in cells is ever written.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(super) fn state(&self) -> &State {
        &self.header().state
    }

    #[inline(always)]
    pub(super) fn load(&self) -> Snapshot {
        self.state().load()
    }

    #[inline]
    pub(super) fn id(&self) -> Id {
        self.header().id
    }

    /// Wakes the task: one read-modify-write, and a call of the scheduler if it was idle.
    #[inline]
    pub(super) fn wake_by_ref(&self) {
        // SAFETY: this reference keeps the memory.
        unsafe { (self.header().vtable.wake)(self.0) };
    }

    /// Wakes the task and drops the reference, in one read-modify-write.
    #[inline]
    pub(super) fn wake(self) {
        let task = self.into_raw();
        // SAFETY: the reference is counted and ours, and given up here.
        unsafe { ((*task.as_ptr()).vtable.wake_by_value)(task) };
    }

    /// Asks for cancellation: whoever holds the token, or gets it by the wake-up made here, drops the future.
    pub(super) fn abort(&self) {
        // SAFETY: this reference keeps the memory.
        unsafe { (self.header().vtable.abort)(self.0) };
    }

    /// As [`Reference::abort`], but the future of an idle task is dropped by the caller, now. Not under a lock that the future's
    /// destructor or the scheduler's books of its tasks want.
    pub(super) fn abort_here(&self) {
        if self.state().request_abort() {
            if self.state().wake_by_ref() {
                // SAFETY: the transition made the token ours.
                unsafe { (self.header().vtable.discard)(self.0) };
            }
            // SAFETY: this reference keeps the memory.
            unsafe { (self.header().vtable.aborted)(self.0) };
        }
    }
}

impl Reference {
    /// Tells the scheduler of an abort that was marked: what [`Reference::abort`] does last. Of a promise, whose token is held from the beginning to the
    /// end, so that a mark makes none.
    pub(super) fn wake_holder(&self) {
        // SAFETY: this reference keeps the memory.
        unsafe { (self.header().vtable.aborted)(self.0) };
    }
}

impl Clone for Reference {
    #[inline]
    fn clone(&self) -> Self {
        self.state().retain();
        Self(self.0)
    }
}

impl Drop for Reference {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the reference is counted and ours until the transition gives it up; the static table is read before
        // that, since the memory may be gone afterwards. A token or a last reference that comes back is ours again.
        unsafe {
            let vtable = (*self.0.as_ptr()).vtable;
            match (*self.0.as_ptr()).state.release() {
                Released::Kept => {}
                Released::Free => (vtable.free)(self.0),
                Released::Orphaned => (vtable.schedule)(self.0),
            }
        }
    }
}
