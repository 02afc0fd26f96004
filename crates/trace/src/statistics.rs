//! Figures of a trace in one pass: CPU time, run delays, switches, throttling; of tasks, groups and CPUs.

use std::collections::{BTreeMap, HashMap};

use hdrhistogram::Histogram;
use quotient_core::event::{Definition, Event, GroupId, Kind, Sink, Table, TaskId};
use quotient_core::{CpuId, Nanos};
use serde::Serialize;

use crate::replay::{Observer, Replay, Run, Stand, Wait};

/// Tasks with figures of their own; those that come later are counted under one name. Default 65,536: with 3 KB each,
/// 200 MB at worst.
const TASKS_MAX: usize = 65_536;

/// What the tasks beyond `TASKS_MAX` are called.
const OTHERS: &str = "(others)";

/// Longest delay that is told apart. Unit: ns. Default one hour.
const DELAY_MAX: u64 = 3_600_000_000_000;

/// How long somebody was made to wait, in ns. A percentile is exact to 1 % for groups, 6 % for tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Delays {
    /// How many waits.
    pub count: u64,
    /// All of them together.
    pub sum_ns: u64,
    /// Half were shorter.
    pub p50_ns: u64,
    /// 90 % were shorter.
    pub p90_ns: u64,
    /// 99 % were shorter.
    pub p99_ns: u64,
    /// 99.9 % were shorter.
    pub p999_ns: u64,
    /// The longest, exactly.
    pub max_ns: u64,
}

/// Figures of a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskFigures {
    /// Its number.
    pub task: u32,
    /// Its last name.
    pub name: String,
    /// The path of its last group.
    pub group: String,
    /// Time on CPUs, as far as it is billed to it.
    pub cpu_ns: u64,
    /// How often it came to run.
    pub runs: u64,
    /// How often it was woken, and waited for that.
    pub wakeups: u64,
    /// The longest run without a switch.
    pub longest_run_ns: u64,
    /// From runnable to running.
    pub delay: Delays,
    /// Polls of it that outlived their turn and got a thread of their own.
    pub detached: u64,
    /// How often that thread was stopped.
    pub pauses: u64,
    /// How long in all.
    pub paused_ns: u64,
    /// How long at most.
    pub longest_pause_ns: u64,
}

/// Figures of a group, with all groups below it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupFigures {
    /// Its path; empty for the root.
    pub group: String,
    /// Time on CPUs, as far as it is billed to it.
    pub cpu_ns: u64,
    /// How often one of its tasks came to run.
    pub runs: u64,
    /// The longest run without a switch.
    pub longest_run_ns: u64,
    /// From runnable to running.
    pub delay: Delays,
    /// Periods in which its timer was active.
    pub nr_periods: u64,
    /// Those in which it was throttled.
    pub nr_throttled: u64,
    /// Time throttled, summed over CPUs.
    pub throttled_ns: u64,
    /// Periods in which it used its burst.
    pub nr_bursts: u64,
    /// How much of it.
    pub burst_ns: u64,
    /// Polls that outlived their turn and got threads of their own.
    pub detached: u64,
    /// How often these were stopped.
    pub pauses: u64,
    /// How long, summed over them.
    pub paused_ns: u64,
    /// How long at most.
    pub longest_pause_ns: u64,
}

/// Figures of a CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuFigures {
    /// Its number.
    pub cpu: u32,
    /// Time with a task.
    pub busy_ns: u64,
    /// Time without.
    pub idle_ns: u64,
    /// Switches between tasks, or between a task and idling.
    pub switches: u64,
}

/// Figures of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// From the first event to the last.
    pub duration_ns: u64,
    /// Events.
    pub events: u64,
    /// Moves between CPUs.
    pub migrations: u64,
    /// Events that the recorder lost.
    pub lost: u64,
    /// Short turns of all threads that stand, because something did not get on.
    pub rescues: u64,
    /// By CPU time, most first.
    pub tasks: Vec<TaskFigures>,
    /// By path.
    pub groups: Vec<GroupFigures>,
    /// By number.
    pub cpus: Vec<CpuFigures>,
}

/// Gathers [`Figures`].
#[derive(Default)]
pub struct Statistics {
    replay: Replay,
    gathered: Gathered,
}

#[derive(Default)]
struct Gathered {
    tasks: HashMap<TaskId, TaskTally>,
    others: Option<Box<TaskTally>>,
    groups: HashMap<GroupId, GroupTally>,
    cpus: BTreeMap<CpuId, (u64, u64, u64)>,
    events: u64,
    migrations: u64,
    lost: u64,
    rescues: u64,
}

/// What became of polls that outlived their turns.
#[derive(Clone, Copy, Default)]
struct Stood {
    detached: u64,
    count: u64,
    sum: u64,
    max: u64,
}

impl Stood {
    fn add(&mut self, nanos: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(nanos);
        self.max = self.max.max(nanos);
    }
}

struct TaskTally {
    name: String,
    group: GroupId,
    cpu: u64,
    runs: u64,
    wakeups: u64,
    longest_run: u64,
    delay: Tally<u32>,
    stood: Stood,
}

struct GroupTally {
    cpu: u64,
    runs: u64,
    longest_run: u64,
    delay: Tally<u64>,
    periods: u64,
    throttled_periods: u64,
    throttled: u64,
    bursts: u64,
    burst: u64,
    stood: Stood,
    /// A throttle began since the last refill.
    was_throttled: bool,
    /// Now.
    throttled_cpus: u32,
}

/// Exact sum and maximum beside a histogram of bounded precision.
struct Tally<C: hdrhistogram::Counter> {
    histogram: Histogram<C>,
    sum: u64,
    max: u64,
}

impl<C: hdrhistogram::Counter> Tally<C> {
    fn new(digits: u8) -> Tally<C> {
        let mut histogram =
            Histogram::new(digits).expect("one to five digits are what the library allows");
        histogram.auto(true);
        Tally {
            histogram,
            sum: 0,
            max: 0,
        }
    }

    fn record(&mut self, nanos: u64) {
        // The range grows as needed; `DELAY_MAX` bounds it.
        let _ = self.histogram.record(nanos.clamp(1, DELAY_MAX));
        self.sum = self.sum.saturating_add(nanos);
        self.max = self.max.max(nanos);
    }

    fn figures(&self) -> Delays {
        let at = |quantile| self.histogram.value_at_quantile(quantile).min(self.max);
        Delays {
            count: self.histogram.len(),
            sum_ns: self.sum,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.max,
        }
    }
}

impl TaskTally {
    fn new() -> TaskTally {
        TaskTally {
            name: String::new(),
            group: GroupId::ROOT,
            cpu: 0,
            runs: 0,
            wakeups: 0,
            longest_run: 0,
            delay: Tally::new(1),
            stood: Stood::default(),
        }
    }
}

impl GroupTally {
    fn new() -> GroupTally {
        GroupTally {
            cpu: 0,
            runs: 0,
            longest_run: 0,
            delay: Tally::new(2),
            periods: 0,
            throttled_periods: 0,
            throttled: 0,
            bursts: 0,
            burst: 0,
            stood: Stood::default(),
            was_throttled: false,
            throttled_cpus: 0,
        }
    }
}

impl Statistics {
    /// Before the first event.
    pub fn new() -> Statistics {
        Statistics::default()
    }

    /// The trace is over.
    pub fn finish(mut self) -> Figures {
        self.replay.finish(&mut self.gathered);
        self.gathered.figures(&self.replay)
    }
}

impl Sink for Statistics {
    fn define(&mut self, definition: &Definition) {
        self.replay.define(definition);
    }

    fn event(&mut self, event: &Event) {
        self.replay.event(event, &mut self.gathered);
        self.gathered.count(event);
        if let Kind::Detach { task } = event.kind {
            self.gathered.detached(&self.replay, task);
        }
    }
}

impl Gathered {
    fn count(&mut self, event: &Event) {
        self.events += 1;
        match event.kind {
            Kind::Switch { .. } => self.cpus.entry(event.cpu).or_default().2 += 1,
            Kind::Migrate { .. } => self.migrations += 1,
            Kind::Lost { count } => self.lost += count.get().max(0).unsigned_abs(),
            Kind::Rescue { .. } => self.rescues += 1,
            Kind::Throttle { group } => {
                let group = self.group(group);
                group.was_throttled = true;
                group.throttled_cpus += 1;
            }
            Kind::Unthrottle { group } => {
                let group = self.group(group);
                group.throttled_cpus = group.throttled_cpus.saturating_sub(1);
            }
            Kind::Refill { group, periods, .. } => {
                let group = self.group(group);
                group.periods += u64::from(periods);
                // Who is throttled still is so by now; those that this refill lets go are shown as they notice, after it.
                if core::mem::take(&mut group.was_throttled) || group.throttled_cpus > 0 {
                    group.throttled_periods += u64::from(periods);
                }
            }
            Kind::Burst { group, used } => {
                let group = self.group(group);
                group.bursts += 1;
                group.burst += used.as_nanos().as_nanos();
            }
            _ => {}
        }
    }

    fn detached(&mut self, replay: &Replay, task: TaskId) {
        self.task(replay.table(), task).stood.detached += 1;
        for group in replay.path(replay.table().group_of(task)) {
            self.group(group).stood.detached += 1;
        }
    }

    fn group(&mut self, group: GroupId) -> &mut GroupTally {
        self.groups.entry(group).or_insert_with(GroupTally::new)
    }

    fn task(&mut self, table: &Table, task: TaskId) -> &mut TaskTally {
        let is_new = !self.tasks.contains_key(&task);
        if is_new && self.tasks.len() >= TASKS_MAX {
            return self.others.get_or_insert_with(|| {
                let mut others = TaskTally::new();
                OTHERS.clone_into(&mut others.name);
                Box::new(others)
            });
        }
        let tally = self.tasks.entry(task).or_insert_with(TaskTally::new);
        let name = table.task_name(task);
        if !name.is_empty() && tally.name != name {
            name.clone_into(&mut tally.name);
        }
        tally.group = table.group_of(task);
        tally
    }

    fn figures(&self, replay: &Replay) -> Figures {
        let (from, to) = replay.span();
        let others = self.others.as_deref().map(|tally| (TaskId::IDLE, tally));
        let tasks = self.tasks.iter().map(|(id, tally)| (*id, tally));
        let mut tasks: Vec<_> = tasks
            .chain(others)
            .map(|(id, tally)| tally.figures(id, replay.table()))
            .collect();
        tasks.sort_by(|a, b| (b.cpu_ns, a.task).cmp(&(a.cpu_ns, b.task)));
        let mut groups: Vec<_> = self
            .groups
            .iter()
            .map(|(id, tally)| tally.figures(replay.table().group_path(*id)))
            .collect();
        groups.sort_by(|a, b| a.group.cmp(&b.group));
        let cpus = self
            .cpus
            .iter()
            .map(|(cpu, (busy, idle, switches))| CpuFigures {
                cpu: cpu.0,
                busy_ns: *busy,
                idle_ns: *idle,
                switches: *switches,
            });
        Figures {
            duration_ns: (to - from).as_nanos(),
            events: self.events,
            migrations: self.migrations,
            lost: self.lost,
            rescues: self.rescues,
            tasks,
            groups,
            cpus: cpus.collect(),
        }
    }
}

impl TaskTally {
    fn figures(&self, id: TaskId, table: &Table) -> TaskFigures {
        TaskFigures {
            task: id.0,
            name: self.name.clone(),
            group: table.group_path(self.group).to_owned(),
            cpu_ns: self.cpu,
            runs: self.runs,
            wakeups: self.wakeups,
            longest_run_ns: self.longest_run,
            delay: self.delay.figures(),
            detached: self.stood.detached,
            pauses: self.stood.count,
            paused_ns: self.stood.sum,
            longest_pause_ns: self.stood.max,
        }
    }
}

impl GroupTally {
    fn figures(&self, path: &str) -> GroupFigures {
        GroupFigures {
            group: path.to_owned(),
            cpu_ns: self.cpu,
            runs: self.runs,
            longest_run_ns: self.longest_run,
            delay: self.delay.figures(),
            nr_periods: self.periods,
            nr_throttled: self.throttled_periods,
            throttled_ns: self.throttled,
            nr_bursts: self.bursts,
            burst_ns: self.burst,
            detached: self.stood.detached,
            pauses: self.stood.count,
            paused_ns: self.stood.sum,
            longest_pause_ns: self.stood.max,
        }
    }
}

impl Observer for Gathered {
    fn ran(&mut self, replay: &Replay, run: &Run) {
        let nanos = (run.to - run.from).as_nanos();
        let is_whole = u64::from(run.state.is_some());
        let task = self.task(replay.table(), run.task);
        task.cpu += run.charged.as_nanos();
        task.runs += is_whole;
        task.longest_run = task.longest_run.max(nanos);
        for group in replay.path(run.group) {
            let group = self.group(group);
            group.cpu += run.charged.as_nanos();
            group.runs += is_whole;
            group.longest_run = group.longest_run.max(nanos);
        }
        self.cpus.entry(run.cpu).or_default().0 += nanos;
    }

    fn waited(&mut self, replay: &Replay, wait: &Wait) {
        if wait.is_open {
            return;
        }
        let nanos = (wait.to - wait.from).as_nanos();
        let task = self.task(replay.table(), wait.task);
        task.wakeups += u64::from(wait.is_woken);
        task.delay.record(nanos);
        for group in replay.path(wait.group) {
            self.group(group).delay.record(nanos);
        }
    }

    fn idled(&mut self, _: &Replay, cpu: CpuId, from: Nanos, to: Nanos) {
        self.cpus.entry(cpu).or_default().1 += (to - from).as_nanos();
    }

    fn throttled(&mut self, _: &Replay, group: GroupId, _: CpuId, from: Nanos, to: Nanos) {
        self.group(group).throttled += (to - from).as_nanos();
    }

    fn stood(&mut self, replay: &Replay, stand: &Stand) {
        let nanos = (stand.to - stand.from).as_nanos();
        self.task(replay.table(), stand.task).stood.add(nanos);
        for group in replay.path(stand.group) {
            self.group(group).stood.add(nanos);
        }
    }
}
