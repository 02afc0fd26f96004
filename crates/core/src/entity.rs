//! What a task carries about its scheduling while it sleeps or moves.

use crate::pelt::{LoadAverages, TaskAverage, TaskSums};
use crate::units::{Nanos, Slice};
use crate::weight::{NICE_0, Nice, Weight};

/// The scheduling state of a task that is not in any run queue. Plain data: the host keeps it in the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskEntity {
    /// EEVDF: virtual time that the task is owed (negative: owes). CFS: how far it is ahead of (negative: behind)
    /// its timeline's minimum, sign reversed. In both: placed at reference minus lag.
    pub(crate) lag: i64,
    pub(crate) sum_exec: u64,
    /// When it went to sleep: CFS turns the time since then into credit, and load averages fade by it. Where `left_on` says so, the
    /// virtual time at which it left: see [`crate::Config::debts_fade`].
    pub(crate) slept_at: u64,
    pub(crate) shares: u32,
    /// 0 stands for the configured base slice.
    pub(crate) slice: u32,
    /// When it last changed CPUs, in [`MIGRATION_TICK_SHIFT`] ticks; the balancer rotates by it.
    pub(crate) migrated: u32,
    /// Load averages, as of when it went to sleep.
    pub(crate) averages: TaskSums,
    /// The CPU that it left, plus one, if `slept_at` is a virtual time there; 0 if it is a time.
    pub(crate) left_on: u16,
    /// Whether it has ever been queued.
    pub(crate) placed: bool,
    /// Whether it defers throttles: it holds something that others wait for.
    pub(crate) deferring: bool,
}

/// log2 of the tick in which migrations are stamped, ns: 65.5 us ticks wrap after 78 hours, and a wrong age after
/// that costs one odd choice of the balancer.
pub(crate) const MIGRATION_TICK_SHIFT: u32 = 16;

impl TaskEntity {
    /// A task that has never run. `slice` is its own request length; `None` takes [`crate::Config::base_slice`].
    pub const fn new(weight: Weight, slice: Option<Slice>) -> TaskEntity {
        TaskEntity::with_shares(weight.shares(), slice)
    }

    /// As [`TaskEntity::new`], weighted by a nice value.
    pub const fn with_nice(nice: Nice, slice: Option<Slice>) -> TaskEntity {
        TaskEntity::with_shares(nice.shares(), slice)
    }

    const fn with_shares(shares: u32, slice: Option<Slice>) -> TaskEntity {
        let slice = match slice {
            Some(slice) => slice.raw(),
            None => 0,
        };
        TaskEntity {
            lag: 0,
            sum_exec: 0,
            slept_at: 0,
            shares,
            slice,
            migrated: 0,
            averages: TaskSums::NONE,
            left_on: 0,
            placed: false,
            deferring: false,
        }
    }

    /// CPU time charged to the task so far.
    pub const fn cpu_time(&self) -> Nanos {
        Nanos(self.sum_exec)
    }

    /// Load averages of the task as of when it last left a run queue; nothing while they are switched off.
    pub fn load_averages(&self) -> LoadAverages {
        let slept_at = match self.left_on {
            0 => Nanos(self.slept_at),
            _ => return LoadAverages::default(),
        };
        TaskAverage::restore(self.averages, slept_at).figures(self.shares)
    }

    /// Shares that the task competes with inside its group.
    pub const fn shares(&self) -> u32 {
        self.shares
    }

    /// Changes the weight while the task is off the run queues; `weight x lag` is kept.
    pub fn set_weight(&mut self, weight: Weight) {
        let shares = weight.shares();
        let scaled = i128::from(self.lag) * i128::from(self.shares) / i128::from(shares);
        self.lag = i64::try_from(scaled).unwrap_or(if self.lag < 0 { i64::MIN } else { i64::MAX });
        self.shares = shares;
    }

    /// Changes the request length while the task is off the run queues.
    pub fn set_slice(&mut self, slice: Option<Slice>) {
        self.slice = slice.map_or(0, Slice::raw);
    }

    /// Whether throttles of the task's groups are deferred while it is runnable; see [`crate::RunQueue::defer_current`].
    pub const fn is_deferring(&self) -> bool {
        self.deferring
    }

    /// Makes a task that is off the run queues defer throttles once it is woken, or no longer.
    pub fn set_deferring(&mut self, deferring: bool) {
        self.deferring = deferring;
    }

    /// What the task is owed (positive) or owes (negative), in ns of service, from when it last left a run queue.
    pub fn lag_service(&self) -> i64 {
        let service = (i128::from(self.lag) * i128::from(self.shares)) >> 20;
        i64::try_from(service).unwrap_or(if self.lag < 0 { i64::MIN } else { i64::MAX })
    }
}

impl Default for TaskEntity {
    /// Weight 100 and the base slice.
    fn default() -> TaskEntity {
        TaskEntity::with_nice(NICE_0, None)
    }
}

/// Why a task is put into a run queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueue {
    /// Woken by an event (timer, I/O, another thread).
    Wake,
    /// Woken by the task that runs on this CPU: if both are in one group, it may run next ahead of its peers.
    WakeBuddy,
    /// Spawned: gets a half-length first request, so that it neither jumps the queue nor is its spawner starved.
    New,
    /// Came from another CPU, or from another group.
    Migrate,
}

const _: () = assert!(size_of::<TaskEntity>() <= 48);
const _: () = assert!(crate::Config::CPUS_MAX < u16::MAX as u32);
