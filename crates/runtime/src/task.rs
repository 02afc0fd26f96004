//! Tasks: their handles and names, and what runs now ([`id`], [`Builder`]).
//!
//! Names are not tokio's: `tokio::task::try_id()` in a task of a group is that of the virtual CPU which polls it, the same for
//! every task there, and `None` on a thread of the scheduler's (a stand-in; all under [`crate::Builder::preempt`]). Ask [`try_id`].

#[cfg(not(loom))]
pub use crate::task_builder::Builder;
pub use quotient_task::{AbortHandle, AbortOnDropHandle, Id, JoinError, JoinHandle, id, try_id};

pub(crate) use quotient_task::{
    Context, Finishing, Parked, Parking, Polled, Promise, Put, Slot, Task, TaskRef, Vacancy,
    discard, is_of_a_task, probe_cloned, promise, spawn_as, trace,
};
