//! `future.in_group(&group)`: a future anywhere, metered and ordered as a member of a group.
//!
//! # Inside a task of the same scheduler, or nested in another `in_group`
//! The outer poll already holds a place on a processor; the wrap borrows it and switches the charged group for the time of the inner
//! poll. The inner group pays, the outer group and task do not. Children spawned inside inherit the inner group.
//!
//! The inner group's limit holds, too. While it, or one above, is used up no inner poll begins: the wrap has a gate as in a foreign task then,
//! whose member is throttled with its group and wakes the outer task when that has budget, and gives it up before the inner future is
//! polled (with the task's waker, as always here). The inner future was not polled with such a gate's waker, so whatever wakes it wakes the outer
//! task, which asks the gate again; and a new gate is ready, so its member's first turn lets the poll through: no wake-up is lost.
//! A poll in progress stands still in a preempting scheduler (`preempt::payers`).
//!
//! # Inside a foreign task (`tokio::spawn`, axum's own connection tasks, `block_on`)
//! The order of such polls is tokio's to decide, so the wrap puts a *gate* in between (`gate` has the protocol): a small task in
//! the group, its *member*, queued like any other.
//!
//! - The inner future is polled with the gate's waker. A wake-up wakes the member, not the foreign task.
//! - When a virtual CPU picks the member, in the order that weights and limits ask for, it first pays the debt of the last inner
//!   poll, and then, at its turn again if that was long, wakes the foreign task and asks the virtual CPU to return to the host: the
//!   foreign task is next in tokio's LIFO slot.
//! - The foreign poll runs the inner future if the gate was passed. The group pays for it at once: clocks, budgets, and its
//!   virtual time among its siblings. What is left to the member's turn is its order *inside* the group. A wrap that ends owing
//!   ends its member there and then.
//!
//! # Why weights hold
//! Letting somebody through costs a group nothing by itself, the poll comes later and elsewhere. Three things follow.
//! - *The group pays when the poll ends, not at its member's next turn.* Of a stream of futures of one poll the new ones come
//!   before the old ones' members, for nobody's turn costs anything: were those to pay, they would pay ever later.
//! - *A pass ends the groups' turn*: the next choice starts at the root, and finds every group at what it has received, but for
//!   the polls in progress.
//! - *The virtual CPU lets what it has let through go first.* It must choose while others wait. Woken by the next member before
//!   the host has come to the poll it let through, it would let that one through, too, the only one there, and so on: all are
//!   in the host's queue then, in the order of their coming. So after each pass it defers to the host once more, which puts it behind
//!   that queue and behind the yields that tokio has deferred until then, whose futures would be missing from the choice, too. It
//!   waits for nobody: a poll that never comes costs one such round.
//! - *Time of such polls is not the host's own business.* Where it is taken for that, the virtual CPU queues with the host's tasks
//!   (`Vcpu::notice_gap`) or is asked for by the watch, and is before the deferred yields again; or a stand-in comes and lets more
//!   through. So these polls leave word (`local::begin_gated`). Nor is time the host's in which the thread did not run at all.
//!
//! What this does not reach: a host whose thread gets no processor for longer than the watch waits (20 ms) looks stuck, and the
//! stand-in that comes lets through what waits, into a queue that is first come, first served.
//!
//! With k futures of a group at a time, and m workers: k > m keeps some of the group waiting whatever runs, and its share is what its
//! weight says, up to the polls in progress, m of them. With k <= m the group is at times not there to be chosen, and gets what
//! k futures can use, as k tasks would.
//!
//! # Going ahead
//! The *first* poll waits for its turn like every other: handlers that are ready at once would else escape every weight and limit.
//! But a turn is worth more than one short poll: what of that the group has left, futures without a member use up without asking
//! (`allowance`). A future that is never Pending, or is woken seldom, may so end without ever having had a member.
//!
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
//! CPU time: a poll's wall time, and if that is long, no more than the thread's CPU clock says (`local::wrap`). In a destructor of a
//! thread-local, when ours are gone, the thread's CPU clock alone; `Group::current` is `None` there.

mod allowance;
mod gate;

#[cfg(not(loom))]
mod future;
#[cfg(not(loom))]
mod member;

pub(crate) use self::allowance::Allowance;
#[cfg(not(loom))]
pub use self::future::{InGroup, InGroupExt};
