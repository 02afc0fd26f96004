//! Processors that a turn leaves idle: what the watch looks for at virtual CPUs that are asleep for a bearer's turn.
//!
//! # A bearer that blocks in its turn
//! The carrier sleeps for the turn, 4 ms, and sees only at its end that the bearer has fallen asleep in the kernel: for a lock, for another
//! thread of its pool (rayon's threads wait for each other at each join). Other bearers of the virtual CPU stand meanwhile. And where wake-ups end each
//! nap before a millisecond is over, the carrier, which judges by the wall time of its nap, never sees it. So the watch looks: *the chosen one of a napping virtual CPU has used
//! the processor for less than half of the time since the last look, and the kernel says that it sleeps* (if it wakes soon, it is one that `dozing` is about) → [`Seat::blocked`] is set, and the nap is ended. The carrier takes
//! the word (one swap) and puts the proxy away as it does at the end of a turn. A word that comes late meets the next nap, perhaps of another
//! bearer: so the carrier asks the kernel, too, before it believes it.
//!
//! # Two chosen ones on one processor
//! The kernel moves a runnable thread to another processor when that has been idle for longer than a move costs (`sched_migration_cost`);
//! one on which an echo server wakes up a thousand times a second never is, and two endless threads shared the other processor for as long
//! as a run took. Threads that change turns are placed when they are woken (`wake_on`); one that is never stopped is not. So every
//! [`SPREAD_LOOKS`] looks the watch asks where the chosen ones are, and if it finds two of them on one processor twice in a row, while
//! another processor has none, it moves one. It stays bound to nothing. At most [`SPREAD_MAX`] virtual CPUs are looked at:
//! on a machine that large there is nearly always an idle processor that the kernel's own balancing finds.
//!
//! All of it takes leaves only, and allocates nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::Nanos;
use quotient_pause::Processor;

use super::carrier::Carrier;
use super::seat::NOWHERE;
use super::{Preempting, lock};

/// How often the places of the chosen ones are looked at. Unit: looks. 8: two system calls of 3 us for each, 0.1 % of a processor.
const SPREAD_LOOKS: u32 = 8;
/// How many virtual CPUs are looked at for that. Unit: virtual CPUs.
const SPREAD_MAX: usize = 16;

/// What was seen of the turn on one virtual CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Whose: an address that is compared and nothing else. 0 for nobody's.
    bearer: usize,
    cpu: Nanos,
}

impl Turn {
    /// Whether its bearer had less than half of the time that has `passed` since the look `before`, which found the same one.
    fn leaves_idle(self, before: Self, passed: Nanos) -> bool {
        let used = self.cpu.saturating_sub(before.cpu);
        self.bearer == before.bearer && used.as_nanos() <= passed.as_nanos() / 2
    }
}

/// When two shared a processor, and how many looks are left until the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread {
    looks: u32,
    /// The virtual CPU whose chosen one was not alone at the last look, plus 1.
    crowded: usize,
}

impl Spread {
    /// Whether the places are to be looked at now.
    fn is_due(&mut self) -> bool {
        self.looks = (self.looks + 1) % SPREAD_LOOKS;
        self.looks == 0
    }

    /// Whether the chosen one of this virtual CPU was not alone twice in a row.
    fn confirms(&mut self, crowded: Option<usize>) -> bool {
        let crowded = crowded.map_or(0, |vcpu| vcpu + 1);
        let again = crowded != 0 && self.crowded == crowded;
        self.crowded = if again { 0 } else { crowded };
        again
    }
}

/// The first place whose processor an earlier one has, too.
fn shared_place(places: &[u32]) -> Option<usize> {
    (0..places.len()).find(|index| {
        let place = places[*index];
        place != NOWHERE && places[..*index].contains(&place)
    })
}

impl Preempting {
    /// Ends the nap of a virtual CPU whose chosen bearer sleeps in the kernel; see the module's header.
    pub(super) fn look_at_turn(&self, vcpu: usize, before: Turn, passed: Nanos) -> Turn {
        let seat = &self.seats[vcpu];
        if !seat.has_chosen.load(Ordering::Relaxed) || !seat.nap.is_on() {
            return Turn::default();
        }
        let chosen = lock(&seat.chosen);
        let Some((bearer, _)) = &*chosen else {
            return Turn::default();
        };
        let Some(cpu) = bearer.cpu_time() else {
            return Turn::default();
        };
        let turn = Turn {
            bearer: Arc::as_ptr(bearer) as *const () as usize,
            cpu,
        };
        if turn.leaves_idle(before, passed) && bearer.is_stuck_in_its_turn() {
            seat.blocked.store(true, Ordering::Relaxed);
            drop(chosen);
            seat.nap.end();
        }
        turn
    }

    /// Moves a chosen bearer that shares its processor with another virtual CPU's while some processor has none.
    pub(super) fn spread(&self, state: &mut Spread) {
        if self.processors.len() < 2 || !state.is_due() {
            return;
        }
        let mut places = [NOWHERE; SPREAD_MAX];
        let seats = self.seats.iter().zip(&mut places);
        for (seat, place) in seats.filter(|(seat, _)| seat.has_chosen.load(Ordering::Relaxed)) {
            let chosen = lock(&seat.chosen);
            let bearer = chosen.as_ref().map(|(bearer, _)| bearer);
            let running = bearer.filter(|bearer| bearer.is_running_its_turn());
            let processor = running.and_then(|bearer| bearer.processor());
            *place = processor.map_or(NOWHERE, Processor::number);
        }
        let crowded = shared_place(&places);
        if !state.confirms(crowded) {
            return;
        }
        let mut free = self.processors.iter();
        let free = free.find(|processor| !places.contains(&processor.number()));
        if let (Some(vcpu), Some(free)) = (crowded, free)
            && let Some((bearer, _)) = &*lock(&self.seats[vcpu].chosen)
        {
            bearer.handle.wake_on(*free, || ());
            self.seats[vcpu]
                .placed
                .store(free.number(), Ordering::Relaxed);
        }
    }
}

impl Carrier {
    /// It may run, and does not, nor waits for a processor.
    pub(crate) fn is_stuck_in_its_turn(&self) -> bool {
        self.is_running_its_turn() && self.handle.is_asleep() == Some(true)
    }

    /// It may run, and has not come to its end.
    pub(super) fn is_running_its_turn(&self) -> bool {
        self.is_allowed() && !self.is_finished()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_poll_is_moved_from_a_processor_that_is_its_own() {
        assert_eq!(shared_place(&[]), None);
        assert_eq!(shared_place(&[0, 1, NOWHERE, NOWHERE]), None);
        assert_eq!(shared_place(&[1, NOWHERE, 1, 1]), Some(2));
        assert_eq!(shared_place(&[3, 2, 3]), Some(2));
    }

    #[test]
    fn who_shares_a_processor_for_a_moment_is_moved() {
        let mut spread = Spread::default();
        let due = (0..4 * SPREAD_LOOKS).filter(|_| spread.is_due()).count();
        assert_eq!(due, 4);
        assert!(!spread.confirms(Some(0)));
        assert!(!spread.confirms(None), "over");
        assert!(!spread.confirms(Some(0)));
        assert!(!spread.confirms(Some(1)), "another one");
        assert!(spread.confirms(Some(1)));
        // It was moved: the next time is the first again.
        assert!(!spread.confirms(Some(1)));
        assert!(spread.confirms(Some(1)));
    }
}
