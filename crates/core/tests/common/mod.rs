//! A tiny deterministic host: N run queues, one virtual clock, tasks that compute, yield and sleep.
//!
//! Every scheduling decision is the crate's; the host only advances time, executes `balance::plan`, and runs the
//! checker. Nothing is random, so every number in the tests is exact and repeatable.
#![allow(dead_code)] // each test binary uses its own part

pub mod channels;

use channels::Channels;
use quotient_core::balance::{self, Pull};
use quotient_core::{
    Config, CpuId, CpuLoad, Enqueue, Gates, Group, GroupTree, Limit, Nanos, Reason, RunQueue,
    TaskEntity, Topology,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// What a task does, over and over.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Computes for `chunk` ns, then yields.
    Hog { chunk: u64 },
    /// Computes for `chunk` ns at a time and is only preempted when the queue says so.
    Spin { chunk: u64 },
    /// Computes for `run` ns, then sleeps for `sleep` ns.
    Periodic { run: u64, sleep: u64 },
    /// Computes for `run` ns, then spawns a task that runs once for `child` ns; yields.
    Spawner { run: u64, child: u64 },
    /// Computes for `run` ns and exits.
    Once { run: u64 },
    /// A stage of a pipeline: see [`channels`]. Computes for `least` to `most` ns on each item.
    Stage {
        from: Option<usize>,
        to: Option<usize>,
        least: u64,
        most: u64,
    },
}

pub struct Task {
    pub group: Arc<Group>,
    pub work: Work,
    pub entity: Option<TaskEntity>,
    pub ran: u64,
    /// When it became runnable last.
    pub ready_at: u64,
    pub worst_delay: u64,
    pub sum_delay: u64,
    pub runs: u64,
    /// Times that it was switched to from another task.
    pub turns: u64,
    /// Whether it defers throttles.
    pub deferring: bool,
    pub exited: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    ChunkEnd { cpu: usize, generation: u64 },
    Wake { task: usize },
    Balance { cpu: usize },
}

/// A host whose queues average no loads, as nearly all do.
pub type Machine = Host<LimitsOnly>;

/// Everything but load averages and checks.
pub struct LimitsOnly;

impl Gates for LimitsOnly {
    fn bandwidth() -> bool {
        true
    }
    fn load_averages() -> bool {
        false
    }
    fn events() -> bool {
        true
    }
    fn checks() -> bool {
        false
    }
}

pub struct Host<G: Gates> {
    pub tree: GroupTree,
    pub queues: Vec<RunQueue<usize, G>>,
    pub tasks: Vec<Task>,
    pub now: u64,
    pub pulls: u64,
    pub check_every: u64,
    pub channels: Channels,
    /// Whether a stage is woken on its waker's CPU, and not on the least loaded.
    pub wakes_here: bool,
    /// Whether an idle CPU that is kicked chooses before it looks what it was kicked for, as one does that was about to
    /// choose anyway.
    pub chooses_first: bool,
    /// Whether CPUs balance every half millisecond: a host of one CPU that is idle for days need not.
    pub balances: bool,
    topology: Topology,
    loads: Vec<Arc<CpuLoad>>,
    running: Vec<Option<(usize, u64)>>,
    latest: Vec<Option<usize>>,
    generations: Vec<u64>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    /// Called after every event.
    pub observer: Option<Observer<G>>,
}

pub type Observer<G> = Box<dyn FnMut(&mut Host<G>)>;

const BALANCE_EVERY: u64 = 500_000;

impl<G: Gates> Host<G> {
    pub fn new(config: Config) -> Self {
        config.validate().expect("a valid configuration");
        let tree = GroupTree::new(config);
        let cpus = config.cpus as usize;
        let queues: Vec<RunQueue<usize, G>> = (0..config.cpus)
            .map(|cpu| RunQueue::with_gates(&tree, CpuId(cpu)))
            .collect();
        let loads = queues
            .iter()
            .map(|queue| Arc::clone(queue.load()))
            .collect();
        let mut machine = Host {
            tree,
            queues,
            tasks: Vec::new(),
            now: 0,
            pulls: 0,
            check_every: 13,
            channels: Channels::default(),
            wakes_here: false,
            chooses_first: false,
            balances: true,
            topology: Topology::flat(config.cpus),
            loads,
            running: vec![None; cpus],
            latest: vec![None; cpus],
            generations: vec![0; cpus],
            events: BinaryHeap::new(),
            sequence: 0,
            observer: None,
        };
        for cpu in 0..cpus {
            // Staggered, as independent timers are.
            let first = BALANCE_EVERY * (cpu as u64 + 1) / cpus as u64;
            machine.at(first, Event::Balance { cpu });
        }
        machine
    }

    pub fn group(&self, path: &str, weight: u32) -> Arc<Group> {
        let group = self.tree.group(path).expect("a valid path");
        group.set_weight(quotient_core::Weight::new(weight).expect("a valid weight"));
        group
    }

    pub fn spawn(&mut self, cpu: usize, group: &Arc<Group>, work: Work) -> usize {
        self.spawn_as(cpu, group, work, TaskEntity::default())
    }

    pub fn spawn_as(
        &mut self,
        cpu: usize,
        group: &Arc<Group>,
        work: Work,
        entity: TaskEntity,
    ) -> usize {
        let task = self.tasks.len();
        self.tasks.push(Task {
            group: Arc::clone(group),
            work,
            entity: None,
            ran: 0,
            ready_at: self.now,
            worst_delay: 0,
            sum_delay: 0,
            runs: 0,
            turns: 0,
            deferring: entity.is_deferring(),
            exited: false,
        });
        self.queues[cpu].enqueue(group, entity, task, Enqueue::New, Nanos(self.now));
        task
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    /// Runs until `end`, ns, and charges what runs then.
    pub fn run_until(&mut self, end: u64) {
        self.advance_to(end);
        for cpu in 0..self.queues.len() {
            self.account(cpu);
            self.queues[cpu].charge(Nanos(end));
        }
        self.check();
    }

    /// CPU time that tasks of the group and below it have really had, charged or not.
    pub fn ran(&self, group: &Arc<Group>) -> u64 {
        let since = |task: usize| {
            let mut running = self.running.iter().flatten();
            let current = running.find(|(current, _)| *current == task);
            current.map_or(0, |(_, since)| self.now.saturating_sub(*since))
        };
        let tasks = self.tasks.iter().enumerate();
        tasks
            .filter(|(_, task)| task.group.is_within(group))
            .map(|(index, task)| task.ran + since(index))
            .sum()
    }

    /// Runs until `end`, ns, and leaves what runs then in the middle of it.
    pub fn advance_to(&mut self, end: u64) {
        self.dispatch_all();
        let mut steps = 0u64;
        while let Some(&Reverse((time, _, event))) = self.events.peek() {
            if self.refill_before(time.min(end)) {
                self.inspect();
                continue;
            }
            if time > end {
                break;
            }
            self.events.pop();
            assert!(time >= self.now);
            self.now = time;
            match event {
                Event::ChunkEnd { cpu, generation } if generation == self.generations[cpu] => {
                    self.chunk_end(cpu);
                }
                Event::ChunkEnd { .. } => continue,
                Event::Wake { task } => self.wake(task),
                Event::Balance { cpu } => self.balance(cpu),
            }
            self.inspect();
            steps += 1;
            if steps.is_multiple_of(self.check_every) {
                self.check();
            }
        }
        self.now = end;
    }

    /// Runs the refills that are due at or before `time`, each at its time. Returns whether there was one.
    fn refill_before(&mut self, time: u64) -> bool {
        let Some(due) = self.tree.next_refill().filter(|due| due.0 <= time) else {
            return false;
        };
        // Slack may be due "now" while the clock has moved on already.
        self.now = self.now.max(due.0);
        let (tree, now) = (self.tree.clone(), Nanos(self.now));
        let mut kicked = Vec::new();
        tree.refill(now, &mut |cpu| kicked.push(cpu.index()));
        self.kick(&kicked);
        true
    }

    /// Makes CPUs look for groups to unthrottle.
    pub fn kick(&mut self, cpus: &[usize]) {
        for &cpu in cpus {
            if self.chooses_first && self.running[cpu].is_none() {
                self.dispatch(cpu);
            }
            self.queues[cpu].unthrottle_pending(Nanos(self.now));
            if self.running[cpu].is_none() {
                self.dispatch(cpu);
            }
        }
    }

    /// Limits a group now, or ends its limit.
    pub fn limit(&mut self, group: &Arc<Group>, limit: Option<Limit>) {
        let mut kicked = Vec::new();
        let kick = &mut |cpu: CpuId| kicked.push(cpu.index());
        group
            .set_limit(limit, Nanos(self.now), kick)
            .expect("a valid limit");
        self.kick(&kicked);
    }

    /// Calls the observer, if there is one, after every event.
    fn inspect(&mut self) {
        if let Some(mut observer) = self.observer.take() {
            observer(self);
            self.observer = Some(observer);
        }
    }

    /// Somebody above takes the CPU away from the hog that runs there, for so long. Nobody is charged for it.
    pub fn steal(&mut self, cpu: usize, time: u64) {
        self.account(cpu);
        let Some((task, since)) = self.running[cpu] else {
            return;
        };
        let back = since + time;
        self.queues[cpu].charge(Nanos(since));
        self.queues[cpu].charge_except(Nanos(back), Nanos(time));
        // Its chunk begins anew once the CPU is back.
        self.running[cpu] = Some((task, back));
        self.generations[cpu] += 1;
        let generation = self.generations[cpu];
        let length = match self.tasks[task].work {
            Work::Hog { chunk } => chunk,
            other => panic!("{other:?} is not stopped"),
        };
        self.at(back + length, Event::ChunkEnd { cpu, generation });
    }

    /// How many tasks are asleep, and how many have not exited.
    pub fn census(&self) -> (usize, usize) {
        let asleep = self
            .tasks
            .iter()
            .filter(|task| task.entity.is_some())
            .count();
        (
            asleep,
            self.tasks.iter().filter(|task| !task.exited).count(),
        )
    }

    pub fn check(&self) {
        for queue in &self.queues {
            if let Err(violation) = queue.check() {
                panic!("at {} on {}: {violation}", self.now, queue.cpu());
            }
        }
    }

    /// Adds the time that the current task has run to its account.
    fn account(&mut self, cpu: usize) {
        if let Some((task, since)) = &mut self.running[cpu] {
            self.tasks[*task].ran += self.now - *since;
            *since = self.now;
        }
    }

    fn chunk_end(&mut self, cpu: usize) {
        self.account(cpu);
        let now = Nanos(self.now);
        let (task, _) = self.running[cpu].take().expect("a chunk belongs to a task");
        match self.tasks[task].work {
            Work::Hog { .. } => {
                self.tasks[task].ready_at = self.now;
                let next = self.queues[cpu].switch(task, now);
                self.run(cpu, next);
            }
            Work::Spin { .. } if !self.queues[cpu].should_resched(now) => {
                self.queues[cpu].charge(now);
                self.start(cpu, task);
            }
            Work::Spin { .. } => {
                self.tasks[task].ready_at = self.now;
                self.queues[cpu].put_prev_preempt(task, now);
                self.dispatch(cpu);
            }
            Work::Periodic { sleep, .. } => {
                self.tasks[task].entity = self.queues[cpu].put_prev_sleep(now);
                self.at(self.now + sleep, Event::Wake { task });
                self.dispatch(cpu);
            }
            Work::Spawner { child, .. } => {
                let group = Arc::clone(&self.tasks[task].group);
                self.spawn(cpu, &group, Work::Once { run: child });
                self.tasks[task].ready_at = self.now;
                self.queues[cpu].put_prev_yield(task, now);
                self.dispatch(cpu);
            }
            Work::Once { .. } => {
                self.queues[cpu].put_prev_exit(now);
                self.tasks[task].exited = true;
                self.dispatch(cpu);
            }
            Work::Stage { from, to, .. } => self.end_item(cpu, task, from, to),
        }
    }

    /// A stage of a pipeline passes its item on and takes the next one.
    fn end_item(&mut self, cpu: usize, task: usize, from: Option<usize>, to: Option<usize>) {
        let now = Nanos(self.now);
        let mut woken = Vec::new();
        let goes_on = self.channels.pass_on(task, from, to, &mut woken);
        if goes_on {
            self.tasks[task].ready_at = self.now;
            self.queues[cpu].put_prev_yield(task, now);
        } else {
            self.tasks[task].entity = self.queues[cpu].put_prev_sleep(now);
        }
        for other in woken {
            let on = self.wakes_here.then_some(cpu);
            self.wake_on(on.unwrap_or_else(|| self.least_loaded()), other);
        }
        if self.running[cpu].is_none() {
            self.dispatch(cpu);
        }
    }

    /// The least loaded CPU, lowest number first, as a host with idle stacks chooses.
    fn least_loaded(&self) -> usize {
        let cpus = 0..self.queues.len();
        cpus.min_by_key(|&cpu| self.queues[cpu].nr_running())
            .unwrap_or(0)
    }

    fn wake(&mut self, task: usize) {
        self.wake_on(self.least_loaded(), task);
    }

    fn wake_on(&mut self, cpu: usize, task: usize) {
        let entity = self.tasks[task]
            .entity
            .take()
            .expect("a sleeper has an entity");
        let group = Arc::clone(&self.tasks[task].group);
        self.tasks[task].ready_at = self.now;
        let now = Nanos(self.now);
        let preempt = self.queues[cpu].enqueue(&group, entity, task, Enqueue::Wake, now);
        match self.running[cpu] {
            None => self.dispatch(cpu),
            Some((current, _))
                if preempt && matches!(self.tasks[current].work, Work::Spin { .. }) =>
            {
                self.account(cpu);
                self.running[cpu] = None;
                // Its chunk ends here, whatever comes next.
                self.generations[cpu] += 1;
                self.tasks[current].ready_at = self.now;
                self.queues[cpu].put_prev_preempt(current, now);
                self.dispatch(cpu);
            }
            Some(_) => {}
        }
    }

    fn balance(&mut self, cpu: usize) {
        let idle = self.queues[cpu].nr_running() == 0;
        let reason = if idle { Reason::Idle } else { Reason::Periodic };
        // One that somebody above has taken away does nothing.
        let is_away = self.running[cpu].is_some_and(|(_, since)| since > self.now);
        if self.queues.len() > 1 && !is_away {
            if let (Some(_), false) = (self.running[cpu], idle) {
                self.account(cpu);
                self.queues[cpu].charge(Nanos(self.now));
            }
            self.pull(cpu, reason);
        }
        if self.balances {
            self.at(self.now + BALANCE_EVERY, Event::Balance { cpu });
        }
    }

    fn pull(&mut self, cpu: usize, reason: Reason) {
        let now = Nanos(self.now);
        let (topology, me) = (self.topology.clone(), CpuId(cpu as u32));
        let loads = std::mem::take(&mut self.loads);
        balance::pull(&topology, me, &loads, (reason, now), |pull| {
            self.take(cpu, pull)
        });
        self.loads = loads;
        if self.running[cpu].is_none() && self.queues[cpu].nr_running() > 0 {
            self.dispatch(cpu);
        }
    }

    /// Moves tasks as a pull says. Returns whether there were any.
    fn take(&mut self, cpu: usize, pull: &Pull) -> bool {
        let now = Nanos(self.now);
        let from = pull.from;
        let mut moved = Vec::new();
        let me = CpuId(cpu as u32);
        self.queues[from.index()].detach_to(me, pull, now, &mut moved);
        self.pulls += moved.len() as u64;
        let any = !moved.is_empty();
        for task in moved {
            self.queues[cpu].enqueue(&task.group, task.entity, task.handle, Enqueue::Migrate, now);
        }
        any
    }

    fn dispatch_all(&mut self) {
        for cpu in 0..self.queues.len() {
            if self.running[cpu].is_none() {
                self.dispatch(cpu);
            }
        }
    }

    fn dispatch(&mut self, cpu: usize) {
        let now = Nanos(self.now);
        let picked = self.queues[cpu].pick(now);
        self.run(cpu, picked);
    }

    /// Runs what was picked, or what is pulled instead.
    fn run(&mut self, cpu: usize, mut picked: Option<usize>) {
        let now = Nanos(self.now);
        if let (Some(task), Some(pull)) = (picked, self.queues[cpu].take_pull())
            && self.take(cpu, &pull)
        {
            self.queues[cpu].put_prev_preempt(task, now);
            picked = self.queues[cpu].pick(now);
        }
        match picked {
            Some(task) => self.start(cpu, task),
            None => self.idle(cpu),
        }
    }

    fn idle(&mut self, cpu: usize) {
        assert_eq!(self.queues[cpu].nr_running(), 0);
        assert!(
            !self.queues[cpu].load().has_unthrottles(),
            "nobody parks with mail"
        );
        if self.queues.len() > 1 {
            self.pull(cpu, Reason::Idle);
        }
    }

    fn start(&mut self, cpu: usize, task: usize) {
        let group = &self.tasks[task].group;
        let kept_back = self.queues[cpu].is_throttled(group);
        assert!(!kept_back, "{} starts throttled", group.path());
        let entry = &mut self.tasks[task];
        let delay = self.now - entry.ready_at;
        entry.ready_at = self.now;
        entry.worst_delay = entry.worst_delay.max(delay);
        entry.sum_delay += delay;
        entry.runs += 1;
        entry.turns += u64::from(self.latest[cpu] != Some(task));
        self.latest[cpu] = Some(task);
        let length = match entry.work {
            Work::Hog { chunk } | Work::Spin { chunk } => chunk,
            Work::Periodic { run, .. } | Work::Spawner { run, .. } | Work::Once { run } => run,
            Work::Stage { least, most, .. } => self.channels.between(least, most),
        };
        self.running[cpu] = Some((task, self.now));
        self.generations[cpu] += 1;
        let generation = self.generations[cpu];
        self.at(self.now + length, Event::ChunkEnd { cpu, generation });
    }
}

/// The kernel selftests' tolerance: `e` percent of the sum.
pub fn close(one: u64, other: u64, percent: u64) -> bool {
    one.abs_diff(other) <= (one + other) / 100 * percent
}

pub fn usage(group: &Arc<Group>) -> u64 {
    group.cpu_time().0
}

pub const MILLI: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;
