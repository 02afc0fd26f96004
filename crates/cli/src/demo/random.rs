//! A small seeded generator, so that two runs with one seed send the same documents at the same intended times.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator whose whole future follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be zero. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        u64::try_from((u128::from(self.bits()) * u128::from(bound)) >> 64).unwrap_or(0)
    }

    /// An exponentially distributed number with mean 1.
    pub fn exponential(&mut self) -> f64 {
        // In (0, 1]: 53 random bits plus one half-step, so that the logarithm is always finite.
        let uniform = ((self.bits() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        -uniform.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut left, mut right) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| left.bits() == right.bits()));
        assert_ne!(Random::new(7).bits(), Random::new(8).bits());
    }

    #[test]
    fn exponential_has_mean_one() {
        let mut random = Random::new(3);
        let mean = (0..100_000).map(|_| random.exponential()).sum::<f64>() / 100_000.0;
        assert!((0.98..1.02).contains(&mean), "{mean}");
    }

    #[test]
    fn below_stays_below() {
        let mut random = Random::new(5);
        assert!((0..1000).all(|_| random.below(3) < 3));
    }
}
