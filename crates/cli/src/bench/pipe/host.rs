//! The smallest host of a run queue: two tasks that wake each other, in virtual time.
//!
//! Half a round is what the kernel does when one process writes to a pipe and then reads from another: the writer wakes
//! the reader (`enqueue`), sleeps (`put_prev_sleep`, which charges it), and the reader is chosen (`pick`).

use std::sync::Arc;

use quotient_core::{
    Config, CpuId, Enqueue, Gates, Group, GroupTree, Limit, Nanos, RunQueue, TaskEntity,
};

use super::Case;
use super::gates::Variant;

/// Virtual length of one poll, about what a poll of a small task takes.
const POLL: Nanos = Nanos(250);
/// How often the host looks for refills, as the runtime's tick does.
const TICK: Nanos = Nanos::from_millis(1);
/// The quota of the mail: 10^10 us a period, more than any machine has.
const QUOTA: Nanos = Nanos::from_secs(10_000);
/// Order of keys within this is by arrival, as in the runtime.
const QUANTUM: Nanos = Nanos::from_micros(50);
/// Base slice, as in the runtime.
const SLICE: Nanos = Nanos::from_micros(250);

/// One CPU, one group at some depth, two tasks.
pub struct Host<G: Gates> {
    tree: GroupTree,
    group: Arc<Group>,
    queue: RunQueue<u8, G>,
    now: Nanos,
    next_tick: Nanos,
    /// What each task keeps while it sleeps.
    sleeping: [TaskEntity; 2],
}

impl<G: Gates> Host<G> {
    /// Sets up the groups of `case`, with their limits, and the first task.
    ///
    /// # Errors
    /// When the scheduler refuses a group or a limit.
    pub fn new(case: &Case) -> Result<Self, String> {
        let mut config = Config::new(1);
        config.quantum = QUANTUM;
        config.base_slice = SLICE;
        let tree = GroupTree::new(config);
        let mut path = String::new();
        let mut group = tree.root();
        for level in 0..case.depth {
            if level > 0 {
                path.push('/');
            }
            path.push('g');
            group = tree.group(&path).map_err(|error| error.to_string())?;
            if let Some(period_us) = case.period_us {
                let limit = Limit::new(QUOTA, Nanos::from_micros(period_us));
                group
                    .set_limit(Some(limit), Nanos::ZERO, &mut |_| {})
                    .map_err(|error| error.to_string())?;
            }
        }
        let mut queue = RunQueue::with_gates(&tree, CpuId(0));
        let entity = TaskEntity::default();
        queue.enqueue(&group, entity, 0, Enqueue::New, Nanos::ZERO);
        Ok(Self {
            tree,
            group,
            queue,
            now: Nanos::ZERO,
            next_tick: TICK,
            sleeping: [entity; 2],
        })
    }

    /// Plays so many rounds; returns how many there really were.
    #[inline(never)]
    pub fn play(&mut self, rounds: u64) -> u64 {
        let mut polls = 0;
        let Some(mut task) = self.queue.pick(self.now) else {
            return 0;
        };
        for _ in 0..2 * rounds {
            self.now = self.now.saturating_add(POLL);
            if self.now >= self.next_tick {
                self.tick();
            }
            let other = 1 - task;
            let entity = self.sleeping[usize::from(other)];
            self.queue
                .enqueue(&self.group, entity, other, Enqueue::WakeBuddy, self.now);
            if let Some(entity) = self.queue.put_prev_sleep(self.now) {
                self.sleeping[usize::from(task)] = entity;
            }
            match self.queue.pick(self.now) {
                Some(next) if next == other => polls += 1,
                _ => break,
            }
            task = other;
        }
        self.queue.put_prev_preempt(task, self.now);
        polls / 2
    }

    /// What the runtime's tick thread does for limits.
    #[cold]
    fn tick(&mut self) {
        self.next_tick = self.now.saturating_add(TICK);
        if self.tree.next_refill().is_some_and(|due| due <= self.now) {
            let mut kicked = false;
            self.tree.refill(self.now, &mut |_| kicked = true);
            if kicked {
                self.queue.unthrottle_pending(self.now);
            }
        }
    }

    /// Whether what should have been charged was, metered if there is a limit, and nothing was throttled.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, case: &Case, rounds: u64) -> Result<(), String> {
        let expected = Nanos(POLL.0 * 2 * rounds);
        let charged = self.group.cpu_time();
        if charged != expected {
            return Err(format!("{charged:?} charged instead of {expected:?}"));
        }
        let throttled = self.group.bandwidth_stats().nr_throttled;
        let consumed = self.group.bandwidth_account().consumed;
        let is_metered = case.period_us.is_some() && case.variant != Variant::CompiledOut;
        if throttled > 0 || (consumed > 0) != is_metered {
            return Err(format!(
                "throttled {throttled} times, {consumed} ns metered"
            ));
        }
        self.queue
            .check()
            .map_err(|violation| violation.to_string())
    }
}
