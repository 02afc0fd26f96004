//! A carrier's sleep while a bearer has the turn. The protocol (N1 to N3) stands in the parent module.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::lock;

/// The nap of one virtual CPU's carrier.
#[derive(Debug, Default)]
pub(crate) struct Nap {
    on: AtomicBool,
    /// Who naps. Written by each new carrier before its first nap.
    thread: Mutex<Option<Thread>>,
}

impl Nap {
    /// The calling thread is the one that will nap here.
    pub(crate) fn owned_by_this_thread(&self) {
        *lock(&self.thread) = Some(std::thread::current());
    }

    /// Whether somebody naps here. A hint.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// N1 to N3: sleeps for `turn` at most, unless `has_work` or until [`Nap::end`].
    pub(crate) fn sleep(&self, turn: Duration, has_work: impl FnOnce() -> bool) {
        self.on.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !has_work() {
            let started = Instant::now();
            // A stray unpark (the program's own) ends a park and not the nap.
            while self.on.load(Ordering::Acquire) {
                let left = turn.saturating_sub(started.elapsed());
                if left.is_zero() {
                    break;
                }
                std::thread::park_timeout(left);
            }
        }
        self.on.store(false, Ordering::SeqCst);
    }

    /// E3: ends the nap if there is one. The caller has passed a fence since it made visible what for.
    #[inline]
    pub(crate) fn end(&self) {
        if self.on.load(Ordering::SeqCst) && self.on.swap(false, Ordering::SeqCst) {
            let thread = lock(&self.thread).clone();
            if let Some(thread) = thread {
                thread.unpark();
            }
        }
    }
}
