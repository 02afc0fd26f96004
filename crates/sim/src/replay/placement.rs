//! How well the recorded kernel saw idle CPUs, counted from what it did.
//!
//! Two moments show it: a wake-up whose own CPU is busy while another one idles, and a CPU that falls idle while a task waits on
//! another. By the rules of the kernel both end on the idle CPU. On a virtual machine most do not: a kernel that takes a halted virtual
//! CPU for one that its host has preempted looks past it, and one whose searches found nothing before hardly searches at all. Who waits
//! behind whom then follows from the machine, not from the release, so it is taken from the recording.
//!
//! Only what is certain counts. A CPU is busy when a switch to its task was seen and none since. Some kernels leave switches from idle
//! out of their traces (see [`Repair`](quotient_trace::Repair)), so that a CPU was idle is certain only when what it does next is known.

use crate::plan::Notice;
use quotient_core::{CpuId, Nanos};
use quotient_trace::{Event, Kind, TaskId};
use serde::Serialize;
use std::collections::BTreeMap;

/// Moments that are taken to have gone by the rules before any were seen, so that few say little. Default 2.
const BY_RULE: u64 = 2;
/// Who ran this short a time ago is left to its caches by rule: ns, the kernel's `migration_cost_ns`.
const HOT: u64 = 500_000;
/// What a CPU that falls idle takes comes within this time, ns. Origin: switches here take some microseconds.
const AT_ONCE: u64 = 100_000;

/// So many of so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    /// How many did.
    pub did: u64,
    /// How many could have.
    pub of: u64,
}

impl Part {
    fn note(&mut self, did: bool) {
        self.did += u64::from(did);
        self.of += 1;
    }

    /// In thousandths; all of them where nothing was seen.
    fn permille(self) -> u16 {
        let part = (self.did + BY_RULE) * 1_000 / (self.of + BY_RULE);
        u16::try_from(part).unwrap_or(1_000)
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Wake-ups that found their CPU busy and another one idle: those that went there.
    pub woken: Part,
    /// CPUs that fell idle while a task waited elsewhere: those that took it.
    pub fell_idle: Part,
}

impl Placement {
    /// The setting that plays it.
    pub fn notice(&self) -> Notice {
        Notice {
            woken_permille: self.woken.permille(),
            fell_idle_permille: self.fell_idle.permille(),
        }
    }
}

/// What runs on a CPU that was seen switching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Idle { since: u64 },
    Task(TaskId),
}

/// A wake-up to a busy CPU beside idle ones, until it is known whether these were.
#[derive(Debug)]
struct Pending {
    task: TaskId,
    at: u64,
    idle: CpuId,
    moved: bool,
    /// Other events since: a migration of the choice follows at once.
    age: u32,
}

/// A task that waits on a CPU that is surely busy.
#[derive(Clone, Copy, Debug)]
struct Waits {
    on: CpuId,
    since: u64,
    was_preempted: bool,
}

impl Waits {
    /// Whether no rule leaves it to its caches.
    fn is_cold(&self, now: u64) -> bool {
        !self.was_preempted || now.saturating_sub(self.since) >= HOT
    }
}

/// A task that waited and is on its way to another CPU.
#[derive(Clone, Copy, Debug)]
struct Pulled {
    task: TaskId,
    to: CpuId,
    at: u64,
}

/// Counts as events pass.
#[derive(Debug, Default)]
pub(super) struct Watch {
    cpus: BTreeMap<CpuId, Runs>,
    /// Where each task ran last.
    ran_on: BTreeMap<TaskId, CpuId>,
    waiting: BTreeMap<TaskId, Waits>,
    /// Whether wake-ups are told before their CPU is chosen.
    is_kernels: bool,
    pending: Vec<Pending>,
    pulled: Option<Pulled>,
    pub(super) found: Placement,
}

impl Watch {
    /// An event, also one that was filled in.
    pub(super) fn event(&mut self, event: &Event) {
        let Event { time, cpu, kind } = *event;
        if let Kind::Waking { waker, .. } | Kind::Wakeup { waker, .. } = kind {
            self.acts(cpu, waker.is_idle(), time.0);
        }
        match kind {
            Kind::Waking { task, target, .. } => {
                self.is_kernels = true;
                self.waking(task, target, time);
            }
            // The kernel's comes after the other one and says nothing new; Quotient's own traces have this one only.
            Kind::Wakeup { task, target, .. } if !self.is_kernels => {
                self.woken(task, target, time);
            }
            Kind::Migrate { task, to, .. } => self.migrates(task, to, time.0),
            Kind::Switch { prev, state, next } => {
                self.acts(cpu, prev.is_idle(), time.0);
                self.switches(cpu, (prev, state.is_runnable()), next, time.0);
            }
            Kind::Lost { .. } => {
                *self = Watch {
                    found: self.found,
                    is_kernels: self.is_kernels,
                    ..Watch::default()
                }
            }
            _ => {}
        }
        for pending in &mut self.pending {
            pending.age += 1;
        }
    }

    fn waking(&mut self, task: TaskId, target: CpuId, time: Nanos) {
        let is_busy = matches!(self.cpus.get(&target), Some(Runs::Task(who)) if *who != task);
        self.waiting.remove(&task);
        if !is_busy {
            return;
        }
        self.waiting.insert(
            task,
            Waits {
                on: target,
                since: time.0,
                was_preempted: false,
            },
        );
        // The one that is idle for longest: the others say the same of a machine, and one moment counts once.
        let idle = self.cpus.iter().filter_map(|(cpu, runs)| match runs {
            Runs::Idle { since } => Some((*since, *cpu)),
            Runs::Task(_) => None,
        });
        if let Some((_, idle)) = idle.min() {
            self.pending.push(Pending {
                task,
                at: time.0,
                idle,
                moved: false,
                age: 0,
            });
        }
    }

    /// The choice is made, from where the task ran last.
    fn woken(&mut self, task: TaskId, target: CpuId, time: Nanos) {
        let Some(&home) = self.ran_on.get(&task) else {
            return;
        };
        self.waking(task, home, time);
        if home != target {
            self.migrates(task, target, time.0);
        }
    }

    fn migrates(&mut self, task: TaskId, to: CpuId, at: u64) {
        if let Some(pending) = self.pending.iter_mut().find(|one| one.task == task)
            && pending.age <= 1
        {
            pending.moved = true;
        }
        // Where it goes may be idle, and then it does not wait.
        if let Some(waits) = self.waiting.remove(&task)
            && waits.is_cold(at)
        {
            self.pulled = Some(Pulled { task, to, at });
        }
    }

    /// What a CPU does shows whether it was idle until now.
    fn acts(&mut self, cpu: CpuId, from_idle: bool, now: u64) {
        let found = &mut self.found;
        self.pending.retain(|pending| {
            if pending.idle != cpu {
                return true;
            }
            // A switch that was filled in has the time at which it must have been.
            if from_idle && now >= pending.at {
                found.woken.note(pending.moved);
            }
            false
        });
    }

    fn switches(&mut self, cpu: CpuId, (prev, stays): (TaskId, bool), next: TaskId, now: u64) {
        self.waiting.remove(&next);
        if !next.is_idle() {
            self.ran_on.insert(next, cpu);
        }
        let runs = if next.is_idle() {
            Runs::Idle { since: now }
        } else {
            Runs::Task(next)
        };
        self.cpus.insert(cpu, runs);
        if stays && !prev.is_idle() && !next.is_idle() {
            let waits = Waits {
                on: cpu,
                since: now,
                was_preempted: true,
            };
            self.waiting.insert(prev, waits);
        } else {
            self.waiting.remove(&prev);
        }
        if stays {
            return;
        }
        // A CPU that falls idle looks before it does: what it takes follows who left at once.
        if next.is_idle() {
            // Nothing waits here any more.
            self.waiting.retain(|_, waits| waits.on != cpu);
            if self.waiting.values().any(|waits| waits.is_cold(now)) {
                self.found.fell_idle.note(false);
            }
        } else if let Some(pulled) = self.pulled.take_if(|pulled| pulled.to == cpu) {
            let is_it = pulled.task == next && now.saturating_sub(pulled.at) <= AT_ONCE;
            if is_it && !prev.is_idle() {
                self.found.fell_idle.note(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kernel, Machine, Plan, Simulation, Span, synthetic};
    use quotient_trace::{Item, Reader};

    /// Four clients on two CPUs whose scheduler sees idle ones now and then.
    fn recorded(notice: Notice) -> Placement {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = Nanos::from_secs(20);
        Kernel::Linux6_18.apply(&mut plan);
        plan.settings.notice = notice;
        let (low, high) = (Nanos::from_millis(1), Nanos::from_millis(9));
        let work = Span::Uniform {
            low,
            high: Nanos::from_millis(4),
        };
        synthetic::closed_loop(&mut plan, "app", None, 4, work, Span::Uniform { low, high });
        let sink = quotient_trace::Ftrace::new(Vec::new());
        let mut simulation = Simulation::new(&plan, sink).unwrap();
        simulation.run().unwrap();
        let text = simulation.into_sink().finish().unwrap();
        let mut input = text.as_slice();
        let mut reader = Reader::open(&mut input).unwrap();
        let mut watch = Watch::default();
        while let Some(item) = reader.next_item().unwrap() {
            if let Item::Event(event) = item {
                watch.event(&event);
            }
        }
        watch.found
    }

    #[test]
    fn what_was_played_is_counted() {
        for (woken_permille, fell_idle_permille) in [(1_000, 1_000), (300, 500), (0, 0)] {
            let notice = Notice {
                woken_permille,
                fell_idle_permille,
            };
            let found = recorded(notice);
            let near = |part: u16, wanted: u16| part.abs_diff(wanted) <= 80;
            assert!(
                near(found.notice().woken_permille, woken_permille)
                    && near(found.notice().fell_idle_permille, fell_idle_permille),
                "{notice:?}: {found:?}"
            );
            assert!(found.woken.of >= 100, "{notice:?}: {found:?}");
        }
    }

    #[test]
    fn few_moments_say_little() {
        let permille = |did, of| Part { did, of }.permille();
        assert_eq!((permille(0, 0), permille(0, 2)), (1_000, 500));
        assert_eq!((permille(0, 98), permille(98, 98)), (20, 1_000));
    }
}
