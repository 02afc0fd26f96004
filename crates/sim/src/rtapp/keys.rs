//! Every key of the format: modelled, without meaning here, or refused by its name. What is in none of the lists is refused as well.

use super::json::{Fault, Kind, Value};
use super::values::{fault, object};

/// Keys of the file itself.
const ROOT: &[&str] = &["tasks", "global", "resources"];

/// Keys of `global` that say something about the run.
const GLOBAL: &[&str] = &["duration", "default_policy"];

/// Keys of `global` about how rt-app itself measures and logs, or what events write to that are refused.
const GLOBAL_ELSEWHERE: &[&str] = &[
    "calibration",
    "lock_pages",
    "logdir",
    "log_basename",
    "logbasename",
    "log_size",
    "ftrace",
    "gnuplot",
    "io_device",
    "mem_buffer_size",
];

/// Keys of `global` that would change the run, unless they are false.
const GLOBAL_OFF: &[&str] = &["pi_enabled", "cumulative_slack"];

/// Keys of a task that are no events.
const TASK: &[&str] = &[
    "instance",
    "delay",
    "loop",
    "phases",
    "cpus",
    "policy",
    "priority",
    "taskgroup",
    "dl-runtime",
];

/// Keys of a phase that are no events.
const PHASE: &[&str] = &["loop"];

/// Events.
const EVENTS: &[&str] = &[
    "run", "runtime", "sleep", "timer", "lock", "unlock", "wait", "sync", "signal", "signa",
    "broad", "suspend", "resume", "yield", "barrier",
];

/// What rt-app knows and a simulation of the fair class has no place for.
const REFUSED: &[(&str, &str)] = &[
    ("mem", "it measures memory, of which there is none here"),
    ("iorun", "it measures a device, of which there is none here"),
    ("fork", "all tasks are made before the run"),
    ("dl-period", "there is no deadline class"),
    ("dl-deadline", "there is no deadline class"),
    ("period", "there is no deadline class"),
    ("deadline", "there is no deadline class"),
    (
        "util_min",
        "clamps steer frequencies, which are constant here",
    ),
    (
        "util_max",
        "clamps steer frequencies, which are constant here",
    ),
    ("nodes_membind", "memory has no nodes here"),
];

/// An event's or phase's key without the digits that make it unique.
pub(super) fn kind_of(key: &str) -> &str {
    key.trim_end_matches(|letter: char| letter.is_ascii_digit())
}

fn refuse<T>(value: &Value, key: &str, of: &str) -> Result<T, Fault> {
    let known = REFUSED.iter().find(|(name, _)| *name == kind_of(key));
    match known {
        Some((_, why)) => fault(value, format!("{key:?} of {of} is not modelled: {why}")),
        None if TASK.contains(&key) => fault(
            value,
            format!("{key:?} of {of} is not modelled, only of a task"),
        ),
        None => fault(value, format!("{key:?} of {of} is not modelled")),
    }
}

/// Checks the keys of an object that has no others than these.
pub(super) fn only(value: &Value, of: &str, known: &[&str]) -> Result<(), Fault> {
    for (key, field) in object(value)? {
        if !known.contains(&key.as_str()) {
            return refuse(field, key, of);
        }
    }
    Ok(())
}

pub(super) fn check_root(value: &Value) -> Result<(), Fault> {
    only(value, "the file", ROOT)
}

pub(super) fn check_global(value: &Value) -> Result<(), Fault> {
    for (key, field) in object(value)? {
        let key = key.as_str();
        if GLOBAL_OFF.contains(&key) {
            if !matches!(field.kind, Kind::Bool(false)) {
                return fault(field, format!("{key:?} is not modelled, only false"));
            }
        } else if !GLOBAL.contains(&key) && !GLOBAL_ELSEWHERE.contains(&key) {
            return refuse(field, key, "global");
        }
    }
    Ok(())
}

/// Checks the keys of a task, or of a phase of one.
pub(super) fn check_task(fields: &[(String, Value)], is_phase: bool) -> Result<(), Fault> {
    let (own, of) = if is_phase {
        (PHASE, "a phase")
    } else {
        (TASK, "a task")
    };
    for (key, field) in fields {
        if !own.contains(&key.as_str()) && !EVENTS.contains(&kind_of(key)) {
            return refuse(field, key, of);
        }
    }
    Ok(())
}
