//! The runtime's two clocks: wall time from the processor's time-stamp counter and the CPU time of the calling thread.
//!
//! Policy never reads a clock: only this file does, and every scheduler call is handed the result.
//! A time-stamp read costs about 10 ns (`Instant::now` 22 ns), so there is one for each switch; the thread's CPU clock costs about
//! 320 ns (a system call), so it is read after long polls, and between turns once every [`RECONCILE_INTERVAL`].

use std::sync::atomic::{AtomicU64, Ordering};

use quotient_core::Nanos;

/// How old the last reading of the thread's CPU clock may be when a turn starts.
///
/// Unit: nanoseconds. Default: 4 ms, one tick of a 250 Hz kernel: what the host's preemption can leave in a wrong group's bill is
/// bounded by it, and the system call costs 0.01 %.
pub(crate) const RECONCILE_INTERVAL: Nanos = Nanos::from_micros(4_000);

/// Multiplied by it, wrapping, neighbouring numbers are far apart: 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Monotonic wall clock; its zero is the moment of creation.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The processor's time-stamp counter, or the platform's monotonic clock where there is none.
    Counter {
        /// The calibrated counter.
        counter: quanta::Clock,
        /// Its reading at creation.
        zero: u64,
    },
    /// Advances by a step a reading: for instruction counts under an emulator that slows real time down. Steps are from half of the mean to one and a
    /// half, by the time that it is. (With equal ones two tasks that yield took turns exactly, until another thread's reading was between: from then on one
    /// of 7 to 26 yields was in vain, and what was compared was whether that had come to pass.)
    Counting {
        /// The sum of the steps so far.
        time: AtomicU64,
        /// Their mean. Unit: nanoseconds.
        step: u64,
    },
    /// The processor time of the whole process: stands still while others have the processors. The counter where there is no such clock.
    #[cfg(target_os = "linux")]
    Computing {
        /// Its reading at creation. Unit: nanoseconds.
        zero: Nanos,
    },
}

impl Clock {
    /// Starts a clock at zero. The first clock of a process calibrates the counter, which takes about a millisecond.
    pub(crate) fn new() -> Self {
        let counter = quanta::Clock::new();
        let zero = counter.raw();
        Self::Counter { counter, zero }
    }

    /// A clock that advances by `step` a reading, on average.
    pub(crate) fn counting(step: Nanos) -> Self {
        Self::Counting {
            time: AtomicU64::new(0),
            step: step.as_nanos(),
        }
    }

    /// A clock that goes while a thread of the process computes, as fast as threads do.
    pub(crate) fn computing() -> Self {
        #[cfg(target_os = "linux")]
        return Self::Computing {
            zero: process_cpu_time(),
        };
        #[cfg(not(target_os = "linux"))]
        Self::new()
    }

    /// Another reader of the same time; a clock that counts its readings counts those of each reader apart.
    pub(crate) fn reader(&self) -> Self {
        match self {
            Self::Counter { counter, zero } => Self::Counter {
                counter: counter.clone(),
                zero: *zero,
            },
            Self::Counting { time, step } => Self::Counting {
                time: AtomicU64::new(time.load(Ordering::Relaxed)),
                step: *step,
            },
            #[cfg(target_os = "linux")]
            Self::Computing { zero } => Self::Computing { zero: *zero },
        }
    }

    /// Time since the clock was created. Never goes backwards on one thread; wraps after 584 years.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match self {
            Self::Counter { counter, zero } => Nanos(counter.delta_as_nanos(*zero, counter.raw())),
            Self::Counting { time, step } => {
                let any = time.load(Ordering::Relaxed).wrapping_mul(SPREAD) >> 54;
                let length = step / 2 + ((step * any) >> 10);
                Nanos(time.fetch_add(length, Ordering::Relaxed))
            }
            #[cfg(target_os = "linux")]
            Self::Computing { zero } => process_cpu_time().saturating_sub(*zero),
        }
    }
}

/// Processor time of all threads of the process.
#[cfg(target_os = "linux")]
fn process_cpu_time() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanos(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos))
}

/// CPU time consumed by the calling thread, or `None` where the platform has no such clock.
#[cfg(target_os = "linux")]
pub(crate) fn thread_cpu_time() -> Option<Nanos> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u64::try_from(time.tv_nsec).ok()?;
    Some(Nanos(
        seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos),
    ))
}

/// CPU time consumed by the calling thread, or `None` where the platform has no such clock.
#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_cpu_time() -> Option<Nanos> {
    None
}

/// Time that the calling thread has waited for a processor in all, or `None` where the system does not say.
///
/// One read (about 1 us) of a file that stays open as long as the thread lives: one descriptor for each thread that has asked. A thread
/// that gets none at its first question (no `/proc`, no descriptor left) is not told later either.
#[cfg(target_os = "linux")]
pub(crate) fn thread_run_delay() -> Option<Nanos> {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    thread_local! {
        static SCHEDSTAT: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    }
    let mut line = [0_u8; 96];
    let read = |file: &Option<File>| file.as_ref()?.read_at(&mut line, 0).ok();
    let length = SCHEDSTAT.try_with(read).ok()??;
    let line = std::str::from_utf8(line.get(..length)?).ok()?;
    line.split_whitespace().nth(1)?.parse().ok().map(Nanos)
}

/// Time that the calling thread has waited for a processor in all, or `None` where the system does not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_run_delay() -> Option<Nanos> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_clock_does_not_go_back() {
        let clock = Clock::new();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last, "{now:?} came after {last:?}");
            last = now;
        }
    }

    #[test]
    fn a_counting_clock_counts_its_readings() {
        let clock = Clock::counting(Nanos(250));
        let mut last = clock.now();
        let mut longest = Nanos::ZERO;
        for _ in 0..10_000 {
            let now = clock.now();
            let step = now - last;
            assert!((125..375).contains(&step.as_nanos()), "{step:?}");
            longest = longest.max(step);
            last = now;
        }
        assert!((245..255).contains(&(last.as_nanos() / 10_000)), "{last:?}");
        assert!(longest.as_nanos() > 350, "{longest:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn each_thread_has_waited_for_itself() {
        let Some(mine) = thread_run_delay() else {
            return; // A kernel without CONFIG_SCHED_INFO.
        };
        assert!(thread_run_delay() >= Some(mine), "it goes back");
        let others = std::thread::spawn(|| {
            std::thread::yield_now();
            (
                thread_run_delay(),
                std::fs::read_to_string("/proc/thread-self/schedstat"),
            )
        });
        let (told, line) = others.join().expect("no panic");
        let line = line.expect("readable, as it was before");
        let read: u64 = line
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .expect("three numbers");
        assert!(
            told <= Some(Nanos(read)),
            "{told:?} of another thread, {line}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn thread_clock_grows_with_work_on_this_thread() {
        let before = thread_cpu_time().unwrap();
        let mut sum = 0_u64;
        while thread_cpu_time().unwrap() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(thread_cpu_time().unwrap() > before);
    }
}
