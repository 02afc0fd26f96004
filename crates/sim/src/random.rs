//! Randomness that is the same on every machine: PCG-32 streams and distributions in integer arithmetic.
//!
//! Every task and every source has a stream of its own, derived from the seed and its number, so that adding one more
//! leaves what the others draw as it was. No floating point: a logarithm may differ between mathematical libraries.

use quotient_core::Nanos;
use rand_core::Rng;
use rand_pcg::Pcg32;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(Pcg32);

impl Random {
    /// Stream number `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Random {
        // PCG streams whose numbers are close are correlated: both words go through a mixer first.
        let state = mix(seed ^ mix(stream));
        Random(Pcg32::new(state, mix(state ^ stream)))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 for a bound of 0. The bias is below `bound / 2^64`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.bits()) * u128::from(bound);
        (product >> 64) as u64
    }

    /// A number of an exponential distribution with that mean, at most 45 times the mean.
    #[inline]
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let scaled = (u128::from(mean) * u128::from(minus_ln(self.bits()))) >> 32;
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// The finalizer of SplitMix64: every input bit changes every output bit with probability one half.
fn mix(value: u64) -> u64 {
    let mut word = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// `log2(1 + k/256)` in units of 2^-32, for k = 0..=256.
const LOG2: [u64; 257] = log2_table();

/// ln 2 in units of 2^-32.
const LN_2: u64 = 2_977_044_472;

const fn log2_table() -> [u64; 257] {
    let mut table = [0; 257];
    let mut index = 0;
    while index < 256 {
        // Squaring doubles the logarithm: each time the mantissa passes 2, one more bit of it is 1.
        let mut mantissa: u128 = (256 + index as u128) << 54;
        let mut logarithm = 0;
        let mut bit = 0;
        while bit < 32 {
            mantissa = (mantissa * mantissa) >> 62;
            logarithm <<= 1;
            if mantissa >= 1 << 63 {
                logarithm |= 1;
                mantissa >>= 1;
            }
            bit += 1;
        }
        table[index] = logarithm;
        index += 1;
    }
    table[256] = 1 << 32;
    table
}

/// `-ln(bits / 2^64)` in units of 2^-32, to about 2^-18: a table and a straight line between its points.
fn minus_ln(bits: u64) -> u64 {
    let bits = bits | 1;
    let zeros = bits.leading_zeros();
    let mantissa = bits << zeros;
    let index = ((mantissa >> 55) & 0xff) as usize;
    let rest = (mantissa >> 31) & 0xff_ffff;
    let (low, high) = (LOG2[index], LOG2[index + 1]);
    let logarithm = low + (((high - low) * rest) >> 24);
    let minus_log2 = (u64::from(zeros + 1) << 32) - logarithm;
    ((u128::from(minus_log2) * u128::from(LN_2)) >> 32) as u64
}

/// How long something takes: a fixed time or a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Always the same.
    Fixed(Nanos),
    /// Anything from `low` up to and including `high`, all equally likely.
    Uniform {
        /// The shortest.
        low: Nanos,
        /// The longest.
        high: Nanos,
    },
    /// Exponentially distributed: arrivals without memory.
    Exponential {
        /// The mean.
        mean: Nanos,
    },
}

impl Span {
    /// Nothing.
    pub const ZERO: Span = Span::Fixed(Nanos::ZERO);

    /// Draws one, ns.
    #[inline(always)]
    pub fn draw(self, random: &mut Random) -> u64 {
        match self {
            Span::Fixed(length) => length.0,
            Span::Uniform { low, high } => {
                let width = high.0.saturating_sub(low.0).saturating_add(1);
                low.0 + random.below(width)
            }
            Span::Exponential { mean } => random.exponential(mean.0),
        }
    }

    /// The mean.
    pub fn mean(self) -> Nanos {
        match self {
            Span::Fixed(length) => length,
            Span::Uniform { low, high } => Nanos(low.0 / 2 + high.0 / 2 + (low.0 & high.0 & 1)),
            Span::Exponential { mean } => mean,
        }
    }
}

impl From<Nanos> for Span {
    fn from(length: Nanos) -> Span {
        Span::Fixed(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_close_to_the_real_one() {
        for bits in [1, 3, 1 << 20, 1 << 63, u64::MAX, 0x1234_5678_9abc_def0] {
            let exact = -((bits as f64) / 2f64.powi(64)).ln();
            let ours = minus_ln(bits) as f64 / 2f64.powi(32);
            assert!((exact - ours).abs() < 1e-5, "{bits:#x}: {exact} {ours}");
        }
    }

    #[test]
    fn means_are_kept() {
        let mut random = Random::new(7, 1);
        let count = 200_000;
        let sum: u64 = (0..count).map(|_| random.exponential(1_000_000)).sum();
        assert!(
            (sum / count).abs_diff(1_000_000) < 10_000,
            "{}",
            sum / count
        );
        let span = Span::Uniform {
            low: Nanos(10),
            high: Nanos(20),
        };
        let sum: u64 = (0..count).map(|_| span.draw(&mut random)).sum();
        assert!((sum / (count / 100)).abs_diff(1_500) < 10);
        assert_eq!(span.mean(), Nanos(15));
    }

    #[test]
    fn streams_are_fixed_and_differ() {
        let draw = |seed, stream| Random::new(seed, stream).bits();
        // A changed value here changes the result of every scenario: bump the golden figures knowingly.
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
        assert_eq!(Random::new(0, 0).below(0), 0);
    }
}
