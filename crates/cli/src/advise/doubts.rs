//! What speaks against a prediction. A figure is never given alone where its ground is thin.

use quotient_core::Nanos;
use quotient_sim::replay::Recording;
use serde::Serialize;

/// A recording shorter than so many periods says little of how many are throttled: one more or less is 5 %, the part
/// that is accepted by default.
const PERIODS_MIN: u64 = 20;
/// With fewer bursts their 99th percentile is their maximum.
const BURSTS_MIN: usize = 100;
/// Work that a limit cut off is a guess; more than this part of all, per cent, and the advice rests on it.
const RESTORED_MAX_PERCENT: u64 = 10;

/// One reason for doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Doubt {
    /// In words, with figures.
    pub(super) reason: String,
    /// Whether nothing can be recommended because of it.
    pub(super) decisive: bool,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Doubts(pub(super) Vec<Doubt>);

impl Doubts {
    /// Whether nothing can be recommended.
    pub(super) fn is_decisive(&self) -> bool {
        self.0.iter().any(|doubt| doubt.decisive)
    }

    fn add(&mut self, decisive: bool, reason: String) {
        self.0.push(Doubt { reason, decisive });
    }
}

/// Nobody was selected: the whole machine would share the limit.
pub(super) fn about_everything(whole: &Recording, doubts: &mut Doubts) {
    let (groups, names) = (whole.groups().len(), whole.names().len());
    if groups > 1 || names > 1 {
        doubts.add(
            false,
            format!(
                "all {} tasks of the trace ({names} names, {groups} groups) are limited together; --comm, --pid or --group says which are meant",
                whole.tasks()
            ),
        );
    }
}

/// Something is missing from the trace.
pub(super) fn about_gaps(whole: &Recording, doubts: &mut Doubts) {
    if whole.gaps.is_any() {
        // Who was woken or left a CPU in a gap is not known: bursts are cut there.
        doubts.add(false, format!("of the trace, {}", whole.gaps));
    }
}

/// Too short, or too little in it.
pub(super) fn about_length(limited: &Recording, periods: &[Nanos], doubts: &mut Doubts) {
    let longest = periods.iter().copied().max().unwrap_or(Nanos::ZERO);
    let count = limited.length.0 / longest.0.max(1);
    if count < PERIODS_MIN {
        doubts.add(
            true,
            format!(
                "the trace has {count} periods of {} ms; at least {PERIODS_MIN} are needed to say how many are throttled",
                longest.0 / 1_000_000
            ),
        );
    }
    let bursts = limited.bursts();
    if bursts < BURSTS_MIN {
        doubts.add(
            true,
            format!("{bursts} bursts; at least {BURSTS_MIN} are needed for a 99th percentile"),
        );
    }
}

/// Recorded under a limit.
pub(super) fn about_limits(limited: &Recording, doubts: &mut Doubts) {
    let (restored, recorded) = (limited.restored.0, limited.recorded.0);
    if restored.saturating_mul(100) > recorded.saturating_mul(RESTORED_MAX_PERCENT) {
        doubts.add(
            false,
            format!(
                "a limit cut off work while this was recorded; {:.0} % more is a guess: record without one",
                100.0 * restored as f64 / recorded.max(1) as f64
            ),
        );
    }
}

/// Nothing shows whether arrivals wait for answers.
pub(super) fn about_loop(doubts: &mut Doubts) {
    doubts.add(
        false,
        "the trace does not show whether new work waits for answers: played as an open loop, which is the worse case; with clients that wait, say --loop closed".into(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_doubt_can_decide() {
        let mut doubts = Doubts::default();
        about_loop(&mut doubts);
        assert!(!doubts.is_decisive());
        about_length(
            &Recording::default(),
            &[Nanos::from_millis(100)],
            &mut doubts,
        );
        assert!(doubts.is_decisive());
        assert_eq!(doubts.0.len(), 3);
    }
}
