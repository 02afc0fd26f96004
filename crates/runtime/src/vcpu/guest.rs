//! What the thread that reads the sockets has brought to a virtual CPU: when it is worked off, and when that thread is let in again. The
//! protocol stands in the header of `preempt::courtesy`.

use quotient_core::Nanos;

use super::Vcpu;
use super::switch::Previous;
use crate::shared::Shared;

/// How often the processor is offered to a thread that waits for it. The kernel lets the caller go on where the other one has had more of late.
const OFFERS_MAX: usize = 3;

impl Vcpu {
    /// What was brought is being worked off. If that is done, or has gone on for long, the guest, which has waited, hands in what has come since.
    /// `previous` was polled from `polled_at` on. Returns the time.
    #[inline(never)]
    pub(super) fn look_at_guest(
        &mut self,
        shared: &Shared,
        previous: &Previous,
        polled_at: Nanos,
        now: Nanos,
    ) -> Nanos {
        if !matches!(previous, Previous::Nothing) {
            // A poll is not long because a bearer or the host had the processor in its middle.
            let took = now.saturating_sub(polled_at);
            let took = took.saturating_sub(self.notes.excluded);
            let long = self.brought.end_poll(took);
            if long && let Previous::Again(task) = previous {
                task.context().marks.set_brought(false);
            }
        }
        if self.brought.is_done(now) {
            self.let_guest_in(shared, now)
        } else {
            now
        }
    }

    #[cold]
    fn let_guest_in(&mut self, shared: &Shared, now: Nanos) -> Nanos {
        if !self.brought.goes_on(now) && !self.stop_work(shared) {
            return now;
        }
        self.offer_processor(shared, now)
    }

    /// Lets whoever else wants the processor have it. Returns the time.
    pub(super) fn offer_processor(&mut self, shared: &Shared, now: Nanos) -> Nanos {
        if !self.brought.may_offer(now) {
            return now;
        }
        for _ in 0..OFFERS_MAX {
            quotient_pause::begin_stay();
            std::thread::yield_now();
            if quotient_pause::has_stayed() != Some(true) {
                break;
            }
        }
        quotient_pause::begin_stay();
        let later = shared.now();
        // Nobody's: the thread did not run.
        let away = later.saturating_sub(now);
        self.brought.offered(away, later);
        self.notes.excluded = self.notes.excluded.saturating_add(away);
        self.notes.noted = true;
        self.move_reference(away);
        later
    }

    /// It works off nothing any more. Whether a guest has waited.
    pub(super) fn stop_work(&mut self, shared: &Shared) -> bool {
        let preempting = shared.preempt.as_ref();
        preempting.is_some_and(|preempting| self.brought.stop(preempting, self.index))
    }
}
