//! Recordings that were made under a limit, which is found by the shape that it leaves.
//!
//! **Shape.** A kernel's trace has no event for a throttle, but a throttled task waits beside an idle CPU and starts again when
//! the limit's period begins, without anybody waking it. Waits that end an idle stretch of their CPU (*stalls*) and whose ends
//! lie at one place of a period are a limit's; the CPU time used from one such end to the next is its quota.

use super::runs::Ran;
use super::{Recording, is_within};
use quotient_core::Limit;
use quotient_trace::{NotedChange, NotedThrottles};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};

/// A wait for a CPU shorter than this is a matter of scheduling. Unit: ns.
pub(super) const LONG_WAIT: u64 = 1_000_000;
/// Stalls from which a period is taken. Origin: with fewer, some period fits by chance.
const STALLS_MIN: usize = 6;
/// Periods that are looked for, ms: those that people set. The longest that fits is it.
const PERIODS_MS: [u64; 10] = [1_000, 500, 250, 200, 100, 50, 40, 25, 20, 10];
/// Part of stalls, per cent, that have to end at the place of the period.
const FITS_PERCENT: usize = 90;
/// How far from that place they may end: the timer's interrupt, the switch, and a clock of microseconds. Unit: ns.
const TOLERANCE: u64 = 700_000;
/// A run over more periods than this is a broken clock, and is left out. Origin: a thousand seconds in the shortest period.
const RUN_PERIODS_MAX: u64 = 100_000;

/// A long wait for a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LongWait {
    pub(super) burst: u32,
    pub(super) from: u64,
    pub(super) to: u64,
    /// For how long the CPU on which it ended had been idle meanwhile.
    pub(super) stalled: u64,
}

impl LongWait {
    pub(super) fn earlier_by(mut self, begin: u64) -> LongWait {
        self.from -= begin;
        self.to -= begin;
        self
    }

    fn is_stall(&self) -> bool {
        self.stalled >= LONG_WAIT
    }
}

/// The limit that a recording was made under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedLimit {
    /// CPU time for each period, ns.
    pub quota_ns: u64,
    /// ns.
    pub period_ns: u64,
    /// What may be saved of the quota for later periods, ns; 0 where that is not known.
    pub burst_ns: u64,
    /// Whether it was given, or noted in the trace; not found.
    pub given: bool,
    /// Periods that ended with a throttle, in thousandths of those in which there was something to do: as the kernel counted them, where the
    /// trace notes it, else by what they left.
    pub throttled_permille: u64,
}

impl RecordedLimit {
    /// CPUs, in thousandths.
    pub fn permille(&self) -> u64 {
        let share = u128::from(self.quota_ns) * 1000 / u128::from(self.period_ns.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

/// So many of so many, at most all.
pub(super) fn permille((part, all): (u64, u64)) -> u64 {
    let part = u128::from(part) * 1_000 / u128::from(all.max(1));
    u64::try_from(part.min(1_000)).unwrap_or(1_000)
}

impl Recording {
    /// Finds the limit that these tasks were recorded under by what it left. O(waits log waits).
    pub fn recognise_limit(&self) -> Option<RecordedLimit> {
        let mut ends: Vec<u64> = self.stalls().map(|wait| wait.to).collect();
        ends.sort_unstable();
        ends.dedup_by(|one, other| one.abs_diff(*other) < TOLERANCE);
        if ends.len() < STALLS_MIN {
            return None;
        }
        let (period, phase) = PERIODS_MS
            .into_iter()
            .map(|millis| millis * 1_000_000)
            .filter(|period| self.length.0 / period >= STALLS_MIN as u64)
            .find_map(|period| {
                let (phase, fitting) = place_of(&ends, period);
                let fits = fitting * 100 >= ends.len() * FITS_PERCENT;
                fits.then_some((period, phase))
            })?;
        let quota = self.quota_of(&ends, period, phase)?;
        Some(self.described(quota, period, phase, false))
    }

    /// The limit that the trace notes, if all these tasks were in the groups that it holds.
    pub fn noted_limit_of(&self, whole: &Recording) -> Option<RecordedLimit> {
        let noted = whole.noted_limit.as_ref()?;
        if !self.is_under(&noted.cgroup) {
            return None;
        }
        let limit = Limit::new(noted.quota, noted.period).with_burst(noted.burst);
        let mut limit = self.given_limit(limit);
        if let Some(NotedThrottles { throttled, periods }) = whole.noted_throttles {
            limit.throttled_permille = permille((throttled, periods));
        }
        Some(limit)
    }

    /// Whether all these tasks were in that cgroup, or below it.
    pub(super) fn is_under(&self, cgroup: &str) -> bool {
        let groups = self.groups();
        let mut paths = groups.keys().map(|path| path.trim_matches('/'));
        cgroup.is_empty() || paths.all(|path| is_within(path, cgroup))
    }

    /// How the limit of these tasks was changed while they were recorded.
    pub fn limit_changes_of<'a>(&self, whole: &'a Recording) -> &'a [NotedChange] {
        let changed = whole
            .noted_changes
            .iter()
            .filter_map(|change| change.limit.as_ref());
        let mut noted = whole.noted_limit.iter().chain(changed);
        let is_theirs = noted.any(|limit| self.is_under(&limit.cgroup));
        if is_theirs { &whole.noted_changes } else { &[] }
    }

    /// The same with the limit given.
    pub fn given_limit(&self, limit: Limit) -> RecordedLimit {
        let ends: Vec<u64> = self.held_waits().iter().map(|wait| wait.to).collect();
        let (phase, _) = place_of(&ends, limit.period.0.max(1));
        RecordedLimit {
            burst_ns: limit.burst.0,
            ..self.described(limit.quota.0, limit.period.0.max(1), phase, true)
        }
    }

    fn described(&self, quota: u64, period: u64, phase: u64, given: bool) -> RecordedLimit {
        let waits = self.held_waits();
        let at_ends = waits.iter().filter(|wait| fits(wait.to, period, phase));
        let numbers: HashSet<u64> = at_ends
            .map(|wait| (wait.to + period / 2 + period - phase) / period)
            .collect();
        let throttled = (numbers.len() as u64, self.active_periods(period, phase));
        RecordedLimit {
            quota_ns: quota,
            period_ns: period,
            burst_ns: 0,
            given,
            throttled_permille: permille(throttled),
        }
    }

    /// Periods that a kernel counts: in which there was something to do, and one behind, since its timer finds out at the end of that one.
    fn active_periods(&self, period: u64, phase: u64) -> u64 {
        let mut used = BTreeMap::new();
        for run in self.tasks.iter().flat_map(|demand| &demand.runs) {
            add_by_period(&mut used, *run, period, phase);
        }
        let behind = used
            .keys()
            .filter(|number| !used.contains_key(&(*number + 1)));
        let behind = behind.count();
        (used.len() + behind) as u64
    }

    fn long_waits(&self) -> impl Iterator<Item = &LongWait> {
        self.tasks.iter().flat_map(|demand| &demand.waits)
    }

    /// Long waits that did not end as another one of these tasks left the CPU: who waits for one of his own group is not held by its limit.
    /// O((runs + waits) log runs).
    fn held_waits(&self) -> Vec<LongWait> {
        let runs = self.tasks.iter().flat_map(|demand| &demand.runs);
        let mut ends: Vec<u64> = runs.map(|run| run.to).collect();
        ends.sort_unstable();
        // A switch is one moment for both.
        let is_held = |wait: &&LongWait| ends.binary_search(&wait.to).is_err();
        self.long_waits().filter(is_held).copied().collect()
    }

    fn stalls(&self) -> impl Iterator<Item = &LongWait> {
        self.long_waits().filter(|wait| wait.is_stall())
    }

    /// What was used in the periods of that length that ended with a stall (the median), wherever most stalls end; `None` without stalls.
    pub(super) fn used_when_throttled(&self, period: u64) -> Option<u64> {
        let ends: Vec<u64> = self.stalls().map(|wait| wait.to).collect();
        let (phase, _) = place_of(&ends, period);
        self.quota_of(&ends, period, phase)
    }

    /// The median of what was used in the periods that ended with a stall.
    fn quota_of(&self, ends: &[u64], period: u64, phase: u64) -> Option<u64> {
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        for run in self.tasks.iter().flat_map(|demand| &demand.runs) {
            add_by_period(&mut used, *run, period, phase);
        }
        let number = |end: u64| (end + period / 2 + period - phase) / period;
        let mut full: Vec<u64> = ends
            .iter()
            .filter(|end| fits(**end, period, phase))
            // The period before the end: it is complete if the recording saw its begin.
            .filter_map(|end| number(*end).checked_sub(1))
            .filter_map(|period| used.get(&period).copied())
            .collect();
        full.sort_unstable();
        full.get(full.len() / 2).copied()
    }

    /// Bursts in which a throttle ended, by the limit's period.
    pub(super) fn throttled_bursts(&self, limit: &RecordedLimit) -> HashSet<u32> {
        let period = limit.period_ns.max(1);
        let ends: Vec<u64> = self.long_waits().map(|wait| wait.to).collect();
        let stalls: Vec<u64> = self.stalls().map(|wait| wait.to).collect();
        let (phase, _) = place_of(if limit.given { &ends } else { &stalls }, period);
        // Who shares a CPU with others starts after them, so not only those that start at the place itself.
        let mut gaps: Vec<(u64, u64)> = self
            .long_waits()
            .filter(|wait| fits(wait.to, period, phase))
            .map(|wait| (wait.from, wait.to))
            .collect();
        gaps.sort_unstable();
        let meets = |wait: &LongWait| {
            let before = gaps.partition_point(|gap| gap.0 < wait.to);
            gaps[..before]
                .iter()
                .rev()
                .take(64)
                .any(|gap| gap.1 > wait.from + LONG_WAIT / 2)
        };
        self.long_waits()
            .filter(|wait| meets(wait))
            .map(|wait| wait.burst)
            .collect()
    }
}

/// Whether a moment lies at that place of a period.
fn fits(moment: u64, period: u64, phase: u64) -> bool {
    let off = (moment % period).abs_diff(phase);
    off.min(period - off) <= TOLERANCE
}

/// The place of a period at which most of the moments lie, and how many do.
fn place_of(moments: &[u64], period: u64) -> (u64, usize) {
    let mut places: Vec<u64> = moments.iter().map(|moment| moment % period).collect();
    places.sort_unstable();
    let count = places.len();
    let around = places.iter().map(|place| place + period);
    let both: Vec<u64> = places.iter().copied().chain(around).collect();
    let (mut best, mut end) = ((0, 0), 0);
    for begin in 0..count {
        while end < both.len() && both[end] - both[begin] <= 2 * TOLERANCE {
            end += 1;
        }
        if end - begin > best.1 {
            let middle = both[begin].midpoint(both[end - 1]);
            best = (middle % period, end - begin);
        }
    }
    (best.0, best.1.min(count))
}

/// Adds a run to the periods that it lies in, numbered from one period before the first place.
fn add_by_period(used: &mut BTreeMap<u64, u64>, run: Ran, period: u64, phase: u64) {
    if run.to.saturating_sub(run.from) / period > RUN_PERIODS_MAX {
        return;
    }
    for (number, time) in run.pieces(period, period - phase) {
        *used.entry(number).or_insert(0) += time;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Loop;
    use super::*;
    use crate::{Machine, Plan, Simulation, Span, synthetic};
    use quotient_core::{BandwidthRules, Nanos};
    use quotient_trace::{Discard, JsonLines};

    pub(in crate::replay) const fn millis(count: u64) -> Nanos {
        Nanos::from_millis(count)
    }

    /// Two threads with regular arrivals, each of whose requests computes 3 ms of every 10.
    fn service(limit: Option<Limit>) -> Plan {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = Nanos::from_secs(20);
        plan.settings.config.bandwidth = BandwidthRules::KERNEL;
        let group = plan.group("app");
        plan.groups[0].limit = limit;
        for number in 0..2 {
            let shape = synthetic::OpenLoop {
                threads: 1,
                work: Span::Exponential { mean: millis(3) },
                gap: Span::Exponential { mean: millis(12) },
                parts: 1,
                begin: Nanos(number * 3_100_000),
            };
            synthetic::open_loop(&mut plan, &format!("app{number}"), group, shape);
        }
        plan
    }

    pub(in crate::replay) fn recorded(limit: Option<Limit>) -> Recording {
        let sink = JsonLines::new(Vec::new());
        let mut simulation = Simulation::new(&service(limit), sink).unwrap();
        simulation.run().unwrap();
        let text = simulation.into_sink().finish().unwrap();
        // A kernel's trace has no such events.
        let text = String::from_utf8(text).unwrap();
        let kept = text
            .lines()
            .filter(|line| !line.contains("throttle") && !line.contains("\"set_"));
        let text = kept.collect::<Vec<_>>().join("\n");
        Recording::read(&mut text.as_bytes()).unwrap()
    }

    pub(in crate::replay) fn throttled(recording: &Recording, limit: Limit) -> f64 {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = Nanos::from_secs(20);
        plan.settings.config.bandwidth = BandwidthRules::KERNEL;
        let group = plan.group("app");
        plan.groups[0].limit = Some(limit);
        recording.add_to(&mut plan, "again", group, Loop::Open);
        let mut simulation = Simulation::new(&plan, Discard).unwrap();
        simulation.run().unwrap();
        let group = &simulation.outcome().groups[1];
        group.nr_throttled as f64 / group.nr_periods as f64
    }

    #[test]
    fn a_broken_clock_costs_no_lifetime() {
        let mut used = BTreeMap::new();
        let run = |from, to| Ran {
            from,
            to,
            charged: to - from,
            cpu: 0,
        };
        add_by_period(&mut used, run(0, u64::MAX / 4), 10_000_000, 3);
        assert!(used.is_empty());
        add_by_period(&mut used, run(5_000_000, 25_000_000), 10_000_000, 0);
        assert_eq!(used.values().sum::<u64>(), 20_000_000);
    }

    #[test]
    fn a_limit_is_known_by_what_it_left() {
        let limit = Limit::new(millis(50), millis(100));
        let found = recorded(Some(limit)).recognise_limit().expect("a limit");
        assert_eq!(found.period_ns, 100_000_000);
        assert!(found.quota_ns.abs_diff(50_000_000) < 4_000_000, "{found:?}");
        assert!(found.throttled_permille > 300, "{found:?}");
        assert_eq!(recorded(None).recognise_limit(), None);
        // Other periods are told apart.
        let short = Limit::new(millis(10), millis(20));
        let found = recorded(Some(short)).recognise_limit().expect("a limit");
        assert_eq!(found.period_ns, 20_000_000);
    }

    /// Hazard: threads that wait for each other end some waits at any place of a period, and a limit that never bound is said to have throttled them.
    #[test]
    fn who_waits_for_a_thread_of_its_own_group_is_not_throttled() {
        let wide = Limit::new(millis(190), millis(100));
        let of = |plan: Plan| {
            let mut simulation = Simulation::new(&plan, JsonLines::new(Vec::new())).unwrap();
            simulation.run().unwrap();
            let text = simulation.into_sink().finish().unwrap();
            Recording::read(&mut text.as_slice()).unwrap()
        };
        let mut plan = service(None);
        let group = plan.group("app");
        let work = Span::Exponential { mean: millis(4) };
        synthetic::closed_loop(&mut plan, "more", group, 6, work, millis(12).into());
        let recording = of(plan);
        assert!(recording.long_waits().count() > 1_000);
        let found = recording.given_limit(wide);
        assert!(found.throttled_permille < 20, "{found:?}");
    }

    #[test]
    fn a_limit_that_the_trace_notes_is_of_the_groups_that_it_holds() {
        let events: String = (1..40)
            .map(|number| {
                format!(
                    "<idle>-0 [000] d.h3. {number}.100000: sched_waking: comm=svc pid=7 prio=120 target_cpu=000\n\
                     <idle>-0 [000] d..2. {number}.100010: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=svc next_pid=7 next_prio=120\n\
                     svc-7 [000] d..2. {number}.102000: sched_switch: prev_comm=svc prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n"
                )
            })
            .collect();
        let attached = "a-1 [000] ..... 0.000001: cgroup_attach_task: dst_root=2 dst_id=9 dst_level=1 dst_path=/web/api pid=7 comm=svc\n";
        let noted = |of: &str| {
            let remark =
                format!("# recorded under the limit of /{of}: 60000 us in every 100000 us\n");
            let text = format!("# tracer: nop\n{remark}{attached}{events}");
            let whole = Recording::read(&mut text.as_bytes()).unwrap();
            whole.noted_limit_of(&whole)
        };
        for of in ["web", "web/api", ""] {
            let limit = noted(of).expect(of);
            assert_eq!((limit.quota_ns, limit.period_ns), (60_000_000, 100_000_000));
        }
        assert_eq!(noted("we"), None);
        assert_eq!(noted("batch"), None);
    }
}
