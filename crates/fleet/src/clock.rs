//! The clock of leases: it runs on while the machine sleeps.

use crate::units::Micros;

/// Time since the machine started, sleep included.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn now() -> Micros {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Micros(
        seconds
            .saturating_mul(1_000_000)
            .saturating_add(nanos / 1_000),
    )
}

/// Time since the first call; elsewhere the standard library's clock, which on some systems stands still during sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn now() -> Micros {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    let passed = START.get_or_init(Instant::now).elapsed().as_micros();
    Micros(u64::try_from(passed).unwrap_or(u64::MAX))
}
