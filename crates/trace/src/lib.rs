//! Scheduling events of the runtime, the simulator and real kernels, in one vocabulary.
//!
//! [`Event`] is what happened, [`Definition`] gives names to numbers, and a [`Sink`] takes both. Whoever records is a
//! source of events, and whoever writes, counts or checks is a sink, so any of them can be put behind any other.

#![forbid(unsafe_code)]

mod event;
mod numbers;
mod sink;
mod state;
mod table;

pub use event::{Amount, Counter, Event, InterruptKind, Kind, Limit};
pub use sink::{Discard, Sink};
pub use state::TaskState;
pub use table::{Definition, GroupId, GroupInfo, NameId, Table, TaskId, TaskInfo};
