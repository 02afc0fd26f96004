//! What a breakpoint costs at least.

use std::time::Instant;

extern "C" fn on_trap(_signal: i32) {}

/// Time of one `int3` with an empty handler, ns.
pub(super) fn ns(count: u32) -> f64 {
    let _user = super::steps::sigtrap_user();
    // SAFETY: installs a handler of the right type, which does nothing, and puts the previous one back. The breakpoint is one
    // byte; after the handler execution goes on behind it.
    unsafe {
        let previous = libc::signal(libc::SIGTRAP, on_trap as *const () as libc::sighandler_t);
        let started = Instant::now();
        for _ in 0..count {
            core::arch::asm!("int3");
        }
        let elapsed = started.elapsed();
        libc::signal(libc::SIGTRAP, previous);
        elapsed.as_secs_f64() * 1e9 / f64::from(count.max(1))
    }
}
