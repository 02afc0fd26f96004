//! A group's part of the long polls, and the tasks that it keeps back for want of one; the protocol is that of `preempt::parts`.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use quotient_core::Enqueue;

use super::shared::GroupShared;
use crate::shared::Shared;
use crate::task_context::Task;

impl GroupShared {
    /// K1 of `preempt::parts`: keeps the token of a task whose group has used its part; gives it back if it must not be kept. Whether it is
    /// the first.
    pub(crate) fn keep_back(&self, task: Task) -> Result<bool, Task> {
        let mut parked = self.lock_parked();
        let is_new = !self.keeps_back.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // As in `hold`.
        if task.context().marks.is_moved(Ordering::Acquire) || task.is_aborted() {
            self.keeps_back.store(!is_new, Ordering::Relaxed);
            return Err(task);
        }
        parked.insert(task.id().number(), task);
        Ok(is_new)
    }

    /// The tick thread: `most` of the tokens that are kept back go to virtual CPUs again, oldest tasks first. Whether some are left. (Those of a
    /// frozen group wait for the thaw, which lets go of all.)
    pub(crate) fn let_kept_go(&self, shared: &Shared, most: usize) -> bool {
        let mut released = Vec::new();
        let mut parked = self.lock_parked();
        if !self.is_held() {
            let tokens = std::iter::from_fn(|| parked.pop_first()).take(most);
            released.extend(tokens.map(|(_, token)| token));
        }
        let keeps = !self.is_held() && !parked.is_empty();
        self.keeps_back.store(keeps, Ordering::Relaxed);
        drop(parked);
        for task in released {
            shared.submit_remote(task, Enqueue::Wake);
        }
        keeps
    }

    /// The groups whose part of `Preempt::max_borne` its polls are in: this one and those above it but the root.
    pub(crate) fn bearing(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        let above = std::iter::successors(self.parent.as_ref(), |group| group.parent.as_ref());
        std::iter::once(self).chain(above.filter(|group| group.parent.is_some()))
    }

    /// Another thread bears one more of the group's polls. O(depth).
    pub(crate) fn bears_one_more(self: &Arc<Self>) {
        for group in self.bearing() {
            group.borne.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// ... one less. O(depth).
    pub(crate) fn bears_one_less(self: &Arc<Self>) {
        for group in self.bearing() {
            group.borne.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
