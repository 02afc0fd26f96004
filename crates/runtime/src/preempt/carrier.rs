//! A thread that turns a virtual CPU, and later perhaps bears a poll. One object for each job of a thread of the pool.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::Thread;

use quotient_core::Nanos;
use quotient_core::event::{ResumeReason, TaskId};
use quotient_pause::{Handle, Pause, PauseState, Processor};

use super::NOBODY;
use super::turns::{Allowed, Turns};
use crate::cpu_clock::OwnTime;
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
    /// It was lowered, so it must be raised before it serves again.
    pub(super) demoted: AtomicBool,
    /// Policy does not even let it have the short turns of those that stand. Taken back by [`Carrier::allow`] and [`Carrier::stands_killed`].
    frozen: AtomicBool,
    /// Whose poll it bears, by number (0: no task's), and when that began on the scheduler's clock. Unit: nanoseconds.
    task: AtomicU64,
    began: AtomicU64,
    /// Its thread's CPU time when the short turn in progress began, plus 1; 0 if it has none. The watch's alone. Unit: nanoseconds.
    short_turn: AtomicU64,
    /// What a recording calls it: the task, or the proxy of a thread that is no task's.
    shown: AtomicU32,
    /// Whether it may run, whether it has finished, where its proxy is.
    turns: Turns<Pause, Task, Outcome, Charges>,
}

/// What a bearer has used, and what of that is charged.
#[derive(Debug, Default)]
struct Charges {
    /// Its thread's CPU time that is charged, ns.
    charged: Nanos,
    /// Its thread's CPU time at the end.
    total: Option<Nanos>,
    /// The part of it that others pay for.
    excluded: Nanos,
    /// Both clocks when its poll was detached, and whether that was because it slept in the kernel.
    parting: (OwnTime, bool),
    /// CPU time when it was found to be blocked.
    blocked_at: Nanos,
    /// Where its poll ended.
    ended_on: Option<Processor>,
}

impl Carrier {
    pub(super) fn new(handle: Handle) -> Self {
        Self {
            handle,
            thread: std::thread::current(),
            demoted: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            task: AtomicU64::new(0),
            began: AtomicU64::new(0),
            short_turn: AtomicU64::new(0),
            shown: AtomicU32::new(0),
            turns: Turns::new(),
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
        self.turns.is_finished()
    }

    /// What its thread has used up to here is charged otherwise.
    pub(crate) fn charge_from(&self, cpu: Nanos) {
        self.turns.lock().charges.charged = cpu;
    }

    /// The watch, while the poll cannot end: from here on it is a bearer's.
    pub(super) fn parts(&self, at: OwnTime, is_asleep: bool) {
        let charges = &mut self.turns.lock().charges;
        charges.parting = (at, is_asleep);
        charges.charged = at.cpu;
    }

    /// When that was, and whether it slept.
    pub(crate) fn parting(&self) -> (OwnTime, bool) {
        self.turns.lock().charges.parting
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
        self.turns.begins_forbidden();
    }

    /// The watch: whether its proxy should compete again.
    pub(super) fn has_returned(&self) -> bool {
        let away = self.turns.is_away();
        let now = away.then(|| self.cpu_time()).flatten();
        now.is_some_and(|now| self.turns.lock().charges.gets_on(now))
    }

    /// The watch: whether it was found to be blocked although it may run; perhaps for a lock of one that stands.
    pub(super) fn waits_in_the_kernel(&self) -> bool {
        self.is_allowed() && self.turns.is_away()
    }

    /// The task whose poll it bears, if that has not ended.
    pub(super) fn task(&self) -> Option<u64> {
        self.task_borne().filter(|_| !self.is_finished())
    }

    /// The task whose poll it bears, or has borne.
    pub(crate) fn task_borne(&self) -> Option<u64> {
        let task = self.task.load(Ordering::Relaxed);
        (task != 0).then_some(task)
    }

    /// Whether it bears, or has borne, a task's poll.
    pub(crate) fn bears_a_task(&self) -> bool {
        self.task_borne().is_some()
    }

    /// It was stopped by a freeze.
    pub(crate) fn stands_frozen(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// It was killed: whatever a freeze said of it, it has short turns until its poll ends.
    pub(crate) fn stands_killed(&self) {
        self.frozen.store(false, Ordering::Relaxed);
    }

    /// Whether it is to stand still and may have short turns meanwhile; `grave` if that must not wait for a thaw.
    pub(super) fn may_have_short_turns(&self, grave: bool) -> bool {
        let frozen = self.frozen.load(Ordering::Relaxed);
        !self.is_allowed() && (grave || !frozen) && !self.is_finished()
    }

    /// The virtual CPU that has chosen it last.
    pub(crate) fn chosen_by(&self) -> usize {
        self.turns.lock().by
    }

    /// Lets it run, as the choice of `vcpu`, and if it wakes for that: where somebody else is about to stop.
    pub(crate) fn allow(&self, log: &PauseLog, vcpu: usize, freed: Option<Processor>) {
        let mut inner = self.turns.lock();
        self.frozen.store(false, Ordering::Relaxed);
        let reason = if vcpu == NOBODY {
            ResumeReason::End
        } else {
            ResumeReason::Turn
        };
        let note = |by| log.resumed(self.shown(), by, reason);
        let Allowed {
            was_forbidden,
            pause,
        } = self.turns.allow(&mut inner, vcpu, note);
        if !was_forbidden && pause.is_none() {
            return;
        }
        let wake = || {
            if was_forbidden {
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
            return self.turns.lock().charges.ended_on;
        }
        self.handle.processor()
    }

    /// Stops it, if `vcpu` was the last to choose it; whether it was asked to stop just now.
    pub(crate) fn forbid(&self, log: &PauseLog, vcpu: usize) -> bool {
        self.turns.forbid(vcpu, |by| self.stop(log, by))
    }

    /// Asks it to stand still. What misses is brought about by the watch.
    fn stop(&self, log: &PauseLog, by: usize) -> Option<Pause> {
        let pause = log.asked(self.handle.pause(self.handle.region()?));
        if pause.is_some() {
            log.paused(self.shown(), by);
        }
        pause
    }

    /// Whether policy lets it run. A hint.
    pub(super) fn is_allowed(&self) -> bool {
        self.turns.is_allowed()
    }

    /// Whether it may run, chosen last by `by`, and competes (the proxy of a blocked one is away and brings it back).
    pub(super) fn may_run_for(&self, by: usize) -> bool {
        let is_away = self.turns.is_away();
        self.chosen_by() == by && !is_away && self.is_allowed() && !self.is_finished()
    }

    /// The watch: what is forbidden stands. Whether it does.
    pub(super) fn enforce(&self, log: &PauseLog) -> bool {
        self.turns.enforce(
            |pause| pause.state() == PauseState::Missed,
            // Between two polls it stands by itself, until it is chosen.
            |by| log.resumed(self.shown(), by, ResumeReason::End),
            |by| self.stop(log, by),
        )
    }

    /// The scheduler has ended: nobody governs it any more.
    pub(super) fn set_free(&self, log: &PauseLog) {
        self.allow(log, NOBODY, None);
    }

    /// The watch: a short turn of one that is forbidden begins; [`Carrier::enforce`] ends it.
    pub(super) fn burst(&self, log: &PauseLog, reason: ResumeReason) {
        let from = self.cpu_time().map_or(0, |time| time.as_nanos() + 1);
        self.short_turn.store(from, Ordering::Relaxed);
        self.turns.burst(|by| log.resumed(self.shown(), by, reason));
    }

    /// The watch: what its short turn has cost so far; nothing if it has none, or has been chosen meanwhile.
    pub(super) fn short_turn_used(&self) -> Nanos {
        let from = self.short_turn.load(Ordering::Relaxed);
        if from == 0 || self.is_allowed() {
            return Nanos::ZERO;
        }
        let now = self.cpu_time().unwrap_or_default();
        now.saturating_sub(Nanos(from - 1))
    }

    /// The watch: short turns are over.
    pub(super) fn end_short_turn(&self) {
        self.short_turn.store(0, Ordering::Relaxed);
    }

    /// CPU time since the last charge. At the end the rest, less what others pay for.
    pub(crate) fn take_charge(&self) -> Nanos {
        let now = self.cpu_time();
        let charges = &mut self.turns.lock().charges;
        let total = charges.total.or(now).unwrap_or(charges.charged);
        let open = total.saturating_sub(charges.charged);
        charges.charged = total.max(charges.charged);
        // More can be excluded than is open: the rest has been charged twice, a turn at most.
        let excluded = std::mem::take(&mut charges.excluded);
        open.saturating_sub(excluded)
    }

    /// The outcome, once.
    pub(crate) fn take_outcome(&self) -> Option<Outcome> {
        self.turns.take_outcome()
    }

    /// Puts the proxy away until the bearer gets on, unless it has finished; then the proxy comes back.
    pub(crate) fn put_away(&self, proxy: Task) -> Option<Task> {
        let at = self.cpu_time().unwrap_or_default();
        self.turns
            .put_away(proxy, |charges| charges.blocked_at = at)
    }

    /// The watch: the proxy, if it was away and the bearer has used CPU time since.
    pub(super) fn returned(&self) -> Option<Task> {
        let now = self.turns.is_away().then(|| self.cpu_time())??;
        self.turns.bring_back(|charges| charges.gets_on(now))
    }

    // ---- the bearer's side

    /// Between two polls: waits until policy lets it run.
    pub(crate) fn wait_until_allowed(&self) {
        self.turns.wait_until_allowed();
    }

    /// E1: the poll has ended. Returns the virtual CPU whose nap may be for it, and the proxy if that was away.
    pub(crate) fn finish(
        &self,
        log: &PauseLog,
        outcome: Outcome,
        excluded: Nanos,
    ) -> (usize, Option<Task>) {
        let total = self.cpu_time();
        let note = |charges: &mut Charges| {
            charges.total = total;
            charges.ended_on = Processor::current();
            charges.excluded = charges.excluded.saturating_add(excluded);
        };
        self.turns.finish(outcome, note, |by| {
            log.resumed(self.shown(), by, ResumeReason::End);
        })
    }
}

impl Charges {
    /// Whether a bearer that was found to be blocked uses time again.
    fn gets_on(&self, now: Nanos) -> bool {
        now.saturating_sub(self.blocked_at) >= RETURN_AFTER
    }
}

/// A blocked bearer that has used this much CPU time competes again. Unit: nanoseconds.
const RETURN_AFTER: Nanos = Nanos(50_000);
