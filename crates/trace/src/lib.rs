//! Scheduling events of the runtime, the simulator and real kernels, in one vocabulary.
//!
//! [`Event`] is what happened, [`Definition`] gives names to numbers, and a [`Sink`] takes both; they live in
//! `quotient_core::event`, so that a host can record without any of the code here.

#![forbid(unsafe_code)]

pub use quotient_core::event::{
    Amount, Counter, Definition, Discard, Event, GroupId, GroupInfo, InterruptKind, Kind, Limit,
    NameId, Sink, Table, TaskId, TaskInfo, TaskState,
};

mod read;
mod record;
mod write;

pub use read::{Format, Item, Progress, REORDER_EVENTS, ReadError, Reader};
pub use write::{Ftrace, JsonLines};
