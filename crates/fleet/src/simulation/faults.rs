//! What fails in a simulated fleet.

use crate::limit::FleetLimit;
use crate::units::Micros;

/// One fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A part of the processes, next to each other, dies at once, and others begin in their place.
    Die(f64),
    /// A part of the processes stands still, as under SIGSTOP.
    Pause(f64, Micros),
    /// A part of the processes cannot reach the store.
    Partition(f64, Micros),
    /// The store cannot be reached by anybody.
    Away(Micros),
    /// The store restarts.
    Restart {
        /// With what it held.
        keeps: bool,
    },
    /// Somebody writes the limit.
    Write(FleetLimit),
}

/// A fault at its time.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// When.
    pub at: Micros,
    /// What.
    pub fault: Fault,
}
