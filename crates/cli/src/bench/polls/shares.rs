//! Hogs of several weights, or under a limit, and nobody else: what their threads' own clocks say.

use std::time::{Duration, Instant};

use quotient_validation::machine::stolen;

use super::Hogged;
use super::echo::WARM_UP;
use super::load::{Hogs, WINDOW, Window, next_period, windows};
use super::mode::Mode;
use super::row::{About, Row};
use super::sides::{Missing, Plan, Sides};
use crate::failure::Failure;

/// The weights that are compared.
pub const WEIGHTS: [&[u32]; 3] = [&[1, 1], &[1, 3], &[1, 2, 7]];
/// Quota and period of the limits. Unit: milliseconds.
pub const LIMITS_MS: [(u64, u64); 2] = [(10, 100), (150, 100)];

/// Groups of the weights `weights`, each with as many of the hogs, at least one for each virtual CPU.
///
/// # Errors
/// When a runtime or a scheduler cannot be had.
pub fn shares(
    hogged: Hogged,
    mode: Mode,
    vcpus: usize,
    weights: &[u32],
    seconds: f64,
) -> Result<Row, Failure> {
    let plans: Vec<Plan> = weights
        .iter()
        .map(|weight| Plan {
            // As cgroups write it: 100 is ordinary.
            weight: weight * 100,
            limit: None,
        })
        .collect();
    let each = (hogged.hogs / weights.len() as u64).max(vcpus as u64);
    let words: Vec<String> = weights.iter().map(u32::to_string).collect();
    let seen = watch(hogged, mode, vcpus, &plans, each, seconds, false)?;
    let mut row = seen.row(hogged, About::Shares, words.join(":"), mode, vcpus);
    row.hogs = each * weights.len() as u64;
    let whole: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let all = seen.used.iter().sum::<u64>().max(1) as f64;
    let parts = |used: &[u64]| -> Vec<f64> {
        let all = used.iter().sum::<u64>().max(1) as f64;
        used.iter().map(|used| *used as f64 / all).collect()
    };
    let due = |index: usize| f64::from(weights[index]) / whole;
    row.share = seen
        .used
        .iter()
        .enumerate()
        .map(|(index, used)| *used as f64 / all / due(index))
        .max_by(|one, other| (one - 1.0).abs().total_cmp(&(other - 1.0).abs()));
    row.window_worst_ratio = seen
        .windows
        .iter()
        .flat_map(|window| parts(&window.used).into_iter().enumerate())
        .map(|(index, part)| (part - due(index)).abs())
        .reduce(f64::max);
    Ok(row)
}

/// All hogs in one group with a limit.
///
/// # Errors
/// When a runtime or a scheduler cannot be had.
pub fn limit(
    hogged: Hogged,
    mode: Mode,
    (quota, period): (u64, u64),
    seconds: f64,
) -> Result<Row, Failure> {
    let limit = (Duration::from_millis(quota), Duration::from_millis(period));
    let plan = Plan {
        weight: 100,
        limit: Some(limit),
    };
    let vcpus = hogged.workers;
    let seen = watch(hogged, mode, vcpus, &[plan], hogged.hogs, seconds, true)?;
    let setting = format!("{quota}/{period} ms");
    let mut row = seen.row(hogged, About::Limits, setting, mode, vcpus);
    let quota = limit.0.as_nanos() as f64;
    row.share = row
        .hog_cpus
        .map(|cpus| cpus * limit.1.as_nanos() as f64 / quota);
    row.window_worst_ratio = seen
        .windows
        .iter()
        .map(|window| window.used[0] as f64 / quota)
        .reduce(f64::max);
    Ok(row)
}

/// What was seen of some hogs.
struct Seen {
    used: Vec<u64>,
    wall: f64,
    windows: Vec<Window>,
    steal_ratio: f64,
}

impl Seen {
    fn row(&self, hogged: Hogged, about: About, setting: String, mode: Mode, vcpus: usize) -> Row {
        Row {
            about,
            kind: hogged.kind,
            setting: Some(setting),
            vcpus,
            round: 1,
            hogs: hogged.hogs,
            poll_ms: hogged.poll_ms(),
            mode,
            answered_ratio: None,
            p50_us: None,
            p99_us: None,
            max_us: None,
            hog_cpus: Some(self.used.iter().sum::<u64>() as f64 / 1e9 / self.wall),
            share: None,
            window_worst_ratio: None,
            steal_ratio: self.steal_ratio,
            not_available: None,
        }
    }
}

/// Lets `each` hogs run in each of `plans`; with `periods`, windows are the limit's.
fn watch(
    hogged: Hogged,
    mode: Mode,
    vcpus: usize,
    plans: &[Plan],
    each: u64,
    seconds: f64,
    periods: bool,
) -> Result<Seen, Failure> {
    let sides = match Sides::new(mode, hogged.kind, hogged.workers, vcpus, plans) {
        Ok(sides) => sides,
        Err(Missing::Failed(failure)) => return Err(failure),
        Err(Missing::Unavailable(reason)) => return Err(Failure::Run(reason)),
    };
    let hogs = Hogs::new(plans.len(), each, hogged.poll);
    for group in 0..plans.len() {
        for hog in hogs.of(group) {
            sides.spawn_hog(hogged.kind, group, hog.clone());
        }
    }
    std::thread::sleep(WARM_UP);
    let begins = match sides.hog_groups().first() {
        // From period to period, or the mean of few of them is off by a part of one.
        Some(group) if periods => next_period(&|| group.stats().bandwidth.nr_periods),
        _ => None,
    };
    if let Some(begins) = begins {
        hogs.book_from(begins, WINDOW);
        std::thread::sleep(begins.saturating_duration_since(Instant::now()));
    }
    let (started, before, stolen_before) = (Instant::now(), hogs.used(), stolen());
    let end = started + Duration::from_secs_f64(seconds);
    let windows = if periods {
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        hogs.periods()
    } else {
        windows(&hogs, || Instant::now() < end)
    };
    let wall = started.elapsed().as_secs_f64();
    let after = hogs.used();
    let stolen = stolen().saturating_sub(stolen_before).as_secs_f64();
    hogs.stop();
    sides.end();
    let used = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after.saturating_sub(*before));
    Ok(Seen {
        used: used.collect(),
        wall,
        windows,
        steal_ratio: stolen / wall / hogged.workers as f64,
    })
}
