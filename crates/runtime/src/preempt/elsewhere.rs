//! Whether a task of another scheduler of the process waits in the kernel: perhaps for a lock of a poll that stands here.
//!
//! A poll that stands keeps its locks, and whoever waits for one may belong to another scheduler, of which this one knows nothing. (A lock that
//! a stopped poll held for 3 ms of its own time, beside 20 stopped ones, kept a task of another scheduler waiting for 6.4 s, and one of its own for 0.9
//! to 1.6 s.) So there is one number for the whole process: how many preempting schedulers have a *waiter*, which is a bearer that was found blocked
//! in the kernel although it may run, or a carrier that has been stalled for two looks.
//!
//! # Protocol
//! - *Who adds, and who takes away:* the watch of each scheduler, for its own, once a look ([`Elsewhere::note`]). It adds one when it finds a
//!   waiter and takes that away when it finds none. Nobody else writes. It knows what it has added, so a scheduler does not count itself.
//! - *Until when:* the watch takes away what it has added when its thread ends: after the scheduler's end, or when the last handle is gone. If
//!   it panics, the drop of its state does. A watch that parks has found nothing to look at before, and so no waiter.
//! - *Who reads:* the watch of each scheduler, when one of those that stand may have a short turn early ([`Elsewhere::others_wait`]). If
//!   anybody waits elsewhere, nobody here is known to wait for a lock of its own tenant only: each of those that stand may be the holder.
//! - *What a stale number costs:* the number guards no memory, so relaxed operations do. One that is too high for a look grants a short turn
//!   too many, which is charged, and bounded with all others of its kind (a twentieth of a processor). One that is too low puts it off by a look.
//!
//! What it does not see: threads that are no scheduler's, and tasks of schedulers without preemption, whose watch asks nobody whether they sleep.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Preempting schedulers of this process that have a waiter.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// One scheduler's part in the count; see the module's header.
#[derive(Debug)]
pub(super) struct Elsewhere {
    /// Where all of them are counted.
    all: &'static AtomicUsize,
    /// This one is among them.
    counted: bool,
}

impl Default for Elsewhere {
    fn default() -> Self {
        Self {
            all: &WAITING,
            counted: false,
        }
    }
}

impl Elsewhere {
    /// Whether this scheduler `has_waiter` from now on.
    pub(super) fn note(&mut self, has_waiter: bool) {
        if std::mem::replace(&mut self.counted, has_waiter) == has_waiter {
            return;
        }
        if has_waiter {
            self.all.fetch_add(1, Ordering::Relaxed);
        } else {
            self.all.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether another scheduler has a waiter. One load.
    pub(super) fn others_wait(&self) -> bool {
        self.all.load(Ordering::Relaxed) > usize::from(self.counted)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.note(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_that_has_gone_has_others_wait_for_ever() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let part = || Elsewhere {
            all: &COUNT,
            counted: false,
        };
        let (mut one, mut other) = (part(), part());
        one.note(true);
        one.note(true);
        assert!(!one.others_wait(), "its own waiter");
        assert!(other.others_wait());
        other.note(true);
        assert!(one.others_wait() && other.others_wait());
        one.note(false);
        one.note(false);
        assert!(one.others_wait() && !other.others_wait());
        drop(other);
        assert!(!one.others_wait());
        assert_eq!(COUNT.load(Ordering::Relaxed), 0);
    }
}
