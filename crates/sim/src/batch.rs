//! Many runs at once: each is `Send` and deterministic, so the results do not depend on who computes what when.

use crate::engine::{RunError, Simulation};
use crate::outcome::Outcome;
use crate::plan::{Plan, PlanError};
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use quotient_core::Nanos;
use quotient_trace::{Discard, Sink};
use std::sync::{Mutex, PoisonError};

/// In how many pieces a run is cut to look at progress and interruption.
const PIECES: u64 = 200;

/// What is simulated of a piece between two looks at interruption. Default 1 s: a piece of a long run takes minutes.
const STEP: Nanos = Nanos(1_000_000_000);

/// Why a batch ended without results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// A plan cannot be run.
    Plan(PlanError),
    /// A run cannot go on.
    Run(RunError),
    /// It was told to stop.
    Stopped,
}

impl fmt::Display for BatchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchError::Plan(error) => error.fmt(formatter),
            BatchError::Run(error) => error.fmt(formatter),
            BatchError::Stopped => formatter.write_str("stopped"),
        }
    }
}

impl std::error::Error for BatchError {}

/// Told to stop, and how far it is: shared by everybody who works on a batch.
#[derive(Debug, Default)]
pub struct Control {
    /// Set it to stop everything within a moment.
    pub stop: AtomicBool,
    /// Pieces done, of [`Control::pieces`] for each run.
    pub done: AtomicU64,
}

impl Control {
    /// Pieces of `runs` runs.
    pub const fn pieces(runs: usize) -> u64 {
        runs as u64 * PIECES
    }
}

/// Runs one plan to its end, looking at `control` on the way.
///
/// # Errors
/// See [`BatchError`].
pub fn run_one<S: Sink>(
    plan: &Plan,
    sink: S,
    control: &Control,
) -> Result<(Outcome, S), BatchError> {
    let mut simulation = Simulation::new(plan, sink).map_err(BatchError::Plan)?;
    let mut at = Nanos::ZERO;
    for piece in 1..=PIECES {
        let until = u128::from(plan.duration.0) * u128::from(piece) / u128::from(PIECES);
        let until = Nanos(until as u64);
        loop {
            if control.stop.load(Relaxed) {
                return Err(BatchError::Stopped);
            }
            at = until.min(at + STEP);
            simulation.advance(at).map_err(BatchError::Run)?;
            if at >= until {
                break;
            }
        }
        control.done.fetch_add(1, Relaxed);
    }
    let outcome = simulation.outcome();
    Ok((outcome, simulation.into_sink()))
}

/// Runs `count` plans on up to `threads` threads; `plan` makes each when its turn comes. Outcomes are in the order of
/// the plans.
///
/// # Errors
/// The first error in that order.
pub fn run_all(
    count: usize,
    threads: usize,
    control: &Control,
    plan: &(dyn Fn(usize) -> Plan + Sync),
) -> Result<Vec<Outcome>, BatchError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<Outcome, BatchError>>>> = Mutex::new(vec![None; count]);
    let work = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            // Making a plan takes longer than many runs, where it is one of a long recording.
            if index >= count || control.stop.load(Relaxed) {
                return;
            }
            let result = run_one(&plan(index), Discard, control).map(|(outcome, _)| outcome);
            // A store of one element: a panic elsewhere cannot have left it half done.
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results[index] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, count.max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let finished = results.into_iter();
    finished
        .map(|result| result.unwrap_or(Err(BatchError::Stopped)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, synthetic};
    use quotient_core::Limit;

    /// Hazard: a run of centuries looks at Ctrl-C once a year.
    #[test]
    fn a_long_run_stops_when_it_is_told_to() {
        let control = std::sync::Arc::new(Control::default());
        let (sender, receiver) = std::sync::mpsc::channel();
        let theirs = control.clone();
        std::thread::spawn(move || {
            let mut plan = Plan::new(Machine::flat(1));
            plan.duration = Nanos(u64::MAX / 4);
            let group = plan.group("box");
            let limit = Limit::new(Nanos::from_millis(10), Nanos::from_millis(100));
            plan.groups[0].limit = Some(limit);
            synthetic::spinners(&mut plan, "hog", group, 1);
            let _ = sender.send(run_one(&plan, Discard, &theirs).err());
        });
        // Told before it began, it would stop in any case.
        let begun = std::time::Duration::from_millis(100);
        assert!(
            receiver.recv_timeout(begun).is_err(),
            "it has centuries to go"
        );
        control.stop.store(true, Relaxed);
        let ended = receiver.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(ended, Ok(Some(BatchError::Stopped)));
    }

    #[test]
    fn once_stopped_no_plans_are_made() {
        let (control, made) = (Control::default(), AtomicUsize::new(0));
        let outcomes = run_all(100, 2, &control, &|_| {
            made.fetch_add(1, Relaxed);
            control.stop.store(true, Relaxed);
            let mut plan = Plan::new(Machine::flat(1));
            plan.duration = Nanos::from_millis(1);
            plan
        });
        assert_eq!(outcomes.err(), Some(BatchError::Stopped));
        // Each thread may have been about to make one.
        assert!(made.load(Relaxed) <= 2, "{made:?}");
    }
}
