//! Who spawns: the task of the poll in progress, as `kills` asks for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{LOCAL, Local};
use crate::kills::KilledAt;
use crate::shared::Shared;
use crate::task_context::Task;

/// No poll: no kill is after it.
pub(super) const NO_POLL: u64 = u64::MAX;

/// The epoch of a poll that begins now.
#[inline]
pub(super) fn epoch(shared: &Shared, task: &mut Task) -> u64 {
    let epoch = shared.kills.now();
    // After the look at the kills: whoever sees one complete sees the flags that it has set.
    if task.context().killed.load(Ordering::Relaxed) {
        return task.owned_mut().group.killed_at.epoch_of_the_dead();
    }
    epoch
}

/// Calls `judge` with the group of the task of `shared` whose poll, or whose destructor, the caller is in, and its epoch; with `None`
/// outside any.
pub(crate) fn with_spawner<R>(
    shared: &Arc<Shared>,
    judge: impl Fn(Option<(&KilledAt, u64)>) -> R,
) -> R {
    let inside = LOCAL.try_with(|local| {
        let epoch = local.epoch.get();
        if epoch == NO_POLL || local.scheduler.get() != Arc::as_ptr(shared) as usize {
            return None;
        }
        let member = local.member.try_borrow().ok()?;
        let group = local.group.try_borrow().ok()?;
        let (_, own) = member.as_ref().or(group.as_ref())?;
        Some(judge(Some((&own.killed_at, epoch))))
    });
    inside.ok().flatten().unwrap_or_else(|| judge(None))
}

impl Local {
    /// An `in_group` is about to replace the charged group: if that is the running task's own, it is kept for who asks. Whether it is.
    pub(super) fn keep_member(&self) -> bool {
        if self.epoch.get() == NO_POLL || self.member.borrow().is_some() {
            return false;
        }
        self.member.replace(self.group.borrow().clone());
        true
    }
}
