//! The local tasks of one scheduler, so that a kill and the end reach them.
//!
//! The future of such a task lives in a `LocalSet` of tokio's, and only the thread of that may drop it. So the task is listed by its abort
//! handle: who ends it marks it, and has it woken, and the local set's next poll drops the future.
//!
//! # Who wakes them
//! Not who ends them. The local set's waker is tokio's only where tokio polls that: a program may poll it by hand with one of its own, which computes or
//! sleeps for as long as it likes. (Under the shield of a `kill`, a tenant of 5 % had 0.6 of a processor by that; one that slept for six
//! seconds did so on the administrator's thread, in a `shutdown_timeout` of 0.3.) So the wakers are called in the destructor of a task
//! of the group's, a *ring*, that is aborted before it is queued: there the program's own code may run. All that holds for the destructors of a killed task holds for
//! it: it is charged and stopped as these, has the places of the dead where there is a limit, waits for no thaw, and what it spawns dies of the
//! same kill. It is in no list: nobody kills it, and it is no loss. It is one of the live tasks, so the scheduler does not end before, and
//! counts as a poll of a local task for who waits for these.
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
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use quotient_core::{Enqueue, Nanos, TaskEntity, Weight};
use slab::Slab;

use crate::alarms::Alarm;
use crate::group::GroupShared;
use crate::loss::{Loss, note};
use crate::shared::Shared;
use crate::shielded::lock_shielded;
use crate::task::trace::SpanId;
use crate::task::{AbortHandle, Id, spawn_as};
use crate::task_context::{Owned, TaskContext};

/// Local tasks that one ring wakes at most. Unit: tasks. As many as a kill aborts without a break: some microseconds each.
const RUNG_AT_ONCE: usize = 64;

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
    /// Polls in progress, and rings that have not rung.
    polls: AtomicUsize,
    /// Polls that were over, and tasks that had ended, so far.
    steps: AtomicU64,
}

impl LocalTasks {
    fn is_empty(&self) -> bool {
        lock_shielded(&self.list).is_empty()
    }

    /// Marks those in groups that are `meant`: they end when they are polled next, for which [`end`] is to see. O(local tasks).
    pub(crate) fn tell(&self, meant: impl Fn(&GroupShared) -> bool) -> Vec<Told> {
        let mut told = Vec::new();
        for (_, task) in lock_shielded(&self.list).iter_mut() {
            if !task.told && meant(&task.group) {
                task.told = true;
                told.push(Told {
                    group: task.group.clone(),
                    // Whoever has aborted it has woken it as well.
                    wake: task.abort.mark_promise().then(|| task.abort.clone()),
                });
            }
        }
        told
    }
}

/// A local task that was marked.
pub(crate) struct Told {
    group: Arc<GroupShared>,
    wake: Option<AbortHandle>,
}

/// Has the local tasks that were told woken, so that they end. Each counts as a loss, for `reason`. Called with no lock: who hears of losses is the
/// program. `killed`: by a kill, of which the code that wakes them has died, too.
pub(crate) fn end(
    shared: &Arc<Shared>,
    told: Vec<Told>,
    (kind, reason): (Loss, &str),
    killed: bool,
) {
    let mut groups: BTreeMap<usize, (Arc<GroupShared>, usize, Vec<AbortHandle>)> = BTreeMap::new();
    for Told { group, wake } in told {
        let address = Arc::as_ptr(&group).addr();
        let (_, count, wakes) = groups.entry(address).or_insert((group, 0, Vec::new()));
        *count += 1;
        wakes.extend(wake);
    }
    for (group, _, wakes) in groups.values_mut() {
        while !wakes.is_empty() {
            let rest = wakes.split_off(wakes.len().min(RUNG_AT_ONCE));
            ring(shared, group, std::mem::replace(wakes, rest), killed);
        }
    }
    for (group, count, _) in groups.values() {
        note(shared, group, kind, *count, &reason);
    }
}

/// The "future" of a ring: calls the wakers when it is dropped.
struct Ring {
    wakes: Vec<AbortHandle>,
    // Last: who waits for local tasks finds these woken.
    _counted: Counted,
}

impl Future for Ring {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        // It is aborted before it can be polled.
        Poll::Ready(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.wakes.iter().for_each(AbortHandle::wake_holder);
    }
}

/// Queues a ring. It is not to be stopped on its way: others wait for whom it wakes.
fn ring(shared: &Arc<Shared>, group: &Arc<GroupShared>, wakes: Vec<AbortHandle>, killed: bool) {
    let _shield = shared.shield();
    let ring = Ring {
        wakes,
        _counted: Counted::new(shared),
    };
    let home = u16::try_from(shared.next_home()).unwrap_or(0);
    let context = TaskContext::new(shared.clone(), Location::caller(), home);
    context.marks.set_no_loss();
    context.killed.store(killed, Ordering::Relaxed);
    let owned = Owned {
        entity: TaskEntity::new(Weight::DEFAULT, None),
        group: group.clone(),
        since: shared.now(),
        throttling: None,
    };
    shared.task_began();
    let (task, _, _) = spawn_as(Id::next(), SpanId::NONE, ring, context, owned);
    task.abort();
    shared.submit_remote(task, Enqueue::Wake);
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
        let _ = POLLS_HERE.try_with(|polls| polls.set(polls.get() + 1));
        Polling(Counted::new(&self.shared))
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
pub(crate) struct Polling(#[expect(dead_code, reason = "counts while it lives")] Counted);

impl Drop for Polling {
    fn drop(&mut self) {
        let _ = POLLS_HERE.try_with(|polls| polls.set(polls.get().saturating_sub(1)));
    }
}

/// One of the polls in progress, or what comes before one.
struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.local_tasks.polls.fetch_add(1, Ordering::SeqCst);
        Self(shared.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
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
