//! A quota of all CPUs that there are is no limit: nobody should ever be throttled by it.

use std::time::Duration;

use quotient_validation::scenario::{Cap, Scenario};
use quotient_validation::{Problem, kernel, runtime};

use super::{Mode, Row, Ward, settings};

/// The pain's name.
pub const NAME: &str = "own_cpus";
/// How long each mode runs.
const LENGTH: Duration = Duration::from_secs(10);
/// The period; short, so that there are many in which something can go wrong.
const PERIOD_MS: u64 = 10;

/// Throttled periods, in every mode.
pub fn measure(ward: &Ward) -> Result<Vec<Row>, Problem> {
    let mut rows = Vec::new();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cap = Cap::ms(PERIOD_MS * cpus as u64, PERIOD_MS);
    let spinners = u32::try_from(cpus * 4).unwrap_or(u32::MAX);
    let scenario = Scenario::spin(spinners, cap);
    let length = ward.length(LENGTH);
    for mode in [Mode::Default, Mode::KernelRules, Mode::RealKernel] {
        let outcome = match (settings(mode), &ward.controller) {
            (Some(settings), _) => runtime::run(settings, &scenario, length, &ward.interrupt)?,
            (None, Some(controller)) => {
                kernel::run(controller, &scenario, length, &ward.interrupt)?
            }
            (None, None) => continue,
        };
        let group = &outcome.groups[0];
        let count = |metric, count: u64| Row::new(NAME, mode, metric, count as f64, "periods");
        rows.push(count("nr_periods", group.nr_periods));
        rows.push(count("nr_throttled", group.nr_throttled).at_most_by_default(0.0));
        rows.push(Row::new(
            NAME,
            mode,
            "throttled",
            group.throttled_s * 1e3,
            "ms",
        ));
    }
    Ok(rows)
}
