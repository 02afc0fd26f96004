//! The state that all parts of one scheduler share, and how a woken task finds a virtual CPU.
//!
//! # Who may touch what
//! - A run queue belongs to its virtual CPU; a thief takes its lock with `try_lock` and only removes waiting tasks. Nobody holds
//!   two run-queue locks at once, and no lock is held while user code runs.
//! - The idle set says which virtual CPUs may be claimed: a bit is set by the sleeper before it sleeps, cleared by whoever claims it or by
//!   its own next poll. It is a hint for choosing (see `idle`); the truth is the parking word (see `park`).
//! - A woken task goes (1) to the `next` slot of the virtual CPU that the waking thread runs (`local`), or (2) to the inbox of its
//!   home, or, if its home is busy and another is idle, to the idle one's. A queued token is in exactly one slot, inbox, run queue
//!   or frozen list.
//! - What a virtual CPU cannot look at, others take: the slot of one that is stuck is seized and closed, its inbox and queue are
//!   emptied (`vcpu::migrate`); an inbox that fills during a poll is open to whoever is idle.
//!
//! # Publish to idle
//! A wake-up that is displaced from the slot during a poll is offered at once. Publisher: (P1) push to the own inbox; (P2) fence;
//! (P3) look at the idle set, and wake one of those in it. Sleeper: (S1) set its bit in the idle set and the parking word;
//! (S2) fence; (S3) look at all inboxes. Either P3 sees the bit, or S3 sees the arrival. (Each of these steps is needed: `park` has a model
//! for each that fails without it.) What is left in a slot, a queue or a mailbox of
//! somebody who got stuck later is the watch's to find (`watch`).
//! Waking from inside a poll needs the host's door bell: tokio puts whom a worker wakes where only that worker looks, and it is busy.
//!
//! # End of the scheduler
//! `phase` only grows. `OPEN -> CLOSING`: spawns are refused, every live task is aborted, so that the virtual CPUs drop the
//! futures. `CLOSING -> CLOSED`: no virtual CPU is left (they ended because no task lives, or the host dropped them); inboxes
//! are closed, what waits is cancelled on the spot, and so is what comes later, though not inside of whoever brings it (`last_rites`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use crossbeam_utils::CachePadded;
use quotient_core::Topology;
use quotient_core::{CpuClock, CpuId, CpuLoad, Detached, Enqueue, Gates, GroupTree, Nanos};

use crate::alarms::Alarms;
use crate::clock::Clock;
use crate::config::Config;
use crate::cpu_timer::CpuTimers;
use crate::event_log::EventLog;
use crate::gates::{RunQueue, RuntimeGates};
use crate::group::GroupShared;
use crate::host::Host;
use crate::host_end::HostEnd;
use crate::idle::{IdleSet, VcpuSet};
use crate::inbox::{Arrival, Inbox};
use crate::kills::Kills;
use crate::last_rites::LastRites;
use crate::loss::LossCounters;
use crate::names::Names;
use crate::park::Park;
use crate::preempt::Preempting;
use crate::scheduler::Handles;
use crate::task::Slot;
use crate::task_context::{Task, TaskContext, TaskRef};
use crate::tick::TickControl;
use crate::vcpu::HandedOver;
use crate::watch::{SPARE_AFTER, STUCK};

/// Spawns are accepted.
pub(crate) const OPEN: u8 = 0;
/// Tasks are being aborted; virtual CPUs end once none lives.
pub(crate) const CLOSING: u8 = 1;
/// No virtual CPU is left.
pub(crate) const CLOSED: u8 = 2;

/// One virtual CPU as others see it.
#[derive(Debug)]
pub(crate) struct VcpuShared {
    pub(crate) queue: Mutex<RunQueue<Task>>,
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
    pub(crate) releases: Mutex<Vec<Arc<GroupShared>>>,
    /// Whether there are any: saves the lock.
    pub(crate) has_releases: AtomicBool,
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
                    queue: Mutex::new(queue),
                    next: Slot::new(),
                    inbox: Inbox::default(),
                    releases: Mutex::new(Vec::new()),
                    has_releases: AtomicBool::new(false),
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
        let root = Arc::new(GroupShared::new(tree.root(), None, slots));
        static SCHEDULERS: AtomicU64 = AtomicU64::new(0);
        Self {
            number: SCHEDULERS.fetch_add(1, Ordering::Relaxed),
            clock,
            groups: RwLock::new(HashMap::new()),
            groups_version: AtomicU64::new(0),
            root,
            vcpus,
            regular,
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
            names: Names::default(),
            log: EventLog::new(slots),
            losses: LossCounters::default(),
            records_pressure: AtomicBool::new(false),
            last_rites: LastRites::default(),
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

    /// The scheduler has ended, destructors of its tasks included (but for the one that asks).
    pub(crate) fn has_ended(&self) -> bool {
        self.phase() == CLOSED && self.last_rites.are_over()
    }

    /// Live tasks of all groups.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    /// Locks a run queue. A panic under this lock aborts the process (see `vcpu`), so poison cannot be seen.
    pub(crate) fn queue(&self, vcpu: usize) -> MutexGuard<'_, RunQueue<Task>> {
        self.vcpus[vcpu]
            .queue
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Takes every waiting task out of a run queue.
    pub(crate) fn drain_queue(&self, vcpu: usize) -> Vec<Detached<Task>> {
        let mut waiting = Vec::new();
        self.queue(vcpu).drain(None, self.now(), &mut waiting);
        waiting
    }

    /// A task is about to be listed in a group.
    pub(crate) fn task_began(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    /// A task's future was dropped and its output stored.
    pub(crate) fn task_ended(&self) {
        if self.live.fetch_sub(1, Ordering::AcqRel) == 1 && self.may_end() {
            self.wake_everybody();
        }
    }

    /// Nothing lives and nobody can spawn any more: the virtual CPUs end. Once true it stays true.
    pub(crate) fn may_end(&self) -> bool {
        (self.phase() != OPEN || self.handle_count.load(Ordering::Acquire) == 0) && self.live() == 0
    }

    /// The home of a task that is spawned from outside: one virtual CPU after the other.
    pub(crate) fn next_home(&self) -> usize {
        self.next_home.fetch_add(1, Ordering::Relaxed) % self.regular
    }

    /// One more handle for the user.
    pub(crate) fn handles(self: &Arc<Self>) -> Arc<Handles> {
        Handles::new(self)
    }

    /// A virtual CPU of this thread hands on a task that others may see; `polling`: it will not look at its inbox itself before the
    /// end of a poll.
    pub(crate) fn publish_local(&self, vcpu: usize, mut arrival: Arrival, polling: bool) {
        if arrival.kind == Enqueue::WakeBuddy {
            arrival.kind = Enqueue::Wake;
        }
        if let Err(task) = self.vcpus[vcpu].inbox.push(arrival) {
            self.last_rites.cancel(task);
        } else if polling && self.vcpus.len() > 2 {
            // P2, P3. With one regular virtual CPU there is nobody to offer it to.
            if self.idle.any_after_push() {
                self.offer(vcpu);
            }
        }
    }

    /// Wakes an idle virtual CPU from inside a poll.
    #[cold]
    fn offer(&self, vcpu: usize) {
        if self.kick_idle(vcpu) {
            self.host.ring();
        }
    }

    /// A thread outside the virtual CPUs (a driver, a timer, another runtime) woke or spawned `task`.
    pub(crate) fn submit_remote(&self, task: Task, kind: Enqueue) {
        // Nobody is to be stopped while it holds an inbox.
        let _shield = self.shield();
        if let Some(target) = self.hand_in(task, kind)
            && self.wake_vcpu(target)
            && crate::local::is_polling()
        {
            self.host.ring();
        }
    }

    /// As [`Shared::submit_remote`], but the virtual CPU that is returned is for the caller to wake.
    pub(crate) fn hand_in(&self, mut task: Task, kind: Enqueue) -> Option<usize> {
        // A buddy is a task's choice; a driver's wake-ups come in no order that means anything.
        let kind = if kind == Enqueue::WakeBuddy {
            Enqueue::Wake
        } else {
            kind
        };
        let now = self.clock.now();
        task.owned_mut().since = now;
        let home = task.context().home.load(Ordering::Relaxed) as usize;
        let target = self.choose(home, now);
        if RuntimeGates::events() {
            self.log.wake(&mut task, kind, target, None, now);
        }
        match self.vcpus[target].inbox.push(Arrival { task, kind }) {
            Ok(()) => {
                self.vcpus[target].resched.store(true, Ordering::Relaxed);
                Some(target)
            }
            // A stand-in that has just retired: its home is a regular one from now on.
            Err(mut task) => {
                task.context().home.store(0, Ordering::Relaxed);
                if self.phase() == CLOSED || target < self.regular {
                    self.last_rites.cancel(task);
                    return None;
                }
                task.owned_mut().since = now;
                match self.vcpus[0].inbox.push(Arrival { task, kind }) {
                    Ok(()) => Some(0),
                    Err(task) => {
                        self.last_rites.cancel(task);
                        None
                    }
                }
            }
        }
    }

    /// The home if it is free to take the task at once, else an idle virtual CPU, else the home. A stuck or offline home is
    /// replaced by the first that is neither, if there is any.
    fn choose(&self, home: usize, now: Nanos) -> usize {
        let serves = |vcpu: usize| {
            self.vcpus[vcpu].online.load(Ordering::Relaxed) && !self.is_stuck(vcpu, now)
        };
        let home = if serves(home) {
            home
        } else {
            (0..self.vcpus.len())
                .find(|vcpu| serves(*vcpu))
                .unwrap_or(0)
        };
        let vcpu = &self.vcpus[home];
        if vcpu.park.is_sleeping() {
            return home;
        }
        let Some(idle) = self.idle.find(home) else {
            return home;
        };
        let busy = vcpu.polling_since.load(Ordering::Relaxed) != 0
            || self.loads[home].nr_queued() > 0
            || vcpu.inbox.len() > 0;
        if busy { idle } else { home }
    }

    /// Whether a virtual CPU cannot look at its queues for a while: it blocks in place, is in a poll longer than [`STUCK`], has
    /// waited that long for the host to poll it, or went with the host's runtime.
    pub(crate) fn is_stuck(&self, vcpu: usize, now: Nanos) -> bool {
        self.is_stuck_for(vcpu, STUCK, now) || self.is_gone(vcpu)
    }

    fn is_stuck_for(&self, vcpu: usize, time: Nanos, now: Nanos) -> bool {
        let vcpu = &self.vcpus[vcpu];
        let reached = |since: u64| since != 0 && now.saturating_sub(Nanos(since - 1)) >= time;
        // A worker that polls what gates let through does the groups' work: somebody else would only let more through.
        let absent = match vcpu.absent.load(Ordering::Relaxed) {
            0 => 0,
            since => since.max(vcpu.gated_at.load(Ordering::Relaxed)),
        };
        vcpu.blocked.load(Ordering::Relaxed)
            || reached(vcpu.polling_since.load(Ordering::Relaxed))
            || reached(absent)
    }

    /// Whether a regular virtual CPU has ended, or went with the host's runtime.
    fn is_gone(&self, vcpu: usize) -> bool {
        vcpu < self.regular && !self.vcpus[vcpu].online.load(Ordering::Relaxed)
    }

    /// Whether a virtual CPU is stuck without use of a processor: its poll said so, or was seen to sleep in the kernel.
    pub(crate) fn is_blocked(&self, vcpu: usize) -> bool {
        let vcpu = &self.vcpus[vcpu];
        let since = vcpu.polling_since.load(Ordering::Relaxed);
        since != 0
            && (vcpu.blocked.load(Ordering::Relaxed)
                || vcpu.asleep.load(Ordering::Relaxed) == since)
    }

    /// Whether anything waits at a virtual CPU, for itself or for whoever takes its place.
    pub(crate) fn has_work(&self, vcpu: usize) -> bool {
        let other = &self.vcpus[vcpu];
        self.loads[vcpu].nr_queued() > 0
            || other.inbox.len() > 0
            || other.next.is_filled()
            || self.loads[vcpu].has_unthrottles()
            || other.has_releases.load(Ordering::Relaxed)
    }

    /// How many stand-ins there should be: one for each virtual CPU that blocks, whose processor is free then; and one spare when
    /// every regular one has been stuck for [`SPARE_AFTER`]. None while nobody drives the host. Those that went with the host's
    /// runtime are missed only by polls that block: what is left is dropped with the last virtual CPU otherwise.
    pub(crate) fn stand_ins_wanted(&self, now: Nanos) -> usize {
        if !self.is_driven() {
            return 0;
        }
        let blocked = (0..self.vcpus.len())
            .filter(|vcpu| self.is_blocked(*vcpu))
            .count();
        let missed = blocked > 0 || self.handed_over.any();
        // What the end of the host's runtime keeps from its turns is about to go, and what waits goes with it.
        let lasting = missed || !self.host_end.is_ending();
        let spare = lasting
            && (0..self.regular).all(|vcpu| {
                self.is_blocked(vcpu)
                    || self.is_stuck_for(vcpu, SPARE_AFTER, now)
                    || missed && self.is_gone(vcpu)
            });
        (blocked + usize::from(spare)).min(self.regular)
    }

    /// The inbox of a virtual CPU that is in a poll, or stuck, has something for an idle one.
    pub(crate) fn has_offers(&self, except: usize, now: Nanos) -> bool {
        self.vcpus.iter().enumerate().any(|(index, other)| {
            index != except
                && other.inbox.len() > 0
                && (other.polling_since.load(Ordering::Relaxed) != 0 || self.is_stuck(index, now))
        })
    }

    /// Whether the host's runtime runs: a multi-thread one does, a current-thread one is known to while a regular virtual CPU is in a
    /// poll. (It may be that its thread is in another task; from outside that looks as if its `block_on` had returned.) One that
    /// ends counts as driven, for what is left to be dropped.
    pub(crate) fn is_driven(&self) -> bool {
        let polls =
            |vcpu: &CachePadded<VcpuShared>| vcpu.polling_since.load(Ordering::Relaxed) != 0;
        !self.by_hand || self.vcpus[..self.regular].iter().any(polls) || self.host_end.is_ending()
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
    pub(crate) fn kick(&self, vcpus: &VcpuSet) {
        for vcpu in vcpus.iter() {
            self.vcpus[vcpu].resched.store(true, Ordering::Relaxed);
            self.wake_vcpu(vcpu);
        }
    }

    /// Asks a virtual CPU to take tasks of `group` that have a place elsewhere, lent or as the dead, out of its queue. At most one entry a group.
    pub(crate) fn ask_to_release(&self, vcpu: usize, group: &Arc<GroupShared>) {
        let me = &self.vcpus[vcpu];
        let mut releases = me
            .releases
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        if !releases.iter().any(|known| Arc::ptr_eq(known, group)) {
            releases.push(group.clone());
        }
        drop(releases);
        me.has_releases.store(true, Ordering::Release);
        self.wake_vcpu(vcpu);
    }

    /// L2 of `group::shared`: a group with tasks that were aborted while its limit may keep them back.
    pub(crate) fn list_dying(&self, group: Arc<GroupShared>) {
        self.dying
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
            .push(group);
        self.has_dying.store(true, Ordering::SeqCst);
        self.tick.run();
    }

    /// Whether the tick thread has to ask for such tasks.
    pub(crate) fn has_dying(&self) -> bool {
        self.has_dying.load(Ordering::SeqCst)
    }

    /// Whether removed groups wait for their end.
    pub(crate) fn has_leaving(&self) -> bool {
        let leaving = self.leaving.lock();
        !leaving
            .unwrap_or_else(|poison| poison.into_inner())
            .is_empty()
    }

    /// L3 of `group::shared`, by the tick thread. O(groups with such tasks x virtual CPUs).
    pub(crate) fn let_go_of_the_dead(&self) {
        if !self.has_dying() {
            return;
        }
        self.has_dying.store(false, Ordering::SeqCst);
        let dying = std::mem::take(
            &mut *self
                .dying
                .lock()
                .unwrap_or_else(|poison| poison.into_inner()),
        );
        for group in dying {
            group.unlist_dying();
            for (index, vcpu) in self.vcpus.iter().enumerate() {
                if vcpu.online.load(Ordering::Relaxed) {
                    self.ask_to_release(index, &group);
                }
            }
        }
    }

    /// Runs due refills, at most one batch of the core's; whether more are due. Takes no run-queue lock.
    pub(crate) fn refill(&self, now: Nanos) -> bool {
        if self.tree.next_refill().is_none_or(|due| due > now) {
            return false;
        }
        let mut kicked = VcpuSet::default();
        let more = self.tree.refill(now, &mut |cpu| kicked.insert(cpu.index()));
        if RuntimeGates::events() {
            self.log.look_at_limits(self, now);
        }
        self.kick(&kicked);
        more
    }

    /// Wakes an idle virtual CPU, if there is one, to take part of what waits at `vcpu`.
    pub(crate) fn kick_idle(&self, vcpu: usize) -> bool {
        self.idle
            .find(vcpu)
            .is_some_and(|sleeper| self.wake_vcpu(sleeper))
    }

    /// Wakes all virtual CPUs, so that they look at the phase.
    pub(crate) fn wake_everybody(&self) {
        for vcpu in 0..self.vcpus.len() {
            self.wake_vcpu(vcpu);
        }
    }

    /// Refuses spawns from now on and aborts every live task. Idempotent. O(tasks).
    pub(crate) fn close(&self) {
        let _ = self
            .phase
            .compare_exchange(OPEN, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        for group in self.all_groups() {
            group.count_dropped(self);
            group.abort_own(self);
            // Nobody is left to be limited, and a throttled task must run its destructor now. It cannot fail: no limit is valid.
            let _ = group.core.set_limit(None, self.now(), &mut |_| {});
        }
        self.wake_everybody();
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

    /// One more future of a virtual CPU exists; false, and none may be made, once the last one has gone.
    pub(crate) fn future_began(&self) -> bool {
        let one_more = |count: usize| (count > 0).then_some(count + 1);
        let began = self
            .futures
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        began.is_ok()
    }

    /// Futures of virtual CPUs that exist.
    pub(crate) fn futures(&self) -> usize {
        self.futures.load(Ordering::Relaxed)
    }

    /// The host dropped the future of a virtual CPU (it ended, or the host's runtime shuts down).
    pub(crate) fn future_ended(&self, vcpu: usize) {
        self.vcpus[vcpu].online.store(false, Ordering::Release);
        self.idle.remove_if_there(vcpu);
        self.future_gone();
    }

    /// A future of a virtual CPU is gone, or what had a share in their number: with the last one the scheduler ends.
    pub(crate) fn future_gone(&self) {
        if self.futures.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        // Before anybody can find the phase or an inbox closed: what comes from here on is brought to this thread.
        let rites = self.last_rites.begin();
        self.phase.store(CLOSED, Ordering::Release);
        self.tick.stop();
        self.host.close();
        if let Some(preempting) = &self.preempt {
            preempting.close();
        }
        for group in self.all_groups() {
            group.count_dropped(self);
        }
        for vcpu in 0..self.vcpus.len() {
            if let Some((task, _)) = self.vcpus[vcpu].next.seize() {
                task.cancel();
            }
            for arrival in self.vcpus[vcpu].inbox.close() {
                arrival.task.cancel();
            }
            for detached in self.drain_queue(vcpu) {
                detached.handle.cancel();
            }
        }
        // Sleeping tasks: the abort queues each, finds every inbox closed, and so brings it here.
        for group in self.all_groups() {
            group.abort_own(self);
        }
        rites.end();
        self.cpu_timers.close();
        self.alarms.close();
        self.ended.notify_waiters();
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
