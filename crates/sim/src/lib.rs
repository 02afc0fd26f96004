//! The scheduler core under virtual time: the very code that runs on threads, on machines that need not exist.
//!
//! ```
//! use quotient_sim::{Machine, Plan, Simulation, synthetic};
//! use quotient_core::Nanos;
//! use quotient_trace::Discard;
//!
//! let mut plan = Plan::new(Machine::parse("2x4").unwrap());
//! let (web, batch) = (plan.group("web"), plan.group("batch"));
//! synthetic::spinners(&mut plan, "web", web, 8);
//! synthetic::spinners(&mut plan, "batch", batch, 24);
//! plan.duration = Nanos::from_secs(1);
//! let mut simulation = Simulation::new(&plan, Discard).unwrap();
//! simulation.run().unwrap();
//! let outcome = simulation.outcome();
//! assert_eq!(outcome.busy_ns, 8_000_000_000);
//! ```

#![forbid(unsafe_code)]

pub mod advise;
mod agenda;
pub mod batch;
mod costs;
mod engine;
pub mod fuzz;
mod kernel;
mod machine;
mod meters;
mod outcome;
mod plan;
mod policy;
mod program;
mod random;
pub mod replay;
pub mod rtapp;
pub mod scenario;
pub mod speed;
pub mod synthetic;

pub use costs::{Costs, Line};
pub use engine::{RunError, Simulation};
pub use kernel::Kernel;
pub use machine::{Machine, MachineError, Ticks};
pub use meters::Percentiles;
pub use outcome::{GroupOutcome, Mechanisms, MeterOutcome, Outcome, WorkloadOutcome};
pub use plan::{
    Action, Change, GroupPlan, Hotplug, LoadAverage, Notice, Plan, PlanError, RealTime, Settings,
    Source, TaskPlan, Throttling, WorkloadPlan,
};
pub use policy::{Candidate, Plugin, Policy, WeightedRoundRobin};
pub use program::{COUNTERS, ClockRead, Program, Step};
pub use random::{Random, Span};
