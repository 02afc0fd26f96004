//! How a woken task finds a virtual CPU.
//!
//! It goes (1) to the `next` slot of the virtual CPU that the waking thread runs (`local`), or (2) to the inbox of its home, or, if its
//! home is busy and another is idle, to the idle one's. A queued token is in exactly one slot, inbox, run queue or frozen list.
//!
//! # Publish to idle
//! A wake-up that is displaced from the slot during a poll is offered at once. Publisher: (P1) push to the own inbox; (P2) fence;
//! (P3) look at the idle set, and wake one of those in it. Sleeper: (S1) set its bit in the idle set and the parking word;
//! (S2) fence; (S3) look at all inboxes. Either P3 sees the bit, or S3 sees the arrival. (Each of these steps is needed: `park` has a model
//! for each that fails without it.) What is left in a slot, a queue or a mailbox of
//! somebody who got stuck later is the watch's to find (`watch`).
//! Waking from inside a poll needs the host's door bell: tokio puts whom a worker wakes where only that worker looks, and it is busy.

use std::sync::atomic::Ordering;

use quotient_core::{Enqueue, Gates, Nanos};

use super::{CLOSED, Shared};
use crate::gates::RuntimeGates;
use crate::inbox::Arrival;
use crate::task_context::Task;

impl Shared {
    /// A virtual CPU of this thread hands on a task that others may see; `polling`: it will not look at its inbox itself before the
    /// end of a poll.
    pub(crate) fn publish_local(&self, vcpu: usize, mut arrival: Arrival, polling: bool) {
        if arrival.kind == Enqueue::WakeBuddy {
            arrival.kind = Enqueue::Wake;
        }
        if let Err(task) = self.vcpus[vcpu].inbox.push(arrival) {
            self.last_rites.cancel(task);
        } else if polling && self.slots_in_use() > 2 {
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
        let preempting = self.preempt.as_ref();
        let preempting = preempting
            .filter(|preempting| !crate::local::is_polling() && preempting.is_brought_by_guest());
        if preempting.is_some() {
            task.context().marks.set_brought(true);
        }
        let target = self.submit(task, kind);
        if let Some((preempting, target)) = preempting.zip(target) {
            preempting.note_brought(target);
        }
    }

    /// As [`Shared::submit_remote`], of a thread that has taken turns with the tasks up to now: it is no guest (`preempt::courtesy`) for that.
    pub(crate) fn submit_at_its_end(&self, proxy: Task, kind: Enqueue) {
        let _shield = self.shield();
        self.submit(proxy, kind);
    }

    /// Returns for which virtual CPU.
    fn submit(&self, task: Task, kind: Enqueue) -> Option<usize> {
        let target = self.hand_in(task, kind)?;
        if self.wake_vcpu(target) && crate::local::is_polling() {
            self.host.ring();
        }
        Some(target)
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
                let me = &self.vcpus[target];
                me.resched.store(true, Ordering::Relaxed);
                if let Some(preempting) = &self.preempt
                    && !crate::local::is_polling()
                {
                    preempting.came(me, now);
                }
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
            (0..self.slots_in_use())
                .find(|vcpu| serves(*vcpu))
                .unwrap_or(0)
        };
        let vcpu = &self.vcpus[home];
        if vcpu.park.is_sleeping() {
            return home;
        }
        let Some(idle) = self.idle.find(home, |_| true) else {
            return home;
        };
        let busy = vcpu.polling_since.load(Ordering::Relaxed) != 0
            || self.loads[home].nr_queued() > 0
            || vcpu.inbox.len() > 0;
        if busy { idle } else { home }
    }

    /// The home of a task that is spawned from outside: one virtual CPU after the other.
    pub(crate) fn next_home(&self) -> usize {
        self.next_home.fetch_add(1, Ordering::Relaxed) % self.regular
    }
}
