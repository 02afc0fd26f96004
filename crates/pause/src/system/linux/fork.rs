//! A thread that forks is not stopped before it is through.
//!
//! glibc's `fork` holds the locks of all of the allocator's arenas, and of the standard streams, around the system call. A thread that stood in there kept everybody waiting who
//! allocates, whoever may resume it included; [`SteadyAllocator`](crate::SteadyAllocator) does not know of it. Handlers of `fork` run before these locks are taken and after
//! they are given back, on the forking thread, and take its shield between the two. (A raw `clone` runs none, and holds none.)

use std::sync::Once;

use crate::pauser::slot_here;

/// Installs the handlers, once. They stay, in children, too.
pub(crate) fn shield_forks() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: functions of the right type that live as long as this library; glibc removes the handlers of a
        // library that is unloaded. Failure (no memory) leaves forks without the shield.
        unsafe { libc::pthread_atfork(Some(prepare), Some(after), Some(after)) };
    });
}

extern "C" fn prepare() {
    if let Some(slot) = slot_here() {
        slot.raise_shield();
    }
}

/// The slot is the same: nobody enters or leaves in the midst of a fork. Stands still at once if that was wanted meanwhile; of the copy nobody wants anything.
extern "C" fn after() {
    if let Some(slot) = slot_here() {
        slot.lower_shield();
    }
}
