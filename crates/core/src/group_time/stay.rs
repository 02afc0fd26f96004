//! A group whose tasks are between two queues has not gone: it keeps its place among its siblings.
//!
//! A move takes a task out of one queue and puts it into another, and no queue has it in between. Were that a leave and a return,
//! a group that waited in one queue only would come back with no more than the credit of a sleeper, however much it was owed; and
//! without it the mean of those who are left would be beyond V, which would jump to it and forgive what they owe. (A group of a
//! tenth of the weight had 15.5 % of two CPUs by polls of 50 ms, since each move of what waited behind two of its polls forgave both.)
//!
//! So a move that empties a group's timeline counts the group once more, as if it were on one more CPU, and so each group above
//! that is emptied with it, until the queue that the task comes to has counted them.
//!
//! An own task of a group that has child groups counts in the clock of these children, with its weight and with what it is owed. A task
//! that is owed something stays counted until the other queue has counted it. Were it uncounted first, the mean of those who are left
//! would be beyond V, V would jump to it, and V never goes back. With six entities of equal weight each move of a task that was owed
//! 12 ms gave 2 ms to everybody, and soon also those who had too much seemed to be owed. (A child group had 1.5 times its
//! due, and the tasks that were moved had nothing at all, for as long as the machine ran.)

use super::Told;
use crate::group::Group;
use std::sync::Arc;

/// Keeps a group, and some above it, among their siblings until it is dropped. Dropping it takes a short lock a level that is on no other CPU, and
/// one for the task.
#[derive(Debug, Default)]
pub(crate) struct Stay {
    /// The lowest group, and how many from it upwards; the root never is one of them.
    groups: Option<(Arc<Group>, u32)>,
    /// The group of an own task beside child groups, and what their clock is to be told when the task is counted elsewhere.
    task: Option<(Arc<Group>, Told)>,
}

impl Stay {
    /// Of `group` and those above it, `levels` in all: fewer than its depth has. They are on a CPU now.
    pub(crate) fn of(group: &Arc<Group>, levels: u32) -> Stay {
        for_each(group, levels, |group, _| group.time.stay());
        Stay {
            groups: (levels > 0).then(|| (Arc::clone(group), levels)),
            task: None,
        }
    }

    /// The same for an own task of `group`, which stays counted in the clock of the group's children until `told` is told.
    pub(crate) fn and_task(mut self, group: &Arc<Group>, told: Told) -> Stay {
        self.task = Some((Arc::clone(group), told));
        self
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        if let Some((group, levels)) = &self.groups {
            for_each(group, *levels, |group, parent| {
                group.time.leave(&parent.time);
            });
        }
        if let Some((group, told)) = &self.task {
            group.time.publish_tasks(told);
        }
    }
}

/// Calls `act` with each group and the one above it, the lowest first.
fn for_each(group: &Arc<Group>, levels: u32, mut act: impl FnMut(&Group, &Group)) {
    let mut at: &Arc<Group> = group;
    for _ in 0..levels {
        let Some(parent) = at.parent() else {
            return;
        };
        act(at, parent);
        at = parent;
    }
}
