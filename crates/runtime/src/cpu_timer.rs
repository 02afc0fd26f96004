//! Timers on CPU clocks: futures that are ready once a task or a group has used so much.
//!
//! # Protocol
//! - A clock with timers has its least limit in its *alarm* word (in the group, in the task's context); the scheduler has one
//!   flag that says whether there is any timer at all. Unarmed, a poll pays for the test of that flag and nothing else.
//! - Armed, whoever has just moved a clock looks: a virtual CPU after each poll at the task, the group and its ancestors, a
//!   metered thread when it publishes. The clock is read, so nothing fires early.
//! - Two things could be missed: a charge that did not see the flag yet, while the new timer did not see the charge yet; and
//!   time added by somebody who does not look. So the tick thread looks at all alarms while anything runs.
//! - Firing happens outside of the list's lock, and takes the timer off the list: it fires once. Only threads that nobody stops there do so: a
//!   virtual CPU between polls, the tick thread, and who ends the scheduler. A poll, a function or a metered thread could be stopped between the
//!   list and the waker (a tenant that froze its own polls while they armed timers kept those of others from firing, which a test had met once in
//!   ten): they only *mark* what is due, with its outcome, in the list, and hurry the tick thread.
//! - *Places:* [`TIMERS_MAX`] are shared by the rule of `preempt::parts`. A group, with what is below it, may have [`SHARE`] times as many timers as
//!   are left for all, and who has none may have one, up to [`ALL_TIMERS_MAX`] in all: so no tenant keeps others from theirs, however many groups it
//!   makes. A task's timer is its group's at the time. They are
//!   counted when one comes, under the list's lock.
//! - The locks are leaves, and no poll is stopped while it holds one: the tick thread and every virtual CPU take them. (A tenant that froze its
//!   own polls while they armed timers had those threads wait until the frozen got a short turn, a third of a second at a time.)

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use quotient_core::Nanos;
use slab::Slab;

use crate::alarms::BilledWaker;
use crate::cpu_clock::{TaskClock, duration, show_own_time};
use crate::group::{Group, GroupShared};
use crate::local;
use crate::scheduler::Scheduler;
use crate::shared::{CLOSED, Shared};
use crate::shielded::{Shielded, lock_shielded};
use crate::task_context::{TaskContext, TaskRef};

/// Timers of one scheduler at a time, but for those of groups that have no other. Unit: timers. Default 1,280: the tick thread looks at each once a
/// tick, some 30 ns.
const TIMERS_MAX: usize = 1_280;
/// All of them. Unit: timers.
const ALL_TIMERS_MAX: usize = 2_048;
/// How often what is left for all a group may have, as in `preempt::parts`. Default 7: one alone has 1,120 and leaves an eighth.
const SHARE: usize = 7;

/// Why a CPU timer was refused, or will never be due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuTimerError {
    /// The group, with what is below it, or a group above it has as many timers as it may have beside those of others; or the scheduler has.
    TooMany {
        /// How many that is.
        max: usize,
    },
    /// The task ended before its clock reached the limit.
    Finished {
        /// What the task used in all.
        cpu_time: Duration,
    },
    /// The scheduler was shut down.
    ShutDown,
}

impl fmt::Display for CpuTimerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { max } => write!(
                formatter,
                "as many CPU timers are armed as the {max} that the group, or one above it, may have"
            ),
            Self::Finished { cpu_time } => write!(
                formatter,
                "the task ended after {cpu_time:?} of CPU time, before the limit"
            ),
            Self::ShutDown => formatter.write_str("the scheduler was shut down"),
        }
    }
}

impl std::error::Error for CpuTimerError {}

/// What a timer has come to.
type Outcome = Result<Duration, CpuTimerError>;

/// What timer and list share.
#[derive(Debug, Default)]
struct Bell {
    state: Mutex<BellState>,
}

#[derive(Debug, Default)]
struct BellState {
    outcome: Option<Outcome>,
    waker: Option<BilledWaker>,
}

impl Bell {
    fn lock(&self) -> Shielded<'_, BellState> {
        lock_shielded(&self.state)
    }

    /// The first outcome stays.
    fn settle(&self, outcome: Outcome) {
        self.lock().outcome.get_or_insert(outcome);
    }

    fn ring(&self, outcome: Outcome) {
        let waker = {
            let mut state = self.lock();
            state.outcome.get_or_insert(outcome);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The clock that a timer waits for.
enum Target {
    Group(Arc<quotient_core::Group>),
    Task(TaskRef),
}

impl Target {
    fn cpu_time(&self) -> Nanos {
        match self {
            Self::Group(group) => group.cpu_time(),
            Self::Task(task) => task.context().cpu_time(),
        }
    }

    /// Says who it is: the address of the group or of the task's context.
    fn address(&self) -> usize {
        match self {
            Self::Group(group) => Arc::as_ptr(group).addr(),
            Self::Task(task) => address_of(task.context()),
        }
    }

    fn set_alarm(&self, limit: Option<Nanos>) {
        match self {
            Self::Group(group) => group.set_alarm(limit),
            Self::Task(task) => {
                let limit = limit.map_or(u64::MAX, Nanos::as_nanos);
                task.context().alarm.store(limit, Ordering::SeqCst);
            }
        }
    }
}

impl Armed {
    /// The clock's time, if it has reached the limit.
    fn reached(&self) -> Option<Outcome> {
        let time = self.target.cpu_time();
        (time >= self.limit).then(|| Ok(duration(time)))
    }
}

fn address_of(task: &TaskContext) -> usize {
    std::ptr::from_ref(task).addr()
}

struct Armed {
    limit: Nanos,
    /// It has its outcome, and its waker waits for a thread that nobody stops.
    marked: bool,
    target: Target,
    bell: Arc<Bell>,
    /// Whose place it has; nobody's if its task had ended before.
    owner: Option<Arc<GroupShared>>,
}

/// How many timers a group may have while there are `all`. Unit: timers.
fn part_of(all: usize) -> usize {
    if all >= ALL_TIMERS_MAX {
        return 0;
    }
    (SHARE * TIMERS_MAX.saturating_sub(all)).max(1)
}

/// All CPU timers of one scheduler.
#[derive(Default)]
pub(crate) struct CpuTimers {
    armed: AtomicBool,
    list: Mutex<Slab<Armed>>,
}

impl CpuTimers {
    /// Whether there is any timer. One load.
    #[inline]
    pub(crate) fn are_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    fn lock(&self) -> Shielded<'_, Slab<Armed>> {
        // Every change of the list is a single insert or remove.
        lock_shielded(&self.list)
    }

    /// Sets the alarm of the clock at `target` and the flag, from the list.
    fn settle(&self, list: &Slab<Armed>, target: &Target) {
        let address = target.address();
        let same = list
            .iter()
            .filter(|(_, one)| !one.marked && one.target.address() == address);
        target.set_alarm(same.map(|(_, one)| one.limit).min());
        self.armed.store(!list.is_empty(), Ordering::SeqCst);
    }

    /// O(timers).
    ///
    /// # Errors
    /// [`CpuTimerError::TooMany`].
    fn arm(&self, timer: Armed) -> Result<usize, CpuTimerError> {
        let mut list = self.lock();
        let max = part_of(list.len());
        let counts_for = |group: &Arc<GroupShared>, armed: &Armed| {
            let mut owners = armed.owner.iter().flat_map(GroupShared::bearing);
            owners.any(|owner| Arc::ptr_eq(owner, group))
        };
        let has_room = |group: &Arc<GroupShared>| {
            let own = list.iter().filter(|(_, armed)| counts_for(group, armed));
            own.count() < max
        };
        let fits = |owner: &Arc<GroupShared>| owner.bearing().all(has_room);
        if max == 0 || !timer.owner.as_ref().is_none_or(fits) {
            return Err(CpuTimerError::TooMany { max });
        }
        let key = list.insert(timer);
        self.settle(&list, &list[key].target);
        Ok(key)
    }

    /// Takes it off the list.
    fn take(&self, list: &mut Slab<Armed>, key: usize) -> Armed {
        let armed = list.remove(key);
        self.settle(list, &armed.target);
        armed
    }

    fn disarm(&self, key: usize, bell: &Arc<Bell>) {
        let mut list = self.lock();
        // It may have fired, and its key be another timer's.
        let own = list
            .get(key)
            .is_some_and(|armed| Arc::ptr_eq(&armed.bell, bell));
        if own {
            let armed = self.take(&mut list, key);
            drop(list);
            drop(armed);
        }
    }

    /// Fires the timers of the group and its ancestors that are due. For threads that nobody stops here.
    #[cold]
    pub(crate) fn look_at_group(&self, group: &quotient_core::Group) {
        for_each_due(group, |address| {
            self.fire(|target| target.address() == address);
        });
    }

    /// Marks the timers of the group and its ancestors that are due; says whether there are any, which the tick thread is to fire.
    #[cold]
    pub(crate) fn mark_group(&self, group: &quotient_core::Group) -> bool {
        let mut any = false;
        for_each_due(group, |address| {
            any |= self.mark(None, |_, armed| armed.target.address() == address);
        });
        any
    }

    /// Fires the timers of the task that are due. For threads that nobody stops here.
    #[cold]
    pub(crate) fn look_at_task(&self, task: &TaskContext) {
        if task.alarm_is_due() {
            self.fire(|target| target.address() == address_of(task));
        }
    }

    /// Fires everything that is due or marked. O(timers). For threads that nobody stops here.
    pub(crate) fn look_at_all(&self) {
        self.fire(|_| true);
    }

    /// Gives outcomes to timers on the list, where they are due, and `otherwise` to the rest; says whether it gave any.
    fn mark(&self, otherwise: Option<Outcome>, concerns: impl Fn(usize, &Armed) -> bool) -> bool {
        let mut list = self.lock();
        let mut marked = Vec::new();
        for (key, armed) in list.iter_mut() {
            // The clock is read of those alone that it is about.
            if armed.marked || !concerns(key, armed) {
                continue;
            }
            if let Some(outcome) = armed.reached().or(otherwise) {
                armed.marked = true;
                armed.bell.settle(outcome);
                marked.push(key);
            }
        }
        for key in &marked {
            self.settle(&list, &list[*key].target);
        }
        !marked.is_empty()
    }

    fn fire(&self, concerns: impl Fn(&Target) -> bool) {
        let mut due = Vec::new();
        {
            let mut list = self.lock();
            let is_due = |armed: &Armed| armed.marked || armed.reached().is_some();
            let keys: Vec<_> = list
                .iter()
                .filter(|(_, armed)| concerns(&armed.target) && is_due(armed))
                .map(|(key, _)| key)
                .collect();
            for key in keys {
                due.push(self.take(&mut list, key));
            }
        }
        for armed in due {
            armed.bell.ring(Ok(duration(armed.target.cpu_time())));
        }
    }

    /// A task with timers has ended: those that are not due never will be. Says whether there is anything that the tick thread is to fire.
    #[cold]
    pub(crate) fn task_ended(&self, task: &TaskRef) -> bool {
        let address = address_of(task.context());
        let cpu_time = duration(task.context().cpu_time());
        let ended = Err(CpuTimerError::Finished { cpu_time });
        self.mark(Some(ended), |_, armed| armed.target.address() == address)
    }

    /// The scheduler has ended, and nobody is stopped any more.
    pub(crate) fn close(&self) {
        self.mark(Some(Err(CpuTimerError::ShutDown)), |_, _| true);
        self.look_at_all();
    }
}

/// Calls `fire` with the address of the group and of each of its ancestors whose clock has reached its alarm.
fn for_each_due(group: &quotient_core::Group, mut fire: impl FnMut(usize)) {
    let mut level = Some(group);
    while let Some(group) = level {
        if group.alarm_is_due() {
            fire(std::ptr::from_ref(group).addr());
        }
        level = group.parent().map(|parent| &**parent);
    }
}

/// Future of [`Group::on_cpu_time`], [`Scheduler::on_cpu_time`] and [`TaskClock::on_cpu_time`]: ready with the clock's time
/// once that has reached the limit. It is armed from its creation, polled or not; dropping it disarms it.
#[must_use = "dropping the timer disarms it"]
pub struct CpuTimer {
    shared: Arc<Shared>,
    bell: Arc<Bell>,
    key: usize,
}

impl CpuTimer {
    fn new(
        shared: &Arc<Shared>,
        limit: Duration,
        target: Target,
        owner: Option<Arc<GroupShared>>,
    ) -> Result<Self, CpuTimerError> {
        if shared.phase() == CLOSED {
            return Err(CpuTimerError::ShutDown);
        }
        let limit = Nanos(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX - 1));
        let bell = Arc::new(Bell::default());
        let timers = &shared.cpu_timers;
        let key = timers.arm(Armed {
            limit,
            marked: false,
            target,
            bell: bell.clone(),
            owner,
        })?;
        // From here on everybody looks; what was charged before is looked at now, and what was in between by the tick. Nobody waits for the timer
        // yet, so that its mark is all that this poll, which may be stopped, owes.
        timers.mark(None, |other, _| other == key);
        if shared.phase() == CLOSED {
            timers.close();
        }
        shared.tick.run();
        Ok(Self {
            shared: shared.clone(),
            bell,
            key,
        })
    }

    /// Whether the limit has been reached (or never will be).
    pub fn is_elapsed(&self) -> bool {
        self.bell.lock().outcome.is_some()
    }
}

impl Future for CpuTimer {
    /// The clock's time when it was seen at or beyond the limit.
    type Output = Result<Duration, CpuTimerError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = BilledWaker::new(&self.shared, context.waker());
        let mut state = self.bell.lock();
        if let Some(outcome) = state.outcome {
            return Poll::Ready(outcome);
        }
        let before = state.waker.replace(waker);
        drop(state);
        // Its destructor is the user's code.
        drop(before);
        Poll::Pending
    }
}

impl Drop for CpuTimer {
    fn drop(&mut self) {
        self.shared.cpu_timers.disarm(self.key, &self.bell);
    }
}

impl fmt::Debug for CpuTimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CpuTimer")
            .field("outcome", &self.bell.lock().outcome)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// A timer that is ready once the group's clock ([`Group::cpu_time`]) has reached `limit`: never before, and at the latest
    /// when the poll that crosses it ends (for time of metered threads: when they publish; for that of blocking functions:
    /// a tick after they end). At once if it has been reached already. The clock of a removed group may stand still
    /// for ever.
    ///
    /// # Errors
    /// [`CpuTimerError::TooMany`] if the group, with what is below it, or a group above has its part of the scheduler's 1,280 timers: seven times as
    /// many as are left for all (1,120, where nobody else has one), and one in any case, up to 2,048 in all. [`CpuTimerError::ShutDown`]. The future
    /// resolves to [`CpuTimerError::ShutDown`] if the scheduler ends first.
    pub fn on_cpu_time(&self, limit: Duration) -> Result<CpuTimer, CpuTimerError> {
        show_own_time(&self.inner.core);
        let target = Target::Group(self.inner.core.clone());
        CpuTimer::new(&self.shared, limit, target, Some(self.inner.clone()))
    }
}

impl Scheduler {
    /// [`Group::on_cpu_time`] for all groups together.
    ///
    /// # Errors
    /// As there.
    pub fn on_cpu_time(&self, limit: Duration) -> Result<CpuTimer, CpuTimerError> {
        self.root().on_cpu_time(limit)
    }
}

impl TaskClock {
    /// A timer that is ready once the task has used `limit` of CPU time: never before, and at the latest when the poll that
    /// crosses it ends. At once if it has been reached already.
    ///
    /// # Errors
    /// [`CpuTimerError::TooMany`] for the task's group as in [`Group::on_cpu_time`], [`CpuTimerError::ShutDown`];
    /// [`CpuTimerError::Finished`] if the task has ended below the limit, which is also what the future resolves to if it
    /// does so later.
    pub fn on_cpu_time(&self, limit: Duration) -> Result<CpuTimer, CpuTimerError> {
        if self.task.is_current() {
            local::show_own_task_time(self.task.context());
        }
        let shared = &self.task.context().shared;
        let membership = lock_shielded(&self.task.context().membership);
        let owner = membership.as_ref().map(|member| member.group.clone());
        drop(membership);
        let timer = CpuTimer::new(shared, limit, Target::Task(self.task.clone()), owner)?;
        // Its end leaves the list of members and then looks at the alarm, which is set now: either it sees that, or we see
        // the end.
        let context = self.task.context();
        let ended = lock_shielded(&context.membership).is_none();
        if ended {
            shared.task_with_timers_ended(&self.task);
            let outcome = timer.bell.lock().outcome;
            if let Some(Err(error)) = outcome {
                return Err(error);
            }
        }
        Ok(timer)
    }
}
