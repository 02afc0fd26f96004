//! When a task last changed CPUs, and what has come of that, in one word.

use crate::units::Nanos;

/// Three things in 32 bits: when the task was taken from a CPU last, in units of 65.5 us; a mark of the service that it had had by then; and whether it
/// came back from that since it may not leave its CPU.
///
/// The time wraps after 2.4 hours: a wrong age after that costs one odd choice of the balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved(u32);

/// log2 of what a bit of the word is worth, ns; the lowest bits of it are used for the marks.
const SHIFT: u32 = 11;

/// It was asked for and came back.
const IS_BOUND: u32 = 1;

/// Four bits of a hash of the service.
const SERVICE: u32 = 0x1e;

const TIME: u32 = !(SERVICE | IS_BOUND);

impl Moved {
    /// A task that has never been.
    pub(crate) const NEVER: Moved = Moved(0);

    /// Taken at `now`, after so much service in all, ns.
    #[inline]
    pub(crate) fn at(now: Nanos, service: u64) -> Moved {
        Moved(Moved::ticks(now) | hash(service))
    }

    /// The same of one that may not leave its CPU.
    #[inline]
    pub(crate) fn in_vain(self) -> Moved {
        Moved(self.0 | IS_BOUND)
    }

    /// Whether nobody has found that the task may not leave its CPU.
    #[inline]
    pub(crate) fn may_go(self) -> bool {
        self.0 & IS_BOUND == 0
    }

    /// Whether a task that has had so much by now has had anything since. Says no of one in sixteen that have.
    #[inline]
    pub(crate) fn had_turn(self, service: u64) -> bool {
        self.0 & SERVICE != hash(service)
    }

    /// How long ago it was, in [ticks](Moved::ticks).
    #[inline]
    pub(crate) fn age(self, now: Nanos) -> u32 {
        Moved::ticks(now).wrapping_sub(self.0 & TIME)
    }

    /// A time in units of 2 us, rounded down to 65.5 us.
    #[inline]
    pub(crate) fn ticks(time: Nanos) -> u32 {
        // Wraps on purpose.
        (time.0 >> SHIFT) as u32 & TIME
    }
}

/// Golden-ratio hash: service comes in round numbers where time is virtual.
#[inline]
fn hash(service: u64) -> u32 {
    (service.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as u32 & SERVICE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_goes_on_over_the_end_of_the_word() {
        let unit = Nanos(1 << (SHIFT + 5));
        let late = Nanos(u64::from(u32::MAX) << SHIFT);
        let moved = Moved::at(late, 7);
        assert_eq!(moved.age(late), 0);
        assert_eq!(moved.age(late + unit), Moved::ticks(unit));
        assert_eq!(
            Moved::NEVER.age(Nanos(unit.0 * 3)),
            Moved::ticks(Nanos(unit.0 * 3))
        );
    }

    #[test]
    fn the_marks_leave_each_other_and_the_time_alone() {
        let now = Nanos::from_secs(5);
        let moved = Moved::at(now, 3_000_000);
        assert!(moved.may_go() && !moved.had_turn(3_000_000));
        let back = moved.in_vain();
        assert!(!back.may_go() && !back.had_turn(3_000_000) && back.age(now) == 0);
        let other = (1..100).filter(|turns| back.had_turn(3_000_000 + turns * 4_000_000));
        assert!(other.count() > 80, "most turns show");
        assert!(!Moved::NEVER.had_turn(0) && Moved::NEVER.may_go());
    }
}
