//! Makes this engine the one that flips the keys of this program or library.

use core::sync::atomic::{AtomicBool, Ordering};

use quotient_key::engine::{Action, Engine, HAS_SITES, Settle};
use quotient_key::{FlipError, Key, KeyStatus, Receipt};

use crate::step::Step;
use crate::{calls, combine};

/// What the keys call.
struct Patching;

impl Engine for Patching {
    fn flip(
        &self,
        key: &'static Key,
        action: Action,
        settle: Settle,
    ) -> Result<Receipt, FlipError> {
        combine::flip(&combine::Process, Step { key, action }, settle)
    }

    fn status(&self, key: &'static Key) -> KeyStatus {
        calls::key_status(key)
    }
}

/// Attaches the engine, before `main` where the platform runs constructors, otherwise when its lock is first taken: a program
/// that links it has chosen it. Patches nothing.
pub(crate) extern "C" fn attach() {
    static PATCHING: &dyn Engine = &Patching;
    static ATTACHED: AtomicBool = AtomicBool::new(false);
    if !ATTACHED.load(Ordering::Acquire) {
        quotient_key::engine::attach(&PATCHING);
        ATTACHED.store(true, Ordering::Release);
    }
}

const _: () = {
    quotient_key::__before_main!(attach);
};

const _: () = assert!(
    cfg!(patching) == HAS_SITES,
    "the engine patches what the keys do not have, or the other way round"
);
