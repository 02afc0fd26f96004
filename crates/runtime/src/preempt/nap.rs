//! A carrier's sleep while a bearer has the turn. The protocol (N1 to N3) stands in the parent module.

use std::time::{Duration, Instant};

use crate::primitives::{
    AtomicBool, Mutex, MutexGuard, Ordering, Thread, current_thread, fence, park_timeout,
};

/// The nap of one virtual CPU's carrier.
#[derive(Debug, Default)]
pub(crate) struct Nap {
    on: AtomicBool,
    /// Who naps. Written by each new carrier before its first nap.
    thread: Mutex<Option<Thread>>,
}

impl Nap {
    fn thread(&self) -> MutexGuard<'_, Option<Thread>> {
        self.thread
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// The calling thread is the one that will nap here.
    pub(crate) fn owned_by_this_thread(&self) {
        *self.thread() = Some(current_thread());
    }

    /// Whether somebody naps here. A hint.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// N1 to N3: sleeps for `turn` at most, unless `has_work` or until [`Nap::end`]. Whether it has
    /// lasted for all of that.
    pub(crate) fn sleep(&self, turn: Duration, has_work: impl FnOnce() -> bool) -> bool {
        self.on.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut slept = Duration::ZERO;
        if !has_work() {
            let started = Instant::now();
            // A stray unpark (the program's own) ends a park and not the nap.
            while slept < turn && self.on.load(Ordering::Acquire) {
                park_timeout(turn - slept);
                slept = started.elapsed();
            }
        }
        self.on.store(false, Ordering::SeqCst);
        slept >= turn
    }

    /// E3: ends the nap if there is one. The caller has passed a fence since it made visible what for.
    #[inline]
    pub(crate) fn end(&self) {
        if self.on.load(Ordering::SeqCst) && self.on.swap(false, Ordering::SeqCst) {
            let thread = self.thread().clone();
            if let Some(thread) = thread {
                thread.unpark();
            }
        }
    }
}

/// Seen to fail without N1's fence, and with a park that is not in a loop.
///
/// *Two naps in a row, ended by two sides*, loom 0.7.2 calls a deadlock that cannot be: a carrier loads `true` after it was unparked by the
/// very thread whose swap had replaced that `true`. The order: A's swap ends the first nap, and A is slow; the second nap stores `true` (T);
/// B's swap replaces T by `false` (F), and B is slow; A unparks, the carrier loads T, which it may, and parks; B unparks, and the carrier loads
/// T again. F comes after T in the order of modifications, since the swap has read T, and F happens before the load, by the unpark: T may
/// not be read. The checker forgets the former: as the carrier loads T for the first time, knowing A's swap, it puts T behind that
/// (`apply_load_coherence`), but not F behind T anew, and holds the two for unordered from there on. So what is modelled is one nap ended by
/// two sides, and two ended by one. For the rest: *only one swap ends a nap*, and whoever makes it unparks after it. A swap that was meant
/// for an earlier nap ends the next one for nothing, which its carrier bears: it looks at everything and naps again. An unpark that
/// comes late ends a park and no nap. And of whoever finds the nap off,
/// either the fence came before that of the nap in question, which then sees what was brought, or somebody else had ended that nap.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;

    use super::*;

    const FOREVER: Duration = Duration::MAX;

    /// Whoever brings something, in the two words that N2 looks at: an arrival, and a bearer's end.
    fn bring(nap: &Arc<Nap>, word: &Arc<AtomicBool>) -> loom::thread::JoinHandle<()> {
        let (nap, word) = (nap.clone(), word.clone());
        loom::thread::spawn(move || {
            word.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            nap.end();
        })
    }

    /// A thread that naps. (The model checker's threads must not be unparked while they wait for a lock or another thread: this one
    /// does neither.)
    fn napper(
        nap: &Arc<Nap>,
        body: impl FnOnce(&Nap) + Send + 'static,
    ) -> loom::thread::JoinHandle<()> {
        let nap = nap.clone();
        loom::thread::spawn(move || body(&nap))
    }

    /// A nap whose thread is known before anybody ends it, as the carrier's is before its first pick.
    fn model(words: usize, body: fn(&Nap, &[Arc<AtomicBool>]), stray: bool) {
        loom::model(move || {
            let nap = Arc::new(Nap::default());
            let words: Vec<_> = (0..words)
                .map(|_| Arc::new(AtomicBool::new(false)))
                .collect();
            let seated = Arc::new(AtomicBool::new(false));
            let (mine, sits) = (words.clone(), seated.clone());
            let napper = napper(&nap, move |nap| {
                nap.owned_by_this_thread();
                sits.store(true, Ordering::Release);
                body(nap, &mine);
            });
            while !seated.load(Ordering::Acquire) {
                loom::thread::yield_now();
            }
            let bringers: Vec<_> = words.iter().map(|word| bring(&nap, word)).collect();
            if stray {
                napper.thread().unpark();
            }
            for bringer in bringers {
                bringer.join().unwrap();
            }
            napper.join().unwrap();
        });
    }

    /// A carrier that naps finds what was brought, or is woken for it: there is no turn's end in a model, so a lost wake-up is a deadlock.
    #[test]
    fn loom_nap_against_an_arrival() {
        let body = |nap: &Nap, words: &[Arc<AtomicBool>]| {
            nap.sleep(FOREVER, || words[0].load(Ordering::Relaxed));
            assert!(words[0].load(Ordering::Relaxed), "woken for nothing");
        };
        model(1, body, false);
    }

    /// An unpark that has nothing to do with the nap, such as one that the program sends to a thread it knows.
    #[test]
    fn loom_nap_against_a_stray_unpark() {
        let body = |nap: &Nap, words: &[Arc<AtomicBool>]| {
            nap.sleep(FOREVER, || words[0].load(Ordering::Relaxed));
            assert!(words[0].load(Ordering::Relaxed), "woken for nothing");
        };
        model(1, body, true);
    }

    /// An arrival and the bearer's end at once: the nap ends, and whatever ended it is seen.
    #[test]
    fn loom_nap_against_an_arrival_and_the_bearers_end() {
        let body = |nap: &Nap, words: &[Arc<AtomicBool>]| {
            let look = || words.iter().any(|word| word.load(Ordering::Relaxed));
            nap.sleep(FOREVER, look);
            assert!(look(), "woken for nothing");
        };
        model(2, body, false);
    }

    /// Two naps in a row, each ended for another thing by the same side, which is slow: what belongs to the first may meet the second.
    #[test]
    fn loom_two_naps_in_a_row() {
        loom::model(|| {
            let nap = Arc::new(Nap::default());
            let words = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let (seated, mine) = (Arc::new(AtomicBool::new(false)), words.clone());
            let sits = seated.clone();
            let napper = napper(&nap, move |nap| {
                nap.owned_by_this_thread();
                sits.store(true, Ordering::Release);
                for word in mine {
                    // The end of the nap before may have come late, and ended this one.
                    while !word.load(Ordering::Relaxed) {
                        nap.sleep(FOREVER, || word.load(Ordering::Relaxed));
                    }
                }
            });
            while !seated.load(Ordering::Acquire) {
                loom::thread::yield_now();
            }
            for word in words {
                word.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                nap.end();
            }
            napper.join().unwrap();
        });
    }
}
