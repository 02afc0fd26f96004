//! The local tasks of one scheduler, so that a kill and the end reach them.
//!
//! The future of such a task lives in a `LocalSet` of tokio's, and only the thread of that may drop it. So the task is listed by its abort
//! handle: who ends it marks it and wakes it, and the local set's next poll drops the future.
//!
//! # Protocol
//! With a kill as in `kills`, where this list is one more in K2: whoever is listed then is told; who is listed later sees the mark of its
//! group (S3). With the end: the phase changes before the list is read, and who lists itself looks at the phase afterwards. Both take the
//! list's lock: whoever comes second sees what the other did before.
//!
//! # Who is waited for
//! Nobody can tell from outside whether a local set is polled. A shutdown waits for the polls of local tasks that are in progress, and for
//! the others as long as one of them is polled or ends every [`PATIENCE`]. So a local set that nobody polls delays it by that, once;
//! its futures are dropped with it, or at its next poll. From before it closes the scheduler the shutdown has a share in the number of the
//! virtual CPUs' futures: the last of these may end at once, and the tick thread, which rings the alarm, is to last.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use quotient_core::Nanos;
use slab::Slab;

use crate::alarms::Alarm;
use crate::group::GroupShared;
use crate::loss::{Loss, note};
use crate::shared::Shared;
use crate::shielded::lock_shielded;
use crate::task::AbortHandle;

/// How long a shutdown waits for a local set that shows no sign of being polled. Unit: nanoseconds. Default 100 ms: long for a thread that
/// was woken, short for a program that ends.
const PATIENCE: Nanos = Nanos::from_millis(100);

thread_local! {
    /// Polls of local tasks on this thread, one within the other.
    static POLLS_HERE: Cell<usize> = const { Cell::new(0) };
}

/// A local task in the list.
#[derive(Debug)]
struct Listed {
    group: Arc<GroupShared>,
    abort: AbortHandle,
    /// It was told to end.
    told: bool,
}

/// All local tasks whose future may live.
#[derive(Debug, Default)]
pub(crate) struct LocalTasks {
    list: Mutex<Slab<Listed>>,
    /// Polls in progress.
    polls: AtomicUsize,
    /// Polls that were over, and tasks that had ended, so far.
    steps: AtomicU64,
}

impl LocalTasks {
    fn is_empty(&self) -> bool {
        lock_shielded(&self.list).is_empty()
    }

    /// Marks those in groups that are `meant`; they are to be ended by [`end`]. Each is counted as a loss. O(local tasks).
    pub(crate) fn tell(
        &self,
        shared: &Shared,
        (kind, reason): (Loss, &str),
        meant: impl Fn(&GroupShared) -> bool,
    ) -> Vec<AbortHandle> {
        let mut told = Vec::new();
        let mut groups = Vec::new();
        for (_, task) in lock_shielded(&self.list).iter_mut() {
            if !task.told && meant(&task.group) {
                task.told = true;
                told.push(task.abort.clone());
                groups.push(task.group.clone());
            }
        }
        for group in groups {
            note(shared, &group, kind, 1, &reason);
        }
        told
    }
}

/// Wakes the local tasks that were told, so that they end. The wakers are tokio's.
pub(crate) fn end(told: &[AbortHandle]) {
    told.iter().for_each(AbortHandle::abort);
}

/// A local task's place in the list: goes when its future is gone and its handle knows.
pub(crate) struct Seat {
    shared: Arc<Shared>,
    key: usize,
}

impl Seat {
    pub(crate) fn new(shared: &Arc<Shared>, group: &Arc<GroupShared>, abort: AbortHandle) -> Self {
        let listed = Listed {
            group: group.clone(),
            abort,
            told: false,
        };
        let key = lock_shielded(&shared.local_tasks.list).insert(listed);
        Self {
            shared: shared.clone(),
            key,
        }
    }

    /// A poll of the task, until the result is dropped.
    pub(crate) fn begin_poll(&self) -> Polling {
        self.shared.local_tasks.polls.fetch_add(1, Ordering::SeqCst);
        let _ = POLLS_HERE.try_with(|polls| polls.set(polls.get() + 1));
        Polling(self.shared.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let tasks = &self.shared.local_tasks;
        let (gone, last) = {
            let mut list = lock_shielded(&tasks.list);
            (list.try_remove(self.key), list.is_empty())
        };
        drop(gone);
        tasks.steps.fetch_add(1, Ordering::SeqCst);
        if last {
            self.shared.ended.notify_waiters();
        }
    }
}

/// A poll of a local task in progress.
pub(crate) struct Polling(Arc<Shared>);

impl Drop for Polling {
    fn drop(&mut self) {
        let _ = POLLS_HERE.try_with(|polls| polls.set(polls.get().saturating_sub(1)));
        let tasks = &self.0.local_tasks;
        tasks.steps.fetch_add(1, Ordering::SeqCst);
        tasks.polls.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a shutdown that is to wait has of the futures' number.
pub(crate) struct Share<'a>(&'a Arc<Shared>);

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.0.future_gone();
    }
}

/// Before a scheduler is closed: `None` if there is nobody to wait for. Inside a local task, which would wait for itself, there is not.
pub(crate) fn begin_wait(shared: &Arc<Shared>) -> Option<Share<'_>> {
    let is_inside = POLLS_HERE.try_with(Cell::get).unwrap_or(0) > 0;
    let waits = !is_inside && !shared.local_tasks.is_empty() && shared.future_began();
    waits.then(|| Share(shared))
}

/// Waits for the local tasks of a scheduler that was closed, until `due` at most; see the module's header.
pub(crate) async fn ended(share: Option<Share<'_>>, due: Option<Nanos>) {
    let Some(share) = share else {
        return;
    };
    let shared = share.0;
    let tasks = &shared.local_tasks;
    let mut steps = tasks.steps.load(Ordering::SeqCst);
    let mut since = shared.now();
    loop {
        let mut ended = std::pin::pin!(shared.ended.notified());
        ended.as_mut().enable();
        let now = shared.now();
        if tasks.is_empty() || due.is_some_and(|due| now >= due) {
            return;
        }
        let taken = tasks.steps.load(Ordering::SeqCst);
        if taken != steps || tasks.polls.load(Ordering::SeqCst) > 0 {
            (steps, since) = (taken, now);
        }
        let patient = since.saturating_add(PATIENCE);
        if now >= patient {
            return;
        }
        let mut alarm = Alarm::new(shared, due.map_or(patient, |due| due.min(patient)));
        poll_fn(|context| match ended.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => alarm.poll(context),
        })
        .await;
    }
}
