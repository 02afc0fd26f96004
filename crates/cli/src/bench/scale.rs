//! `quotient bench scale`: memory a task and a group, and how creation and wake-up grow with their number. Each
//! figure comes from a process of its own, see [`super::probe`].

use std::process::{Command, Stdio};

use serde::Serialize;

use super::probe::{Kind, Probe};
use super::{ScaleArguments, arena, print_json};
use crate::failure::Failure;

/// Groups from which on their memory is judged: the system hands out pages by megabytes, kilobytes a group with fewer.
const GROUPS_JUDGED: u64 = 10_000;
/// How many groups; a tenth with `--quick`.
const GROUP_COUNTS: [u64; 3] = [1_000, 10_000, 100_000];
/// How many sleeping tasks; a tenth with `--quick`.
const TASK_COUNTS: [u64; 3] = [10_000, 100_000, 1_000_000];
/// Bytes of scheduler state a sleeping task may take beyond its future.
const TASK_BYTES_MAX: f64 = 256.0;
/// Bytes a group may take on 2 vCPUs.
const GROUP_BYTES_MAX: f64 = 4096.0;

/// Everything that was found, in the order it was measured.
#[derive(Debug, Default, Serialize)]
pub struct Results {
    /// Bytes of a sleeping task beyond its future, at the highest count.
    pub bytes_per_idle_task: Option<f64>,
    /// The same on plain tokio.
    pub bytes_per_idle_tokio_task: Option<f64>,
    /// Bytes of a group in which a task has run, without the task: the most over all counts, with the most vCPUs.
    pub bytes_per_group: Option<f64>,
    /// The single probes.
    pub probes: Vec<Probe>,
}

/// Measures and prints a table, or one JSON object.
///
/// # Errors
/// When a probe fails.
pub fn run(arguments: &ScaleArguments) -> Result<(), Failure> {
    let results = measure(arguments.quick)?;
    if arguments.json {
        return print_json(&results);
    }
    print(&results);
    Ok(())
}

/// Runs all probes, one after another.
///
/// # Errors
/// When one fails.
pub fn measure(quick: bool) -> Result<Results, Failure> {
    let divisor = if quick { 10 } else { 1 };
    let mut probes = Vec::new();
    for workers in arena::worker_counts() {
        for kind in [Kind::TasksTokio, Kind::TasksQuotient] {
            for count in TASK_COUNTS {
                probes.push(probe(kind, count / divisor, workers)?);
            }
        }
        for count in GROUP_COUNTS {
            probes.push(probe(Kind::Groups, count / divisor, workers)?);
        }
    }
    Ok(summarise(probes))
}

/// Tasks: the figures of the highest count and the most workers, which come last of their kind. Groups: the most a group
/// took with the most workers, since the more groups there are, the fewer have run on every vCPU; not of few groups, see
/// [`GROUPS_JUDGED`].
fn summarise(probes: Vec<Probe>) -> Results {
    let last = |kind| {
        probes
            .iter()
            .rev()
            .find(|probe: &&Probe| probe.kind == kind)
    };
    let task = last(Kind::TasksQuotient).map(|probe| probe.bytes);
    let workers = last(Kind::Groups).map(|probe| probe.workers);
    let group = probes
        .iter()
        .filter(|probe| Some(probe.workers) == workers && probe.count >= GROUPS_JUDGED)
        .filter_map(|probe| probe.bytes_used)
        .reduce(f64::max)
        .zip(task);
    Results {
        bytes_per_idle_task: task,
        bytes_per_idle_tokio_task: last(Kind::TasksTokio).map(|probe| probe.bytes),
        bytes_per_group: group.map(|(with_task, task)| with_task - task),
        probes,
    }
}

fn probe(kind: Kind, count: u64, workers: usize) -> Result<Probe, Failure> {
    let program = std::env::current_exe().map_err(Failure::during("cannot find this program"))?;
    let kind_name = serde_json::to_value(kind).map_err(Failure::during("cannot name a probe"))?;
    let output = Command::new(program)
        .args([
            "bench",
            "probe",
            "--kind",
            kind_name.as_str().unwrap_or_default(),
        ])
        .args([
            "--count",
            &count.to_string(),
            "--workers",
            &workers.to_string(),
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(Failure::during("cannot start a probe"))?;
    if !output.status.success() {
        return Err(Failure::Run(format!(
            "probe {kind:?} of {count} failed: {}",
            output.status
        )));
    }
    serde_json::from_slice(&output.stdout).map_err(Failure::during("a probe printed no result"))
}

/// Prints the probes and what the two bars make of them.
pub fn print(results: &Results) {
    if results.probes.is_empty() {
        return;
    }
    println!(
        "\ngrowth: ns to create one, ns a round trip of two tasks beside the sleepers, ns to wake, pick and sleep in full queues, bytes each"
    );
    println!(
        "{:<15} {:>9} {:>1} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "what", "count", "w", "create", "round", "wake", "bytes", "bytes used"
    );
    for probe in &results.probes {
        println!(
            "{:<15} {:>9} {:>1} {:>9.0} {:>9} {:>9} {:>9.0} {:>12}",
            format!("{:?}", probe.kind),
            probe.count,
            probe.workers,
            probe.create_ns,
            optional(probe.pingpong_ns),
            optional(probe.wake_ns),
            probe.bytes,
            optional(probe.bytes_used)
        );
    }
    println!(
        "memory of an idle task beyond its future: {} B (plain tokio {} B, bar {TASK_BYTES_MAX} B)",
        optional(results.bytes_per_idle_task),
        optional(results.bytes_per_idle_tokio_task)
    );
    println!(
        "memory of a group that has run: {} B (bar {GROUP_BYTES_MAX} B)",
        optional(results.bytes_per_group)
    );
}

fn optional(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(kind: Kind, workers: u32, bytes: f64, bytes_used: Option<f64>) -> Probe {
        let (count, create_ns, pingpong_ns, wake_ns) = (GROUPS_JUDGED, 1.0, None, None);
        Probe {
            kind,
            count,
            workers,
            create_ns,
            bytes,
            bytes_used,
            pingpong_ns,
            wake_ns,
        }
    }

    #[test]
    fn the_summary_takes_the_largest_machine_and_leaves_the_task_out_of_the_group() {
        let results = summarise(vec![
            probe(Kind::TasksQuotient, 1, 900.0, None),
            probe(Kind::Groups, 1, 9.0, Some(9000.0)),
            probe(Kind::TasksQuotient, 2, 200.0, None),
            probe(Kind::Groups, 2, 9.0, Some(3000.0)),
            probe(Kind::Groups, 2, 9.0, Some(2500.0)),
        ]);
        assert_eq!(results.bytes_per_idle_task, Some(200.0));
        assert_eq!(results.bytes_per_group, Some(2800.0));
        assert_eq!(results.bytes_per_idle_tokio_task, None);
    }
}
