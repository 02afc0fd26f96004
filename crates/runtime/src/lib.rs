//! Groups with weights for the tasks of a tokio program, on the user's own unmodified tokio runtime.
//!
//! Tasks live in a tree of groups, as processes live in Linux's control groups: a group's *weight* says how much of the
//! processors it gets beside its siblings when there is not enough for all, its *clock* how much it has used. One group's
//! runaway computation can no longer starve another's requests.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = quotient::Scheduler::builder().build()?; // inside any tokio runtime
//! let acme = scheduler.group("tenants/acme")?.weight(300).create()?;
//! let answer = acme.spawn(async {
//!     // Children inherit the group.
//!     quotient::spawn(async { 42 }).await
//! });
//! assert_eq!(answer.await??, 42);
//! println!("{:?}", acme.stats().cpu);
//! scheduler.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! A few long-lived tasks of the tokio runtime are *virtual CPUs*: each polls the tasks of its run queue in the order that the
//! scheduler core (`quotient-core`, the kernel's EEVDF over a hierarchy of groups) decides, and returns to tokio often enough that
//! I/O, timers and *foreign tasks* (those of `tokio::spawn`) go on. `ARCHITECTURE.md` is the map, the module headers are the protocols.
//! `docs/features.md` lists what there is by what one wants to do, `docs/limits.md` what does not hold, with numbers.
//!
//! # What it does not cover
//! Without [`Builder::preempt`] fairness cannot be finer than a poll: a poll that computes for 10 ms holds its processor for 10 ms. (The
//! statistics name the task; [`checkpoint`] splits such loops.) Tasks of `tokio::spawn` are outside the groups: use [`spawn`],
//! [`JoinSet`], [`spawn_blocking`], [`InGroupExt::in_group`], the tower layer or the hyper executor. Inside a task of a group
//! `tokio::task::id` is that of the virtual CPU, or panics where that is no task of tokio's: on stand-ins, and everywhere under
//! [`Builder::preempt`]. The task's own is [`task::id`].
//!
//! # Features
//! `tower` and `hyper` (both on by default): layer and executor. `tracing`: a span for each task, as tokio has them, so that
//! tokio-console shows tasks and their groups. Limits, recording and the like are behind branches that become one instruction if the
//! application calls [`keys::patch`] in its `main`; no code is rewritten unless it does.
#![forbid(unsafe_code)]
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod idle;
mod in_group;
mod kills;
mod park;
mod population;
mod primitives;
pub mod task;

#[cfg(not(loom))]
mod alarms;
#[cfg(not(loom))]
mod bandwidth;
#[cfg(not(loom))]
mod blocking;
#[cfg(not(loom))]
mod cgroup;
#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod cpu_clock;
#[cfg(not(loom))]
mod cpu_timer;
#[cfg(not(loom))]
mod crowd;
#[cfg(all(test, target_os = "linux", not(loom)))]
mod debts;
#[cfg(not(loom))]
mod defer;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod estates;
#[cfg(not(loom))]
mod event_log;
#[cfg(all(tokio_unstable, not(loom)))]
mod foreign_tasks;
#[cfg(not(loom))]
mod gates;
#[cfg(not(loom))]
mod group;
#[cfg(not(loom))]
mod histogram;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod host_end;
#[cfg(all(feature = "hyper", not(loom)))]
pub mod hyper;
#[cfg(not(loom))]
mod inbox;
#[cfg(not(loom))]
mod join_set;
#[cfg(not(loom))]
mod last_rites;
#[cfg(not(loom))]
mod local;
#[cfg(not(loom))]
mod local_set;
#[cfg(not(loom))]
mod local_tasks;
#[cfg(not(loom))]
mod loss;
#[cfg(not(loom))]
mod meter;
#[cfg(not(loom))]
mod names;
#[cfg(not(loom))]
mod owned;
#[cfg(not(loom))]
mod per_vcpu;
#[cfg(not(loom))]
mod preempt;
/// Its protocols, without what needs a system: for their models.
#[cfg(loom)]
#[allow(dead_code)]
mod preempt {
    mod guest;
    mod jobs;
    mod nap;
    mod turns;
    mod waiter;

    /// As in the whole module.
    pub(crate) const NOBODY: usize = usize::MAX;
}
#[cfg(not(loom))]
mod pressure;
#[cfg(not(loom))]
mod queue_lock;
#[cfg(not(loom))]
mod queue_wait;
#[cfg(not(loom))]
mod releases;
#[cfg(not(loom))]
mod scheduler;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod shielded;
#[cfg(not(loom))]
mod spawn;
#[cfg(not(loom))]
mod stand_in;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod surplus;
#[cfg(not(loom))]
pub mod sync;
#[cfg(not(loom))]
mod task_builder;
#[cfg(not(loom))]
mod task_context;
#[cfg(not(loom))]
mod tick;
#[cfg(all(feature = "tower", not(loom)))]
pub mod tower;
#[cfg(not(loom))]
mod unfinished;
#[cfg(not(loom))]
mod vcpu;
#[cfg(not(loom))]
mod watch;

#[cfg(all(tokio_unstable, not(loom)))]
pub use self::foreign_tasks::bill_foreign_tasks;
#[cfg(not(loom))]
pub use self::{
    bandwidth::{
        Cpus, Max, Share, ThrottleGuard, ThrottleWatch, WithThrottled, WithThrottledExt,
        defer_throttle, throttled_time,
    },
    blocking::{block_in_place, spawn_blocking, try_spawn_blocking},
    cgroup::cgroup_quota,
    config::{Applied, ApplyError, Config, GroupConfig},
    cpu_clock::{ClockError, TaskClock, TaskClockExt},
    cpu_timer::{CpuTimer, CpuTimerError},
    error::{BuildError, Error, MAX_VCPUS, SpawnError},
    event_log::{Drained, RecordError, Recording},
    group::{Group, GroupBuilder, Leftover},
    histogram::Histogram,
    in_group::{InGroup, InGroupExt},
    join_set::JoinSet,
    loss::Losses,
    meter::{MeterError, ThreadMeter},
    preempt::{Preempt, PreemptStats, Uninterrupted, uninterrupted},
    pressure::{Pressure, PressureLine},
    scheduler::{Builder, Scheduler},
    spawn::{Checkpoint, checkpoint, should_yield, spawn, spawn_local, try_spawn},
    stats::{BandwidthStats, GroupStats, LongPoll, TaskStats},
    unfinished::{StillPolling, Unfinished},
};
#[cfg(not(loom))]
pub use quotient_core::{BandwidthRules, Limit, LimitError, Nanos, Policy, RatioRule};
#[cfg(not(loom))]
pub use quotient_keys::{self as keys, FlipError};
#[cfg(not(loom))]
pub use quotient_pause::{Demotion, InstallError, Signal, SteadyAllocator};
pub use task::{AbortHandle, AbortOnDropHandle, Id, JoinError, JoinHandle};

/// The blocks of code of the README and the guides, as tests.
#[cfg(all(doctest, not(loom)))]
mod guides {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/guides/two-runtimes.md")]
    mod two_runtimes {}
    #[doc = include_str!("../../../docs/guides/foreign-tasks.md")]
    mod foreign_tasks {}
    #[doc = include_str!("../../../docs/guides/kubernetes.md")]
    mod kubernetes {}
}
