//! Load averages: how much was runnable lately, in geometrically fading memory.
//!
//! Time is cut into **periods** of 1,024 units of 1,024 ns (1.049 ms). What happened n periods ago counts `y^n`, and
//! `y^32 = 1/2`: half of an average comes from the last 33.6 ms. Of something that goes on forever the sum tends to
//! [`LOAD_AVG_MAX`] units, so
//!
//! ```text
//! sum     = sum(units_n * y^n)                     n = periods ago, 0 for the running one
//! average = scale * sum / (LOAD_AVG_MAX - 1024 + position in the running period)
//! ```
//!
//! An update over p period boundaries is one formula, whatever p is, so that waking after a long sleep costs what a
//! tick costs:
//!
//! ```text
//!        d1          d2           d3               d1 completes the period of the last update,
//!        ^           ^            ^                d2 is p - 1 whole periods, d3 the running one
//!   |<--->|<----------------->|<--->|
//!   ... |---x---|------| ... |------|---x (now)
//!
//! sum' = sum y^p  +  d1 y^p  +  1024 (y + .. + y^(p-1))  +  d3
//!                              = LOAD_AVG_MAX (1 - y^p) - 1024
//! ```
//!
//! Everything is integer arithmetic, rounded down as the kernel does, so that its published figures come out exactly.
//! Period boundaries are the same for every average of one clock: an average is its sums and a time, nothing else.
//!
//! | type | what it is | load | runnable | util |
//! |---|---|---|---|---|
//! | [`TaskAverage`] | one task | its shares while runnable | 1,024 while runnable | 1,024 while running |
//! | [`QueueAverage`] | what competes in one group on one CPU, or all of a CPU | the shares of all children | 1,024 a task | 1,024 while one of them runs |
//!
//! A group's averages over all CPUs are sums of those of its queues: see [`crate::load_average`].
//!
//! Averages are read by dividing, and only then: an update does not divide.

mod average;
mod clock;
mod decay;

pub use average::{LoadAverages, QueueAverage, QueueInput, TaskAverage};
pub(crate) use average::{TaskSums, faded};
pub use clock::PeltClock;
pub use decay::{LOAD_AVG_MAX, PERIOD, UNIT, decay};
