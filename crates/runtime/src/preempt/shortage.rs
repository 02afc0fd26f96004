//! Threads that the runtime's blocking pool does not get: who asks for one again, and when.
//!
//! While the pool is short, blocking functions wait in their groups' lines (`functions`), and what has ended waits to be dropped (`burials`). The tick
//! thread, which looks at both once a period, asks again with the first of them: at most once in [`RETRY`], and in a sixteenth of the time that the pool
//! has been short, since each attempt leaves an empty closure in the pool's queue, and a line of tokio's on stderr. So a shortage of a day costs some 200
//! of these, one of a year 300, and whatever waits has its thread a sixteenth of the shortage after there was one. Whoever gets a thread for anything
//! ends the shortage for all.
//!
//! Numbers and nothing else. Of two that hear different things at once either may be the last one: then there is one attempt more, or the next one is refused
//! and says so.

use std::sync::atomic::{AtomicU64, Ordering};

use quotient_core::Nanos;

use super::pool::RETRY;

/// Which part of the time that the pool has been short passes between two attempts.
const PART: u64 = 16;

/// Whether the runtime's pool is short of threads. Both are on the scheduler's clock, in nanoseconds; 0 while it is not.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    since: AtomicU64,
    ask_at: AtomicU64,
}

impl Shortage {
    /// Whether nobody may ask at `now`. One load as a rule.
    #[inline]
    pub(super) fn lasts(&self, now: Nanos) -> bool {
        now.as_nanos() < self.ask_at.load(Ordering::Relaxed)
    }

    /// The same for who is not the tick thread, which is to be the one that asks.
    pub(super) fn is_there(&self) -> bool {
        self.ask_at.load(Ordering::Relaxed) != 0
    }

    /// A thread was refused at `now`.
    pub(super) fn was_refused(&self, now: Nanos) {
        let now = now.as_nanos().max(1);
        let first = self
            .since
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let since = first.unwrap_or_else(|since| since);
        let since = if since == 0 { now } else { since };
        let pause = (now.saturating_sub(since) / PART).max(RETRY.as_nanos());
        self.ask_at
            .store(now.saturating_add(pause), Ordering::Relaxed);
    }

    /// The pool took something, and had a thread for it or will have one.
    #[inline]
    pub(super) fn is_over(&self) {
        if self.is_there() {
            self.since.store(0, Ordering::Relaxed);
            self.ask_at.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Hazard: what attempts leave in the runtime's queue grows for as long as nobody gives a thread.
    #[test]
    fn a_shortage_of_a_year_fills_the_queue() {
        let shortage = Shortage::default();
        let start = Nanos::from_millis(5);
        let year = Nanos::from_secs(365 * 86_400);
        let (mut now, mut attempts) = (start, 0);
        while now < year {
            assert!(!shortage.lasts(now));
            shortage.was_refused(now);
            attempts += 1;
            let before = now;
            // At most a sixteenth later than a thread was to be had.
            now = Nanos(shortage.ask_at.load(Ordering::Relaxed));
            assert!(shortage.lasts(Nanos(now.as_nanos() - 1)));
            let pause = now.saturating_sub(before);
            let most = before.saturating_sub(start).as_nanos() / PART;
            assert!(pause >= RETRY && pause <= RETRY.max(Nanos(most)));
        }
        assert!((200..400).contains(&attempts), "{attempts}");
        shortage.is_over();
        assert!(!shortage.is_there() && !shortage.lasts(Nanos::ZERO));
        // The next one begins with the first pause.
        shortage.was_refused(now);
        assert!(!shortage.lasts(now.saturating_add(RETRY)));
    }
}
