//! What spinners and jobs publish about themselves, and the computing they do.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Jobs that one group can note. Bound: a job a millisecond for ten minutes; later ones are not noted.
const JOBS_MAX: usize = 600_000;

/// CPU time that one task has used, on a line pair of its own: spinners on two CPUs must not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Meter(AtomicU64);

impl Meter {
    /// Publishes a thread's own CPU clock.
    pub fn publish(&self, cpu: Duration) {
        self.0.store(nanos(cpu), Ordering::Relaxed);
    }

    /// Adds what a poll has used.
    pub fn add(&self, cpu: Duration) {
        self.0.fetch_add(nanos(cpu), Ordering::Relaxed);
    }

    /// CPU seconds so far.
    pub fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How long the jobs of a group took, from their intended start.
#[derive(Debug, Default)]
pub struct JobLog(Mutex<Vec<f64>>);

impl JobLog {
    /// Notes one job.
    pub fn note(&self, length: Duration) {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.len() < JOBS_MAX {
            jobs.push(length.as_secs_f64());
        }
    }

    /// Seconds that each job took, in the order of their ends.
    pub fn seconds(&self) -> Vec<f64> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A chain of multiplications that the compiler cannot shorten: some ten microseconds.
pub fn compute() {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..10_000 {
        state ^= state >> 29;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    black_box(state);
}

/// CPU time of the calling thread. Some hundred nanoseconds a call.
#[cfg(target_os = "linux")]
pub fn thread_cpu() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The clock counts up from zero: neither field is ever negative.
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// There is nothing to compare with elsewhere.
#[cfg(not(target_os = "linux"))]
pub fn thread_cpu() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_reads_what_was_published_and_added() {
        let meter = Meter::default();
        meter.publish(Duration::from_millis(1_500));
        meter.add(Duration::from_millis(500));
        assert!((meter.seconds() - 2.0).abs() < 1e-9);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn computing_takes_thread_time() {
        let before = thread_cpu();
        for _ in 0..100 {
            compute();
        }
        assert!(thread_cpu() > before);
    }
}
