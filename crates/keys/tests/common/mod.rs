//! What several tests share.

#![allow(dead_code)] // each test uses some of it

use std::sync::{Mutex, MutexGuard, PoisonError};

use quotient_keys::{Mode, ModeError, allow_writable_code, patch, set_mode};

/// The engine's mode is one for the process, and the tests of one file run as threads of one process.
static ENGINE_USER: Mutex<()> = Mutex::new(());

/// Keeps other tests of this file away from the engine, and puts `mode` in force. `None`: this process cannot patch, so
/// there is nothing to test beyond soft mode.
pub fn in_mode(mode: Mode) -> Option<MutexGuard<'static, ()>> {
    let guard = ENGINE_USER.lock().unwrap_or_else(PoisonError::into_inner);
    if cfg!(target_arch = "aarch64") {
        // An emulator sees no other writer.
        allow_writable_code(true);
    }
    patch();
    match set_mode(mode) {
        Err(ModeError::Unavailable { reason, .. }) => {
            eprintln!("skipped: no mode {mode} here: {reason}");
            None
        }
        result => {
            result.expect("the mode is available");
            Some(guard)
        }
    }
}

/// Repeats its argument 8 times.
#[macro_export]
macro_rules! times_8 {
    ($($body:tt)*) => {
        $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* $($body)*
    };
}

/// Adds 1 to `$sum` for each of 8 sites of `$key` that is on.
#[macro_export]
macro_rules! eight_sites {
    ($key:path, $sum:ident) => {
        $crate::times_8! {
            if quotient_keys::static_branch_unlikely!($key) {
                $sum = std::hint::black_box($sum + 1);
            }
        }
    };
}
