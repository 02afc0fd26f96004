//! Prompt looks: who comes from outside asks the watch to look at once.
//!
//! The watch looks once a millisecond, so that of polls of a millisecond it finds few that are over their turn: nearly all end just before, and
//! whoever is woken by I/O or a timer waits for the rest of one. With two virtual CPUs and 64 tasks of 1 ms a poll an echo server's p99 was 8 times that of
//! two runtimes, and half of it with 64 tasks of 3 ms, whose polls are borne from the second on. So a task that comes from
//! outside and finds a poll that has had half a turn asks for a look. Who is detached then is borne for as long as its polls are of that
//! kind (`vcpu::returned`), so this happens about once a task.
//!
//! Whoever asks wakes a thread; it asks at most every [`ASKS_BETWEEN`], and the look takes the same locks as any. Two who ask at once may be one
//! look: the second's task was handed in before its swap of `asked`, and the watch's swap comes after that, so it is seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quotient_core::Nanos;

use super::watch::waits;
use super::{Preempting, lock};
use crate::shared::{Shared, VcpuShared};

/// How often a prompt look is asked for at most. Unit: nanoseconds. Half a period of the watch: a change of threads of some 5 us each, 1 % of a
/// processor.
const ASKS_BETWEEN: Nanos = Nanos::from_micros(500);

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
    /// A task came to a virtual CPU from outside: asks for a look if a poll has had half a turn there.
    #[inline]
    pub(crate) fn came(&self, me: &VcpuShared, now: Nanos) {
        if self.has_had_half_a_turn(me, now) {
            self.control.ask(now);
        }
    }

    /// Whether a poll is under way that began so long ago.
    #[inline]
    fn has_had_half_a_turn(&self, me: &VcpuShared, now: Nanos) -> bool {
        let since = me.polling_since.load(Ordering::Relaxed);
        let elapsed = now.saturating_sub(Nanos(since.saturating_sub(1)));
        since != 0 && u128::from(elapsed.as_nanos()) * 2 >= self.settings.turn.as_nanos()
    }

    /// A look between two: takes virtual CPUs from polls that have had half a turn while others wait, if they have computed for half of the time since
    /// the last look. Nothing else is looked at, and nothing is noted, since others count in looks.
    pub(super) fn look_promptly(&self, shared: &Arc<Shared>, now: Nanos) {
        let mut state = lock(&self.watch);
        for (vcpu, seat) in self.seats.iter().enumerate() {
            if !self.has_had_half_a_turn(&shared.vcpus[vcpu], now) || !waits(shared, vcpu) {
                continue;
            }
            let Some(carrier) = state.seen_last(vcpu, lock(&seat.carrier).as_ref()) else {
                continue;
            };
            let (Some(region), Some(cpu)) = (carrier.handle.region(), carrier.cpu_time()) else {
                continue;
            };
            let (used, passed) = state.since_the_look(vcpu, cpu, now);
            if used.as_nanos() * 2 >= passed.as_nanos() {
                self.detach(shared, &mut state, vcpu, &carrier, region, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
