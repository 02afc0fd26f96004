//! What comes next: a tournament over the CPUs, and timers by slots of time. Ties are broken the same way on every machine.
//!
//! A CPU has one next moment (the end of what its task does, or its tick), which is moved far more often than it is
//! reached: in a heap every preemption would leave a dead entry behind. So each CPU has a place in a tournament tree,
//! where moving a moment costs log2(CPUs) comparisons and nothing is left behind. Timers (sleepers, arrivals, periods)
//! are never moved and wait in slots of time, of which the one that has come is put in order: by time, then by when they were set.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No moment at all.
pub(crate) const NEVER: u64 = u64::MAX;

/// The next moment of each CPU; the earliest is always known.
///
/// A moment and whose it is are one word, the CPU in the lowest bits, so that a comparison of words orders moments and, of one moment,
/// the lower number first. That leaves 2^54 ns (208 days) for the time on 1,024 CPUs; what is later counts as never.
#[derive(Debug)]
pub(crate) struct Moments {
    /// A complete binary tree: node n has children 2n and 2n+1, leaves are the CPUs.
    winners: Box<[u64]>,
    leaves: usize,
    /// Bits of a CPU's number.
    shift: u32,
}

impl Moments {
    pub(crate) fn new(cpus: u32) -> Moments {
        let leaves = (cpus as usize).next_power_of_two();
        let shift = leaves.trailing_zeros();
        let mut winners = vec![NEVER; 2 * leaves].into_boxed_slice();
        for leaf in 0..leaves {
            winners[leaves + leaf] = NEVER << shift | leaf as u64;
        }
        for node in (1..leaves).rev() {
            winners[node] = winners[2 * node];
        }
        Moments {
            winners,
            leaves,
            shift,
        }
    }

    /// The earliest moment and its CPU; the lowest number first. O(1).
    #[inline]
    pub(crate) fn first(&self) -> (u64, u32) {
        let first = self.winners[1];
        let cpu = first & (self.leaves as u64 - 1);
        let latest = NEVER >> self.shift;
        let time = match first >> self.shift {
            time if time == latest => NEVER,
            time => time,
        };
        // Below the number of leaves.
        (time, cpu as u32)
    }

    /// Moves the moment of a CPU. O(log CPUs), less if it changes little.
    #[inline]
    pub(crate) fn set(&mut self, cpu: u32, time: u64) {
        let mut winner = time.min(NEVER >> self.shift) << self.shift | u64::from(cpu);
        let mut node = self.leaves + cpu as usize;
        while let Some(place) = self.winners.get_mut(node)
            && *place != winner
        {
            *place = winner;
            if node == 1 {
                return;
            }
            winner = winner.min(self.winners[node ^ 1]);
            node /= 2;
        }
    }
}

/// What a timer is for. The number is an index whose meaning depends on the sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A sleeping task wakes up.
    Wake(u32),
    /// A task begins.
    Begin(u32),
    /// A source lets requests arrive.
    Arrive(u32),
    /// A planned change of a group.
    Change(u32),
    /// CPUs that do not tick are charged and balanced.
    Sweep,
    /// A disturbance of a CPU.
    Noise(u32),
    /// A real-time load of a CPU is due.
    RealTime(u32),
    /// What a class above does on a CPU ends, or may go on.
    RealTimeEnd(u32),
    /// A CPU goes or comes.
    Hotplug(u32),
}

const SORT_SHIFT: u32 = 28;
/// Most tasks, sources, changes or groups: what fits beside the sort of a timer.
pub(crate) const INDEX_MAX: u32 = (1 << SORT_SHIFT) - 1;

impl Timer {
    fn pack(self) -> u32 {
        let (sort, index) = match self {
            Timer::Wake(index) => (0, index),
            Timer::Begin(index) => (1, index),
            Timer::Arrive(index) => (2, index),
            Timer::Change(index) => (3, index),
            Timer::Sweep => (4, 0),
            Timer::Noise(index) => (5, index),
            Timer::RealTime(index) => (6, index),
            Timer::RealTimeEnd(index) => (7, index),
            Timer::Hotplug(index) => (8, index),
        };
        debug_assert!(index <= INDEX_MAX);
        (sort << SORT_SHIFT) | index
    }

    fn unpack(word: u32) -> Timer {
        let index = word & INDEX_MAX;
        match word >> SORT_SHIFT {
            0 => Timer::Wake(index),
            1 => Timer::Begin(index),
            2 => Timer::Arrive(index),
            3 => Timer::Change(index),
            4 => Timer::Sweep,
            5 => Timer::Noise(index),
            6 => Timer::RealTime(index),
            7 => Timer::RealTimeEnd(index),
            _ => Timer::Hotplug(index),
        }
    }
}

/// log2 of the length of a slot of time, ns: 4 us, in which a few of thousands of sleepers wake up.
const SLOT_SHIFT: u32 = 12;

/// Slots ahead: 4 ms, beyond the usual pause between two requests. What is set further ahead waits in a heap.
const SLOTS: usize = 1_024;

/// Timers in the order of time; those of one moment in the order in which they were set.
///
/// A heap of all of them would pay log2 of all sleepers twice for each. So only those of the slot of time that has come (and what is set
/// into it or before it) are kept in order, in `near`; those of the slots ahead lie as they came. Where anything is set at all, `near` has
/// the earliest.
#[derive(Debug)]
pub(crate) struct Timers {
    near: BinaryHeap<Reverse<u128>>,
    /// By number of the slot, modulo [`SLOTS`]: those after `at` and less than [`SLOTS`] ahead of it.
    slots: Vec<Vec<u128>>,
    /// Bit i: slot i is not empty.
    occupied: [u64; SLOTS / 64],
    /// The number of the slot that has come.
    at: u64,
    far: BinaryHeap<Reverse<u128>>,
    /// Time in the upper 64 bits of an entry, then 32 bits of sequence, then the packed timer. The sequence wraps after 2^32
    /// timers, which could only exchange two of the same nanosecond, and always does so alike.
    sequence: u32,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            near: BinaryHeap::new(),
            slots: vec![Vec::new(); SLOTS],
            occupied: [0; SLOTS / 64],
            at: 0,
            far: BinaryHeap::new(),
            sequence: 0,
        }
    }
}

/// The slot of an entry.
fn slot_of(entry: u128) -> u64 {
    (entry >> 64) as u64 >> SLOT_SHIFT
}

impl Timers {
    #[inline]
    pub(crate) fn set(&mut self, time: u64, timer: Timer) {
        self.sequence = self.sequence.wrapping_add(1);
        let low = (u64::from(self.sequence) << 32) | u64::from(timer.pack());
        let entry = (u128::from(time) << 64) | u128::from(low);
        let slot = time >> SLOT_SHIFT;
        if slot <= self.at {
            self.near.push(Reverse(entry));
        } else if self.near.is_empty() {
            // The only one.
            self.at = slot;
            self.near.push(Reverse(entry));
        } else if slot - self.at < SLOTS as u64 {
            let place = slot as usize % SLOTS;
            self.slots[place].push(entry);
            self.occupied[place / 64] |= 1 << (place % 64);
        } else {
            self.far.push(Reverse(entry));
        }
    }

    /// When the next timer is due; [`NEVER`] without any.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.near
            .peek()
            .map_or(NEVER, |Reverse(entry)| (entry >> 64) as u64)
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Timer> {
        let Reverse(entry) = self.near.pop()?;
        if self.near.is_empty() {
            self.go_on();
        }
        // Truncation keeps the packed timer.
        Some(Timer::unpack(entry as u32))
    }

    /// Nothing is left of the slot that has come: the next one comes in which there is anything. O(timers in it + SLOTS / 64).
    fn go_on(&mut self) {
        let ahead = self.first_ahead();
        let far = match self.far.peek() {
            Some(Reverse(entry)) => slot_of(*entry),
            None => NEVER,
        };
        let next = ahead.min(far);
        if next == NEVER {
            return;
        }
        self.at = next;
        if ahead == next {
            let place = next as usize % SLOTS;
            self.occupied[place / 64] &= !(1 << (place % 64));
            let slot = &mut self.slots[place];
            // In any order: the heap has its own.
            while let Some(entry) = slot.pop() {
                self.near.push(Reverse(entry));
            }
        }
        while let Some(&Reverse(entry)) = self.far.peek()
            && slot_of(entry) == next
        {
            self.far.pop();
            self.near.push(Reverse(entry));
        }
    }

    /// The number of the first slot after the present one that is not empty, of those less than [`SLOTS`] ahead; [`NEVER`] without any.
    #[inline]
    fn first_ahead(&self) -> u64 {
        let first = self.at + 1;
        let place = first as usize % SLOTS;
        let bits = self.occupied[place / 64] >> (place % 64);
        if bits != 0 {
            // Nearly always within a quarter of a millisecond.
            return first + u64::from(bits.trailing_zeros());
        }
        self.first_in_other_words(first, place)
    }

    /// The same, where nothing is left of the first word but its lower bits, which come last.
    #[cold]
    fn first_in_other_words(&self, first: u64, place: usize) -> u64 {
        let words = self.occupied.len();
        for step in 1..=words {
            let word = (place / 64 + step) % words;
            let mask = match step {
                _ if step == words => !(u64::MAX << (place % 64)),
                _ => u64::MAX,
            };
            let bits = self.occupied[word] & mask;
            if bits != 0 {
                let found = word * 64 + bits.trailing_zeros() as usize;
                return first + ((found + SLOTS - place) % SLOTS) as u64;
            }
        }
        NEVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_tournament_agrees_with_a_search() {
        for cpus in [1u32, 2, 3, 64, 100] {
            let mut moments = Moments::new(cpus);
            let mut plain = vec![NEVER; cpus as usize];
            let mut random = Random::new(1, u64::from(cpus));
            for _ in 0..2_000 {
                let cpu = random.below(u64::from(cpus)) as u32;
                let time = if random.below(4) == 0 {
                    NEVER
                } else {
                    random.below(50)
                };
                moments.set(cpu, time);
                plain[cpu as usize] = time;
                let earliest = *plain.iter().min().unwrap();
                let first = plain.iter().position(|&time| time == earliest).unwrap() as u32;
                assert_eq!(moments.first(), (earliest, first));
            }
        }
    }

    #[test]
    fn timers_of_one_moment_keep_their_order() {
        let mut timers = Timers::default();
        for (time, timer) in [
            (5, Timer::Wake(1)),
            (3, Timer::Sweep),
            (5, Timer::Begin(INDEX_MAX)),
            (5, Timer::Arrive(0)),
            (5, Timer::Noise(2)),
            (6, Timer::RealTime(3)),
            (6, Timer::RealTimeEnd(4)),
            (6, Timer::Hotplug(5)),
        ] {
            timers.set(time, timer);
        }
        assert_eq!(timers.next(), 3);
        let order: Vec<Timer> = std::iter::from_fn(|| timers.pop()).collect();
        let expected = [
            Timer::Sweep,
            Timer::Wake(1),
            Timer::Begin(INDEX_MAX),
            Timer::Arrive(0),
            Timer::Noise(2),
            Timer::RealTime(3),
            Timer::RealTimeEnd(4),
            Timer::Hotplug(5),
        ];
        assert_eq!(order, expected);
        assert_eq!(timers.next(), NEVER);
    }

    /// Whatever is set and taken in between, near, ahead, far or before what has come.
    #[test]
    fn slots_of_time_agree_with_a_heap() {
        for reach in [1 << 8, 1 << 14, 1 << 21, 1 << 24, 1 << 40] {
            let (mut timers, mut plain) = (Timers::default(), BinaryHeap::new());
            let mut random = Random::new(7, reach);
            let mut now = 0;
            for number in 0..20_000u32 {
                if random.below(20_000) < 9_000 + u64::from(number) / 8 {
                    assert_eq!(
                        timers.next(),
                        plain.peek().map_or(NEVER, |Reverse((time, _))| *time)
                    );
                    let expected = plain.pop().map(|Reverse((time, number))| {
                        now = time;
                        Timer::Wake(number)
                    });
                    assert_eq!(timers.pop(), expected);
                } else {
                    let reach = if random.below(10) == 0 {
                        reach << 6
                    } else {
                        reach
                    };
                    // Some at the same moment, and some before the last one.
                    let time = (now + random.below(reach) / 4 * 4).saturating_sub(reach / 16);
                    timers.set(time, Timer::Wake(number));
                    plain.push(Reverse((time, number)));
                }
            }
            let rest: Vec<Timer> = std::iter::from_fn(|| timers.pop()).collect();
            let sorted = plain.into_sorted_vec();
            let expected: Vec<Timer> = sorted
                .iter()
                .rev()
                .map(|Reverse((_, number))| Timer::Wake(*number))
                .collect();
            assert_eq!(rest, expected);
        }
    }
}
