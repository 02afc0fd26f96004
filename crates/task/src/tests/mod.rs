//! Tests of the task cell. `mock` is a scheduler made of one queue; each other file is one kind of hazard.

// A clone that is woken by value is a path of its own here.
#![allow(clippy::waker_clone_wake)]

mod mock;

#[cfg(loom)]
mod loom;
#[cfg(loom)]
mod loom_slot;

#[cfg(not(loom))]
mod abort;
#[cfg(not(any(loom, miri)))]
mod costs;
#[cfg(not(loom))]
mod deferred;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
mod panics;
#[cfg(not(loom))]
mod promise;
#[cfg(not(loom))]
mod slot;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
mod wake;
