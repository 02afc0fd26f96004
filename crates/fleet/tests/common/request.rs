//! The request of a process that has asked for nothing before.

use quotient_fleet::{MicroCpus, Micros, ProcessId, Request};

/// One CPU wanted, nothing used or kept, and no limit known.
pub fn request_of_nobody(sequence: u64) -> Request {
    Request {
        process: ProcessId(7),
        sequence,
        used: Micros::ZERO,
        left: Micros::ZERO,
        demand: MicroCpus::whole(1),
        horizon: Micros::SECOND,
        known: None,
    }
}
