//! Whether the guest of `courtesy` waits.
//!
//! # Protocol
//! `at_work` counts. (C1) Who goes to work adds one, and if that makes all, takes the lock, *looks again*, and if it still is all and the
//! guest does not wait, tells it to. (C2) Who has done subtracts one, takes the lock if that was all, and tells a guest that waits not to.
//! If one's C2 lies between another's look and its telling, it waits for the lock and takes back what was told; if before the look, the
//! look sees it. So while nobody holds the lock: the guest waits only if all are at work. The lock is a leaf, and no thread that can be
//! stopped has it: carriers take it between two polls, the guest with `try_lock`.
//!
//! Each C1 has one C2, and each wait that was told is taken back once, by whoever finds `waits` under the lock.

use crate::primitives::{AtomicU64, Mutex, MutexGuard, Ordering};

/// Who can be told to wait, and that it need not.
pub(super) trait Tell {
    /// Whether it was told.
    fn tell(&mut self, waits: bool) -> bool;
}

/// The protocol's word.
#[derive(Debug)]
pub(super) struct Word<G> {
    /// Virtual CPUs at work.
    at_work: AtomicU64,
    known: Mutex<Known<G>>,
}

#[derive(Debug)]
pub(super) struct Known<G> {
    pub(super) guest: G,
    pub(super) waits: bool,
}

impl<G: Tell> Word<G> {
    /// Nobody is at work.
    pub(super) fn of(guest: G) -> Self {
        let known = Known {
            guest,
            waits: false,
        };
        Self {
            at_work: AtomicU64::new(0),
            known: Mutex::new(known),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Known<G>> {
        self.known
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// The lock, if it is free.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Known<G>>> {
        self.known.try_lock().ok()
    }

    /// C1. Whether the guest waits.
    pub(super) fn goes_to_work(&self, all: u64) -> bool {
        if self.at_work.fetch_add(1, Ordering::SeqCst) + 1 != all {
            return false;
        }
        let mut known = self.lock();
        // A C2 that has subtracted and waits for the lock would find that it was told twice, and take it back once.
        if !known.waits && self.at_work.load(Ordering::SeqCst) == all {
            known.waits = known.guest.tell(true);
        }
        known.waits
    }

    /// C2. Whether the guest has waited.
    pub(super) fn has_done(&self, all: u64) -> bool {
        self.at_work.fetch_sub(1, Ordering::SeqCst) == all && self.take_back()
    }

    /// Whoever is still at work: whether the guest has waited.
    pub(super) fn take_back(&self) -> bool {
        let mut known = self.lock();
        let waits = std::mem::take(&mut known.waits);
        if waits {
            known.guest.tell(false);
        }
        waits
    }
}

/// Seen to fail: C1 without its second look; C1 that tells a guest that waits; C2 that does not wait for the lock.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;

    use super::*;

    /// As `quotient_pause::Guest`: it is told each thing once.
    #[derive(Clone, Default)]
    struct Told(Arc<AtomicU64>);

    impl Tell for Told {
        fn tell(&mut self, waits: bool) -> bool {
            self.0.swap(u64::from(waits), Ordering::SeqCst) != u64::from(waits)
        }
    }

    fn word() -> (Told, Arc<Word<Told>>) {
        let told = Told::default();
        let word = Word::of(told.clone());
        (told, Arc::new(word))
    }

    fn works(word: &Arc<Word<Told>>, all: u64, times: usize) -> loom::thread::JoinHandle<()> {
        let word = word.clone();
        loom::thread::spawn(move || {
            for _ in 0..times {
                word.goes_to_work(all);
                word.has_done(all);
            }
        })
    }

    /// Two virtual CPUs go to work and are done, one of them twice: nobody is left waiting.
    #[test]
    fn loom_a_guest_does_not_wait_for_those_who_have_done() {
        loom::model(|| {
            let (told, word) = word();
            let threads = [works(&word, 2, 2), works(&word, 2, 1)];
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(told.0.load(Ordering::SeqCst), 0, "it waits for nobody");
            assert_eq!(word.at_work.load(Ordering::SeqCst), 0);
        });
    }

    /// The scheduler closes meanwhile.
    #[test]
    fn loom_a_guest_does_not_wait_for_a_scheduler_that_has_closed() {
        loom::model(|| {
            let (told, word) = word();
            let thread = works(&word, 1, 1);
            word.take_back();
            thread.join().unwrap();
            assert_eq!(told.0.load(Ordering::SeqCst), 0, "it waits for nobody");
        });
    }
}
