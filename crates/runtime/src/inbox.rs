//! Tasks on their way to a virtual CPU from other threads, or that its own thread wants others to see.
//!
//! Pushed by anybody, taken by the owner once a switch, and by an idle virtual CPU while the owner is stuck in a long poll. A
//! closed inbox (the scheduler has ended) gives the task back, so that no token can be lost in a queue nobody looks at.
//! Bounded by the number of live tasks: a task is in at most one queue.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use quotient_core::Enqueue;

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

#[derive(Debug, Default)]
struct Inner {
    arrivals: Vec<Arrival>,
    closed: bool,
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
}

impl Inbox {
    /// Adds a task; gives it back if the inbox is closed.
    pub(crate) fn push(&self, arrival: Arrival) -> Result<(), Task> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(arrival.task);
        }
        inner.arrivals.push(arrival);
        self.len.store(inner.arrivals.len(), Ordering::Release);
        Ok(())
    }

    /// Number of waiting tasks.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Moves everything to the end of `target`, oldest first.
    pub(crate) fn take_all(&self, target: &mut Vec<Arrival>) {
        let mut inner = self.lock();
        let taken = inner.arrivals.len();
        target.append(&mut inner.arrivals);
        give_back(&mut inner.arrivals, taken);
        self.len.store(0, Ordering::Release);
    }

    /// Moves the older half, at least one if there is any, to the end of `target`; for a thief.
    pub(crate) fn take_half(&self, target: &mut Vec<Arrival>) {
        let mut inner = self.lock();
        let count = inner.arrivals.len().div_ceil(2);
        target.extend(inner.arrivals.drain(..count));
        self.len.store(inner.arrivals.len(), Ordering::Release);
    }

    /// Refuses everything from now on, and gives back what waits.
    pub(crate) fn close(&self) -> Vec<Arrival> {
        let mut inner = self.lock();
        inner.closed = true;
        self.len.store(0, Ordering::Release);
        std::mem::take(&mut inner.arrivals)
    }

    /// Accepts tasks again; for a stand-in's slot that is used anew.
    pub(crate) fn reopen(&self) {
        self.lock().closed = false;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}
