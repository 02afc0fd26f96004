//! `std::task::Waker`s of tasks, and the note of what the poll under way on this thread did with its own.
//!
//! All tasks of all types share one table, a true `static`: `Waker::will_wake` compares the table's address, and a
//! table made by constant promotion may have several.

use super::cell::Header;
use super::reference::Reference;
use super::trace;
use crate::primitives::thread_local;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::task::{RawWaker, RawWakerVTable, Waker};

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// Whether the waker is a task's of this crate: to wake it runs nobody else's code.
#[must_use]
pub fn is_of_a_task(waker: &Waker) -> bool {
    ptr::eq(waker.vtable(), &VTABLE)
}

/// A waker through the claim of the run token's holder; it owns no count.
///
/// # Safety
/// `task` points to a live task, and stays so while the waker is used.
#[inline]
pub(super) unsafe fn borrowed(task: NonNull<Header>) -> ManuallyDrop<Waker> {
    // SAFETY: the table below keeps `RawWaker`'s contract for data made from a live task, see there. Never dropped.
    ManuallyDrop::new(unsafe { Waker::new(task.as_ptr().cast_const().cast(), &VTABLE) })
}

/// The reference that a waker's data stands for, borrowed.
///
/// # Safety
/// `data` is the data of a waker of ours; the result is not used after that waker's end.
#[inline(always)]
unsafe fn reference(data: *const ()) -> ManuallyDrop<Reference> {
    // SAFETY: the data of our wakers is a task's pointer, kept alive by the waker's count or by what it borrows from.
    ManuallyDrop::new(unsafe {
        Reference::from_raw(NonNull::new_unchecked(data.cast_mut().cast()))
    })
}

/// # Safety
/// As `RawWakerVTable` says: `data` is that of a waker of ours.
unsafe fn clone(data: *const ()) -> RawWaker {
    if note_clone(data) {
        return RawWaker::new(Waker::noop().data(), Waker::noop().vtable());
    }
    // SAFETY: passed on to the caller. The new waker owns the count added here.
    let clone = unsafe { Reference::clone(&reference(data)) };
    trace::waker_op(clone.header().span, "waker.clone");
    clone.into_waker()
}

/// # Safety
/// As `RawWakerVTable` says: `data` is that of a waker of ours, consumed here.
unsafe fn wake(data: *const ()) {
    // SAFETY: the waker's count passes to the reference.
    let reference = ManuallyDrop::into_inner(unsafe { reference(data) });
    trace::waker_op(reference.header().span, "waker.wake");
    reference.wake();
}

/// # Safety
/// As `RawWakerVTable` says: `data` is that of a waker of ours.
unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: passed on to the caller.
    let reference = unsafe { reference(data) };
    trace::waker_op(reference.header().span, "waker.wake_by_ref");
    reference.wake_by_ref();
}

/// # Safety
/// As `RawWakerVTable` says: `data` is that of a waker of ours, consumed here.
unsafe fn drop_waker(data: *const ()) {
    // SAFETY: the waker's count passes to the reference.
    let reference = ManuallyDrop::into_inner(unsafe { reference(data) });
    trace::waker_op(reference.header().span, "waker.drop");
    drop(reference);
}

impl Reference {
    fn into_waker(self) -> RawWaker {
        RawWaker::new(self.into_raw().as_ptr().cast_const().cast(), &VTABLE)
    }
}

/// The task's own waker was cloned during its poll.
const CLONED: u8 = 1;
/// The poll is over and `deferred` is asking; clones are no-op wakers.
const PROBING: u8 = 1 << 1;
/// Such a clone happened.
const PROBE_CLONED: u8 = 1 << 2;
/// No poll: the task's future or its output is being dropped.
const DROPPING: u8 = 1 << 3;

/// What this thread is polling.
struct Polling {
    /// The data of the polled task's waker; null outside polls.
    task: Cell<*const ()>,
    marks: Cell<u8>,
}

impl Polling {
    const fn nothing() -> Self {
        Self {
            task: Cell::new(ptr::null()),
            marks: Cell::new(0),
        }
    }
}

// Loom's macro takes no `const` block, which spares `std`'s the check for a first use.
#[cfg(not(loom))]
thread_local! {
    static POLLING: Polling = const { Polling::nothing() };
}
#[cfg(loom)]
thread_local! {
    static POLLING: Polling = Polling::nothing();
}

/// Notes a clone of the waker with this data; true: it must be a no-op waker.
#[inline]
fn note_clone(data: *const ()) -> bool {
    POLLING.with(|polling| {
        if !ptr::eq(polling.task.get(), data) {
            return false;
        }
        let marks = polling.marks.get();
        let probing = marks & PROBING != 0;
        polling
            .marks
            .set(marks | if probing { PROBE_CLONED } else { CLONED });
        probing
    })
}

/// Whether the task's waker was cloned since the `deferred` now running on this thread was called.
///
/// Such clones are no-op wakers: whoever made one has not kept the task's waker.
#[inline]
pub fn probe_cloned() -> bool {
    POLLING.with(|polling| polling.marks.get() & PROBE_CLONED != 0)
}

/// The data of the waker of the task that is polled on this thread; null outside polls.
#[inline]
pub(super) fn current_data() -> *const () {
    POLLING
        .try_with(|polling| polling.task.get())
        .unwrap_or(ptr::null())
}

/// Whether this is the data of the waker of the task that is in a poll on this thread: not only in a destructor.
#[inline]
pub(super) fn is_polling(data: *const ()) -> bool {
    let is_it = |polling: &Polling| {
        ptr::eq(polling.task.get(), data) && polling.marks.get() & DROPPING == 0
    };
    POLLING.try_with(is_it).unwrap_or(false)
}

/// Whether this is the task that is polled on this thread, or dropped: then its token is here, or it has ended.
#[inline]
pub(super) fn is_current(task: NonNull<Header>) -> bool {
    ptr::eq(current_data(), task.as_ptr().cast_const().cast())
}

/// The task that is polled on this thread, or dropped.
#[inline]
pub(super) fn current() -> Option<Reference> {
    let data = current_data();
    if data.is_null() {
        return None;
    }
    // SAFETY: the data is noted only while a `PollScope` lives, and that is shorter than the life of the run token of the
    // poll or of the cancellation, or of the reference by which the output is dropped, which keep the task alive. Scopes are of this
    // thread, so none can end while we look.
    let task = unsafe { reference(data) };
    Some(Reference::clone(&task))
}

/// The name of the task that is polled on this thread, or dropped.
#[inline]
pub(super) fn current_id() -> Option<super::Id> {
    let data = current_data();
    if data.is_null() {
        return None;
    }
    // SAFETY: as in `current`.
    Some(unsafe { reference(data) }.id())
}

/// The poll of one task on this thread, or the destructor of its future or its output. Polls nest (`block_in_place` may run a whole scheduler inside one), so the
/// outer poll's notes are kept here and come back at the end, by unwinding too.
pub(super) struct PollScope {
    /// This thread's `POLLING`: looked up once. A pointer, so that the scope stays on its thread.
    polling: NonNull<Polling>,
    outer_task: *const (),
    outer_marks: u8,
}

impl PollScope {
    #[inline]
    pub(super) fn enter(task: NonNull<Header>) -> Self {
        POLLING.with(|polling| Self {
            polling: NonNull::from(polling),
            outer_task: polling.task.replace(task.as_ptr().cast_const().cast()),
            outer_marks: polling.marks.replace(0),
        })
    }

    /// For the destructor of the task's future or of its output.
    pub(super) fn enter_drop(task: NonNull<Header>) -> Self {
        let scope = Self::enter(task);
        scope.polling().marks.set(DROPPING);
        scope
    }

    #[inline(always)]
    fn polling(&self) -> &Polling {
        // SAFETY: the place is the thread's, has no destructor and does not move, so it lasts as long as the thread; and the scope,
        // which is neither `Send` nor `Sync`, is on the stack of that thread. Both fields are cells, so shared access is enough.
        unsafe { self.polling.as_ref() }
    }

    /// Whether the polled task's waker was cloned on this thread since `enter`.
    #[inline]
    pub(super) fn cloned(&self) -> bool {
        self.polling().marks.get() & CLONED != 0
    }

    /// From here to the end of the scope, clones of the task's waker are no-op wakers.
    #[inline]
    pub(super) fn start_probe(&self) {
        self.polling().marks.set(PROBING);
    }
}

impl Drop for PollScope {
    #[inline]
    fn drop(&mut self) {
        let polling = self.polling();
        polling.task.set(self.outer_task);
        polling.marks.set(self.outer_marks);
    }
}
