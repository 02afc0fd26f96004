//! What a scenario says before there is any limit.

use quotient_sim::Plan;
use quotient_sim::advise::Work;
use quotient_sim::scenario::{Folder, Scenario};

use super::AdviseArguments;
use super::base::Base;
use super::doubts::Doubts;
use crate::failure::Failure;
use crate::sim::unusable;

/// Other numbers of threads for those workloads of a scenario whose threads are all alike.
pub(super) fn with_threads(plan: &mut Plan, group: Option<u32>, threads: u32) {
    for load in &mut plan.workloads {
        if threads > 0
            && let Some(task) = load.tasks.first().copied()
            && task.group == group
            && load.tasks.iter().all(|other| other.program == task.program)
        {
            load.tasks = vec![task; threads as usize];
        }
    }
}

/// Reads it.
///
/// # Errors
/// `Usage` for one that cannot be used, or has no such group or meter.
pub(super) fn from_scenario(arguments: &AdviseArguments) -> Result<Base, Failure> {
    if arguments.selects_in_a_trace() {
        return Err(Failure::Usage(
            "--comm, --pid, --loop, --alone, --requests, --request-from, --marker and --recorded-limit are about traces; a scenario says it itself".into(),
        ));
    }
    let usage = |error: quotient_sim::scenario::ScenarioError| unusable(&arguments.input, &error);
    let scenario = Scenario::load(&arguments.input).map_err(usage)?;
    let mut files = Folder::of(&arguments.input);
    let plan = scenario
        .plan(0, arguments.machine.as_ref(), None, &mut files)
        .map_err(usage)?;
    let groups: Vec<&str> = plan
        .groups
        .iter()
        .map(|group| group.path.as_str())
        .collect();
    let meters: Vec<&str> = plan.meters.iter().map(String::as_str).collect();
    let group = find("group", &groups, arguments.group.as_deref())?;
    let meter = find("meter", &meters, arguments.meter.as_deref())?;
    let notes = vec![format!(
        "scenario {:?}, group {}, judged by {}",
        scenario.name(),
        groups[group],
        meters[meter]
    )];
    Ok(Base {
        plan,
        group,
        meter,
        work: Work::Laps,
        notes,
        doubts: Doubts::default(),
        played: None,
        placement: None,
        release: None,
        load: None,
    })
}

fn find(what: &str, names: &[&str], wanted: Option<&str>) -> Result<usize, Failure> {
    if names.is_empty() {
        return Err(Failure::Usage(format!(
            "this scenario has no {what}, and a limit is judged by one"
        )));
    }
    let Some(wanted) = wanted else {
        return Ok(0);
    };
    names
        .iter()
        .position(|name| *name == wanted)
        .ok_or_else(|| Failure::Usage(format!("no {what} {wanted:?}; there are {names:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_listed() {
        assert_eq!(find("group", &["a", "b"], Some("b")).ok(), Some(1));
        assert_eq!(find("group", &["a", "b"], None).ok(), Some(0));
        assert!(find("group", &[], None).is_err());
    }
}
