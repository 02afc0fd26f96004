//! From a thread's id to its slot, for the signal handler.
//!
//! A static table, so that the handler needs no thread-local storage, which a library that was loaded late allocates at its
//! first use. An id may stand in any of [`WINDOW`] places from its own on; ids are given out in turn, so places spread.
//!
//! # Who may touch what
//! An entry belongs to the thread whose id is in it: only that thread writes it after claiming it, and only its own handler
//! reads the pointer. The reader is therefore the owner itself, at an earlier or a later moment, never at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering, compiler_fence};

use crate::slot::Slot;

/// Threads that can be inside at once. Unit: threads. 4,096: far above what anybody can pause with sense, in 64 KiB of
/// memory that stays untouched where unused.
pub(crate) const THREADS_MAX: usize = 4_096;
/// Places that are looked at. Unit: entries. The handler's only loop is bounded by it.
const WINDOW: usize = 64;

/// No thread has this id: the entry is free.
const FREE: i32 = 0;
/// No thread has this id either: the entry is being filled.
const CLAIMED: i32 = -1;

struct Entry {
    thread: AtomicI32,
    slot: AtomicPtr<Slot>,
}

static TABLE: [Entry; THREADS_MAX] = [const {
    Entry {
        thread: AtomicI32::new(FREE),
        slot: AtomicPtr::new(core::ptr::null_mut()),
    }
}; THREADS_MAX];

fn window(thread: i32) -> impl Iterator<Item = &'static Entry> {
    let first = thread.unsigned_abs() as usize;
    (0..WINDOW).map(move |step| &TABLE[(first + step) % THREADS_MAX])
}

/// The place of the calling thread; given back when dropped.
pub(crate) struct Place {
    entry: &'static Entry,
    /// Neither `Send` nor `Sync`: belongs to the thread.
    _thread: core::marker::PhantomData<*const ()>,
}

/// Enters the calling thread's slot. `None` if there is no room.
pub(crate) fn insert(slot: &Arc<Slot>) -> Option<Place> {
    let entry = window(slot.identity.thread).find(|entry| {
        entry
            .thread
            .compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })?;
    let pointer = Arc::into_raw(slot.clone()).cast_mut();
    entry.slot.store(pointer, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // From here on the own handler finds it.
    entry.thread.store(slot.identity.thread, Ordering::Release);
    Some(Place {
        entry,
        _thread: core::marker::PhantomData,
    })
}

impl Drop for Place {
    fn drop(&mut self) {
        self.entry.thread.store(CLAIMED, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let pointer = self
            .entry
            .slot
            .swap(core::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: `insert` made the pointer from an `Arc` and nobody else gives it back: the place is dropped once. This
        // thread's handler, the only reader, finds the entry no longer, and one that had found it has returned: it runs on
        // this thread.
        drop(unsafe { Arc::from_raw(pointer) });
        self.entry.thread.store(FREE, Ordering::Release);
    }
}

#[cfg_attr(
    not(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    )),
    allow(dead_code) // no handler there
)]
/// Runs `look` on the slot of the calling thread, if it has one. Async-signal-safe if `look` is.
pub(crate) fn with_own_slot(thread: i32, process: i32, look: impl FnOnce(&Slot)) {
    for entry in window(thread) {
        if entry.thread.load(Ordering::Acquire) != thread {
            continue;
        }
        let pointer = entry.slot.load(Ordering::Relaxed);
        // SAFETY: the entry holds the id of the calling thread, which wrote the pointer before the id, and clears the id
        // before it gives the pointer back; both on this very thread, so neither can happen while `look` runs. In a child of
        // `fork` the entries are copies and so are the slots: an id that a child's thread shares with one of the parent's leads
        // to a slot that is alive because nobody in the child gives it back, and is passed over by its process.
        let Some(slot) = (unsafe { pointer.as_ref() }) else {
            continue;
        };
        if slot.identity.process == process {
            return look(slot);
        }
    }
}
