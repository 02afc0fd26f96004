//! The barrier that makes every thread of the process fetch its code anew.

use core::ffi::{c_int, c_long};

use super::writer::errno;

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE` (Linux 4.16): returns after every thread of this process has executed a
/// serialising instruction since the call began; threads that are not running do so before they return to user mode.
const SYNC_CORE: c_int = 1 << 5;

/// The registration that the kernel asks for, once a process.
const REGISTER_SYNC_CORE: c_int = 1 << 6;

fn membarrier(command: c_int) -> Result<(), c_int> {
    // SAFETY: the call takes no pointers.
    let result: c_long = unsafe { libc::syscall(libc::SYS_membarrier, command, 0_u32, 0_i32) };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Announces that this process will use [`sync_core`].
pub(super) fn register() -> Result<(), c_int> {
    membarrier(REGISTER_SYNC_CORE)
}

/// The barrier. After a fork that lost the registration it registers again.
pub(super) fn sync_core() -> Result<(), c_int> {
    match membarrier(SYNC_CORE) {
        Err(libc::EPERM) => register().and_then(|()| membarrier(SYNC_CORE)),
        result => result,
    }
}
