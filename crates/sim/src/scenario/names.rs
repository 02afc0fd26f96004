//! Names in a scenario, checked before it runs: a typing error must not make a new, unlimited group, or be told after an hour.

use super::Fault;
use super::document::GroupTable;
use crate::outcome::{GroupOutcome, MeterOutcome, Outcome, WorkloadOutcome};
use crate::plan::Plan;
use toml::Spanned;

/// Most names that a message lists. Default 12: a line or two.
const SHOWN: usize = 12;

/// The groups that a scenario describes, with those above them. Without any, workloads make the groups that they name.
pub(super) struct Known(Vec<String>);

impl Known {
    pub(super) fn of(plan: &Plan) -> Known {
        Known(plan.groups.iter().map(|group| group.path.clone()).collect())
    }

    /// Whether a workload's group is one of them.
    pub(super) fn check(&self, group: Option<&Spanned<String>>) -> Result<(), Fault> {
        match group {
            Some(group) if !self.0.is_empty() && !group.get_ref().is_empty() => {
                self.check_change(group)
            }
            _ => Ok(()),
        }
    }

    /// Whether what is changed is one of them, which it always has to be.
    pub(super) fn check_change(&self, group: &Spanned<String>) -> Result<(), Fault> {
        let path = group.get_ref();
        if path.is_empty() || self.0.contains(path) {
            return Ok(());
        }
        let what = format!(
            "there is no [[group]] {path:?}, only {}",
            list(self.0.iter().map(String::as_str))
        );
        Err(Fault::at(group.span(), what))
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = names.collect();
    let shown = all.iter().take(SHOWN);
    let mut text = shown
        .map(|name| format!("{name:?}"))
        .collect::<Vec<_>>()
        .join(", ");
    if all.is_empty() {
        text.push_str("none");
    } else if all.len() > SHOWN {
        text += &format!(" and {} more", all.len() - SHOWN);
    }
    text
}

/// Whether a group is described for the first time.
pub(super) fn check_new(before: &[GroupTable], group: &GroupTable) -> Result<(), Fault> {
    let path = group.path.get_ref();
    if before.iter().any(|other| other.path.get_ref() == path) {
        let what = format!("a second [[group]] {path:?}");
        return Err(Fault::at(group.path.span(), what));
    }
    Ok(())
}

/// Whether the machine has that CPU.
pub(super) fn check_cpu(plan: &Plan, cpu: Option<&Spanned<u32>>) -> Result<(), Fault> {
    let cpus = plan.machine.cpus();
    match cpu {
        Some(cpu) if *cpu.get_ref() >= cpus => {
            let what = format!("there is no cpu {}, only 0..={}", cpu.get_ref(), cpus - 1);
            Err(Fault::at(cpu.span(), what))
        }
        _ => Ok(()),
    }
}

/// An outcome of that plan with every name in it and nothing done, for expressions to be tried on.
pub(super) fn shape(plan: &Plan) -> Outcome {
    let groups = core::iter::once("").chain(plan.groups.iter().map(|group| group.path.as_str()));
    Outcome {
        groups: groups
            .map(|path| GroupOutcome {
                path: path.into(),
                ..GroupOutcome::default()
            })
            .collect(),
        workloads: plan
            .workloads
            .iter()
            .map(|load| WorkloadOutcome {
                name: load.name.clone(),
                // As if it had ended, which is known only later.
                finished_ns: Some(0),
                ..WorkloadOutcome::default()
            })
            .collect(),
        meters: plan
            .meters
            .iter()
            .map(|name| MeterOutcome {
                name: name.clone(),
                ..MeterOutcome::default()
            })
            .collect(),
        ..Outcome::default()
    }
}
