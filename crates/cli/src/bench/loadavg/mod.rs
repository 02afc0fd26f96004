//! `quotient bench loadavg`: what keeping a group's load average over all CPUs costs, and how far off it is.
//!
//! Every vCPU is a thread that ticks at [`TICK_HZ`] and at each tick brings the averages of all groups up to date:
//! its own queue's, its part of the sum, what the others contribute, and the weight that follows. All threads tick
//! at the same instants, as CPUs with synchronised timers do. Loads follow a plan known in advance, so that the exact
//! sum at any instant can be computed afterwards and compared with what each tick believed.
//!
//! | figure | what it is |
//! |---|---|
//! | `tick_ns` | one group's averaging in one tick: median over all ticks |
//! | `saturated_tick_ns` | CPU time of the same if all threads tick without pause: what fighting over lines costs |
//! | `shared_writes_per_s_per_group` | writes to memory that several CPUs write |
//! | `own_writes_per_s_per_group` | stores to lines that one CPU writes and others may read |
//! | `lines_read_per_s_per_group` | lines of others that were looked at |
//! | `error_*_pct` | believed against exact sum, in percent of the exact sum's mean over the run |

mod plan;
mod saturated;
mod staleness;
mod vcpu;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use quotient_core::load_average::{SumRules, UpdateMode};
use quotient_core::{CpuId, Nanos};
use serde::Serialize;

use super::print_json;
use crate::failure::Failure;
use plan::Workload;
use staleness::Errors;
use vcpu::{Groups, Seen, Vcpu};

/// Ticks a second, the seed's machine and most servers' upper setting.
const TICK_HZ: u64 = 1000;
const TICK: Nanos = Nanos(1_000_000_000 / TICK_HZ);

/// NUMA nodes that the staggered mode takes turns among: the seed's machine.
const NODES: u32 = 8;

/// Groups that every vCPU averages at each tick.
const GROUPS: usize = 8;

/// Ticks until which averages rise from nothing, which no mode is judged by: over seven half-lives, and whole rounds
/// of all nodes.
const WARM_UP_TICKS: u64 = 256;

/// What is asked of the seed's mode on its 8 nodes, and of the best mode, in shared writes against every tick.
const STAGGERED_BAR: f64 = 8.0;
const BEST_BAR: f64 = 50.0;

/// What `bench loadavg` takes.
#[derive(Debug, Clone, Args)]
pub struct LoadavgArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Fewer vCPU counts, half a second each: a look, not a figure
    #[arg(long)]
    quick: bool,
}

/// One mode under one workload on so many vCPUs.
#[derive(Debug, Serialize)]
struct Row {
    mode: &'static str,
    workload: Workload,
    vcpus: u32,
    groups: usize,
    nodes: u32,
    tick_hz: u64,
    /// More vCPUs than CPUs: ticks come late, and lines are fought over less than they would be.
    oversubscribed: bool,
    seconds: f64,
    ticks: u64,
    ticks_missed: u64,
    tick_ns: f64,
    saturated_tick_ns: f64,
    shared_writes_per_s_per_group: f64,
    own_writes_per_s_per_group: f64,
    lines_read_per_s_per_group: f64,
    /// What every-tick writes in as many ticks as were due, over what this mode wrote; none at all counts as one.
    ratio_writes_vs_every_tick: f64,
    error_mean_pct: f64,
    error_p99_pct: f64,
    error_max_pct: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    cpus_online: usize,
    default_mode: &'static str,
    /// Over all rows, what every-tick writes over what the mode wrote.
    staggered_ratio: f64,
    best_ratio: f64,
    rows: Vec<Row>,
}

/// Measures and prints a table, or one JSON object.
///
/// # Errors
/// When JSON cannot be written.
pub fn run(arguments: &LoadavgArguments) -> Result<(), Failure> {
    let cpus_online = thread::available_parallelism().map_or(1, usize::from);
    // Whole rounds of all nodes.
    let (counts, ticks): (&[u32], u64) = if arguments.quick {
        (&[1, 2, 8, 16], 512)
    } else {
        (&[1, 2, 4, 8, 16, 32], 2_000)
    };
    let mut rows = Vec::new();
    for &vcpus in counts {
        let saturated = saturated::measure(vcpus, cpus_online, arguments.quick);
        for workload in Workload::ALL {
            for (mode, saturated_tick_ns) in UpdateMode::ALL.into_iter().zip(saturated) {
                let mut row = measure(mode, workload, vcpus, ticks);
                row.oversubscribed = vcpus as usize > cpus_online;
                row.saturated_tick_ns = saturated_tick_ns;
                rows.push(row);
            }
        }
    }
    let results = Results {
        cpus_online,
        default_mode: UpdateMode::default().name(),
        staggered_ratio: overall_ratio(&rows, UpdateMode::NodeStaggered),
        best_ratio: overall_ratio(&rows, UpdateMode::OnDemand),
        rows,
    };
    if arguments.json {
        return print_json(&results);
    }
    print(&results);
    Ok(())
}

/// What every-tick writes over what a mode wrote, over everything measured.
fn overall_ratio(rows: &[Row], mode: UpdateMode) -> f64 {
    let of_mode = || rows.iter().filter(|row| row.mode == mode.name());
    let writes: f64 = of_mode().map(|row| row.shared_writes_per_s_per_group).sum();
    let of_every_tick: f64 = of_mode()
        .map(|row| f64::from(row.vcpus) * TICK_HZ as f64)
        .sum();
    // A mode that never writes counts as writing once a second.
    of_every_tick / writes.max(1.0)
}

/// Runs all vCPUs at the tick's pace and compares what they believed with what was.
fn measure(mode: UpdateMode, workload: Workload, vcpus: u32, ticks: u64) -> Row {
    let groups = Groups::new(GROUPS, vcpus);
    let rules = SumRules::new(mode, NODES, TICK);
    let barrier = Barrier::new(vcpus as usize);
    let start = Instant::now() + Duration::from_millis(20);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let (groups, barrier) = (&groups, &barrier);
        let spawn = |cpu| {
            scope.spawn(move || {
                let node = cpu * NODES / vcpus;
                let mut vcpu = Vcpu::new(groups, workload, CpuId(cpu), node);
                barrier.wait();
                let seen = paced(&mut vcpu, start, ticks, &rules);
                // Nobody withdraws while others still look.
                barrier.wait();
                seen
            })
        };
        let threads: Vec<_> = (0..vcpus).map(spawn).collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    });
    let errors = Errors::of(&seen, workload, vcpus, GROUPS, warm_up());
    let mut times: Vec<u64> = seen
        .iter()
        .flat_map(|seen| &seen.tick_nanos)
        .copied()
        .collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let total = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
    let counted = ticks - WARM_UP_TICKS;
    let seconds = counted as f64 / TICK_HZ as f64;
    let rate = |of| total(of) as f64 / seconds / GROUPS as f64;
    let taken = times.len() as u64;
    let shared_writes = total(|seen| seen.shared_writes);
    let of_every_tick = counted * u64::from(vcpus) * GROUPS as u64;
    Row {
        mode: mode.name(),
        workload,
        vcpus,
        groups: GROUPS,
        nodes: NODES,
        tick_hz: TICK_HZ,
        oversubscribed: false,
        seconds,
        ticks: taken,
        ticks_missed: ticks * u64::from(vcpus) - taken,
        tick_ns: median as f64 / GROUPS as f64,
        saturated_tick_ns: 0.0,
        shared_writes_per_s_per_group: rate(|seen| seen.shared_writes),
        own_writes_per_s_per_group: rate(|seen| seen.own_writes),
        lines_read_per_s_per_group: rate(|seen| seen.lines_read),
        ratio_writes_vs_every_tick: of_every_tick as f64 / shared_writes.max(1) as f64,
        error_mean_pct: errors.mean,
        error_p99_pct: errors.p99,
        error_max_pct: errors.max,
    }
}

fn warm_up() -> Nanos {
    Nanos(TICK.0 * WARM_UP_TICKS)
}

/// Ticks at the common instants; those that the thread slept through are gone, as a CPU's are.
fn paced(vcpu: &mut Vcpu, start: Instant, ticks: u64, rules: &SumRules) -> Seen {
    let mut seen = Seen::with_capacity(ticks as usize, GROUPS);
    let mut tick = 1;
    while tick <= ticks {
        let due = start + Duration::from_nanos(TICK.0 * tick);
        if let Some(left) = due.checked_duration_since(Instant::now()) {
            thread::sleep(left);
        }
        let began = Instant::now();
        let now = Nanos::from(began.saturating_duration_since(start));
        vcpu.tick(now, rules, Some(&mut seen));
        if tick <= WARM_UP_TICKS {
            seen.forget_counts();
        }
        seen.tick_nanos.push(Nanos::from(began.elapsed()).0);
        tick = (now.0 / TICK.0).max(tick) + 1;
    }
    seen
}

fn print(results: &Results) {
    println!(
        "load averages of {GROUPS} groups at {TICK_HZ} ticks a second, {NODES} nodes; writes and reads are lines a second and group; * more vCPUs than the {} CPUs",
        results.cpus_online
    );
    println!(
        "{:<14} {:<8} {:>6} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7} {:>7} {:>7}",
        "mode",
        "load",
        "vcpus",
        "tick ns",
        "saturated",
        "shared w",
        "own w",
        "reads",
        "fewer",
        "mean %",
        "p99 %",
        "max %"
    );
    for row in &results.rows {
        println!(
            "{:<14} {:<8} {:>6} {:>8.1} {:>9.1} {:>9.1} {:>9.0} {:>9.0} {:>7.1}x {:>7.2} {:>7.2} {:>7.2}",
            row.mode,
            row.workload.name(),
            format!("{}{}", row.vcpus, if row.oversubscribed { "*" } else { "" }),
            row.tick_ns,
            row.saturated_tick_ns,
            row.shared_writes_per_s_per_group,
            row.own_writes_per_s_per_group,
            row.lines_read_per_s_per_group,
            row.ratio_writes_vs_every_tick,
            row.error_mean_pct,
            row.error_p99_pct,
            row.error_max_pct
        );
    }
    println!(
        "shared writes against every-tick, over all rows: node-staggered {:.2}x fewer (bar {STAGGERED_BAR}x), on-demand {:.0}x fewer (bar {BEST_BAR}x)",
        results.staggered_ratio, results.best_ratio
    );
}
