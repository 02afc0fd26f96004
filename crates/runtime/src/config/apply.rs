//! From one config to the next, as one change.
//!
//! # All or nothing
//! Under `Shared::shape`, which every change of the tree's shape and of a limit takes: (1) *plan:* every group that is to change, with its
//! settings afterwards; removed groups and limits are checked in it, and the gate of bandwidth control is held; (2) *put in force,* by
//! steps that cannot fail: groups that lack, all limits in one step of the core, then the rest. Nobody can remove a group or change a limit
//! in between. Weights may be written by others meanwhile, as always: one of the two writes is the last.
//!
//! A virtual CPU follows at its next choice, as it follows any change, so for some microseconds one virtual CPU may act by the old
//! settings while another acts by the new.
//!
//! # What is written
//! A field that the new config says of a named group, always; a field that a group has from its parent's defaults, or had from the old
//! config, only if it is said differently now. So what the program set by hand stays where no operator has spoken.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use quotient_core::{GroupTree, Limit, Nanos, Weight};
use quotient_keys::EnableGuard;

use super::{Applied, ApplyError, Config, GroupConfig, parent_of};
use crate::error::Error;
use crate::gates;
use crate::group::{GroupShared, lookup};
use crate::idle::VcpuSet;
use crate::preempt::at_usual_priority;
use crate::shared::{OPEN, Shared};

/// Settings of one group afterwards; `None` is "as it is".
#[derive(Clone, Debug, Default)]
struct Target {
    weight: Option<Weight>,
    idle: Option<bool>,
    tasks_max: Option<u64>,
    /// `None` inside lifts the bound.
    queue_wait_max: Option<std::time::Duration>,
    /// `None` inside says nothing, which is not `true`: that holds for all below.
    preemptible: Option<Option<bool>>,
    limit: Option<Option<Limit>>,
}

/// A group of the plan.
struct Step {
    path: String,
    /// `None`: to be made.
    group: Option<Arc<GroupShared>>,
    target: Target,
    /// Keeps bandwidth control on for a limit that was not there before.
    gate: Option<EnableGuard>,
}

/// Makes `config` the scheduler's; see [`crate::Scheduler::apply`].
pub(crate) fn apply(shared: &Arc<Shared>, config: &Config) -> Result<Applied, ApplyError> {
    config.check(shared.regular)?;
    let (on, config) = (shared.clone(), config.clone());
    at_usual_priority(shared, move || apply_here(&on, &config))
}

fn apply_here(shared: &Arc<Shared>, config: &Config) -> Result<Applied, ApplyError> {
    let _shield = shared.shield();
    let mut kicked = VcpuSet::default();
    let applied = {
        let _shape = shared.lock_shape();
        if shared.phase() != OPEN {
            let path = String::new();
            return Err(ApplyError {
                path,
                error: Error::ShutDown.into(),
            });
        }
        let before = shared.config();
        let steps = plan(shared, &before, config)?;
        *shared.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config.clone());
        put_in_force(shared, steps, &mut kicked)
    };
    shared.kick(&kicked);
    Ok(applied)
}

/// Every group that is to change. Changes nothing.
fn plan(shared: &Arc<Shared>, before: &Config, config: &Config) -> Result<Vec<Step>, ApplyError> {
    let mut steps = Vec::new();
    for path in paths(shared, before, config) {
        let fail = |error: Error| ApplyError {
            path: path.clone(),
            error: error.into(),
        };
        let group = existing(shared, &path).map_err(fail)?;
        let said = config.settings_of(&path);
        let target = match &group {
            None => target_of_new(shared, &path, &said).map_err(fail)?,
            Some(_) => {
                let named = config.groups.get(&path);
                let old = before.settings_of(&path);
                target_of_existing(shared, &path, named, &said, &old).map_err(fail)?
            }
        };
        steps.push(Step {
            path,
            group,
            target,
            gate: None,
        });
    }
    check_limits(shared, &steps)?;
    for step in &mut steps {
        let unlimited = step
            .group
            .as_ref()
            .is_none_or(|group| group.core.limit().is_none());
        if unlimited && matches!(step.target.limit, Some(Some(_))) {
            let hold = gates::bandwidth_hold().map_err(|error| ApplyError {
                path: step.path.clone(),
                error: Error::Gate(error.to_string()).into(),
            })?;
            step.gate = Some(hold);
        }
    }
    Ok(steps)
}

/// The groups that either config speaks of, parents first: those that are named now, their ancestors that are yet to be made, and those
/// that exist and were named before, or are children of a parent with defaults.
fn paths(shared: &Shared, before: &Config, config: &Config) -> Vec<String> {
    let mut paths: BTreeMap<String, ()> = BTreeMap::new();
    for path in config.groups.keys() {
        let mut missing = path.as_str();
        while !missing.is_empty() && (missing == path || shared.tree.find(missing).is_err()) {
            paths.insert(missing.to_owned(), ());
            missing = parent_of(missing);
        }
    }
    for path in before.groups.keys() {
        // One that is being removed takes its settings with it.
        let known = shared.tree.find(path);
        if known.is_ok_and(|core| !lookup(shared, &core).is_removed()) {
            paths.insert(path.clone(), ());
        }
    }
    for parent in before.children.keys().chain(config.children.keys()) {
        let parent = match parent.as_str() {
            "" => Ok(shared.tree.root()),
            parent => shared.tree.find(parent),
        };
        let Ok(parent) = parent else { continue };
        for child in parent.children() {
            // A removed child goes its way; one that is named is found out later.
            if !lookup(shared, &child).is_removed() {
                paths.insert(child.path().to_owned(), ());
            }
        }
    }
    // By bytes, a path comes after those of its ancestors.
    paths.into_keys().collect()
}

/// The group of that path, or `None` if it can be made.
fn existing(shared: &Shared, path: &str) -> Result<Option<Arc<GroupShared>>, Error> {
    let mut nearest = path;
    while !nearest.is_empty() {
        if let Ok(core) = shared.tree.find(nearest) {
            let group = lookup(shared, &core);
            if group.is_removed() {
                let path = nearest.to_owned();
                return Err(Error::Removed { path });
            }
            return Ok((nearest == path).then_some(group));
        }
        nearest = parent_of(nearest);
    }
    Ok(None)
}

/// Everything that is said, and a group's own defaults for the rest.
fn target_of_new(shared: &Shared, path: &str, said: &GroupConfig) -> Result<Target, Error> {
    Ok(Target {
        weight: said.weight.map(Weight::new).transpose()?,
        idle: said.idle,
        tasks_max: said.tasks_max,
        queue_wait_max: said.queue_wait_max,
        preemptible: said.preemptible.map(Some),
        limit: Some(said.limit.onto(path, None, shared.regular)?),
    })
}

/// What is named, and what is said differently from before.
fn target_of_existing(
    shared: &Shared,
    path: &str,
    named: Option<&GroupConfig>,
    said: &GroupConfig,
    old: &GroupConfig,
) -> Result<Target, Error> {
    /// The value to write: what is said, if it is named or new; the group's own default, if it is no longer said.
    fn field<T: PartialEq + Clone>(
        named: bool,
        said: &Option<T>,
        old: &Option<T>,
        own: T,
    ) -> Option<T> {
        match said {
            Some(value) if named || said != old => Some(value.clone()),
            None if old.is_some() => Some(own),
            _ => None,
        }
    }
    let names = |has: fn(&GroupConfig) -> bool| named.is_some_and(has);
    let weight = field(
        names(|config| config.weight.is_some()),
        &said.weight,
        &old.weight,
        Weight::default().get(),
    );
    let limit = if names(|config| !config.limit.is_nothing()) || said.limit != old.limit {
        Some(said.limit.onto(path, None, shared.regular)?)
    } else {
        None
    };
    Ok(Target {
        weight: weight.map(Weight::new).transpose()?,
        idle: field(
            names(|config| config.idle.is_some()),
            &said.idle,
            &old.idle,
            false,
        ),
        tasks_max: field(
            names(|config| config.tasks_max.is_some()),
            &said.tasks_max,
            &old.tasks_max,
            u64::MAX,
        ),
        queue_wait_max: field(
            names(|config| config.queue_wait_max.is_some()),
            &said.queue_wait_max,
            &old.queue_wait_max,
            std::time::Duration::MAX,
        ),
        preemptible: field(
            names(|config| config.preemptible.is_some()),
            &said.preemptible.map(Some),
            &old.preemptible.map(Some),
            None,
        ),
        limit,
    })
}

/// Whether all limits of the plan can be in force together.
fn check_limits(shared: &Shared, steps: &[Step]) -> Result<(), ApplyError> {
    let limits = steps
        .iter()
        .filter_map(|step| Some((step.path.clone(), step.target.limit?)))
        .collect();
    let checked = shared.tree.check_limits(&limits);
    checked.map_err(|(path, error)| ApplyError {
        path,
        error: Error::Limit(*error).into(),
    })
}

/// Nothing here can fail: `plan` has looked at everything that could. Adds the virtual CPUs that have to look at once.
fn put_in_force(shared: &Arc<Shared>, steps: Vec<Step>, kicked: &mut VcpuSet) -> Applied {
    let mut applied = Applied::default();
    let mut limits = Vec::new();
    let mut rest = Vec::new();
    for step in steps {
        let is_new = step.group.is_none();
        let group = match step.group {
            Some(group) => group,
            None => match made(&shared.tree, &step.path) {
                Some(core) => lookup(shared, &core),
                None => continue,
            },
        };
        if let Some(limit) = step.target.limit {
            limits.push((group.core.clone(), limit));
        }
        let before = figures(&group);
        rest.push((group, step.target, step.gate, is_new, before));
    }
    shared.tree.set_limits(&limits, shared.now(), &mut |cpu| {
        kicked.insert(cpu.index());
    });
    for (group, target, gate, is_new, before) in rest {
        if gate.is_some() {
            group.keep_gate(gate);
        } else if group.core.limit().is_none() {
            // After nothing is limited any more.
            group.keep_gate(None);
        }
        if target.limit.is_some() {
            group.settle_limited_below(shared);
        }
        write(shared, &group, &target);
        if is_new {
            applied.created += 1;
        } else if before != figures(&group) {
            applied.changed += 1;
        }
    }
    applied
}

/// The group, made. Its path was checked, and its ancestors come before it.
fn made(tree: &GroupTree, path: &str) -> Option<Arc<quotient_core::Group>> {
    let group = tree.group(path);
    debug_assert!(group.is_ok(), "the plan has checked {path:?}");
    group.ok()
}

/// All that is not a limit.
fn write(shared: &Shared, group: &Arc<GroupShared>, target: &Target) {
    if let Some(weight) = target.weight
        && weight != group.core.weight()
    {
        group.core.set_weight(weight);
    }
    if let Some(idle) = target.idle
        && idle != group.core.is_idle()
    {
        group.core.set_idle(idle);
    }
    if let Some(max) = target.tasks_max {
        group.population.set_max(max);
    }
    if let Some(wait) = target.queue_wait_max {
        group.settle_queue_wait_max(shared, wait);
    }
    if let Some(preemptible) = target.preemptible {
        group.settle_preemptible(shared, preemptible);
    }
}

/// What can be seen of a group's settings.
#[derive(PartialEq)]
struct Figures {
    weight: u32,
    idle: bool,
    tasks_max: u64,
    queue_wait_max: Option<Nanos>,
    preemptible: bool,
    limit: Option<Limit>,
}

/// See [`Figures`].
fn figures(group: &GroupShared) -> Figures {
    let core = &group.core;
    Figures {
        weight: core.weight().get(),
        idle: core.is_idle(),
        tasks_max: group.population.max(),
        queue_wait_max: group.queue_wait.max(),
        preemptible: group.is_preemptible(),
        limit: core.limit(),
    }
}
