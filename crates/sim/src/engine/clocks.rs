//! Mechanisms whose cost is the subject of a scenario: process clocks, and interrupting everybody.

use super::Simulation;
use super::state::{Life, NONE};
use crate::outcome::Mechanism;
use crate::program::ClockRead;
use quotient_trace::Sink;

impl<S: Sink> Simulation<S> {
    /// Reads the CPU clock of all live threads of the task's workload, one after another, as the kernel's loop does.
    pub(super) fn read_clock(&mut self, cpu: u32, task: u32, how: ClockRead) {
        self.call_now(cpu, task);
        let load = self.tasks[task as usize].workload;
        let threads = self.loads[load as usize].tasks.clone();
        let mut cost = 0;
        if how == ClockRead::OwnThread {
            let line = &mut self.cpus[cpu as usize].lock;
            cost += line.take(&self.costs, &self.machine, cpu, self.now, self.costs.lock.0);
        }
        for thread in threads {
            let entry = &self.tasks[thread as usize];
            if entry.life == Life::Over || entry.life == Life::Unborn {
                continue;
            }
            let home = entry.cpu;
            let runs = home != NONE && self.cpus[home as usize].current == thread;
            cost += match how {
                ClockRead::EveryThread if runs => {
                    let at = self.now + cost;
                    let line = &mut self.cpus[home as usize].lock;
                    line.take(&self.costs, &self.machine, cpu, at, self.costs.lock.0)
                }
                _ if runs && home != cpu => self.costs.clock_read_running.0,
                _ => self.costs.clock_read.0,
            };
        }
        self.owe(cpu, task, Mechanism::Clock, cost);
    }

    /// Interrupts all other CPUs and waits until the last has answered. Meanwhile `exposed` patched places are in
    /// everybody's way.
    pub(super) fn synchronize(&mut self, cpu: u32, task: u32, exposed: u32) {
        let (mut sending, mut slowest, mut busy) = (0, 0, 0u64);
        for other in 0..self.cpus.len() as u32 {
            if other == cpu || self.cpus[other as usize].offline {
                continue;
            }
            self.show_ipi(cpu, other);
            sending += self.costs.ipi_send.0;
            let mut answer = self.costs.ipi_receive.0;
            let interrupted = self.cpus[other as usize].current;
            if interrupted != NONE {
                busy += 1;
                answer += self.random.exponential(self.costs.answer_delay.0);
                self.spend(interrupted, Mechanism::Ipi, self.costs.ipi_receive.0);
                self.delay_work(other, self.costs.ipi_receive.0);
            }
            slowest = slowest.max(sending + answer);
        }
        self.mechanisms.synchronizations += 1;
        self.mechanisms.exposure_ns += u64::from(exposed) * busy * slowest;
        self.owe(cpu, task, Mechanism::Ipi, slowest);
    }
}
