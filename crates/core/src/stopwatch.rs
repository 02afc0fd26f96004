//! CPU clocks of groups: one hand a CPU, one stopwatch a (group, CPU). This header is the protocol.
//!
//! # Words
//! - **hand** ([`CpuClock`]): everything that this CPU has served, to whichever group; it only grows. One writer: the
//!   CPU. Two words: `charged`, moved by every charge of the run queue, and `ahead`, by which the CPU shows service that
//!   is not charged yet (a task that reads a clock in the middle of its poll brings *itself* up to date: one store to
//!   the line of its own CPU, whatever the depth of its group). The hand is the larger of the two.
//! - **stopwatch** ([`Stopwatch`]): what the hand did while the group was on the CPU's chain of chosen groups. *Stopped*
//!   it is a value; *running* it is a distance from the hand: `value = hand + offset`, modulo 2^63. One word, whose top
//!   bit says which. It is started when the chain grows by the group and stopped when it shrinks, so a charge costs the
//!   same at any depth, and all groups of a path are charged by the same store.
//!
//! # Reading
//! Load the word; if it runs, load the hand, then the word again; if it is another now, start again. The sum over CPUs
//! is the group's clock. No lock, no store, nothing that a writer would notice. A read starts again only if a CPU
//! changed its chain in those two nanoseconds.
//!
//! # Why it is right
//! Stores release and loads acquire, in program order on the writer's side.
//! 1. *A value is never of another group's time.* If the hand that was read had moved after the watch was stopped, then
//!    the stop came before that move, and the second look sees it or something later. Something later with the same
//!    word would be a restart at the same offset: then nobody else was served in between, and the value is right.
//! 2. *A value is never older than the watch.* Who sees a running word sees the hand at its start.
//! 3. *Readers that are causally ordered see no step back.* The later one sees the same word or a later one, and a
//!    later hand; a stop keeps what the hand showed (rule 5), a start what the stop kept. The sum of such parts is one.
//! 4. *A group read after one of its descendants is not smaller.* The chain starts from the root and stops from the leaf,
//!    so whoever sees a watch running, or what it stopped at, sees those above it no older.
//! 5. *What was shown stays:* the hand never goes back, and starts and stops go by the hand. Whoever charges a poll charges
//!    at least what the poll has shown (time that turns out not to be the task's is taken off only down to there), so by the
//!    time a chain shrinks `charged` has passed `ahead`, and sums are exact.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use crate::units::Nanos;
use std::sync::Arc;

/// The stopwatch runs: the rest of the word is its distance from the hand.
const RUNNING: u64 = 1 << 63;
/// The value of a word. Unit: nanoseconds, modulo 2^63: 292 years.
const VALUE: u64 = RUNNING - 1;

/// The hand of one CPU: all that it has served so far, on a line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub struct CpuClock {
    /// Charged by the run queue, ns. Written under the exclusive borrow of the queue.
    charged: AtomicU64,
    /// Shown before it is charged, ns. Written by whoever runs on the CPU, which is one at a time.
    ahead: AtomicU64,
}

impl Default for CpuClock {
    fn default() -> CpuClock {
        CpuClock {
            charged: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
        }
    }
}

impl CpuClock {
    /// Moves the hand by what was charged.
    #[inline(always)]
    pub(crate) fn charge(&self, delta: u64) {
        let charged = self.charged.load(Ordering::Relaxed);
        self.charged
            .store(charged.wrapping_add(delta), Ordering::Release);
    }

    /// Shows `uncharged` service of the current task, which will be charged later, all of it or more. To be called only
    /// by what runs on this CPU, while its task is current. A second call before the charge replaces the first; the hand
    /// never goes back. Two loads and a store to the CPU's own line.
    #[inline(always)]
    pub fn show(&self, uncharged: Nanos) {
        let ahead = self
            .charged
            .load(Ordering::Relaxed)
            .wrapping_add(uncharged.0);
        if ahead > self.ahead.load(Ordering::Relaxed) {
            self.ahead.store(ahead, Ordering::Release);
        }
    }

    /// What is shown beyond what is charged: 0 but during a poll in which somebody called [`CpuClock::show`].
    pub fn shown(&self) -> Nanos {
        let charged = self.charged.load(Ordering::Relaxed);
        Nanos(self.ahead.load(Ordering::Relaxed).saturating_sub(charged))
    }

    #[inline]
    fn hand(&self) -> u64 {
        let charged = self.charged.load(Ordering::Acquire);
        charged.max(self.ahead.load(Ordering::Acquire))
    }
}

/// The CPU time of one group on one CPU.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    word: AtomicU64,
    clock: Arc<CpuClock>,
}

impl Stopwatch {
    pub(crate) fn new(clock: Arc<CpuClock>) -> Stopwatch {
        Stopwatch {
            word: AtomicU64::new(0),
            clock,
        }
    }

    /// The hand that it follows.
    pub(crate) fn clock(&self) -> &Arc<CpuClock> {
        &self.clock
    }

    /// Whether the group is on the chain, as of some moment during the call.
    #[inline]
    pub(crate) fn runs(&self) -> bool {
        self.word.load(Ordering::Relaxed) & RUNNING != 0
    }

    /// The group joins the chain. Only for the owner of the CPU's queue; nothing if it runs already.
    #[inline]
    pub(crate) fn start(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word & RUNNING == 0 {
            let hand = self.clock.hand();
            let offset = word.wrapping_sub(hand) & VALUE;
            self.word.store(RUNNING | offset, Ordering::Release);
        }
    }

    /// The group leaves the chain, with everything charged. Only for the owner of the CPU's queue; nothing if stopped.
    #[inline]
    pub(crate) fn stop(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word & RUNNING != 0 {
            let hand = self.clock.hand();
            let value = word.wrapping_add(hand) & VALUE;
            self.word.store(value, Ordering::Release);
        }
    }

    /// Whether the group is on the chain.
    pub(crate) fn is_running(&self) -> bool {
        self.word.load(Ordering::Relaxed) & RUNNING != 0
    }

    /// Nanoseconds so far, from any thread.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & RUNNING == 0 {
                return word;
            }
            let hand = self.clock.hand();
            let again = self.word.load(Ordering::Acquire);
            if again == word {
                return word.wrapping_add(hand) & VALUE;
            }
            // Bounded by the writer's progress: it has started or stopped a chain meanwhile.
            word = again;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_only_while_it_runs() {
        let clock = Arc::<CpuClock>::default();
        let watch = Stopwatch::new(Arc::clone(&clock));
        clock.charge(5);
        assert_eq!(watch.read(), 0);
        watch.start();
        clock.charge(7);
        assert_eq!(watch.read(), 7);
        watch.stop();
        clock.charge(100);
        assert_eq!(watch.read(), 7);
        watch.start();
        watch.start();
        clock.charge(1);
        watch.stop();
        watch.stop();
        assert_eq!(watch.read(), 8);
    }

    #[test]
    fn what_is_shown_counts_once() {
        let clock = Arc::<CpuClock>::default();
        let watch = Stopwatch::new(Arc::clone(&clock));
        watch.start();
        clock.show(Nanos(10));
        assert_eq!((watch.read(), clock.shown()), (10, Nanos(10)));
        clock.show(Nanos(4));
        assert_eq!(watch.read(), 10, "nothing is taken back");
        clock.charge(12);
        assert_eq!((watch.read(), clock.shown()), (12, Nanos(0)));
        watch.stop();
        assert_eq!(watch.read(), 12);
    }

    /// The arithmetic is modulo 2^63: a watch that is younger than the hand has a wrapped offset.
    #[test]
    fn a_young_watch_on_an_old_cpu_starts_at_zero() {
        let clock = Arc::<CpuClock>::default();
        clock.charge(VALUE - 3);
        let watch = Stopwatch::new(Arc::clone(&clock));
        watch.start();
        clock.charge(3);
        assert_eq!(watch.read(), 3);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;

    /// Two groups take turns on one CPU; readers see neither a step back nor the other group's time, whatever the order.
    #[test]
    fn loom_readers_see_no_step_back_and_no_foreign_time() {
        loom::model(|| {
            let clock = Arc::<CpuClock>::default();
            let (mine, other) = (
                Arc::new(Stopwatch::new(Arc::clone(&clock))),
                Arc::new(Stopwatch::new(Arc::clone(&clock))),
            );
            let reader = {
                let mine = Arc::clone(&mine);
                loom::thread::spawn(move || {
                    let first = mine.read();
                    let second = mine.read();
                    assert!(first <= second && second <= 6, "{first} then {second}");
                })
            };
            mine.start();
            clock.show(Nanos(1));
            clock.charge(2);
            mine.stop();
            other.start();
            clock.charge(100);
            other.stop();
            mine.start();
            clock.charge(4);
            reader.join().unwrap();
            assert_eq!((mine.read(), other.read()), (6, 100));
        });
    }

    /// A group read after its child is not smaller, however the chain grows and shrinks.
    #[test]
    fn loom_a_parent_covers_its_child() {
        loom::model(|| {
            let clock = Arc::<CpuClock>::default();
            let (parent, child) = (
                Arc::new(Stopwatch::new(Arc::clone(&clock))),
                Arc::new(Stopwatch::new(Arc::clone(&clock))),
            );
            let reader = {
                let (parent, child) = (Arc::clone(&parent), Arc::clone(&child));
                loom::thread::spawn(move || {
                    let below = child.read();
                    let above = parent.read();
                    assert!(above >= below, "{above} above, {below} below");
                })
            };
            parent.start();
            child.start();
            clock.show(Nanos(2));
            clock.charge(3);
            child.stop();
            parent.stop();
            reader.join().unwrap();
        });
    }

    /// What one reader saw and passed on, another sees too.
    #[test]
    fn loom_causally_ordered_readers_see_no_step_back() {
        loom::model(|| {
            let clock = Arc::<CpuClock>::default();
            let watch = Arc::new(Stopwatch::new(Arc::clone(&clock)));
            let told = Arc::new(AtomicU64::new(0));
            let reader = {
                let (watch, told) = (Arc::clone(&watch), Arc::clone(&told));
                loom::thread::spawn(move || told.store(watch.read(), Ordering::Release))
            };
            let listener = {
                let (watch, told) = (Arc::clone(&watch), Arc::clone(&told));
                loom::thread::spawn(move || {
                    let heard = told.load(Ordering::Acquire);
                    let own = watch.read();
                    assert!(own >= heard, "heard {heard}, read {own}");
                })
            };
            watch.start();
            clock.show(Nanos(1));
            clock.charge(2);
            watch.stop();
            reader.join().unwrap();
            listener.join().unwrap();
        });
    }
}
