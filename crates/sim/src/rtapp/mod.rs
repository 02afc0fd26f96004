//! rt-app's JSON workloads: tasks made of phases of run, sleep, lock and wake events, in microseconds.
//!
//! Read as rt-app reads it, with comments and repeated keys. Extended: `taskgroup` may be an object with `path`,
//! `weight`, `quota`, `period` and `burst` (times in microseconds, as everywhere in the format).
//!
//! Every key is modelled, without meaning here (logging, calibration, `resources`), or refused by its name: `keys` has the list.
//! `run` and `runtime` are the same, since CPUs have one speed; `dl-runtime` of a task of `SCHED_OTHER` is its slice, as in rt-app. A task
//! with timers has a second meter, `name.task.slack`: what is left of the period when the timer is reached.

mod json;
mod keys;
#[cfg(test)]
mod tests;
mod values;

use crate::plan::{Plan, TaskPlan, WorkloadPlan};
use crate::program::{Program, Step};
use crate::synthetic::GroupIndex;
use core::fmt;
use json::{Fault, Kind, Value};
use keys::kind_of;
use quotient_core::{GroupTree, Limit, Nanos, Slice, Weight};
use std::collections::BTreeMap;
use values::{check_policy, fault, field, micros, number, object, text, weight_of};

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
        workload: String::new(),
        slack: None,
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
    /// The task that is read, and its meter of slack once it has a timer.
    workload: String,
    slack: Option<u32>,
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

impl Builder<'_> {
    fn file(&mut self, name: &str, text: &str) -> Result<(), Fault> {
        let root = json::parse(text)?;
        keys::check_root(&root)?;
        let fields = object(&root)?;
        if let Some(global) = field(fields, "global") {
            keys::check_global(global)?;
        }
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
        keys::check_task(fields, false)?;
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
        let slice = field(fields, "dl-runtime").map(self::slice).transpose()?;
        let meter = self.plan.meter(workload);
        self.slack = None;
        self.workload = workload.into();
        let mut program = Program::default();
        self.phases(&mut program, task, fields)?;
        program.steps.push(Step::Count(meter));
        close_loop(&mut program, field(fields, "loop"), 0, 0)?;
        let program = self.plan.program(program);
        let plan = TaskPlan {
            group,
            program,
            weight,
            slice,
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
                let known = ["path", "weight", "quota", "period", "burst"];
                keys::only(value, "a taskgroup", &known)?;
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
            keys::check_task(fields, true)?;
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
            "timer" => self.timer(program, value)?,
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
            // A property of the task or phase, read with it; everything else was refused.
            _ => {}
        }
        Ok(())
    }

    /// Waits for the next of the period, counted since the task began; those that were missed are left out.
    fn timer(&mut self, program: &mut Program, value: &Value) -> Result<(), Fault> {
        keys::only(value, "a timer", &["ref", "period", "mode"])?;
        let fields = object(value)?;
        if let Some(mode) = field(fields, "mode")
            && text(mode)? != "relative"
        {
            return fault(mode, "timers are modelled with mode \"relative\" only");
        }
        let Some(period) = field(fields, "period") else {
            return fault(value, "a timer without \"period\"");
        };
        let period = micros(period, "period")?;
        if period == Nanos::ZERO {
            return fault(value, "a timer of period 0");
        }
        let name = format!("{}.slack", self.workload);
        let plan = &mut *self.plan;
        let meter = *self.slack.get_or_insert_with(|| plan.meter(&name));
        program.steps.push(Step::Slack { meter, period });
        program.steps.push(Step::Every(period));
        Ok(())
    }

    /// Waiting for a condition gives the mutex away meanwhile; `sync` signals it first.
    fn wait(&mut self, program: &mut Program, key: &str, value: &Value) -> Result<(), Fault> {
        keys::only(value, key, &["ref", "mutex"])?;
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

/// The request length of a task, from microseconds.
fn slice(value: &Value) -> Result<Slice, Fault> {
    let length = micros(value, "dl-runtime")?;
    Slice::new(length).or_else(|error| fault(value, error.to_string()))
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
