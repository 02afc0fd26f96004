//! Prompt looks: who comes from outside asks the watch to look at once.
//!
//! The watch looks once a millisecond, so that of polls of a millisecond it finds few that are over their turn: nearly all end just before, and
//! whoever is woken by I/O or a timer waits for the rest of one. With two virtual CPUs and 64 tasks of 1 ms a poll an echo server's p99 was 8 times that of
//! two runtimes, and half of it with 64 tasks of 3 ms, whose polls are borne from the second on. So a task that comes from
//! outside and finds a poll whose turn is nearly over asks for a look. Who is detached then is borne for as long as its polls are of that
//! kind (`vcpu::returned`), so this happens about once a task.
//!
//! Whoever asks wakes a thread; it asks at most every [`ASKS_BETWEEN`], and the look takes the same locks as any. Two who ask at once may be one
//! look: the second's task was handed in before its swap of `asked`, and the watch's swap comes after that, so it is seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quotient_core::Nanos;

use super::watch::waits;
use super::{Preempting, lock};
use crate::shared::{Shared, VcpuShared};

/// How often a prompt look is asked for at most. Unit: nanoseconds. Half a period of the watch: a change of threads of some 5 us each, 1 % of a
/// processor.
const ASKS_BETWEEN: Nanos = Nanos::from_micros(500);

/// From how many eighths of a turn on a poll is looked at promptly. Unit: eighths. Seven, so that polls of a millisecond are met, which end as a default
/// turn does. With four, polls of half a millisecond were borne, too: beside tasks of 50 us to 1 ms on one processor an HTTP server was as slow at
/// the 99th percentile, and the threads' hand-overs cost 0.05 of the 0.7 CPUs that those had.
const NEARLY: u128 = 7;

/// Whether somebody asks.
#[derive(Debug, Default)]
pub(super) struct Asks {
    asked: AtomicBool,
    /// From when on one may ask again. Two who ask at once may both.
    from: AtomicU64,
}

impl Asks {
    /// Asks, unless that was done lately. Whether the watch is to be woken for it.
    pub(super) fn ask(&self, now: Nanos) -> bool {
        if now.as_nanos() < self.from.load(Ordering::Relaxed) {
            return false;
        }
        let next = now.saturating_add(ASKS_BETWEEN);
        self.from.store(next.as_nanos(), Ordering::Relaxed);
        !self.asked.swap(true, Ordering::SeqCst)
    }

    /// The watch: whether somebody has asked.
    pub(super) fn take(&self) -> bool {
        self.asked.swap(false, Ordering::SeqCst)
    }
}

impl Preempting {
    /// A task came to a virtual CPU from outside: asks for a look if the turn of a poll is nearly over there.
    #[inline]
    pub(crate) fn came(&self, me: &VcpuShared, now: Nanos) {
        if self.nearly_over(me, now).is_some() {
            self.control.ask(now);
        }
    }

    /// For how long a poll has been under way, if its turn is nearly over.
    #[inline]
    fn nearly_over(&self, me: &VcpuShared, now: Nanos) -> Option<Nanos> {
        let since = me.polling_since.load(Ordering::Relaxed);
        let elapsed = now.saturating_sub(Nanos(since.saturating_sub(1)));
        let is_nearly =
            u128::from(elapsed.as_nanos()) * 8 >= self.settings.turn.as_nanos() * NEARLY;
        (since != 0 && is_nearly).then_some(elapsed)
    }

    /// A look between two: takes virtual CPUs from polls whose turn is nearly over while others wait, if they have computed for half of that time.
    /// Nothing else is looked at, and nothing is noted, since others count in looks.
    pub(super) fn look_promptly(&self, shared: &Arc<Shared>, now: Nanos) {
        let mut state = lock(&self.watch);
        for (vcpu, seat) in self.seats.iter().enumerate() {
            let Some(elapsed) = self.nearly_over(&shared.vcpus[vcpu], now) else {
                continue;
            };
            if !waits(shared, vcpu) {
                continue;
            }
            let Some(carrier) = state.seen_last(vcpu, lock(&seat.carrier).as_ref()) else {
                continue;
            };
            let (Some(region), Some(cpu)) = (carrier.handle.region(), carrier.cpu_time()) else {
                continue;
            };
            let used = state.used_by((vcpu, region), cpu, now, elapsed);
            if has_computed(used, elapsed, self.settings.turn) {
                self.detach(shared, &mut state, vcpu, &carrier, region, false);
            }
        }
    }
}

/// Whether a poll that has used so much since it began, `elapsed` ago, computes: half of that time, and a quarter of a turn. Not by what its thread used:
/// on a processor that it shares a request's short poll lasts that long now and then, behind many others that computed; detached, it would go on at
/// low priority.
fn has_computed(used: Nanos, elapsed: Nanos, turn: Duration) -> bool {
    used.as_nanos() * 2 >= elapsed.as_nanos() && u128::from(used.as_nanos()) * 4 >= turn.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_poll_that_waits_for_its_processor_is_left_alone() {
        let at = Nanos::from_micros;
        let turn = Duration::from_millis(1);
        assert!(has_computed(at(580), at(600), turn), "a long one");
        assert!(!has_computed(Nanos::ZERO, at(600), turn), "it waits");
        assert!(!has_computed(at(240), at(480), turn), "too little");
        assert!(
            !has_computed(at(400), at(900), turn),
            "it waits for most of it"
        );
    }

    #[test]
    fn who_asks_again_soon_is_not_heard() {
        let asks = Asks::default();
        let at = Nanos::from_micros;
        assert!(asks.ask(at(1_000)), "the first wakes the watch");
        assert!(!asks.ask(at(1_499)), "soon after");
        assert!(!asks.ask(at(1_500)), "it has not looked yet");
        assert!(asks.take());
        assert!(!asks.take());
        assert!(!asks.ask(at(1_999)));
        assert!(asks.ask(at(2_000)));
    }
}
