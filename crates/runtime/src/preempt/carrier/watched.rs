//! A carrier as the watch and who charges see it: what is forbidden stands, but for short turns, and what was used is charged.

use std::sync::atomic::Ordering;

use quotient_core::Nanos;
use quotient_core::event::ResumeReason;
use quotient_pause::PauseState;

use super::Carrier;
use crate::cpu_clock::OwnTime;
use crate::event_log::PauseLog;
use crate::preempt::charges::Charge;
use crate::preempt::dozing::Awakening;
use crate::preempt::others::Due;

impl Carrier {
    /// The watch, of one whose proxy is away, and has used so much by now.
    pub(in crate::preempt) fn looks_away(&self, cpu: Nanos, wall: Nanos) -> Awakening {
        let charges = &mut self.turns.lock().charges;
        charges.look_while_away(OwnTime { wall, cpu })
    }

    /// The watch: whether it was found to be blocked although it may run; perhaps for a lock of one that stands.
    pub(in crate::preempt) fn waits_in_the_kernel(&self) -> bool {
        self.is_allowed() && self.turns.is_away()
    }

    /// Whether it is to stand still and may have short turns meanwhile; `grave` if that must not wait for a thaw.
    pub(in crate::preempt) fn may_have_short_turns(&self, grave: bool) -> bool {
        let frozen = self.frozen.load(Ordering::Relaxed);
        !self.is_unbegun() && !self.is_allowed() && (grave || !frozen) && !self.is_finished()
    }

    /// The watch: what is forbidden stands, insisted upon where guards have kept it going for too long (`insisted` is called once it stands for
    /// that). Whether it does.
    pub(in crate::preempt) fn enforce(
        &self,
        log: &PauseLog,
        now: Nanos,
        insisted: impl FnOnce(),
    ) -> bool {
        self.turns.enforce(
            |pause| match pause.state() {
                PauseState::Missed => true,
                PauseState::Asked => {
                    self.runs_over.store(true, Ordering::Relaxed);
                    if self.is_guarded_for_long(pause, now) && pause.insist().is_ok() {
                        self.guarded.has_insisted();
                    }
                    false
                }
                PauseState::Standing => {
                    if self.guarded.stands() {
                        insisted();
                    }
                    false
                }
            },
            // Between two polls it stands by itself, until it is chosen.
            |by| log.resumed(self.shown(), by, ResumeReason::End),
            |by| self.stop(log, by),
        )
    }

    /// The watch: a short turn of one that is forbidden begins; [`Carrier::enforce`] ends it.
    pub(in crate::preempt) fn burst(&self, log: &PauseLog, reason: ResumeReason) {
        let from = self.cpu_time().map_or(0, |time| time.as_nanos() + 1);
        self.short_turn.store(from, Ordering::Relaxed);
        self.turns.burst(|by| log.resumed(self.shown(), by, reason));
    }

    /// The watch: what its short turn has cost so far; nothing if it has none, or has been chosen meanwhile.
    pub(in crate::preempt) fn short_turn_used(&self) -> Nanos {
        let from = self.short_turn.load(Ordering::Relaxed);
        if from == 0 || self.is_allowed() {
            return Nanos::ZERO;
        }
        let now = self.cpu_time().unwrap_or_default();
        now.saturating_sub(Nanos(from - 1))
    }

    /// The watch: short turns are over.
    pub(in crate::preempt) fn end_short_turn(&self) {
        if self.short_turn.swap(0, Ordering::Relaxed) != 0 {
            self.runs_over.store(true, Ordering::Relaxed);
        }
    }

    /// The watch: whether it has run since its last charge although it should stand.
    pub(in crate::preempt) fn runs_over(&self) -> bool {
        self.runs_over.load(Ordering::Relaxed)
    }

    /// The watch: it is to be charged by the tick thread, by what it has used so far.
    pub(in crate::preempt) fn is_to_be_charged(&self) {
        self.runs_over.store(true, Ordering::Relaxed);
    }

    /// The same; whoever asks charges it.
    pub(in crate::preempt) fn takes_overtime(&self) -> bool {
        self.runs_over.swap(false, Ordering::Relaxed)
    }

    /// CPU time since the last charge, to be charged to budgets and clocks now.
    pub(in crate::preempt) fn take_charge_so_far(&self) -> Nanos {
        let now = self.cpu_time();
        let charges = &mut self.turns.lock().charges;
        let at = charges.total.or(now);
        at.map_or(Nanos::ZERO, |at| {
            charges.take_early(at, self.others.theirs(at))
        })
    }

    /// CPU time that it has used and was not charged yet; what others account for counts from their last account on.
    pub(in crate::preempt) fn uncharged(&self) -> Nanos {
        let now = self.cpu_time();
        now.map_or(Nanos::ZERO, |now| self.uncharged_at(now))
    }

    /// The same, its thread at `cpu`.
    pub(in crate::preempt) fn uncharged_at(&self, cpu: Nanos) -> Nanos {
        self.turns.lock().charges.open(cpu)
    }

    /// CPU time since the last charge, up to its end if it has come to that.
    pub(crate) fn take_charge(&self) -> Charge {
        let charges = &mut self.turns.lock().charges;
        match charges.total.or_else(|| self.cpu_time()) {
            Some(at) => charges.take(at, self.others.theirs(at)),
            None => Charge::default(),
        }
    }

    /// What is to be charged by now to a group that accounts for what it does by itself, but does so at the end only.
    pub(crate) fn take_charge_of_others(&self) -> Option<Due> {
        if !self.others.has_account() {
            return None;
        }
        self.others.advance(self.cpu_time()?)
    }
}
