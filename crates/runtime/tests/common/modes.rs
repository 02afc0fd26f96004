//! Tests of what holds with preemption and without.
#![allow(dead_code)] // each test file uses its part

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
use quotient::Preempt;
use quotient::{Group, Scheduler};
use tokio::runtime::Runtime;

use crate::common::runtime;

/// A hang.
pub const HANG: Duration = Duration::from_secs(60);

/// Whether polls are preempted.
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub const MODES: [bool; 2] = [false, true];
#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
pub const MODES: [bool; 1] = [false];

pub fn scheduler(runtime: &Runtime, preempts: bool) -> Scheduler {
    let builder = Scheduler::builder().handle(runtime.handle().clone());
    #[cfg(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    ))]
    let builder = match preempts {
        true => builder.preempt(Preempt::default()),
        false => builder,
    };
    #[cfg(not(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    )))]
    let _ = preempts;
    builder.build().unwrap()
}

/// Two workers, a scheduler, a tenant of it, and a count.
pub fn with_tenant(preempts: bool) -> (Runtime, Scheduler, Group, Arc<AtomicUsize>) {
    let runtime = runtime(2);
    let scheduler = scheduler(&runtime, preempts);
    let tenant = scheduler.group("tenant").unwrap().create().unwrap();
    (runtime, scheduler, tenant, Arc::default())
}

/// Until it is so; what takes longer than [`HANG`] hangs.
pub fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < HANG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
