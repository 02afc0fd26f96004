//! An engine comes while keys are being flipped without one. A test of its own, since an engine stays.

#![deny(clippy::undocumented_unsafe_blocks)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use quotient_key::engine::{
    Action, Applied, Engine, Settle, attach, counts, is_ours, state, status, store_state,
};
use quotient_key::{FlipError, Key, KeyStatus, Receipt, static_branch_unlikely, static_key};

static_key! {
    /// Flipped by everybody.
    static KEY = false;
}

static FLIPS: AtomicU64 = AtomicU64::new(0);

/// Flips under a lock of its own.
struct Locking(Mutex<()>);

impl Engine for Locking {
    fn flip(&self, key: &'static Key, action: Action, _: Settle) -> Result<Receipt, FlipError> {
        let _lock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let holders = &counts(key).holders;
        if let Applied::Owned(_) = holders.apply(action, key.name())? {
            // Long enough for somebody without this lock to get in between.
            std::thread::yield_now();
            // SAFETY: This is the engine, under its lock, and there are no branches to bring along: without code that is patched they
            // follow the word.
            unsafe { store_state(key, holders.load().sum() > 0) };
            holders.settle();
        }
        FLIPS.fetch_add(1, Ordering::Relaxed);
        Ok(Receipt::default())
    }

    fn status(&self, key: &'static Key) -> KeyStatus {
        let mut status = status(key);
        status.soft_reason = None;
        status
    }
}

static LOCKING: [Locking; 2] = [const { Locking(Mutex::new(())) }; 2];
static ENGINE: &dyn Engine = &LOCKING[0];
static SECOND: &dyn Engine = &LOCKING[1];

#[test]
fn no_flip_is_lost_when_an_engine_comes() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let guard = KEY.hold().expect("nothing hinders");
                    assert!(static_branch_unlikely!(KEY), "held, but off");
                    drop(guard);
                }
            });
        }
        std::thread::yield_now();
        attach(&ENGINE);
        attach(&SECOND);
        while FLIPS.load(Ordering::Relaxed) < 50 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!((KEY.count(), state(&KEY)), (0, false));
    assert!(is_ours(&KEY) && KEY.status().soft_reason.is_none());
}
