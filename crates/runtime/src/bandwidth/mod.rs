//! Limits in the runtime: how users write them, when refills happen, and who is not to be left throttled.
//!
//! The rules are the core's (`quotient_core::bandwidth`). This side says *when*:
//!
//! # Refills are on time
//! A due refill is run by whoever sees it first: a virtual CPU at the start of a turn, or the tick thread, which sleeps no
//! longer than to the next one. A period timer starts with a charge, so before every poll with limits in force the virtual
//! CPU compares the next refill with the time at which the tick thread will look ([`crate::tick`]): two loads. A long poll on
//! every worker therefore delays no refill.
//!
//! # Who is refilled is woken
//! A refill names the virtual CPUs that have a group to put back. It was posted to their mailbox before they are woken, and a
//! virtual CPU looks at the mailbox once more after announcing sleep: the protocol of `park` holds for it as for the inbox.
//!
//! # Order of the gate
//! A group holds the gate from before its limit is set to after it is lifted (see `gates`); a group that is removed with a
//! limit gives it back when its last reference goes.

mod deferral;
mod guard;
mod kept_back;
mod limit;
mod line;
mod loan;
mod throttled;
mod turns;
mod watch;

pub(crate) use deferral::Deferral;
pub use guard::{ThrottleGuard, defer_throttle};
pub(crate) use kept_back::KeptBack;
pub use limit::{Cpus, Max, Share};
pub(crate) use limit::{LimitChange, nanos};
pub(crate) use line::Line;
pub use throttled::{WithThrottled, WithThrottledExt, throttled_time};
pub(crate) use watch::RungBells;
pub use watch::ThrottleWatch;
