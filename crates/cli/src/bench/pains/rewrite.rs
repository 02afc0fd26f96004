//! Writing the limit that is in force already: a config tool that runs every so often must not change what a group gets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quotient_validation::outcome::Outcome;
use quotient_validation::scenario::{Cap, Scenario};
use quotient_validation::{Problem, kernel, runtime};

use super::{Mode, Row, Ward, settings};

/// The pain's name.
pub const NAME: &str = "rewrite";
/// The limit that is written again and again.
const CAP: Cap = Cap::ms(5, 100);
/// Time between two writes.
const EVERY: Duration = Duration::from_millis(10);
/// How long it goes on.
const LENGTH: Duration = Duration::from_secs(2);
/// Bar: usage with rewriting over usage without. A poll of 50 us at each end is 1 % of 2 s of this limit.
const RATIO_MAX: f64 = 1.02;

/// Usage without and with rewriting, in every mode.
pub fn measure(ward: &Ward) -> Result<Vec<Row>, Problem> {
    let mut rows = Vec::new();
    for mode in [Mode::Default, Mode::KernelRules, Mode::RealKernel] {
        let (Some(left_alone), Some(rewritten)) =
            (used(ward, mode, false)?, used(ward, mode, true)?)
        else {
            continue;
        };
        rows.push(Row::new(
            NAME,
            mode,
            "usage_left_alone",
            left_alone * 1e3,
            "ms/s",
        ));
        rows.push(Row::new(
            NAME,
            mode,
            "usage_rewritten",
            rewritten * 1e3,
            "ms/s",
        ));
        let ratio = rewritten / left_alone.max(1e-9);
        rows.push(
            Row::new(NAME, mode, "rewritten_to_left_alone", ratio, "x")
                .at_most_by_default(RATIO_MAX),
        );
    }
    Ok(rows)
}

/// CPUs used; `None` where the mode is not to be had.
fn used(ward: &Ward, mode: Mode, rewriting: bool) -> Result<Option<f64>, Problem> {
    let scenario = Scenario::spin(1, CAP);
    // Shorter runs would see the one phase in which the first write falls.
    let outcome = match (settings(mode), &ward.controller) {
        (Some(settings), _) => {
            let stage = runtime::Stage::start(settings, &scenario)?;
            let rewrite = || {
                let changed = stage.group(0).set_max((CAP.quota, CAP.period));
                changed.map_err(Problem::during("cannot write the limit"))
            };
            let watch = || stage.outcome(&scenario, LENGTH, &ward.interrupt);
            during(rewriting, rewrite, watch)?
        }
        (None, Some(controller)) => {
            let stage = kernel::Stage::start(controller, &scenario)?;
            let rewrite = || stage.cgroup(0).set_cap(Some(CAP));
            let watch = || stage.outcome(&scenario, LENGTH, &ward.interrupt);
            during(rewriting, rewrite, watch)?
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(outcome.groups[0].cpus))
}

/// Runs `watch`, with `rewrite` called every [`EVERY`] meanwhile if `rewriting`.
fn during(
    rewriting: bool,
    rewrite: impl Fn() -> Result<(), Problem> + Send + Sync,
    watch: impl FnOnce() -> Result<Outcome, Problem>,
) -> Result<Outcome, Problem> {
    let over = AtomicBool::new(!rewriting);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                rewrite()?;
                thread::sleep(EVERY);
            }
            Ok(())
        });
        let outcome = watch();
        over.store(true, Ordering::Relaxed);
        let written = writer
            .join()
            .unwrap_or_else(|_| Err(Problem::Broken("the writer of limits panicked".into())));
        written.and(outcome)
    })
}
