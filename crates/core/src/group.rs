//! A group: its place in the tree, its weight, and its clocks. Shared by all CPUs.

use crate::bandwidth::Bandwidth;
use crate::clock::CpuCells;
use crate::config::Config;
use crate::group_time::{GroupTime, Told};
use crate::load_average::{GroupAverages, SumRules};
use crate::outside::Outside;
use crate::pelt::LoadAverages;
use crate::tree::Changes;
use crate::units::{CpuId, Nanos};
use crate::weight::{IDLE_SHARES, Weight};
use core::fmt;
use core::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A node of the [`crate::GroupTree`]: tasks and child groups of one group compete for the group's CPU time in the
/// ratio of their weights, and the group competes with its siblings as one.
pub struct Group {
    id: u32,
    generation: u32,
    depth: u32,
    path: Box<str>,
    name_start: usize,
    parent: Option<Arc<Group>>,
    // Weak, because a child holds its parent; the tree's registry holds every live group.
    pub(crate) children: Mutex<BTreeMap<Box<str>, Weak<Group>>>,
    changes: Arc<Changes>,
    weight: AtomicU16,
    idle: AtomicBool,
    removed: AtomicBool,
    pub(crate) cells: CpuCells,
    /// CPU time spent outside any run queue, descendants included.
    outside: Outside,
    /// The least limit on the group's CPU time that somebody waits for, ns; `u64::MAX` for none.
    alarm: AtomicU64,
    /// Service received outside of all run queues so far, ns; kept on one CPU only.
    pub(crate) service: AtomicU64,
    /// Where it stands among its siblings on all CPUs.
    pub(crate) time: GroupTime,
    /// Made when a CPU first averages the group.
    averages: OnceLock<Box<GroupAverages>>,
    /// Made with the first limit.
    pub(crate) bandwidth: OnceLock<Arc<Bandwidth>>,
}

/// What [`Group::occupancy`] tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Tasks of the group itself that are queued or running.
    pub runnable: u32,
    /// CPUs that run a task of the group or of a descendant.
    pub running: u32,
    /// Whether the group's own limit holds its tasks back on some CPU.
    pub throttled: bool,
}

/// What the tree knows about a group that it is about to create.
pub(crate) struct Birth {
    pub(crate) id: u32,
    pub(crate) generation: u32,
    pub(crate) parent: Option<Arc<Group>>,
    pub(crate) name: Box<str>,
    pub(crate) changes: Arc<Changes>,
}

impl Group {
    pub(crate) fn new(birth: Birth) -> Group {
        let Birth {
            id,
            generation,
            parent,
            name,
            changes,
        } = birth;
        let prefix = parent.as_ref().map_or("", |group| group.path());
        let (path, name_start) = if prefix.is_empty() {
            (name, 0)
        } else {
            (
                format!("{prefix}/{name}").into_boxed_str(),
                prefix.len() + 1,
            )
        };
        Group {
            id,
            generation,
            depth: parent.as_ref().map_or(0, |group| group.depth + 1),
            path,
            name_start,
            parent,
            children: Mutex::default(),
            changes,
            weight: AtomicU16::new(Weight::DEFAULT.kept_as()),
            idle: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            cells: CpuCells::default(),
            outside: Outside::default(),
            alarm: AtomicU64::new(u64::MAX),
            service: AtomicU64::new(0),
            time: GroupTime::default(),
            averages: OnceLock::new(),
            bandwidth: OnceLock::new(),
        }
    }

    /// A dense index, smallest free first; the root is 0. Reused after removal, then with another
    /// [`Group::generation`].
    pub fn id(&self) -> u32 {
        self.id
    }

    /// How many groups had this id before.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Levels below the root, which is at 0.
    pub fn depth(&self) -> usize {
        self.depth as usize
    }

    /// The names from the root down, joined by `/`; empty for the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The last name of the path; empty for the root.
    pub fn name(&self) -> &str {
        &self.path[self.name_start..]
    }

    /// The group above, `None` for the root.
    pub fn parent(&self) -> Option<&Arc<Group>> {
        self.parent.as_ref()
    }

    /// The live child groups in the order of their names. O(children).
    pub fn children(&self) -> Vec<Arc<Group>> {
        self.lock_children()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(crate) fn lock_children(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Weak<Group>>> {
        // Every change of the map is a single insert or remove.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration of the tree that the group belongs to.
    pub fn config(&self) -> &Config {
        &self.changes.config
    }

    pub(crate) fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    /// The weight as last set, also while the group is idle.
    #[inline]
    pub fn weight(&self) -> Weight {
        Weight::kept(self.weight.load(Relaxed))
    }

    /// Sets the weight, live: a CPU that has the group queued follows at its next choice between groups (at the
    /// latest after one slice), keeping `weight x lag`. No effect on the root, which has no siblings.
    pub fn set_weight(&self, weight: Weight) {
        self.weight.store(weight.kept_as(), Relaxed);
        self.changes.record(self.id);
    }

    /// Whether the group is idle.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.idle.load(Relaxed)
    }

    /// Makes the group idle (or not): it then has 3 shares whatever its weight, and anything that is not idle
    /// preempts it when it wakes up. The weight takes effect again when this is cleared.
    pub fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Relaxed);
        self.changes.record(self.id);
    }

    /// Shares that the group competes with: of its weight, or of idleness.
    #[inline]
    pub fn shares(&self) -> u32 {
        if self.is_idle() {
            IDLE_SHARES
        } else {
            self.weight().shares()
        }
    }

    /// Whether the group was removed. Its tasks, should any wake up later, are queued in the nearest ancestor that
    /// was not.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    pub(crate) fn mark_removed(&self) {
        let _limits = self.changes.lock_limits();
        self.removed.store(true, Relaxed);
        if let Some(bandwidth) = self.bandwidth.get() {
            bandwidth.retire(&self.changes.timers);
        }
        self.changes.record(self.id);
    }

    /// CPU time of the group and all its descendants, removed ones included: what the run queues charged and the CPUs
    /// show ([`crate::CpuClock::show`]), plus what was added by [`Group::add_foreign_cpu_time`]. No step back between
    /// readers that are causally ordered; never less than a descendant's that was read before; without locks and writes.
    /// O(CPUs that met the group).
    #[inline]
    pub fn cpu_time(&self) -> Nanos {
        self.cells.exec() + Nanos(self.outside.read())
    }

    /// The part of [`Group::cpu_time`] that was spent outside the run queues ([`Group::add_foreign_cpu_time`]), descendants included.
    /// O(1).
    pub fn foreign_cpu_time(&self) -> Nanos {
        Nanos(self.outside.read())
    }

    /// The part of [`Group::cpu_time`] that was charged on `cpu`.
    pub fn cpu_time_on(&self, cpu: CpuId) -> Nanos {
        self.cells.exec_on(cpu)
    }

    /// Tasks of this group itself that are queued or running, as last published by the CPUs.
    pub fn runnable(&self) -> usize {
        self.cells.runnable() as usize
    }

    /// Who of the group runs and who waits, as last published by the CPUs: each figure is of some moment during the call. `work` says
    /// which CPUs are at work at all. O(CPUs).
    pub fn occupancy(&self, work: impl Fn(CpuId) -> bool) -> Occupancy {
        let (runnable, running) = self.cells.occupancy(work);
        let limit = self.bandwidth.get();
        Occupancy {
            runnable,
            running,
            throttled: limit.is_some_and(|bandwidth| bandwidth.is_throttled()),
        }
    }

    /// Load averages over all CPUs, as far as published. Under [`crate::load_average::UpdateMode::OnDemand`], the default,
    /// O(CPUs), late by a millisecond, and fading by itself while nothing runs. Zero while load averages are off.
    pub fn load_averages(&self, now: Nanos) -> LoadAverages {
        let averages = self.averages.get();
        averages.map_or(LoadAverages::default(), |averages| {
            averages.figures(now, &self.load_rules())
        })
    }

    pub(crate) fn averages(&self) -> &GroupAverages {
        let cpus = self.config().cpus;
        self.averages
            .get_or_init(|| Box::new(GroupAverages::new(cpus)))
    }

    pub(crate) fn load_rules(&self) -> SumRules {
        self.changes.load_rules.get()
    }

    /// Adds CPU time that was spent outside the run queues (blocking threads, foreign tasks), to the group and to
    /// every ancestor, from any thread. The group pays for it as for service received on a CPU. It is taken from the budgets
    /// of all limited groups on the way, too: `now` is when the time has been spent, and what their budgets could be refilled
    /// with before does not pay for it. O(depth).
    pub fn add_foreign_cpu_time(&self, time: Nanos, now: Nanos) {
        self.show_foreign_cpu_time(0, time);
        self.charge_foreign_cpu_time(time, now);
    }

    /// The first half of [`Group::add_foreign_cpu_time`]: only moves the clocks, at a place that keeps threads apart (the
    /// number of the processor). The root's first, so that no reader sees a group ahead of its parent. O(depth).
    #[inline]
    pub fn show_foreign_cpu_time(&self, place: usize, time: Nanos) {
        if let Some(parent) = self.parent.as_deref() {
            parent.show_foreign_cpu_time(place, time);
        }
        self.outside.add(place, time.0);
    }

    /// The second half: the group pays for the time as service received elsewhere, as of `now`, and from its budgets. O(depth).
    pub fn charge_foreign_cpu_time(&self, time: Nanos, now: Nanos) {
        self.charge_foreign_budget(time, now);
        self.charge_foreign_service(time);
    }

    /// As [`Group::charge_foreign_cpu_time`], of a thread that wanted to run for the last `lasted` without a break, and had a processor for
    /// `time` of that. What its budgets could be refilled with in all of `lasted` pays for it, as if it had been charged as it went: time
    /// in which a thread *slept* is none of this. O(depth).
    pub fn charge_foreign_cpu_time_over(&self, time: Nanos, lasted: Nanos, now: Nanos) {
        self.charge_foreign_budget_over(time, lasted, now);
        self.charge_foreign_service(time);
    }

    /// The part of [`Group::charge_foreign_cpu_time`] that budgets pay. One load a level without limits. O(depth).
    pub fn charge_foreign_budget(&self, time: Nanos, now: Nanos) {
        self.charge_foreign_budget_over(time, time, now);
    }

    fn charge_foreign_budget_over(&self, time: Nanos, lasted: Nanos, now: Nanos) {
        let mut level = Some(self);
        while let Some(group) = level {
            if let Some(bandwidth) = group.bandwidth.get() {
                bandwidth.charge_outside(time, lasted, now, &self.changes.timers);
            }
            level = group.parent.as_deref();
        }
    }

    /// Whether work for the group outside the run queues has to wait at `now`, until a limited level of its path, itself included, has paid
    /// by refills what was used beyond them. Whoever keeps that work back asks again, at [`crate::GroupTree::next_refill`] or later: nobody is
    /// told. One load a level without limits. O(depth).
    pub fn keeps_back_foreign(&self, now: Nanos) -> bool {
        let timers = &self.changes.timers;
        let mut level = Some(self);
        while let Some(group) = level {
            let bandwidth = group.bandwidth.get();
            if bandwidth.is_some_and(|bandwidth| bandwidth.keeps_back_outside(now, timers)) {
                return true;
            }
            level = group.parent.as_deref();
        }
        false
    }

    /// The part of [`Group::charge_foreign_cpu_time`] that is paid in virtual time, wherever the group is queued. O(depth).
    pub fn charge_foreign_service(&self, time: Nanos) {
        let mut level = Some(self);
        while let Some(group) = level {
            group.charge_outside(time);
            level = group.parent.as_deref();
        }
    }

    /// Time that tasks of the group itself would have paid for inside it ([`crate::RunQueue::charge_within`]), but they are gone: its
    /// child groups, which compete with them, have not received it. The group itself has paid. O(1).
    pub fn charge_gone_tasks(&self, time: Nanos) {
        let config = self.config();
        if config.cpus > 1 && self.time.has_groups() {
            let told = Told {
                own: time.0,
                ..Told::default()
            };
            self.time.publish_tasks(&told);
        }
    }

    /// A thread outside the run queues begins to work for the group itself.
    pub fn join_outside(&self) {
        self.outside.members.fetch_add(1, Relaxed);
    }

    /// It works for the group no more.
    pub fn leave_outside(&self) {
        self.outside.members.fetch_sub(1, Relaxed);
    }

    /// Threads outside the run queues that work for the group itself now.
    pub fn members_outside(&self) -> usize {
        self.outside.members.load(Relaxed) as usize
    }

    /// Whether the group is `ancestor` or below it. O(depth).
    #[inline]
    pub fn is_within(&self, ancestor: &Group) -> bool {
        let mut level = Some(self);
        while let Some(group) = level {
            if core::ptr::eq(group, ancestor) {
                return true;
            }
            level = group.parent.as_deref();
        }
        false
    }

    /// Sets the least limit on the group's CPU time that somebody waits for, or that nobody does.
    pub fn set_alarm(&self, limit: Option<Nanos>) {
        let limit = limit.map_or(u64::MAX, |limit| limit.0);
        self.alarm.store(limit, SeqCst);
    }

    /// Whether the group's clock has reached its alarm. One load if nobody waits.
    #[inline]
    pub fn alarm_is_due(&self) -> bool {
        let limit = self.alarm.load(SeqCst);
        limit != u64::MAX && self.cpu_time().0 >= limit
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Group")
            .field("id", &self.id)
            .field("path", &self.path)
            .field("weight", &self.weight())
            .field("idle", &self.is_idle())
            .field("removed", &self.is_removed())
            .finish_non_exhaustive()
    }
}
