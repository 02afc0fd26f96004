//! CPU clocks of tasks, groups and schedulers: reading them.
//!
//! # Protocol
//! The clocks themselves are the core's (`stopwatch`: one hand a virtual CPU, one stopwatch a group on it; `outside`: parts
//! for what no run queue charges) and the task's own two words. A reader
//!
//! 1. brings *itself* up to date if what runs on this thread counts for the clock: [`show_own_time`] writes the hand of the
//!    own virtual CPU (one store, at any depth), or, on a metered thread or inside `in_group`, adds to the parts of the
//!    processor that it runs on. Nobody else's line is written;
//! 2. sums what everybody has published, by loads alone.
//!
//! Other polls in progress count up to when they last showed or ended: a clock is behind by at most the polls in progress
//! elsewhere. What was shown is never taken back: if a poll turns out to have had less (the host ran something else), it is
//! billed what it has shown.
//!
//! A task's clock moves after its group's: the virtual CPU shows a poll on its hand before it adds the poll to the task. So a
//! group read after one of its tasks is not behind it, and a group is never behind the sum of its finished tasks.

mod current;
mod reading;

pub(crate) use self::current::{OwnTime, Stolen, poll_time, show_own_time};
pub use self::reading::{ClockError, TaskClock, TaskClockExt};
pub(crate) use self::reading::{duration, read};
