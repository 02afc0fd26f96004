//! Group CPU scheduling: weights, EEVDF, hierarchy and balancing, with no clock and no threads of its own.
//!
//! One piece of policy for two hosts: a runtime on real threads (one [`RunQueue`] for each virtual CPU, each behind
//! the host's lock) and a simulator (many of them on one thread). Every call takes `now`; nothing here reads a clock,
//! blocks, or does I/O, and there is no `unsafe`.
//!
//! ```
//! use quotient_core::{Config, CpuId, Enqueue, GroupTree, Nanos, RunQueue, TaskEntity, Weight};
//!
//! let tree = GroupTree::new(Config::new(1));
//! let (web, batch) = (tree.group("tenants/web").unwrap(), tree.group("tenants/batch").unwrap());
//! web.set_weight(Weight::new(300).unwrap());
//!
//! let mut queue = RunQueue::new(&tree, CpuId(0));
//! queue.enqueue(&web, TaskEntity::default(), "web", Enqueue::New, Nanos(0));
//! queue.enqueue(&batch, TaskEntity::default(), "batch", Enqueue::New, Nanos(0));
//! let mut task = queue.pick(Nanos(0)).unwrap();
//! for millisecond in 1..=400 {
//!     task = queue.switch_yield(task, Nanos::from_millis(millisecond));
//! }
//! assert_eq!(web.cpu_time(), Nanos::from_millis(300));
//! assert_eq!(batch.cpu_time(), Nanos::from_millis(100));
//! ```
//!
//! # Who competes
//!
//! An **entity** is a task or a group. Entities compete within a **timeline**: one for each (group, CPU) pair, made
//! when that CPU first meets the group. A group with something to run on a CPU is itself an entity in its parent's
//! timeline there, so choosing a task means choosing once a level from the root down, and every nanosecond is charged
//! at every level: `charge(g) = own tasks + sum(children)`, exactly.
//!
//! # Virtual time, V and lag
//!
//! Entity i has w_i shares (a weight of 100 is 1,024) and a virtual time v_i that advances by `service * 1024 / w_i`.
//! Equal virtual times are fair shares. The timeline's own virtual time is the weighted mean
//!
//! ```text
//! V = sum(w_i v_i) / sum(w_i)            lag_i = w_i (V - v_i)            sum(lag_i) = 0
//! ```
//!
//! A positive lag is service owed to the entity. V is kept as a sum relative to a moving zero point (128 bits, cannot
//! overflow), so nobody divides to find out who is eligible.
//!
//! # Choosing: earliest eligible virtual deadline first
//!
//! An entity asks for requests of r_i ns (its slice). It is **eligible** if v_i <= V, and its **deadline** is
//! `d_i = v_i + r_i / w_i` from when the request began. The eligible entity with the earliest deadline runs, and keeps
//! the CPU until its deadline or the shortest waiting slice (run to parity). Three tasks of weights 1 : 1 : 2 and
//! requests of 2 ms, each run to its deadline (virtual ms; `*` marks the choice):
//!
//! | at | v_a, d_a | v_b, d_b | v_c, d_c | V | runs |
//! |---|---|---|---|---|---|
//! | 0 | 0, 2 | 0, 2 | *0, 1 | 0 | c for 2 ms |
//! | 2 | *0, 2 | 0, 2 | 1, 2 | 0.5 | a for 2 ms: c is not eligible |
//! | 4 | 2, 4 | *0, 2 | 1, 2 | 1 | b for 2 ms: queued before c |
//! | 6 | 2, 4 | 2, 4 | *1, 2 | 1.5 | c for 2 ms |
//! | 8 | 2, 4 | 2, 4 | 2, 3 | 2 | everyone had its share: 2, 2 and 4 ms |
//!
//! What follows from it, and is tested:
//! - Weight decides how much, the slice decides how soon: a short slice buys latency, never a share.
//! - Two entities runnable throughout differ by a constant, however long that is: |lag| <= longest slice + longest
//!   time between two charges.
//! - **Sleep keeps lag**, limited by [`Config::lag_limit`] and [`Config::debt_limit`]: sleeping neither earns nor erases
//!   anything. A waking entity is placed at `V - lag (W + w) / W / w`, so that its lag is what it was once it counts.
//! - **A new task** gets half a request: soon, but its spawner is not starved by having many.
//! - **A yield** ends the request and nothing else: the yielder goes behind its peers and keeps its share.
//! - **A weight change** keeps lag and V.
//!
//! [`Policy::Cfs`] switches the same entities to the older rule (least virtual time, sleeper credit), for comparison.
//!
//! # What makes it cheap
//!
//! - The path of groups stays chosen until its turn is over, so a switch within a group touches one timeline; the
//!   groups are charged in batches (see `run_queue`).
//! - Order is kept in buckets of [`Config::quantum`], FIFO within: 18 ns a switch, as flat at 10,000 ready tasks as at
//!   100. Raw nanosecond order costs log n and was measured worse for request latency.
//! - Whoever runs out of things to do leaves its timeline; sleeping tasks and idle groups cost nothing but memory.
//!
//! # Many CPUs
//!
//! Each group has one virtual time on all CPUs, and each CPU runs it at its full weight from there (`group_time` explains why
//! that makes local fairness global). Who is owed something and waits is pulled by who is owed nothing; the tasks of one
//! group are evened out by [`balance`], which pulls from where V lags behind. [`GroupClock::PerCpu`] is the other known way, weights split by
//! load ([`group_weight`]).
//!
//! # Rooms
//!
//! | file | what |
//! |---|---|
//! | `units`, `weight`, `config`, `error` | what users write, with ranges |
//! | `gates` | which features are on |
//! | `tree`, `group`, `clock`, `stopwatch`, `outside` | the groups and their clocks, shared by all CPUs |
//! | `entity`, `node`, `timeline`, `average`, `key_queue` | what one CPU keeps |
//! | `eevdf`, `cfs`, `buddy` | who is chosen, where one is placed, who preempts |
//! | `bandwidth/` | limits: how much CPU time a group may use at all |
//! | `run_queue/` | the calls: enqueue, pick, charge, put, hand over, detach |
//! | `group_time`, `group_weight`, `load`, `balance`, `topology` | many CPUs |
//! | `pelt/`, `load_average/` | load averages, and a group's load summed over CPUs |
//! | `event/` | what can happen, as records of 32 bytes; names; who takes them |
//! | `check` | every invariant, recomputed; tests and simulators call it at every step |
//!
//! **Invariants by absence:** no clock is read, no lock of a run queue is taken, nothing is random; the only shared
//! state is in [`Group`] and [`CpuLoad`], atomics but for lists that change when a CPU meets a group.

#![forbid(unsafe_code)]

mod arrived;
mod average;
pub mod balance;
mod bandwidth;
mod buddy;
mod cfs;
mod check;
mod clock;
mod config;
mod eevdf;
mod ended;
mod entity;
mod error;
pub mod event;
mod gates;
mod group;
mod group_time;
pub mod group_weight;
mod key_queue;
mod load;
pub mod load_average;
mod moved;
mod node;
mod outside;
pub mod pelt;
mod run_queue;
mod stopwatch;
mod timeline;
mod topology;
mod tree;
mod units;
mod watched;
mod weight;

pub use balance::{Pull, Reason};
pub use bandwidth::{
    BandwidthAccount, BandwidthBalance, BandwidthRules, BandwidthStats, Limit, LimitChanges,
    LimitError, REFILLS_MAX, RatioRule, THROTTLE_BUCKETS, ThrottleWatch,
};
pub use check::Violation;
pub use config::{Config, GroupClock, Policy};
pub use entity::{Enqueue, TaskEntity};
pub use error::{ConfigError, GroupError, NiceError, SliceError, WeightError};
pub use gates::{AlwaysOn, CompiledOut, Gates};
pub use group::{Group, Occupancy};
pub use group_weight::WeightMode;
pub use load::CpuLoad;
pub use run_queue::{Detached, DrainPart, GroupSlot, RunQueue};
pub use stopwatch::CpuClock;
pub use topology::{CpuPlace, Distance, Topology};
pub use tree::GroupTree;
pub use units::{CpuId, NICE_0_SHARES, Nanos, Slice};
pub use weight::{IDLE_SHARES, Nice, Weight};
