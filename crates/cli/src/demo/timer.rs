//! Waiting for a moment more precisely than tokio's timers, which round up to a millisecond: an arrival every 200 µs
//! would otherwise be late by more than the latency to be measured.

use std::io;
use std::time::Instant;

/// A timer of one task.
pub struct PreciseTimer(imp::Timer);

impl PreciseTimer {
    /// A timer registered with the current tokio runtime.
    ///
    /// # Errors
    /// When the operating system has no timer descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(imp::Timer::new()?))
    }

    /// Waits until `moment`; returns at once if it has passed. Usually some 30 to 60 µs late on Linux.
    ///
    /// # Errors
    /// When the operating system refuses to arm or read the timer.
    pub async fn until(&mut self, moment: Instant) -> io::Result<()> {
        let wait = moment.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            Ok(())
        } else {
            self.0.wait(wait).await
        }
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    pub struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        pub fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
            // tokio 1.54 deprecates this for types that may lie about their descriptor, which OwnedFd cannot; its
            // replacement is `unsafe` and missing from the oldest tokio that we build with.
            #[allow(deprecated)]
            Ok(Self(AsyncFd::with_interest(
                descriptor,
                Interest::READABLE,
            )?))
        }

        pub async fn wait(&mut self, wait: Duration) -> io::Result<()> {
            let once = Itimerspec {
                it_interval: Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
                it_value: Timespec::try_from(wait).map_err(io::Error::other)?,
            };
            rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
            self.0
                .async_io(Interest::READABLE, |descriptor| {
                    let mut expirations = [0; 8];
                    Ok(rustix::io::read(descriptor, &mut expirations)?)
                })
                .await?;
            Ok(())
        }
    }
}

/// Elsewhere: sleep until the last two milliseconds, then let the other tasks of this thread run in a loop.
#[cfg(not(target_os = "linux"))]
mod imp {
    use std::io;
    use std::time::{Duration, Instant};

    const SPIN: Duration = Duration::from_millis(2);

    pub struct Timer;

    impl Timer {
        pub fn new() -> io::Result<Self> {
            Ok(Self)
        }

        pub async fn wait(&mut self, wait: Duration) -> io::Result<()> {
            let moment = Instant::now() + wait;
            if wait > SPIN {
                tokio::time::sleep(wait - SPIN).await;
            }
            while Instant::now() < moment {
                tokio::task::yield_now().await;
            }
            Ok(())
        }
    }
}
