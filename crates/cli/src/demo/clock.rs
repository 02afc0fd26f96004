//! The clocks that the demo's processes share.

use std::time::Duration;

/// Microseconds on a clock that all processes of this machine share.
///
/// On Unix this is `CLOCK_MONOTONIC`, which no one can set. Elsewhere it is the time of day: a clock step during a
/// run would spoil that run's CPU figures, and nothing else.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct SharedMicros(pub u64);

impl SharedMicros {
    /// Now.
    pub fn now() -> Self {
        Self(u64::try_from(imp::shared().as_micros()).unwrap_or(u64::MAX))
    }

    /// Time from `earlier` to `self`; zero if that is negative.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// CPU time of the calling thread since it started. About a microsecond a call: read it per poll, not per document.
pub fn thread_cpu() -> Duration {
    imp::thread_cpu()
}

/// CPU time of the whole process since it started, user and system.
pub fn process_cpu() -> Duration {
    imp::process_cpu()
}

#[cfg(unix)]
mod imp {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    fn read(clock: ClockId) -> Duration {
        let time = clock_gettime(clock);
        // These clocks count up from zero, so neither field is ever negative.
        Duration::new(
            time.tv_sec.unsigned_abs(),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        )
    }

    pub fn shared() -> Duration {
        read(ClockId::Monotonic)
    }

    pub fn thread_cpu() -> Duration {
        read(ClockId::ThreadCPUTime)
    }

    pub fn process_cpu() -> Duration {
        read(ClockId::ProcessCPUTime)
    }
}

/// Without POSIX CPU clocks, wall time stands in for CPU time: hog CPU then includes time taken by other processes,
/// and the victim's CPU, a difference, is not meaningful.
#[cfg(not(unix))]
mod imp {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    pub fn shared() -> Duration {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    }

    pub fn thread_cpu() -> Duration {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        ORIGIN.get_or_init(Instant::now).elapsed()
    }

    pub fn process_cpu() -> Duration {
        thread_cpu()
    }
}
