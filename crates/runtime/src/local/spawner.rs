//! Who spawns: the task of the poll in progress, as `kills` asks for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::nobody::is_nobodys;
use super::{Charged, LOCAL, Local, current_group};
use crate::group::GroupShared;
use crate::kills::KilledAt;
use crate::shared::Shared;
use crate::task_context::Task;

/// No poll: no kill is after it.
pub(super) const NO_POLL: u64 = u64::MAX;

/// The epoch of a poll that begins now. One of a task that a kill has flagged, and has not come to yet, is its last: the future is dropped.
#[inline]
pub(super) fn epoch(shared: &Shared, task: &mut Task) -> u64 {
    let epoch = shared.kills.now();
    // After the look at the kills: whoever sees one complete sees the flags that it has set.
    if task.context().killed.load(Ordering::Relaxed) {
        task.abort();
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
        // A kill of where its tasks have moved covers it, be it in a group above or still below.
        let own = own.where_its_tasks_are();
        Some(judge(Some((&own.killed_at, epoch))))
    });
    inside.ok().flatten().unwrap_or_else(|| judge(None))
}

/// The group whose code the caller is, and its scheduler: as [`current_group`], but `None` for code that is no group's (`nobody`).
pub(crate) fn group_of_caller() -> Option<Charged> {
    if is_nobodys() {
        return None;
    }
    current_group()
}

/// The group that a task belongs to which the caller spawns without naming one, and its scheduler: those of [`group_of_caller`]; but where the
/// running task's group was removed and its tasks move on, the one where they go. Only for the task itself, and not for one that was killed:
/// what else is charged to a group that was removed ends with that.
pub(crate) fn group_to_spawn_in() -> Option<Charged> {
    let (shared, group) = group_of_caller()?;
    if group.is_removed() && goes_on_elsewhere(&shared, &group) {
        let target = group.where_its_tasks_are().clone();
        return Some((shared, target));
    }
    Some((shared, group))
}

/// Whether the caller is in a poll of a task of that group that no kill has reached, and in no `in_group` there.
#[cold]
fn goes_on_elsewhere(shared: &Arc<Shared>, group: &Arc<GroupShared>) -> bool {
    let inside = LOCAL.try_with(|local| {
        let epoch = local.epoch.get();
        let own = local.group.try_borrow().ok()?;
        let (_, own) = own.as_ref()?;
        let is_own = epoch != NO_POLL
            && local.scheduler.get() == Arc::as_ptr(shared) as usize
            && local.member.try_borrow().ok()?.is_none()
            && Arc::ptr_eq(own, group);
        Some(is_own && !group.killed_at.is_after(epoch))
    });
    inside.ok().flatten().unwrap_or(false)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::Scheduler;

    /// Hazard: whoever kills is stopped in the middle of it, and tasks that are dead by then go on.
    #[test]
    fn who_was_flagged_by_a_kill_that_is_under_way_is_polled_once_more() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
            let group = scheduler.group("g").unwrap().create().unwrap();
            let (wake, woken) = tokio::sync::oneshot::channel::<()>();
            let goes_on = Arc::new(AtomicBool::new(false));
            let seen = goes_on.clone();
            let task = group.spawn(async move {
                let _ = woken.await;
                seen.store(true, Ordering::Relaxed);
            });
            while group.task_stats()[0].polls == 0 {
                tokio::task::yield_now().await;
            }
            let (dead, losses) = group.inner.owned.flag_killed();
            assert_eq!((dead.len(), losses), (1, 1));
            wake.send(()).unwrap();
            assert!(task.await.unwrap_err().is_cancelled());
            assert!(!goes_on.load(Ordering::Relaxed));
            // The rest of the kill finds it ended.
            dead[0].abort();
            scheduler.shutdown().await;
        });
    }
}
