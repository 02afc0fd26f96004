//! Wakers that the tick thread calls at a time: for what must not wait for ever, on hosts with or without a timer of their own.
//!
//! Precise to a tick, as the thread looks at them then, and sleeps no longer than until the first. No alarm is late: whoever sets one
//! writes `next` (A1), passes a fence (A2) and looks whether the thread will look in time, else wakes it (A3); the thread announces
//! when it will look, passes a fence and reads `next` (T1 to T3 in `tick`). Not both can miss the other's store. Alarms are rare:
//! shutdown, kill and requests of groups with a bound on their wait. The lock is a leaf, and no poll is stopped while it holds it.
//!
//! A waker may be the user's code. Whoever polled the alarm or timer pays for it ([`BilledWaker`]), so that nobody computes there beside his limit; under
//! preemption it is called on a thread for that, so that it keeps neither the tick thread nor a virtual CPU (`preempt::bells`).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use quotient_core::Nanos;

use crate::clock::thread_cpu_time;
use crate::group::GroupShared;
use crate::local;
use crate::preempt;
use crate::shared::Shared;
use crate::shielded::{Shielded, lock_shielded};
use crate::task::discard;

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
    wakers: BTreeMap<(Nanos, u64), BilledWaker>,
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
    fn lock(&self) -> Shielded<'_, List> {
        lock_shielded(&self.list)
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
            waker.wake();
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
            waker.wake();
        }
    }

    fn announce(&self, list: &List) {
        let first = list.wakers.keys().next();
        let next = first.map_or(u64::MAX, |(due, _)| due.as_nanos());
        self.next.store(next, Ordering::SeqCst);
    }
}

/// What a waker computes on the tick thread and nobody pays for. Unit: nanoseconds. Default 20 us: to wake a thread takes 5 to 10, and a
/// group's clock is to say what its tasks had.
const FREE: Nanos = Nanos(20_000);

/// A waker that a thread of ours may call, and the group that polled with it, which pays then. None for whoever is in no group.
#[derive(Debug)]
pub(crate) struct BilledWaker {
    waker: Waker,
    scheduler: Weak<Shared>,
    payer: Option<(Weak<Shared>, Arc<GroupShared>)>,
}

impl BilledWaker {
    /// Of an alarm or timer of this scheduler.
    pub(crate) fn new(scheduler: &Arc<Shared>, waker: &Waker) -> Self {
        Self {
            waker: waker.clone(),
            scheduler: Arc::downgrade(scheduler),
            payer: local::current_group().map(|(shared, group)| (Arc::downgrade(&shared), group)),
        }
    }

    /// Of this scheduler, and this group of it pays.
    pub(crate) fn of(
        scheduler: Weak<Shared>,
        waker: Waker,
        payer: Option<Arc<GroupShared>>,
    ) -> Self {
        Self {
            waker,
            payer: payer.map(|group| (scheduler.clone(), group)),
            scheduler,
        }
    }

    /// Wakes, here or elsewhere, and drops the waker. Its panic concerns nobody here.
    pub(crate) fn wake(self) {
        match self.scheduler.upgrade() {
            Some(shared) => preempt::ring(&shared, self),
            None => self.wake_here(),
        }
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The group that pays, if it is one of this scheduler.
    pub(crate) fn payer_in(&self, shared: &Arc<Shared>) -> Option<&Arc<GroupShared>> {
        let (scheduler, group) = self.payer.as_ref()?;
        std::ptr::eq(scheduler.as_ptr(), Arc::as_ptr(shared)).then_some(group)
    }

    /// Wakes here, where the thread's time is charged already.
    pub(crate) fn wake_unbilled(self) {
        let wake = || local::as_nobody(|| self.waker.wake());
        if let Err(payload) = catch_unwind(AssertUnwindSafe(wake)) {
            discard(payload);
        }
    }

    /// Wakes here, and bills what that takes.
    pub(crate) fn wake_here(mut self) {
        let payer = self.payer.take().filter(|_| !local::is_billed());
        let before = payer.as_ref().and_then(|_| thread_cpu_time());
        self.wake_unbilled();
        if let Some((shared, group)) = payer
            && let Some(shared) = shared.upgrade()
            && let Some((before, after)) = before.zip(thread_cpu_time())
        {
            let time = after.saturating_sub(before);
            if time > FREE {
                group.core.add_foreign_cpu_time(time, shared.now());
            }
        }
    }
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
        let waker = BilledWaker::new(&self.shared, context.waker());
        let alarms = &self.shared.alarms;
        let mut list = alarms.lock();
        if list.closed {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| {
            list.numbers += 1;
            list.numbers
        });
        let before = list.wakers.insert((self.due, number), waker);
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::Scheduler;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::time::{Duration, Instant};

    /// Processor time of one wake-up.
    const WORK: Nanos = Nanos(3_000_000);
    /// Wake-ups that are to be on the clock.
    const ROUNDS: usize = 5;

    /// Works when it wakes on the tick thread.
    struct Works(Arc<AtomicUsize>, Waker);

    impl Wake for Works {
        fn wake(self: Arc<Self>) {
            if std::thread::current().name() == Some("quotient-tick") {
                let end = thread_cpu_time().unwrap().saturating_add(WORK);
                while thread_cpu_time().unwrap() < end {
                    std::hint::spin_loop();
                }
                self.0.fetch_add(1, Ordering::SeqCst);
            }
            self.1.wake_by_ref();
        }
    }

    /// A tenant had 0.109 processors beside its limit by wakers that computed: the tick thread's time was nobody's.
    #[test]
    fn wakers_compute_on_the_tick_thread_for_nothing() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build();
        runtime.unwrap().block_on(async {
            let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
            let group = scheduler.group("g").unwrap().create().unwrap();
            let worked = Arc::new(AtomicUsize::new(0));
            let end = Instant::now() + Duration::from_secs(60);
            // An alarm that is due before its first poll wakes nobody.
            while worked.load(Ordering::SeqCst) < ROUNDS {
                assert!(Instant::now() < end, "the tick thread woke nobody");
                let shared = group.shared.clone();
                let due = shared.now().saturating_add(Nanos(2_000_000));
                let (mut alarm, worked) = (Alarm::new(&shared, due), worked.clone());
                let waiting = group.spawn(poll_fn(move |context| {
                    let works = Works(worked.clone(), context.waker().clone());
                    alarm.poll(&Context::from_waker(&Arc::new(works).into()))
                }));
                waiting.await.unwrap();
            }
            let least = Duration::from_nanos(WORK.as_nanos()) * u32::try_from(ROUNDS).unwrap();
            while group.cpu_time() < least {
                assert!(Instant::now() < end, "{:?} billed", group.cpu_time());
                tokio::task::yield_now().await;
            }
            scheduler.shutdown().await;
        });
    }
}
