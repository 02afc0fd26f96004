//! What the scheduler keeps for each task beside its future.
//!
//! Two parts with two rules. [`TaskContext`] is shared: any thread that holds a reference may read it, and it is made of
//! atomics and one small lock that only spawn, move and completion take. [`Owned`] belongs to whoever holds the run token
//! (`task::Task`): a waker that has just queued the task, the queue, or the virtual CPU that polls it.

use std::num::NonZeroU32;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quotient_core::{Detached, Enqueue, Nanos, TaskEntity};

use crate::bandwidth::Deferral;
use crate::group::{GroupShared, SeatOfTheDead};
use crate::local;
use crate::owned::Place;
use crate::preempt::Carrier;
use crate::queue_wait::Tickets;
use crate::shared::Shared;
use crate::shielded::lock_shielded;
use crate::stats::{LongPoll, TaskStats, bump};
use crate::task;

/// The run token of a task of this runtime.
pub(crate) type Task = task::Task<TaskContext>;
/// A counted reference without run rights.
pub(crate) type TaskRef = task::TaskRef<TaskContext>;

/// Where a live task is listed, so that its group can kill it and shutdown can drop it.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) group: Arc<GroupShared>,
    pub(crate) place: Place,
}

/// Unit of [`TaskContext`]'s longest poll, nanoseconds.
const LONGEST_UNIT: u64 = 1024;

/// The shared part.
#[derive(Debug)]
pub(crate) struct TaskContext {
    pub(crate) shared: Arc<Shared>,
    /// Where the task was spawned.
    pub(crate) location: &'static Location<'static>,
    /// The virtual CPU that ran it last: wake-ups go there first.
    pub(crate) home: AtomicU16,
    pub(crate) marks: Marks,
    /// A kill has reached it; see `kills`. Never taken back.
    pub(crate) killed: AtomicBool,
    /// `None` before the task is listed and after it ended.
    pub(crate) membership: Mutex<Option<Membership>>,
    /// CPU time billed for polls that are over. Unit: nanoseconds.
    cpu: AtomicU64,
    /// What the clock showed during a poll, see [`TaskContext::show`]. Unit: nanoseconds.
    shown: AtomicU64,
    /// The least limit on the clock that somebody waits for; `u64::MAX` for none. Unit: nanoseconds.
    pub(crate) alarm: AtomicU64,
    polls: AtomicU64,
    delay: AtomicU64,
    /// The longest poll, rounded up. Unit: 1,024 nanoseconds, so that 32 bits hold more than an hour; longer ones count as that.
    longest: AtomicU32,
    throttled: AtomicU64,
}

/// Marks of a task in one byte: with a byte each, its head would pass 208 bytes.
#[derive(Debug)]
pub(crate) struct Marks(AtomicU8);

impl Marks {
    const MOVED: u8 = 1;
    const UNCOUNTED: u8 = 2;
    const NO_LOSS: u8 = 4;
    const BROUGHT: u8 = 8;

    /// Whether `membership.group` differs from `Owned::group`: the token's holder follows at the next dispatch.
    pub(crate) fn is_moved(&self, order: Ordering) -> bool {
        self.0.load(order) & Self::MOVED != 0
    }

    /// The membership was changed, under its lock.
    pub(crate) fn set_moved(&self) {
        self.0.fetch_or(Self::MOVED, Ordering::Release);
    }

    /// Takes the mark away: whoever holds the token follows now.
    pub(crate) fn take_moved(&self) -> bool {
        self.0.fetch_and(!Self::MOVED, Ordering::AcqRel) & Self::MOVED != 0
    }

    /// Who brings work has woken it or started it (`preempt::courtesy`), or not.
    #[inline]
    pub(crate) fn set_brought(&self, brought: bool) {
        if self.is_brought() != brought {
            if brought {
                self.0.fetch_or(Self::BROUGHT, Ordering::Relaxed);
            } else {
                self.0.fetch_and(!Self::BROUGHT, Ordering::Relaxed);
            }
        }
    }

    /// Whether it was, last.
    #[inline]
    pub(crate) fn is_brought(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::BROUGHT != 0
    }

    /// It stands for a future elsewhere, which goes on without it: its end is no loss. Before it is listed.
    pub(crate) fn set_no_loss(&self) {
        self.0.fetch_or(Self::NO_LOSS, Ordering::Relaxed);
    }

    /// Whether something is lost if it is ended. Never changes once it is listed.
    pub(crate) fn is_loss(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::NO_LOSS == 0
    }

    /// Whether it is among the live tasks: not a proxy of a thread that outlives the scheduler. Never changes.
    fn is_counted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::UNCOUNTED == 0
    }
}

/// Whether ending `task` now loses anything: it lives, and does not only stand for something that goes on.
pub(crate) fn is_loss(task: &TaskRef) -> bool {
    task.is_alive() && task.context().marks.is_loss()
}

/// The part of the run token's holder.
#[derive(Debug)]
pub(crate) struct Owned {
    /// Scheduling state while the task is not in a run queue.
    pub(crate) entity: TaskEntity,
    /// The group that the task runs in.
    pub(crate) group: Arc<GroupShared>,
    /// When it was queued, for the run delay.
    pub(crate) since: Nanos,
    /// What throttles, their deferrals and bounds on waits have to do with the task: nothing, until they have.
    pub(crate) throttling: Option<Box<Throttling>>,
}

/// What a task knows of throttles once its group is limited or it defers them, and of its wait for the first poll. Apart, since most tasks
/// never do.
#[derive(Debug, Default)]
pub(crate) struct Throttling {
    /// What the throttled clock of [`Owned::queued_in`] said when the task was queued in it last, on the virtual CPU of `calm`.
    pub(crate) mark: Nanos,
    /// The calm (the core's word) for which `mark` holds; `None` if it holds for this one wait.
    pub(crate) calm: Option<NonZeroU32>,
    /// The group that it is queued in now, if another than its own lends it a place.
    pub(crate) seat: Option<Arc<GroupShared>>,
    /// It has that place because it is dead.
    pub(crate) dead: Option<SeatOfTheDead>,
    /// Its deferral of throttles, from its first guard to its first poll without one.
    pub(crate) deferral: Option<Arc<Deferral>>,
    /// Of a proxy: the thread whose poll it stands for.
    pub(crate) bearer: Option<Arc<Carrier>>,
    /// Where it stands in line until its first poll, if the wait for that is bounded; see `queue_wait`.
    pub(crate) unstarted: Option<Tickets>,
    /// Taken out of one queue and on its way to another by way of an inbox: what keeps its group's place meanwhile.
    pub(crate) on_the_way: Option<Box<Detached<()>>>,
}

impl Throttling {
    /// Of a task that stands in line for its first poll.
    pub(crate) fn unstarted(tickets: Tickets) -> Box<Self> {
        Box::new(Self {
            unstarted: Some(tickets),
            ..Self::default()
        })
    }

    /// The deferral of who may be lent a place: of the poll that a proxy stands for, or the task's own.
    pub(crate) fn holder(&self) -> Option<Arc<Deferral>> {
        match &self.bearer {
            Some(bearer) => bearer.holds().deferral(),
            None => self.deferral.clone(),
        }
    }
}

impl Owned {
    /// The group that the task is queued in and billed to: its own, unless another lends it a place.
    #[inline]
    pub(crate) fn queued_in(&self) -> &Arc<GroupShared> {
        let seat = self
            .throttling
            .as_ref()
            .and_then(|known| known.seat.as_ref());
        seat.unwrap_or(&self.group)
    }

    /// The thread whose poll it stands for, if it is a proxy.
    #[inline]
    pub(crate) fn bearer(&self) -> Option<&Arc<Carrier>> {
        let known = self.throttling.as_ref()?;
        known.bearer.as_ref()
    }

    /// The task does not stand in line any more: it is polled now, or it is in another group.
    #[inline]
    pub(crate) fn leave_line(&mut self) {
        if let Some(known) = &mut self.throttling
            && known.unstarted.is_some()
        {
            known.unstarted = None;
        }
    }

    /// After a poll that had, or has made, a deferral of throttles. Whether a guard lives.
    pub(crate) fn follow_deferral(&mut self, deferral: Arc<Deferral>) -> bool {
        if deferral.is_active() {
            self.throttling.get_or_insert_default().deferral = Some(deferral);
            return true;
        }
        if let Some(known) = &mut self.throttling {
            known.deferral = None;
        }
        local::spare_deferral(deferral);
        false
    }

    /// The task's deferral of throttles, if it has one.
    #[inline]
    pub(crate) fn deferral(&self) -> Option<&Arc<Deferral>> {
        self.throttling
            .as_ref()
            .and_then(|known| known.deferral.as_ref())
    }
}

impl TaskContext {
    pub(crate) fn new(
        shared: Arc<Shared>,
        location: &'static Location<'static>,
        home: u16,
    ) -> Self {
        Self {
            shared,
            location,
            home: AtomicU16::new(home),
            marks: Marks(AtomicU8::new(0)),
            killed: AtomicBool::new(false),
            membership: Mutex::new(None),
            cpu: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            alarm: AtomicU64::new(u64::MAX),
            polls: AtomicU64::new(0),
            delay: AtomicU64::new(0),
            longest: AtomicU32::new(0),
            throttled: AtomicU64::new(0),
        }
    }

    /// As [`TaskContext::new`], for what the scheduler's end does not wait for.
    pub(crate) fn uncounted(
        shared: Arc<Shared>,
        location: &'static Location<'static>,
        home: u16,
    ) -> Self {
        Self {
            marks: Marks(AtomicU8::new(Marks::UNCOUNTED)),
            ..Self::new(shared, location, home)
        }
    }

    /// The task waited for `time` while its group was throttled. Called by the token's holder only.
    pub(crate) fn record_throttled(&self, time: Nanos) {
        bump(&self.throttled, time.as_nanos());
    }

    /// How long the task has waited so in all.
    pub(crate) fn throttled(&self) -> Nanos {
        Nanos(self.throttled.load(Ordering::Relaxed))
    }

    /// One poll: `billed` CPU time, `wall` time, and the `delay` before it. Called by the token's holder only.
    #[inline]
    pub(crate) fn record_poll(&self, billed: Nanos, wall: Nanos, delay: Nanos) {
        let cpu = self.cpu.load(Ordering::Relaxed);
        // Whoever sees this sees the group's clock no older: the virtual CPU has shown the poll there.
        self.cpu
            .store(cpu.wrapping_add(billed.as_nanos()), Ordering::Release);
        bump(&self.polls, 1);
        bump(&self.delay, delay.as_nanos());
        let units = wall.as_nanos().div_ceil(LONGEST_UNIT);
        if units > u64::from(self.longest.load(Ordering::Relaxed)) {
            let units = u32::try_from(units).unwrap_or(u32::MAX);
            self.longest.store(units, Ordering::Relaxed);
        }
    }

    /// The task's clock. Not less than any reading that happened before.
    #[inline]
    pub(crate) fn cpu_time(&self) -> Nanos {
        let cpu = self.cpu.load(Ordering::Acquire);
        Nanos(cpu.max(self.shown.load(Ordering::Acquire)))
    }

    /// Shows `uncharged` time of the poll in progress. Only from within that poll, after the virtual CPU has shown it; the
    /// bill of the poll will not be less.
    pub(crate) fn show(&self, uncharged: Nanos) {
        let shown = self.cpu.load(Ordering::Relaxed) + uncharged.as_nanos();
        if shown > self.shown.load(Ordering::Relaxed) {
            self.shown.store(shown, Ordering::Release);
        }
    }

    /// Whether the clock has reached the alarm.
    pub(crate) fn alarm_is_due(&self) -> bool {
        let alarm = self.alarm.load(Ordering::SeqCst);
        alarm != u64::MAX && self.cpu_time().as_nanos() >= alarm
    }

    /// The figures so far; `id` is the task's.
    pub(crate) fn stats(&self, id: task::Id) -> TaskStats {
        let longest = u64::from(self.longest.load(Ordering::Relaxed));
        TaskStats {
            id,
            name: id.is_named().then(|| self.shared.names.of(id)).flatten(),
            cpu: Duration::from_nanos(self.cpu_time().as_nanos()),
            polls: self.polls.load(Ordering::Relaxed),
            run_delay: Duration::from_nanos(self.delay.load(Ordering::Relaxed)),
            throttled: Duration::from_nanos(self.throttled.load(Ordering::Relaxed)),
            longest_poll: LongPoll {
                duration: Duration::from_nanos(longest * LONGEST_UNIT),
                location: self.location,
            },
        }
    }
}

impl task::Context for TaskContext {
    type Owned = Owned;

    fn schedule(task: Task) {
        crate::local::schedule(task, Enqueue::WakeBuddy);
    }

    fn aborted(&self, id: task::Id) {
        let membership = lock_shielded(&self.membership);
        let group = membership.as_ref().map(|member| member.group.clone());
        drop(membership);
        if let Some(group) = group {
            group.let_go(&self.shared, id);
        }
    }

    /// A poll that was stopped for good in the middle of a wake-up of another tenant's task, by a freeze, kept that from being woken by anybody.
    #[inline(always)]
    fn in_one_step<R>(act: impl FnOnce() -> R) -> R {
        if Self::stops_threads() {
            quotient_pause::in_one_step(act)
        } else {
            act()
        }
    }

    #[inline(always)]
    fn stops_threads() -> bool {
        crate::gates::preempts()
    }

    fn released(task: &TaskRef) {
        // A task that was aborted is cancelled inside its poll: nobody is to be stopped with a list in its hand, or before it has told who waits.
        Self::in_one_step(|| Self::release(task));
    }
}

impl TaskContext {
    fn release(task: &TaskRef) {
        let membership = task
            .context()
            .membership
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
            .take();
        if let Some(Membership { group, place }) = membership {
            group.owned.remove(place);
            group.left(&task.context().shared);
        }
        if task.context().alarm.load(Ordering::SeqCst) != u64::MAX {
            task.context().shared.task_with_timers_ended(task);
        }
        if task.id().is_named() {
            task.context().shared.names.forget(task.id());
        }
        if task.context().marks.is_counted() {
            task.context().shared.task_ended();
        }
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    /// With an allocator's head and the place in its group's list, that keeps a task below 256 bytes beside its future.
    #[test]
    fn the_scheduler_keeps_little_about_a_task() {
        let size = quotient_task::bytes_beside_future::<TaskContext>();
        assert!(size <= 208, "{size}");
    }
}
