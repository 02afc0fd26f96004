//! When requests are meant to start: a seeded Poisson process that knows nothing of the answers.

use std::time::Duration;

use super::random::Random;

/// The intended starts of one open-loop phase, in order, as offsets from its start.
#[derive(Debug)]
pub struct Arrivals {
    random: Random,
    mean_gap_seconds: f64,
    next_seconds: f64,
    end_seconds: f64,
}

impl Arrivals {
    /// Arrivals at `rate` per second (at least 1) on average, for as long as `length`.
    pub fn new(rate: u32, length: Duration, seed: u64) -> Self {
        let mut arrivals = Self {
            random: Random::new(seed),
            mean_gap_seconds: 1.0 / f64::from(rate.max(1)),
            next_seconds: 0.0,
            end_seconds: length.as_secs_f64(),
        };
        arrivals.step();
        arrivals
    }

    fn step(&mut self) {
        self.next_seconds += self.random.exponential() * self.mean_gap_seconds;
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.next_seconds >= self.end_seconds {
            return None;
        }
        let offset = Duration::from_secs_f64(self.next_seconds);
        self.step();
        Some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_order_and_end_are_kept() {
        let length = Duration::from_secs(10);
        let offsets: Vec<_> = Arrivals::new(5_000, length, 1).collect();
        assert!(
            (49_000..51_000).contains(&offsets.len()),
            "{}",
            offsets.len()
        );
        assert!(offsets.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(offsets.last().is_some_and(|last| *last < length));
    }

    #[test]
    fn gaps_are_random_and_seeded() {
        let take = |seed| Arrivals::new(100, Duration::from_secs(5), seed).collect::<Vec<_>>();
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
        let offsets = take(1);
        let short = offsets
            .windows(2)
            .filter(|pair| pair[1] - pair[0] < Duration::from_millis(5))
            .count();
        // A Poisson process has 39 % of its gaps below half the mean; a metronome none.
        assert!((0.3..0.5).contains(&(short as f64 / offsets.len() as f64)));
    }
}
