//! Work that changes virtual CPUs: pulled for balance, taken from who is stuck, handed over at the end; and the stand-ins.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::balance::{self, Reason};
use quotient_core::{CpuId, Detached, Enqueue, Gates, Nanos, Pull};

use super::Vcpu;
use super::limits::{note_choice, note_left};
use super::switch::enqueue;
use crate::gates::{RunQueue, RuntimeGates};
use crate::idle::VcpuSet;
use crate::inbox::{Arrival, give_back};
use crate::shared::{CLOSED, Shared, cpu_id};
use crate::task_context::Task;

/// Largest number of tasks taken from a stuck virtual CPU at once. Unit: tasks; bounds the time under its lock to some 20 us.
const RELIEF_MAX: usize = 128;

impl Vcpu {
    /// Moves waiting tasks from another virtual CPU to this one; true if any came. Whoever is stuck gives all; of the rest the
    /// balancer says from whom, and how many; and who finds nothing in any queue takes from what polls in progress have woken.
    pub(super) fn pull(&mut self, shared: &Shared, reason: Reason, now: Nanos) -> bool {
        self.relieve(shared, now);
        if self.detached.is_empty() {
            let me = cpu_id(self.index);
            let why = (reason, now);
            let loads = &shared.loads[..shared.slots_in_use()];
            balance::pull(&shared.topology, me, loads, why, |request| {
                self.detach(shared, request, now);
                !self.detached.is_empty()
            });
        }
        if self.detached.is_empty() && self.arrivals.is_empty() && reason == Reason::Idle {
            self.raid(shared);
        }
        if self.detached.is_empty() && self.arrivals.is_empty() {
            return false;
        }
        // Into the queue at once: should the host not poll this virtual CPU again soon, others must see what it took.
        let mut queue = shared.queue(self.index);
        self.admit(&mut queue, now);
        self.take_in(shared, &mut queue, now);
        self.waiting = queue.nr_queued();
        true
    }

    /// `picked` is of a group that is owed nothing while a sibling that is owed something waits on another virtual CPU: pulls
    /// that and chooses anew. Under the lock of the own queue; that of the other is only tried, so that two that pull from
    /// each other at once go on instead.
    #[cold]
    pub(super) fn pull_instead(
        &mut self,
        shared: &Shared,
        queue: &mut RunQueue<Task>,
        picked: Task,
        request: &Pull,
        now: Nanos,
    ) -> Option<Task> {
        self.detach(shared, request, now);
        if self.detached.is_empty() {
            return Some(picked);
        }
        self.take_in(shared, queue, now);
        queue.put_prev_preempt(picked, now);
        let mut next = queue.pick(now);
        if RuntimeGates::bandwidth() {
            note_choice(shared, queue, next.as_mut(), now);
        }
        self.waiting = queue.nr_queued();
        next
    }

    /// Queues what was detached elsewhere here.
    fn take_in(&mut self, shared: &Shared, queue: &mut RunQueue<Task>, now: Nanos) {
        for detached in self.detached.drain(..) {
            let mut task = detached.handle;
            task.owned_mut().entity = detached.entity;
            let home = &task.context().home;
            let from = home.swap(self.index as u16, Ordering::Relaxed);
            leaves_its_choice(shared, &mut task, from.into());
            if RuntimeGates::events() {
                shared
                    .log
                    .migrate(&mut task, from as usize, self.index, now);
            }
            enqueue(queue, task, Enqueue::Migrate, now);
        }
        give_back(&mut self.detached, 0);
    }

    /// Takes half of what arrived at a virtual CPU during its poll in progress.
    fn raid(&mut self, shared: &Shared) {
        for (index, other) in shared.used_vcpus().iter().enumerate() {
            let polling = other.polling_since.load(Ordering::Relaxed) != 0;
            if index != self.index && polling && other.inbox.len() > 0 {
                other.inbox.take_half(&mut self.arrivals);
                return;
            }
        }
    }

    /// Rule 8: takes what waits behind others, to choose anew; true if any came.
    pub(super) fn take_from_stuck(&mut self, shared: &Shared, now: Nanos) -> bool {
        self.relieve(shared, now);
        if self.detached.is_empty() && self.arrivals.is_empty() {
            self.raid(shared);
        }
        if self.detached.is_empty() && self.arrivals.is_empty() {
            return false;
        }
        let mut queue = shared.queue(self.index);
        self.admit(&mut queue, now);
        self.take_in(shared, &mut queue, now);
        true
    }

    /// Takes what waits at a virtual CPU that is stuck and cannot look at it itself: its share is not at stake, since it runs none
    /// of it. Its slot stays closed until it has returned. Of one such virtual CPU; but where there are stand-ins, of all, and of those
    /// that stand back as well: there the choice must be among all that waits, or it is among those that nobody wanted.
    fn relieve(&mut self, shared: &Shared, now: Nanos) {
        let crowded = shared.is_crowded();
        for (index, other) in shared.used_vcpus().iter().enumerate() {
            if index == self.index || !shared.has_work(index) {
                continue;
            }
            if !(shared.is_stuck(index, now) || crowded && shared.stands_back(index)) {
                continue;
            }
            if let Some(seized) = other.next.seize() {
                let mut arrival = Arrival::from_slot(seized);
                if arrival.kind == Enqueue::WakeBuddy {
                    arrival.kind = Enqueue::Wake;
                }
                self.arrivals.push(arrival);
            }
            other.inbox.take_all(&mut self.arrivals);
            other.inbox.take_flood(&mut self.arrivals);
            let everything = Pull {
                from: cpu_id(index),
                max: RELIEF_MAX,
                group: 0,
                own: false,
                noted: false,
            };
            self.detach(shared, &everything, now);
            if !crowded || self.detached.len() >= RELIEF_MAX {
                return;
            }
        }
    }

    fn detach(&mut self, shared: &Shared, request: &Pull, now: Nanos) {
        let from = request.from.index();
        if request.noted && self.is_robbed_more_than(shared, from) {
            return;
        }
        if let Some(mut victim) = shared.vcpus[from].queue.try_lock() {
            // Who is stuck cannot empty its mailbox either.
            if RuntimeGates::bandwidth()
                && shared.loads[from].has_unthrottles()
                && shared.is_stuck(from, now)
            {
                victim.unthrottle_pending(now);
            }
            self.detach_from(&mut victim, cpu_id(self.index), request, now);
        }
    }

    /// Takes what `request` says out of `queue`, for virtual CPU `to`.
    pub(super) fn detach_from(
        &mut self,
        queue: &mut RunQueue<Task>,
        to: CpuId,
        request: &Pull,
        now: Nanos,
    ) {
        let first = self.detached.len();
        queue.detach_to(to, request, now, &mut self.detached);
        if RuntimeGates::bandwidth() {
            // How long they were throttled is on the clocks of the queue that they leave.
            for detached in &mut self.detached[first..] {
                note_left(queue, &mut detached.handle, now);
            }
        }
    }

    /// A stand-in is no longer needed: hands its tasks to the regular virtual CPUs.
    pub(super) fn retire(&mut self, shared: &Arc<Shared>) {
        let mut arrivals = shared.vcpus[self.index].inbox.close();
        arrivals.append(&mut self.arrivals);
        let queued = shared.drain_queue(self.index);
        if let Some(preempting) = &shared.preempt {
            // Whoever picks its proxy elsewhere lets it go on.
            preempting.choose_nobody(self.index);
        }
        let mut target = 0;
        let mut woken = VcpuSet::default();
        let mut forward = |task: Task, kind: Enqueue| {
            task.context().home.store(target, Ordering::Relaxed);
            target = (target + 1) % shared.regular as u16;
            if let Some(to) = shared.hand_in(task, kind) {
                woken.insert(to);
            }
        };
        for arrival in arrivals {
            forward(arrival.task, arrival.kind);
        }
        for detached in queued {
            forward(on_its_way(detached), Enqueue::Migrate);
        }
        // Whoever comes for them is to choose among them all.
        shared.kick(&woken);
    }
}

/// What was detached, on its way to an inbox. Whoever gets it may be in a long poll: uncounted until then, its group would come back as from a sleep.
pub(super) fn on_its_way(detached: Detached<Task>) -> Task {
    let (mut task, rest) = detached.split();
    let owned = task.owned_mut();
    owned.entity = rest.entity;
    owned.throttling.get_or_insert_default().on_the_way = Some(Box::new(rest));
    task
}

/// A proxy of a limited group leaves virtual CPU `from`: where it was chosen nobody stops it any more, should the group be out of budget elsewhere.
pub(super) fn leaves_its_choice(shared: &Shared, task: &mut Task, from: usize) {
    if let Some(preempting) = &shared.preempt {
        let owned = task.owned_mut();
        if let Some(bearer) = owned.bearer().filter(|_| owned.group.is_limited()) {
            preempting.dismiss(from, &bearer.clone(), true);
        }
    }
}

/// Starts a stand-in virtual CPU if there are fewer than wanted, or wakes one that sleeps; at most one more at a time. Called by the
/// watch, and by a virtual CPU that is about to block in place.
pub(crate) fn stand_in(shared: &Arc<Shared>) {
    if shared.phase() == CLOSED {
        return;
    }
    let now = shared.now();
    let wanted = shared.stand_ins_wanted(now);
    for index in (shared.regular..shared.vcpus.len()).take(wanted) {
        let vcpu = &shared.vcpus[index];
        // Counted before anybody can see it: from then on the inboxes are not closed for good.
        if !vcpu.online.load(Ordering::Acquire) && shared.future_began() {
            shared.use_slot(index);
            let started = vcpu
                .online
                .compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
            if !started {
                shared.future_gone();
                return;
            }
            vcpu.inbox.reopen();
            shared
                .host
                .spawn_stand_in(Box::pin(Vcpu::new(shared.clone(), index)));
            return;
        }
        if !shared.is_stuck(index, now) {
            // It runs, is about to, or sleeps: then it is enough to wake it.
            shared.wake_vcpu(index);
            return;
        }
    }
}
