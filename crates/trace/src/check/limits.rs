//! Whether groups kept within their quota: usage by period, and since the limit was written.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use quotient_core::Nanos;
use quotient_core::event::{Amount, Counter, Event, GroupId, Kind, Limit};

use super::{Options, Rule, which};
use crate::read::seconds;
use crate::replay::{Replay, Run};

/// Periods that a run may reach back: a run is known only when it ends. Default 64; what a longer run used before that
/// is counted in the long run only.
const OPEN_WINDOWS: usize = 64;

/// Usage of all groups with a limit.
pub(super) struct Limits {
    meters: HashMap<GroupId, Meter>,
    given: Vec<(String, Limit)>,
    /// Those of them that the trace has named.
    named: HashSet<String>,
    slice: u64,
    charge_max: Option<u64>,
    breaches: VecDeque<(GroupId, Breach)>,
}

struct Meter {
    quota: u64,
    period: u64,
    burst: u64,
    /// Where windows begin.
    origin: Nanos,
    /// Whether refills gave the origin: otherwise a window may see two refills.
    is_aligned: bool,
    /// Usage by number of the period.
    windows: BTreeMap<u64, u64>,
    /// Before this one all are judged.
    judged: u64,
    total: u64,
    since: Nanos,
    longest_run: u64,
}

enum Breach {
    Window { from: Nanos, used: u64, bound: u64 },
    LongRun { since: Nanos, used: u64, bound: u64 },
}

impl Limits {
    pub(super) fn new(options: &Options) -> Limits {
        Limits {
            meters: HashMap::new(),
            given: options.limits.clone(),
            named: HashSet::new(),
            slice: options.slice.as_nanos(),
            charge_max: options.charge_max.map(Nanos::as_nanos),
            breaches: VecDeque::new(),
        }
    }

    /// A group got its number: it may be one that has a limit from outside.
    pub(super) fn define(&mut self, group: GroupId, path: &str) {
        let limit = self.given.iter().find(|(given, _)| given == path);
        let Some((path, limit)) = limit else {
            return;
        };
        self.named.insert(path.clone());
        if !self.meters.contains_key(&group) {
            let meter = Meter::new(limit, Nanos::ZERO);
            self.meters.extend(meter.map(|meter| (group, meter)));
        }
    }

    /// The first group with a limit from outside that the trace has not named so far.
    pub(super) fn unknown(&self) -> Option<&str> {
        let mut paths = self.given.iter().map(|(path, _)| path.as_str());
        paths.find(|path| !self.named.contains(*path))
    }

    /// What an event says about limits and pools.
    pub(super) fn event(&mut self, replay: &Replay, event: &Event) -> Option<(Rule, String)> {
        match event.kind {
            Kind::SetLimit {
                group,
                quota,
                period_us,
            } => {
                self.close(replay, group);
                let burst = self.meters.remove(&group).map_or(0, |meter| meter.burst);
                let limit = Limit {
                    quota,
                    period_us,
                    burst: Amount::new(burst.cast_signed()),
                };
                let meter = Meter::new(&limit, event.time);
                self.meters.extend(meter.map(|meter| (group, meter)));
                None
            }
            Kind::SetBurst { group, burst } => {
                let meter = self.meters.get_mut(&group)?;
                meter.burst = burst.as_nanos().as_nanos();
                None
            }
            Kind::Refill { group, pool, .. } => {
                let meter = self.meters.get_mut(&group)?;
                if !meter.is_aligned {
                    meter.is_aligned = true;
                    meter.restart(event.time);
                }
                meter.pool_breach(replay, group, pool)
            }
            Kind::Counter {
                counter: Counter::Pool,
                group,
                value,
            } => self.meters.get(&group)?.pool_breach(replay, group, value),
            Kind::Lost { .. } => {
                // What ran meanwhile is unknown.
                for meter in self.meters.values_mut() {
                    meter.restart(event.time);
                }
                None
            }
            _ => None,
        }
    }

    /// Charges a run to its group and to all above.
    pub(super) fn ran(&mut self, replay: &Replay, run: &Run) {
        if self.meters.is_empty() {
            return;
        }
        for group in replay.path(run.group) {
            let Some(meter) = self.meters.get_mut(&group) else {
                continue;
            };
            meter.add(run.from, run.from + run.charged);
            while meter.windows.len() > OPEN_WINDOWS {
                let margin = margin(self.slice, self.charge_max, meter, replay);
                let breach = meter.judge_oldest(margin);
                self.breaches.extend(breach.map(|breach| (group, breach)));
            }
        }
    }

    pub(super) fn finish(&mut self, replay: &Replay) {
        let mut groups: Vec<_> = self.meters.keys().copied().collect();
        groups.sort_unstable();
        for group in groups {
            self.close(replay, group);
        }
    }

    /// The limit of `group` ends here: judges what is open.
    fn close(&mut self, replay: &Replay, group: GroupId) {
        let Some(meter) = self.meters.get_mut(&group) else {
            return;
        };
        let margin = margin(self.slice, self.charge_max, meter, replay);
        while !meter.windows.is_empty() {
            let breach = meter.judge_oldest(margin);
            self.breaches.extend(breach.map(|breach| (group, breach)));
        }
        let breach = meter.judge_total(replay.span().1, margin);
        self.breaches.extend(breach.map(|breach| (group, breach)));
    }

    /// The next breach of usage, worded.
    pub(super) fn next_breach(&mut self, replay: &Replay) -> Option<(Rule, String)> {
        let (group, breach) = self.breaches.pop_front()?;
        let group = which(replay, group);
        Some(match breach {
            Breach::Window { from, used, bound } => (
                Rule::Window,
                format!(
                    "{group} used {used} ns in the period from {}, at most {bound} ns are allowed",
                    seconds(from)
                ),
            ),
            Breach::LongRun { since, used, bound } => (
                Rule::LongRun,
                format!(
                    "{group} used {used} ns since {}, at most {bound} ns are allowed",
                    seconds(since)
                ),
            ),
        })
    }
}

/// By how much all CPUs together may overdraw: each holds a slice, and each notices only at its next charge.
fn margin(slice: u64, charge_max: Option<u64>, meter: &Meter, replay: &Replay) -> u64 {
    let charge = charge_max.unwrap_or(meter.longest_run);
    let cpus = replay.cpu_count() as u64;
    cpus.saturating_mul(slice.saturating_add(charge))
}

impl Meter {
    /// `None` for no limit, or for one without a period.
    fn new(limit: &Limit, now: Nanos) -> Option<Meter> {
        let period = u64::from(limit.period_us) * 1_000;
        if limit.quota == Amount::UNLIMITED || period == 0 {
            return None;
        }
        Some(Meter {
            quota: limit.quota.as_nanos().as_nanos(),
            period,
            burst: limit.burst.as_nanos().as_nanos(),
            origin: now,
            is_aligned: false,
            windows: BTreeMap::new(),
            judged: 0,
            total: 0,
            since: now,
            longest_run: 0,
        })
    }

    fn restart(&mut self, now: Nanos) {
        self.origin = now;
        self.windows.clear();
        self.judged = 0;
        self.total = 0;
        self.since = now;
    }

    fn add(&mut self, from: Nanos, to: Nanos) {
        let from = from.max(self.origin);
        if to <= from {
            return;
        }
        self.total = self.total.saturating_add((to - from).as_nanos());
        self.longest_run = self.longest_run.max((to - from).as_nanos());
        let last = (to - self.origin).as_nanos() / self.period;
        let first = (from - self.origin).as_nanos() / self.period;
        // Only the last windows are open: a run of a year must not make a year of windows.
        let first = first
            .max(last.saturating_sub(OPEN_WINDOWS as u64))
            .max(self.judged);
        for window in first..=last {
            let begin = self.window_begin(window);
            let end = begin + Nanos(self.period);
            let used = (to.min(end) - from.max(begin)).as_nanos();
            if used > 0 {
                *self.windows.entry(window).or_default() += used;
            }
        }
    }

    fn window_begin(&self, window: u64) -> Nanos {
        self.origin + Nanos(window.saturating_mul(self.period))
    }

    fn judge_oldest(&mut self, margin: u64) -> Option<Breach> {
        let (window, used) = self.windows.pop_first()?;
        self.judged = window + 1;
        let quotas = if self.is_aligned { 1 } else { 2 };
        let bound = self
            .quota
            .saturating_mul(quotas)
            .saturating_add(self.burst)
            .saturating_add(margin);
        (used > bound).then(|| Breach::Window {
            from: self.window_begin(window),
            used,
            bound,
        })
    }

    fn judge_total(&self, now: Nanos, margin: u64) -> Option<Breach> {
        let periods = (now - self.since).as_nanos() / self.period;
        let bound = self
            .quota
            .saturating_mul(periods.saturating_add(2))
            .saturating_add(self.burst)
            .saturating_add(margin);
        (self.total > bound).then_some(Breach::LongRun {
            since: self.since,
            used: self.total,
            bound,
        })
    }

    fn pool_breach(&self, replay: &Replay, group: GroupId, pool: Amount) -> Option<(Rule, String)> {
        let most = self.quota.saturating_add(self.burst);
        let pool = pool.get();
        let is_right = pool >= 0 && pool.unsigned_abs() <= most;
        (!is_right).then(|| {
            let group = which(replay, group);
            (
                Rule::Pool,
                format!("the pool of {group} holds {pool} ns, not 0 to {most} ns"),
            )
        })
    }
}
