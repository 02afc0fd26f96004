//! Jobs that need more than one quota now and then, and less on average: what they wait, with and without a burst.

use std::time::Duration;

use quotient_validation::outcome::quantile;
use quotient_validation::scenario::{Cap, GroupPlan, Load, Scenario};
use quotient_validation::{Problem, kernel, runtime};

use super::{Mode, Row, Ward, settings};

/// The pain's name.
pub const NAME: &str = "burst";
/// The limit: 20 % of a CPU.
const CAP: Cap = Cap::ms(4, 20);
/// CPU time of a job: one and a half quotas.
const WORK: Duration = Duration::from_millis(6);
/// Time between two jobs: 15 % of a CPU.
const EVERY: Duration = Duration::from_millis(40);
/// How long each mode runs: 250 jobs.
const LENGTH: Duration = Duration::from_secs(10);
/// Bar: p99 with a burst of one quota over p99 without.
const RATIO_MAX: f64 = 0.5;

/// The p99 of jobs in every mode, without and with burst.
pub fn measure(ward: &Ward) -> Result<Vec<Row>, Problem> {
    let mut rows = Vec::new();
    for mode in [
        Mode::Unlimited,
        Mode::Default,
        Mode::KernelRules,
        Mode::RealKernel,
    ] {
        if mode == Mode::Unlimited {
            if let Some(p99) = p99_ms(ward, mode, None)? {
                rows.push(Row::new(NAME, mode, "job_p99", p99, "ms"));
            }
            continue;
        }
        let without = p99_ms(ward, mode, Some(CAP))?;
        let with = p99_ms(ward, mode, Some(CAP.with_burst_ms(4)))?;
        let (Some(without), Some(with)) = (without, with) else {
            continue;
        };
        rows.push(Row::new(NAME, mode, "job_p99_no_burst", without, "ms"));
        rows.push(Row::new(NAME, mode, "job_p99_burst", with, "ms"));
        let ratio = with / without.max(1e-9);
        rows.push(
            Row::new(NAME, mode, "burst_to_no_burst", ratio, "x").at_most_by_default(RATIO_MAX),
        );
    }
    Ok(rows)
}

/// `None` where the mode, or its burst, is not to be had.
fn p99_ms(ward: &Ward, mode: Mode, cap: Option<Cap>) -> Result<Option<f64>, Problem> {
    let scenario = Scenario {
        name: NAME.into(),
        groups: vec![GroupPlan {
            path: "jobs",
            weight: 100,
            cap,
            load: Load::Jobs {
                work: WORK,
                every: EVERY,
            },
        }],
    };
    let length = ward.length(LENGTH);
    let jobs = match (settings(mode), &ward.controller) {
        (Some(settings), _) => {
            let stage = runtime::Stage::start(settings, &scenario)?;
            stage.outcome(&scenario, length, &ward.interrupt)?;
            stage.jobs(0)
        }
        (None, Some(controller)) => {
            let stage = match kernel::Stage::start(controller, &scenario) {
                // A kernel before 5.14 has no burst.
                Err(Problem::Broken(_)) if cap.is_some_and(|cap| !cap.burst.is_zero()) => {
                    return Ok(None);
                }
                other => other?,
            };
            stage.outcome(&scenario, length, &ward.interrupt)?;
            stage.jobs(0)
        }
        (None, None) => return Ok(None),
    };
    Ok(quantile(&jobs, 0.99).map(|seconds| seconds * 1e3))
}
