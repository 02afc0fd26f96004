//! What comes next: a tournament over the CPUs, and a heap of timers. Ties are broken the same way on every machine.
//!
//! A CPU has one next moment (the end of what its task does, or its tick), which is moved far more often than it is
//! reached: in a heap every preemption would leave a dead entry behind. So each CPU has a place in a tournament tree,
//! where moving a moment costs log2(CPUs) comparisons and nothing is left behind. Timers (sleepers, arrivals, periods)
//! are never moved and go into a binary heap, ordered by time and then by when they were set.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No moment at all.
pub(crate) const NEVER: u64 = u64::MAX;

/// The next moment of each CPU; the earliest is always known.
#[derive(Debug)]
pub(crate) struct Moments {
    /// A complete binary tree: node n has children 2n and 2n+1, leaves are the CPUs.
    times: Vec<u64>,
    winners: Vec<u32>,
    leaves: usize,
}

impl Moments {
    pub(crate) fn new(cpus: u32) -> Moments {
        let leaves = (cpus as usize).next_power_of_two();
        let mut moments = Moments {
            times: vec![NEVER; 2 * leaves],
            winners: vec![0; 2 * leaves],
            leaves,
        };
        for leaf in 0..leaves {
            moments.winners[leaves + leaf] = leaf as u32;
        }
        for node in (1..leaves).rev() {
            moments.winners[node] = moments.winners[2 * node];
        }
        moments
    }

    /// The earliest moment and its CPU; the lowest number first. O(1).
    #[inline]
    pub(crate) fn first(&self) -> (u64, u32) {
        (self.times[1], self.winners[1])
    }

    /// Moves the moment of a CPU. O(log CPUs), less if it changes little.
    #[inline]
    pub(crate) fn set(&mut self, cpu: u32, time: u64) {
        let (mut node, mut time, mut winner) = (self.leaves + cpu as usize, time, cpu);
        while self.times[node] != time || self.winners[node] != winner {
            self.times[node] = time;
            self.winners[node] = winner;
            if node == 1 {
                return;
            }
            // Of two of one moment the left one wins.
            let sibling = self.times[node ^ 1];
            if sibling < time || sibling == time && node % 2 == 1 {
                (time, winner) = (sibling, self.winners[node ^ 1]);
            }
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

/// Timers in the order of time; those of one moment in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// Time in the upper 64 bits, then 32 bits of sequence, then the packed timer. The sequence wraps after 2^32
    /// timers, which could only exchange two of the same nanosecond, and always does so alike.
    heap: BinaryHeap<Reverse<u128>>,
    sequence: u32,
}

impl Timers {
    #[inline]
    pub(crate) fn set(&mut self, time: u64, timer: Timer) {
        self.sequence = self.sequence.wrapping_add(1);
        let low = (u64::from(self.sequence) << 32) | u64::from(timer.pack());
        self.heap
            .push(Reverse((u128::from(time) << 64) | u128::from(low)));
    }

    /// When the next timer is due; [`NEVER`] without any.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.heap
            .peek()
            .map_or(NEVER, |Reverse(entry)| (entry >> 64) as u64)
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Timer> {
        // Truncation keeps the packed timer.
        self.heap
            .pop()
            .map(|Reverse(entry)| Timer::unpack(entry as u32))
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
}
