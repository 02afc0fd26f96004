//! Programs that people know, on both sides: wake-ups as schbench sends them, and rt-app's own files, under the kernel and simulated.
//!
//! schbench is no package of any distribution, so its loop is here ([`schbench`]); rt-app is run as it is installed ([`rtapp`]) and its
//! logs are read. Both get the same limits, the simulator gets the preset of the kernel, and each figure stands beside the kernel's own spread.
//!
//! A real kernel overlooks idle CPUs. How often is counted in a recording of the program without a limit, as `quotient advise --kernel` does
//! it, and played; what the rules alone would give stands beside it.

pub mod rtapp;
pub mod schbench;

use std::fs::{self, File};
use std::io::BufReader;
use std::process::{Command, Stdio};
use std::time::Duration;

use quotient_core::{Limit, Nanos};
use quotient_sim::replay::{Placement, Recording};
use quotient_sim::{Kernel, Machine, Notice, Outcome, Plan, Simulation};
use quotient_trace::Discard;
use serde::Serialize;

use crate::outcome::cpus;
use crate::real;
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
    /// Of the simulated ones, which overlook idle CPUs as the kernel did.
    pub simulated: Spread,
    /// Of simulated ones that overlook nothing.
    pub by_rules: Spread,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// In the order of the programs and their limits.
    pub figures: Vec<Figure>,
    /// What the kernel was seen to overlook, or why that was not counted.
    pub notes: Vec<String>,
    /// What is not installed.
    pub left_out: Vec<String>,
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
) -> Result<Answer, Problem> {
    let wanted = |name: &str| only.is_none_or(|text| name.contains(text));
    let mut answer = Answer::default();
    if wanted("schbench") {
        schbench::compare(length, runs, interrupt, &mut done, &mut answer)?;
    }
    if wanted("rt-app") {
        match rtapp::compare(length, runs, interrupt, &mut done, &mut answer) {
            Ok(()) => {}
            Err(Problem::Unavailable(reason)) => answer.left_out.push(reason),
            Err(problem) => return Err(problem),
        }
    }
    Ok(answer)
}

/// How often the kernel noticed that a CPU idles while `load` ran for `length`; everything if that cannot be counted. Notes say which.
fn noticed(
    of: &str,
    length: Duration,
    load: impl FnOnce() -> Result<(), Problem>,
    answer: &mut Answer,
) -> Result<Notice, Problem> {
    match recorded(length, load) {
        Ok(placement) => {
            let (woken, fell) = (placement.woken, placement.fell_idle);
            answer.notes.push(format!(
                "{of}: of {} wake-ups whose CPU was busy while another one idled {} went there, and of {} CPUs that fell idle while somebody waited {} took him",
                woken.of, woken.did, fell.of, fell.did
            ));
            Ok(placement.notice())
        }
        Err(Problem::Interrupted) => Err(Problem::Interrupted),
        Err(problem) => {
            answer.notes.push(format!(
                "{of}: what the kernel overlooks was not counted: {problem}"
            ));
            Ok(Notice::EVERYTHING)
        }
    }
}

/// What a recording made during `load` shows.
fn recorded(
    length: Duration,
    load: impl FnOnce() -> Result<(), Problem>,
) -> Result<Placement, Problem> {
    let path = std::env::temp_dir().join(format!("quotient-noticed-{}.txt", std::process::id()));
    let recorder = Command::new(real::beside()?)
        .arg("record")
        .arg(format!("{}ms", length.as_millis()))
        .arg("--out")
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Problem::during("cannot run quotient record"))?;
    let loaded = load();
    let output = recorder.wait_with_output();
    let recording = File::open(&path).map(|file| Recording::read(&mut BufReader::new(file)));
    // Without a recording there is nothing to remove.
    let _ = fs::remove_file(&path);
    loaded?;
    let output = output.map_err(Problem::during("quotient record"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Problem::Unavailable(said));
    }
    let recording = recording.map_err(Problem::during("the recording"))?;
    let recording = recording.map_err(Problem::during("the recording"))?;
    Ok(recording.placement)
}

/// An empty plan for a machine like this one, by the rules of the kernel, with one group under that limit.
fn plan_for(cap: Option<Cap>, length: Duration, seed: u64, notice: Notice) -> Plan {
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
    plan.settings.notice = notice;
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
    notice: Notice,
    predict: impl Fn(u64, Notice) -> Result<[f64; N], Problem>,
    done: &mut impl FnMut(&Figure),
) -> Result<Vec<Figure>, Problem> {
    let all =
        |notice| -> Result<Vec<_>, _> { (1..=SEEDS).map(|seed| predict(seed, notice)).collect() };
    let (simulated, by_rules) = (all(notice)?, all(Notice::EVERYTHING)?);
    let column = |runs: &[[f64; N]], index: usize| {
        Spread::of(&runs.iter().map(|run| run[index]).collect::<Vec<_>>())
    };
    let figure = |(index, what): (usize, &&str)| Figure {
        of: of.to_owned(),
        what: (*what).to_owned(),
        kernel: column(kernel, index),
        simulated: column(&simulated, index),
        by_rules: column(&by_rules, index),
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
            by_rules: Spread::of(&[0.0]),
        };
        assert!(figure(&[100.0], 115.0).holds() && !figure(&[100.0], 116.0).holds());
        assert!(figure(&[80.0, 100.0, 130.0], 129.0).holds());
        assert!(!figure(&[80.0, 100.0, 130.0], 131.0).holds());
    }

    #[test]
    fn what_the_kernel_overlooks_is_played() {
        let notice = Notice {
            woken_permille: 100,
            crowded_permille: 800,
            fell_idle_permille: 200,
            drawn_permille: 300,
            drawn_crowded_permille: 50,
        };
        let plan = plan_for(None, Duration::from_secs(1), 1, notice);
        assert_eq!(plan.settings.notice, notice);
        // A load that breaks is told as it is; a recording that cannot be made is a note.
        let mut answer = Answer::default();
        let broken = noticed(
            "it",
            Duration::from_millis(1),
            || Err(Problem::Interrupted),
            &mut answer,
        );
        assert!(matches!(broken, Err(Problem::Interrupted)) || answer.notes.len() == 1);
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
