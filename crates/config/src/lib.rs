//! Groups, weights and limits of a [`quotient::Scheduler`] from a TOML file.
//!
//! ```toml
//! [groups."tenants/acme"]      # this very group, made if it is missing
//! weight = 300
//! max = { cpus = 1.5 }
//!
//! [children.tenants]           # defaults of every group directly below `tenants`, of those that come later, too
//! weight = 100
//! max = "50ms/100ms"
//! queue_wait_max = "2s"
//! ```
//!
//! [`parse`] reads a text into a [`quotient::Config`]: everything that is wrong with it, with line and column, field, value and range.
//! [`quotient::Scheduler::apply`] makes it the scheduler's as one change, all of it or nothing. [`Reload`] does both again when the
//! process is told to (`SIGHUP`) or the file changes; a bad file keeps what is in force, and is said through `tracing`.
//! [`reference()`] is the list of settings, and `quotient config check FILE` tries a file without a scheduler.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = quotient::Scheduler::builder().build()?;
//! let config = quotient_config::parse("[groups.web]\nweight = 300\n", scheduler.vcpus())?;
//! scheduler.apply(&config)?;
//! assert_eq!(scheduler.find("web")?.weight(), 300);
//! let problems = quotient_config::parse("[groups.web]\nweight = 0\n", 2).expect_err("no weight");
//! assert_eq!(problems.to_string(), "2:10: groups.web.weight is 0, allowed are 1 to 10000");
//! # scheduler.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! The runtime itself knows nothing of files and formats, and does not depend on a parser.
#![forbid(unsafe_code)]

mod fields;
mod parse;
mod problem;
mod reference;
mod reload;

pub use self::{
    fields::{FIELDS, Field, Kind},
    parse::{ENTRIES_MAX, TEXT_BYTES_MAX, parse},
    problem::{PROBLEMS_MAX, Problem, Problems},
    reference::reference,
    reload::{EVERY_RANGE, Reload, ReloadError, Reloader, Status},
};
