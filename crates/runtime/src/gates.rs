//! Which features are on in this process: branches that cost next to nothing while they are off.
//!
//! A feature that not every program uses is asked for at every place where it would cost something. The answers are
//! static keys, turned when the first user of a feature comes and after the last one has gone. Keys belong to the process, as
//! code does, so schedulers share them; what a feature does for one scheduler or group is decided behind
//! the branch.
//!
//! | key | on while | turned by |
//! |---|---|---|
//! | `quotient.bandwidth` | some group has a limit | [`bandwidth_hold`] |
//! | `quotient.load_averages` | some scheduler publishes load averages | [`load_averages_hold`] |
//! | `quotient.events` | some scheduler records events | [`events_hold`] |
//! | `quotient.preempt` | some scheduler preempts polls | [`preempt_hold`] |
//! | `quotient.checks` | asked for | [`set_checks`] |
//! | `quotient.histograms` | not switched off | [`set_histograms`] |
//! | `quotient.poll_histograms` | asked for | [`set_poll_histograms`] |
//!
//! # Order
//! A hold is taken *before* the first limit (recorder, ...) can be seen by a virtual CPU, and given back *after* the last
//! one is gone and nothing depends on it any more. So whoever finds a limit finds the branch open, and a closed branch
//! skips nothing that is there. A virtual CPU that passed the branch before the key was turned on has seen no limit: it
//! meets it at its next charge. What a limit that was lifted has kept back is let go without the branch, as a change of the group; the
//! mail about it is emptied by whoever looks for mail before it sleeps.
//!
//! # Who changes code
//! The application, by `quotient_keys::patch()` in its `main`; this crate never does. Until then, and wherever code cannot
//! be patched, each place is a load and a branch, and turning a key writes its value and nothing else.

use quotient_core::Gates;
use quotient_keys::{
    EnableGuard, FlipError, static_branch_likely, static_branch_unlikely, static_key,
};

static_key! {
    /// CPU bandwidth control: some group of some scheduler has a limit.
    static BANDWIDTH = false, as "quotient.bandwidth";
    /// Load averages of groups and virtual CPUs.
    static LOAD_AVERAGES = false, as "quotient.load_averages";
    /// Recording of scheduling events.
    static EVENTS = false, as "quotient.events";
    /// Preemption of polls.
    static PREEMPT = false, as "quotient.preempt";
    /// Checks of every invariant of a run queue after every switch; a violation aborts the process.
    static CHECKS = false, as "quotient.checks";
    /// Histograms of the durations of polls.
    static POLL_HISTOGRAMS = false, as "quotient.poll_histograms";
    /// Histograms in the statistics.
    static HISTOGRAMS = true, as "quotient.histograms";
}

/// The run queue of this runtime: its features are asked for by [`RuntimeGates`].
pub(crate) type RunQueue<T> = quotient_core::RunQueue<T, RuntimeGates>;

/// Answers from the static keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuntimeGates;

impl Gates for RuntimeGates {
    #[inline(always)]
    fn bandwidth() -> bool {
        static_branch_unlikely!(BANDWIDTH)
    }

    #[inline(always)]
    fn load_averages() -> bool {
        static_branch_unlikely!(LOAD_AVERAGES)
    }

    #[inline(always)]
    fn events() -> bool {
        static_branch_unlikely!(EVENTS)
    }

    #[inline(always)]
    fn checks() -> bool {
        static_branch_unlikely!(CHECKS)
    }
}

/// Whether histograms are recorded.
#[inline(always)]
pub(crate) fn histograms() -> bool {
    static_branch_likely!(HISTOGRAMS)
}

/// Whether some scheduler preempts polls.
#[inline(always)]
pub(crate) fn preempts() -> bool {
    static_branch_unlikely!(PREEMPT)
}

/// Turns preemption on as long as the guard lives; to be stored with a scheduler that preempts, whose virtual CPUs keep it.
///
/// # Errors
/// As [`bandwidth_hold`].
pub(crate) fn preempt_hold() -> Result<EnableGuard, FlipError> {
    PREEMPT.hold()
}

/// Whether durations of polls are recorded.
#[inline(always)]
pub(crate) fn poll_histograms() -> bool {
    static_branch_unlikely!(POLL_HISTOGRAMS)
}

/// Turns the histograms of the durations of polls on or off.
///
/// # Errors
/// As [`bandwidth_hold`].
pub(crate) fn set_poll_histograms(on: bool) -> Result<(), FlipError> {
    POLL_HISTOGRAMS.set(on).map(|_| ())
}

/// Turns bandwidth control on as long as the guard lives; to be stored with a limited group.
///
/// # Errors
/// When code cannot be rewritten now (a debugger's breakpoint at a site): nothing has changed.
#[allow(dead_code)] // its user comes with the feature
pub(crate) fn bandwidth_hold() -> Result<EnableGuard, FlipError> {
    BANDWIDTH.hold()
}

/// Turns load averages on as long as the guard lives.
///
/// # Errors
/// As [`bandwidth_hold`].
#[allow(dead_code)] // its user comes with the feature
pub(crate) fn load_averages_hold() -> Result<EnableGuard, FlipError> {
    LOAD_AVERAGES.hold()
}

/// Turns recording of events on as long as the guard lives; to be stored with a recorder.
///
/// # Errors
/// As [`bandwidth_hold`].
pub(crate) fn events_hold() -> Result<EnableGuard, FlipError> {
    EVENTS.hold()
}

/// Turns the checks on or off.
///
/// # Errors
/// As [`bandwidth_hold`].
pub(crate) fn set_checks(on: bool) -> Result<(), FlipError> {
    CHECKS.set(on).map(|_| ())
}

/// Turns the histograms on or off.
///
/// # Errors
/// As [`bandwidth_hold`].
pub(crate) fn set_histograms(on: bool) -> Result<(), FlipError> {
    HISTOGRAMS.set(on).map(|_| ())
}

/// Checks the run queue if that was asked for. A violation is a bug of the scheduler: it panics, and the virtual CPU's
/// rule for its own panics ends the process.
#[inline(always)]
pub(crate) fn check<T>(queue: &RunQueue<T>) {
    if RuntimeGates::checks() {
        check_now(queue);
    }
}

#[cold]
fn check_now<T>(queue: &RunQueue<T>) {
    if let Err(violation) = queue.check() {
        panic!("the run queue breaks an invariant: {violation}");
    }
}
