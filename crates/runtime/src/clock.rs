//! The runtime's two clocks: wall time from the processor's time-stamp counter and the CPU time of the calling thread.
//!
//! Policy never reads a clock: only this file does, and every scheduler call is handed the result.
//! A time-stamp read costs about 10 ns (`Instant::now` 22 ns), so there is one for each switch; the thread's CPU
//! clock costs about 320 ns (a system call), so it is read once every [`RECONCILE_INTERVAL`].

use quotient_core::Nanos;

/// How often a virtual CPU compares the wall time it charged with its thread's CPU clock.
///
/// Unit: nanoseconds. Default: 4 ms, one tick of a 250 Hz kernel: the error that a host's preemption can leave in a
/// group's bill is bounded by this interval, and the cost (two system calls) stays below 0.02 %.
pub(crate) const RECONCILE_INTERVAL: Nanos = Nanos::from_micros(4_000);

/// Monotonic wall clock; its zero is the moment of creation.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    counter: quanta::Clock,
    zero: u64,
}

impl Clock {
    /// Starts a clock at zero. The first clock of a process calibrates the counter, which takes about a millisecond.
    pub(crate) fn new() -> Self {
        let counter = quanta::Clock::new();
        let zero = counter.raw();
        Self { counter, zero }
    }

    /// Time since the clock was created. Never goes backwards on one thread; wraps after 584 years.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.counter.delta_as_nanos(self.zero, self.counter.raw()))
    }
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
