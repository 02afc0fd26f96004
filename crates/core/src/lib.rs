//! Group CPU scheduler core.
#![forbid(unsafe_code)]

mod average;
pub mod balance;
mod buddy;
mod cfs;
mod check;
mod clock;
mod config;
mod eevdf;
mod entity;
mod error;
mod foreign;
mod group;
pub mod group_weight;
mod key_queue;
mod load;
mod node;
mod run_queue;
mod timeline;
mod topology;
mod tree;
mod units;
mod weight;

pub use balance::{Pull, Reason};
pub use check::Violation;
pub use config::{Config, GroupClock, Policy};
pub use entity::{Enqueue, TaskEntity};
pub use error::{ConfigError, GroupError, NiceError, SliceError, WeightError};
pub use group::Group;
pub use group_weight::WeightMode;
pub use load::CpuLoad;
pub use run_queue::{Detached, GroupSlot, RunQueue};
pub use topology::{CpuPlace, Distance, Topology};
pub use tree::GroupTree;
pub use units::{CpuId, NICE_0_SHARES, Nanos, Slice};
pub use weight::{IDLE_SHARES, Nice, Weight};
