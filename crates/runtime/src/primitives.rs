//! The one door to atomics and locks, so that loom can stand in for them.
//!
//! Protocol code takes these names from here and never from `std`; with `--cfg loom` every access becomes a step
//! of the model checker. Outside loom everything is the plain `std` item.

#[cfg(loom)]
pub(crate) use loom::{
    sync::Mutex,
    sync::atomic::{AtomicU8, AtomicU64, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use std::{
    sync::Mutex,
    sync::atomic::{AtomicU8, AtomicU64, Ordering, fence},
};
