//! `quotient bench fair`: do groups get the shares their weights promise?
//!
//! Every row puts hogs with polls of 50 us into groups, lets them run, and compares two clocks over the same interval: the
//! groups' CPU clocks, which are what the scheduler believes, and the polls that the hogs finished, which are what their
//! owners got. The same hogs on plain tokio show what happens without groups.

mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient::{Group, Scheduler};
use serde::Serialize;

use self::rows::{Figure, GroupPlan, Row};
use super::hog::{self, Polls};
use super::{FairArguments, arena, print_json, selected, stall};
use crate::failure::Failure;

/// What a poll of a hog takes.
const POLL: Duration = Duration::from_micros(50);
/// How long hogs run before the first look at the clocks: placement and first balancing are over.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long plain tokio is measured; its shares are known, this only shows them.
const TOKIO_INTERVAL: Duration = Duration::from_secs(1);
/// A row with `--quick`.
const QUICK_INTERVAL: Duration = Duration::from_secs(1);

/// What a row found.
#[derive(Debug, Serialize)]
struct Outcome {
    bench: &'static str,
    workers: usize,
    /// What the weights promise.
    ideal: f64,
    /// By the groups' CPU clocks; nothing where a group did not run at all, so that there is no ratio.
    clock: Option<f64>,
    /// By finished polls.
    work: Option<f64>,
    /// By finished polls, without groups.
    tokio_work: Option<f64>,
    /// CPU time charged to all groups, as a part of the interval on all workers.
    used: f64,
    /// The longest poll of all, by the wall, ms. Polls are of one length, so the rest of it is the host's: one of a thousand groups whose part of a
    /// row is 10 ms is off by all that the host took from it and the guest's clocks do not tell from work.
    longest_poll_ms: f64,
}

/// Measures all rows and prints a table, or one JSON object whose keys are the rows' names, with details under `rows`.
///
/// # Errors
/// When a scheduler or group cannot be built.
pub fn run(arguments: &FairArguments) -> Result<(), Failure> {
    let workers = match arguments.workers {
        Some(workers) => workers as usize,
        None => arena::worker_counts().into_iter().max().unwrap_or(1),
    };
    let interval = if arguments.quick {
        QUICK_INTERVAL
    } else {
        Duration::from_secs(arguments.seconds)
    };
    let rounds = hog::calibrate(POLL);
    if !arguments.json {
        println!(
            "{:<24} {:>7} {:>8} {:>8} {:>8} {:>8} {:>11} {:>6} {:>11}",
            "bench",
            "workers",
            "ideal",
            "clock",
            "work",
            "off %",
            "tokio work",
            "used",
            "longest ms"
        );
    }
    let mut results = Vec::new();
    for row in rows::all() {
        if arguments.selects(row.bench) {
            let result = measure(&row, workers, interval, rounds)?;
            if !arguments.json {
                print_row(&result);
            }
            results.push(result);
        }
    }
    let stalls = if arguments.selects(stall::NAME) {
        Some(stall::measure(workers)?)
    } else {
        None
    };
    if stalls.is_none() {
        selected(&results)?;
    }
    if arguments.json {
        return print_json(&summary(&results, stalls));
    }
    if let Some(stalls) = stalls {
        println!(
            "{}: every worker blocked for {} ms, the longest gap in other tasks: {:.2} ms (plain tokio {:.2} ms)",
            stall::NAME,
            stall::BLOCKED.as_millis(),
            stalls.quotient_ms,
            stalls.tokio_ms
        );
    }
    Ok(())
}

/// One object: a number a row under its name, everything else under `rows` and `block_in_place`.
fn summary(
    results: &[Outcome],
    stalls: Option<stall::Stalls>,
) -> BTreeMap<&'static str, serde_json::Value> {
    let mut object: BTreeMap<_, _> = results
        .iter()
        .map(|result| (result.bench, result.clock.into()))
        .collect();
    object.insert("rows", serde_json::json!(results));
    if let Some(stalls) = stalls {
        object.insert(stall::NAME, stalls.quotient_ms.into());
        object.insert("block_in_place", serde_json::json!(stalls));
    }
    object
}

fn print_row(result: &Outcome) {
    println!(
        "{:<24} {:>7} {:>8.3} {:>8} {:>8} {:>8} {:>11} {:>6.3} {:>11.2}",
        result.bench,
        result.workers,
        result.ideal,
        ratio(result.clock),
        ratio(result.work),
        result.clock.map_or_else(
            || "-".to_owned(),
            |clock| format!("{:.2}", (clock / result.ideal - 1.0) * 100.0)
        ),
        ratio(result.tokio_work),
        result.used,
        result.longest_poll_ms
    );
}

fn ratio(figure: Option<f64>) -> String {
    figure.map_or_else(|| "starved".to_owned(), |figure| format!("{figure:.3}"))
}

/// The hogs of one group.
struct Tenant {
    plan: GroupPlan,
    polls: Vec<Arc<Polls>>,
}

impl Tenant {
    fn new(plan: &GroupPlan) -> Self {
        let polls = (0..plan.hogs).map(|_| Arc::default()).collect();
        Self {
            plan: plan.clone(),
            polls,
        }
    }

    fn done(&self) -> u64 {
        self.polls.iter().map(|polls| polls.get()).sum()
    }

    fn take_longest(&self) -> Duration {
        let longest = self.polls.iter().map(|polls| polls.take_longest());
        longest.max().unwrap_or_default()
    }

    fn futures(
        &self,
        rounds: u64,
        stop: &Arc<AtomicBool>,
    ) -> impl Iterator<Item = impl Future<Output = ()> + Send + 'static> {
        self.polls
            .iter()
            .map(move |polls| hog::hog(rounds, polls.clone(), stop.clone()))
    }
}

/// Work by group path, ancestors included.
fn work(tenants: &[Tenant]) -> BTreeMap<String, f64> {
    let mut totals = BTreeMap::new();
    for tenant in tenants {
        let path = &tenant.plan.path;
        let done = tenant.done() as f64;
        let ancestors = path.match_indices('/').map(|(end, _)| &path[..end]);
        for name in ancestors.chain([path.as_str()]) {
            *totals.entry(name.to_owned()).or_insert(0.0) += done;
        }
    }
    totals
}

fn difference(
    later: &BTreeMap<String, f64>,
    earlier: &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    later
        .iter()
        .map(|(path, value)| (path.clone(), value - earlier.get(path).unwrap_or(&0.0)))
        .collect()
}

fn measure(row: &Row, workers: usize, interval: Duration, rounds: u64) -> Result<Outcome, Failure> {
    let tokio_work = on_tokio(row, workers, rounds)?;
    let (runtime, scheduler) = arena::scheduler(workers)?;
    let groups = create(&scheduler, &row.groups)?;
    let tenants: Vec<Tenant> = row.groups.iter().map(Tenant::new).collect();
    let stop = Arc::new(AtomicBool::new(false));
    for (tenant, group) in tenants.iter().zip(&groups) {
        for future in tenant.futures(rounds, &stop) {
            drop(group.spawn(future));
        }
    }
    let clocks = || -> BTreeMap<String, f64> {
        let read = |group: &Group| (group.path().to_owned(), group.cpu_time().as_secs_f64());
        groups.iter().map(read).collect()
    };
    std::thread::sleep(WARM_UP);
    let (start, clocks_before, work_before) = (Instant::now(), clocks(), work(&tenants));
    let total_before = scheduler.cpu_time();
    let longest_poll = || tenants.iter().map(Tenant::take_longest).max();
    longest_poll();
    std::thread::sleep(interval);
    let (clocks_after, work_after) = (clocks(), work(&tenants));
    let total = scheduler.cpu_time().saturating_sub(total_before);
    let wall = start.elapsed();
    let longest_poll = longest_poll().unwrap_or_default();
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(scheduler.shutdown());
    Ok(Outcome {
        bench: row.bench,
        workers,
        ideal: row.ideal,
        clock: figure(row, &difference(&clocks_after, &clocks_before)),
        work: figure(row, &difference(&work_after, &work_before)),
        tokio_work,
        used: total.as_secs_f64() / (wall.as_secs_f64() * workers as f64),
        longest_poll_ms: longest_poll.as_secs_f64() * 1e3,
    })
}

/// Creates the groups of a row, parents first, as they are listed.
fn create(scheduler: &Scheduler, plans: &[GroupPlan]) -> Result<Vec<Group>, Failure> {
    let create = |plan: &GroupPlan| scheduler.group(&plan.path)?.weight(plan.weight).create();
    plans
        .iter()
        .map(create)
        .collect::<Result<_, _>>()
        .map_err(Failure::during("cannot create the groups of a row"))
}

/// The same hogs without groups.
fn on_tokio(row: &Row, workers: usize, rounds: u64) -> Result<Option<f64>, Failure> {
    let runtime = arena::runtime(workers)?;
    let tenants: Vec<Tenant> = row.groups.iter().map(Tenant::new).collect();
    let stop = Arc::new(AtomicBool::new(false));
    for tenant in &tenants {
        for future in tenant.futures(rounds, &stop) {
            drop(runtime.spawn(future));
        }
    }
    std::thread::sleep(WARM_UP);
    let before = work(&tenants);
    std::thread::sleep(TOKIO_INTERVAL);
    let after = work(&tenants);
    stop.store(true, Ordering::Relaxed);
    Ok(figure(row, &difference(&after, &before)))
}

/// `None` when a group did not run at all.
fn figure(row: &Row, shares: &BTreeMap<String, f64>) -> Option<f64> {
    let share = |path: &String| shares.get(path).copied().unwrap_or(0.0);
    let (over, under) = match &row.figure {
        Figure::Ratio { over, under } => (share(over), share(under)),
        Figure::MaxOverMin => {
            let all = row.groups.iter().map(|plan| share(&plan.path));
            all.fold((0.0, f64::INFINITY), |(max, min): (f64, f64), share| {
                (max.max(share), min.min(share))
            })
        }
    };
    (over > 0.0 && under > 0.0).then(|| over / under)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_did_not_run_gives_no_figure() {
        let row = rows::all().into_iter().next().expect("there are rows");
        let shares = row.groups.iter().map(|plan| (plan.path.clone(), 1.0));
        assert_eq!(figure(&row, &shares.collect()), Some(1.0));
        assert_eq!(figure(&row, &BTreeMap::new()), None);
    }

    #[test]
    fn the_figure_reads_the_shares_the_right_way_round() {
        let row = rows::all()
            .into_iter()
            .find(|row| row.bench == "w1_3")
            .expect("the row exists");
        let shares = BTreeMap::from([("light".to_owned(), 1.0), ("heavy".to_owned(), 3.0)]);
        assert_eq!(figure(&row, &shares), Some(3.0));
    }
}
