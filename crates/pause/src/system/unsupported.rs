//! Platforms where nothing of this works: [`install`] refuses, so no other function here is ever reached.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::error::InstallError;

/// The usual number; never sent here.
pub(crate) const SIGURG: i32 = 23;

/// `errno` for "no such system call".
const NOT_IMPLEMENTED: i32 = 38;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) policy: u32,
    pub(crate) nice: i32,
}

impl Attributes {
    pub(crate) fn fair(nice: i32, _slice: u64) -> Self {
        Self { policy: 0, nice }
    }

    pub(crate) fn idle(nice: i32) -> Self {
        Self { policy: 0, nice }
    }

    pub(crate) fn is_fair(self) -> bool {
        true
    }
}

pub(crate) fn shield_forks() {}

pub(crate) fn process_id() -> i32 {
    0
}

pub(crate) fn thread_id() -> i32 {
    0
}

pub(crate) fn may_be_used(number: i32) -> bool {
    number == SIGURG
}

pub(crate) fn install(_signal: i32) -> Result<(), InstallError> {
    Err(InstallError::Unsupported)
}

pub(crate) fn is_in_place(_signal: i32) -> bool {
    false
}

pub(crate) fn send(_process: i32, _thread: i32, _signal: i32) -> Result<(), i32> {
    Err(NOT_IMPLEMENTED)
}

pub(crate) fn unblock(_signal: i32) -> Result<bool, i32> {
    Err(NOT_IMPLEMENTED)
}

pub(crate) fn block(_signal: i32) -> Result<bool, i32> {
    Err(NOT_IMPLEMENTED)
}

#[cfg_attr(loom, allow(dead_code))] // the model checker sleeps by itself
pub(crate) fn futex_wait(_word: &AtomicU32, _value: u32, _timeout: Option<Duration>) {
    std::thread::yield_now();
}

#[cfg_attr(loom, allow(dead_code))] // the model checker sleeps by itself
pub(crate) fn futex_wake_all(_word: &AtomicU32) {}

pub(crate) fn register_barrier() -> bool {
    false
}

pub(crate) fn barrier() {}

pub(crate) fn attributes(_thread: i32) -> Result<Attributes, i32> {
    Err(NOT_IMPLEMENTED)
}

pub(crate) fn set_attributes(_thread: i32, _attributes: Attributes) -> Result<(), i32> {
    Err(NOT_IMPLEMENTED)
}

pub(crate) const POLICY_OTHER: u32 = 0;
pub(crate) const POLICY_BATCH: u32 = 3;

pub(crate) fn policy(_thread: i32) -> Result<u32, i32> {
    Err(NOT_IMPLEMENTED)
}

pub(crate) fn set_policy(_thread: i32, _policy: u32) -> Result<(), i32> {
    Err(NOT_IMPLEMENTED)
}

pub(crate) fn set_nice(_thread: i32, _nice: i32) -> Result<(), i32> {
    Err(NOT_IMPLEMENTED)
}

pub(crate) fn cpu_time(_thread: i32) -> Option<u64> {
    None
}

pub(crate) fn waits() -> Option<u64> {
    None
}

#[derive(Clone, Copy)]
pub(crate) struct Status {
    pub(crate) letter: u8,
    pub(crate) processor: Option<u32>,
}

pub(crate) fn status(_thread: i32) -> Option<Status> {
    None
}

pub(crate) fn current_processor() -> Option<u32> {
    None
}

#[derive(Clone, Copy)]
pub(crate) struct Affinity;

impl Affinity {
    pub(crate) const SIZE: u32 = 0;

    pub(crate) fn of(_thread: i32) -> Option<Self> {
        None
    }

    pub(crate) fn only(_processor: u32) -> Option<Self> {
        None
    }

    pub(crate) fn contains(&self, _processor: u32) -> bool {
        false
    }

    pub(crate) fn is_only(&self, _processor: u32) -> bool {
        false
    }

    pub(crate) fn set(&self, _thread: i32) -> Result<(), i32> {
        Err(NOT_IMPLEMENTED)
    }
}
