//! What a task carries about its scheduling while it sleeps or moves.

use core::num::NonZeroU16;

use crate::moved::Moved;
use crate::pelt::{LoadAverages, TaskAverage, TaskSums};
use crate::units::{CpuId, Nanos, Slice, VirtualTime, to_service, to_virtual};
use crate::weight::{NICE_0, Nice, Weight};

/// The scheduling state of a task that is not in any run queue. Plain data: the host keeps it in the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskEntity {
    /// EEVDF: virtual time that the task is owed (negative: owes). CFS: how far it is ahead of (negative: behind)
    /// its timeline's minimum, sign reversed. In both: placed at reference minus lag.
    pub(crate) lag: i64,
    pub(crate) sum_exec: u64,
    /// When it went to sleep: CFS turns the time since then into credit, and load averages fade by it. Where `past` names a CPU, the
    /// virtual time at which it left that one: see [`crate::Config::debts_fade`].
    pub(crate) slept_at: u64,
    pub(crate) shares: u32,
    /// 0 stands for the configured base slice.
    pub(crate) slice: u32,
    /// When it last changed CPUs; the balancer rotates by it.
    pub(crate) moved: Moved,
    /// Load averages, as of when it went to sleep.
    pub(crate) averages: TaskSums,
    pub(crate) past: Past,
    /// What is left of its request, if it was moved, or owes and remembers where it left.
    pub(crate) rest: Rest,
}

/// How a task left its run queue, in 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Past(u16);

impl Past {
    /// It has been queued before.
    pub(crate) const PLACED: Past = Past(1 << 15);
    /// It defers throttles: it holds something that others wait for.
    pub(crate) const DEFERRING: Past = Past(1 << 14);
    /// It did not sleep but is moved: its request goes on where it is queued next.
    pub(crate) const MOVED: Past = Past(1 << 13);
    /// The number of a CPU plus one, or zero; all ones of who is [overdue](Past::overdue).
    const CPU: u16 = (1 << 13) - 1;

    /// [`Past::PLACED`], having left `cpu` with a debt that fades there.
    #[inline]
    pub(crate) fn left(cpu: CpuId) -> Past {
        Past(Past::PLACED.0 | (cpu.0 as u16 + 1))
    }

    #[inline]
    pub(crate) const fn has(self, mark: Past) -> bool {
        self.0 & mark.0 != 0
    }

    /// The same with a mark more, if `on`.
    #[inline]
    pub(crate) fn with(self, mark: Past, on: bool) -> Past {
        Past(self.0 | if on { mark.0 } else { 0 })
    }

    fn set(&mut self, mark: Past, on: bool) {
        *self = Past(self.0 & !mark.0).with(mark, on);
    }

    /// The same of a task that is moved since it has waited for longer than the turns of its group explain.
    #[inline]
    pub(crate) fn overdue(self) -> Past {
        Past(self.0 | Past::CPU)
    }

    /// Whether it was moved for that reason.
    #[inline]
    pub(crate) fn is_overdue(self) -> bool {
        self.0 & Past::CPU == Past::CPU
    }

    /// Whether `slept_at` is a virtual time, of some CPU.
    #[inline]
    pub(crate) const fn names_a_cpu(self) -> bool {
        self.0 & Past::CPU != 0 && self.0 & Past::CPU != Past::CPU
    }

    /// Whether `slept_at` is a virtual time of that CPU.
    #[inline]
    pub(crate) fn names(self, cpu: CpuId) -> bool {
        u32::from(self.0 & Past::CPU) == cpu.0 + 1
    }
}

/// What is left of a request as a task leaves its queue, in units of 2,048 ns of service, rounded up: the longest slice fits. It is kept as
/// service, so that another weight stretches it as it stretches a whole request. Zero: nothing is, and the next request begins.
///
/// One is added, so that `Option<TaskEntity>` takes no more room than the entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest(NonZeroU16);

impl Rest {
    pub(crate) const NONE: Rest = Rest(NonZeroU16::MIN);

    /// log2 of the unit, ns.
    const SHIFT: u32 = 11;

    /// Of an entity of `shares` that stands at `v`.
    #[inline]
    pub(crate) fn until(deadline: VirtualTime, v: VirtualTime, shares: u32) -> Rest {
        let distance = deadline.since(v).max(0).unsigned_abs();
        let units = to_service(distance, u64::from(shares)).div_ceil(1 << Rest::SHIFT);
        Rest(NonZeroU16::MIN.saturating_add(u16::try_from(units).unwrap_or(u16::MAX)))
    }

    /// In virtual time; `None` if nothing is left.
    #[inline]
    pub(crate) fn distance(self, shares: u32) -> Option<u64> {
        let units = u64::from(self.0.get()) - 1;
        (units > 0).then(|| to_virtual(units << Rest::SHIFT, shares))
    }
}

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
            moved: Moved::NEVER,
            averages: TaskSums::NONE,
            past: Past(0),
            rest: Rest::NONE,
        }
    }

    /// CPU time charged to the task so far.
    pub const fn cpu_time(&self) -> Nanos {
        Nanos(self.sum_exec)
    }

    /// Load averages of the task as of when it last left a run queue; nothing while they are switched off.
    pub fn load_averages(&self) -> LoadAverages {
        if self.past.names_a_cpu() {
            return LoadAverages::default();
        }
        TaskAverage::restore(self.averages, Nanos(self.slept_at)).figures(self.shares)
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
        self.past.has(Past::DEFERRING)
    }

    /// Makes a task that is off the run queues defer throttles once it is woken, or no longer.
    pub fn set_deferring(&mut self, deferring: bool) {
        self.past.set(Past::DEFERRING, deferring);
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
    /// Came from another CPU, or from another group. A request that it had begun goes on ([`crate::Config::moves_keep_requests`]), unless it
    /// slept or yielded before.
    Migrate,
}

const _: () = assert!(size_of::<Option<TaskEntity>>() <= 48);
const _: () = assert!(crate::Config::CPUS_MAX < Past::CPU as u32);
const _: () = assert!(Slice::MAX.raw() >> Rest::SHIFT < u16::MAX as u32);
