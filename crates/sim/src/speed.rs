//! The plans by which the simulator's speed is judged.

use crate::machine::Machine;
use crate::plan::Plan;
use crate::random::Span;
use crate::synthetic;
use quotient_core::{Nanos, Weight};

/// CPUs and tasks of each row.
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
