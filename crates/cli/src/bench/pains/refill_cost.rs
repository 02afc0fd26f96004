//! What it costs to refill and unthrottle groups, all at once, by the core alone: a virtual CPU does it in bounded parts, each of
//! which must be short, and all together must cost the same for each group.
//!
//! Time is virtual, so that ten thousand groups can be throttled without using their ten seconds; what is timed is real.

use std::time::Duration;

use quotient_core::{
    AlwaysOn, Config, CpuId, Enqueue, GroupTree, Limit, Nanos, RunQueue, TaskEntity, Weight,
};
use quotient_validation::Problem;
use quotient_validation::load::thread_cpu;
use quotient_validation::outcome::quantile;

use super::{Mode, Row, Ward};

/// The pain's name: it is the other half of `storm`.
pub const NAME: &str = "storm_core";
/// How many groups are refilled at once.
const COUNTS: [usize; 3] = [100, 1_000, 10_000];
/// How often each is tried; the figures are medians.
const TRIES: usize = 5;
/// Bar: the longest part, milliseconds.
const PART_MS_MAX: f64 = 1.0;
/// Bar: the cost of a group among ten thousand over that among a thousand. Their data no longer fit the caches.
const GROWTH_MAX: f64 = 2.5;

/// The cost a group and the longest part, for each number of groups.
pub fn measure(_ward: &Ward) -> Result<Vec<Row>, Problem> {
    let names = [
        ("per_group_100", "longest_part_100"),
        ("per_group_1000", "longest_part_1000"),
        ("per_group_10000", "longest_part_10000"),
    ];
    let mut rows = Vec::new();
    let mut per_group = Vec::new();
    for (count, (cost, part)) in COUNTS.into_iter().zip(names) {
        let tries = (0..TRIES)
            .map(|_| refill_all(count))
            .collect::<Result<Vec<_>, _>>()?;
        let median = |of: fn(&Cost) -> Duration| {
            let times: Vec<f64> = tries.iter().map(|cost| of(cost).as_secs_f64()).collect();
            quantile(&times, 0.5).unwrap_or(f64::NAN)
        };
        let each = median(|cost| cost.total) * 1e9 / count as f64;
        per_group.push(each);
        rows.push(Row::new(NAME, Mode::Core, cost, each, "ns"));
        let longest = median(|cost| cost.longest) * 1e3;
        rows.push(Row::new(NAME, Mode::Core, part, longest, "ms").at_most(PART_MS_MAX));
    }
    if let [_, thousand, ten_thousand] = per_group[..] {
        let growth = ten_thousand / thousand.max(1e-9);
        rows.push(
            Row::new(NAME, Mode::Core, "per_group_10000_to_1000", growth, "x").at_most(GROWTH_MAX),
        );
    }
    Ok(rows)
}

/// CPU time of one storm.
struct Cost {
    total: Duration,
    /// Of the longest call that holds a run queue, or keeps a virtual CPU from polling.
    longest: Duration,
}

fn refill_all(count: usize) -> Result<Cost, Problem> {
    let broken = |what: &str| Problem::Broken(format!("{NAME}, {count} groups: {what}"));
    let tree = GroupTree::new(Config::new(1));
    let mut queue: RunQueue<usize, AlwaysOn> = RunQueue::with_gates(&tree, CpuId(0));
    let limit = Limit::new(Nanos::from_millis(1), Nanos::from_millis(1_000));
    let mut now = Nanos::from_millis(1);
    for number in 0..count {
        let group = tree
            .group(&format!("limited-{number}"))
            .map_err(|error| broken(&error.to_string()))?;
        group
            .set_limit(Some(limit), now, &mut |_| ())
            .map_err(|error| broken(&error.to_string()))?;
        queue.enqueue(
            &group,
            TaskEntity::new(Weight::DEFAULT, None),
            number,
            Enqueue::New,
            now,
        );
    }
    // Each uses its quota and a little more.
    while let Some(task) = queue.pick(now) {
        now += Nanos::from_micros(1_010);
        queue.put_prev_yield(task, now);
    }
    if queue.nr_throttled() != count {
        return Err(broken("not all are throttled"));
    }
    now += Nanos::from_millis(2_000);
    let mut cost = Cost {
        total: Duration::ZERO,
        longest: Duration::ZERO,
    };
    let mut time = |part: &mut dyn FnMut() -> bool| {
        let start = thread_cpu();
        let answer = part();
        let length = thread_cpu().saturating_sub(start);
        cost.total += length;
        cost.longest = cost.longest.max(length);
        answer
    };
    let load = queue.load().clone();
    // Each turn does a bounded part of what is left, so there are about `count` turns at most.
    for _ in 0..count + 2 {
        let more = time(&mut || tree.refill(now, &mut |_| ()));
        time(&mut || queue.unthrottle_pending(now));
        if !more && !load.has_unthrottles() {
            break;
        }
    }
    if queue.nr_running() != count {
        return Err(broken("not all may run again"));
    }
    Ok(cost)
}
