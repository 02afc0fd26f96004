//! A thread that turns a virtual CPU, and later perhaps bears a poll. One object for each job of a thread of the pool.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use quotient_core::Nanos;
use quotient_core::event::{ResumeReason, TaskId};
use quotient_pause::{Handle, Pause, PauseState, Processor};

use super::{NOBODY, lock};
use crate::event_log::{self, PauseLog};
use crate::task::Parking;
use crate::task_context::{Task, TaskContext};

thread_local! {
    /// The carrier that this thread is.
    static CURRENT: RefCell<Option<Arc<Carrier>>> = const { RefCell::new(None) };
}

/// The carrier that the calling thread is, if it is one.
pub(crate) fn current() -> Option<Arc<Carrier>> {
    CURRENT.with(|current| current.borrow().clone())
}

/// Makes the calling thread a carrier, or no longer.
pub(super) fn set_current(carrier: Option<Arc<Carrier>>) {
    CURRENT.with(|current| *current.borrow_mut() = carrier);
}

/// What became of a borne poll.
pub(crate) enum Outcome {
    /// The task is to be queued again.
    Again(Task),
    /// It waits for something, once its scheduling state is back with it.
    Pending(Parking<TaskContext>),
    /// It has ended, and everybody knows.
    Done,
}

/// A carrier as others see it.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub(crate) handle: Handle,
    thread: Thread,
    /// The poll that it bears has ended.
    finished: AtomicBool,
    /// It was lowered, so it must be raised before it serves again.
    pub(super) demoted: AtomicBool,
    /// Policy lets it run. Written under the lock; the bearer only reads it, since one of low priority should not hold the lock.
    allowed: AtomicBool,
    /// Policy does not even let it have the short turns of those that stand. Taken back by [`Carrier::allow`] and [`Carrier::stands_killed`].
    frozen: AtomicBool,
    /// Whose poll it bears, by number (0: no task's), and when that began on the scheduler's clock. Unit: nanoseconds.
    task: AtomicU64,
    began: AtomicU64,
    /// What a recording calls it: the task, or the proxy of a thread that is no task's.
    shown: AtomicU32,
    bearing: Mutex<Bearing>,
}

/// What a bearer and those who govern it share.
#[derive(Default)]
pub(crate) struct Bearing {
    /// The virtual CPU that has chosen it last.
    by: usize,
    /// It was asked to stand still.
    pause: Option<Pause>,
    /// What became of the poll, from its end until the proxy is settled.
    outcome: Option<Outcome>,
    /// The proxy, while the bearer is blocked.
    away: Option<Task>,
    /// Its thread's CPU time that is charged, ns.
    charged: Nanos,
    /// Its thread's CPU time at the end.
    total: Option<Nanos>,
    /// The part of it that others pay for.
    excluded: Nanos,
    /// CPU time when it was found to be blocked.
    blocked_at: Nanos,
    /// Where its poll ended.
    ended_on: Option<Processor>,
}

impl std::fmt::Debug for Bearing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Bearing")
            .field("by", &self.by)
            .field("pause", &self.pause)
            .finish_non_exhaustive()
    }
}

impl Carrier {
    pub(super) fn new(handle: Handle) -> Self {
        Self {
            handle,
            thread: std::thread::current(),
            finished: AtomicBool::new(false),
            demoted: AtomicBool::new(false),
            allowed: AtomicBool::new(true),
            frozen: AtomicBool::new(false),
            task: AtomicU64::new(0),
            began: AtomicU64::new(0),
            shown: AtomicU32::new(0),
            bearing: Mutex::new(Bearing {
                by: NOBODY,
                ..Bearing::default()
            }),
        }
    }

    /// Its thread's CPU time so far.
    pub(crate) fn cpu_time(&self) -> Option<Nanos> {
        let time = self.handle.cpu_time()?;
        Some(Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    // ---- the governors' side

    /// Whether the poll has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// The poll was detached at this CPU time of its thread: what came before is charged.
    pub(crate) fn charge_from(&self, time: Nanos) {
        lock(&self.bearing).charged = time;
    }

    /// The poll that it bears is this task's and began then.
    pub(crate) fn bears(&self, task: u64, began: Nanos) {
        self.task.store(task, Ordering::Relaxed);
        self.began.store(began.as_nanos(), Ordering::Relaxed);
    }

    /// A recording calls it so from now on; once, before anybody else knows it.
    pub(crate) fn show_as(&self, number: u64) {
        let shown = event_log::shown(number);
        self.shown.store(shown.0, Ordering::Relaxed);
    }

    /// What a recording calls it.
    pub(crate) fn shown(&self) -> TaskId {
        TaskId(self.shown.load(Ordering::Relaxed))
    }

    /// When that was.
    pub(crate) fn began(&self) -> Nanos {
        Nanos(self.began.load(Ordering::Relaxed))
    }

    /// Before its region: it may not begin until it is chosen.
    pub(super) fn waits_for_its_turn(&self) {
        self.allowed.store(false, Ordering::SeqCst);
    }

    /// The watch: whether its proxy should compete again.
    pub(super) fn has_returned(&self) -> bool {
        let blocked_at = {
            let bearing = lock(&self.bearing);
            bearing.away.as_ref().map(|_| bearing.blocked_at)
        };
        let now = blocked_at.and_then(|_| self.cpu_time());
        blocked_at
            .zip(now)
            .is_some_and(|(at, now)| now.saturating_sub(at) >= RETURN_AFTER)
    }

    /// The task whose poll it bears, if that has not ended.
    pub(super) fn task(&self) -> Option<u64> {
        let task = self.task.load(Ordering::Relaxed);
        (task != 0 && !self.is_finished()).then_some(task)
    }

    /// Whether it bears, or has borne, a task's poll.
    pub(crate) fn bears_a_task(&self) -> bool {
        self.task.load(Ordering::Relaxed) != 0
    }

    /// It was stopped by a freeze.
    pub(crate) fn stands_frozen(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// It was killed: whatever a freeze said of it, it has short turns until its poll ends.
    pub(crate) fn stands_killed(&self) {
        self.frozen.store(false, Ordering::Relaxed);
    }

    /// Whether it is to stand still and may have short turns meanwhile.
    pub(super) fn may_have_short_turns(&self) -> bool {
        !self.is_allowed() && !self.frozen.load(Ordering::Relaxed) && !self.is_finished()
    }

    /// The virtual CPU that has chosen it last.
    pub(crate) fn chosen_by(&self) -> usize {
        lock(&self.bearing).by
    }

    /// Lets it run, as the choice of `vcpu`, and if it wakes for that: where somebody else is about to stop.
    pub(crate) fn allow(&self, log: &PauseLog, vcpu: usize, freed: Option<Processor>) {
        let mut bearing = lock(&self.bearing);
        bearing.by = vcpu;
        self.frozen.store(false, Ordering::Relaxed);
        let was_allowed = self.allowed.swap(true, Ordering::SeqCst);
        let reason = if vcpu == NOBODY {
            ResumeReason::End
        } else {
            ResumeReason::Turn
        };
        let pause = self.unstop(log, &mut bearing, reason);
        if was_allowed && pause.is_none() {
            return;
        }
        let wake = || {
            if !was_allowed {
                self.thread.unpark();
            }
            // Dropping it resumes.
            drop(pause);
        };
        match freed {
            Some(processor) => {
                self.handle.wake_on(processor, wake);
            }
            None => wake(),
        }
    }

    /// Where it runs, or ran last.
    pub(crate) fn processor(&self) -> Option<Processor> {
        if self.is_finished() {
            return lock(&self.bearing).ended_on;
        }
        self.handle.processor()
    }

    /// Stops it, if `vcpu` was the last to choose it; whether it was asked to stop just now.
    pub(crate) fn forbid(&self, log: &PauseLog, vcpu: usize) -> bool {
        let mut bearing = lock(&self.bearing);
        if bearing.by != vcpu || !self.allowed.swap(false, Ordering::SeqCst) {
            return false;
        }
        self.stop(log, &mut bearing);
        true
    }

    fn stop(&self, log: &PauseLog, bearing: &mut Bearing) {
        if bearing.pause.is_none()
            && !self.is_finished()
            && let Some(region) = self.handle.region()
        {
            // What misses is brought about by the watch.
            bearing.pause = self.handle.pause(region).ok();
            if bearing.pause.is_some() {
                log.paused(self.shown(), bearing.by);
            }
        }
    }

    /// It may go on as soon as the result is dropped. Every request to stand still ends here, so that stops and resumptions take turns in a
    /// recording.
    fn unstop(&self, log: &PauseLog, bearing: &mut Bearing, reason: ResumeReason) -> Option<Pause> {
        let pause = bearing.pause.take();
        if pause.is_some() {
            log.resumed(self.shown(), bearing.by, reason);
        }
        pause
    }

    /// Whether policy lets it run. A hint.
    pub(super) fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Relaxed)
    }

    /// The watch: what is forbidden stands. Whether it does.
    pub(super) fn enforce(&self, log: &PauseLog) -> bool {
        let mut bearing = lock(&self.bearing);
        if self.allowed.load(Ordering::SeqCst) || self.is_finished() {
            return false;
        }
        let missed = bearing
            .pause
            .as_ref()
            .is_none_or(|pause| pause.state() == PauseState::Missed);
        if missed {
            // Between two polls it stands by itself, until it is chosen.
            drop(self.unstop(log, &mut bearing, ResumeReason::End));
            self.stop(log, &mut bearing);
        }
        bearing.pause.is_some()
    }

    /// The scheduler has ended: nobody governs it any more.
    pub(super) fn set_free(&self, log: &PauseLog) {
        self.allow(log, NOBODY, None);
    }

    /// The watch: a short turn of one that is forbidden begins; [`Carrier::enforce`] ends it.
    pub(super) fn burst(&self, log: &PauseLog, reason: ResumeReason) {
        drop(self.unstop(log, &mut lock(&self.bearing), reason));
    }

    /// CPU time since the last charge. At the end the rest, less what others pay for.
    pub(crate) fn take_charge(&self) -> Nanos {
        let now = self.cpu_time();
        let mut bearing = lock(&self.bearing);
        let total = bearing.total.or(now).unwrap_or(bearing.charged);
        let open = total.saturating_sub(bearing.charged);
        bearing.charged = total.max(bearing.charged);
        // More can be excluded than is open: the rest has been charged twice, a turn at most.
        let excluded = std::mem::take(&mut bearing.excluded);
        open.saturating_sub(excluded)
    }

    /// The outcome, once.
    pub(crate) fn take_outcome(&self) -> Option<Outcome> {
        lock(&self.bearing).outcome.take()
    }

    /// Puts the proxy away until the bearer gets on, unless it has finished; then the proxy comes back.
    pub(crate) fn put_away(&self, proxy: Task) -> Option<Task> {
        let at = self.cpu_time().unwrap_or_default();
        let mut bearing = lock(&self.bearing);
        if self.is_finished() {
            return Some(proxy);
        }
        bearing.blocked_at = at;
        bearing.away = Some(proxy);
        None
    }

    /// The watch: the proxy, if it was away and the bearer has used CPU time since.
    pub(super) fn returned(&self) -> Option<Task> {
        lock(&self.bearing).away.as_ref()?;
        let now = self.cpu_time()?;
        let mut bearing = lock(&self.bearing);
        if now.saturating_sub(bearing.blocked_at) < RETURN_AFTER {
            return None;
        }
        bearing.away.take()
    }

    // ---- the bearer's side

    /// Between two polls: waits until policy lets it run.
    pub(crate) fn wait_until_allowed(&self) {
        while !self.allowed.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }

    /// E1: the poll has ended. Returns the virtual CPU whose nap may be for it, and the proxy if that was away.
    pub(crate) fn finish(
        &self,
        log: &PauseLog,
        outcome: Outcome,
        excluded: Nanos,
    ) -> (usize, Option<Task>) {
        let total = self.cpu_time();
        let mut bearing = lock(&self.bearing);
        bearing.outcome = Some(outcome);
        bearing.total = total;
        bearing.ended_on = Processor::current();
        bearing.excluded = bearing.excluded.saturating_add(excluded);
        drop(self.unstop(log, &mut bearing, ResumeReason::End));
        self.finished.store(true, Ordering::Release);
        (bearing.by, bearing.away.take())
    }
}

/// A blocked bearer that has used this much CPU time competes again. Unit: nanoseconds.
const RETURN_AFTER: Nanos = Nanos(50_000);
