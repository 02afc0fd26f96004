//! rt-app's JSON workloads: tasks made of phases of run, sleep, lock and wake events, in microseconds.
//!
//! Read as rt-app reads it, with comments and repeated keys. Extended: `taskgroup` may be an object with `path`,
//! `weight`, `quota`, `period` and `burst` (times in microseconds, as everywhere in the format).
//!
//! What is not modelled and refused rather than ignored: `mem` and `iorun` (they measure a memory system that is not
//! here), `fork`, policies other than `SCHED_OTHER`, deadlines (`dl-*`), clamps (`util_*`), memory nodes, and whatever a phase says
//! of its scheduling. What has no meaning here and is ignored: everything in `global` but `duration` and `default_policy`,
//! `resources`, and logging.

mod json;

use crate::plan::{Plan, TaskPlan, WorkloadPlan};
use crate::program::{Program, Step};
use crate::synthetic::GroupIndex;
use core::fmt;
use json::{Fault, Kind, Value};
use quotient_core::{GroupTree, Limit, Nanos, Nice, Weight};
use std::collections::BTreeMap;

/// Most instances of one task.
const INSTANCES_MAX: f64 = 100_000.0;

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RtAppError {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for RtAppError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.line, self.column, self.what)
    }
}

impl std::error::Error for RtAppError {}

/// Adds the tasks of an rt-app file to a plan, each as a workload `name.task` whose meter counts its loops. `group` is
/// where tasks without a `taskgroup` go, and what the others' paths begin with. `duration` of the file, if it has one,
/// shortens the plan's.
///
/// # Errors
/// [`RtAppError`] with line and column.
pub fn add(plan: &mut Plan, name: &str, group: GroupIndex, text: &str) -> Result<(), RtAppError> {
    let base = group.map_or(String::new(), |group| {
        plan.groups[group as usize].path.clone()
    });
    let mut builder = Builder {
        plan,
        base,
        resources: BTreeMap::new(),
    };
    builder.file(name, text).map_err(|fault| {
        let before = text.get(..fault.at).unwrap_or(text);
        RtAppError {
            line: before.matches('\n').count() + 1,
            column: before.rsplit('\n').next().unwrap_or("").chars().count() + 1,
            what: fault.what,
        }
    })
}

struct Builder<'a> {
    plan: &'a mut Plan,
    base: String,
    /// Channels by what they are for and their names.
    resources: BTreeMap<(Resource, String), u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Mutex,
    Condition,
    Resume,
    Barrier,
}

/// What a phase may say in rt-app and not here.
const PHASE_REFUSED: [&str; 4] = ["cpus", "policy", "priority", "taskgroup"];

/// The names of the barriers that a task comes to, each once.
fn barriers_of(fields: &[(String, Value)]) -> Result<std::collections::BTreeSet<&str>, Fault> {
    let mut found = std::collections::BTreeSet::new();
    for (key, value) in fields {
        match kind_of(key) {
            "barrier" => {
                found.insert(text(value)?);
            }
            "phases" => {
                for (_, phase) in object(value)? {
                    found.extend(barriers_of(object(phase)?)?);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Only tasks of the fair class are modelled.
fn check_policy(value: &Value) -> Result<(), Fault> {
    match text(value)? {
        "SCHED_OTHER" | "SCHED_NORMAL" => Ok(()),
        other => fault(
            value,
            format!("policy {other} is not modelled, only SCHED_OTHER"),
        ),
    }
}

fn fault<T>(value: &Value, what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault {
        at: value.at,
        what: what.into(),
    })
}

fn object(value: &Value) -> Result<&[(String, Value)], Fault> {
    match &value.kind {
        Kind::Object(fields) => Ok(fields),
        _ => fault(value, "expected an object"),
    }
}

fn text(value: &Value) -> Result<&str, Fault> {
    match &value.kind {
        Kind::Text(text) => Ok(text),
        _ => fault(value, "expected a name in quotation marks"),
    }
}

fn number(value: &Value, what: &str, least: f64, most: f64) -> Result<f64, Fault> {
    match value.kind {
        Kind::Number(number) if (least..=most).contains(&number) => Ok(number),
        Kind::Number(number) => fault(
            value,
            format!("{what} = {number} is outside {least}..={most}"),
        ),
        _ => fault(value, format!("expected a number for {what}")),
    }
}

/// A time in microseconds, up to a day.
fn micros(value: &Value, what: &str) -> Result<Nanos, Fault> {
    let micros = number(value, what, 0.0, 86_400e6)?;
    Ok(Nanos((micros * 1_000.0) as u64))
}

fn field<'a>(fields: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    let found = fields.iter().rev().find(|(key, _)| key == name);
    found.map(|(_, value)| value)
}

/// What an event or phase key is without the digits that make it unique.
fn kind_of(key: &str) -> &str {
    key.trim_end_matches(|letter: char| letter.is_ascii_digit())
}

impl Builder<'_> {
    fn file(&mut self, name: &str, text: &str) -> Result<(), Fault> {
        let root = json::parse(text)?;
        let fields = object(&root)?;
        if let Some(global) = field(fields, "global")
            && let Some(duration) = field(object(global)?, "duration")
        {
            let seconds = number(duration, "duration", -1.0, 86_400.0)?;
            if seconds > 0.0 {
                let length = Nanos((seconds * 1e9) as u64);
                self.plan.duration = self.plan.duration.min(length);
            }
        }
        if let Some(global) = field(fields, "global")
            && let Some(policy) = field(object(global)?, "default_policy")
        {
            check_policy(policy)?;
        }
        let Some(tasks) = field(fields, "tasks") else {
            return fault(&root, "there are no \"tasks\"");
        };
        for (task, value) in object(tasks)? {
            self.task(&format!("{name}.{task}"), task, value)?;
        }
        Ok(())
    }

    fn task(&mut self, workload: &str, task: &str, value: &Value) -> Result<(), Fault> {
        let fields = object(value)?;
        if self.plan.workloads.iter().any(|load| load.name == workload) {
            return fault(value, format!("a second task {task:?}"));
        }
        let instances = field(fields, "instance").map_or(Ok(1.0), |count| {
            number(count, "instance", 0.0, INSTANCES_MAX)
        })?;
        let weight = match field(fields, "priority") {
            None => Weight::DEFAULT,
            Some(nice) => weight_of(nice)?,
        };
        let begin =
            field(fields, "delay").map_or(Ok(Nanos::ZERO), |delay| micros(delay, "delay"))?;
        let group = match field(fields, "taskgroup") {
            None => self.plan.group(&self.base.clone()),
            Some(group) => self.group(group)?,
        };
        let cpuset = field(fields, "cpus")
            .map(|cpus| self.cpus(cpus))
            .transpose()?;
        for barrier in barriers_of(fields)? {
            let index = self.barrier(barrier);
            self.plan.barriers[index as usize] += instances as u32;
        }
        let meter = self.plan.meter(workload);
        let mut program = Program::default();
        self.phases(&mut program, task, fields)?;
        program.steps.push(Step::Count(meter));
        close_loop(&mut program, field(fields, "loop"), 0, 0)?;
        let program = self.plan.program(program);
        let plan = TaskPlan {
            group,
            program,
            weight,
            slice: None,
            begin,
            cpu: None,
            cpuset,
        };
        self.plan.workloads.push(WorkloadPlan {
            name: workload.into(),
            tasks: vec![plan; instances as usize],
        });
        Ok(())
    }

    /// The CPUs that a task is kept to.
    fn cpus(&mut self, value: &Value) -> Result<u32, Fault> {
        let Kind::List(list) = &value.kind else {
            return fault(value, "expected a list of CPUs");
        };
        let most = f64::from(self.plan.machine.cpus() - 1);
        let cpus: Vec<u32> = list
            .iter()
            .map(|cpu| number(cpu, "cpu", 0.0, most).map(|cpu| cpu as u32))
            .collect::<Result<_, _>>()?;
        if cpus.is_empty() {
            return fault(value, "expected at least one CPU");
        }
        Ok(self.plan.cpuset(cpus))
    }

    /// A barrier of that name. Who meets there is counted task by task.
    fn barrier(&mut self, name: &str) -> u32 {
        let plan = &mut *self.plan;
        let made = || {
            plan.barriers.push(0);
            plan.barriers.len() as u32 - 1
        };
        let key = (Resource::Barrier, name.to_owned());
        *self.resources.entry(key).or_insert_with(made)
    }

    fn group(&mut self, value: &Value) -> Result<GroupIndex, Fault> {
        let none: &[(String, Value)] = &[];
        let (path, fields) = match &value.kind {
            Kind::Text(path) => (path.as_str(), none),
            _ => {
                let fields = object(value)?;
                let Some(path) = field(fields, "path") else {
                    return fault(value, "a taskgroup without \"path\"");
                };
                (text(path)?, fields)
            }
        };
        let path = path.trim_matches('/');
        let whole = [self.base.as_str(), path]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("/");
        if whole.is_empty() {
            return Ok(None);
        }
        GroupTree::check_path(&whole).or_else(|error| fault(value, error.to_string()))?;
        let index = self.plan.group(&whole);
        let Some(group) = index.and_then(|index| self.plan.groups.get_mut(index as usize)) else {
            return Ok(index);
        };
        if let Some(weight) = field(fields, "weight") {
            let number = number(weight, "weight", 1.0, 10_000.0)?;
            group.weight =
                Weight::new(number as u32).or_else(|error| fault(weight, error.to_string()))?;
        }
        if let Some(quota) = field(fields, "quota") {
            let time = |name, default| {
                field(fields, name).map_or(Ok(default), |value| micros(value, name))
            };
            let limit = Limit::new(
                micros(quota, "quota")?,
                time("period", Limit::PERIOD_DEFAULT)?,
            )
            .with_burst(time("burst", Nanos::ZERO)?);
            limit
                .validate(false)
                .or_else(|error| fault(quota, error.to_string()))?;
            group.limit = Some(limit);
        }
        Ok(index)
    }

    /// The events of a task, directly or in phases that have loops of their own.
    fn phases(
        &mut self,
        program: &mut Program,
        task: &str,
        fields: &[(String, Value)],
    ) -> Result<(), Fault> {
        let Some(phases) = field(fields, "phases") else {
            return self.events(program, task, fields);
        };
        for (_, phase) in object(phases)? {
            let first = program.here();
            let fields = object(phase)?;
            for (key, value) in fields {
                if PHASE_REFUSED.contains(&key.as_str()) {
                    return fault(
                        value,
                        format!("{key:?} of a phase is not modelled, only of a task"),
                    );
                }
            }
            self.events(program, task, fields)?;
            // A phase runs once unless it says otherwise; a task for ever.
            if let Some(count) = field(fields, "loop") {
                close_loop(program, Some(count), 1, first)?;
            }
        }
        Ok(())
    }

    fn events(
        &mut self,
        program: &mut Program,
        task: &str,
        fields: &[(String, Value)],
    ) -> Result<(), Fault> {
        for (key, value) in fields {
            self.event(program, task, key, value)?;
        }
        Ok(())
    }

    fn event(
        &mut self,
        program: &mut Program,
        task: &str,
        key: &str,
        value: &Value,
    ) -> Result<(), Fault> {
        match kind_of(key) {
            "run" | "runtime" => program.steps.push(Step::Run(micros(value, key)?.into())),
            "sleep" => program.steps.push(Step::Sleep(micros(value, key)?.into())),
            "timer" => {
                let Some(period) = field(object(value)?, "period") else {
                    return fault(value, "a timer without \"period\"");
                };
                let period = micros(period, "period")?;
                if period == Nanos::ZERO {
                    return fault(value, "a timer of period 0");
                }
                program.steps.push(Step::Every(period));
            }
            "lock" => {
                let mutex = self.resource(Resource::Mutex, value)?;
                program.steps.push(Step::Wait(mutex));
            }
            "unlock" => {
                let mutex = self.resource(Resource::Mutex, value)?;
                program.steps.push(Step::Post(mutex));
            }
            "wait" | "sync" => self.wait(program, key, value)?,
            "signal" | "signa" => {
                let condition = self.resource(Resource::Condition, value)?;
                program.steps.push(Step::Signal(condition));
            }
            "broad" => {
                let condition = self.resource(Resource::Condition, value)?;
                program.steps.push(Step::Broadcast(condition));
            }
            "suspend" => {
                let own = self.named(Resource::Resume, task);
                program.steps.push(Step::Wait(own));
            }
            "resume" => {
                let other = self.resource(Resource::Resume, value)?;
                program.steps.push(Step::PostOne(other));
            }
            "yield" => program.steps.push(Step::Yield),
            "barrier" => {
                let barrier = self.barrier(text(value)?);
                program.steps.push(Step::Meet(barrier));
            }
            "policy" => check_policy(value)?,
            "loop" | "instance" | "priority" | "delay" | "taskgroup" | "cpus" => {}
            _ => return fault(value, format!("event {key:?} is not modelled")),
        }
        Ok(())
    }

    /// Waiting for a condition gives the mutex away meanwhile; `sync` signals it first.
    fn wait(&mut self, program: &mut Program, key: &str, value: &Value) -> Result<(), Fault> {
        let fields = object(value)?;
        let (Some(condition), mutex) = (field(fields, "ref"), field(fields, "mutex")) else {
            return fault(value, format!("a {key} without \"ref\""));
        };
        let condition = self.resource(Resource::Condition, condition)?;
        let mutex = mutex
            .map(|mutex| self.resource(Resource::Mutex, mutex))
            .transpose()?;
        if kind_of(key) == "sync" {
            program.steps.push(Step::Signal(condition));
        }
        program.steps.extend(mutex.map(Step::Post));
        program.steps.push(Step::Wait(condition));
        program.steps.extend(mutex.map(Step::Wait));
        Ok(())
    }

    fn resource(&mut self, sort: Resource, value: &Value) -> Result<u32, Fault> {
        Ok(self.named(sort, text(value)?))
    }

    fn named(&mut self, sort: Resource, name: &str) -> u32 {
        let plan = &mut *self.plan;
        let key = (sort, name.to_owned());
        let made = || plan.channel(u32::from(sort == Resource::Mutex));
        *self.resources.entry(key).or_insert_with(made)
    }
}

fn weight_of(nice: &Value) -> Result<Weight, Fault> {
    let value = number(nice, "priority", -20.0, 19.0)?;
    let shares = Nice::new(value as i32)
        .map_err(|error| Fault {
            at: nice.at,
            what: error.to_string(),
        })?
        .shares();
    // The nearest weight: shares are weight * 1024 / 100.
    let weight = (shares * 100).div_ceil(1024).clamp(1, 10_000);
    Weight::new(weight).or_else(|error| fault(nice, error.to_string()))
}

/// Closes a loop of `count` rounds (-1: for ever, which is also what a task does that says nothing).
fn close_loop(
    program: &mut Program,
    count: Option<&Value>,
    counter: u8,
    to: u32,
) -> Result<(), Fault> {
    let rounds = count.map_or(Ok(-1.0), |count| {
        number(count, "loop", -1.0, f64::from(u32::MAX))
    })?;
    if rounds < 0.0 {
        program.steps.push(Step::Jump(to));
    } else if rounds < 1.0 {
        program.steps.truncate(to as usize);
    } else {
        program.steps.push(Step::Repeat {
            counter,
            times: rounds as u32 - 1,
            to,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Simulation};
    use quotient_trace::Discard;

    const EXAMPLE: &str = r#"{
        /* two threads that alternate, and a hog in a box */
        "global": { "duration": 1, "calibration": "CPU0" },
        "tasks": {
            "ping": { "loop": 100, "run": 1000, "resume": "pong", "suspend": "ping", "run": 500 },
            "pong": { "loop": 100, "suspend": "pong", "run": 2000, "resume": "ping" },
            "hog": {
                "taskgroup": { "path": "/box", "weight": 50, "quota": 20000, "period": 100000 },
                "phases": { "a": { "loop": 2, "run": 10 }, "b": { "timer": { "ref": "t", "period": 5000 } } }
            }
        }
    }"#;

    #[test]
    fn an_example_runs() {
        let mut plan = Plan::new(Machine::flat(2));
        add(&mut plan, "app", None, EXAMPLE).unwrap();
        let mut simulation = Simulation::new(&plan, Discard).unwrap();
        simulation.run().unwrap();
        let outcome = simulation.outcome();
        assert_eq!(outcome.workload("app.ping").unwrap().usage_ns, 150_000_000);
        assert_eq!(outcome.workload("app.pong").unwrap().usage_ns, 200_000_000);
        assert_eq!(outcome.meter("app.hog").unwrap().done, 200);
        assert_eq!(outcome.group("box").unwrap().usage_ns, 200 * 20_000);
    }

    #[test]
    fn tasks_are_kept_to_their_cpus_and_meet_at_barriers() {
        let text = r#"{ "tasks": {
            "fast": { "cpus": [1], "loop": 10, "run": 1000, "barrier": "b" },
            "slow": { "cpus": [0], "instance": 1, "loop": 10, "phases": { "p": { "run": 4000, "barrier": "b" } } }
        } }"#;
        let mut plan = Plan::new(Machine::flat(2));
        add(&mut plan, "app", None, text).unwrap();
        let mut simulation = Simulation::new(&plan, Discard).unwrap();
        simulation.run().unwrap();
        let outcome = simulation.outcome();
        // Each of ten rounds lasts as long as its slower half.
        let finished = outcome.workload("app.fast").unwrap().finished_ns;
        assert_eq!(finished, Some(40_000_000));
        assert_eq!(outcome.mechanisms.migrations, 0);
    }

    #[test]
    fn faults_have_line_and_column() {
        for (text, place) in [
            (
                "{\"tasks\":{\"a\":{\"policy\":\"SCHED_FIFO\",\"priority\":10,\"run\":1}}}",
                "1:25: policy SCHED_FIFO is not modelled",
            ),
            (
                "{\"global\":{\"default_policy\":\"SCHED_RR\"},\"tasks\":{}}",
                "policy SCHED_RR is not modelled",
            ),
            (
                "{\"tasks\":{\"a\":{\"dl-runtime\":5}}}",
                "event \"dl-runtime\" is not modelled",
            ),
            (
                "{\"tasks\":{\"a\":{\"phases\":{\"p\":{\"cpus\":[0],\"run\":1}}}}}",
                "\"cpus\" of a phase is not modelled",
            ),
            (
                "{\"tasks\":{\"a\":{\"cpus\":[1],\"run\":1}}}",
                "1:24: cpu = 1 is outside 0..=0",
            ),
            (
                "{\n \"tasks\": { \"a\": { \"mem\": 5 } }\n}",
                "2:27: event \"mem\" is not modelled",
            ),
            ("{\n\n}", "1:1: there are no \"tasks\""),
            (
                "{\"tasks\":{\"a\":{\"run\":-1}}}",
                "1:22: run = -1 is outside",
            ),
            (
                "{\"tasks\":{\"a\":{\"loop\":0.5,\"timer\":{}}}}",
                "1:35: a timer without",
            ),
            (
                "{\"tasks\":{\"a\":{\"taskgroup\":{\"path\":\"x\",\"quota\":5}}}}",
                "quota",
            ),
        ] {
            let error = add(&mut Plan::new(Machine::flat(1)), "x", None, text).unwrap_err();
            assert!(error.to_string().contains(place), "{error}");
        }
    }
}
