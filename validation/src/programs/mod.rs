//! Programs that people know, on both sides: wake-ups as schbench sends them, and rt-app's own files, under the kernel and simulated.
//!
//! schbench is no package of any distribution, so its loop is here ([`schbench`]); rt-app is run as it is installed ([`rtapp`]) and its
//! logs are read. Both get the same limits, the simulator gets the preset of the kernel, and each figure stands beside the kernel's own spread.

pub mod rtapp;
pub mod schbench;

use std::time::Duration;

use quotient_core::{Limit, Nanos};
use quotient_sim::{Kernel, Machine, Outcome, Plan, Simulation};
use quotient_trace::Discard;
use serde::Serialize;

use crate::outcome::cpus;
use crate::real::judge::Spread;
use crate::scenario::Cap;
use crate::{Interrupt, Problem};

/// Simulated runs, each with another seed.
pub const SEEDS: u64 = 10;
/// Before anything is measured: threads start, the first limit takes hold.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// One figure on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Which program, with its limit.
    pub of: String,
    /// What, with its unit.
    pub what: String,
    /// Of the kernel's runs.
    pub kernel: Spread,
    /// Of the simulated ones.
    pub simulated: Spread,
}

impl Figure {
    /// Whether the simulated median is within 15 % of the kernel's, or within the kernel's own spread.
    pub fn holds(&self) -> bool {
        let (simulated, kernel) = (self.simulated.mid, self.kernel);
        kernel.holds(simulated) || (simulated - kernel.mid).abs() <= 0.15 * kernel.mid.abs()
    }
}

/// Both programs, `runs` times `length` for each limit. Figures come as they are done; what is left out is said as text.
///
/// # Errors
/// [`Problem::Unavailable`] without a cgroup cpu controller, [`Problem::Interrupted`], or what broke.
pub fn compare(
    length: Duration,
    runs: usize,
    only: Option<&str>,
    interrupt: &Interrupt,
    mut done: impl FnMut(&Figure),
) -> Result<(Vec<Figure>, Vec<String>), Problem> {
    let wanted = |name: &str| only.is_none_or(|text| name.contains(text));
    let (mut figures, mut left_out) = (Vec::new(), Vec::new());
    if wanted("schbench") {
        figures.extend(schbench::compare(length, runs, interrupt, &mut done)?);
    }
    if wanted("rt-app") {
        match rtapp::compare(length, runs, interrupt, &mut done) {
            Ok(found) => figures.extend(found),
            Err(Problem::Unavailable(reason)) => left_out.push(reason),
            Err(problem) => return Err(problem),
        }
    }
    Ok((figures, left_out))
}

/// An empty plan for a machine like this one, by the rules of the kernel, with one group under that limit.
fn plan_for(cap: Option<Cap>, length: Duration, seed: u64) -> Plan {
    let mut plan = Plan::new(Machine {
        hz: 250,
        // A fraction is the runtime's business.
        ..Machine::flat(cpus() as u32)
    });
    Kernel::Linux6_18.apply(&mut plan);
    plan.group("service");
    plan.groups[0].limit =
        cap.map(|cap| Limit::new(nanos(cap.quota), nanos(cap.period)).with_burst(nanos(cap.burst)));
    plan.duration = nanos(length);
    plan.seed = seed;
    plan
}

fn simulated(plan: &Plan) -> Result<Outcome, Problem> {
    let mut simulation =
        Simulation::new(plan, Discard).map_err(Problem::during("the simulator"))?;
    simulation.run().map_err(Problem::during("the simulator"))?;
    Ok(simulation.outcome())
}

fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Each column of the kernel's runs beside simulated ones, one a seed, with the name and unit of it; `done` hears of each.
fn beside_simulated<const N: usize>(
    of: &str,
    names: [&str; N],
    kernel: &[[f64; N]],
    predict: impl Fn(u64) -> Result<[f64; N], Problem>,
    done: &mut impl FnMut(&Figure),
) -> Result<Vec<Figure>, Problem> {
    let simulated: Result<Vec<_>, _> = (1..=SEEDS).map(predict).collect();
    let simulated = simulated?;
    let column = |runs: &[[f64; N]], index: usize| {
        Spread::of(&runs.iter().map(|run| run[index]).collect::<Vec<_>>())
    };
    let figure = |(index, what): (usize, &&str)| Figure {
        of: of.to_owned(),
        what: (*what).to_owned(),
        kernel: column(kernel, index),
        simulated: column(&simulated, index),
    };
    let figures: Vec<_> = names.iter().enumerate().map(figure).collect();
    figures.iter().for_each(done);
    Ok(figures)
}

/// The value at `part` of all, of figures in any order; 0 of none.
fn at(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * part).ceil() as usize;
    values.get(index.max(1) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_holds_within_a_seventh_or_the_kernels_own_spread() {
        let figure = |kernel: &[f64], simulated: f64| Figure {
            of: String::new(),
            what: String::new(),
            kernel: Spread::of(kernel),
            simulated: Spread::of(&[simulated]),
        };
        assert!(figure(&[100.0], 115.0).holds() && !figure(&[100.0], 116.0).holds());
        assert!(figure(&[80.0, 100.0, 130.0], 129.0).holds());
        assert!(!figure(&[80.0, 100.0, 130.0], 131.0).holds());
    }

    #[test]
    fn percentiles_are_of_the_sorted_figures() {
        let mut values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(
            (at(&mut values, 0.5), at(&mut values, 0.99)),
            (100.0, 198.0)
        );
        assert_eq!((at(&mut values, 1.0), at(&mut [], 0.5)), (200.0, 0.0));
    }
}
