//! The arithmetic under all averages: fading by periods, and the contribution of an interval.

use crate::units::Nanos;

/// One unit of averaged time, 1,024 ns: a power of two near a microsecond, so that splitting time is a shift.
pub const UNIT: Nanos = Nanos(1024);

/// One period in nanoseconds, 1,024 units: what fades by y as a whole.
pub const PERIOD: Nanos = Nanos(1024 * 1024);

/// Units of a period.
const PERIOD_UNITS: u64 = 1024;

/// What the sum of something that never pauses tends to, in units: `1024 * sum(y^n)`, each step rounded down.
pub const LOAD_AVG_MAX: u64 = 47_742;

/// Periods in which anything halves: y is defined by it.
const HALF_LIFE: u64 = 32;

/// After so many periods nothing of 64 bits is left.
const FORGOTTEN: u64 = HALF_LIFE * 63;

/// `y^n * (2^32 - 1)`, rounded down, for n below the half-life.
const POWERS: [u32; HALF_LIFE as usize] = [
    0xffff_ffff,
    0xfa83_b2da,
    0xf525_7d14,
    0xefe4_b99a,
    0xeac0_c6e6,
    0xe5b9_06e6,
    0xe0cc_deeb,
    0xdbfb_b796,
    0xd744_fcc9,
    0xd2a8_1d91,
    0xce24_8c14,
    0xc9b9_bd85,
    0xc567_2a10,
    0xc12c_4cc9,
    0xbd08_a39e,
    0xb8fb_af46,
    0xb504_f333,
    0xb123_f581,
    0xad58_3ee9,
    0xa9a1_5ab4,
    0xa5fe_d6a9,
    0xa270_4302,
    0x9ef5_325f,
    0x9b8d_39b9,
    0x9837_f050,
    0x94f4_efa8,
    0x91c3_d373,
    0x8ea4_398a,
    0x8b95_c1e3,
    0x8898_0e80,
    0x85aa_c367,
    0x82cd_8698,
];

/// `value * y^periods`, rounded down; zero once nothing can be left. O(1).
#[inline]
pub fn decay(value: u64, periods: u64) -> u64 {
    if periods == 0 {
        return value;
    }
    if periods > FORGOTTEN {
        return 0;
    }
    let halved = value >> (periods / HALF_LIFE);
    let power = POWERS[(periods % HALF_LIFE) as usize];
    if let Some(product) = halved.checked_mul(u64::from(power)) {
        return product >> 32;
    }
    // A product of 64 and 32 bits, shifted by 32, fits 64.
    ((u128::from(halved) * u128::from(power)) >> 32) as u64
}

/// The interval of one update, cut at the period boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Boundaries crossed: everything older fades by so many periods.
    periods: u64,
    /// What something that went on for all of the interval adds to a sum, in units.
    contribution: u64,
    /// Where the interval ends: the time to remember.
    pub(crate) end: u64,
}

impl Span {
    /// The whole units between two times. `None` if there is none: then nothing has to be remembered but what was.
    #[inline]
    pub(crate) fn between(last: u64, now: u64) -> Option<Span> {
        let (start, end) = (last / UNIT.0, now / UNIT.0);
        if end <= start {
            return None;
        }
        let periods = end / PERIOD_UNITS - start / PERIOD_UNITS;
        let contribution = if periods == 0 {
            end - start
        } else {
            let first = decay(PERIOD_UNITS - start % PERIOD_UNITS, periods);
            let between = LOAD_AVG_MAX - decay(LOAD_AVG_MAX, periods) - PERIOD_UNITS;
            first + between + end % PERIOD_UNITS
        };
        Some(Span {
            periods,
            contribution,
            end: end * UNIT.0,
        })
    }

    /// The sum at the end of the span of something that was there `level`-fold throughout it.
    #[inline]
    pub(crate) fn extend(&self, sum: u64, level: u64) -> u64 {
        decay(sum, self.periods).saturating_add(level.saturating_mul(self.contribution))
    }
}

/// What the sum would be at `time` had it always been there: the divisor of an average.
#[inline]
pub(crate) fn divisor(time: u64) -> u64 {
    LOAD_AVG_MAX - PERIOD_UNITS + (time / UNIT.0) % PERIOD_UNITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_powers_of_y() {
        for (power, &entry) in POWERS.iter().enumerate() {
            let exact = f64::from(u32::MAX) * 0.5f64.powf(power as f64 / HALF_LIFE as f64);
            assert_eq!(entry, exact.floor() as u32, "y^{power}");
        }
    }

    #[test]
    fn the_maximum_is_where_adding_a_period_a_period_ends() {
        let mut sum = 0;
        for _ in 0..10_000 {
            sum = PERIOD_UNITS + decay(sum, 1);
        }
        assert_eq!(sum, LOAD_AVG_MAX);
    }

    #[test]
    fn nothing_is_left_after_the_last_period_and_no_count_overflows() {
        assert_eq!(decay(u64::MAX, FORGOTTEN - HALF_LIFE), 2);
        assert_eq!(decay(u64::MAX, FORGOTTEN + 1), 0);
        assert_eq!(decay(u64::MAX, u64::MAX), 0);
        let span = Span::between(0, u64::MAX).expect("a long time");
        assert_eq!(span.extend(u64::MAX, 0), 0);
        assert!(span.contribution < LOAD_AVG_MAX);
    }
}
