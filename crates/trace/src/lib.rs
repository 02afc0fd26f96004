//! Scheduling events of the runtime, the simulator and real kernels, in one vocabulary.
//!
//! [`Event`] is what happened, [`Definition`] gives names to numbers, and a [`Sink`] takes both; they live in
//! `quotient_core::event`, so that a host can record without any of the code here.

#![forbid(unsafe_code)]

pub use quotient_core::event::{
    Amount, Counter, Definition, Discard, Event, GroupId, GroupInfo, InterruptKind, Kind, Limit,
    NameId, RescueReason, ResumeReason, Sink, Table, TaskId, TaskInfo, TaskState,
};

pub mod chart;
pub mod check;
mod diff;
mod html;
mod read;
mod record;
mod repair;
mod replay;
mod statistics;
mod write;

pub use diff::{Comparison, Metric, compare};
pub use html::Html;
pub use read::{
    CPU_NUMBERS, Format, Gaps, Item, LATE_MAX, Late, Mark, MarkKind, Note, NotedChange, NotedLimit,
    NotedThrottles, NotedWeight, Progress, REORDER_EVENTS, ReadError, Reader, Recorder, SPAN_MAX,
};
pub use record::VCPUS_REMARK;
pub use repair::{Contradiction, Missing, Repair};
pub use replay::{Fault, Imbalance, Observer, Replay, Run, Stand, Wait};
pub use statistics::{CpuFigures, Delays, Figures, GroupFigures, Statistics, TaskFigures};
pub use write::{Ftrace, JsonLines, NoteSink, Perfetto};
