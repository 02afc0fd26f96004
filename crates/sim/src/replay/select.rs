//! Which part of a recording is meant: a trace of a whole machine shows everybody.

use super::limited::LongWait;
use super::{Burst, Demand, Family, Recording};
use quotient_core::Nanos;
use std::collections::BTreeMap;

/// What is told apart of the time in which somebody worked, ns. Origin: a limit's period, by default.
const STRETCH: u64 = 100_000_000;

/// Names a part of a recording. A burst is selected when every list that is not empty has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Paths of groups; those below count as well. A burst belongs to the group that it ran in, also where its task was
    /// moved there later.
    pub groups: Vec<String>,
    /// Names of tasks: a kernel's `comm`.
    pub names: Vec<String>,
    /// Numbers of tasks as the trace has them: a kernel's thread numbers, and of processes where the trace has those. With a process come
    /// its threads, and what it and its children fork.
    pub ids: Vec<u32>,
}

impl Selection {
    /// Whether it selects everything.
    pub fn is_everything(&self) -> bool {
        *self == Selection::default()
    }

    fn has_task(&self, demand: &Demand, family: &Family) -> bool {
        (self.names.is_empty() || self.names.contains(&demand.name))
            && (self.ids.is_empty() || self.has_number(demand, family))
    }

    fn has_number(&self, demand: &Demand, family: &Family) -> bool {
        family.is_one(demand.id, &self.ids) || family.descends(demand.id, &self.ids)
    }

    fn has_group(&self, path: &str) -> bool {
        self.groups.is_empty() || self.groups.iter().any(|group| is_within(path, group))
    }
}

/// Whether the group of this path is `group` or one below it. Slashes at the ends of `group` do not count.
pub fn is_within(path: &str, group: &str) -> bool {
    let rest = path.strip_prefix(group.trim_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Recording {
    /// The selected part, and all the rest. Both keep the length and the CPUs of the whole. O(bursts).
    pub fn split(&self, selection: &Selection) -> (Recording, Recording) {
        let (mut chosen, mut rest) = (Vec::new(), Vec::new());
        let has_group: Vec<bool> = self
            .groups
            .iter()
            .map(|path| selection.has_group(path.trim_matches('/')))
            .collect();
        for demand in &self.tasks {
            let has_task = selection.has_task(demand, &self.family);
            let (inside, outside) = demand
                .bursts
                .iter()
                .partition(|burst| has_task && has_group[burst.group as usize]);
            let last = demand.bursts.last();
            for (part, bursts) in [(&mut chosen, inside), (&mut rest, outside)] {
                let bursts: Vec<_> = bursts;
                let restored = if bursts.last() == last {
                    demand.restored
                } else {
                    0
                };
                if bursts.iter().any(|burst| burst.work > 0) {
                    part.push(Demand {
                        waits: waits_of(demand, &bursts),
                        runs: if bursts.len() * 2 > demand.bursts.len() {
                            demand.runs.clone()
                        } else {
                            Vec::new()
                        },
                        bursts,
                        restored,
                        id: demand.id,
                        is_silent: demand.is_silent,
                        weight: demand.weight,
                        is_real_time: demand.is_real_time,
                        seat: demand.seat,
                        name: demand.name.clone(),
                    });
                }
            }
        }
        let of = |tasks| {
            Recording {
                groups: self.groups.clone(),
                length: self.length,
                cpus: self.cpus,
                family: self.family.clone(),
                marked: self.marked.clone(),
                ..Recording::default()
            }
            .with(tasks)
        };
        (of(chosen), of(rest))
    }

    /// Tasks of whom these numbers say nothing but that who has them, or one of theirs, made them: children of a process. O(tasks).
    pub fn children_of(&self, ids: &[u32]) -> usize {
        let is_child = |demand: &&Demand| {
            !self.family.is_one(demand.id, ids) && self.family.descends(demand.id, ids)
        };
        self.tasks.iter().filter(is_child).count()
    }

    /// The time in which half of the work was done: the least that so many stretches of 100 ms hold it. O(bursts + stretches).
    pub fn half_done_within(&self) -> Nanos {
        let mut stretches: BTreeMap<u64, u64> = BTreeMap::new();
        let bursts = self.tasks.iter().flat_map(|demand| &demand.bursts);
        for burst in bursts {
            // Its work by its time.
            let time = u128::from(burst.end.saturating_sub(burst.at).max(1));
            let mut at = burst.at;
            while at < burst.end {
                let next = burst.end.min((at / STRETCH + 1) * STRETCH);
                let part = u128::from(burst.work) * u128::from(next - at) / time;
                let part = u64::try_from(part).unwrap_or(0);
                *stretches.entry(at / STRETCH).or_insert(0) += part;
                at = next;
            }
        }
        let mut works: Vec<u64> = stretches.into_values().collect();
        works.sort_unstable_by(|one, other| other.cmp(one));
        let all: u64 = works.iter().sum();
        let mut done = 0_u64;
        let needed = works.iter().position(|work| {
            done += work;
            done.saturating_mul(2) >= all
        });
        let needed = needed.map_or(0, |last| last as u64 + 1);
        Nanos(needed.saturating_mul(STRETCH))
    }

    /// CPU time of tasks in the real-time class: no limit of a cgroup holds for that. O(bursts).
    pub fn real_time(&self) -> Nanos {
        let tasks = self.tasks.iter().filter(|demand| demand.is_real_time);
        Nanos(tasks.map(Demand::work).sum())
    }

    /// The same frame with other tasks in it.
    pub(super) fn with(mut self, tasks: Vec<Demand>) -> Recording {
        let restored: u64 = tasks.iter().map(|demand| demand.restored).sum();
        self.recorded = Nanos(tasks.iter().map(Demand::work).sum::<u64>() - restored);
        self.restored = Nanos(restored);
        self.tasks = tasks;
        self
    }
}

/// Those waits of a task that belong to some of its bursts, which are in the order of their numbers.
fn waits_of(demand: &Demand, bursts: &[Burst]) -> Vec<LongWait> {
    let is_one = |wait: &&LongWait| {
        bursts
            .binary_search_by_key(&wait.burst, |burst| burst.id)
            .is_ok()
    };
    demand.waits.iter().filter(is_one).copied().collect()
}
