//! From a scenario's tables to a plan.

use super::document::{
    BandwidthName, ChangeTable, CostTable, Document, GroupClockName, GroupTable, LoadAverageName,
    MachineTable, PickName, PolicyName, RealTimeTable, SchedulerTable, ThrottleName,
};
use super::values::Time;
use super::workload::{add_workload, often};
use super::{Fault, Files, cpusets, names};
use crate::costs::Costs;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::plan::{Action, Change, Hotplug, LoadAverage, Plan, RealTime, Settings, Throttling};
use crate::policy::Plugin;
use core::ops::Range;
use quotient_core::{
    BandwidthRules, GroupClock, Limit, Nanos, Policy, RatioRule, Weight, WeightMode,
};
use toml::Spanned;

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
            caches: other.caches,
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
    let kernel = document.scheduler.kernel.unwrap_or(Kernel::Ours);
    kernel.apply(&mut plan);
    if let Some(ticks) = document.machine.ticks {
        plan.machine.ticks = ticks.into();
    }
    plan.settings = settings(&document.scheduler, plan.settings);
    plan.settings.rt_throttling = rt_throttling(&document.scheduler)?;
    plan.costs = costs(&document.costs);
    for (index, group) in document.group.iter().enumerate() {
        names::check_new(&document.group[..index], group)?;
        add_group(&mut plan, group)?;
    }
    let known = names::Known::of(&plan);
    let mut parts = Vec::with_capacity(document.workload.len());
    for workload in &document.workload {
        let first = plan.workloads.len();
        if workload.groups.is_none() {
            known.check(workload.group.as_ref())?;
        }
        names::check_cpu(&plan, workload.cpu.as_ref())?;
        add_workload(&mut plan, workload, files)?;
        parts.push(first..plan.workloads.len());
    }
    cpusets::keep(&mut plan, document, &parts)?;
    // A change may be of what workloads brought with them.
    let known = names::Known::of(&plan);
    for change in &document.change {
        known.check_change(&change.group)?;
        add_change(&mut plan, change)?;
    }
    for load in &document.realtime {
        add_real_time(&mut plan, load)?;
    }
    for event in &document.hotplug {
        names::check_cpu(&plan, Some(&event.cpu))?;
        plan.hotplug.push(Hotplug {
            at: event.at.0,
            cpu: *event.cpu.get_ref(),
            online: event.online,
        });
    }
    plan.validate()
        .map_err(|error| Fault::plain(error.to_string()))?;
    Ok(plan)
}

fn own_machine(table: &MachineTable) -> Result<Machine, Fault> {
    let parsed = Machine::parse(table.shape.get_ref())
        .map_err(|error| Fault::at(table.shape.span(), format!("impossible machine: {error}")))?;
    Ok(Machine {
        caches: table.caches.unwrap_or(parsed.caches),
        hz: table.hz.unwrap_or(parsed.hz),
        tick_skew: table.tick_skew.unwrap_or(parsed.tick_skew),
        smt_speed: table.smt_speed.unwrap_or(parsed.smt_speed),
        distances: table.distances.clone(),
        ..parsed
    })
}

/// What the table says, over what a kernel's rules say.
fn settings(table: &SchedulerTable, preset: Settings) -> Settings {
    let mut config = preset.config;
    config.policy = match table.pick {
        Some(PickName::Cfs) => Policy::Cfs,
        Some(PickName::Eevdf) => Policy::Eevdf,
        None => config.policy,
    };
    config.bandwidth = match table.bandwidth {
        Some(BandwidthName::Kernel) => BandwidthRules::Kernel {
            ratio: RatioRule::V2,
            slice_expiry: table.slice_expiry.unwrap_or(false),
        },
        Some(BandwidthName::Default) => BandwidthRules::Default,
        None => config.bandwidth,
    };
    config.group_clock = match table.group_clock {
        Some(GroupClockName::Up) => GroupClock::PerCpu(WeightMode::Up),
        Some(GroupClockName::Smp) => GroupClock::PerCpu(WeightMode::Smp),
        Some(GroupClockName::Concur) => GroupClock::PerCpu(WeightMode::Concur),
        Some(GroupClockName::Foreign) => GroupClock::Foreign,
        None => config.group_clock,
    };
    let times = [
        (&mut config.base_slice, table.base_slice),
        (&mut config.wakeup_granularity, table.wakeup_granularity),
        (&mut config.quantum, table.quantum),
        (&mut config.bandwidth_slice, table.bandwidth_slice),
    ];
    for (setting, given) in times {
        if let Some(Time(value)) = given {
            *setting = value;
        }
    }
    config.run_to_parity = table.run_to_parity.unwrap_or(config.run_to_parity);
    config.debts_fade = table.debts_fade.unwrap_or(config.debts_fade);
    config.moves_keep_requests = table
        .moves_keep_requests
        .unwrap_or(config.moves_keep_requests);
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
            Some(ThrottleName::Queue) => Throttling::Queue,
            None => preset.throttling,
        },
        plugin: match table.policy {
            Some(PolicyName::WeightedRoundRobin) => Some(Plugin::WEIGHTED_ROUND_ROBIN),
            Some(PolicyName::Core) | None => None,
        },
        ..preset
    }
}

/// A runtime without a period is one of a second, as the kernel has it.
fn rt_throttling(table: &SchedulerTable) -> Result<Option<(Nanos, Nanos)>, Fault> {
    let period = table.rt_period.map(|Time(period)| period);
    match (table.rt_runtime, period) {
        (Some(Time(runtime)), period) => Ok(Some((runtime, period.unwrap_or(Nanos::from_secs(1))))),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Fault::plain("rt_period without rt_runtime".into())),
    }
}

fn add_real_time(plan: &mut Plan, table: &RealTimeTable) -> Result<(), Fault> {
    let fault = |what: String| Fault::at(table.name.span(), what);
    let name = table.name.get_ref();
    if plan.real_time.iter().any(|known| known.name == *name) {
        return Err(fault(format!("a second [[realtime]] {name:?}")));
    }
    let cpus = plan.machine.cpus();
    let cpus = match &table.cpus {
        Some(given) => cpusets::read(given, cpus)?.into_iter().collect(),
        None => (0..cpus).collect(),
    };
    let (work, period) = (table.work.0, table.period.0);
    often("period", period).map_err(|what| fault(format!("[[realtime]] {name:?}: {what}")))?;
    plan.real_time.push(RealTime {
        name: name.clone(),
        cpus,
        begin: table.begin.map_or(Nanos::ZERO, |Time(begin)| begin),
        period,
        work,
        times: Vec::new(),
        works: Vec::new(),
    });
    Ok(())
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
        average_local: of(table.average_local),
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

pub(super) fn weight_of(given: Option<u32>) -> Weight {
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
