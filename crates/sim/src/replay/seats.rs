//! In which groups those are who run beside what is asked about. A group's share is that of one, however many tasks it has: beside two compilers in a
//! group of their own a service gets half of a CPU, beside two in its parent's a third.
//!
//! Which cgroups are groups of the scheduler is not in a trace. But where one can be limited, its siblings and those of its ancestors are, too; what
//! lies below these makes no difference to it. So of who runs beside, the part of the path counts that it shares with the subject's, and one name more.
//!
//! Weights are those that the trace notes; a cgroup without a note has 100, as the kernel gives it when it becomes a group.

use super::{Demand, Recording};
use crate::plan::Plan;
use crate::synthetic::GroupIndex;
use quotient_core::{Nanos, Weight};
use quotient_trace::NotedWeight;
use std::collections::BTreeMap;

/// Groups within each other that are kept; of deeper subjects the outer ones are left out, as if these were alone there. Default 8: what container
/// engines make.
const DEPTH_MAX: usize = 8;

/// Where everybody is.
#[derive(Clone, Debug)]
pub struct Seats {
    /// The names of the path to the subject.
    subject: Vec<String>,
    /// The subject's group in the plan.
    pub own: GroupIndex,
    /// Names of the plan by those of the recording, since a kernel takes any.
    names: BTreeMap<String, String>,
    /// Paths of the recording by those of the plan.
    real: BTreeMap<String, String>,
}

/// A group of a plan that was one of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its path in the recording.
    pub path: String,
    /// Its weight.
    pub weight: Weight,
    /// Whether it runs only where nobody else wants to.
    pub idle: bool,
    /// Whether the trace notes that.
    pub is_noted: bool,
    /// Whether it was seen to be another one later.
    pub was_changed: bool,
}

impl Seats {
    /// Adds a group for the subject to a plan: the group that all of `chosen` were in or below, or one in it if others, of whom `rest` are the
    /// parts, were there as well.
    pub fn of<'a>(
        chosen: &Recording,
        rest: impl IntoIterator<Item = &'a Recording>,
        plan: &mut Plan,
    ) -> Seats {
        let mut seats = Seats {
            subject: common_path(chosen),
            own: None,
            names: BTreeMap::new(),
            real: BTreeMap::new(),
        };
        let is_shared = rest.into_iter().any(|rest| {
            let mut tasks = rest.tasks.iter();
            tasks.any(|demand| seats.is_inside(path_of(rest, demand)))
        });
        let mut place = seats.in_plan(&seats.subject.clone());
        if is_shared || place.is_empty() {
            place = format!("{place}/limited");
        }
        seats.own = plan.group(place.trim_start_matches('/'));
        seats
    }

    /// Gives those beside their groups, which are added to the plan.
    pub fn seat(&mut self, rest: &mut Recording, plan: &mut Plan) {
        let groups = rest.groups.clone();
        for demand in &mut rest.tasks {
            let last = demand.bursts.last();
            let path = last.map_or("", |burst| groups[burst.group as usize].as_str());
            let parts = parts_of(path);
            let subject = self.subject.iter();
            let shared = subject.zip(&parts).take_while(|(one, other)| one == other);
            let shared = shared.count();
            let kept = parts.len().min(shared + 1);
            let place = self.in_plan(&parts[..kept]);
            demand.seat = plan.group(&place);
        }
    }

    /// Gives the groups of the plan the weights that the trace of `whole` notes, and says what all have. Of those that were changed it is
    /// the first one. O(groups x log notes).
    pub fn weigh(&self, whole: &Recording, plan: &mut Plan) -> Vec<Seat> {
        let mut noted: BTreeMap<&str, Vec<&NotedWeight>> = BTreeMap::new();
        for weight in &whole.noted_weights {
            let path = weight.cgroup.trim_matches('/');
            noted.entry(path).or_default().push(weight);
        }
        let groups = plan.groups.iter_mut();
        let seated = groups.filter_map(|group| {
            let path = self.real.get(&group.path)?;
            let all = noted.get(path.as_str()).map_or(&[][..], Vec::as_slice);
            let first = all.first();
            if let Some(first) = first {
                group.weight = Weight::new(first.weight).unwrap_or_default();
                group.idle = first.idle;
            }
            let is_other = |weight: &&NotedWeight| {
                first
                    .is_some_and(|first| (first.weight, first.idle) != (weight.weight, weight.idle))
            };
            Some(Seat {
                path: path.clone(),
                weight: group.weight,
                idle: group.idle,
                is_noted: first.is_some(),
                was_changed: all.iter().any(is_other),
            })
        });
        seated.collect()
    }

    /// CPU time of those beside who were in other groups than the subject's, or in one of those above it: they compete with it by weights. O(bursts).
    pub fn competing(&self, rest: &Recording) -> Nanos {
        let outside = rest.tasks.iter().filter(|demand| {
            let path = path_of(rest, demand);
            !self.is_inside(path)
        });
        Nanos(outside.map(Demand::work).sum())
    }

    fn is_inside(&self, path: &str) -> bool {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        !self.subject.is_empty() && self.subject.iter().all(|name| parts.next() == Some(name))
    }

    /// A path of the plan; the root's is "".
    fn in_plan(&mut self, parts: &[String]) -> String {
        let skipped = self.subject.len().saturating_sub(DEPTH_MAX);
        let mut place = String::new();
        let mut whole = String::new();
        for (depth, part) in parts.iter().enumerate() {
            if depth > 0 {
                whole.push('/');
            }
            whole.push_str(part);
            let next = format!("g{}", self.names.len());
            let real = format!("{depth}/{part}");
            let name = self.names.entry(real).or_insert(next);
            if depth < skipped {
                continue;
            }
            if !place.is_empty() {
                place.push('/');
            }
            place.push_str(name);
            self.real
                .entry(place.clone())
                .or_insert_with(|| whole.clone());
        }
        place
    }
}

fn path_of<'a>(recording: &'a Recording, demand: &Demand) -> &'a str {
    let last = demand.bursts.last();
    last.map_or("", |burst| recording.groups[burst.group as usize].as_str())
}

fn parts_of(path: &str) -> Vec<String> {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// The names of the deepest group that all of these were in or below.
fn common_path(recording: &Recording) -> Vec<String> {
    let groups = recording.groups();
    let mut paths = groups.keys().map(|path| parts_of(path));
    let mut common = paths.next().unwrap_or_default();
    for path in paths {
        let same = common
            .iter()
            .zip(&path)
            .take_while(|(one, other)| one == other);
        let same = same.count();
        common.truncate(same);
    }
    common
}

#[cfg(test)]
mod tests {
    use super::super::{Loop, Selection};
    use super::*;
    use crate::{Kernel, Machine, Simulation, synthetic};
    use quotient_trace::{Discard, JsonLines};

    /// A service that would use all of a CPU, beside two who do, in groups.
    fn recorded(paths: [&str; 2]) -> (Recording, Recording) {
        let mut plan = Plan::new(Machine::flat(1));
        plan.duration = Nanos::from_secs(5);
        Kernel::Linux6_18.apply(&mut plan);
        let [service, other] = paths.map(|path| plan.group(path));
        let work = Nanos::from_millis(4).into();
        synthetic::closed_loop(&mut plan, "svc", service, 2, work, Nanos(1_000).into());
        synthetic::spinners(&mut plan, "cc", other, 2);
        let mut simulation = Simulation::new(&plan, JsonLines::new(Vec::new())).unwrap();
        simulation.run().unwrap();
        let text = simulation.into_sink().finish().unwrap();
        let whole = Recording::read(&mut text.as_slice()).unwrap();
        whole.split(&Selection {
            groups: vec![paths[0].into()],
            ..Selection::default()
        })
    }

    #[test]
    fn company_gets_what_its_group_got() {
        for paths in [
            ["web", "cc"],
            ["a/web", "a/cc/x"],
            ["a/web", "b/cc"],
            ["a/web", "a"],
        ] {
            let (own, mut beside) = recorded(paths);
            let mut plan = Plan::new(Machine::flat(1));
            plan.duration = own.length;
            let mut seats = Seats::of(&own, [&beside], &mut plan);
            seats.seat(&mut beside, &mut plan);
            own.add_to(&mut plan, "svc", seats.own, Loop::Closed);
            beside.add_to(&mut plan, "beside", None, Loop::Open);
            let mut simulation = Simulation::new(&plan, Discard).unwrap();
            simulation.run().unwrap();
            let used = simulation.outcome().workloads[0].usage_ns;
            let recorded = own.recorded.0;
            assert!(
                used.abs_diff(recorded) * 20 < recorded,
                "{paths:?}: {used} for {recorded}"
            );
        }
    }

    /// Hazard: a service of weight 300 beside a builder of 100 is predicted with half of a CPU, and has three quarters.
    #[test]
    fn groups_have_the_weights_that_the_trace_notes() {
        let note = |path: &str, weight, idle| NotedWeight {
            at: None,
            cgroup: path.into(),
            weight,
            idle,
        };
        let cases = [
            (vec![], 500),
            (vec![note("a/web", 300, false)], 750),
            (
                vec![note("a/web", 300, false), note("a/cc", 900, false)],
                250,
            ),
            (vec![note("a/cc", 1, true)], 990),
            // Those above hold both.
            (vec![note("a", 10, false)], 500),
        ];
        for (noted_weights, expected) in cases {
            let (own, mut beside) = recorded(["a/web", "a/cc/x"]);
            let whole = Recording {
                noted_weights,
                ..Recording::default()
            };
            let mut plan = Plan::new(Machine::flat(1));
            Kernel::Linux6_18.apply(&mut plan);
            plan.duration = own.length;
            let mut seats = Seats::of(&own, [&beside], &mut plan);
            seats.seat(&mut beside, &mut plan);
            let told = seats.weigh(&whole, &mut plan);
            let paths: Vec<&str> = told.iter().map(|seat| seat.path.as_str()).collect();
            assert_eq!(paths, ["a", "a/web", "a/cc"]);
            let noted = told.iter().filter(|seat| seat.is_noted).count();
            assert_eq!(noted, whole.noted_weights.len());
            synthetic::spinners(&mut plan, "svc", seats.own, 1);
            for (number, demand) in beside.tasks.iter().enumerate() {
                synthetic::spinners(&mut plan, &format!("cc{number}"), demand.seat, 1);
            }
            let mut simulation = Simulation::new(&plan, Discard).unwrap();
            simulation.run().unwrap();
            let used = simulation.outcome().workloads[0].usage_ns * 1_000 / own.length.0;
            assert!(
                used.abs_diff(expected) < 20,
                "{used} of {expected}: {told:?}"
            );
        }
    }

    #[test]
    fn names_that_a_kernel_takes_are_taken() {
        let (mut own, mut beside) = recorded(["web", "cc"]);
        own.groups
            .iter_mut()
            .for_each(|path| *path = format!("{}\u{1b} x/{path}", "é/".repeat(40)));
        beside
            .groups
            .iter_mut()
            .for_each(|path| *path = format!("{}ü", "é/".repeat(40)));
        let mut plan = Plan::new(Machine::flat(1));
        let mut seats = Seats::of(&own, [&beside], &mut plan);
        seats.seat(&mut beside, &mut plan);
        own.add_to(&mut plan, "svc", seats.own, Loop::Closed);
        beside.add_to(&mut plan, "beside", None, Loop::Open);
        assert!(seats.own.is_some() && Simulation::new(&plan, Discard).is_ok());
        // Who is selected out of a group leaves the others of that in it, unlimited.
        let (own, mut beside) = recorded(["web", "cc"]);
        beside
            .groups
            .iter_mut()
            .for_each(|path| *path = "web".into());
        let mut plan = Plan::new(Machine::flat(1));
        let mut seats = Seats::of(&own, [&beside], &mut plan);
        seats.seat(&mut beside, &mut plan);
        let paths: Vec<&str> = plan
            .groups
            .iter()
            .map(|group| group.path.as_str())
            .collect();
        assert_eq!(paths, ["g0", "g0/limited"]);
        assert_eq!((seats.own, beside.tasks[0].seat), (Some(1), Some(0)));
    }
}
