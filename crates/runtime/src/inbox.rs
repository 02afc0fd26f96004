//! Tasks on their way to a virtual CPU from other threads, or that its own thread wants others to see.
//!
//! Pushed by anybody, taken by the owner once a switch, and by an idle virtual CPU while the owner is stuck in a long poll. A
//! closed inbox (the scheduler has ended) gives the task back, so that no token can be lost in a queue nobody looks at.
//! Bounded by the number of live tasks: a task is in at most one queue.
//!
//! # Floods
//! The owner takes in all that has come before it chooses, so what one group brings keeps everybody waiting (a tenant that spawned and aborted
//! tasks from threads of its own kept others for a second). So beyond [`ORDINARY`] arrivals what comes is kept by group, in the order in which
//! it came, and so is what that group brings from then on until the owner has taken it in, [`FLOOD_PART`] a turn, the groups in turn. Who
//! brings little is never behind it: its arrivals are among the ordinary ones, or few.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use quotient_core::Enqueue;

use crate::group::GroupShared;
use crate::task_context::Task;

/// One queued task and how it came.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) task: Task,
    pub(crate) kind: Enqueue,
}

impl Arrival {
    /// How it came, in the bits that a [`Slot`](crate::task::Slot) keeps beside the token.
    #[inline]
    pub(crate) fn tag(kind: Enqueue) -> u8 {
        match kind {
            Enqueue::Wake => 0,
            Enqueue::WakeBuddy => 1,
            Enqueue::New => 2,
            Enqueue::Migrate => 3,
        }
    }

    /// Of what a slot gave back.
    #[inline]
    pub(crate) fn from_slot((task, tag): (Task, u8)) -> Self {
        let kind = match tag {
            1 => Enqueue::WakeBuddy,
            2 => Enqueue::New,
            3 => Enqueue::Migrate,
            _ => Enqueue::Wake,
        };
        Self { task, kind }
    }
}

/// So many arrivals are taken in at once. Unit: arrivals. Some 100 us.
const ORDINARY: usize = 256;
/// ... and so many of one group beyond. Unit: arrivals.
const FLOOD_PART: usize = 64;

#[derive(Debug, Default)]
struct Inner {
    arrivals: Vec<Arrival>,
    /// What came beyond, by the numbers of the groups.
    floods: BTreeMap<u32, VecDeque<Arrival>>,
    /// These numbers, each once.
    turns: VecDeque<u32>,
    closed: bool,
}

impl Inner {
    /// What comes when there are floods, or too many ordinary arrivals.
    #[cold]
    fn push_beyond(&mut self, mut arrival: Arrival) {
        let group = arrival.task.owned_mut().group.core.id();
        if let Some(flood) = self.floods.get_mut(&group) {
            flood.push_back(arrival);
        } else if self.arrivals.len() < ORDINARY {
            self.arrivals.push(arrival);
        } else {
            self.floods.insert(group, VecDeque::from([arrival]));
            self.turns.push_back(group);
        }
    }

    /// Takes a part of the flood whose turn it is.
    #[cold]
    fn take_part(&mut self, target: &mut Vec<Arrival>) -> usize {
        let Some(group) = self.turns.pop_front() else {
            return 0;
        };
        let Some(flood) = self.floods.get_mut(&group) else {
            return 0;
        };
        let count = flood.len().min(FLOOD_PART);
        target.extend(flood.drain(..count));
        if flood.is_empty() {
            self.floods.remove(&group);
        } else {
            self.turns.push_back(group);
        }
        count
    }
}

/// Room for so many arrivals is kept after a spike. Unit: arrivals, 16 bytes each; 1024 are a few times what comes between two
/// switches of a busy server.
const KEPT: usize = 1024;

/// Gives memory back that a spike left behind, once traffic is ordinary again: `used` is what was in it last.
#[inline]
pub(crate) fn give_back<T>(emptied: &mut Vec<T>, used: usize) {
    if emptied.capacity() > KEPT && used < KEPT / 2 {
        emptied.shrink_to(KEPT);
    }
}

/// The inbox of one virtual CPU.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    inner: Mutex<Inner>,
    /// Written under the lock, read without it: a hint for the owner, and exact for the sleep protocol because the push comes
    /// before the waker's fence (see `park`).
    len: AtomicUsize,
    /// Whether there are floods. As `len`.
    flooded: AtomicBool,
}

impl Inbox {
    /// Adds a task; gives it back if the inbox is closed.
    pub(crate) fn push(&self, arrival: Arrival) -> Result<(), Task> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(arrival.task);
        }
        if inner.arrivals.len() >= ORDINARY || !inner.turns.is_empty() {
            inner.push_beyond(arrival);
            self.look_at_floods(&inner);
        } else {
            inner.arrivals.push(arrival);
        }
        let len = self.len.load(Ordering::Relaxed) + 1;
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// Number of waiting tasks.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether there are floods. A hint, as [`Inbox::len`].
    pub(crate) fn is_flooded(&self) -> bool {
        self.flooded.load(Ordering::Relaxed)
    }

    /// Moves all ordinary arrivals to the end of `target`, oldest first.
    pub(crate) fn take_all(&self, target: &mut Vec<Arrival>) {
        let mut inner = self.lock();
        let taken = inner.arrivals.len();
        target.append(&mut inner.arrivals);
        give_back(&mut inner.arrivals, taken);
        self.less(taken);
    }

    /// Moves a part of one flood, if there is any, to the end of `target`, and says whose it is.
    #[cold]
    pub(crate) fn take_flood(&self, target: &mut Vec<Arrival>) -> Option<Arc<GroupShared>> {
        let mut inner = self.lock();
        let taken = inner.take_part(target);
        self.less(taken);
        self.look_at_floods(&inner);
        drop(inner);
        let last = target.last_mut().filter(|_| taken > 0)?;
        Some(last.task.owned_mut().group.clone())
    }

    /// Moves the older half, at least one if there is any, to the end of `target`; for a thief.
    pub(crate) fn take_half(&self, target: &mut Vec<Arrival>) {
        let mut inner = self.lock();
        let count = inner.arrivals.len().div_ceil(2);
        target.extend(inner.arrivals.drain(..count));
        let beyond = if count == 0 {
            inner.take_part(target)
        } else {
            0
        };
        self.less(count + beyond);
        self.look_at_floods(&inner);
    }

    /// Refuses everything from now on, and gives back what waits.
    pub(crate) fn close(&self) -> Vec<Arrival> {
        let mut inner = self.lock();
        inner.closed = true;
        self.len.store(0, Ordering::Release);
        inner.turns.clear();
        let mut all = std::mem::take(&mut inner.arrivals);
        let floods = std::mem::take(&mut inner.floods);
        all.extend(floods.into_values().flatten());
        all
    }

    /// Accepts tasks again; for a stand-in's slot that is used anew.
    pub(crate) fn reopen(&self) {
        self.lock().closed = false;
    }

    /// Under the lock.
    fn less(&self, taken: usize) {
        let len = self.len.load(Ordering::Relaxed) - taken;
        self.len.store(len, Ordering::Release);
    }

    /// Under the lock, after a part of a flood was taken.
    fn look_at_floods(&self, inner: &Inner) {
        let flooded = !inner.turns.is_empty();
        self.flooded.store(flooded, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::Location;

    use quotient_core::{TaskEntity, Weight};

    use super::*;
    use crate::task;
    use crate::task_context::{Owned, TaskContext};

    /// Hazard: what one group brings is taken in before anything that others bring after it.
    #[test]
    fn a_flood_keeps_what_others_bring_waiting() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let build = async { crate::Scheduler::builder().vcpus(1).build() };
        let scheduler = runtime.block_on(build).unwrap();
        let group = |name: &str| scheduler.group(name).unwrap().create().unwrap();
        let (flood, other) = (group("flood"), group("other"));
        let inbox = Inbox::default();
        let push = |group: &crate::Group| {
            let shared = group.shared.clone();
            let context = TaskContext::uncounted(shared, Location::caller(), 0);
            let owned = Owned {
                entity: TaskEntity::new(Weight::DEFAULT, None),
                group: group.inner.clone(),
                since: quotient_core::Nanos::ZERO,
                throttling: None,
            };
            let (task, _, _) = task::spawn_as(
                task::Id::next(),
                task::trace::SpanId::NONE,
                std::future::pending::<()>(),
                context,
                owned,
            );
            let kind = Enqueue::New;
            assert!(inbox.push(Arrival { task, kind }).is_ok());
        };
        (0..10_000).for_each(|_| push(&flood));
        push(&other);
        let is_of = |arrival: &mut Arrival, group: &crate::Group| {
            Arc::ptr_eq(&arrival.task.owned_mut().group, &group.inner)
        };
        let (mut taken, mut rounds, mut found) = (0, 0, None);
        while inbox.len() > 0 {
            rounds += 1;
            // Who brings some now is not behind those either.
            push(&other);
            let mut arrivals = Vec::new();
            inbox.take_all(&mut arrivals);
            assert!(arrivals.len() <= ORDINARY);
            let payer = inbox.take_flood(&mut arrivals);
            assert!(payer.is_none_or(|payer| {
                Arc::ptr_eq(&payer, &flood.inner) || Arc::ptr_eq(&payer, &other.inner)
            }));
            assert!(
                arrivals.len() <= ORDINARY + FLOOD_PART,
                "{}",
                arrivals.len()
            );
            taken += arrivals.len();
            if arrivals.iter_mut().any(|arrival| is_of(arrival, &other)) {
                found.get_or_insert(rounds);
            }
            arrivals
                .into_iter()
                .for_each(|arrival| arrival.task.cancel());
            if rounds > 300 {
                break;
            }
        }
        assert!(
            found.is_some_and(|found| found <= 2),
            "{found:?} of {rounds}"
        );
        assert!(taken > 10_000, "{taken} in {rounds}");
        for arrival in inbox.close() {
            arrival.task.cancel();
        }
        runtime.block_on(scheduler.shutdown());
    }
}
