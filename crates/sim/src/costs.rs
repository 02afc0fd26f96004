//! What things cost: explicit, zero unless somebody says otherwise, each with its mechanism.

use crate::machine::Machine;
use quotient_core::Nanos;

/// Costs of the mechanisms of a machine. All zero by default: an ideal machine, on which every figure is exact.
///
/// A cost takes CPU time of whoever runs there, is charged to that task (as the kernel does without separate
/// accounting of interrupts), and counts as system time of its mechanism in the outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Switching to another task, paid by the one that comes.
    pub switch: Nanos,
    /// One tick, without what [`Costs::load_average`] adds.
    pub tick: Nanos,
    /// Sending an interrupt to another CPU, paid by the sender.
    pub ipi_send: Nanos,
    /// Being interrupted by another CPU: what a task that comes because of it pays, and what a busy CPU loses.
    pub ipi_receive: Nanos,
    /// Waking a task: choosing a CPU and queueing, paid by the waker.
    pub wake: Nanos,
    /// Entering and leaving the kernel, paid at each call that a task makes.
    pub syscall: Nanos,
    /// Taking and releasing a lock whose line is here.
    pub lock: Nanos,
    /// Getting a cache line from another core of the node.
    pub line_near: Nanos,
    /// Getting a cache line from another node at distance 20; grows with the distance.
    pub line_far: Nanos,
    /// Running on another CPU of the node than last: filling the caches again.
    pub migrate_near: Nanos,
    /// Running on another node than last.
    pub migrate_far: Nanos,
    /// Holding a group's shared line for the addition of an average, without getting it.
    pub load_average: Nanos,
    /// Computing the averages of one group at a tick, whether or not they are added to the shared line.
    pub average_local: Nanos,
    /// Bandwidth bookkeeping at each switch while some group has a limit (branch and accounting on the path).
    pub bandwidth_switch: Nanos,
    /// Reading one thread's clock without a lock, when its line is here.
    pub clock_read: Nanos,
    /// The same of a thread that runs on another CPU, which writes that line.
    pub clock_read_running: Nanos,
    /// Mean time that a busy CPU takes to answer an interrupt because it has them off; exponentially distributed.
    pub answer_delay: Nanos,
    /// Mean time between two disturbances of each CPU (interrupts, firmware); zero for none.
    pub noise_every: Nanos,
    /// Mean length of a disturbance.
    pub noise_length: Nanos,
}

impl Costs {
    /// What it takes to get a line from one CPU to another.
    pub fn line(&self, machine: &Machine, from: u32, to: u32) -> u64 {
        if from == to {
            return 0;
        }
        match machine.node_distance(from, to) {
            10 => self.line_near.0,
            distance => self.line_far.0 * u64::from(distance) / 20,
        }
    }

    /// What running on `to` after `from` costs in cold caches.
    #[inline]
    pub fn migration(&self, machine: &Machine, from: u32, to: u32) -> u64 {
        if machine.node_of(from) == machine.node_of(to) {
            self.migrate_near.0
        } else {
            self.migrate_far.0
        }
    }
}

/// A cache line that one CPU owns at a time: whoever comes while it travels waits in line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    free_at: u64,
    owner: u32,
}

impl Line {
    /// `cpu` gets the line at `now` and keeps it for `hold` ns. Returns how long that takes in all, ns.
    pub fn take(&mut self, costs: &Costs, machine: &Machine, cpu: u32, now: u64, hold: u64) -> u64 {
        let begin = self.free_at.max(now);
        self.free_at = begin + costs.line(machine, self.owner, cpu) + hold;
        self.owner = cpu;
        self.free_at - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_all_want_at_once_is_a_queue() {
        let machine = Machine::parse("2x2").unwrap();
        let costs = Costs {
            line_near: Nanos(50),
            line_far: Nanos(300),
            ..Costs::default()
        };
        let mut line = Line::default();
        let waits: Vec<u64> = (0..4)
            .map(|cpu| line.take(&costs, &machine, cpu, 1_000, 10))
            .collect();
        assert_eq!(waits, [10, 70, 380, 440]);
        assert_eq!(line.take(&costs, &machine, 3, 9_000, 10), 10);
    }
}
