//! What the scheduler keeps for each group.
//!
//! # Frozen tasks
//! A group is *held* while it or an ancestor is frozen. A virtual CPU that picks a task of a held group gives the token to
//! [`GroupShared::hold`] instead of polling it; thaw takes the tokens out and queues them. Both look at the flag under the
//! group's `parked` lock, so a token is either seen by thaw or goes back to its virtual CPU. Freezing costs nothing per task
//! and one relaxed load a dispatch.
//!
//! # Removal
//! `removed` is set first: spawns are refused from then on. The core gives the group up when its last task has left every run
//! queue; if the last task ends while it is still current there, the group waits in `Shared::leaving` for the next tick.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use quotient_core::Enqueue;
use quotient_keys::EnableGuard;

use crate::owned::OwnedTasks;
use crate::shared::Shared;
use crate::stats::GroupCpus;
use crate::task_context::Task;

/// What the scheduler keeps for a group.
#[derive(Debug)]
pub(crate) struct GroupShared {
    pub(crate) core: Arc<quotient_core::Group>,
    pub(super) parent: Option<Weak<GroupShared>>,
    pub(crate) owned: OwnedTasks,
    pub(crate) cpus: GroupCpus,
    pub(super) live: AtomicUsize,
    pub(super) removed: AtomicBool,
    /// This group itself was frozen; written under `Shared::shape`.
    pub(super) frozen: AtomicBool,
    /// This group or an ancestor is frozen; written under `Shared::shape`.
    held: AtomicBool,
    /// Tokens of tasks that were picked while held.
    parked: Mutex<Vec<Task>>,
    /// This group or an ancestor has a limit; written under `Shared::shape`.
    limited: AtomicBool,
    /// Keeps bandwidth control switched on while the group has a limit.
    gate: Mutex<Option<EnableGuard>>,
}

impl GroupShared {
    pub(crate) fn new(
        core: Arc<quotient_core::Group>,
        parent: Option<&Arc<GroupShared>>,
        slots: usize,
    ) -> Self {
        Self {
            core,
            parent: parent.map(Arc::downgrade),
            owned: OwnedTasks::default(),
            cpus: GroupCpus::new(slots),
            live: AtomicUsize::new(0),
            removed: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            held: AtomicBool::new(parent.is_some_and(|parent| parent.is_held())),
            parked: Mutex::new(Vec::new()),
            limited: AtomicBool::new(parent.is_some_and(|parent| parent.is_limited())),
            gate: Mutex::new(None),
        }
    }

    /// Whether tasks of the group must not be polled now.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether the group or one above has a limit.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Keeps bandwidth control on while there is a limit, or lets go of it.
    pub(crate) fn keep_gate(&self, gate: Option<EnableGuard>) {
        *self
            .gate
            .lock()
            .unwrap_or_else(|poison| poison.into_inner()) = gate;
    }

    /// Sets `limited` for the group and everything below it, after its limit changed. Called under `Shared::shape`.
    pub(crate) fn settle_limited_below(self: &Arc<Self>, shared: &Shared) {
        let mut groups = vec![self.clone()];
        while let Some(group) = groups.pop() {
            let above = group
                .parent
                .as_ref()
                .and_then(Weak::upgrade)
                .is_some_and(|parent| parent.is_limited());
            let limited = above || group.core.limit().is_some();
            group.limited.store(limited, Ordering::Relaxed);
            groups.extend(
                group
                    .core
                    .children()
                    .iter()
                    .map(|core| lookup(shared, core)),
            );
        }
    }

    /// Keeps the token of a task that was picked while the group is held; gives it back if it no longer is.
    pub(crate) fn hold(&self, task: Task) -> Result<(), Task> {
        let mut parked = self.lock_parked();
        // A killed task goes on to its end: kill marks its tasks before it takes this lock to empty the list.
        if !self.is_held() || task.is_aborted() {
            return Err(task);
        }
        parked.push(task);
        Ok(())
    }

    pub(super) fn lock_parked(&self) -> MutexGuard<'_, Vec<Task>> {
        self.parked
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    pub(crate) fn joined(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    /// A task has left the group for good.
    pub(crate) fn left(self: &Arc<Self>, shared: &Shared) {
        if self.live.fetch_sub(1, Ordering::AcqRel) == 1 && self.is_removed() {
            self.queue_removal(shared);
        }
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(super) fn queue_removal(self: &Arc<Self>, shared: &Shared) {
        let mut leaving = shared
            .leaving
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        if !leaving.iter().any(|known| Arc::ptr_eq(known, self)) {
            leaving.push(self.clone());
        }
        drop(leaving);
        shared.tick.run();
    }

    /// Aborts the group's own tasks, those that are held included. O(tasks).
    pub(crate) fn kill_own(&self) {
        for task in self.owned.snapshot() {
            task.abort();
        }
        let parked = std::mem::take(&mut *self.lock_parked());
        for task in parked {
            task.cancel();
        }
    }

    /// Sets `held` from the parent's and the own flag; queues what may run again. Called under `Shared::shape`, for parents before
    /// their children.
    pub(super) fn settle_held(&self, shared: &Shared) {
        let above = self
            .parent
            .as_ref()
            .and_then(Weak::upgrade)
            .is_some_and(|parent| parent.is_held());
        let held = above || self.frozen.load(Ordering::Relaxed);
        let released = {
            let mut parked = self.lock_parked();
            self.held.store(held, Ordering::Relaxed);
            if held {
                Vec::new()
            } else {
                std::mem::take(&mut *parked)
            }
        };
        for task in released {
            shared.submit_remote(task, Enqueue::Wake);
        }
    }

    pub(super) fn path(&self) -> String {
        self.core.path().to_owned()
    }
}

/// Gives removed groups without tasks back to the core; returns whether any still waits.
pub(crate) fn finish_removals(shared: &Shared) -> bool {
    let mut leaving = shared
        .leaving
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    if leaving.is_empty() {
        return false;
    }
    let _shape = shared.lock_shape();
    leaving.retain(|group| {
        if group.live.load(Ordering::Acquire) > 0 {
            // It was given a task by a move; that task's end will queue it again.
            return false;
        }
        let id = group.core.id();
        if shared.tree.remove(&group.core).is_err() {
            return true;
        }
        shared
            .groups
            .write()
            .unwrap_or_else(|poison| poison.into_inner())
            .remove(&id);
        false
    });
    !leaving.is_empty()
}

/// The runtime's part of a core group, made for it and its ancestors on first use. Called under `Shared::shape`.
pub(crate) fn lookup(shared: &Shared, core: &Arc<quotient_core::Group>) -> Arc<GroupShared> {
    let Some(parent) = core.parent() else {
        return shared.root.clone();
    };
    let known = shared
        .groups
        .read()
        .unwrap_or_else(|poison| poison.into_inner())
        .get(&core.id())
        .cloned();
    if let Some(known) = known {
        return known;
    }
    let parent = lookup(shared, parent);
    let group = Arc::new(GroupShared::new(
        core.clone(),
        Some(&parent),
        shared.vcpus.len(),
    ));
    shared
        .groups
        .write()
        .unwrap_or_else(|poison| poison.into_inner())
        .insert(core.id(), group.clone());
    group
}
