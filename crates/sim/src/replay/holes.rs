//! Holes in a trace: stretches in which nothing at all happened on any CPU, though something always did before. Who ran when one began did not run
//! through it, for his ticks' work, kernel threads and the recorder would show: the trace was stopped, or a piece of it is lost. So they are cut out of its time, and
//! who plays the rest is told.

use quotient_core::{CpuId, Nanos};
use quotient_trace::{Event, Kind, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// A silence that may be a hole while somebody runs. Default 0.5 s: the kernel's own threads (of its clock's watchdog, of statistics) run that often on a machine where anything does.
/// The longest in twelve recordings of 8 s was 0.03 s.
const HOLE_MIN: u64 = 500_000_000;
/// The same while all CPUs idle. Default 2 s: where nobody computes, the kernel's threads do hardly more than once a second.
const IDLE_MIN: u64 = 2_000_000_000;
/// It is one if it is so many times as long as the longest silences before. Default 10: on a machine that does something each 0.1 s, one second is none yet.
const HOLE_TIMES: u64 = 10;
/// The longest silences of which the least counts: the others may be holes themselves. Default 16.
const LONGEST: usize = 16;
/// Silences that are seen before one is judged. Default 256: with fewer, nothing is usual.
const SEEN_MIN: u64 = 256;
/// Holes that are told one by one.
const KEPT: usize = 16;

/// A stretch of a trace in which nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// From the begin of the trace as it was recorded, ns.
    pub from_ns: u64,
    /// The same.
    pub to_ns: u64,
}

/// All that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    /// The first of them.
    pub first: Vec<Hole>,
    /// How many there are.
    pub count: u64,
    /// How long they are together: a recording is shorter by that.
    pub length: Nanos,
    /// The longest silence that was usual before the last of them.
    pub usual: Nanos,
}

/// The time of a trace without its holes.
#[derive(Debug, Default)]
pub(super) struct Clock {
    pub(super) holes: Holes,
    begin: Option<u64>,
    last: u64,
    seen: u64,
    /// The longest silences, the longest first.
    longest: Vec<u64>,
    /// Who runs on each CPU.
    running: BTreeMap<CpuId, TaskId>,
    /// Who was seen to leave one: some tasks never are, and seem to run for ever.
    left: BTreeSet<TaskId>,
}

impl Clock {
    /// Something happens: when that was without the holes before. To be asked in the order of time, of marks and timers too. Only a kernel's trace shows
    /// everything that happens. O([`LONGEST`]).
    pub(super) fn at(&mut self, time: Nanos, is_kernels: bool) -> Nanos {
        if !is_kernels {
            return time;
        }
        let begin = *self.begin.get_or_insert(time.0);
        let last = self.last.max(begin);
        let silence = time.0.saturating_sub(last);
        if self.is_hole(silence, last - begin) {
            self.holes.count += 1;
            self.holes.length.0 += silence;
            if self.holes.first.len() < KEPT {
                self.holes.first.push(Hole {
                    from_ns: last - begin,
                    to_ns: time.0 - begin,
                });
            }
        } else {
            self.seen += 1;
            let place = self.longest.partition_point(|longer| *longer >= silence);
            if place < LONGEST {
                self.longest.insert(place, silence);
                self.longest.truncate(LONGEST);
            }
        }
        self.last = last.max(time.0);
        Nanos(time.0.saturating_sub(self.holes.length.0))
    }

    /// Somebody else runs on a CPU.
    pub(super) fn note(&mut self, event: &Event) {
        if let Kind::Switch { prev, state, next } = event.kind {
            self.running.insert(event.cpu, next);
            if state.is_over() {
                self.left.remove(&prev);
            } else {
                self.left.insert(prev);
            }
        }
    }

    fn is_idle(&self) -> bool {
        let mut running = self.running.values();
        !running.any(|task| !task.is_idle() && self.left.contains(task))
    }

    fn is_hole(&mut self, silence: u64, passed: u64) -> bool {
        // As long as it, at least, has to be seen of what is usual.
        if silence < HOLE_MIN || self.seen < SEEN_MIN || passed < HOLE_MIN {
            return false;
        }
        if silence < IDLE_MIN && self.is_idle() {
            return false;
        }
        let usual = self.longest.last().copied().unwrap_or(0);
        let is_one = silence >= usual.saturating_mul(HOLE_TIMES);
        if is_one {
            self.holes.usual = Nanos(usual);
        }
        is_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events each so many ms, one of them later by so much; how long the holes are, and the time of the last event.
    fn cut_while(is_busy: bool, every: u64, count: u64, at: u64, silence: u64) -> (u64, u64) {
        let mut clock = Clock::default();
        clock.running.insert(CpuId(0), TaskId(7));
        if is_busy {
            clock.left.insert(TaskId(7));
        }
        let mut last = 0;
        for number in 0..count {
            let later = if number >= at { silence } else { 0 };
            last = clock
                .at(Nanos::from_millis(1_000 + number * every + later), true)
                .0;
        }
        (clock.holes.length.0 / 1_000_000, last / 1_000_000)
    }

    fn cut(every: u64, count: u64, at: u64, silence: u64) -> (u64, u64) {
        cut_while(true, every, count, at, silence)
    }

    #[test]
    fn a_machine_where_all_idle_may_be_silent_for_longer() {
        assert_eq!(cut_while(false, 10, 1_000, 500, 1_980), (0, 12_970));
        assert_eq!(cut_while(false, 10, 1_000, 500, 1_990), (2_000, 10_980));
    }

    #[test]
    fn only_what_is_longer_than_usual_is_a_hole() {
        // The silence before it is a part of the hole.
        assert_eq!(cut(10, 1_000, 500, 990), (1_000, 10_980));
        assert_eq!(cut(10, 1_000, 500, 3_600_000), (3_600_010, 10_980));
        assert_eq!(cut(10, 1_000, 500, 400), (0, 11_390));
        // Something each 200 ms: two seconds are ten times that.
        assert_eq!(cut(200, 1_000, 500, 1_700), (0, 202_500));
        assert_eq!(cut(200, 1_000, 500, 1_800), (2_000, 200_600));
        // Too little before.
        assert_eq!(cut(10, 1_000, 100, 5_000), (0, 15_990));
    }

    #[test]
    fn a_trace_with_many_holes_has_these_cut_and_the_first_told() {
        let mut clock = Clock::default();
        for number in 0..10_000 {
            clock.at(Nanos::from_millis(number * 10 + number / 300 * 2_000), true);
        }
        assert_eq!(clock.holes.count, 33);
        assert_eq!(clock.holes.first.len(), KEPT);
        assert_eq!(clock.holes.length, Nanos::from_millis(33 * 2_010));
    }
}
