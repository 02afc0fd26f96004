//! Tasks come into a group, and change it.

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::{Enqueue, Nanos, TaskEntity, Weight};

#[cfg(any(feature = "tower", feature = "hyper"))]
use super::Group;
use super::shared::GroupShared;
use crate::cpu_clock::duration;
use crate::error::SpawnError;
use crate::kills::is_stillborn;
use crate::local;
use crate::loss::{ENDED, Loss, note};
use crate::population::Closed;
use crate::queue_wait::TooLong;
use crate::shared::{OPEN, Shared};
use crate::task::trace::{Labels, TaskSpan};
use crate::task::{self, Id, JoinHandle};
use crate::task_builder::Origin;
use crate::task_context::{Owned, TaskContext, Throttling};

impl GroupShared {
    /// Moves every live task of the group to `target`; those that cannot go, because it was removed, are aborted. O(tasks).
    pub(super) fn move_all(&self, shared: &Shared, target: &Arc<GroupShared>) {
        for task in self.owned.snapshot() {
            if !move_task(shared, &task, target) {
                let reason = "the group that it was to move to was removed";
                end_one(shared, self, &task, Loss::KilledTask, &reason);
            }
        }
        // Whoever is kept here as frozen goes along.
        self.release_parked(shared);
    }

    /// After a move: whoever a limit keeps back in a queue, in the group that it has left, is queued anew. O(virtual CPUs).
    pub(super) fn release_throttled(self: &Arc<Self>, shared: &Shared) {
        if self.is_limited() {
            for vcpu in (0..shared.vcpus.len()).filter(|vcpu| shared.may_keep_back(*vcpu)) {
                shared.ask_to_release(vcpu, self);
            }
        }
    }
}

/// What a group's population says, in words for users.
fn refusal(closed: Closed, group: &GroupShared) -> SpawnError {
    let path = group.path();
    match closed {
        Closed::Removed => SpawnError::GroupRemoved { path },
        Closed::Full(max) => SpawnError::TooManyTasks { path, max },
    }
}

/// What a group's line says, in words for users.
fn too_long(refusal: TooLong, group: &GroupShared) -> SpawnError {
    SpawnError::QueueTooLong {
        path: group.path(),
        wait: duration(refusal.wait),
        max: duration(refusal.max),
    }
}

/// Whether the group would take one more task now; nothing is counted.
#[cfg(feature = "tower")]
pub(crate) fn check_open(shared: &Shared, group: &Arc<GroupShared>) -> Result<(), SpawnError> {
    if shared.phase() != OPEN {
        return Err(SpawnError::ShutDown);
    }
    group
        .join(shared, true)
        .map_err(|(closed, group)| refusal(closed, &group))?;
    group.left(shared);
    Ok(())
}

/// Why a task dies that was spawned just now.
const STILLBORN: &str = "the group, or one above it, was killed or removed at the same moment";

/// Aborts one task, and counts it unless a kill or the end has reached it already.
fn end_one(
    shared: &Shared,
    group: &GroupShared,
    task: &crate::task_context::TaskRef,
    loss: Loss,
    reason: &dyn std::fmt::Display,
) {
    let context = task.context();
    if !context.killed.swap(true, Ordering::Relaxed) && context.marks.is_loss() {
        note(shared, group, loss, 1, reason);
    }
    task.abort();
}

/// Relists a live task under another group; the holder of its token follows at the next dispatch. Whether it could.
fn move_task(
    shared: &Shared,
    task: &crate::task_context::TaskRef,
    target: &Arc<GroupShared>,
) -> bool {
    let context = task.context();
    // S1 of `kills`: in its new group the task is like a new one.
    let now = shared.kills.now();
    let mut membership = context
        .membership
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let Some(member) = membership.as_mut() else {
        return true;
    };
    let dead = context.killed.load(Ordering::Relaxed);
    if dead || Arc::ptr_eq(&member.group, target) {
        return true;
    }
    if target.join(shared, false).is_err() {
        return false;
    }
    let place = target.owned.insert(task.clone(), member.place.shard());
    let old = std::mem::replace(&mut member.group, target.clone());
    old.owned.remove(member.place);
    member.place = place;
    context.marks.set_moved();
    drop(membership);
    old.left(shared);
    if shared.phase() != OPEN {
        // Whoever ends the scheduler may have looked through the target before, and through the other group after: then the target's lock, which it had
        // before us, shows us the phase. (A task that nobody had aborted kept `shutdown` for ever.)
        end_one(shared, target, task, Loss::DroppedTask, &ENDED);
    } else if is_stillborn(&target.killed_at, now, None) {
        end_one(shared, target, task, Loss::KilledTask, &STILLBORN);
    }
    true
}

/// A task was listed in a group while that was removed: whether it moves on with those that were there.
#[cold]
fn goes_along(
    shared: &Shared,
    group: &Arc<GroupShared>,
    task: &crate::task_context::TaskRef,
) -> bool {
    let target = group.where_its_tasks_are();
    !Arc::ptr_eq(target, group) && move_task(shared, task, target)
}

/// Whether the group takes work now that is not one of its tasks: a blocking function, a future elsewhere. A refusal is counted.
///
/// # Errors
/// Why not.
pub(crate) fn admits(shared: &Shared, group: &GroupShared) -> Result<(), SpawnError> {
    let error = if shared.phase() != OPEN {
        SpawnError::ShutDown
    } else if group.is_removed() {
        let path = group.path();
        SpawnError::GroupRemoved { path }
    } else {
        return Ok(());
    };
    note(shared, group, Loss::RefusedTask, 1, &error);
    Err(error)
}

/// Futures above this are moved to the heap before anything else, as tokio does: the way into a task's cell takes several moves, and
/// each may cost stack (in a build without optimisation 200 KiB overflowed a worker's 2 MiB). Unit: bytes. Default 16 KiB, where one
/// more allocation no longer counts beside the moves.
const LARGE: usize = 16 * 1024;

/// Makes a task, lists it and queues it. A refusal is counted for the group that was asked.
pub(crate) fn spawn_at<F>(
    shared: &Arc<Shared>,
    group: &Arc<GroupShared>,
    future: F,
    origin: Origin<'_>,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let spawned = if const { size_of::<F>() > LARGE } {
        // By now, and not in the functions below: each that it is handed through may keep a copy on the stack.
        let future = Box::pin(future);
        spawn_as(shared, group, future, origin, Seat::Task)
    } else {
        spawn_as(shared, group, future, origin, Seat::Task)
    };
    if let Err(error) = &spawned {
        let reason = format_args!("{error}; spawned at {}", origin.location);
        note(shared, group, Loss::RefusedTask, 1, &reason);
    }
    spawned
}

/// How a task comes into its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// Within the bounds on tasks.
    Task,
    /// Within the bound on their number, for a request, whose wait has a bound of its own.
    #[cfg(feature = "tower")]
    Request,
    /// As a request, for a future that runs elsewhere.
    #[cfg(feature = "tower")]
    Gate,
    /// Beyond it: for work that is there already.
    #[cfg(feature = "tower")]
    Beyond,
    /// Beyond it, for what stands for a future elsewhere, which goes on without it.
    Member,
}

impl Seat {
    /// What the task is called in traces.
    fn kind(self) -> &'static str {
        match self {
            Self::Task => "task",
            #[cfg(feature = "tower")]
            Self::Request => "task",
            #[cfg(feature = "tower")]
            Self::Gate | Self::Beyond => "gate",
            Self::Member => "gate",
        }
    }

    /// Whether it takes one of the places that the group may have.
    fn is_bounded(self) -> bool {
        match self {
            Self::Task => true,
            #[cfg(feature = "tower")]
            Self::Request | Self::Gate => true,
            #[cfg(feature = "tower")]
            Self::Beyond => false,
            Self::Member => false,
        }
    }
}

/// As [`spawn_at`], for callers that count a refusal as something else: a request, a connection.
#[cfg(any(feature = "tower", feature = "hyper"))]
pub(crate) fn spawn_uncounted<F>(
    group: &Group,
    future: F,
    location: &'static Location<'static>,
    seat: Seat,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_as(
        &group.shared,
        &group.inner,
        future,
        Origin::unnamed(location),
        seat,
    )
}

/// As [`spawn_at`], beyond the number of tasks that the group may have, and no loss if it is ended: for what stands for a future
/// elsewhere, which goes on without it.
pub(crate) fn spawn_member<F>(
    shared: &Arc<Shared>,
    group: &Arc<GroupShared>,
    future: F,
    location: &'static Location<'static>,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_as(
        shared,
        group,
        future,
        Origin::unnamed(location),
        Seat::Member,
    )
}

fn spawn_as<F>(
    shared: &Arc<Shared>,
    group: &Arc<GroupShared>,
    future: F,
    origin: Origin<'_>,
    seat: Seat,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    if shared.phase() != OPEN {
        return Err(SpawnError::ShutDown);
    }
    // Nobody is to be stopped while it holds a list of tasks.
    let _shield = shared.shield();
    // S1 of `kills`.
    let now = shared.kills.now();
    group
        .join(shared, seat.is_bounded())
        .map_err(|(closed, group)| refusal(closed, &group))?;
    let unstarted = if seat == Seat::Task && group.is_wait_bounded() {
        let tickets = group.stand_in_line(shared);
        Some(tickets.map_err(|(refusal, bounded)| {
            group.left(shared);
            too_long(refusal, &bounded)
        })?)
    } else {
        None
    };
    let here = local::current_vcpu(shared);
    let home = here.unwrap_or_else(|| shared.next_home());
    let id = match origin.name {
        Some(_) => Id::next().with_name(),
        None => Id::next(),
    };
    let span = TaskSpan::open(
        id,
        &Labels {
            kind: seat.kind(),
            name: origin.name,
            group: group.core.path(),
            size: size_of::<F>(),
            location: origin.location,
        },
    );
    let home_index = u16::try_from(home).unwrap_or(0);
    let context = TaskContext::new(shared.clone(), origin.location, home_index);
    if seat == Seat::Member {
        context.marks.set_no_loss();
    }
    if let Some(name) = origin.name {
        shared.names.give(id, name);
    }
    let owned = Owned {
        entity: TaskEntity::new(Weight::DEFAULT, None),
        group: group.clone(),
        since: Nanos::ZERO,
        throttling: unstarted.map(Throttling::unstarted),
    };
    let span_id = span.id();
    let future = span.around(future);
    let (token, reference, handle) = task::spawn_as(id, span_id, future, context, owned);
    shared.list(group, &reference, home);
    // Close, kill and removal set their mark before they walk the lists: either they see the task, or it sees the mark.
    let stillborn = local::with_spawner(shared, |spawner| {
        is_stillborn(&group.killed_at, now, spawner)
    });
    if stillborn || group.is_removed() && !goes_along(shared, group, &reference) {
        end_one(shared, group, &reference, Loss::KilledTask, &STILLBORN);
    } else if shared.phase() != OPEN {
        let reason = SpawnError::ShutDown;
        end_one(shared, group, &reference, Loss::DroppedTask, &reason);
    }
    local::schedule(token, Enqueue::New);
    Ok(handle)
}
