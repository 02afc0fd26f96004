//! Which virtual CPUs sleep and may be claimed: one bit each, in as many words as there are 64 slots.
//!
//! # Protocol
//! A virtual CPU's bit is set by itself before it sleeps, and cleared by whoever claims it or by its own next poll; nobody else writes
//! it. The set is a hint for choosing; the truth is the parking word (`park`). What "publish to idle" (`shared::hand_in`) asks of it holds for
//! each bit alone, in however many words they are: the publisher pushes, fences, then reads *every* word; the sleeper sets its bit,
//! fences, then looks at every inbox. For each sleeper either the reading of its word comes after its bit was set, or its look comes
//! after the push. That the words are read at different moments changes nothing, since no claim is made about two sleepers together.
//!
//! Words in which nobody ever slept are not read: the sleeper raises their number before it sets its bit, so that it holds of the number,
//! too, what holds of the bit. Each word has a cache line: with up to 64 slots in use there is one, beyond that sleepers of different
//! words do not disturb each other. Who looks for somebody begins at its own word, so that not all of a large machine claim
//! the same sleeper. O(slots in use / 64).

use crossbeam_utils::CachePadded;

use crate::primitives::{AtomicU64, AtomicUsize, Ordering, fence};

/// Bits of a word.
const BITS: usize = u64::BITS as usize;

/// The sleepers of one scheduler.
#[derive(Debug)]
pub(crate) struct IdleSet {
    words: Box<[CachePadded<AtomicU64>]>,
    /// Words below which all are that ever had a bit; grows only, before the bit is set.
    used: AtomicUsize,
}

impl IdleSet {
    /// Nobody of `slots` sleeps.
    pub(crate) fn new(slots: usize) -> Self {
        let words = slots.div_ceil(BITS).max(1);
        Self {
            words: (0..words)
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
            used: AtomicUsize::new(1),
        }
    }

    fn used(&self) -> &[CachePadded<AtomicU64>] {
        &self.words[..self.used.load(Ordering::Relaxed)]
    }

    #[inline]
    fn place(&self, vcpu: usize) -> (&AtomicU64, u64) {
        (&self.words[vcpu / BITS], 1 << (vcpu % BITS))
    }

    /// S1: it is about to sleep.
    pub(crate) fn add(&self, vcpu: usize) {
        let needed = vcpu / BITS + 1;
        if self.used.load(Ordering::Relaxed) < needed {
            self.used.fetch_max(needed, Ordering::SeqCst);
        }
        let (word, bit) = self.place(vcpu);
        word.fetch_or(bit, Ordering::SeqCst);
    }

    /// It was claimed, or does not sleep after all.
    pub(crate) fn remove(&self, vcpu: usize) {
        let (word, bit) = self.place(vcpu);
        word.fetch_and(!bit, Ordering::SeqCst);
    }

    /// It runs: as [`IdleSet::remove`], without a write if nobody's bit is to be cleared.
    #[inline]
    pub(crate) fn remove_if_there(&self, vcpu: usize) {
        let (word, bit) = self.place(vcpu);
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether anybody sleeps, as far as seen.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        let is_set = |word: &CachePadded<AtomicU64>| word.load(Ordering::Relaxed) != 0;
        // There is a first word always, and seldom a second one.
        self.words.first().is_some_and(is_set)
            || self.used.load(Ordering::Relaxed) > 1 && self.used().iter().any(is_set)
    }

    /// P2 and P3: whether anybody sleeps who does not see what was pushed before.
    #[inline]
    pub(crate) fn any_after_push(&self) -> bool {
        fence(Ordering::SeqCst);
        self.any()
    }

    /// Somebody who sleeps and `may` be woken, from `near`'s word on.
    #[inline]
    pub(crate) fn find(&self, near: usize, may: impl Fn(usize) -> bool) -> Option<usize> {
        let words = self.used();
        let count = words.len();
        let first = near / BITS % count;
        (first..count).chain(0..first).find_map(|index| {
            let word = words[index].load(Ordering::SeqCst);
            sleepers(index, word).find(|sleeper| may(*sleeper))
        })
    }
}

/// Whose bits are set in the word of this index.
fn sleepers(index: usize, word: u64) -> impl Iterator<Item = usize> {
    let next = |left: &u64| Some(left & (left - 1)).filter(|left| *left != 0);
    std::iter::successors(Some(word).filter(|word| *word != 0), next)
        .map(move |left| index * BITS + left.trailing_zeros() as usize)
}

/// Virtual CPUs that have to look at something. Grows with the highest of them; no allocation below 64.
#[derive(Debug, Default)]
pub(crate) struct VcpuSet {
    first: u64,
    more: Vec<u64>,
}

impl VcpuSet {
    pub(crate) fn insert(&mut self, vcpu: usize) {
        let (word, bit) = (vcpu / BITS, 1 << (vcpu % BITS));
        let Some(beyond) = word.checked_sub(1) else {
            self.first |= bit;
            return;
        };
        if self.more.len() <= beyond {
            self.more.resize(beyond + 1, 0);
        }
        self.more[beyond] |= bit;
    }

    /// All of them, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        let words = std::iter::once(self.first).chain(self.more.iter().copied());
        words
            .enumerate()
            .flat_map(|(index, word)| sleepers(index, word))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_set_keeps_numbers_of_any_word() {
        let numbers = [0, 1, 31, 32, 63, 64, 127, 128, 1_000, 2_047];
        let mut set = VcpuSet::default();
        for number in numbers.iter().rev() {
            set.insert(*number);
            set.insert(*number);
        }
        assert!(set.iter().eq(numbers));
        assert_eq!(VcpuSet::default().iter().count(), 0);
    }

    /// Hazard: a sleeper beyond the first word is never found, or another one's bit is cleared with it.
    #[test]
    fn each_sleeper_is_found_in_its_own_word() {
        for slots in [1, 2, 64, 65, 128, 256, 2_048] {
            let set = IdleSet::new(slots);
            assert!(!set.any());
            for vcpu in 0..slots {
                set.add(vcpu);
                assert!(set.any());
                for near in [0, vcpu, slots - 1] {
                    assert_eq!(
                        set.find(near, |_| true),
                        Some(vcpu),
                        "of {slots}, near {near}"
                    );
                }
                set.remove_if_there((vcpu + 1) % slots.max(2));
                assert_eq!(
                    set.find(0, |_| true),
                    Some(vcpu),
                    "another's bit was cleared"
                );
                set.remove(vcpu);
                assert_eq!(set.find(vcpu, |_| true), None);
            }
        }
    }

    #[test]
    fn who_is_near_is_preferred() {
        let set = IdleSet::new(256);
        for vcpu in [3, 70, 200] {
            set.add(vcpu);
        }
        let found = [0, 64, 127, 128, 255].map(|near| set.find(near, |_| true));
        assert_eq!(found, [3, 70, 70, 200, 200].map(Some));
        assert_eq!(
            set.find(0, |sleeper| sleeper > 3),
            Some(70),
            "one that may not"
        );
        assert_eq!(set.find(0, |_| false), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    /// Publish to idle with two sleepers in two words: whoever sleeps beside the push is seen by the publisher.
    #[test]
    fn loom_a_sleeper_in_any_word_is_seen_or_sees() {
        loom::model(|| {
            let idle = Arc::new(IdleSet::new(128));
            let inbox = Arc::new(AtomicUsize::new(0));
            let sleepers: Vec<_> = [0, 64]
                .map(|vcpu| {
                    let (idle, inbox) = (idle.clone(), inbox.clone());
                    loom::thread::spawn(move || {
                        idle.add(vcpu);
                        fence(Ordering::SeqCst);
                        inbox.load(Ordering::Relaxed) == 0
                    })
                })
                .into_iter()
                .collect();
            inbox.store(1, Ordering::Relaxed);
            let seen = idle.any_after_push();
            let slept = sleepers
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .filter(|slept| *slept)
                .count();
            assert!(slept == 0 || seen, "slept beside a task in another's inbox");
        });
    }
}
