//! CPUs that run one task alone do not tick ([`Ticks::Needed`]), and are charged as if they did.
//!
//! What a group gets on such a CPU moves its virtual time and its parent's all the same, and both are read as somebody comes, goes, or gets
//! another weight or new budget, on whatever CPU that is. Charged only later, the whole stretch would be a debt towards who came meanwhile: a
//! group that had been alone for 20 s would get nothing for the next 10. So whoever is about to change what competes asks first
//! ([`Simulation::catch_up`]), and all of them are charged unless they were within the last tick. Nobody ever meets times that are
//! older than a tick, which is what ticks promise, and while nothing changes nothing is done.
//!
//! A long stretch is charged in pieces that get shorter, the last ones of a tick: what groups are owed that cannot use it is forgotten from one
//! charge to the next (`quotient_core::group_time`), so after a single one the order of the CPUs would show.
//!
//! A charge may arm a refill: the first use of a limit begins its period, and pieces lie in the past. So each piece is followed by the refills
//! that are due by its end, as they would have come between ticks, and none that is armed lies in the past once all are charged.

use super::Simulation;
use super::state::NONE;
use crate::agenda::NEVER;
use crate::machine::Ticks;
use quotient_core::Nanos;
use quotient_trace::Sink;

/// Pieces of a tick at the end of a stretch. 64: from one piece to the next, what a light group owes for a CPU that nobody else wanted becomes less by
/// some tenth, and with 4 one of weight 10 beside two of 100 owed 2 s after 20 s, all of which it had to wait for once another group came.
const LAST_PIECES: u64 = 64;

/// How much of a stretch is charged next, of `left` ns: half of it, or a tick once that is no more than a few. O(log) pieces in all.
fn piece(left: u64, tick: u64) -> u64 {
    if left > LAST_PIECES * tick {
        left / 2
    } else {
        left.min(tick)
    }
}

impl<S: Sink> Simulation<S> {
    /// Call before anything of a group is queued, taken away, weighed anew or unthrottled: charges the CPUs that do not tick, if a tick of
    /// theirs would have been due since that was done last. O(CPUs), once a tick at most.
    #[inline]
    pub(super) fn catch_up(&mut self) {
        if self.now - self.caught_up_at >= self.tick_length {
            self.charge_all_alone();
        }
    }

    #[cold]
    fn charge_all_alone(&mut self) {
        let mut at = core::mem::replace(&mut self.caught_up_at, self.now);
        // On one CPU, its own task is all that there is, and is counted where somebody is placed.
        if self.machine.ticks != Ticks::Needed || self.cpus.len() == 1 {
            return;
        }
        let mut kicked = core::mem::take(&mut self.kicked);
        while at < self.now {
            at += piece(self.now - at, self.tick_length);
            for state in &mut self.cpus {
                if state.current != NONE && state.next_tick == NEVER {
                    state.queue.charge(Nanos(at));
                }
            }
            self.refill_by(at, &mut kicked);
        }
        self.tell(&mut kicked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_stretch_ends_with_pieces_of_a_tick() {
        let (mut left, mut pieces) = (3_600_000_000_000, Vec::new());
        while left > 0 {
            pieces.push(piece(left, 4_000_000));
            left -= pieces[pieces.len() - 1];
        }
        assert!(pieces.len() <= 90, "{pieces:?}");
        let last = &pieces[pieces.len() - 3..];
        assert!(last.iter().all(|&piece| piece <= 4_000_000), "{pieces:?}");
    }
}
