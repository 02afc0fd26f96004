//! `future.in_group(&group)`: a future anywhere, metered and ordered as a member of a group.
//!
//! # Inside a task of the same scheduler, or nested in another `in_group`
//! The outer poll already holds a place on a processor; the wrap borrows it and switches the charged group for the time of the inner
//! poll. The inner group pays, the outer group and task do not. Children spawned inside inherit the inner group.
//!
//! # Inside a foreign task (`tokio::spawn`, axum's own connection tasks, `block_on`)
//! The order of such polls is tokio's to decide, so the wrap puts a *gate* in between (`gate` has the protocol): a small task in
//! the group, its *member*, queued like any other.
//!
//! - The inner future is polled with the gate's waker. A wake-up wakes the member, not the foreign task.
//! - When a virtual CPU picks the member, in the order that weights and limits ask for, it first pays the debt of the last inner
//!   poll, and then, at its turn again, wakes the foreign task and asks the virtual CPU to return to the host: the foreign task
//!   is next in tokio's LIFO slot.
//! - The foreign poll runs the inner future if the gate was passed. What it used is on the group's clock and off its budgets at
//!   once; in virtual time it is the member's debt. A wrap that ends owing leaves its member behind until that has paid.
//!
//! The *first* poll waits for its turn like every other: handlers that are ready at once would else escape every weight and limit.
//! Nothing is held between pick and foreign poll, so a foreign task that is dropped or never polled costs the others nothing.
//! Outer wake-ups that the inner future did not ask for (a `select!` around the wrap) return `Pending`, which is what the
//! inner future said last.
//!
//! A wrap may go from one kind of place to the other between two polls. In a task it is polled with the task's waker and gives up its
//! gate, whose waker the inner future forgets then; back in a foreign task it begins with a new gate, and so with a poll.
//!
//! # When the member is gone
//! `kill` ends what the group has, which in a foreign task is the member only: the future goes on, at its next wake-up with a new
//! member, so that weight and limit hold for it as long as there is a group. When the group was removed or the scheduler shut
//! down, it goes on without: ordered by nobody, its time still on the group's clock. In no order does it hang.
//!
//! # What is billed
//! CPU time: a poll's wall time, and if that is long, no more than the thread's CPU clock says (`local::wrap`).

mod gate;

#[cfg(not(loom))]
mod future;
#[cfg(not(loom))]
mod member;

#[cfg(not(loom))]
pub use self::future::{InGroup, InGroupExt};
