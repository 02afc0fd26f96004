//! What a thread knows while it is inside a virtual CPU's poll.
//!
//! A wake-up made inside a task's poll goes to the `next` slot of the virtual CPU that the thread runs, without a lock: the last
//! task woken runs next (the kernel's next buddy). An older occupant moves on to the inbox, and an idle virtual CPU, if there is
//! one, is told at once. The slot is emptied at every switch and before the poll returns to the host, so a task waits in it for at
//! most one poll; and if that poll gets stuck, others seize what is in the slot and close it (`task::Slot`): what the poll wakes from
//! then on goes where it is served (`Shared::submit_remote`). A function in [`crate::block_in_place`] says beforehand that it may
//! get stuck: its wake-ups never use the slot.
//!
//! In a preempting scheduler a poll may lose its virtual CPU at any instruction, and learns of it at its end. So the thread fills the slot by
//! an exchange of its own vacancy (`task::Slot`, owners that are replaced), which whoever takes the virtual CPU over ends before anything
//! else; what is in the slot by then comes along, and what the poll wakes from then on is refused. It keeps one task, and only while no
//! virtual CPU idles; all else goes where everything went before. While a task is kept the watch counts it as one that waits, so a poll
//! that does not return keeps it for a turn; a carrier looks at the slot before it naps, and empties it before it sleeps.
//! Entering nests (a poll may block in place on another runtime on the same thread): the guard restores what it found (`entered`).

mod bearing;
mod entered;
mod nobody;
mod show;
mod spawner;
mod wrap;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::{Enqueue, Gates, Nanos};

use crate::bandwidth::Deferral;
use crate::cpu_clock::{OwnTime, Stolen};
use crate::gates::{self, RuntimeGates};
use crate::group::GroupShared;
use crate::inbox::Arrival;
use crate::meter::{self, Meter};
use crate::preempt;
use crate::shared::Shared;
use crate::task::{Put, Vacancy};
use crate::task_context::Task;
use crate::vcpu::Bearing;

pub(crate) use self::bearing::{
    bear, function_returned, hold_pass, is_wrapped, leave_vcpu, lend_pass, return_pass,
    take_bearing,
};
pub(crate) use self::entered::{Entered, enter};
pub(crate) use self::nobody::as_nobody;
pub(crate) use self::show::{show_own_task_time, show_own_time};
use self::spawner::NO_POLL;
pub(crate) use self::spawner::{group_of_caller, group_to_spawn_in, with_spawner};
use self::wrap::{Reading, Wrap};
pub(crate) use self::wrap::{Saved, replace_group, restore_group};

/// A scheduler and the group that is charged.
pub(crate) type Charged = (Arc<Shared>, Arc<GroupShared>);

thread_local! {
    static LOCAL: Local = const { Local::new() };
}

/// The thread's view.
pub(crate) struct Local {
    /// Address of the scheduler whose virtual CPU runs here, 0 for none: identity only.
    scheduler: Cell<usize>,
    /// The same, to reach it.
    owner: RefCell<Option<Arc<Shared>>>,
    vcpu: Cell<usize>,
    /// A task is being polled (as against: the virtual CPU itself works).
    polling: Cell<bool>,
    /// Address of the scheduler whose wake-ups go to the slot: `scheduler`, or 0 while the poll blocks in place.
    slot_of: Cell<usize>,
    /// Of a preempting scheduler: what the slot looks like while it is this thread's and empty. `None` once the virtual CPU is another's.
    vacancy: Cell<Option<Vacancy>>,
    /// The group that is charged now: the task's, or the innermost `in_group`'s.
    group: RefCell<Option<Charged>>,
    /// The epoch of the poll in progress, or the last one, of this turn (see `kills`); [`NO_POLL`] for none.
    epoch: Cell<u64>,
    /// That task's own group, while an `in_group` has put another into `group`.
    member: RefCell<Option<Charged>>,
    /// Address of that group, 0 for none: saves the look inside at every poll.
    group_at: Cell<usize>,
    /// One of the next five was set.
    noted: Cell<bool>,
    /// Time of the current poll that somebody else was charged for.
    excluded: Cell<Nanos>,
    /// The part of that in which the thread did not run.
    absent: Cell<Nanos>,
    /// The part of that in which the poll held the virtual CPU: not what blocked in place.
    held: Cell<Nanos>,
    /// What a gate let through before, which its groups have paid for and the current task has not.
    debt: Cell<Nanos>,
    /// The current task has let a gate's poll through.
    passed: Cell<bool>,
    /// The task asks for a return to the host after this poll.
    leave: Cell<bool>,
    /// The running task's deferral of throttles, if it has one; `noted` is set with it.
    deferral: Cell<Option<Arc<Deferral>>>,
    /// One that no task needs any more, for the next that needs one: tasks that take a lock in each poll would allocate one each time.
    spare_deferral: Cell<Option<Arc<Deferral>>>,
    /// How long the running task has been throttled in all.
    throttled: Cell<Nanos>,
    /// The innermost `in_group` of the current poll.
    wrap: Cell<Option<Wrap>>,
    /// Wall time of all polls on this thread that a gate has let through. Unit: nanoseconds; wraps after five centuries.
    gated: Cell<u64>,
    /// The virtual CPU that was polled here last, by its scheduler's address and its index.
    last: Cell<(usize, usize)>,
    /// The last reading of the thread's CPU clock by an `in_group`.
    reading: Cell<Option<Reading>>,
    /// The thread's own time at the start of the turn.
    reference: Cell<Option<OwnTime>>,
    /// What was seen to be stolen from the current poll.
    stolen: Cell<Option<Stolen>>,
    /// The groups that the thread is metered for, while nothing above bills for itself.
    meter: meter::Slot,
    /// The poll in progress is counted in [`Shared::host_end`].
    pass: Cell<bool>,
    /// What is left here of a poll that has handed over its virtual CPU.
    bearing: RefCell<Option<Bearing>>,
}

impl Local {
    const fn new() -> Self {
        Self {
            scheduler: Cell::new(0),
            owner: RefCell::new(None),
            vcpu: Cell::new(0),
            polling: Cell::new(false),
            slot_of: Cell::new(0),
            vacancy: Cell::new(None),
            group: RefCell::new(None),
            epoch: Cell::new(NO_POLL),
            member: RefCell::new(None),
            group_at: Cell::new(0),
            noted: Cell::new(false),
            excluded: Cell::new(Nanos::ZERO),
            absent: Cell::new(Nanos::ZERO),
            held: Cell::new(Nanos::ZERO),
            debt: Cell::new(Nanos::ZERO),
            passed: Cell::new(false),
            leave: Cell::new(false),
            deferral: Cell::new(None),
            spare_deferral: Cell::new(None),
            throttled: Cell::new(Nanos::ZERO),
            wrap: Cell::new(None),
            gated: Cell::new(0),
            last: Cell::new((0, 0)),
            reading: Cell::new(None),
            reference: Cell::new(None),
            stolen: Cell::new(None),
            meter: Cell::new(None),
            pass: Cell::new(false),
            bearing: RefCell::new(None),
        }
    }

    fn take_notes(&self) -> PollNotes {
        self.noted.set(false);
        PollNotes {
            excluded: self.excluded.replace(Nanos::ZERO),
            absent: self.absent.replace(Nanos::ZERO),
            held: self.held.replace(Nanos::ZERO),
            extra: Nanos::ZERO,
            debt: self.debt.replace(Nanos::ZERO),
            passed: self.passed.replace(false),
            leave: self.leave.replace(false),
            noted: true,
        }
    }

    fn restore_notes(&self, notes: PollNotes) {
        self.noted.set(true);
        self.excluded.set(notes.excluded);
        self.absent.set(notes.absent);
        self.held.set(notes.held);
        self.debt.set(notes.debt);
        self.passed.set(notes.passed);
        self.leave.set(notes.leave);
    }

    /// The meter stops: something above it bills for itself.
    #[inline]
    fn pause_meter(&self) -> Option<Box<Meter>> {
        let mut meter = self.meter.take()?;
        meter.stop();
        Some(meter)
    }

    #[inline]
    fn resume_meter(&self, meter: Option<Box<Meter>>) {
        if let Some(mut meter) = meter {
            meter.resume();
            self.meter.set(Some(meter));
        }
    }

    /// Changes the charged group; returns the one before.
    fn set_group(&self, group: Option<Charged>) -> Option<Charged> {
        let address = group
            .as_ref()
            .map_or(0, |(_, group)| Arc::as_ptr(group).addr());
        self.group_at.set(address);
        self.group.replace(group)
    }
}

/// `task` was queued by a waker or is new: hands it to this thread's virtual CPU if it belongs to the same scheduler, else to the
/// task's home.
pub(crate) fn schedule(task: Task, kind: Enqueue) {
    let address = Arc::as_ptr(&task.context().shared) as usize;
    let mut task = Some(task);
    // After the thread's locals are gone (a waker called from another local's destructor) the remote path serves.
    let _ = LOCAL.try_with(|local| {
        if local.slot_of.get() != address {
            if gates::preempts() && local.scheduler.get() == address {
                keep(local, &mut task, kind);
            }
            return;
        }
        let Ok(owner) = local.owner.try_borrow() else {
            return;
        };
        let Some(shared) = &*owner else { return };
        let Some(mut token) = task.take() else { return };
        let vcpu = local.vcpu.get();
        if RuntimeGates::events() {
            note_wake(&mut token, kind, vcpu);
        }
        match shared.vcpus[vcpu].next.put(token, Arrival::tag(kind)) {
            Put::Stored => {}
            Put::Displaced(older, tag) => {
                let arrival = Arrival::from_slot((older, tag));
                shared.publish_local(vcpu, arrival, local.polling.get());
            }
            Put::Refused(token) => task = Some(token),
        }
    });
    if let Some(task) = task {
        let shared = task.context().shared.clone();
        shared.submit_remote(task, kind);
    }
}

/// A thread of a preempting scheduler keeps `task` for its virtual CPU, if that is its own still, keeps nothing yet, and nobody idles.
fn keep(local: &Local, task: &mut Option<Task>, kind: Enqueue) {
    let Some(vacancy) = local.vacancy.get() else {
        return;
    };
    let Ok(owner) = local.owner.try_borrow() else {
        return;
    };
    let Some(shared) = &*owner else { return };
    let vcpu = local.vcpu.get();
    let next = &shared.vcpus[vcpu].next;
    if shared.idle.any() || !next.is_vacant(vacancy) {
        return;
    }
    let Some(mut token) = task.take() else { return };
    if RuntimeGates::events() {
        note_wake(&mut token, kind, vcpu);
    }
    *task = next.offer(vacancy, token, Arrival::tag(kind)).err();
}

/// Records a wake-up of `task` by this thread's virtual CPU.
#[cold]
fn note_wake(task: &mut Task, kind: Enqueue, vcpu: usize) {
    let shared = task.context().shared.clone();
    let now = shared.now();
    shared.log.wake(task, kind, vcpu, Some(vcpu), now);
}

/// What happened inside a poll that its charge must know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollNotes {
    pub(crate) excluded: Nanos,
    /// The part of `excluded` in which the thread did not run.
    pub(crate) absent: Nanos,
    /// The part of `absent` in which the poll held the virtual CPU.
    pub(crate) held: Nanos,
    /// Time beyond the poll that the task and its groups pay in virtual time: the virtual CPU slept in it.
    pub(crate) extra: Nanos,
    /// Time beyond the poll that only the task pays, in virtual time, inside its group: a gate's. Of a bearer's turn: what others account for, which
    /// its groups pay, too.
    pub(crate) debt: Nanos,
    /// A gate's poll was let through.
    pub(crate) passed: bool,
    pub(crate) leave: bool,
    /// Any of these, or a deferral, was set.
    pub(crate) noted: bool,
}

impl PollNotes {
    /// Whether the charge of the poll differs from its time.
    #[inline(always)]
    pub(crate) fn charges(&self) -> bool {
        let any = |time: Nanos| time != Nanos::ZERO;
        self.noted && (any(self.excluded) || any(self.extra) || any(self.debt))
    }
}

/// The running task's deferral of throttles, made now if it has none; `None` outside a task, and while nothing is limited.
pub(crate) fn deferral() -> Option<Arc<Deferral>> {
    LOCAL
        .try_with(|local| {
            if !local.polling.get() || !RuntimeGates::bandwidth() {
                return None;
            }
            let deferral = match local.deferral.take() {
                Some(deferral) => deferral,
                None => {
                    let group = local.group.try_borrow().ok()?;
                    let (scheduler, _) = group.as_ref()?;
                    let spare = local.spare_deferral.take();
                    let spare = spare.filter(|spare| spare.is_of(scheduler));
                    let deferral = spare.unwrap_or_else(|| Arc::new(Deferral::new(scheduler)));
                    preempt::begins_deferring(&deferral);
                    deferral
                }
            };
            local.deferral.set(Some(deferral.clone()));
            local.noted.set(true);
            Some(deferral)
        })
        .ok()
        .flatten()
}

/// No task has this deferral any more.
pub(crate) fn spare_deferral(mut deferral: Arc<Deferral>) {
    if Deferral::renew(&mut deferral) {
        let _ = LOCAL.try_with(|local| local.spare_deferral.replace(Some(deferral)));
    }
}

/// How long the running task has been throttled in all, as of the start of its poll.
pub(crate) fn throttled() -> Nanos {
    LOCAL
        .try_with(|local| {
            if local.polling.get() {
                local.throttled.get()
            } else {
                Nanos::ZERO
            }
        })
        .unwrap_or(Nanos::ZERO)
}

/// The scheduler and the group that the caller's CPU time is charged to, if any: those of the innermost task, `in_group` or
/// meter on this thread.
pub(crate) fn current_group() -> Option<Charged> {
    LOCAL
        .try_with(|local| {
            let charged = local.group.try_borrow().ok()?.clone();
            charged.or_else(|| meter::group(&local.meter))
        })
        .ok()
        .flatten()
}

/// Whether a task or an `in_group` of any scheduler is being polled on this thread: its time is billed.
pub(crate) fn is_billed() -> bool {
    LOCAL
        .try_with(|local| local.group_at.get() != 0)
        .unwrap_or(false)
}

/// Whether a task or an `in_group` of this scheduler is the innermost one on this thread.
pub(crate) fn is_billed_by(shared: &Arc<Shared>) -> bool {
    LOCAL
        .try_with(|local| {
            let group = local.group.try_borrow().ok()?;
            let (charged_by, _) = group.as_ref()?;
            Some(Arc::ptr_eq(charged_by, shared))
        })
        .ok()
        .flatten()
        .unwrap_or(false)
}

/// The virtual CPU of `shared` that runs on this thread.
pub(crate) fn current_vcpu(shared: &Arc<Shared>) -> Option<usize> {
    LOCAL
        .try_with(|local| {
            (local.scheduler.get() == Arc::as_ptr(shared) as usize).then(|| local.vcpu.get())
        })
        .ok()
        .flatten()
}

/// The poll in progress on this thread may block from here on: what it wakes goes to others until [`unblock`]. Returns the virtual
/// CPU that polls, with its scheduler; `None` outside a task's poll, and in one that blocks already.
pub(crate) fn block() -> Option<(Arc<Shared>, usize)> {
    LOCAL
        .try_with(|local| {
            if !local.polling.get() || local.slot_of.get() == 0 {
                return None;
            }
            let shared = local.owner.try_borrow().ok()?.clone()?;
            local.slot_of.set(0);
            Some((shared, local.vcpu.get()))
        })
        .ok()
        .flatten()
}

/// Ends [`block`].
pub(crate) fn unblock() {
    let _ = LOCAL.try_with(|local| local.slot_of.set(local.scheduler.get()));
}

/// Whether a task's poll is in progress on this thread, whoever's.
pub(crate) fn is_polling() -> bool {
    LOCAL.try_with(|local| local.polling.get()).unwrap_or(false)
}

/// Calls `look` with the virtual CPU that polls a task on this thread, and *its* scheduler: inside an `in_group` of another
/// scheduler that is not the one of the charged group.
#[inline]
pub(crate) fn with_polling<R>(look: impl FnOnce(&Arc<Shared>, usize) -> R) -> Option<R> {
    LOCAL
        .try_with(|local| {
            if !local.polling.get() {
                return None;
            }
            let owner = local.owner.try_borrow().ok()?;
            Some(look(owner.as_ref()?, local.vcpu.get()))
        })
        .ok()
        .flatten()
}

/// The current task asks for a return to the host after its poll.
pub(crate) fn leave() {
    let _ = LOCAL.try_with(|local| {
        local.noted.set(true);
        local.leave.set(true);
    });
}

/// The current task, a gate's, pays `debt` inside its group.
pub(crate) fn pay(debt: Nanos) {
    let _ = LOCAL.try_with(|local| {
        local.noted.set(true);
        local.debt.set(local.debt.get().saturating_add(debt));
    });
}

/// The current task, a gate's, has let a poll through, which is to be the host's next.
pub(crate) fn pass() {
    let _ = LOCAL.try_with(|local| {
        local.noted.set(true);
        local.passed.set(true);
        local.leave.set(true);
    });
}

/// A poll of a future in a group of `shared` begins on this thread, in a foreign task. The virtual CPU that waits for this thread's
/// next poll of it, if one does, learns what it waits for.
pub(crate) fn begin_gated(shared: &Arc<Shared>, now: Nanos) {
    note_gated(shared, Nanos::ZERO, now);
}

/// It took `wall`, until `now`.
pub(crate) fn end_gated(shared: &Arc<Shared>, wall: Nanos, now: Nanos) {
    note_gated(shared, wall, now);
}

fn note_gated(shared: &Arc<Shared>, wall: Nanos, now: Nanos) {
    let _ = LOCAL.try_with(|local| {
        let gated = local.gated.get().wrapping_add(wall.as_nanos());
        local.gated.set(gated);
        let (scheduler, vcpu) = local.last.get();
        if scheduler == Arc::as_ptr(shared) as usize
            && let Some(vcpu) = shared.vcpus.get(vcpu)
        {
            let noted = now.as_nanos().wrapping_add(1);
            vcpu.gated_at.store(noted, Ordering::Relaxed);
        }
    });
}

/// Wall time of all polls on this thread that gates have let through; only differences mean anything.
pub(crate) fn gated() -> u64 {
    LOCAL.try_with(|local| local.gated.get()).unwrap_or(0)
}

/// Runs `act` on the thread's meter; `None` when the thread's locals are gone.
pub(crate) fn with_meter<R>(act: impl FnOnce(&meter::Slot) -> R) -> Option<R> {
    LOCAL.try_with(|local| act(&local.meter)).ok()
}

/// Time of the current poll that somebody else accounts for, and the part of it in which the thread did not run.
pub(crate) fn exclude(time: Nanos, absent: Nanos) {
    let _ = LOCAL.try_with(|local| {
        local.noted.set(true);
        local
            .excluded
            .set(local.excluded.get().saturating_add(time));
        local.absent.set(local.absent.get().saturating_add(absent));
    });
}
