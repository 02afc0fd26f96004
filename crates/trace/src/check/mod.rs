//! Invariants that any recorded schedule must keep, a real kernel's included.
//!
//! | rule | what it says |
//! |---|---|
//! | `one_cpu` | a task runs on one CPU at a time |
//! | `chain` | a switch leaves the task that the switch before it chose |
//! | `woken` | a sleeping task runs only after a wake-up |
//! | `throttled` | no task is chosen on a CPU where its group, or one above, is throttled |
//! | `pairs` | throttle and unthrottle alternate |
//! | `standing` | a thread that is stopped in a poll is resumed before it is stopped again and before its task ends, and no task has a turn while its thread stands |
//! | `window` | usage of a period is at most quota + burst + N (slice + longest charge); twice the quota if the phase of the periods is not in the trace |
//! | `long_run` | usage since the limit was written is at most (2 + periods) quota + burst + N (slice + longest charge) |
//! | `pool` | a pool holds nothing below zero, and after a refill at most quota + burst |
//! | `work_conservation` | no task waits while a CPU that it uses is idle |
//! | `starvation` | no task waits longer than a bound |
//! | `order` | time does not go back, where one clock stamps all events: a log of Quotient's may bring an event [`LATE_MAX`](crate::LATE_MAX) late |
//!
//! Waits of throttled groups are excused. A kernel's trace does not show who is throttled: if it was recorded under a
//! limit, say so ([`Options::hidden_limits`]), and waits are not judged.

mod limits;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use quotient_core::event::{Definition, Event, GroupId, Kind, TaskId};
use quotient_core::{CpuId, Nanos};
use serde::Serialize;

use crate::read::{Late, seconds};
use crate::repair::{Contradiction, Missing};
use crate::replay::{Fault, Imbalance, Observer, Replay, Run, Wait};
use limits::Limits;

/// Idle stretches of a CPU that are remembered. Default 32: the last few are what a wait of some ms overlaps with.
const IDLE_STRETCHES: usize = 32;

/// Violations of one rule that are kept with their texts; the rest is counted.
const KEPT_MAX: usize = 20;

/// What is checked, and how strictly.
#[derive(Clone, Debug)]
pub struct Options {
    /// How far the clocks of two CPUs may be apart: shorter overlaps are no violation. Default 0; text traces round to
    /// a microsecond, give them 10 µs.
    pub clock_skew: Nanos,
    /// How long a task may wait beside an idle CPU of its own. Default 10 ms: two and a half ticks at 250 Hz.
    pub idle_wait_max: Nanos,
    /// How long a task may wait at all. Default 2 s.
    pub wait_max: Nanos,
    /// The slice by which CPUs take from a pool. Default 5 ms, the kernel's.
    pub slice: Nanos,
    /// Longest time between two charges. Default: the longest run that the trace shows.
    pub charge_max: Option<Nanos>,
    /// The trace was recorded under limits that it does not show.
    pub hidden_limits: bool,
    /// Limits that the trace does not show, by group path.
    pub limits: Vec<(String, quotient_core::event::Limit)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            clock_skew: Nanos::ZERO,
            idle_wait_max: Nanos::from_millis(10),
            wait_max: Nanos::from_secs(2),
            slice: Nanos::from_millis(5),
            charge_max: None,
            hidden_limits: false,
            limits: Vec::new(),
        }
    }
}

/// A rule, as in the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A task runs on one CPU at a time.
    OneCpu,
    /// A switch leaves the task that the switch before it chose.
    Chain,
    /// A sleeping task runs only after a wake-up.
    Woken,
    /// No task is chosen where its group is throttled.
    Throttled,
    /// Throttle and unthrottle alternate.
    Pairs,
    /// Threads are stopped and resumed in turn, and nobody has a turn while its thread stands.
    Standing,
    /// Usage of one period.
    Window,
    /// Usage since the limit was written.
    LongRun,
    /// What a pool may hold.
    Pool,
    /// No task waits beside an idle CPU.
    WorkConservation,
    /// No task waits too long.
    Starvation,
    /// Time does not go back.
    Order,
}

impl Rule {
    /// Its name in texts and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::OneCpu => "one_cpu",
            Rule::Chain => "chain",
            Rule::Woken => "woken",
            Rule::Throttled => "throttled",
            Rule::Pairs => "pairs",
            Rule::Standing => "standing",
            Rule::Window => "window",
            Rule::LongRun => "long_run",
            Rule::Pool => "pool",
            Rule::WorkConservation => "work_conservation",
            Rule::Starvation => "starvation",
            Rule::Order => "order",
        }
    }
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Breach {
    /// Which.
    pub rule: Rule,
    /// The line of the event that showed it; 0 if there are no lines.
    pub line: u64,
    /// Time stamp of that event.
    pub time_ns: u64,
    /// What happened.
    pub message: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Events that were checked.
    pub events: u64,
    /// Breaches by rule, all of them.
    pub counts: BTreeMap<Rule, u64>,
    /// The first ones of every rule, in the order of the trace.
    pub breaches: Vec<Breach>,
}

impl Findings {
    /// Whether every rule was kept.
    pub fn is_clean(&self) -> bool {
        self.counts.is_empty()
    }
}

/// Checks a trace event by event.
pub struct Check {
    replay: Replay,
    judge: Judge,
}

struct Judge {
    options: Options,
    findings: Findings,
    line: u64,
    now: Nanos,
    idle: HashMap<CpuId, VecDeque<(Nanos, Nanos)>>,
    /// On which of the first 128 CPUs a task has run since `places_from`: it may not be allowed on others.
    places: HashMap<TaskId, u128>,
    /// When the last CPU came: tasks whose own CPUs were all gone had run anywhere, and may not any more.
    places_from: Nanos,
    /// Who was woken or moved since then; nobody before a CPU came. Others are where they were, and may not be allowed there any more.
    placed: HashSet<TaskId>,
    /// When the last CPU went: who waited there was moved to where it may not have been allowed before.
    gone_at: Nanos,
    /// Whether the trace lacks what some tasks do in their own context, wake-ups among it.
    has_silent_wakers: bool,
    /// Whether it lacks switches at all.
    is_repaired: bool,
    limits: Limits,
}

impl Check {
    /// Before the first event.
    pub fn new(options: Options) -> Check {
        let limits = Limits::new(&options);
        Check {
            replay: Replay::new(),
            judge: Judge {
                options,
                findings: Findings::default(),
                line: 0,
                now: Nanos::ZERO,
                idle: HashMap::new(),
                places: HashMap::new(),
                places_from: Nanos::ZERO,
                placed: HashSet::new(),
                gone_at: Nanos::ZERO,
                has_silent_wakers: false,
                is_repaired: false,
                limits,
            },
        }
    }

    /// Takes a definition.
    pub fn define(&mut self, definition: &Definition) {
        self.replay.define(definition);
        if let Definition::Group { id, info } = definition {
            self.judge.limits.define(*id, &info.path);
        }
    }

    /// A group of [`Options::limits`] that no definition has named so far: nothing is held against its limit. O(limits).
    pub fn unknown_limit(&self) -> Option<&str> {
        self.judge.limits.unknown()
    }

    /// Takes the event of `line`; 0 if there are no lines.
    pub fn event(&mut self, event: &Event, line: u64) {
        self.judge.line = line;
        self.judge.now = event.time;
        self.judge.findings.events += 1;
        self.replay.event(event, &mut self.judge);
        self.judge.plugged(event);
        let Judge { limits, .. } = &mut self.judge;
        if let Some((rule, message)) = limits.event(&self.replay, event) {
            self.judge.report(rule, message);
        }
        self.judge.report_usage(&self.replay);
    }

    /// Takes a switch that the trace left out ([`crate::Repair`]), before the event of `line` that shows it. It may be earlier than what came
    /// before it, and is not counted. If it leaves a task whose own events the trace lacks, those that this one wakes are lacking, too, and a
    /// task that runs without a wake-up is no breach any more. Who is woken and never runs may have run unseen.
    pub fn fill_in(&mut self, missing: &Missing, line: u64) {
        self.event(&missing.event, line);
        self.judge.findings.events -= 1;
        self.judge.is_repaired = true;
        if let Some(task) = missing.silent {
            self.replay.forget(task);
            self.judge.has_silent_wakers = true;
        }
    }

    /// Takes it that switches which were filled in should not have been.
    pub fn contradict(&mut self, contradiction: &Contradiction, line: u64) {
        let Contradiction { task, switches } = *contradiction;
        self.judge.line = line;
        let who = who(&self.replay, task);
        let message =
            format!("{who} leaves, but {switches} switches that left it before are missing");
        self.judge.report(Rule::Chain, message);
    }

    /// Takes it that an event came late: [`Reader::take_late`](crate::Reader::take_late). No fault of a kernel's trace, which comes CPU by CPU.
    pub fn late(&mut self, late: &Late) {
        let Late { line, time, newest } = *late;
        self.judge.line = line;
        self.judge.report(Rule::Order, goes_back(newest, time));
    }

    /// The trace is over.
    pub fn finish(mut self) -> Findings {
        self.replay.finish(&mut self.judge);
        self.judge.limits.finish(&self.replay);
        self.judge.report_usage(&self.replay);
        self.judge.findings
    }
}

/// So that a simulator can check itself without writing a file.
impl quotient_core::event::Sink for Check {
    fn define(&mut self, definition: &Definition) {
        Check::define(self, definition);
    }

    fn event(&mut self, event: &Event) {
        // Nobody has sorted these.
        let last = self.judge.now;
        if event.time < last {
            self.judge.report(Rule::Order, goes_back(last, event.time));
        }
        Check::event(self, event, 0);
    }
}

fn goes_back(newest: Nanos, time: Nanos) -> String {
    let (back, newest, time) = (newest - time, seconds(newest), seconds(time));
    format!("time goes back by {back}, from {newest} to {time}")
}

impl Judge {
    fn report(&mut self, rule: Rule, message: String) {
        let count = self.findings.counts.entry(rule).or_default();
        *count += 1;
        if *count <= KEPT_MAX as u64 {
            self.findings.breaches.push(Breach {
                rule,
                line: self.line,
                time_ns: self.now.as_nanos(),
                message,
            });
        }
    }

    /// CPUs that go and come change who may run where.
    fn plugged(&mut self, event: &Event) {
        match event.kind {
            Kind::Hotplug { online: true } => {
                self.places.clear();
                self.placed.clear();
                self.places_from = event.time;
            }
            Kind::Hotplug { online: false } => self.gone_at = event.time,
            Kind::Wakeup { task, .. } | Kind::Migrate { task, .. } | Kind::Spawn { task, .. }
                if self.places_from > Nanos::ZERO =>
            {
                self.placed.insert(task);
            }
            _ => {}
        }
    }

    fn report_usage(&mut self, replay: &Replay) {
        while let Some((rule, message)) = self.limits.next_breach(replay) {
            self.report(rule, message);
        }
    }

    /// The longest time within `from..to` that a CPU on which `task` has run was idle.
    fn idle_beside(&self, replay: &Replay, wait: &Wait) -> Option<(CpuId, Nanos)> {
        let places = self.places.get(&wait.task).copied().unwrap_or(0);
        let has_run = |cpu: CpuId| cpu.0 < 128 && places & (1_u128 << (cpu.0 % 128)) != 0;
        let may_run = |cpu: CpuId| cpu == wait.cpu || has_run(cpu);
        let overlap = |cpu: CpuId, from: Nanos, to: Nanos| {
            let since = if has_run(cpu) {
                wait.from
            } else {
                wait.from.max(self.gone_at.min(wait.to))
            };
            to.min(wait.to) - from.max(since)
        };
        let past = self.idle.iter().flat_map(|(cpu, stretches)| {
            stretches
                .iter()
                .map(|(from, to)| (*cpu, overlap(*cpu, *from, *to)))
        });
        let present = replay
            .idle_cpus()
            .map(|(cpu, since)| (cpu, overlap(cpu, since, wait.to)));
        past.chain(present)
            .filter(|(cpu, _)| may_run(*cpu))
            .max_by_key(|(cpu, idle)| (*idle, *cpu))
    }
}

impl Observer for Judge {
    fn ran(&mut self, replay: &Replay, run: &Run) {
        let is_placed = self.places_from == Nanos::ZERO
            || run.from >= self.places_from && self.placed.contains(&run.task);
        if run.cpu.0 < 128 && is_placed {
            *self.places.entry(run.task).or_default() |= 1 << run.cpu.0;
        }
        if run
            .state
            .is_some_and(quotient_core::event::TaskState::is_over)
        {
            self.places.remove(&run.task);
        }
        self.limits.ran(replay, run);
    }

    fn waited(&mut self, replay: &Replay, wait: &Wait) {
        if self.options.hidden_limits || wait.was_throttled {
            return;
        }
        if self.is_repaired && wait.is_open && !self.places.contains_key(&wait.task) {
            return;
        }
        let length = wait.to - wait.from;
        if length > self.options.wait_max {
            let message = format!(
                "{} waited {} on {} from {}",
                who(replay, wait.task),
                length,
                wait.cpu,
                seconds(wait.from)
            );
            self.report(Rule::Starvation, message);
        }
        if length > self.options.idle_wait_max
            && let Some((cpu, idle)) = self.idle_beside(replay, wait)
            && idle > self.options.idle_wait_max
        {
            let message = format!(
                "{} waited {} in the queue of {} from {}, while {cpu} was idle for {idle}",
                who(replay, wait.task),
                length,
                wait.cpu,
                seconds(wait.from)
            );
            self.report(Rule::WorkConservation, message);
        }
    }

    fn idled(&mut self, _: &Replay, cpu: CpuId, from: Nanos, to: Nanos) {
        if to - from <= self.options.idle_wait_max {
            return;
        }
        let stretches = self.idle.entry(cpu).or_default();
        if stretches.len() == IDLE_STRETCHES {
            stretches.pop_front();
        }
        stretches.push_back((from, to));
    }

    fn fault(&mut self, replay: &Replay, fault: &Fault) {
        let (rule, message) = match *fault {
            Fault::TwoCpus {
                task,
                first,
                second,
                from,
                to,
            } => {
                if to - from <= self.options.clock_skew {
                    return;
                }
                let length = to - from;
                let who = who(replay, task);
                let text = format!("{who} ran on {first} and {second} at once for {length}");
                (Rule::OneCpu, text)
            }
            Fault::Chain { cpu, running, prev } => {
                let (running, prev) = (who(replay, running), who(replay, prev));
                let text = format!("{cpu} ran {running}, but the switch leaves {prev}");
                (Rule::Chain, text)
            }
            Fault::NotWoken { .. } if self.has_silent_wakers => return,
            Fault::NotWoken { task, cpu, asleep } => {
                let who = who(replay, task);
                let since = seconds(asleep);
                let text = format!("{who} runs on {cpu}, asleep since {since} and never woken");
                (Rule::Woken, text)
            }
            Fault::RanThrottled { task, cpu, group } => {
                let (who, group) = (who(replay, task), which(replay, group));
                (
                    Rule::Throttled,
                    format!("{who} runs on {cpu}, where {group} is throttled"),
                )
            }
            Fault::Unpaired {
                group,
                cpu,
                is_throttle,
            } => {
                let what = if is_throttle {
                    "throttled while it was"
                } else {
                    "unthrottled while it was not throttled"
                };
                let text = format!("{} on {cpu}: {what}", which(replay, group));
                (Rule::Pairs, text)
            }
            Fault::Unbalanced { task, what } => {
                let what = match what {
                    Imbalance::PausedTwice => "was stopped while it stood",
                    Imbalance::ResumedTwice => "was resumed while it did not stand",
                    Imbalance::EndedStanding => "stands, and its task has ended",
                };
                let text = format!("the thread of {} {what}", who(replay, task));
                (Rule::Standing, text)
            }
            Fault::RanStanding { task, cpu, since } => {
                let (who, since) = (who(replay, task), seconds(since));
                let text = format!("{who} has a turn on {cpu}, its thread stands since {since}");
                (Rule::Standing, text)
            }
        };
        self.report(rule, message);
    }
}

fn who(replay: &Replay, task: TaskId) -> String {
    if task.is_idle() {
        return "nobody".to_owned();
    }
    match replay.table().task_name(task) {
        "" => task.to_string(),
        name => format!("{name}-{}", task.0),
    }
}

fn which(replay: &Replay, group: GroupId) -> String {
    match replay.table().group_path(group) {
        "" if group == GroupId::ROOT => "the root group".to_owned(),
        "" => group.to_string(),
        path => format!("group {path}"),
    }
}
