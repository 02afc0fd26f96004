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

mod alone;
mod averages;
mod budget;
mod candidates;
mod catch_up;
mod charge;
mod detach;
mod enqueue;
mod faster;
pub(crate) mod floor;
mod follow;
mod hand_over;
mod members;
#[cfg(test)]
mod moves;
mod notes;
mod pick;
mod promises;
mod put;
mod siblings;
#[cfg(test)]
mod spikes;
mod split;
mod throttle;
mod view;

pub(crate) use averages::QueueLoad;
use averages::TaskLoad;
pub use detach::{Detached, DrainPart};
pub use enqueue::GroupSlot;

use crate::balance::Pull;
use crate::config::{Config, Policy};
use crate::gates::{AlwaysOn, Gates};
use crate::group::Group;
use crate::group_time::ServiceClock;
use crate::load::CpuLoad;
use crate::node::{NONE, Node, Slab};
use crate::stopwatch::CpuClock;
use crate::timeline::{Rules, Timeline};
use crate::tree::{Changes, GroupTree};
use crate::units::{CpuId, Nanos, VIRTUAL_SHIFT};
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
    /// Whether any group ever was: no throttled clock has moved before.
    was_closed: bool,
    /// See [`RunQueue::calm`]; 0 while a group is throttled.
    pub(crate) calm: u32,
    /// How many throttles have ended: the number of the calm, the span without throttled groups, that began with the last end.
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
    /// Whether the one above went first as there were two to pull from.
    above_first: bool,
    gates: PhantomData<fn() -> G>,
}

/// The name of a calm is the CPU's number from this bit on, and the calm's number below it: a task that moves tells the calms of two CPUs
/// apart. Unit: bits.
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
            service_clock: ServiceClock::new(&config, cpu),
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
            was_closed: false,
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
            above_first: false,
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

    /// The same while a task runs or, in the middle of a choice, is about to.
    fn publish_counts_of_choice(&self) {
        self.load.publish_counts(self.nr.saturating_sub(1), self.nr);
    }

    #[inline]
    fn publish_counts(&self) {
        self.load.publish_counts(self.nr_queued() as u32, self.nr);
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
        parity_from_arrival: config.parity_from_arrival || config.policy == Policy::Cfs,
        debts_fade: config.debts_fade && config.policy == Policy::Eevdf,
        moves_keep_requests: config.moves_keep_requests && config.policy == Policy::Eevdf,
        next_buddy: config.next_buddy,
        last_buddy: config.last_buddy && config.policy == Policy::Cfs,
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

    /// What a task beside child groups may take along when it moves or sleeps. More than a sleeper: by the clock that it stands by it is owed nothing for
    /// sleep, only for having waited, and what is cut would go to everybody else. (Cut at each move, V went on for it, and they would move it again. Cut
    /// to a sleeper's credit beyond those here, who may be owed as much as it is and wait for no tick, one that slept for 50 us after each 100 had
    /// 0.28 of a CPU for 0.44.)
    #[inline]
    pub(crate) fn clamp_missed(&self, lag: i64, shares: u32) -> i64 {
        let most = crate::units::to_virtual(self.debt_limit, shares).cast_signed();
        lag.clamp(-most, most)
    }

    /// Whether [`Rules::clamp_lag`] would cut what is owed to a task. Takes no division.
    #[inline]
    pub(crate) fn is_cut<T>(&self, lag: i64, node: &Node<T>) -> bool {
        let most = (u64::from(node.slice) + self.lag_limit) << VIRTUAL_SHIFT;
        lag.saturating_mul(i64::from(node.shares)) > most.cast_signed()
    }

    /// What a task may take along elsewhere.
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
