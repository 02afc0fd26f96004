//! From a scenario's tables to a plan.

use super::document::{
    BandwidthName, ChangeTable, CostTable, Document, GroupClockName, GroupTable, LoadAverageName,
    MachineTable, PickName, PolicyName, RealTimeTable, SchedulerTable, ThrottleName,
};
use super::values::{Time, of, time_of};
use super::workload::{add_workload, often};
use super::{Fault, Files, cpusets, names};
use crate::costs::Costs;
use crate::kernel::Kernel;
use crate::machine::{Machine, MachineError};
use crate::plan::{Action, Change, Hotplug, LoadAverage, Plan, RealTime, Settings, Throttling};
use crate::policy::Plugin;
use quotient_core::{
    BandwidthRules, ConfigError, GroupClock, Limit, LimitError, Nanos, Policy, RatioRule, Weight,
    WeightMode,
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
    own.validate()
        .map_err(|error| impossible(&document.machine, &error))?;
    let mut plan = Plan::new(own);
    plan.seed = seed.unwrap_or(document.seed);
    plan.duration = document.duration.0;
    let kernel = document.scheduler.kernel.unwrap_or(Kernel::Ours);
    kernel.apply(&mut plan);
    if let Some(ticks) = document.machine.ticks {
        plan.machine.ticks = ticks.into();
    }
    plan.settings = settings(&document.scheduler, plan.settings)?;
    plan.settings.rt_throttling = rt_throttling(&document.scheduler)?;
    plan.costs = costs(&document.costs, plan.machine.tick_length())?;
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
            at: event.at.get_ref().0,
            cpu: *event.cpu.get_ref(),
            online: *event.online.get_ref(),
        });
    }
    check_hotplug(document, plan.machine.cpus())?;
    plan.validate()
        .map_err(|error| Fault::plain(error.to_string()))?;
    Ok(plan)
}

fn own_machine(table: &MachineTable) -> Result<Machine, Fault> {
    let parsed = Machine::parse(table.shape.get_ref())
        .map_err(|error| Fault::at(table.shape.span(), format!("impossible machine: {error}")))?;
    Ok(Machine {
        caches: of(table.caches.as_ref()).unwrap_or(parsed.caches),
        hz: of(table.hz.as_ref()).unwrap_or(parsed.hz),
        tick_skew: table.tick_skew.unwrap_or(parsed.tick_skew),
        smt_speed: of(table.smt_speed.as_ref()).unwrap_or(parsed.smt_speed),
        distances: table
            .distances
            .as_ref()
            .map(|distances| distances.get_ref().clone())
            .unwrap_or_default(),
        ..parsed
    })
}

/// A machine that cannot be, at the field that says so.
fn impossible(table: &MachineTable, error: &MachineError) -> Fault {
    let span = match error.field {
        "hz" => table.hz.as_ref().map(Spanned::span),
        "caches" => table.caches.as_ref().map(Spanned::span),
        "smt_speed" => table.smt_speed.as_ref().map(Spanned::span),
        "distances" => table.distances.as_ref().map(Spanned::span),
        _ => None,
    };
    let span = span.unwrap_or_else(|| table.shape.span());
    Fault::at(span, format!("impossible machine: {error}"))
}

/// What the table says, over what a kernel's rules say.
fn settings(table: &SchedulerTable, preset: Settings) -> Result<Settings, Fault> {
    let mut config = preset.config;
    config.policy = match table.pick {
        Some(PickName::Cfs) => Policy::Cfs,
        Some(PickName::Eevdf) => Policy::Eevdf,
        None => config.policy,
    };
    config.bandwidth = match table.bandwidth {
        Some(BandwidthName::Kernel) => BandwidthRules::Kernel {
            ratio: RatioRule::V2,
            slice_expiry: false,
        },
        Some(BandwidthName::Default) => BandwidthRules::Default,
        None => config.bandwidth,
    };
    if let BandwidthRules::Kernel { slice_expiry, .. } = &mut config.bandwidth {
        *slice_expiry = of(table.slice_expiry.as_ref()).unwrap_or(*slice_expiry);
    }
    config.group_clock = match table.group_clock {
        Some(GroupClockName::Up) => GroupClock::PerCpu(WeightMode::Up),
        Some(GroupClockName::Smp) => GroupClock::PerCpu(WeightMode::Smp),
        Some(GroupClockName::Concur) => GroupClock::PerCpu(WeightMode::Concur),
        Some(GroupClockName::Foreign) => GroupClock::Foreign,
        None => config.group_clock,
    };
    let times = [
        (&mut config.base_slice, &table.base_slice),
        (&mut config.wakeup_granularity, &table.wakeup_granularity),
        (&mut config.quantum, &table.quantum),
        (&mut config.bandwidth_slice, &table.bandwidth_slice),
    ];
    for (setting, given) in times {
        *setting = time_of(given.as_ref()).unwrap_or(*setting);
    }
    config
        .validate()
        .map_err(|error| out_of_range(table, &error))?;
    if let Some(every) = &table.balance_every
        && every.get_ref().0 == Nanos::ZERO
    {
        let (value, least) = (Nanos::ZERO, Nanos(1));
        let what = format!("balance_every = {value} is too little: {least} or more");
        return Err(Fault::at(every.span(), what));
    }
    config.run_to_parity = table.run_to_parity.unwrap_or(config.run_to_parity);
    config.debts_fade = table.debts_fade.unwrap_or(config.debts_fade);
    config.moves_keep_requests = table
        .moves_keep_requests
        .unwrap_or(config.moves_keep_requests);
    config.next_buddy = table.next_buddy.unwrap_or(config.next_buddy);
    config.last_buddy = of(table.last_buddy.as_ref()).unwrap_or(config.last_buddy);
    Ok(Settings {
        config,
        load_average: match table.load_average {
            Some(LoadAverageName::EveryTick) => LoadAverage::EveryTick,
            Some(LoadAverageName::Staggered) => LoadAverage::Staggered,
            Some(LoadAverageName::RateLimited) => LoadAverage::RateLimited,
            Some(LoadAverageName::Off) | None => LoadAverage::Off,
        },
        balance_every: time_of(table.balance_every.as_ref()),
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
    })
}

/// A setting of the core's that is out of range, at the field that says so.
fn out_of_range(table: &SchedulerTable, error: &ConfigError) -> Fault {
    let fields = [
        ("base_slice", &table.base_slice),
        ("wakeup_granularity", &table.wakeup_granularity),
        ("quantum", &table.quantum),
        ("bandwidth_slice", &table.bandwidth_slice),
    ];
    let given = fields.into_iter().find(|(field, _)| *field == error.field);
    match given {
        Some((field, Some(given))) => {
            let (value, min, max) = (Nanos(error.value), Nanos(error.min), Nanos(error.max));
            let what = format!("{field} = {value} is outside {min}..={max}");
            Fault::at(given.span(), what)
        }
        _ => Fault::plain(error.to_string()),
    }
}

/// A runtime without a period is one of a second, as the kernel has it.
fn rt_throttling(table: &SchedulerTable) -> Result<Option<(Nanos, Nanos)>, Fault> {
    let second = Nanos::from_secs(1);
    let period = match &table.rt_period {
        None => second,
        Some(given) => {
            let Time(period) = *given.get_ref();
            if table.rt_runtime.is_none() {
                return Err(Fault::at(
                    given.span(),
                    "rt_period without rt_runtime".into(),
                ));
            }
            if period == Nanos::ZERO || period > second {
                let what = format!("rt_period = {period} is outside {}..={second}", Nanos(1));
                return Err(Fault::at(given.span(), what));
            }
            period
        }
    };
    let Some(given) = &table.rt_runtime else {
        return Ok(None);
    };
    let Time(runtime) = *given.get_ref();
    if runtime > period {
        let what = format!(
            "rt_runtime = {runtime} is outside {}..={period}, the rt_period",
            Nanos::ZERO
        );
        return Err(Fault::at(given.span(), what));
    }
    Ok(Some((runtime, period)))
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
    let (work, period) = (table.work.get_ref().0, table.period.0);
    often("period", period).map_err(|what| fault(format!("[[realtime]] {name:?}: {what}")))?;
    // As much as the period is a thread that keeps the CPU. More would never be caught up with.
    let (mean, most) = (work.mean(), period.mean());
    if mean > most {
        let what = format!(
            "[[realtime]] {name:?}: work = {mean} on average is outside {}..={most}, the period",
            Nanos::ZERO
        );
        return Err(Fault::at(table.work.span(), what));
    }
    plan.real_time.push(RealTime {
        name: name.clone(),
        cpus,
        begin: time_of(table.begin.as_ref()).unwrap_or(Nanos::ZERO),
        period,
        work,
        times: Vec::new(),
        works: Vec::new(),
    });
    Ok(())
}

/// A CPU may come and go in turns only. What the file says counts, though the last CPU stays.
fn check_hotplug(document: &Document, cpus: u32) -> Result<(), Fault> {
    let mut events: Vec<_> = document.hotplug.iter().collect();
    events.sort_by_key(|event| event.at.get_ref().0);
    let mut is_online = vec![true; cpus as usize];
    for event in events {
        let (cpu, online) = (*event.cpu.get_ref(), *event.online.get_ref());
        let Some(known) = is_online.get_mut(cpu as usize) else {
            continue;
        };
        if *known == online {
            let state = if online { "online" } else { "offline" };
            let at = event.at.get_ref().0;
            let what = format!(
                "online = {online} of cpu {cpu} at {at}: it is {state} then, so that only {} is allowed",
                !online
            );
            return Err(Fault::at(event.online.span(), what));
        }
        *known = online;
    }
    Ok(())
}

fn costs(table: &CostTable, tick_length: u64) -> Result<Costs, Fault> {
    let of = |time: Option<Time>| time.map_or(Nanos::ZERO, |Time(time)| time);
    if let Some(given) = &table.tick
        && given.get_ref().0.0 >= tick_length
    {
        let (value, most) = (given.get_ref().0, Nanos(tick_length - 1));
        let what = format!(
            "tick = {value} is outside {}..={most}: the next one comes after {}",
            Nanos::ZERO,
            Nanos(tick_length)
        );
        return Err(Fault::at(given.span(), what));
    }
    Ok(Costs {
        switch: of(table.switch),
        tick: time_of(table.tick.as_ref()).unwrap_or(Nanos::ZERO),
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
    })
}

fn limit(
    quota: &Option<Spanned<Time>>,
    period: &Option<Spanned<Time>>,
    burst: &Option<Spanned<Time>>,
    rules: BandwidthRules,
) -> Result<Option<Limit>, Fault> {
    let Some(given) = quota else {
        return match period.as_ref().or(burst.as_ref()) {
            None => Ok(None),
            Some(given) => Err(Fault::at(
                given.span(),
                "a period or burst without a quota".into(),
            )),
        };
    };
    let Time(amount) = *given.get_ref();
    let time = time_of(period.as_ref()).unwrap_or(Limit::PERIOD_DEFAULT);
    let limit = Limit::new(amount, time).with_burst(time_of(burst.as_ref()).unwrap_or(Nanos::ZERO));
    let by_kernel = rules != BandwidthRules::Default;
    limit.validate(by_kernel).map_err(|error| {
        let field = match &error {
            LimitError::OutOfRange { field, .. } => *field,
            _ => "quota",
        };
        let place = match field {
            "period" => period.as_ref(),
            "burst" => burst.as_ref(),
            _ => None,
        };
        Fault::at(place.unwrap_or(given).span(), error.to_string())
    })?;
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
    let rules = plan.settings.config.bandwidth;
    let limit = limit(&table.quota, &table.period, &table.burst, rules)?;
    let group = &mut plan.groups[index];
    group.weight = weight_of(table.weight);
    group.idle = table.idle;
    group.limit = limit.map(|limit| limit.with_smooth(table.smooth).with_soft(table.soft));
    Ok(())
}

fn add_change(plan: &mut Plan, table: &ChangeTable) -> Result<(), Fault> {
    let group = checked_group(plan, &table.group)? as u32;
    let rules = plan.settings.config.bandwidth;
    let limit = limit(&table.quota, &table.period, &table.burst, rules)?;
    let unlimited = table.unlimited.as_ref().filter(|given| *given.get_ref());
    if let (Some(given), Some(limit)) = (unlimited, limit) {
        let what = format!(
            "unlimited = true beside quota = {}: only false is allowed there",
            limit.quota
        );
        return Err(Fault::at(given.span(), what));
    }
    let mut actions = Vec::new();
    if let Some(weight) = table.weight {
        actions.push(Action::Weight(weight_of(Some(weight))));
    }
    if let Some(idle) = table.idle {
        actions.push(Action::Idle(idle));
    }
    if limit.is_some() || unlimited.is_some() {
        actions.push(Action::Limit(limit));
    }
    if actions.is_empty() {
        return Err(Fault::at(table.group.span(), "a change of nothing".into()));
    }
    let at = table.at.get_ref().0;
    plan.changes.extend(
        actions
            .into_iter()
            .map(|action| Change { at, group, action }),
    );
    Ok(())
}
