//! Wakers that the tick thread calls at a time: for what must not wait for ever, on hosts with or without a timer of their own.
//!
//! Precise to a tick, as the thread looks at them then, and sleeps no longer than until the first. No alarm is late: whoever sets one
//! writes `next` (A1), passes a fence (A2) and looks whether the thread will look in time, else wakes it (A3); the thread announces
//! when it will look, passes a fence and reads `next` (T1 to T3 in `tick`). Not both can miss the other's store. Alarms are rare:
//! shutdown, kill and requests of groups with a bound on their wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use quotient_core::Nanos;

use crate::shared::Shared;

/// The alarms of one scheduler.
#[derive(Debug)]
pub(crate) struct Alarms {
    /// When the first is due; `u64::MAX` for none. Unit: nanoseconds.
    next: AtomicU64,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// By time; the number tells those of one time apart.
    wakers: BTreeMap<(Nanos, u64), Waker>,
    /// Numbers given so far; they do not run out.
    numbers: u64,
    /// The thread has ended: nobody would be woken.
    closed: bool,
}

impl Default for Alarms {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(u64::MAX),
            list: Mutex::default(),
        }
    }
}

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// When the tick thread must look, if ever.
    pub(crate) fn next(&self) -> Option<Nanos> {
        let next = self.next.load(Ordering::SeqCst);
        (next != u64::MAX).then_some(Nanos(next))
    }

    /// Wakes whoever is due. Called by the tick thread, holding no lock.
    pub(crate) fn ring(&self, now: Nanos) {
        if self.next().is_none_or(|due| due > now) {
            return;
        }
        let mut list = self.lock();
        let later = list.wakers.split_off(&(Nanos(now.as_nanos() + 1), 0));
        let due = std::mem::replace(&mut list.wakers, later);
        self.announce(&list);
        drop(list);
        for waker in due.into_values() {
            wake(waker);
        }
    }

    /// The scheduler has ended: wakes everybody, and whoever comes later is woken at once.
    pub(crate) fn close(&self) {
        let mut list = self.lock();
        list.closed = true;
        let all = std::mem::take(&mut list.wakers);
        self.announce(&list);
        drop(list);
        for waker in all.into_values() {
            wake(waker);
        }
    }

    fn announce(&self, list: &List) {
        let first = list.wakers.keys().next();
        let next = first.map_or(u64::MAX, |(due, _)| due.as_nanos());
        self.next.store(next, Ordering::SeqCst);
    }
}

/// A waker is the host's code: its panic must not end the tick thread.
fn wake(waker: Waker) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
}

/// One alarm: set while somebody waits for it, gone when it is dropped.
pub(crate) struct Alarm {
    shared: Arc<Shared>,
    due: Nanos,
    number: Option<u64>,
}

impl std::fmt::Debug for Alarm {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Alarm")
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}

impl Alarm {
    pub(crate) fn new(shared: &Arc<Shared>, due: Nanos) -> Self {
        Self {
            shared: shared.clone(),
            due,
            number: None,
        }
    }

    /// Ready once it is due, or the scheduler has ended.
    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.shared.now() >= self.due {
            return Poll::Ready(());
        }
        let alarms = &self.shared.alarms;
        let mut list = alarms.lock();
        if list.closed {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| {
            list.numbers += 1;
            list.numbers
        });
        let before = list
            .wakers
            .insert((self.due, number), context.waker().clone());
        alarms.announce(&list);
        drop(list);
        drop(before);
        fence(Ordering::SeqCst);
        self.shared.tick.look_by(self.due);
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut list = self.shared.alarms.lock();
            let waker = list.wakers.remove(&(self.due, number));
            self.shared.alarms.announce(&list);
            drop(list);
            drop(waker);
        }
    }
}
