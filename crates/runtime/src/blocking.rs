//! Blocking code, charged to the group that asked for it, and under preemption by turns with its tasks.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use quotient_core::Nanos;

use crate::error::SpawnError;
use crate::group::{Group, admits};
use crate::inbox::Arrival;
use crate::local;
use crate::loss::{Loss, note};
use crate::meter::{ThreadMeter, settle_here};
use crate::preempt::{
    Aborted, Begin, LINE_MAX, Waiting, bill_burial, by_turns, is_scheduled, keeps_from_beginning,
};
use crate::shared::OPEN;
use crate::spawn::refused;
use crate::task::trace::{Labels, TaskSpan};
use crate::task::{Id, JoinHandle, Promise, promise};
use crate::task_builder::Origin;
use crate::vcpu;

/// Runs a blocking function on tokio's blocking pool and charges its CPU time to the caller's group; see
/// [`Group::spawn_blocking`].
///
/// # Panics
/// Outside any group, as `tokio::task::spawn_blocking` outside a runtime; [`try_spawn_blocking`] does not.
#[track_caller]
pub fn spawn_blocking<F, R>(function: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    match Group::to_spawn_in() {
        Some(group) => group.spawn_blocking(function),
        None => panic!("{}", SpawnError::NoGroup),
    }
}

/// As [`spawn_blocking`], with the reason if it was refused.
///
/// # Errors
/// [`SpawnError::NoGroup`] outside any group; else as [`Group::try_spawn`]. The function was dropped.
#[track_caller]
pub fn try_spawn_blocking<F, R>(function: F) -> Result<JoinHandle<R>, SpawnError>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let origin = Origin::caller();
    let group = Group::to_spawn_in().ok_or(SpawnError::NoGroup)?;
    spawn_at(&group, function, origin)
}

impl Group {
    /// Runs a blocking function on the blocking pool of tokio's current runtime, or else of the scheduler's, and charges its
    /// CPU time to the group. Inside the function [`Group::current`] is the group, and [`crate::spawn`] spawns into it.
    ///
    /// Under [`crate::Builder::preempt`] it is the blocking pool of the scheduler's runtime in any case, with the current runtime entered
    /// (`Handle::current` is what it would be there); if that ends before, the function begins all the same. (But for groups that are not
    /// [`preemptible`](crate::GroupBuilder::preemptible).)
    ///
    /// The charge arrives when the function reads a clock of its group, returns or panics. The operating system schedules the pool's
    /// threads: the group's weight does not hold for them, but the group's tasks pay for the time with their virtual time. Under
    /// [`crate::Builder::preempt`] the function takes turns with the group's tasks, so that weights and limits do hold: see
    /// [`ThreadMeter::run`]. The handle is the same as a task's; as with tokio, aborting stops only a function that has not started.
    ///
    /// # How many at a time
    /// Under preemption a group has as many functions at once as [`crate::Preempt::max_borne`] says; those that are
    /// blocked in the kernel do not count, up to 440 in all, so that others find threads in tokio's pool. Further ones wait in the group's line, without a
    /// thread: 65,536 at most, more are refused.
    /// An abort, [`Group::kill`] and the scheduler's end drop those that wait, and those that wait for their first turn. So functions that wait
    /// asleep for others of their group, in line too, get on, unless 440 do so at the same time, or what other groups leave. In a frozen group none begins, whatever its limit:
    /// they wait in line until the thaw.
    ///
    /// One that could not be spawned (see [`Group::try_spawn`]) has a handle that resolves at once to an error.
    #[track_caller]
    pub fn spawn_blocking<F, R>(&self, function: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let origin = Origin::caller();
        spawn_at(self, function, origin).unwrap_or_else(|error| refused(&error))
    }
}

/// Gives a blocking function to the pool. What is promised to the handle is kept or broken by the function's end, or by its
/// being dropped unrun at the end of the runtime.
pub(crate) fn spawn_at<F, R>(
    group: &Group,
    function: F,
    origin: Origin<'_>,
) -> Result<JoinHandle<R>, SpawnError>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    admits(&group.shared, &group.inner)?;
    let id = Id::next();
    let span = TaskSpan::open(
        id,
        &Labels {
            kind: "blocking",
            name: origin.name,
            group: group.path(),
            size: size_of::<F>(),
            location: origin.location,
        },
    );
    let (promise, handle) = promise(id, span.id());
    let function = Function {
        group: group.clone(),
        unrun: Unrun(Some(group.clone())),
        promise,
        span,
        function,
    };
    let runtime = tokio::runtime::Handle::try_current().ok();
    match &group.shared.preempt {
        Some(preempting) => {
            let (function, aborted) = function.watched(id);
            let waiting = function.found_by(aborted, runtime);
            if !is_scheduled(group) {
                waiting.go_from_here(&group.shared, Begin::Run(None));
                return Ok(handle);
            }
            let brought = preempting.bring(&group.shared, &group.inner, id, waiting);
            if let Err(unwanted) = brought {
                let (path, max) = (group.path().to_owned(), LINE_MAX as u64);
                let error = SpawnError::TooManyTasks { path, max };
                note(&group.shared, &group.inner, Loss::RefusedTask, 1, &error);
                unwanted.drop_unbegun();
                return Err(error);
            }
        }
        None => {
            let run = move |begin| function.go(begin, None);
            Waiting::new(runtime, run).go_from_here(&group.shared, Begin::Run(None));
        }
    }
    Ok(handle)
}

/// A blocking function on its way.
struct Function<F, R> {
    group: Group,
    unrun: Unrun,
    promise: Promise<R>,
    span: TaskSpan,
    function: F,
}

impl<F, R> Function<F, R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    /// An abort finds it from here on, wherever it waits.
    fn watched(self, id: Id) -> (Self, Arc<Aborted>) {
        let aborted = Arc::new(Aborted {
            shared: Arc::downgrade(&self.group.shared),
            group: Arc::downgrade(&self.group.inner),
            id,
            kills: self.group.inner.line.kills(),
            thread: Mutex::default(),
            has_come: AtomicBool::new(false),
        });
        self.promise.watch(&Waker::from(aborted.clone()));
        (self, aborted)
    }

    /// On a thread of the pool.
    fn go(mut self, begin: Begin, aborted: Option<Arc<Aborted>>) {
        self.unrun.starts();
        if self.group.shared.preempt.is_some() {
            // Refused, it is as it was: `PreemptStats::guests_refused` counts that where it was told to wait.
            let _ = quotient_pause::Guest::shed_inherited();
        }
        let Begin::Run(place) = begin else {
            return self.never_begins();
        };
        let (shared, group) = (self.group.shared.clone(), self.group.clone());
        if let Some(aborted) = &aborted {
            // Before the look at the promise.
            aborted.waits_here();
        }
        let ended = |function: &Self| {
            let killed = |aborted: &Arc<Aborted>| {
                let kills = function.group.inner.line.kills();
                let limited = function.group.inner.is_limited();
                kills != aborted.kills || limited && function.group.shared.phase() != OPEN
            };
            function.promise.is_aborted() || aborted.as_ref().is_some_and(killed)
        };
        // Without a thread it waits for a thaw; once it has left, it goes by way of the line.
        let leaves = Cell::new(false);
        let ended_or_leaves = |function: &Self| {
            leaves.set(leaves.get() || keeps_from_beginning(&group));
            leaves.get() || ended(function)
        };
        let mut waiting = Some(self);
        if by_turns(&group, place, &mut waiting, ended_or_leaves, Self::run).is_some() {
            return;
        }
        let Some(function) = waiting else {
            return;
        };
        let has_ended = ended(&function);
        match (&shared.preempt, aborted) {
            (Some(preempting), Some(aborted)) if leaves.get() && !has_ended => {
                let function = function.waits_again(&aborted);
                preempting.goes_back(&shared, &group.inner, &aborted, function);
            }
            _ if !has_ended => {
                let _meter = ThreadMeter::enter_within(&group);
                function.run();
            }
            (Some(preempting), Some(_)) => {
                if !function.promise.is_aborted() {
                    let reason = "the group, or one above it, was killed";
                    note(&shared, &group.inner, Loss::KilledTask, 1, &reason);
                }
                let unbegun = Waiting::new(None, move |begin| function.go(begin, None));
                drop(preempting.end_unbegun(&shared, &group.inner, vec![unbegun]));
            }
            _ => function.never_begins(),
        }
    }

    /// It has a thread no more.
    fn waits_again(mut self, aborted: &Arc<Aborted>) -> Waiting {
        aborted.leaves_its_thread();
        self.unrun = Unrun(Some(self.group.clone()));
        let runtime = tokio::runtime::Handle::try_current().ok();
        self.found_by(aborted.clone(), runtime)
    }

    /// It waits, and an abort finds it by `aborted`.
    fn found_by(self, aborted: Arc<Aborted>, runtime: Option<tokio::runtime::Handle>) -> Waiting {
        let known = aborted.clone();
        let waiting = Waiting::new(runtime, move |begin| self.go(begin, Some(known)));
        waiting.found_by(aborted)
    }

    fn run(self) {
        let Self {
            promise,
            span,
            function,
            ..
        } = self;
        let output = catch_unwind(AssertUnwindSafe(|| promise.run(|| span.run(function))));
        // The bill is paid before the handle sees the end. What the end sets off is the group's, too: the handle's waker, or
        // the destructor of an output that nobody wants.
        settle_here();
        promise.deliver(output);
    }

    /// The destructors are the group's.
    fn never_begins(self) {
        let group = self.group.clone();
        bill_burial(&group, || drop(self));
    }
}

/// Runs a blocking function on this thread, as `tokio::task::block_in_place` does, without holding up other tasks: an idle virtual
/// CPU or a stand-in takes over meanwhile, so that the function may wait for other tasks of the scheduler, of its own group too.
/// The group pays for the CPU time of the function in full, and not for the time it sleeps, in which it holds no virtual CPU.
///
/// Outside a virtual CPU, and inside another `block_in_place`, this is tokio's function.
///
/// # How many at a time
/// A stand-in whose task blocks in place hands its virtual CPU over to another thread, as tokio's workers do, and finishes its poll
/// without one: the group pays by the thread's CPU clock. There may be 512 such polls, as many as tokio's pool for blocking functions has
/// threads by default. When 512, and besides all virtual CPUs and their stand-ins (256 of these, or as many as virtual CPUs if these are more)
/// block at the same time, no task of the scheduler runs: if all of them wait for tasks, they wait for ever. (Functions inside an `in_group` in a task, and all under [`crate::Builder::preempt`], hand
/// nothing over.) Each is a thread: waiting for many things at once is for `.await`.
///
/// # Panics
/// As tokio's: on a current-thread runtime. Not so in a task under [`crate::Builder::preempt`], whose polls are on threads of the scheduler's:
/// there it runs the function.
pub fn block_in_place<F, R>(function: F) -> R
where
    F: FnOnce() -> R,
{
    // The virtual CPU that polls, which need not be one of the group's scheduler.
    let Some((shared, index)) = local::block() else {
        // Tokio may start a thread for what this one leaves, and this one brings nothing until it returns.
        return quotient_pause::Guest::as_usual(|| tokio::task::block_in_place(function));
    };
    let me = &shared.vcpus[index];
    if let Some(left) = me.next.take() {
        shared.publish_local(index, Arrival::from_slot(left), true);
    }
    if vcpu::hand_over(&shared, index) {
        drop(shared);
        let _end = OnDrop(local::function_returned);
        return tokio::task::block_in_place(function);
    }
    let started = shared.now();
    me.blocked.store(true, Ordering::Relaxed);
    let mut pass = local::lend_pass(&shared);
    // Who idles serves what this poll leaves and wakes, and the watch brings a stand-in should that not do.
    let work = shared.has_work(index);
    if !shared.idle.any() || work && !shared.kick_idle(index) {
        vcpu::stand_in(&shared);
    }
    let mut meter = Group::current().and_then(|group| ThreadMeter::enter_within(&group).ok());
    let _end = OnDrop(|| {
        me.blocked.store(false, Ordering::Relaxed);
        local::unblock();
        drop(pass.take());
        // The meter bills what the thread did; the rest of the time it was not there.
        let billed = meter.as_mut().and_then(|meter| meter.leave().ok());
        let billed = billed.map_or(Nanos::ZERO, |time| {
            Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        });
        let elapsed = shared.now().saturating_sub(started);
        local::exclude(elapsed, elapsed.saturating_sub(billed));
    });
    tokio::task::block_in_place(function)
}

/// Counts a function that the runtime drops unrun.
struct Unrun(Option<Group>);

impl Unrun {
    fn starts(&mut self) {
        self.0 = None;
    }
}

impl Drop for Unrun {
    fn drop(&mut self) {
        if let Some(group) = &self.0 {
            let reason = "the runtime has ended";
            note(&group.shared, &group.inner, Loss::DroppedTask, 1, &reason);
        }
    }
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
