//! The same limited groups under the real kernel's cgroup cpu controller and under Quotient, on the same machine in the
//! same run.
//!
//! | module | what it holds |
//! |---|---|
//! | [`advice`] | what the simulator says of a limit, against what the limit does |
//! | [`scenario`] | groups, limits and loads, written once for every host; what an ideal machine would give them |
//! | [`load`] | what spinners and jobs publish about themselves |
//! | [`observe`] | the observer: finds the phase of the periods, then reads all meters once a period |
//! | [`cgroup`] | the kernel's controller, version 1 or 2: groups that clean up behind themselves |
//! | [`kernel`] | a scenario as threads in cgroups |
//! | [`window`] | the fullest stretch of one period, wherever it begins |
//! | [`machine`] | how busy the rest of the machine was meanwhile |
//! | [`runtime`] | a scenario as tasks in groups of Quotient |
//! | [`simulator`] | a scenario in virtual time |
//! | [`real`] | `quotient advise` against the kernel: record, predict, set the limit for real |
//! | [`programs`] | wake-ups as schbench sends them, and rt-app, under the kernel and simulated |
//! | [`outcome`] | what every host reports, and the comparison |
//!
//! Needs root and a cgroup cpu controller; [`cgroup::Controller::find`] says why it cannot be done elsewhere.
//! What is measured is *work*: the thread CPU time that spinners read themselves, switches from one to the next included.
//! The counters beside it are the host's.

#![forbid(unsafe_code)]

pub mod advice;
pub mod cgroup;
pub mod kernel;
pub mod load;
pub mod machine;
pub mod observe;
pub mod outcome;
pub mod programs;
pub mod real;
pub mod runtime;
pub mod scenario;
pub mod simulator;
pub mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that ends every loop of a run early, so that Ctrl-C cleans up. Cheap to clone; clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Raises the flag; it stays up.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a run has no figures.
#[derive(Debug)]
pub enum Problem {
    /// Ctrl-C or a termination signal; everything was cleaned up.
    Interrupted,
    /// This machine has no cgroup cpu controller that we may use: the reason.
    Unavailable(String),
    /// Something broke: what, and the system's own words.
    Broken(String),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Interrupted => formatter.write_str("interrupted"),
            Self::Unavailable(reason) | Self::Broken(reason) => formatter.write_str(reason),
        }
    }
}

impl std::error::Error for Problem {}

impl Problem {
    /// A closure for `map_err` that puts `what` in front of the error's own words.
    pub fn during<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |error| Self::Broken(format!("{what}: {error}"))
    }
}
