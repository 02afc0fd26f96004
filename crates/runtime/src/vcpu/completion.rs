//! The end of a task: what of the program's code runs then, and where.
//!
//! # What runs
//! The future is dropped in the task's last poll, and so is all of a task that was aborted. But a task becomes complete only after its last
//! poll was charged, so that whoever awaits it reads complete clocks; and that step sets off code of the program's: the waker that the handle has left, or
//! the destructor of an output that nobody wants, the payload of a panic too.
//!
//! # Where
//! In a region of its own, as if the task were polled once more: so it can be detached, lowered, stopped, charged and limited as a poll.
//! (It used to run between two regions, where nobody can take anything away: a tenant of two tasks whose outputs computed in their
//! destructors left an equal one nothing of two processors, and those with wakers that slept kept both virtual CPUs.)
//!
//! # Protocol
//! (C1) The last poll is charged. The task stays the current one of the run queue. (C2) `polling_since` says when its end began; `polling` says
//! whose still. (C3) The region begins; (C4) the task becomes complete, and what that sets off runs; (C5) the region ends.
//! *Kept*, the virtual CPU bills what was beyond the poll ([`Vcpu::bill_beyond`]), and takes the task out of its queue.
//! *Detached*, the virtual CPU is another carrier's, as after any poll: that one charges the current task up to the parting and puts a
//! proxy in its place, and the thread that is left bears what goes on, and posts the task's end.
//! *Who bears a poll* to its end (`returned`) completes the task in a region, too. It waits for no turn before that, since others may wait for the task: if it may
//! not run, the watch has it stand within a look.
//!
//! # Who may touch what
//! From C3 to C5 nothing of the virtual CPU, as in any region; nothing of the task from C4 on, but by what the handle and the cell keep.
//! *Freezes and kills*: a complete task is in no list of its group, so an end is not held by a freeze (`GroupShared::lets_end`), and is not waited for by who kills; a
//! [`kill_immediately`](crate::Group::kill_immediately) stops it like a poll that began before.
//! *The scheduler's end*: the last live task may be the one whose end goes on here. Its virtual CPU's future has not ended by that, and whoever takes that
//! over counts the proxy, so the scheduler has not ended before.
//!
//! Where polls are not preempted the end runs where the poll ran, and holds the virtual CPU as that did: `polling_since` tells the watch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::Nanos;
use quotient_pause::Regions;

use super::Vcpu;
use super::dispatch::Began;
use crate::gates::RunQueue;
use crate::local::Entered;
use crate::shared::{Shared, VcpuShared};
use crate::task::{Finishing, Polled};
use crate::task_context::{Task, TaskContext};

/// How a poll ran.
pub(super) enum Ran<'a, 'b> {
    /// Nobody could take it away. The run queue, if its lock was kept.
    Whole(Option<&'a mut RunQueue<Task>>),
    /// In a region, which is over.
    InRegion(&'a mut Regions<'b>),
}

impl Vcpu {
    /// C2 to C5, at the time `now`. Whether the virtual CPU was lost.
    #[inline(always)]
    pub(super) fn complete(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        entered: &Entered,
        finishing: Finishing<TaskContext>,
        regions: Option<&mut Regions<'_>>,
        now: Nanos,
    ) -> bool {
        me.polling_since
            .store(now.as_nanos().wrapping_add(1), Ordering::Relaxed);
        match regions {
            None => finishing.complete(),
            Some(regions) => {
                entered.resume_task();
                let region = regions.open();
                finishing.complete();
                if region.end().is_detached() {
                    self.lose_completion(shared, entered, now);
                    return true;
                }
                entered.end_resumed();
            }
        }
        me.polling_since.store(0, Ordering::Relaxed);
        false
    }

    /// The task is complete, and the virtual CPU is another thread's.
    #[cold]
    #[inline(never)]
    fn lose_completion(&mut self, shared: &Arc<Shared>, entered: &Entered, started: Nanos) {
        let began = Began {
            started,
            delay: Nanos::ZERO,
            location: std::panic::Location::caller(),
        };
        self.lose(shared, entered, Polled::Done, began);
    }
}

/// The same of a thread that bears the task's poll, which is over.
pub(super) fn complete_as_bearer(entered: &Entered, finishing: Finishing<TaskContext>) {
    entered.resume_task();
    // Nobody detaches what is borne.
    let _ = quotient_pause::region(|| finishing.complete());
    entered.end_resumed();
    // What it has noted is in the thread's time already.
    let _ = entered.end_task();
}
