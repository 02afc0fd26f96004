//! What a poll left behind, and the two short states in which its charge is settled.

use super::state::{AfterPoll, Wakes};
use super::{Context, Task};
use std::mem::ManuallyDrop;

/// What a poll left behind.
pub enum Polled<C: Context> {
    /// Pending, and nobody had woken the task when we looked. The token is still ours, so `Owned` may be settled before
    /// [`Parking::park`] lets go of it.
    Pending(Parking<C>),
    /// To be queued again: woken during the poll, or deferred.
    Again(Task<C>),
    /// Ready or panicked: the future is dropped and the output stored, but nobody can see it before [`Finishing::complete`], so that
    /// whoever awaits the task finds its last poll accounted for.
    Finished(Finishing<C>),
    /// Complete: cancelled.
    Done,
}

/// A task with its output stored, about to be seen as complete; dropping it completes it.
pub struct Finishing<C: Context> {
    pub(super) task: ManuallyDrop<Task<C>>,
}

impl<C: Context> Finishing<C> {
    /// What the scheduler keeps with the task, for everybody.
    #[inline]
    pub fn context(&self) -> &C {
        self.task.context()
    }

    /// Lets the handle see the output.
    #[inline]
    pub fn complete(self) {
        drop(self);
    }
}

impl<C: Context> Drop for Finishing<C> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once, here; `self` is not used again.
        let task = unsafe { ManuallyDrop::take(&mut self.task) };
        task.complete();
    }
}

/// A polled task about to go idle; dropping it cancels the task, as dropping the token does.
pub struct Parking<C: Context> {
    pub(super) task: Task<C>,
    /// The wake-ups that the poll had to its account when it began: any other count means a wake-up since.
    pub(super) seen: Wakes,
}

/// What became of a task that was to go idle.
pub enum Parked<C: Context> {
    /// Waiting for a wake-up, which schedules it.
    Idle,
    /// Woken since the poll looked: to be queued again.
    Woken(Task<C>),
    /// Nobody can wake it any more: cancelled, complete.
    Done,
}

impl<C: Context> Parking<C> {
    /// What the scheduler keeps with the task, for everybody.
    #[inline]
    pub fn context(&self) -> &C {
        self.task.context()
    }

    /// What the scheduler keeps with the task, for the token's holder.
    #[inline]
    pub fn owned_mut(&mut self) -> &mut C::Owned {
        self.task.owned_mut()
    }

    /// Lets go of the token, unless a wake-up came since the poll: from *idle* on, any waker may take it.
    #[inline]
    pub fn park(self) -> Parked<C> {
        let Self { task, seen } = self;
        match task.view().state().idle(seen) {
            AfterPoll::Idle => {
                // The token is gone by the transition, and perhaps the memory.
                std::mem::forget(task);
                Parked::Idle
            }
            AfterPoll::Woken => Parked::Woken(task),
            AfterPoll::Orphaned => {
                task.cancel();
                Parked::Done
            }
        }
    }
}
