//! The clock of averages: it stands while a queue is throttled.

use crate::units::Nanos;

/// Time as the averages of one queue see it: the host's time without that in which the queue was not allowed to run.
///
/// A throttled group neither loads a CPU nor rests on it. Were throttled time counted as runnable, its load would
/// grow with every throttle; were it counted as idle, a group that uses its whole quota would look half asleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeltClock {
    /// Time spent standing so far, ns.
    stood: u64,
    /// Since when it stands, if it does.
    since: Option<u64>,
}

impl PeltClock {
    /// A clock that runs.
    pub const fn new() -> PeltClock {
        PeltClock {
            stood: 0,
            since: None,
        }
    }

    /// What the clock shows at `now`, ns. Monotonic if `now` is.
    #[inline]
    pub fn at(&self, now: Nanos) -> Nanos {
        Nanos(self.since.unwrap_or(now.0).saturating_sub(self.stood))
    }

    /// Whether the clock stands.
    pub const fn is_stopped(&self) -> bool {
        self.since.is_some()
    }

    /// Stops the clock. Nothing if it stands already: the first reason to stop counts.
    pub fn stop(&mut self, now: Nanos) {
        self.since.get_or_insert(now.0);
    }

    /// Lets the clock go on from where it stands. Nothing if it runs.
    pub fn resume(&mut self, now: Nanos) {
        if let Some(since) = self.since.take() {
            self.stood = self.stood.saturating_add(now.0.saturating_sub(since));
        }
    }
}
