//! From a scenario's `[[workload]]` table to tasks of a plan.

use super::build::weight_of;
use super::document::{ClockName, Kind, LoopName, WorkloadTable};
use super::values::{SpanValue, Time, time_of};
use super::{Fault, Files};
use crate::plan::Plan;
use crate::program::ClockRead;
use crate::random::Span;
use crate::replay::{self, Loop};
use crate::rtapp;
use crate::synthetic::{self, Build, KeyFlips, OpenLoop, Pipeline};
use quotient_core::{Nanos, Slice};

/// Most groups that one workload may spread over.
const GROUPS_MAX: u32 = 10_000;

/// What a workload may say beyond its common fields; whatever is left over at the end is a mistake.
struct Fields<'a> {
    table: &'a WorkloadTable,
    unused: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    fn new(table: &'a WorkloadTable) -> Fields<'a> {
        let given = [
            ("threads", table.threads.is_some()),
            ("work", table.work.is_some()),
            ("gap", table.gap.is_some()),
            ("think", table.think.is_some()),
            ("kernel", table.kernel.is_some()),
            ("wait", table.wait.is_some()),
            ("pause", table.pause.is_some()),
            ("merge", table.merge.is_some()),
            ("period", table.period.is_some()),
            ("write", table.write.is_some()),
            ("parts", table.parts.is_some()),
            ("rounds", table.rounds.is_some()),
            ("teams", table.teams.is_some()),
            ("fan", table.fan.is_some()),
            ("loops", table.loops.is_some()),
            ("jobs", table.jobs.is_some()),
            ("calls", table.calls.is_some()),
            ("sites", table.sites.is_some()),
            ("batched", table.batched.is_some()),
            ("how", table.how.is_some()),
            ("file", table.file.is_some()),
            ("loop", table.r#loop.is_some()),
        ];
        let unused = given
            .into_iter()
            .filter(|(_, is)| *is)
            .map(|(name, _)| name);
        Fields {
            table,
            unused: unused.collect(),
        }
    }

    fn optional<T>(&mut self, name: &'static str, value: Option<T>) -> Option<T> {
        self.unused.retain(|unused| *unused != name);
        value
    }

    fn needed<T>(&mut self, name: &'static str, value: Option<T>) -> Result<T, Fault> {
        let kind = self.table.kind.name();
        self.optional(name, value)
            .ok_or_else(|| self.fault(format!("a workload of kind {kind} needs `{name}`")))
    }

    fn span(&mut self, name: &'static str, value: Option<SpanValue>) -> Result<Span, Fault> {
        self.needed(name, value).map(|SpanValue(span)| span)
    }

    /// The same of what comes again and again.
    fn often(&mut self, name: &'static str, value: Option<SpanValue>) -> Result<Span, Fault> {
        let span = self.span(name, value)?;
        often(name, span).map_err(|what| self.fault(what))
    }

    fn fault(&self, what: String) -> Fault {
        let name = self.table.name.get_ref();
        Fault::at(self.table.name.span(), format!("workload {name}: {what}"))
    }

    fn finish(self) -> Result<(), Fault> {
        match self.unused.first() {
            None => Ok(()),
            Some(name) => Err(self.fault(format!(
                "a workload of kind {} has no use for `{name}`",
                self.table.kind.name()
            ))),
        }
    }
}

/// Least time from one event of the same kind to the next, on average. Default 1 µs: a million events for each second, which a simulation still gets through.
const OFTEN_MIN: Nanos = Nanos(1_000);

/// The time from one to the next, if there is an end to them.
pub(super) fn often(name: &str, span: Span) -> Result<Span, String> {
    let mean = span.mean();
    if mean < OFTEN_MIN {
        return Err(format!(
            "`{name}` is {mean} on average, and has to be {OFTEN_MIN} or more"
        ));
    }
    Ok(span)
}

/// Adds a workload's tasks to the plan, in one group or in as many as it asks for.
pub(super) fn add_workload(
    plan: &mut Plan,
    table: &WorkloadTable,
    files: &mut dyn Files,
) -> Result<(), Fault> {
    let group = table.group.as_ref().map_or("", |group| group.get_ref());
    let Some(count) = table.groups else {
        return add_to_group(plan, table, table.name.get_ref(), group, files);
    };
    let count = count.on(plan.machine.cpus());
    if count > GROUPS_MAX || group.is_empty() {
        let what =
            format!("`groups` is {count} in group {group:?}: up to {GROUPS_MAX}, below a group");
        return Err(Fault::at(table.name.span(), what));
    }
    for number in 0..count {
        let (name, path) = (
            format!("{}.{number}", table.name.get_ref()),
            format!("{group}.{number}"),
        );
        add_to_group(plan, table, &name, &path, files)?;
    }
    Ok(())
}

fn add_to_group(
    plan: &mut Plan,
    table: &WorkloadTable,
    name: &str,
    path: &str,
    files: &mut dyn Files,
) -> Result<(), Fault> {
    let mut fields = Fields::new(table);
    if plan.workloads.iter().any(|load| load.name == name) {
        return Err(fields.fault("the name is taken".into()));
    }
    if !path.is_empty() {
        quotient_core::GroupTree::check_path(path)
            .map_err(|error| fields.fault(error.to_string()))?;
    }
    let group = plan.group(path);
    let first = plan.workloads.len();
    match table.kind {
        Kind::RtApp => add_rtapp(plan, &mut fields, name, group, files)?,
        Kind::Replay => add_replay(plan, &mut fields, name, group, files)?,
        _ => add_synthetic(plan, &mut fields, name, group)?,
    }
    fields.finish()?;
    for load in &mut plan.workloads[first..] {
        for task in &mut load.tasks {
            if table.weight.is_some() {
                task.weight = weight_of(table.weight);
            }
            if let Some(begin) = time_of(table.begin.as_ref()) {
                task.begin = begin;
            }
            if let Some(cpu) = &table.cpu {
                task.cpu = Some(*cpu.get_ref());
            }
            if let Some(given) = &table.slice {
                let slice = Slice::new(given.get_ref().0).map_err(|error| {
                    let what = format!("workload {name}: {error}");
                    Fault::at(given.span(), what)
                })?;
                task.slice = Some(slice);
            }
        }
    }
    Ok(())
}

fn add_synthetic(
    plan: &mut Plan,
    fields: &mut Fields<'_>,
    name: &str,
    group: Option<u32>,
) -> Result<(), Fault> {
    let (table, cpus) = (fields.table, plan.machine.cpus());
    let threads = |fields: &mut Fields<'_>| {
        let count = fields.optional("threads", table.threads);
        count.map_or(1, |count| count.on(cpus))
    };
    match table.kind {
        Kind::Spin => {
            let threads = threads(fields);
            synthetic::spinners(plan, name, group, threads);
        }
        Kind::Once => {
            let (threads, work) = (threads(fields), fields.span("work", table.work)?);
            synthetic::once(plan, name, group, threads, work);
        }
        Kind::OpenLoop => {
            let shape = OpenLoop {
                threads: threads(fields),
                work: fields.span("work", table.work)?,
                gap: fields.often("gap", table.gap)?,
                parts: fields
                    .optional("parts", table.parts)
                    .map_or(1, |parts| parts.on(cpus)),
                begin: time_of(table.begin.as_ref()).unwrap_or(Nanos::ZERO),
            };
            synthetic::open_loop(plan, name, group, shape);
        }
        Kind::ClosedLoop => {
            let (threads, work) = (threads(fields), fields.span("work", table.work)?);
            let think = fields.span("think", table.think)?;
            synthetic::closed_loop(plan, name, group, threads, work, think);
        }
        Kind::Periodic => {
            let (threads, work) = (threads(fields), fields.span("work", table.work)?);
            let Time(period) = fields.needed("period", table.period)?;
            often("period", Span::Fixed(period)).map_err(|what| fields.fault(what))?;
            synthetic::periodic(plan, name, group, threads, work, period);
        }
        Kind::Pipe => {
            let (rounds, work) = (
                fields.needed("rounds", table.rounds)?,
                fields.span("work", table.work)?,
            );
            let cpu = table.cpu.as_ref().map(|cpu| *cpu.get_ref());
            synthetic::pipe_test(plan, name, group, rounds, work, cpu);
        }
        _ => add_more(plan, fields, name, group, threads)?,
    }
    Ok(())
}

fn add_more(
    plan: &mut Plan,
    fields: &mut Fields<'_>,
    name: &str,
    group: Option<u32>,
    threads: impl Fn(&mut Fields<'_>) -> u32,
) -> Result<(), Fault> {
    let table = fields.table;
    match table.kind {
        Kind::Messaging => {
            let (teams, fan) = (
                fields.needed("teams", table.teams)?,
                fields.needed("fan", table.fan)?,
            );
            if u64::from(teams) * u64::from(fan) > 100_000 {
                return Err(fields.fault("more than 100000 pairs".into()));
            }
            let loops = fields.needed("loops", table.loops)?;
            let work = fields.span("work", table.work)?;
            synthetic::messaging(plan, name, group, teams, fan, loops, work);
        }
        Kind::Pipeline => {
            let shape = Pipeline {
                count: fields.optional("teams", table.teams).unwrap_or(1),
                lanes: threads(fields),
                work: fields.span("work", table.work)?,
                merge: fields.span("merge", table.merge)?,
            };
            if u64::from(shape.count) * u64::from(shape.lanes) > 100_000 {
                return Err(fields.fault("more than 100000 lanes".into()));
            }
            synthetic::pipeline(plan, name, group, shape);
        }
        Kind::Build => {
            let shape = Build {
                parallel: threads(fields),
                jobs: fields.needed("jobs", table.jobs)?.min(1_000_000),
                work: fields.span("work", table.work)?,
                kernel: fields.span("kernel", table.kernel)?,
                wait: fields.span("wait", table.wait)?,
            };
            synthetic::build(plan, name, group, shape);
        }
        Kind::WakeAndWork => {
            let (threads, work) = (threads(fields), fields.span("work", table.work)?);
            let pause = fields.span("pause", table.pause)?;
            synthetic::wake_and_work(plan, name, group, threads, work, pause);
        }
        Kind::ClockReaders => {
            let (threads, calls) = (threads(fields), fields.needed("calls", table.calls)?);
            let how = match fields.needed("how", table.how)? {
                ClockName::EveryThread => ClockRead::EveryThread,
                ClockName::OwnThread => ClockRead::OwnThread,
            };
            synthetic::clock_readers(plan, name, group, threads, calls, how);
        }
        _ => {
            let shape = KeyFlips {
                sites: fields.needed("sites", table.sites)?,
                batched: fields.needed("batched", table.batched)?,
                pause: fields.span("pause", table.pause)?.mean(),
                write: fields.needed("write", table.write)?.0,
            };
            synthetic::key_flips(plan, name, group, shape);
        }
    }
    Ok(())
}

fn add_rtapp(
    plan: &mut Plan,
    fields: &mut Fields<'_>,
    name: &str,
    group: Option<u32>,
    files: &mut dyn Files,
) -> Result<(), Fault> {
    let file = fields.needed("file", fields.table.file.clone())?;
    let text = files.read(&file).map_err(|error| fields.fault(error))?;
    rtapp::add(plan, name, group, &text).map_err(|error| fields.fault(format!("{file}: {error}")))
}

fn add_replay(
    plan: &mut Plan,
    fields: &mut Fields<'_>,
    name: &str,
    group: Option<u32>,
    files: &mut dyn Files,
) -> Result<(), Fault> {
    let file = fields.needed("file", fields.table.file.clone())?;
    let how = match fields.needed("loop", fields.table.r#loop)? {
        LoopName::Open => Loop::Open,
        LoopName::Closed => Loop::Closed,
    };
    let mut source = files.open(&file).map_err(|error| fields.fault(error))?;
    let recording = replay::Recording::read(&mut source)
        .map_err(|error| fields.fault(format!("{file}: {error}")))?;
    recording.add_to(plan, name, group, how);
    Ok(())
}
