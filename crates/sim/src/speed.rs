//! The plans by which the simulator's speed is judged.

use crate::machine::Machine;
use crate::plan::Plan;
use crate::random::Span;
use crate::synthetic;
use quotient_core::{Limit, Nanos, Weight};

/// CPUs and tasks of the row of [`heavy`].
pub const HEAVY: (u32, u32) = (64, 1_280);

/// CPUs and tasks of each row of [`plan`].
pub const SIZES: [(u32, u32); 4] = [(2, 40), (8, 160), (64, 1_280), (512, 10_000)];

/// Tenants of the machine.
const GROUPS: u32 = 8;

/// A machine of nodes of up to 16 cores, shared by eight groups of different weights. Nine tasks in ten serve requests
/// in a closed loop (50 us of work, exponential), one in ten computes all the time; the machine is a little
/// overloaded, so that every wake-up has to compete. `scale` stretches the simulated time: one second, longer on less than
/// 64 CPUs for as many events. Shorter on more, it would show how tasks start.
pub fn plan(cpus: u32, tasks: u32, scale: f64) -> Plan {
    let nodes = cpus.div_ceil(16);
    let mut plan = Plan::new(Machine {
        nodes,
        cores: cpus / nodes,
        ..Machine::flat(1)
    });
    let work = 50_000;
    // So many tasks a CPU, each busy for `work` out of `work + think`, make three quarters of a load.
    let think = u64::from(tasks) * work * 9 / 10 * 4 / 3 / u64::from(cpus);
    for number in 0..GROUPS {
        let name = format!("tenant{number}");
        let group = plan.group(&name);
        if let (Some(last), Ok(weight)) = (plan.groups.last_mut(), Weight::new(50 + 50 * number)) {
            last.weight = weight;
        }
        let share = tasks / GROUPS;
        let hogs = share / 10;
        let (work, think) = (
            Span::Exponential { mean: Nanos(work) },
            Span::Exponential { mean: Nanos(think) },
        );
        synthetic::closed_loop(&mut plan, &name, group, share - hogs, work, think);
        synthetic::spinners(&mut plan, &format!("{name}.batch"), group, hogs);
    }
    let seconds = scale * (64.0 / f64::from(cpus)).max(1.0);
    plan.duration = Nanos((seconds * 1e9) as u64);
    plan
}

/// The same machines with what makes deciding dear: eight tenants of three levels with two services each, every other tenant under a
/// quota of an eighth of the machine and one service in four under a limit of its own, requests in a closed loop, and a hog for each CPU.
pub fn heavy(cpus: u32, tasks: u32, scale: f64) -> Plan {
    let mut plan = self::plan(cpus, 0, scale);
    plan.groups.clear();
    plan.workloads.clear();
    plan.programs.clear();
    plan.meters.clear();
    let services = 2 * GROUPS;
    let hogs = (cpus / services).max(1);
    let mut groups = Vec::new();
    for number in 0..GROUPS {
        let tenant = format!("tenant{number}");
        plan.group(&tenant);
        let at = plan.groups.len() - 1;
        if let Ok(weight) = Weight::new(50 + 50 * number) {
            plan.groups[at].weight = weight;
        }
        if number % 2 == 0 {
            let quota = Limit::PERIOD_DEFAULT.0 * u64::from(cpus) / 8;
            plan.groups[at].limit = Some(Limit::new(Nanos(quota), Limit::PERIOD_DEFAULT));
        }
        for service in ["api", "jobs"] {
            let path = format!("{tenant}/{service}/pool");
            let group = plan.group(&path);
            groups.push((path, group));
        }
        if number % 2 == 1 {
            let quota = Limit::PERIOD_DEFAULT.0 * u64::from(cpus) / 16;
            if let Some(pool) = plan.groups.last_mut() {
                pool.limit = Some(Limit::new(Nanos(quota), Limit::PERIOD_DEFAULT));
            }
        }
    }
    for (path, group) in groups {
        let each = tasks / services;
        let think = u64::from(tasks) * 50_000 * 4 / 3 / u64::from(cpus);
        let (work, think) = (
            Span::Exponential {
                mean: Nanos(50_000),
            },
            Span::Exponential { mean: Nanos(think) },
        );
        let serving = each.saturating_sub(hogs).max(1);
        synthetic::closed_loop(&mut plan, &path, group, serving, work, think);
        synthetic::spinners(&mut plan, &format!("{path}.hogs"), group, hogs);
    }
    plan
}
