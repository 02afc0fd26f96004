//! Fork in the middle of a flip.
//!
//! The child gets a copy of the code as it is at that instant and only the forking thread. Were another thread in the
//! middle of a flip, the child would keep its breakpoints for ever and could never take the lock. So the lock is taken
//! before a fork and given back on both sides after it. (A raw `clone` runs no such handlers: a child made that way may
//! only call `exec`, as POSIX asks of it anyway.)

use core::cell::UnsafeCell;
use std::sync::{Arc, MutexGuard, Once};

use crate::combine::{self, Request};
use crate::engine::{self, Engine};

/// The guards of the locks that are held across the fork.
type Guards = (
    MutexGuard<'static, Engine>,
    MutexGuard<'static, Vec<Arc<Request>>>,
);

struct Held(UnsafeCell<Option<Guards>>);

// SAFETY: the cell is touched by `prepare` after it has taken the lock, and by `parent` and `child` before they give it
// back, all on the forking thread (in the child: on its only thread, the copy of it).
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Installs the handlers, once. They stay when this is called again, and in children.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: three functions of the right type that live as long as this library; glibc removes the handlers of a
        // library that is unloaded. Failure (no memory) leaves forks in mid-flip unprotected.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}

unsafe extern "C" fn prepare() {
    let engine = engine::lock();
    let waiting = combine::lock_waiting();
    // SAFETY: this thread holds the lock, see `Held`.
    unsafe { *HELD.0.get() = Some((engine, waiting)) };
}

unsafe extern "C" fn parent() {
    // SAFETY: this thread holds the lock since `prepare`.
    drop(unsafe { (*HELD.0.get()).take() });
}

unsafe extern "C" fn child() {
    // SAFETY: this thread is the copy of the one that holds the lock since `prepare`.
    let guards = unsafe { (*HELD.0.get()).take() };
    if let Some((mut engine, mut waiting)) = guards {
        engine.deferred.helper_was_lost();
        // Those who wait do so in the parent.
        waiting.clear();
    }
}
