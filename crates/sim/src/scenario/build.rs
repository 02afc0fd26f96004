//! From a scenario's tables to a plan.

use super::document::{
    BandwidthName, ChangeTable, ClockName, CostTable, Document, GroupClockName, GroupTable, Kind,
    LoadAverageName, LoopName, MachineTable, PickName, SchedulerTable, ThrottleName, TicksName,
    WorkloadTable,
};
use super::values::{SpanValue, Time};
use super::{Fault, Files};
use crate::costs::Costs;
use crate::machine::{Machine, Ticks};
use crate::plan::{Action, Change, LoadAverage, Plan, Settings, Throttling};
use crate::program::ClockRead;
use crate::random::Span;
use crate::replay::{self, Loop};
use crate::rtapp;
use crate::synthetic::{self, Build, KeyFlips, OpenLoop};
use core::ops::Range;
use quotient_core::{
    BandwidthRules, Config, GroupClock, Limit, Nanos, Policy, RatioRule, Slice, Weight, WeightMode,
};
use toml::Spanned;

/// Most groups that one workload may spread over.
const GROUPS_MAX: u32 = 10_000;

/// Builds the plan of a document; `machine` and `seed` replace the document's own.
pub(super) fn plan(
    document: &Document,
    machine: Option<&Machine>,
    seed: Option<u64>,
    files: &mut dyn Files,
) -> Result<Plan, Fault> {
    let mut own = own_machine(&document.machine)?;
    if let Some(other) = machine {
        own = Machine {
            nodes: other.nodes,
            cores: other.cores,
            threads: other.threads,
            distances: Vec::new(),
            ..own
        };
    }
    let span = document.machine.shape.span();
    own.validate()
        .map_err(|error| Fault::at(span, format!("impossible machine: {error}")))?;
    let mut plan = Plan::new(own);
    plan.seed = seed.unwrap_or(document.seed);
    plan.duration = document.duration.0;
    plan.settings = settings(&document.scheduler, plan.machine.cpus());
    plan.costs = costs(&document.costs);
    for group in &document.group {
        add_group(&mut plan, group)?;
    }
    for workload in &document.workload {
        add_workload(&mut plan, workload, files)?;
    }
    for change in &document.change {
        add_change(&mut plan, change)?;
    }
    plan.validate()
        .map_err(|error| Fault::plain(error.to_string()))?;
    Ok(plan)
}

fn own_machine(table: &MachineTable) -> Result<Machine, Fault> {
    let parsed = Machine::parse(table.shape.get_ref())
        .map_err(|error| Fault::at(table.shape.span(), format!("impossible machine: {error}")))?;
    Ok(Machine {
        hz: table.hz.unwrap_or(parsed.hz),
        tick_skew: table.tick_skew.unwrap_or(parsed.tick_skew),
        ticks: match table.ticks {
            Some(TicksName::Busy) => Ticks::Busy,
            Some(TicksName::Needed) | None => Ticks::Needed,
        },
        smt_speed: table.smt_speed.unwrap_or(parsed.smt_speed),
        distances: table.distances.clone(),
        ..parsed
    })
}

fn settings(table: &SchedulerTable, cpus: u32) -> Settings {
    let mut config = Config::new(cpus);
    if let Some(PickName::Cfs) = table.pick {
        config.policy = Policy::Cfs;
    }
    if let Some(BandwidthName::Kernel) = table.bandwidth {
        config.bandwidth = BandwidthRules::Kernel {
            ratio: RatioRule::V2,
            slice_expiry: table.slice_expiry.unwrap_or(false),
        };
    }
    config.group_clock = match table.group_clock {
        Some(GroupClockName::Up) => GroupClock::PerCpu(WeightMode::Up),
        Some(GroupClockName::Smp) => GroupClock::PerCpu(WeightMode::Smp),
        Some(GroupClockName::Concur) => GroupClock::PerCpu(WeightMode::Concur),
        Some(GroupClockName::Foreign) | None => GroupClock::Foreign,
    };
    let times = [
        (&mut config.base_slice, table.base_slice),
        (&mut config.wakeup_granularity, table.wakeup_granularity),
        (&mut config.quantum, table.quantum),
    ];
    for (setting, given) in times {
        if let Some(Time(value)) = given {
            *setting = value;
        }
    }
    config.run_to_parity = table.run_to_parity.unwrap_or(config.run_to_parity);
    config.next_buddy = table.next_buddy.unwrap_or(config.next_buddy);
    config.last_buddy = table.last_buddy.unwrap_or(config.last_buddy);
    Settings {
        config,
        load_average: match table.load_average {
            Some(LoadAverageName::EveryTick) => LoadAverage::EveryTick,
            Some(LoadAverageName::Staggered) => LoadAverage::Staggered,
            Some(LoadAverageName::RateLimited) => LoadAverage::RateLimited,
            Some(LoadAverageName::Off) | None => LoadAverage::Off,
        },
        balance_every: table.balance_every.map(|Time(every)| every),
        throttling: match table.throttle {
            Some(ThrottleName::ExitToUser) => Throttling::ExitToUser,
            Some(ThrottleName::Exact) => Throttling::Exact,
            Some(ThrottleName::Queue) | None => Throttling::Queue,
        },
        check: false,
    }
}

fn costs(table: &CostTable) -> Costs {
    let of = |time: Option<Time>| time.map_or(Nanos::ZERO, |Time(time)| time);
    Costs {
        switch: of(table.switch),
        tick: of(table.tick),
        ipi_send: of(table.ipi_send),
        ipi_receive: of(table.ipi_receive),
        wake: of(table.wake),
        syscall: of(table.syscall),
        lock: of(table.lock),
        line_near: of(table.line_near),
        line_far: of(table.line_far),
        migrate_near: of(table.migrate_near),
        migrate_far: of(table.migrate_far),
        load_average: of(table.load_average),
        bandwidth_switch: of(table.bandwidth_switch),
        clock_read: of(table.clock_read),
        clock_read_running: of(table.clock_read_running),
        answer_delay: of(table.answer_delay),
        noise_every: of(table.noise_every),
        noise_length: of(table.noise_length),
    }
}

fn limit(
    quota: Option<Time>,
    period: Option<Time>,
    burst: Option<Time>,
    span: &Range<usize>,
) -> Result<Option<Limit>, Fault> {
    let Some(Time(quota)) = quota else {
        return match (period, burst) {
            (None, None) => Ok(None),
            _ => Err(Fault::at(
                span.clone(),
                "a period or burst without a quota".into(),
            )),
        };
    };
    let period = period.map_or(Limit::PERIOD_DEFAULT, |Time(period)| period);
    let burst = burst.map_or(Nanos::ZERO, |Time(burst)| burst);
    let limit = Limit::new(quota, period).with_burst(burst);
    // Whether the burst may exceed the quota depends on the rules; the plan's check knows them.
    limit
        .validate(false)
        .map_err(|error| Fault::at(span.clone(), error.to_string()))?;
    Ok(Some(limit))
}

fn weight_of(given: Option<u32>) -> Weight {
    // The range was checked while reading.
    given
        .and_then(|weight| Weight::new(weight).ok())
        .unwrap_or(Weight::DEFAULT)
}

fn checked_group(plan: &mut Plan, path: &Spanned<String>) -> Result<usize, Fault> {
    let fault = |what: String| Fault::at(path.span(), what);
    quotient_core::GroupTree::check_path(path.get_ref())
        .map_err(|error| fault(error.to_string()))?;
    match plan.group(path.get_ref()) {
        Some(index) => Ok(index as usize),
        None => Err(fault("the root has neither weight nor limit".into())),
    }
}

fn add_group(plan: &mut Plan, table: &GroupTable) -> Result<(), Fault> {
    let index = checked_group(plan, &table.path)?;
    let limit = limit(table.quota, table.period, table.burst, &table.path.span())?;
    let group = &mut plan.groups[index];
    group.weight = weight_of(table.weight);
    group.idle = table.idle;
    group.limit = limit.map(|limit| limit.with_smooth(table.smooth).with_soft(table.soft));
    Ok(())
}

fn add_change(plan: &mut Plan, table: &ChangeTable) -> Result<(), Fault> {
    let group = checked_group(plan, &table.group)? as u32;
    let limit = limit(table.quota, table.period, table.burst, &table.group.span())?;
    let mut actions = Vec::new();
    if let Some(weight) = table.weight {
        actions.push(Action::Weight(weight_of(Some(weight))));
    }
    if let Some(idle) = table.idle {
        actions.push(Action::Idle(idle));
    }
    if limit.is_some() || table.unlimited {
        actions.push(Action::Limit(limit));
    }
    if actions.is_empty() {
        return Err(Fault::at(table.group.span(), "a change of nothing".into()));
    }
    let at = table.at.0;
    plan.changes.extend(
        actions
            .into_iter()
            .map(|action| Change { at, group, action }),
    );
    Ok(())
}

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
        let kind = self.table.kind;
        self.optional(name, value)
            .ok_or_else(|| self.fault(format!("a workload of kind {kind:?} needs `{name}`")))
    }

    fn span(&mut self, name: &'static str, value: Option<SpanValue>) -> Result<Span, Fault> {
        self.needed(name, value).map(|SpanValue(span)| span)
    }

    fn fault(&self, what: String) -> Fault {
        let name = self.table.name.get_ref();
        Fault::at(self.table.name.span(), format!("workload {name}: {what}"))
    }

    fn finish(self) -> Result<(), Fault> {
        match self.unused.first() {
            None => Ok(()),
            Some(name) => Err(self.fault(format!(
                "a workload of kind {:?} has no use for `{name}`",
                self.table.kind
            ))),
        }
    }
}

fn add_workload(
    plan: &mut Plan,
    table: &WorkloadTable,
    files: &mut dyn Files,
) -> Result<(), Fault> {
    let Some(count) = table.groups else {
        return add_to_group(plan, table, table.name.get_ref(), &table.group, files);
    };
    let count = count.on(plan.machine.cpus());
    if count > GROUPS_MAX || table.group.is_empty() {
        let what = format!(
            "`groups` is {count} in group {:?}: up to {GROUPS_MAX}, below a group",
            table.group
        );
        return Err(Fault::at(table.name.span(), what));
    }
    for number in 0..count {
        let (name, path) = (
            format!("{}.{number}", table.name.get_ref()),
            format!("{}.{number}", table.group),
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
            if let Some(Time(begin)) = table.begin {
                task.begin = begin;
            }
            if table.cpu.is_some() {
                task.cpu = table.cpu;
            }
            if let Some(Time(slice)) = table.slice {
                let slice = Slice::new(slice)
                    .map_err(|error| Fault::at(table.name.span(), error.to_string()))?;
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
                gap: fields.span("gap", table.gap)?,
                parts: fields
                    .optional("parts", table.parts)
                    .map_or(1, |parts| parts.on(cpus)),
                begin: table.begin.map_or(Nanos::ZERO, |Time(begin)| begin),
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
            synthetic::periodic(plan, name, group, threads, work, period);
        }
        Kind::Pipe => {
            let (rounds, work) = (
                fields.needed("rounds", table.rounds)?,
                fields.span("work", table.work)?,
            );
            synthetic::pipe_test(plan, name, group, rounds, work, table.cpu);
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
