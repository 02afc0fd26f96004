//! What spinners and jobs publish about themselves, and the computing they do.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::window::RunLog;

/// Jobs that one group can note. Bound: a job a millisecond for ten minutes; later ones are not noted.
const JOBS_MAX: usize = 600_000;

/// Time between two polls of a thread up to which it did nothing but switch. A switch takes about 1 us; parking a thread and
/// waking it takes more than this.
const SWITCH_MAX: Duration = Duration::from_micros(10);

thread_local! {
    /// Where the last poll on this thread ended.
    static LAST_POLL: Cell<Option<Mark>> = const { Cell::new(None) };
}

/// CPU time that one task has used, on a line pair of its own: spinners on two CPUs must not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Meter(AtomicU64);

impl Meter {
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

/// A chain of multiplications that the compiler cannot shorten: about a microsecond.
pub fn compute() {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..600 {
        state ^= state >> 29;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    black_box(state);
}

/// What a task that computes publishes.
#[derive(Debug)]
pub struct Worker {
    /// Its CPU time.
    pub meter: Arc<Meter>,
    /// When it ran, if somebody wants to know.
    pub log: Option<Arc<RunLog>>,
}

impl Worker {
    /// As [`Worker::burn`] from now, in a poll. If the thread's last poll ended just now, what lies in between is counted as
    /// well: an operating system counts its switches between threads as theirs, too.
    pub fn burn_in_poll(&self, wall: Duration) {
        let last = LAST_POLL.take();
        let now = Mark::now();
        let from = last
            .filter(|last| now.at.saturating_duration_since(last.at) < SWITCH_MAX)
            .map_or(now, |last| Mark {
                at: now.at,
                cpu: last.cpu,
            });
        LAST_POLL.set(Some(self.burn(wall, from)));
    }

    /// Computes for about `wall` on this thread and publishes what it took since `from`. Returns where it ended: a thread
    /// that does nothing else goes on from there, so that reading the clocks is counted as well.
    pub fn burn(&self, wall: Duration, from: Mark) -> Mark {
        while from.at.elapsed() < wall {
            compute();
        }
        let end = Mark::now();
        let (length, used) = (end.at - from.at, end.cpu.saturating_sub(from.cpu));
        self.meter.add(used);
        if let Some(log) = &self.log {
            log.note(from.at, length, used);
        }
        end
    }
}

/// A moment on a thread.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    at: Instant,
    cpu: Duration,
}

impl Mark {
    /// This moment on this thread.
    pub fn now() -> Self {
        Self {
            at: Instant::now(),
            cpu: thread_cpu(),
        }
    }
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
    fn a_meter_sums_up() {
        let meter = Meter::default();
        meter.add(Duration::from_millis(1_500));
        meter.add(Duration::from_millis(500));
        assert!((meter.seconds() - 2.0).abs() < 1e-9);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn computing_takes_thread_time() {
        let before = thread_cpu();
        let worker = Worker {
            meter: Arc::default(),
            log: None,
        };
        worker.burn(Duration::from_millis(2), Mark::now());
        assert!(thread_cpu() > before && worker.meter.seconds() > 0.0);
    }
}
