//! Tasks that compute: polls of a fixed amount of real arithmetic, counted.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::workload::self_wake;

/// Rounds of arithmetic that are timed to find out how many fit into a poll.
const CALIBRATION_ROUNDS: u64 = 2_000_000;
/// How often they are timed; the fastest counts, since everything else was disturbed.
const CALIBRATION_TRIES: u32 = 5;

/// The polls of one hog, on a cache line pair of its own: hogs on two CPUs must not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Polls {
    done: AtomicU64,
    longest: AtomicU64,
}

impl Polls {
    /// How many were done.
    pub fn get(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The longest since this was asked last, by the wall: what is beyond the others' length the host took, and no scheduler could do
    /// anything about it.
    pub fn take_longest(&self) -> Duration {
        Duration::from_nanos(self.longest.swap(0, Ordering::Relaxed))
    }

    fn count(&self, took: Duration) {
        self.done.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if nanos > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(nanos, Ordering::Relaxed);
        }
    }
}

/// A chain of multiplications that the compiler cannot shorten.
fn compute(rounds: u64) -> u64 {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..rounds {
        state ^= state >> 29;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    black_box(state)
}

/// How many rounds of arithmetic take `poll` on a CPU that does nothing else.
pub fn calibrate(poll: Duration) -> u64 {
    let mut best = Duration::MAX;
    for _ in 0..CALIBRATION_TRIES {
        let start = Instant::now();
        compute(CALIBRATION_ROUNDS);
        best = best.min(start.elapsed());
    }
    let rounds = CALIBRATION_ROUNDS as f64 * poll.as_secs_f64() / best.as_secs_f64();
    (rounds as u64).max(1)
}

/// Computes until `stop`, `rounds` of arithmetic a poll, giving way after each.
pub async fn hog(rounds: u64, polls: Arc<Polls>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        compute(rounds);
        polls.count(start.elapsed());
        self_wake().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_poll_is_about_twice_the_rounds() {
        let (short, long) = (
            calibrate(Duration::from_micros(50)),
            calibrate(Duration::from_millis(5)),
        );
        // Generous: another program may run during one of the two.
        assert!(
            long > 20 * short && long < 500 * short,
            "{short} and {long}"
        );
    }
}
