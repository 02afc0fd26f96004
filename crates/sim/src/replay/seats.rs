//! In which groups those are who run beside what is asked about. A group's share is that of one, however many tasks it has: beside two compilers in a
//! group of their own a service gets half of a CPU, beside two in its parent's a third.
//!
//! Which cgroups are groups of the scheduler is not in a trace. But where one can be limited, its siblings and those of its ancestors are, too; what
//! lies below these makes no difference to it. So of who runs beside, the part of the path counts that it shares with the subject's, and one name more.

use super::{Demand, Recording};
use crate::plan::Plan;
use crate::synthetic::GroupIndex;
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

    fn is_inside(&self, path: &str) -> bool {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        !self.subject.is_empty() && self.subject.iter().all(|name| parts.next() == Some(name))
    }

    /// A path of the plan; the root's is "".
    fn in_plan(&mut self, parts: &[String]) -> String {
        let skipped = self.subject.len().saturating_sub(DEPTH_MAX);
        let mut place = String::new();
        for (depth, part) in parts.iter().enumerate() {
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
    use quotient_core::Nanos;
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
