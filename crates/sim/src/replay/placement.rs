//! How well the recorded kernel saw idle CPUs, counted from what it did.
//!
//! Three moments show it: a wake-up whose own CPU is busy while another one idles, a CPU that falls idle while a task waits on
//! another, and a wake-up by a task elsewhere whose own CPU idles. By the rules of the kernel all end on the idle CPU. On a virtual machine
//! most do not: a kernel that takes a halted virtual CPU for one that its host has preempted looks past it, and one whose searches found
//! nothing before hardly searches at all; a task goes to its waker's CPU then, even if its own is free, unless somebody waits there. Who waits
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

    /// The same of what no rule has: none where nothing was seen.
    fn permille_against_rule(self) -> u16 {
        let part = self.did * 1_000 / (self.of + BY_RULE);
        u16::try_from(part).unwrap_or(1_000)
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Wake-ups that found their CPU busy, nobody waiting there, and another one idle: those that went there.
    pub woken: Part,
    /// The same where somebody waited there already.
    pub crowded: Part,
    /// CPUs that fell idle while a task waited elsewhere: those that took it.
    pub fell_idle: Part,
    /// Wake-ups by a task that ran alone on another CPU while their own idled: those that went to the waker's.
    pub drawn: Part,
    /// The same where somebody waited beside the waker already.
    pub drawn_crowded: Part,
}

impl Placement {
    /// The setting that plays it.
    pub fn notice(&self) -> Notice {
        Notice {
            woken_permille: self.woken.permille(),
            crowded_permille: self.crowded.permille(),
            fell_idle_permille: self.fell_idle.permille(),
            drawn_permille: self.drawn.permille_against_rule(),
            drawn_crowded_permille: self.drawn_crowded.permille_against_rule(),
        }
    }
}

/// What runs on a CPU that was seen switching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Idle { since: u64 },
    Task(TaskId),
}

/// A wake-up beside idle CPUs, until it is known whether these were.
#[derive(Debug)]
struct Pending {
    task: TaskId,
    at: u64,
    /// The one that is to be looked at: another one where its own is busy, else its own.
    idle: CpuId,
    asks: Asks,
    moved: bool,
    /// Other events since: a migration of the choice follows at once.
    age: u32,
}

/// What a wake-up tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    /// Its own CPU is busy: whether it goes to the idle one.
    Alone,
    /// The same, and somebody waits there already.
    Crowded,
    /// Its own CPU idles: whether it goes to this one, its waker's, where somebody waits already or not.
    Drawn { waker: CpuId, is_crowded: bool },
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
    /// Whether the trace has migrations: without them, only where a task runs next says where it went.
    has_migrations: bool,
    pub(super) found: Placement,
}

impl Watch {
    /// An event, also one that was filled in.
    pub(super) fn event(&mut self, event: &Event) {
        let Event { time, cpu, kind } = *event;
        // Where a task, and not a timer, wakes another one.
        let mut by = None;
        if let Kind::Waking { waker, .. } | Kind::Wakeup { waker, .. } = kind {
            self.acts(cpu, waker.is_idle(), None, time.0);
            by = (!waker.is_idle()).then_some(cpu);
        }
        match kind {
            Kind::Waking { task, target, .. } => {
                self.is_kernels = true;
                self.waking(task, target, by, time);
            }
            // The kernel's comes after the other one and says nothing new; Quotient's own traces have this one only.
            Kind::Wakeup { task, target, .. } if !self.is_kernels => {
                self.woken(task, target, by, time);
            }
            Kind::Migrate { task, to, .. } => {
                self.has_migrations = true;
                self.migrates(task, to, time.0);
            }
            Kind::Switch { prev, state, next } => {
                self.acts(cpu, prev.is_idle(), Some(next), time.0);
                self.switches(cpu, (prev, state.is_runnable()), next, time.0);
            }
            Kind::Lost { .. } => {
                *self = Watch {
                    found: self.found,
                    is_kernels: self.is_kernels,
                    has_migrations: self.has_migrations,
                    ..Watch::default()
                }
            }
            _ => {}
        }
        for pending in &mut self.pending {
            pending.age += 1;
        }
    }

    fn waking(&mut self, task: TaskId, target: CpuId, waker: Option<CpuId>, time: Nanos) {
        self.waiting.remove(&task);
        let asked = match self.cpus.get(&target) {
            Some(Runs::Task(who)) if *who != task => self.waits(task, target, time),
            Some(Runs::Idle { .. }) => {
                let waker = waker.filter(|waker| *waker != target);
                waker.map(|waker| {
                    let is_crowded = self.is_crowded(waker);
                    (target, Asks::Drawn { waker, is_crowded })
                })
            }
            _ => None,
        };
        if let Some((idle, asks)) = asked {
            self.pending.push(Pending {
                task,
                at: time.0,
                idle,
                asks,
                moved: false,
                age: 0,
            });
        }
    }

    /// Whether somebody waits on that CPU.
    fn is_crowded(&self, cpu: CpuId) -> bool {
        self.waiting.values().any(|waits| waits.on == cpu)
    }

    /// The task waits behind another one. Where an idle CPU is beside that, and what a wake-up tells of it.
    fn waits(&mut self, task: TaskId, target: CpuId, time: Nanos) -> Option<(CpuId, Asks)> {
        let is_crowded = self.is_crowded(target);
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
        let asks = if is_crowded {
            Asks::Crowded
        } else {
            Asks::Alone
        };
        idle.min().map(|(_, idle)| (idle, asks))
    }

    /// The choice is made, from where the task ran last.
    fn woken(&mut self, task: TaskId, target: CpuId, waker: Option<CpuId>, time: Nanos) {
        let Some(&home) = self.ran_on.get(&task) else {
            return;
        };
        self.waking(task, home, waker, time);
        if home != target {
            self.migrates(task, target, time.0);
        }
    }

    fn migrates(&mut self, task: TaskId, to: CpuId, at: u64) {
        if let Some(pending) = self.pending.iter_mut().find(|one| one.task == task)
            && pending.age <= 1
            && !matches!(pending.asks, Asks::Drawn { waker, .. } if waker != to)
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
    fn acts(&mut self, cpu: CpuId, from_idle: bool, next: Option<TaskId>, now: u64) {
        let is_told = self.has_migrations || !self.is_kernels;
        let found = &mut self.found;
        self.pending.retain(|pending| {
            if pending.idle != cpu {
                return true;
            }
            // A switch that was filled in has the time at which it must have been.
            if from_idle && now >= pending.at {
                let part = match pending.asks {
                    Asks::Alone => &mut found.woken,
                    Asks::Crowded => &mut found.crowded,
                    Asks::Drawn {
                        is_crowded: false, ..
                    } => &mut found.drawn,
                    Asks::Drawn { .. } => &mut found.drawn_crowded,
                };
                let is_here = next == Some(pending.task);
                let moved = match pending.asks {
                    Asks::Alone | Asks::Crowded => is_here,
                    Asks::Drawn { .. } => !is_here,
                };
                part.note(if is_told { pending.moved } else { moved });
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
    use super::super::lines::{self, switch, waking};
    use super::*;
    use crate::program::{Program, Step};
    use crate::{Kernel, Machine, Plan, Simulation, Span, synthetic};
    use quotient_trace::{Item, Reader};

    /// What is counted of a load on two CPUs whose scheduler sees idle ones now and then.
    fn recorded(notice: Notice, add: impl FnOnce(&mut Plan)) -> Placement {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = Nanos::from_secs(20);
        Kernel::Linux6_18.apply(&mut plan);
        plan.settings.notice = notice;
        add(&mut plan);
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

    const fn uniform(low: u64, high: u64) -> Span {
        Span::Uniform {
            low: Nanos::from_millis(low),
            high: Nanos::from_millis(high),
        }
    }

    fn four_clients(plan: &mut Plan) {
        synthetic::closed_loop(plan, "app", None, 4, uniform(1, 4), uniform(1, 9));
    }

    /// A client that thinks, asks and goes on for a moment, and a server that answers it.
    fn client_and_server(plan: &mut Plan) {
        let (asks, answers) = (plan.channel(0), plan.channel(0));
        let client = plan.program(Program::forever([
            Step::Sleep(uniform(1, 3)),
            Step::Post(asks),
            Step::Run(uniform(1, 1)),
            Step::Wait(answers),
        ]));
        let server = plan.program(Program::forever([
            Step::Wait(asks),
            Step::Run(uniform(1, 2)),
            Step::Post(answers),
        ]));
        let mut both = synthetic::tasks(None, client, 1);
        both.extend(synthetic::tasks(None, server, 1));
        synthetic::add(plan, "pair", both);
    }

    #[test]
    fn what_was_played_is_counted() {
        for (woken_permille, crowded_permille, fell_idle_permille) in
            [(1_000, 1_000, 1_000), (300, 800, 500), (0, 400, 0)]
        {
            let notice = Notice {
                woken_permille,
                crowded_permille,
                fell_idle_permille,
                ..Notice::EVERYTHING
            };
            let found = recorded(notice, four_clients);
            let near = |part: u16, wanted: u16| part.abs_diff(wanted) <= 80;
            assert!(
                near(found.notice().woken_permille, woken_permille)
                    && near(found.notice().crowded_permille, notice.crowded_permille)
                    && near(found.notice().fell_idle_permille, fell_idle_permille),
                "{notice:?}: {found:?}"
            );
            assert!(
                found.woken.of >= 100 && (found.crowded.of >= 30 || woken_permille == 1_000),
                "{notice:?}: {found:?}"
            );
        }
    }

    #[test]
    fn who_was_drawn_to_its_waker_is_counted() {
        for drawn_permille in [0, 300, 900] {
            let notice = Notice {
                drawn_permille,
                ..Notice::EVERYTHING
            };
            let found = recorded(notice, client_and_server);
            let part = found.notice().drawn_permille;
            assert!(
                part.abs_diff(drawn_permille) <= 80,
                "{drawn_permille}: {found:?}"
            );
            assert!(found.drawn.of >= 100, "{drawn_permille}: {found:?}");
        }
    }

    /// A task on CPU 0 that wakes one whose CPU 1 idles, beside somebody who waits or alone; who is woken goes to the waker or stays.
    fn woken_by(rounds: u64, is_crowded: bool, is_drawn: bool) -> Placement {
        let mut text = String::new();
        let (idle, idles) = (("swapper", 0, "R"), ("swapper", 0));
        for round in 0..rounds {
            let mut at = 1_000_000 + round * 10_000;
            let mut line = |who: &str, cpu: u32, what: String| {
                text += &lines::line(who, cpu, "d..2.", at, what);
                at += 10;
            };
            line("<idle>-0", 1, switch(idle, ("c", 3)));
            line("c-3", 1, switch(("c", 3, "S"), idles));
            line("<idle>-0", 0, switch(idle, ("a", 1)));
            if is_crowded {
                line("a-1", 0, waking("b", 2, 0));
            }
            line("a-1", 0, waking("c", 3, 1));
            let mut last = ("a", 1, "S");
            if is_drawn {
                let migrate = "sched_migrate_task: comm=c pid=3 prio=120 orig_cpu=1 dest_cpu=0";
                line("a-1", 0, migrate.into());
            }
            if is_crowded {
                line("a-1", 0, switch(last, ("b", 2)));
                last = ("b", 2, "S");
            }
            if is_drawn {
                let who = format!("{}-{}", last.0, last.1);
                line(&who, 0, switch(last, ("c", 3)));
                last = ("c", 3, "S");
            } else {
                line("<idle>-0", 1, switch(idle, ("c", 3)));
                line("c-3", 1, switch(("c", 3, "S"), idles));
            }
            line(&format!("{}-{}", last.0, last.1), 0, switch(last, idles));
        }
        let recording = super::super::Recording::read(&mut text.as_bytes()).unwrap();
        recording.placement
    }

    #[test]
    fn who_was_drawn_to_a_crowded_waker_is_counted_by_itself() {
        for (is_crowded, is_drawn) in [(false, true), (true, true), (true, false), (false, false)] {
            let found = woken_by(50, is_crowded, is_drawn);
            let counted = |part: Part| (part.did > 40, part.of > 40);
            let (alone, crowded) = (counted(found.drawn), counted(found.drawn_crowded));
            let told = format!("{is_crowded} {is_drawn}: {found:?}");
            assert_eq!(alone, (is_drawn && !is_crowded, !is_crowded), "{told}");
            assert_eq!(crowded, (is_drawn && is_crowded, is_crowded), "{told}");
        }
    }

    #[test]
    fn a_waker_with_company_draws_nobody_unless_that_was_seen() {
        // Three clients that ask at once of servers that rest elsewhere: who waits for a CPU follows.
        let waits = |crowded: u16| {
            let notice = Notice {
                woken_permille: 0,
                crowded_permille: 1_000,
                fell_idle_permille: 0,
                drawn_permille: 1_000,
                drawn_crowded_permille: crowded,
            };
            let mut plan = Plan::new(Machine::flat(2));
            plan.duration = Nanos::from_secs(10);
            Kernel::Linux6_18.apply(&mut plan);
            plan.settings.notice = notice;
            for _ in 0..3 {
                client_and_server(&mut plan);
            }
            let mut simulation = Simulation::new(&plan, quotient_trace::Discard).unwrap();
            simulation.run().unwrap();
            let loads = simulation.outcome().workloads;
            loads.iter().map(|load| load.run_delay_ns).sum::<u64>()
        };
        assert!(waits(0) < waits(1_000), "{} {}", waits(0), waits(1_000));
    }

    /// Hazard: in a trace without migrations nobody seems ever to go to an idle CPU, and is played so.
    #[test]
    fn without_migrations_it_counts_where_a_task_runs_next() {
        for stays in [false, true] {
            let mut text = String::new();
            let (idle, idles) = (("swapper", 0, "R"), ("swapper", 0));
            for round in 0..50 {
                let mut at = 1_000_000 + round * 10_000;
                let mut line = |who: &str, cpu: u32, what: String| {
                    text += &lines::line(who, cpu, "d..2.", at, what);
                    at += 10;
                };
                line("<idle>-0", 0, switch(idle, ("a", 1)));
                line("a-1", 0, waking("b", 2, 0));
                if stays {
                    line("a-1", 0, switch(("a", 1, "S"), ("b", 2)));
                    line("b-2", 0, switch(("b", 2, "S"), idles));
                    line("<idle>-0", 1, switch(idle, ("c", 3)));
                    line("c-3", 1, switch(("c", 3, "S"), idles));
                } else {
                    line("<idle>-0", 1, switch(idle, ("b", 2)));
                    line("a-1", 0, switch(("a", 1, "S"), idles));
                    line("b-2", 1, switch(("b", 2, "S"), idles));
                }
            }
            let recording = super::super::Recording::read(&mut text.as_bytes()).unwrap();
            let Part { did, of } = recording.placement.woken;
            assert!(of > 40, "{stays}: {did} of {of}");
            assert_eq!(did, if stays { 0 } else { of }, "{stays}");
        }
    }

    #[test]
    fn few_moments_say_little() {
        let permille = |did, of| Part { did, of }.permille();
        assert_eq!((permille(0, 0), permille(0, 2)), (1_000, 500));
        assert_eq!((permille(0, 98), permille(98, 98)), (20, 1_000));
        let drawn = |did, of| Part { did, of }.permille_against_rule();
        assert_eq!((drawn(0, 0), drawn(2, 2), drawn(98, 98)), (0, 500, 980));
    }
}
