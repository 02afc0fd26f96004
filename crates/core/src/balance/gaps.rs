//! Gaps of a CPU that are too short for somebody else's task.
//!
//! A CPU whose task sleeps for microseconds idles that long. What it pulls meanwhile runs until that task wakes and waits from then on, behind a task that
//! hardly sleeps: two such CPUs took a spinner from each other in each gap, 9,800 times a second, and it had 0.04 CPUs for 0.5, while the CPU on which
//! it would have had its turn was never asked. The kernel does not look for work where its CPU idles for less than half a millisecond on
//! average, and may idle for most of the time so. Here it is mostly the part that counts: gaps are left unused that come to no more than one in [`PART`] of the
//! CPU's time, and one that lasts longer is used. So is any of [`LONG`], however seldom it comes. And one of up to [`SHORT`] is not worth what a move
//! costs: but where they come to one in [`MUCH`] of the CPU's time, and no other CPU idles, one is used when they have come to [`UNUSED_MAX`] since the last.
//!
//! For a host that looks again: who waits elsewhere stays there until the CPU is asked once more, at a tick of the one where it waits, say.

use crate::units::Nanos;

/// The part of a CPU's time that gaps may come to and be left unused. Unit: one in so many. Default 96: a hundredth of the work that could be done is left at
/// most. From 16 to 128 random set-ups are equally fair; which one of the scenarios with tasks in step is not differs from value to value, and here all hold.
const PART: u64 = 96;

/// A gap that is longer is used. Default 10 ms, a tick at 100 Hz. (A CPU whose task sleeps for 95 ms after each ten seconds left all of that unused, while others
/// waited. With 1 ms a spinner beside sleepers of ten times its weight has 0.84 of its part for 0.97, and with 0.5 ms a group beside tasks that sleep for that
/// long has 0.353 of a CPU for 0.380.)
const LONG: Nanos = Nanos::from_millis(10);

/// One that is no longer is not, but for [`UNUSED_MAX`]. Default 10 us, about what the first cache misses of a task cost that comes from another CPU. (Loops
/// of 20 us that slept for 1 us went from CPU to CPU each time, 100,000 times a second; one of 26 us beside two of 376 us on two CPUs had 0.13 of a CPU for
/// 0.67: its CPU was taken while it slept for 1 us, and then it waited for all of the other's work. Random set-ups of tasks that hardly sleep: 10 of 389
/// below 0.3 of their part, now 1, with 700 moves a second for 18,000 and 0.7 % less work done. Gaps of 10 us each are on average a little longer, by how
/// averages are rounded, and are used.)
const SHORT: Nanos = Nanos::from_micros(10);

/// The part of a CPU's time that short gaps may come to and all be left unused. Unit: one in so many. Default 4. (Where a ninth was too much, who came for it
/// waited behind loops of 40 us that sleep for 5, and ran in their gaps only: a spinner of 1000 had 0.15 of a CPU that it would have had for itself.)
const MUCH: u64 = 4;

/// What may be left unused since the last time for want of gaps long enough. Default 1 ms, a hundred times what a move costs: short gaps that come to
/// most of a CPU's time let somebody in within 2 ms, and then there are none. (Two spinners beside a loop of 4 us that sleeps for 8 left a third of two
/// CPUs idle for as long as the machine ran.)
const UNUSED_MAX: Nanos = Nanos::from_millis(1);

/// Each gap counts with this part in the averages: an eighth, as in the kernel.
const AVERAGE_SHIFT: u32 = 3;

/// What is known of the gaps of one CPU, in constant space.
///
/// A gap begins when a CPU has nothing to run, and ends when one of its own tasks wakes, whatever it has pulled meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Gaps {
    since: Option<Nanos>,
    /// When the last one ended.
    ended: Nanos,
    /// How long they are on average, and from the end of one to the end of the next.
    length: Nanos,
    cycle: Nanos,
    /// How long it was idle since a gap was used last.
    unused: Nanos,
}

/// What a gap is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapUse {
    /// Nobody should come.
    None,
    /// One task may come.
    One,
    /// The CPU looks for work as one that has none.
    All,
}

impl Default for Gaps {
    /// Before anything is known every gap is used.
    fn default() -> Gaps {
        let unknown = Nanos::from_millis(1);
        Gaps {
            since: None,
            ended: Nanos::ZERO,
            length: unknown,
            cycle: unknown,
            unused: Nanos::ZERO,
        }
    }
}

impl Gaps {
    /// The CPU has nothing to run at `now`. Whether it should pull from others: unless its gaps are short, and this one is no longer yet. Where another CPU
    /// idles as well (`others_idle`) none that is short is used: who waits has that one to go to. (Beside CPUs on which a limit kept a group back, a loop of
    /// 2 us with gaps of as much went from one idle CPU to the next, and spinners of that group after it, 15,000 times a second.) O(1).
    pub fn begin(&mut self, now: Nanos, others_idle: bool) -> GapUse {
        let since = *self.since.get_or_insert(now);
        let length = self.length.max(now.saturating_sub(since));
        let is_small = length.0.saturating_mul(PART) < self.cycle.0;
        let is_short = length <= SHORT;
        let is_much = length.0.saturating_mul(MUCH) >= self.cycle.0;
        if length > LONG || !is_small && !is_short {
            self.unused = Nanos::ZERO;
            GapUse::All
        } else if is_much && !others_idle && self.unused >= UNUSED_MAX {
            self.unused = Nanos::ZERO;
            GapUse::One
        } else {
            GapUse::None
        }
    }

    /// A task wakes, or is new, on the CPU. O(1), nothing without a gap.
    #[inline]
    pub fn end(&mut self, now: Nanos) {
        if let Some(since) = self.since.take() {
            let average = |known: Nanos, new: Nanos| {
                Nanos(known.0 - (known.0 >> AVERAGE_SHIFT) + (new.0 >> AVERAGE_SHIFT))
            };
            self.length = average(self.length, now.saturating_sub(since));
            self.cycle = average(self.cycle, now.saturating_sub(self.ended));
            self.ended = now;
            self.unused = self.unused.saturating_add(now.saturating_sub(since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work and sleep by turns, in us: whether the last gap is used as it begins.
    fn uses(work: u64, sleep: u64) -> bool {
        let (mut gaps, mut now, mut used) = (Gaps::default(), 0, true);
        for _ in 0..200 {
            now += work;
            used = gaps.begin(Nanos::from_micros(now), false) == GapUse::All;
            now += sleep;
            gaps.end(Nanos::from_micros(now));
        }
        used
    }

    #[test]
    fn gaps_of_less_than_a_hundredth_are_left() {
        assert!(!uses(203, 1) && !uses(3_900, 3) && !uses(10_000, 50));
        assert!(uses(93, 10) && uses(990, 20) && uses(20, 20) && uses(10_000, 500));
        assert!(
            !uses(20, 1) && !uses(5, 9),
            "not worth a move, as long as it is not much"
        );
        assert!(uses(2_000_000, 11_000), "long, however seldom");
    }

    /// Hazard: short gaps that come to most of a CPU's time are left unused for ever.
    #[test]
    fn short_gaps_are_used_once_they_have_come_to_a_millisecond() {
        let (mut gaps, mut now, mut used) = (Gaps::default(), 0, Vec::new());
        for round in 0..1_000 {
            now += 4;
            let at = Nanos::from_micros(now);
            if gaps.begin(at, false) == GapUse::One {
                used.push(round);
            }
            now += 8;
            gaps.end(Nanos::from_micros(now));
        }
        // The averages begin with 1 ms, so the first gaps seem long, and are used as such.
        assert!((7..=8).contains(&used.len()), "{used:?}");
        assert!(used.windows(2).all(|pair| pair[1] - pair[0] == 125));
    }

    /// Hazard: a loop goes from one idle CPU to the next, and who is kept back after it, a move each time.
    #[test]
    fn short_gaps_are_left_while_others_idle() {
        let (mut gaps, mut now) = (Gaps::default(), 0);
        for round in 0..1_000 {
            now += 4;
            let used = gaps.begin(Nanos::from_micros(now), true) != GapUse::None;
            assert!(!used || round < 50, "the averages begin with 1 ms: {round}");
            now += 8;
            gaps.end(Nanos::from_micros(now));
        }
        let at = Nanos::from_micros(now + 4);
        assert_eq!(gaps.begin(at, false), GapUse::One, "and alone it is due");
    }

    /// Hazard: a CPU whose task stays away idles for as long as others wait.
    #[test]
    fn a_gap_that_lasts_is_used() {
        let mut gaps = Gaps::default();
        let mut now = 0;
        for _ in 0..200 {
            now += 1_000;
            gaps.begin(Nanos::from_micros(now), false);
            now += 2;
            gaps.end(Nanos::from_micros(now));
        }
        let at = |later: u64| Nanos::from_micros(now + 1_000 + later);
        let mut begins = |now| gaps.begin(now, false) != GapUse::None;
        assert!(!begins(at(0)) && !begins(at(9)));
        assert!(begins(at(11)), "and then it is more than a hundredth");
    }

    #[test]
    fn the_first_gap_is_used_and_the_end_of_none_is_nothing() {
        let mut gaps = Gaps::default();
        gaps.end(Nanos::from_millis(5));
        assert_eq!(gaps.begin(Nanos::from_millis(5), false), GapUse::All);
    }
}
