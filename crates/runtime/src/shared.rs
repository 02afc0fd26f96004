//! The state that all parts of one scheduler share. Modules of their own: how a woken task finds a virtual CPU (`hand_in`), who cannot
//! look at its queues (`stuck`), how it ends (`end`).
//!
//! # Who may touch what
//! - A run queue belongs to its virtual CPU; a thief takes its lock with `try_lock` and only removes waiting tasks. Nobody holds
//!   two run-queue locks at once, and no lock is held while user code runs.
//! - The idle set says which virtual CPUs may be claimed: a bit is set by the sleeper before it sleeps, cleared by whoever claims it or by
//!   its own next poll. It is a hint for choosing (see `idle`); the truth is the parking word (see `park`).
//! - What a virtual CPU cannot look at, others take: the slot of one that is stuck is seized and closed, its inbox and queue are
//!   emptied (`vcpu::migrate`); an inbox that fills during a poll is open to whoever is idle.

mod end;
mod hand_in;
mod searches;
mod stuck;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use crossbeam_utils::CachePadded;
use quotient_core::Topology;
use quotient_core::{CpuClock, CpuId, CpuLoad, Detached, Gates, GroupTree, Nanos};

use crate::alarms::Alarms;
use crate::bandwidth::{KeptBack, RungBells};
use crate::clock::Clock;
use crate::config::Config;
use crate::cpu_timer::CpuTimers;
use crate::estates::Estates;
use crate::event_log::EventLog;
use crate::gates::{RunQueue, RuntimeGates};
use crate::group::GroupShared;
use crate::host::Host;
use crate::host_end::HostEnd;
use crate::idle::{IdleSet, VcpuSet};
use crate::inbox::Inbox;
use crate::kills::Kills;
use crate::last_rites::LastRites;
use crate::local_tasks::LocalTasks;
use crate::loss::LossCounters;
use crate::names::Names;
use crate::park::Park;
use crate::preempt::Preempting;
use crate::queue_lock::{QueueGuard, QueueLock};
use crate::releases::Releases;
use crate::scheduler::Handles;
use crate::surplus::Asked;
use crate::task::Slot;
use crate::task_context::{Task, TaskContext, TaskRef};
use crate::tick::TickControl;
use crate::vcpu::HandedOver;

/// Slots of virtual CPUs that compute at the same time for long: each regular one, and a stand-in for it. In the others polls only block.
pub(crate) const fn usual_slots(regular: usize) -> usize {
    regular * 2
}

/// Spawns are accepted.
pub(crate) const OPEN: u8 = 0;
/// Tasks are being aborted; virtual CPUs end once none lives.
pub(crate) const CLOSING: u8 = 1;
/// No virtual CPU is left.
pub(crate) const CLOSED: u8 = 2;

/// One virtual CPU as others see it.
#[derive(Debug)]
pub(crate) struct VcpuShared {
    pub(crate) queue: QueueLock,
    /// The task that its running poll woke last.
    pub(crate) next: Slot<TaskContext>,
    pub(crate) inbox: Inbox,
    pub(crate) park: Park,
    /// Its future exists and will be polled when woken (stand-ins come and go).
    pub(crate) online: AtomicBool,
    /// The running task should return to the scheduler at its next checkpoint.
    pub(crate) resched: AtomicBool,
    /// When the poll in progress started, plus one; 0 between polls. Read by the tick thread.
    pub(crate) polling_since: AtomicU64,
    /// The number of the task that is, or was last, polled: for reports.
    pub(crate) polling: AtomicU64,
    /// The running task said that it blocks in place.
    pub(crate) blocked: AtomicBool,
    /// It has stood back (`crowd`), and has polled nothing since. One writer, the virtual CPU.
    pub(crate) stood_back: AtomicBool,
    /// A poll (`polling_since`) that lasts, and the processor time of its thread when the watch saw it first. One writer, the watch:
    /// the time first.
    pub(crate) lasting: AtomicU64,
    pub(crate) lasting_from: AtomicU64,
    /// The value of `polling_since` for a poll whose thread was seen to sleep in the kernel; any other value means nothing.
    pub(crate) asleep: AtomicU64,
    /// Turns begun and ended: odd during one. One writer, the virtual CPU.
    pub(crate) turns: AtomicU64,
    /// The operating system's number of the thread that made the last turn; 0 where that is not known.
    pub(crate) thread: AtomicU32,
    /// Since when it has been ready and not polled by the host, plus one; 0 when it is not. Set by the watch, cleared by its next turn.
    pub(crate) absent: AtomicU64,
    /// When a poll that a gate had let through began, plus one, on the thread of the last turn, and since that turn; or ended, if it is
    /// over. 0 for none.
    pub(crate) gated_at: AtomicU64,
    /// Groups in which a task waits that was lent a place elsewhere.
    pub(crate) releases: Releases,
    /// Whether there are any: saves the lock. And when it had looked for the last of them ([`searches`]). Unit: nanoseconds of the scheduler's clock.
    pub(crate) has_releases: AtomicBool,
    pub(crate) released_at: AtomicU64,
    /// The same of groups in which a task was aborted, and when to look for it, on the scheduler's clock, at the earliest; 0 if there is none.
    pub(crate) dying: Releases,
    pub(crate) dying_at: AtomicU64,
    /// Whether it is woken for what waits elsewhere.
    pub(crate) surplus: Asked,
    /// The hand of its CPU clocks.
    pub(crate) clock: Arc<CpuClock>,
}

/// All of one scheduler.
pub(crate) struct Shared {
    /// Names the scheduler among all that the process ever had (2^64).
    pub(crate) number: u64,
    pub(crate) clock: Clock,
    pub(crate) tree: GroupTree,
    pub(crate) groups: RwLock<HashMap<u32, Arc<GroupShared>>>,
    /// Grows after each change of `groups`; overflows never (2^64).
    pub(crate) groups_version: AtomicU64,
    pub(crate) root: Arc<GroupShared>,
    /// Regular virtual CPUs first, then the slots of the stand-ins.
    pub(crate) vcpus: Box<[CachePadded<VcpuShared>]>,
    /// Number of regular virtual CPUs.
    pub(crate) regular: usize,
    /// Slots below which all are that were ever used; grows only, before a stand-in begins in a slot.
    slots_in_use: AtomicUsize,
    pub(crate) loads: Box<[Arc<CpuLoad>]>,
    pub(crate) topology: Topology,
    pub(crate) idle: IdleSet,
    phase: AtomicU8,
    /// Live tasks of all groups.
    live: CachePadded<AtomicUsize>,
    /// Futures of virtual CPUs that are still held: by the host, or by the thread of a stand-in.
    futures: AtomicUsize,
    /// What stand-ins know of the end of the host's runtime.
    pub(crate) host_end: HostEnd,
    /// Polls that block in place and have handed over their virtual CPU.
    pub(crate) handed_over: HandedOver,
    /// The host runs only while somebody is inside its `block_on`: a current-thread runtime.
    by_hand: bool,
    /// Handles that users hold; with none and no live task the virtual CPUs end.
    pub(crate) handle_count: AtomicUsize,
    next_home: AtomicUsize,
    pub(crate) ended: tokio::sync::Notify,
    pub(crate) host: Box<dyn Host>,
    pub(crate) tick: TickControl,
    pub(crate) cpu_timers: CpuTimers,
    pub(crate) alarms: Alarms,
    /// Watches whose alarms are to be called.
    pub(crate) rung: Arc<RungBells>,
    /// What groups have left behind.
    /// Holders of locks that wait for budget.
    pub(crate) holders: KeptBack,
    pub(crate) estates: Estates,
    /// What users call their tasks.
    pub(crate) names: Names,
    /// What a recording of events has so far.
    pub(crate) log: EventLog,
    /// What was refused or dropped, in all groups there were.
    pub(crate) losses: LossCounters,
    /// The tick thread looks who waits; see `pressure`.
    pub(crate) records_pressure: AtomicBool,
    /// Tokens that come when no virtual CPU is left.
    pub(crate) last_rites: LastRites,
    /// Tasks of local sets.
    pub(crate) local_tasks: LocalTasks,
    /// Numbers the kills of groups.
    pub(crate) kills: Kills,
    /// Serialises changes of the tree's shape and of the frozen state; never taken on the switch path.
    pub(crate) shape: Mutex<()>,
    /// What was applied last; written under `shape`.
    pub(crate) config: Mutex<Arc<Config>>,
    /// Limited groups with tasks that were aborted, until the tick thread asks the virtual CPUs to let them go; see `group::shared`.
    dying: Mutex<Vec<Arc<GroupShared>>>,
    has_dying: AtomicBool,
    /// Removed groups whose last task was still on a run queue when it ended; the tick thread finishes them.
    pub(crate) leaving: Mutex<Vec<Arc<GroupShared>>>,
    /// What preempts polls that do not return, if that was asked for.
    pub(crate) preempt: Option<Preempting>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Scheduler")
            .field("vcpus", &self.regular)
            .field("live", &self.live.load(Ordering::Relaxed))
            .field("phase", &self.phase.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(
        tree: GroupTree,
        regular: usize,
        slots: usize,
        host: Box<dyn Host>,
        clock: Clock,
        preempt: Option<Preempting>,
    ) -> Self {
        let mut loads = Vec::with_capacity(slots);
        let vcpus = (0..slots)
            .map(|index| {
                let queue = RunQueue::with_gates(&tree, cpu_id(index));
                loads.push(queue.load().clone());
                CachePadded::new(VcpuShared {
                    clock: queue.clock().clone(),
                    queue: QueueLock::new(queue),
                    next: Slot::new(),
                    inbox: Inbox::default(),
                    releases: Releases::default(),
                    has_releases: AtomicBool::new(false),
                    released_at: AtomicU64::new(0),
                    dying: Releases::default(),
                    dying_at: AtomicU64::new(0),
                    surplus: Asked::default(),
                    park: Park::new(),
                    online: AtomicBool::new(index < regular),
                    resched: AtomicBool::new(false),
                    polling_since: AtomicU64::new(0),
                    polling: AtomicU64::new(0),
                    blocked: AtomicBool::new(false),
                    stood_back: AtomicBool::new(false),
                    lasting: AtomicU64::new(0),
                    lasting_from: AtomicU64::new(0),
                    asleep: AtomicU64::new(0),
                    turns: AtomicU64::new(0),
                    thread: AtomicU32::new(0),
                    absent: AtomicU64::new(0),
                    gated_at: AtomicU64::new(0),
                })
            })
            .collect();
        let root = Arc::new(GroupShared::new(tree.root(), None, usual_slots(regular)));
        static SCHEDULERS: AtomicU64 = AtomicU64::new(0);
        Self {
            number: SCHEDULERS.fetch_add(1, Ordering::Relaxed),
            clock,
            groups: RwLock::new(HashMap::new()),
            groups_version: AtomicU64::new(0),
            root,
            vcpus,
            regular,
            slots_in_use: AtomicUsize::new(usual_slots(regular)),
            loads: loads.into_boxed_slice(),
            topology: Topology::flat(u32::try_from(slots).unwrap_or(u32::MAX)),
            idle: IdleSet::new(slots),
            phase: AtomicU8::new(OPEN),
            live: CachePadded::new(AtomicUsize::new(0)),
            futures: AtomicUsize::new(regular),
            host_end: HostEnd::default(),
            handed_over: HandedOver::default(),
            by_hand: host.is_driven_by_hand(),
            handle_count: AtomicUsize::new(0),
            next_home: AtomicUsize::new(0),
            ended: tokio::sync::Notify::new(),
            host,
            tick: TickControl::default(),
            cpu_timers: CpuTimers::default(),
            alarms: Alarms::default(),
            rung: Arc::default(),
            holders: KeptBack::default(),
            estates: Estates::default(),
            names: Names::default(),
            log: EventLog::new(slots),
            losses: LossCounters::default(),
            records_pressure: AtomicBool::new(false),
            last_rites: LastRites::default(),
            local_tasks: LocalTasks::default(),
            kills: Kills::new(),
            shape: Mutex::new(()),
            config: Mutex::default(),
            dying: Mutex::new(Vec::new()),
            has_dying: AtomicBool::new(false),
            leaving: Mutex::new(Vec::new()),
            preempt,
            tree,
        }
    }

    /// What was applied last.
    pub(crate) fn config(&self) -> Arc<Config> {
        let _shield = self.shield();
        self.config
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
            .clone()
    }

    pub(crate) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    /// Live tasks of all groups.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn queue(&self, vcpu: usize) -> QueueGuard<'_> {
        self.vcpus[vcpu].queue.lock()
    }

    /// Takes every waiting task out of a run queue.
    pub(crate) fn drain_queue(&self, vcpu: usize) -> Vec<Detached<Task>> {
        let mut waiting = Vec::new();
        self.queue(vcpu).drain(None, self.now(), &mut waiting);
        waiting
    }

    /// One more handle for the user.
    pub(crate) fn handles(self: &Arc<Self>) -> Arc<Handles> {
        Handles::new(self)
    }

    /// Wakes one virtual CPU if it sleeps; work for it must be visible already.
    pub(crate) fn wake_vcpu(&self, vcpu: usize) -> bool {
        let woken = self.vcpus[vcpu].park.wake(|| self.idle.remove(vcpu));
        if !woken && let Some(preempting) = &self.preempt {
            // `wake` has passed a fence.
            preempting.end_nap(vcpu);
        }
        if woken {
            self.tick.run();
        }
        woken
    }

    /// Makes virtual CPUs look at their groups that a refill or a raised limit has paid for. The groups were posted before.
    /// Whether one slept.
    pub(crate) fn kick(&self, vcpus: &VcpuSet) -> bool {
        let mut woken = false;
        for vcpu in vcpus.iter() {
            self.vcpus[vcpu].resched.store(true, Ordering::Relaxed);
            woken |= self.wake_vcpu(vcpu);
        }
        woken
    }

    /// Whether removed groups wait for their end.
    pub(crate) fn has_leaving(&self) -> bool {
        let leaving = self.leaving.lock();
        !leaving
            .unwrap_or_else(|poison| poison.into_inner())
            .is_empty()
    }

    /// Runs due refills, at most one batch of the core's. Takes no run-queue lock.
    pub(crate) fn refill(&self, now: Nanos) -> Refilled {
        if self.tree.next_refill().is_none_or(|due| due > now) {
            return Refilled::default();
        }
        let mut kicked = VcpuSet::default();
        let more = self.tree.refill(now, &mut |cpu| kicked.insert(cpu.index()));
        if RuntimeGates::events() {
            self.log.look_at_limits(self, now);
        }
        let woken = self.kick(&kicked);
        Refilled { more, woken }
    }

    /// Wakes an idle virtual CPU, if there is one, to look at what cannot wait: `vcpu` is in a poll, or stuck. (`surplus` has the other way.)
    pub(crate) fn kick_idle(&self, vcpu: usize) -> bool {
        self.idle
            .find(vcpu, |_| true)
            .is_some_and(|sleeper| self.wake_vcpu(sleeper))
    }

    /// Wakes all virtual CPUs, so that they look at the phase.
    pub(crate) fn wake_everybody(&self) {
        // A poll may ask, and is not stopped between a virtual CPU's word and its wake-up.
        let _shield = self.shield();
        for vcpu in 0..self.vcpus.len() {
            self.wake_vcpu(vcpu);
        }
    }

    /// Locks the shape of the tree: who is whose parent, frozen flags, the map of groups. Virtual CPUs take it, so a poll that holds it is
    /// not stopped.
    pub(crate) fn lock_shape(&self) -> Shape<'_> {
        let shield = self.shield();
        Shape {
            _guard: self
                .shape
                .lock()
                .unwrap_or_else(|poison| poison.into_inner()),
            _shield: shield,
        }
    }

    /// While it lives, a poll is not stopped here: for whoever takes a lock of the runtime's that others need to get on. Nothing without
    /// preemption.
    #[inline]
    pub(crate) fn shield(&self) -> Option<quotient_pause::Uninterrupted> {
        self.preempt.is_some().then(quotient_pause::uninterrupted)
    }

    /// Every group that exists, the root first.
    pub(crate) fn all_groups(&self) -> Vec<Arc<GroupShared>> {
        let _shield = self.shield();
        let groups = self
            .groups
            .read()
            .unwrap_or_else(|poison| poison.into_inner());
        std::iter::once(self.root.clone())
            .chain(groups.values().cloned())
            .collect()
    }

    /// A new task, which its group's population counts already, is listed in its group, then queued. The caller has checked that the scheduler is open.
    pub(crate) fn list(&self, group: &Arc<GroupShared>, task: &TaskRef, hint: usize) {
        let context: &TaskContext = task.context();
        self.task_began();
        let place = group.owned.insert(task.clone(), hint);
        *context
            .membership
            .lock()
            .unwrap_or_else(|poison| poison.into_inner()) = Some(crate::task_context::Membership {
            group: group.clone(),
            place,
        });
    }

    /// Now, on the scheduler's clock.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }
}

/// What came of [`Shared::refill`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refilled {
    /// More are due.
    pub(crate) more: bool,
    /// A virtual CPU that slept was woken.
    pub(crate) woken: bool,
}

/// The shape of the tree, locked. The lock goes first, then what keeps its holder from being stopped.
#[must_use = "the shape is locked while this lives"]
pub(crate) struct Shape<'a> {
    _guard: MutexGuard<'a, ()>,
    _shield: Option<quotient_pause::Uninterrupted>,
}

/// The core's name of a virtual CPU.
pub(crate) fn cpu_id(index: usize) -> CpuId {
    CpuId(u32::try_from(index).unwrap_or(u32::MAX))
}
