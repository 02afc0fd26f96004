//! A thread that turns a virtual CPU, and later perhaps bears a poll. One object for each job of a thread of the pool.

mod watched;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use quotient_core::Nanos;
use quotient_core::event::{ResumeReason, TaskId};
use quotient_pause::{Handle, Pause, Processor};

use super::NOBODY;
use super::charges::{Charges, Parting};
use super::holds::Holds;
use super::others::Others;
use super::overtime::Guarded;
use super::payers::tenant_of;
use super::turns::{Allowed, Turns};
use super::uncharged::Ahead;
use crate::cpu_clock::OwnTime;
use crate::event_log::{self, PauseLog};
use crate::group::GroupShared;
use crate::shared::Shared;
use crate::task::Parking;
use crate::task_context::{Task, TaskContext};

/// Whether a bearer sleeps is asked before a turn once in so long. Unit: nanoseconds. Default 100 us: three system calls, some 8 us.
const ASK_AGAIN: Nanos = Nanos::from_micros(100);

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
    /// It is to be lowered, in so many looks at most (`priority`). The watch's alone.
    pub(super) lower_in: AtomicU32,
    /// Policy does not even let it have the short turns of those that stand. Taken back by [`Carrier::allow`] and where it stands for another reason.
    frozen: AtomicBool,
    /// Whose poll it bears, by number (0: no task's), and when that began on the scheduler's clock. Unit: nanoseconds.
    task: AtomicU64,
    began: AtomicU64,
    /// Its thread's CPU time when the short turn in progress began, plus 1; 0 if it has none. The watch's alone. Unit: nanoseconds.
    short_turn: AtomicU64,
    /// What guards of its poll have kept it going for. The watch's alone.
    guarded: Guarded,
    /// It has run since its last charge although it should stand.
    runs_over: AtomicBool,
    /// It was found to compute in a turn, or is a poll that came to be borne, and was not found to sleep since.
    computes: AtomicBool,
    /// When its virtual CPU last asked before a turn whether it sleeps. Unit: nanoseconds of the scheduler's clock.
    asked_at: AtomicU64,
    /// Whose poll it bears.
    group: OnceLock<Arc<GroupShared>>,
    /// Of a thread of others: it has a place (`functions`).
    placed: AtomicBool,
    /// ... and began ahead of its first turn, and was not picked yet (`uncharged`).
    pub(super) ahead: Ahead,
    /// It is a function or a job, which may begin beside the turns.
    pub(super) begins_beside: AtomicBool,
    /// Of one that drops what never began (`burials`): its thread's CPU time up to which that is counted, plus 1; 0 of all others. Unit:
    /// nanoseconds.
    pub(super) buried: AtomicU64,
    /// The watch has found that it gets on, or the tick thread that its payer has budget again, though its proxy is away.
    gets_on: AtomicBool,
    /// ... and does so to pay only (`dozing`).
    dozes: AtomicBool,
    /// It is to stand until its payer has budget (`payers`).
    unpaid: AtomicBool,
    /// What its thread does for others in the poll in progress, and in all since it bears.
    others: Others,
    /// Whether the poll in progress holds what others wait for.
    holds: Holds,
    /// What a recording calls it: the task, or the proxy of a thread that is no task's.
    shown: AtomicU32,
    /// Whether it may run, whether it has finished, where its proxy is.
    turns: Turns<Pause, Task, Outcome, Charges>,
}

impl Carrier {
    pub(super) fn new(handle: Handle) -> Self {
        Self {
            handle,
            thread: std::thread::current(),
            demoted: AtomicBool::new(false),
            lower_in: AtomicU32::new(0),
            frozen: AtomicBool::new(false),
            task: AtomicU64::new(0),
            began: AtomicU64::new(0),
            short_turn: AtomicU64::new(0),
            guarded: Guarded::default(),
            runs_over: AtomicBool::new(false),
            // A poll has run for long as it comes to be borne.
            computes: AtomicBool::new(true),
            asked_at: AtomicU64::new(0),
            group: OnceLock::new(),
            placed: AtomicBool::new(false),
            ahead: Ahead::default(),
            begins_beside: AtomicBool::new(false),
            buried: AtomicU64::new(0),
            gets_on: AtomicBool::new(false),
            dozes: AtomicBool::new(false),
            unpaid: AtomicBool::new(false),
            others: Others::default(),
            holds: Holds::default(),
            shown: AtomicU32::new(0),
            turns: Turns::new(),
        }
    }

    /// A thread of another pool.
    pub(super) fn foreign(handle: Handle) -> Self {
        let mut carrier = Self::new(handle);
        carrier.others = Others::of_foreign();
        carrier.computes(false);
        carrier
    }

    /// What guards of its poll have kept it going for.
    pub(super) fn guarded(&self) -> &Guarded {
        &self.guarded
    }

    /// Whether its poll holds what others wait for.
    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    /// What its thread does for others.
    pub(super) fn others(&self) -> &Others {
        &self.others
    }

    /// Its thread's CPU time so far.
    pub(crate) fn cpu_time(&self) -> Option<Nanos> {
        let time = self.handle.cpu_time()?;
        Some(Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    // ---- the governors' side

    /// Its virtual CPU has found out that it does, or does not since it sleeps.
    pub(crate) fn computes(&self, does: bool) {
        self.computes.store(does, Ordering::Relaxed);
    }

    pub(crate) fn is_known_to_compute(&self) -> bool {
        self.computes.load(Ordering::Relaxed)
    }

    /// Whether it is to be asked at `now`, before its turn, if it sleeps: not if it is known to compute, nor at once again, after turns that others have ended.
    pub(crate) fn may_be_asleep(&self, now: Nanos) -> bool {
        if self.is_known_to_compute() {
            return false;
        }
        let before = self.asked_at.load(Ordering::Relaxed);
        let may = now.as_nanos().saturating_sub(before) >= ASK_AGAIN.as_nanos();
        if may {
            self.asked_at.store(now.as_nanos(), Ordering::Relaxed);
        }
        may
    }

    /// Whether the poll has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.turns.is_finished()
    }

    /// Runs `act` unless the poll has ended, which it does not meanwhile.
    pub(super) fn unless_finished<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        let _inner = self.turns.lock();
        (!self.is_finished()).then(act)
    }

    /// What its thread has used up to here is charged otherwise.
    pub(crate) fn charge_from(&self, cpu: Nanos) {
        self.turns.lock().charges.parting.at.cpu = cpu;
    }

    /// The watch, while the poll cannot end: from here on it is a bearer's.
    pub(super) fn parts(&self, at: OwnTime, is_asleep: bool) {
        self.turns.lock().charges.parting = Parting {
            at,
            theirs: self.others.theirs(at.cpu),
            was_asleep: is_asleep,
        };
    }

    /// How things stood then.
    pub(crate) fn parting(&self) -> Parting {
        self.turns.lock().charges.parting
    }

    /// What it bears is charged to this group; said once.
    pub(crate) fn is_of(&self, group: &Arc<GroupShared>) {
        let _ = self.group.set(group.clone());
    }

    /// The poll that it bears is this task's and began then.
    pub(crate) fn bears(&self, task: u64, began: Nanos) {
        self.task.store(task, Ordering::Relaxed);
        self.began.store(began.as_nanos(), Ordering::Relaxed);
    }

    /// Whose poll it bears; `None` until that is known.
    pub(crate) fn group(&self) -> Option<&Arc<GroupShared>> {
        self.group.get()
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

    /// Waits for its first turn; whether it begins, or has `ended` without. See "Who waits as its group is killed" in `foreign`.
    pub(super) fn begins(&self, shared: &Shared, ended: impl Fn() -> bool) -> bool {
        self.turns.begins_unless(|| {
            // F1 to F3, in this order.
            let group = self.group();
            let killed = group.is_some_and(|group| group.is_killed_inside(self.began()));
            let ends = ended();
            if killed && !ends {
                let now = shared.now().as_nanos();
                self.began.store(now, Ordering::Relaxed);
            }
            ends
        })
    }

    /// Whether a kill of the group stops it where it is: it has begun before. (F4 of `foreign`: asked in this order.)
    pub(crate) fn is_killed_in(&self, group: &GroupShared) -> bool {
        !self.is_unbegun() && group.is_killed_inside(self.began())
    }

    /// Whether it waits for its first turn, or has ended without. A hint but for who has forbidden it (`frozen`).
    pub(crate) fn is_unbegun(&self) -> bool {
        self.turns.is_unbegun()
    }

    /// If it waits for its first turn, it looks whether it has ended.
    pub(super) fn wake_unbegun(&self) {
        if self.is_unbegun() {
            self.thread.unpark();
        }
    }

    /// It has a place while it is not blocked.
    pub(super) fn is_placed(&self) -> bool {
        self.placed.load(Ordering::Relaxed)
    }

    pub(super) fn has_place(&self) {
        self.placed.store(true, Ordering::Relaxed);
    }

    /// Whether its proxy is away.
    pub(super) fn is_away(&self) -> bool {
        self.turns.is_away()
    }

    /// Its proxy, which comes back, does so to pay only, or not (`dozing`).
    pub(super) fn dozes(&self, does: bool) {
        self.dozes.store(does, Ordering::Relaxed);
    }

    pub(super) fn is_dozing(&self) -> bool {
        self.dozes.load(Ordering::Relaxed)
    }

    /// The same, and takes the mark.
    pub(super) fn takes_doze(&self) -> bool {
        self.is_dozing() && self.dozes.swap(false, Ordering::Relaxed)
    }

    /// Whose limit holds for it: for who pays for what its thread does now, or for the group of what it bears.
    pub(super) fn tenant(&self) -> Option<usize> {
        let payers = self.others.with_payer(|payer, _| tenant_of(payer));
        payers
            .flatten()
            .or_else(|| self.group().and_then(tenant_of))
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

    /// It was killed: whatever a freeze said of it, it has short turns until its poll ends, and waits for no payer. If it waits between two polls
    /// it sees that, and begins no other.
    pub(crate) fn stands_killed(&self) {
        self.frozen.store(false, Ordering::Relaxed);
        self.unpaid.store(false, Ordering::Relaxed);
        self.thread.unpark();
    }

    /// Whether it stands from now on until its payer has budget; it has short turns meanwhile.
    pub(super) fn stands_unpaid(&self, stands: bool) {
        self.unpaid.store(stands, Ordering::Relaxed);
        if stands {
            self.frozen.store(false, Ordering::Relaxed);
        }
    }

    /// Whether it is to stand until its payer has budget (`payers`).
    pub(crate) fn is_unpaid(&self) -> bool {
        self.unpaid.load(Ordering::Relaxed)
    }

    /// Its proxy, which is away, is to compete again.
    pub(super) fn is_to_return(&self) {
        self.gets_on.store(true, Ordering::Relaxed);
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
        let allowed = self.turns.allow(&mut inner, vcpu, note);
        if !allowed.was_forbidden && allowed.pause.is_none() {
            return;
        }
        let wake = || self.wake(allowed);
        match freed {
            Some(processor) => {
                self.handle.wake_on(processor, wake);
            }
            None => wake(),
        }
    }

    /// It goes on, wherever it waits or stands.
    fn wake(&self, allowed: Allowed<Pause>) {
        if allowed.was_forbidden {
            self.thread.unpark();
        }
        // Dropping it resumes.
        drop(allowed.pause);
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

    /// The watch: stops it although its proxy is away, since that [is to return](Self::is_to_return); whether it was asked to stop just now.
    pub(super) fn forbid_returning(&self, log: &PauseLog) -> bool {
        self.turns.forbid_returning(|by| self.stop(log, by))
    }

    /// Asks it to stand still. What misses is brought about by the watch.
    fn stop(&self, log: &PauseLog, by: usize) -> Option<Pause> {
        let answer = self.handle.pause(self.handle.region()?);
        if answer.as_ref().is_err_and(PauseLog::is_refused) {
            // It runs on, and nobody chooses it to be charged.
            self.is_to_be_charged();
        }
        let pause = log.asked(answer);
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

    /// The scheduler has ended: nobody governs it any more.
    pub(super) fn set_free(&self, log: &PauseLog) {
        self.allow(log, NOBODY, None);
    }

    /// The outcome, once.
    pub(crate) fn take_outcome(&self) -> Option<Outcome> {
        self.turns.take_outcome()
    }

    /// Puts the proxy away, `at` that time, until the bearer gets on, unless it has finished; then the proxy comes back. It may run unless it `stands`: its
    /// poll was killed, or its payer has no budget.
    pub(crate) fn put_away(
        &self,
        log: &PauseLog,
        proxy: Task,
        stands: bool,
        at: OwnTime,
    ) -> Option<Task> {
        let put = self.turns.put_away(
            proxy,
            stands,
            |charges| charges.goes_away(at),
            |by| log.resumed(self.shown(), by, ResumeReason::Turn),
        );
        match put {
            Ok(allowed) => {
                if let Some(allowed) = allowed {
                    self.wake(allowed);
                }
                None
            }
            Err(proxy) => Some(proxy),
        }
    }

    /// The proxy, if it was away and is to compete again.
    pub(super) fn returned(&self) -> Option<Task> {
        if !self.gets_on.swap(false, Ordering::Relaxed) {
            return None;
        }
        self.turns.bring_back(|_| true)
    }

    // ---- the bearer's side

    /// Between two polls: waits until policy lets it run; false if it [was killed](Self::stands_killed) by then.
    pub(crate) fn wait_until_allowed(&self, group: &GroupShared) -> bool {
        let killed = || group.is_killed_inside(self.began());
        self.turns.wait_until_allowed_unless(killed)
    }

    /// E1: the poll has ended. Returns the virtual CPU whose nap may be for it, and the proxy if that was away.
    pub(crate) fn finish(&self, log: &PauseLog, outcome: Outcome) -> (usize, Option<Task>) {
        let total = self.cpu_time();
        let note = |charges: &mut Charges| {
            charges.total = total;
            charges.ended_on = Processor::current();
        };
        self.turns.finish(outcome, note, |by| {
            log.resumed(self.shown(), by, ResumeReason::End);
        })
    }
}
