//! One CPU's run queue: the hierarchy of timelines, the current chain, and the calls a host makes.
//!
//! ```text
//!   wake -> enqueue ──► timelines ──► pick ──► the host polls the task ──► charge ──► put_prev_* ──► pick ...
//!                          │  ▲
//!                   detach ▼  └ enqueue(Migrate)          (another CPU's balance::plan asked for it)
//! ```
//!
//! **The chain.** Between two choices at group level, the path from the root to `leaf` stays chosen: each of its
//! timelines has the next one's node as `current`. Switching between tasks of the leaf group touches the leaf only;
//! the service is collected in `pending` and charged to the path by `flush`, at the latest after
//! [`crate::Config::publish_interval`]. When the path's time is up (`budget`) or a better group woke up (`repick`),
//! the chain is put back and the choice starts at the root.
//!
//! Invariants, asserted by [`RunQueue::check`]: `pending` belongs to exactly the timelines from `leaf` to the root;
//! every timeline but the root's is queued or current in its parent iff it has entities; sums and counts match.

mod averages;
mod budget;
mod catch_up;
mod charge;
mod detach;
mod enqueue;
mod hand_over;
mod pick;
mod put;
mod siblings;
#[cfg(test)]
mod spikes;
mod split;
mod throttle;

pub(crate) use averages::QueueLoad;
use averages::TaskLoad;
pub use detach::Detached;
pub use enqueue::GroupSlot;

use crate::balance::Pull;
use crate::config::{Config, GroupClock, Policy};
use crate::gates::{AlwaysOn, Gates};
use crate::group::Group;
use crate::group_time::ServiceClock;
use crate::load::CpuLoad;
use crate::node::{NONE, Node, Place, Slab, cut_off};
use crate::stopwatch::CpuClock;
use crate::timeline::{Rules, Timeline};
use crate::tree::{Changes, GroupTree};
use crate::units::{CpuId, Nanos, VirtualTime};
use core::fmt;
use core::marker::PhantomData;
use std::collections::VecDeque;
use std::sync::Arc;

/// The run queue of one CPU. `T` is the host's handle of a task; it moves in with `enqueue` and out with `pick`. `G` says
/// which features are on.
///
/// To stop using a queue while its tree lives on, [`RunQueue::drain`] it first: groups count what is runnable in it.
pub struct RunQueue<T, G: Gates = AlwaysOn> {
    pub(crate) cpu: CpuId,
    pub(crate) rules: Rules,
    pub(crate) service_clock: ServiceClock,
    publish_interval: u64,
    changes: Arc<Changes>,
    changes_seen: u64,
    pub(crate) slab: Slab<T>,
    pub(crate) timelines: Vec<Timeline>,
    vacant_timelines: Vec<u32>,
    /// Timeline of each group, by group id.
    slots: Vec<u32>,
    /// The deepest chosen timeline.
    pub(crate) leaf: u32,
    /// The running task's node.
    pub(crate) current: u32,
    /// Up to when the current task is charged.
    last: Nanos,
    /// Service charged to tasks of the leaf and not yet to the groups, ns.
    pub(crate) pending: u64,
    /// What of it was collected before the changes that are being followed.
    unfollowed: u64,
    /// How far `pending` may grow before the groups are looked at, ns.
    limit: u64,
    /// How far `pending` may grow before the chain has to be put back, ns.
    budget: u64,
    /// A better group woke up.
    repick: bool,
    /// Runnable tasks, the current one included, without those that limits keep back.
    pub(crate) nr: u32,
    /// Runnable tasks that limits keep back.
    pub(crate) nr_throttled: u32,
    /// The nearest limited timeline above those whose tasks were counted last, or `NONE`. Nothing is throttled from it up.
    counting: u32,
    /// Tasks that came there since, which its count and those above it do not have yet. Means nothing while `counting` is `NONE`.
    uncounted: i32,
    /// Groups that are throttled here.
    pub(crate) closed: u32,
    /// See [`RunQueue::calm`]; 0 while a group is throttled.
    pub(crate) calm: u32,
    /// Throttles that have ended, to name calms.
    pub(crate) calms: u32,
    /// A group on the chain has used up its budget.
    throttle_due: bool,
    /// A group on the chain runs in debt, for the sake of a deferring task.
    overdrawn: bool,
    /// Soft groups that are throttled, the longest waiting first; those that are not any more are passed over.
    soft: VecDeque<u32>,
    /// Soft groups that were opened for the current poll.
    scavenging: Vec<u32>,
    load: Arc<CpuLoad>,
    pub(crate) clock: Arc<CpuClock>,
    /// Load averages of tasks, by node.
    task_loads: Vec<TaskLoad>,
    /// When the chain was last averaged.
    averaged_at: Nanos,
    /// When waiting groups were last charged for service elsewhere, and which timeline came last.
    caught_up_at: Nanos,
    cursor: u32,
    /// Whom the last choice found more in need than what it had to choose from.
    suggested: Option<Pull>,
    gates: PhantomData<fn() -> G>,
}

/// Where the CPU's number stands in the name of a calm, so that tasks that move do not take one CPU's for another's. Unit: bits.
pub(crate) const CALM_SHIFT: u32 = 20;

/// The most that a group may owe as it leaves a CPU, where it has no other: 1,000 s, which bounds arithmetic and nothing
/// else.
const GROUP_DEBT_MAX: Nanos = Nanos::from_secs(1_000);

/// The timeline of the root group.
pub(crate) const ROOT: u32 = 0;

impl<T> RunQueue<T> {
    /// An empty run queue for `cpu`, to serve the groups of `tree`, with every feature on.
    pub fn new(tree: &GroupTree, cpu: CpuId) -> RunQueue<T> {
        RunQueue::with_gates(tree, cpu)
    }
}

impl<T, G: Gates> RunQueue<T, G> {
    /// An empty run queue for `cpu`, to serve the groups of `tree`, with the features that `G` answers for.
    pub fn with_gates(tree: &GroupTree, cpu: CpuId) -> RunQueue<T, G> {
        let config = *tree.config();
        let root = tree.root();
        let rules = rules_of(&config);
        // A queue that follows another on the same CPU goes on with its hand, which the groups' watches know.
        let cell = root.cells.of(cpu, Arc::default);
        cell.exec.start();
        let clock = Arc::clone(cell.exec.clock());
        let changes = Arc::clone(root.changes());
        let slots = vec![ROOT];
        let load = Arc::<CpuLoad>::default();
        load.meet(ROOT, &root);
        RunQueue {
            cpu,
            rules,
            service_clock: ServiceClock::new(&config),
            publish_interval: config.publish_interval.0,
            changes_seen: changes.count(),
            changes,
            slab: Slab::new(),
            timelines: vec![Timeline::new(root, cell, NONE, rules.shift)],
            vacant_timelines: Vec::new(),
            slots,
            leaf: ROOT,
            current: NONE,
            last: Nanos::ZERO,
            pending: 0,
            unfollowed: 0,
            limit: u64::MAX,
            budget: u64::MAX,
            repick: false,
            nr: 0,
            nr_throttled: 0,
            counting: NONE,
            uncounted: 0,
            closed: 0,
            calm: cpu.0 << CALM_SHIFT | 1,
            calms: 1,
            throttle_due: false,
            overdrawn: false,
            soft: VecDeque::new(),
            scavenging: Vec::new(),
            load,
            clock,
            task_loads: Vec::new(),
            averaged_at: Nanos::ZERO,
            caught_up_at: Nanos::ZERO,
            cursor: ROOT,
            suggested: None,
            gates: PhantomData,
        }
    }

    /// The CPU that the queue belongs to.
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// Runnable tasks, the current one included, without those that limits keep back ([`RunQueue::nr_throttled`]).
    pub fn nr_running(&self) -> usize {
        self.nr as usize
    }

    /// Runnable tasks that wait, without those that limits keep back.
    pub fn nr_queued(&self) -> usize {
        (self.nr - u32::from(self.current != NONE)) as usize
    }

    /// What this CPU publishes for others.
    pub fn load(&self) -> &Arc<CpuLoad> {
        &self.load
    }

    /// The hand that the CPU clocks of this CPU's groups follow.
    pub fn clock(&self) -> &Arc<CpuClock> {
        &self.clock
    }

    /// Whether a task is current (picked and not put back).
    pub fn has_current(&self) -> bool {
        self.current != NONE
    }

    /// The group that the current task was queued in, if there is a current task.
    pub fn current_group(&self) -> Option<&Arc<Group>> {
        (self.current != NONE).then(|| &self.timelines[self.leaf as usize].group)
    }

    /// CPU time charged to the current task so far, if there is one.
    pub fn current_cpu_time(&self) -> Option<Nanos> {
        (self.current != NONE).then(|| Nanos(self.slab.get(self.current).sum_exec))
    }

    /// Bytes held for all timelines (one for each group that this CPU has met), without the tasks.
    pub fn timeline_bytes(&self) -> usize {
        self.timelines.iter().map(Timeline::bytes).sum::<usize>()
            + self.slots.len() * size_of::<u32>()
    }

    /// Bytes held for queued and running tasks and for the places of groups among them. What a spike took is given back down to the last
    /// place in use, but for 1,024 places; free places before that are used again.
    pub fn node_bytes(&self) -> usize {
        self.slab.bytes()
    }

    /// Bytes of scheduler state for one queued or running task.
    pub const TASK_BYTES: usize = size_of::<Node<T>>();

    /// Shows others the tasks that wait. For a host that has put the current task back and chooses none now: every other call
    /// that changes the number, and every choice, does it by itself.
    #[inline]
    pub fn publish(&self) {
        self.publish_counts();
    }

    #[inline]
    fn publish_counts(&self) {
        self.load.publish_counts(self.nr_queued() as u32, self.nr);
    }

    /// The timeline for a group, created when this CPU meets the group first. Tasks of removed groups go to the
    /// nearest live ancestor. O(1) but for the first time.
    #[inline]
    fn timeline_of(&mut self, group: &Arc<Group>) -> u32 {
        let mut live = group;
        while live.is_removed() {
            match live.parent() {
                Some(parent) => live = parent,
                None => return ROOT,
            }
        }
        let id = live.id() as usize;
        if let Some(&slot) = self.slots.get(id)
            && slot != NONE
            && Arc::ptr_eq(&self.timelines[slot as usize].group, live)
        {
            return slot;
        }
        self.meet(live)
    }

    #[cold]
    fn meet(&mut self, group: &Arc<Group>) -> u32 {
        let Some(parent) = group.parent() else {
            // The root of another tree: a caller's mistake that must not corrupt this queue.
            return ROOT;
        };
        let parent = self.timeline_of(parent);
        let id = group.id() as usize;
        if self.slots.len() <= id {
            self.slots.resize(id + 1, NONE);
        }
        self.forget_slot(id);
        let cell = group.cells.of(self.cpu, || Arc::clone(&self.clock));
        let mut timeline = Timeline::new(Arc::clone(group), cell, parent, self.rules.shift);
        timeline.take_outside();
        self.timelines[parent as usize].group.time.meet_group();
        let index = self.vacant_index();
        assert!(index != NONE, "a CPU meets fewer than 2^32 - 1 groups");
        self.timelines[parent as usize].below += 1;
        timeline.node = self.slab.insert(Node {
            v: VirtualTime::default(),
            deadline: VirtualTime::default(),
            sum_exec: 0,
            handle: None,
            slice: self.rules.base_slice,
            shares: group.shares(),
            next: NONE,
            prev: NONE,
            timeline: parent,
            owned: index,
            migrated: 0,
            place: Place::Off,
            idle: group.is_idle(),
            custom_slice: false,
            deferring: false,
        });
        match self.timelines.get_mut(index as usize) {
            Some(vacant) => *vacant = timeline,
            None => self.timelines.push(timeline),
        }
        self.load.meet(index, group);
        self.slots[id] = index;
        let above = self.timelines[parent as usize].limited;
        self.timelines[index as usize].limited = above;
        if self.has_limit(index) {
            self.attach_meter(index, true);
        }
        index
    }

    /// Frees the timeline that an id stood for, at once or when its last task has left.
    fn forget_slot(&mut self, id: usize) {
        let old = core::mem::replace(&mut self.slots[id], NONE);
        if old == NONE {
            return;
        }
        // Its limit goes with its name; whatever it kept back runs where it is.
        if self.timelines[old as usize].meter.is_some() {
            self.detach_meter(old);
        }
        self.timelines[old as usize].orphan = true;
        self.free_if_orphan(old);
    }

    fn free_if_orphan(&mut self, index: u32) {
        let mut index = index;
        // Up to those that were kept for what was below them.
        while let Some(parent) = self.free_one_orphan(index) {
            index = parent;
        }
    }

    /// Frees the timeline if nobody needs it any more, and says whose parent it had. A group may be removed while a task is on its way
    /// into a group below it, which a limit then keeps back: nothing of that is in the timeline above, which is needed all the same.
    pub(super) fn free_one_orphan(&mut self, index: u32) -> Option<u32> {
        let timeline = &mut self.timelines[index as usize];
        let used = timeline.nr > 0 || timeline.below > 0 || index == self.leaf;
        if !timeline.orphan || timeline.vacant || used {
            return None;
        }
        let parent = timeline.parent;
        let node = core::mem::replace(&mut timeline.node, NONE);
        let root = Arc::clone(&self.timelines[ROOT as usize].group);
        let cell = Arc::clone(&self.timelines[ROOT as usize].cell);
        // Drops the group and the queues' memory now rather than at the next reuse.
        let mut vacant = Timeline::new(root, cell, ROOT, self.rules.shift);
        vacant.vacant = true;
        self.load.meet(index, &vacant.group);
        self.timelines[index as usize] = vacant;
        self.slab.release(node);
        self.vacant_timelines.push(index);
        self.timelines[parent as usize].below -= 1;
        self.shrink_timelines();
        Some(parent)
    }

    /// A place for a new timeline. The list of vacant ones also has some that were cut off since, or are used again.
    fn vacant_index(&mut self) -> u32 {
        while let Some(index) = self.vacant_timelines.pop() {
            if let Some(timeline) = self.timelines.get(index as usize)
                && timeline.vacant
            {
                return index;
            }
        }
        u32::try_from(self.timelines.len()).unwrap_or(NONE)
    }

    /// Gives back the memory of vacant timelines at the end.
    fn shrink_timelines(&mut self) {
        let before = self.timelines.len();
        cut_off(&mut self.timelines, |timeline| timeline.vacant);
        let kept = self.timelines.len();
        if kept == before {
            return;
        }
        self.load.forget_from(kept);
        if self.vacant_timelines.len() > 2 * kept {
            self.vacant_timelines
                .retain(|index| (*index as usize) < kept);
            self.vacant_timelines.shrink_to(2 * kept);
        }
    }

    /// Follows weight changes and removals that happened since the last look. One load if there were none.
    #[inline]
    fn follow_changes(&mut self) {
        if self.changes.count() != self.changes_seen {
            self.follow_changes_slow();
        }
    }

    #[cold]
    fn follow_changes_slow(&mut self) {
        let (count, changed) = self.changes.since(self.changes_seen);
        self.changes_seen = count;
        let slots = match changed {
            Some(mut ids) => {
                // Each once: what a limit has to be charged is charged once.
                ids.sort_unstable();
                ids.dedup();
                ids
            }
            None => (0..self.slots.len() as u32).collect(),
        };
        self.unfollowed = self.pending;
        for id in slots {
            let index = self.slots.get(id as usize).copied().unwrap_or(NONE);
            if index == NONE || index == ROOT {
                continue;
            }
            if self.timelines[index as usize].group.is_removed() {
                self.forget_slot(id as usize);
            } else {
                self.refresh_weight(index);
                self.follow_limit(index);
            }
        }
        self.unfollowed = 0;
    }

    /// Brings the weight and idleness of a group's node up to date, wherever the node is.
    fn refresh_weight(&mut self, index: u32) {
        if !self.service_clock.is_whole() && self.timelines[index as usize].nr == 0 {
            // Nothing to weigh here: what it was owed is measured in the weight that it left with.
            return;
        }
        let shares = self.group_shares(index);
        let timeline = &self.timelines[index as usize];
        let (node, parent_level) = (timeline.node, timeline.parent);
        let parent = parent_level as usize;
        let idle = timeline.group.is_idle();
        self.slab.get_mut(node).idle = idle;
        let old = self.slab.get(node).shares;
        if old == shares {
            return;
        }
        if self.service_clock.is_global() {
            self.reweigh(index, shares);
            return;
        }
        let nodes = &mut self.slab.nodes;
        match nodes[node as usize].place {
            Place::Off => {
                let v = self.timelines[parent].reference(self.rules.policy, 0);
                let timeline = &mut self.timelines[index as usize];
                let lag = i128::from(timeline.lag) * i128::from(old) / i128::from(shares);
                timeline.lag = lag.clamp(-(1 << 61), 1 << 61) as i64;
                let ahead = timeline.left_v.since(v).max(0);
                let ahead = i128::from(ahead) * i128::from(old) / i128::from(shares);
                timeline.left_v = v.plus(u64::try_from(ahead).unwrap_or(0).min(1 << 61));
                nodes[node as usize].shares = shares;
            }
            Place::Current => {
                // What was served so far was served at the old weight.
                self.flush();
                let parent = &mut self.timelines[parent];
                let node = &mut self.slab.nodes[node as usize];
                parent.reweight(node, shares);
                parent.group_load += u64::from(shares);
                parent.group_load -= u64::from(old);
                parent.protect(node, &self.rules);
                self.set_limit();
            }
            _ => {
                let parent = &mut self.timelines[parent];
                parent.unqueue(nodes, node, &self.rules);
                parent.reweight(&mut nodes[node as usize], shares);
                parent.group_load += u64::from(shares);
                parent.group_load -= u64::from(old);
                parent.queue(nodes, node, &self.rules);
            }
        }
        self.publish_entities(parent_level);
    }

    /// Under [`GroupClock::PerCpu`], brings the weights on the path from a timeline to the root up to date, which follow
    /// from what is runnable. O(depth x CPUs).
    fn refresh_parts(&mut self, level: u32) {
        if self.service_clock.is_whole() {
            return;
        }
        let mut level = level;
        // Not within a throttled hierarchy: that is made up for when it is left.
        while level != ROOT && !self.is_closed(level) {
            self.refresh_weight(level);
            level = self.timelines[level as usize].parent;
        }
    }

    fn group_shares(&mut self, index: u32) -> u32 {
        let timeline = &mut self.timelines[index as usize];
        let cpus = self.service_clock.cpus;
        match self.service_clock.mode {
            GroupClock::Foreign => timeline.group.shares(),
            GroupClock::Averaged(mode) if G::load_averages() => {
                split::shares_averaged(timeline, mode, cpus)
            }
            GroupClock::PerCpu(mode) | GroupClock::Averaged(mode) => {
                split::shares_here(timeline, mode, cpus)
            }
        }
    }
}

fn rules_of(config: &Config) -> Rules {
    // Virtual units are 1/1024 ns; the quantum is rounded down to a power of two of them so that keys are bucketed
    // by a shift. A ring must not span half the circle: 2^50 units are 18 minutes.
    let quantum = config.quantum.0.saturating_mul(1024);
    let shift = if quantum == 0 {
        0
    } else {
        quantum.ilog2().min(50) as u8
    };
    Rules {
        policy: config.policy,
        shift,
        run_to_parity: config.run_to_parity,
        debts_fade: config.debts_fade && config.policy == Policy::Eevdf,
        next_buddy: config.next_buddy,
        last_buddy: config.last_buddy,
        base_slice: u32::try_from(config.base_slice.0).unwrap_or(u32::MAX),
        wakeup_granularity: config.wakeup_granularity.0,
        lag_limit: config.lag_limit.0,
        debt_limit: config.debt_limit.0,
        sleeper_credit: config.sleeper_credit.0,
        min_granularity: config.min_granularity.0,
        latency: config.latency.0,
    }
}

impl<T, G: Gates> fmt::Debug for RunQueue<T, G> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RunQueue")
            .field("cpu", &self.cpu)
            .field("nr_running", &self.nr)
            .field("nr_queued", &self.nr_queued())
            .finish_non_exhaustive()
    }
}

impl Rules {
    /// What a group may keep of its lag when it leaves: owed at most its own request and a tick more, owing nearly anything.
    #[inline]
    pub(crate) fn clamp_group_lag(&self, lag: i64, slice: u32, shares: u32) -> i64 {
        let owing = crate::units::to_virtual(GROUP_DEBT_MAX.0, shares).cast_signed();
        self.clamp_lag(lag.max(0), slice, shares) + lag.clamp(-owing, 0)
    }

    /// The same for a task.
    #[inline]
    pub(crate) fn clamp_lag(&self, lag: i64, slice: u32, shares: u32) -> i64 {
        let owed =
            crate::units::to_virtual(u64::from(slice) + self.lag_limit, shares).cast_signed();
        let owing = crate::units::to_virtual(self.debt_limit, shares).cast_signed();
        match self.policy {
            Policy::Eevdf => lag.clamp(-owing, owed),
            // CFS limits the credit when the sleeper comes back.
            Policy::Cfs => lag.max(-owing),
        }
    }
}
