//! Tasks come into a group, and change it.

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::{Enqueue, Nanos, TaskEntity, Weight};

use super::shared::GroupShared;
use crate::error::SpawnError;
use crate::local;
use crate::shared::{OPEN, Shared};
use crate::task::{self, JoinHandle};
use crate::task_context::{Owned, TaskContext};

/// Relists a live task under another group; the holder of its token follows at the next dispatch.
pub(super) fn move_task(
    shared: &Shared,
    task: &crate::task_context::TaskRef,
    target: &Arc<GroupShared>,
) {
    let context = task.context();
    let mut membership = context
        .membership
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let Some(member) = membership.as_mut() else {
        return;
    };
    if Arc::ptr_eq(&member.group, target) {
        return;
    }
    target.joined();
    let place = target.owned.insert(task.clone(), member.place.shard());
    let old = std::mem::replace(&mut member.group, target.clone());
    old.owned.remove(member.place);
    member.place = place;
    context.moved.store(true, Ordering::Release);
    drop(membership);
    old.left(shared);
}

/// Makes a task, lists it and queues it.
pub(crate) fn spawn_at<F>(
    shared: &Arc<Shared>,
    group: &Arc<GroupShared>,
    future: F,
    location: &'static Location<'static>,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    if shared.phase() != OPEN {
        return Err(SpawnError::ShutDown);
    }
    if group.is_removed() {
        let path = group.path();
        return Err(SpawnError::GroupRemoved { path });
    }
    let here = local::current_vcpu(shared);
    let home = here.unwrap_or_else(|| shared.next_home());
    let context = TaskContext::new(shared.clone(), location, u16::try_from(home).unwrap_or(0));
    let owned = Owned {
        entity: TaskEntity::new(Weight::DEFAULT, None),
        group: group.clone(),
        since: Nanos::ZERO,
        throttling: None,
    };
    let (token, reference, handle) = task::spawn(future, context, owned);
    shared.list(group, &reference, home);
    // Close, kill and removal set their mark before they walk the lists: either they see the task, or it sees the mark.
    if shared.phase() != OPEN || group.is_removed() {
        reference.abort();
    }
    local::schedule(token, Enqueue::New);
    Ok(handle)
}
