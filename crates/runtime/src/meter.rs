//! Threads outside the scheduler that work for a group: their CPU time is billed while they do. How it is read, and where it goes, stands in
//! `nest`.
//!
//! # Nesting
//! The innermost meter of a thread bills. A virtual CPU or an `in_group` that runs on a metered thread bills for itself; the
//! meter pauses meanwhile.

mod nest;

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

pub(crate) use nest::{Meter, Slot, group, settle_here};

use crate::clock::thread_cpu_time;
use crate::group::Group;
use crate::local;

/// Why a thread was not metered, or a meter not left.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeterError {
    /// This meter was left before.
    NotEntered,
    /// A meter that was entered later on this thread has not been left yet.
    InnerEntered,
    /// The caller runs in a task or inside `in_group`, whose time is billed already.
    AlreadyBilled,
    /// The group was removed.
    GroupRemoved {
        /// Its path while it lived.
        path: String,
    },
    /// Too many meters are entered on this thread.
    TooDeep {
        /// How many are allowed.
        max: usize,
    },
    /// The platform has no clock for the CPU time of a thread.
    NoThreadClock,
}

impl fmt::Display for MeterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEntered => formatter.write_str("the meter was left before"),
            Self::InnerEntered => {
                formatter.write_str("a meter that was entered later on this thread is not left yet")
            }
            Self::AlreadyBilled => formatter.write_str(
                "the caller runs in a task or inside `in_group`: its time is billed already",
            ),
            Self::GroupRemoved { path } => write!(formatter, "group {path:?} was removed"),
            Self::TooDeep { max } => write!(
                formatter,
                "more meters are entered on this thread than the {max} that are allowed"
            ),
            Self::NoThreadClock => {
                formatter.write_str("this platform has no clock for the CPU time of a thread")
            }
        }
    }
}

impl std::error::Error for MeterError {}

/// Bills the CPU time of the calling thread to a group, from [`ThreadMeter::enter`] to [`ThreadMeter::leave`] or drop: for
/// jobs of rayon, blocking pools, threads of other libraries.
///
/// Only CPU time counts, neither sleep nor what other threads did on the processor. The group's clock includes it while the thread runs:
/// up to date (to 250 ns) for readers on the same thread, for others as of the last reading there or [`ThreadMeter::publish`].
///
/// The operating system schedules the thread: the group's weight and limit do not hold for it, but the group's tasks pay for it. Under
/// [`crate::Builder::preempt`] weight and limit hold in [`ThreadMeter::run`], and from one [`ThreadMeter::checkpoint`] to the next.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let scheduler = quotient::Scheduler::builder().build()?;
/// let acme = scheduler.group("tenants/acme")?.create()?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let _meter = quotient::ThreadMeter::enter(&acme);
///         (0..1_000_000_u64).map(std::hint::black_box).sum::<u64>()
///     });
/// });
/// assert!(!acme.cpu_time().is_zero());
/// # scheduler.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// While the meter lives, [`Group::current`] on this thread is the group of the innermost meter, and [`crate::spawn`] and
/// [`crate::spawn_blocking`] spawn into it.
///
/// A thread that ends inside a meter is billed up to its end.
#[derive(Debug)]
#[must_use = "the thread is metered for as long as this lives"]
pub struct ThreadMeter {
    /// Place in the thread's nest, from 1; 0 once it was left.
    place: usize,
    billed: Duration,
    _not_send: PhantomData<*mut ()>,
}

impl ThreadMeter {
    /// The calling thread works for `group` from now on. Nests: until the inner one is left, the outer is not billed. One
    /// reading of the thread's CPU clock.
    ///
    /// # Errors
    /// [`MeterError::AlreadyBilled`], [`MeterError::GroupRemoved`], [`MeterError::TooDeep`], [`MeterError::NoThreadClock`];
    /// nothing has changed then.
    pub fn enter(group: &Group) -> Result<Self, MeterError> {
        Self::check(group)?;
        Self::enter_within(group)
    }

    /// Whether the calling thread can be metered for the group.
    fn check(group: &Group) -> Result<(), MeterError> {
        if local::is_billed() {
            return Err(MeterError::AlreadyBilled);
        }
        if group.inner.is_removed() {
            let path = group.path().to_owned();
            return Err(MeterError::GroupRemoved { path });
        }
        if thread_cpu_time().is_none() {
            return Err(MeterError::NoThreadClock);
        }
        Ok(())
    }

    /// As [`ThreadMeter::enter`], for callers that see to it that nobody else bills the time. Without a clock for threads nothing is
    /// billed, but the thread works for the group all the same.
    pub(crate) fn enter_within(group: &Group) -> Result<Self, MeterError> {
        Self::enter_as(group, true)
    }

    /// As [`ThreadMeter::enter_within`]; the time is counted and the group does not pay for it, since it pays otherwise.
    pub(crate) fn enter_unbilled(group: &Group) -> Result<Self, MeterError> {
        Self::enter_as(group, false)
    }

    fn enter_as(group: &Group, pays: bool) -> Result<Self, MeterError> {
        let place = local::with_meter(|slot| Meter::enter(slot, group, pays));
        Ok(Self {
            place: place.unwrap_or(Err(MeterError::NoThreadClock))?,
            billed: Duration::ZERO,
            _not_send: PhantomData,
        })
    }

    /// Runs `job` for `group` on the calling thread, billed as after [`ThreadMeter::enter`]. Under [`crate::Builder::preempt`] the thread
    /// also takes turns with the group's tasks: it is stopped, at whatever instruction it is, while the group is out of budget or other
    /// groups are ahead of it. So limit and weight hold for jobs of rayon and of other pools, too.
    ///
    /// The group is charged by turns then, some milliseconds later than by a meter. A job waits for its first turn under a limit, and where as many jobs and
    /// functions of its tenant (the group below the root) compute before theirs as there are virtual CPUs; those stand after a millisecond until they have it. Who sleeps does
    /// not count, and holds no virtual CPU. Before that it waits for one of the places that [`Group::spawn_blocking`] speaks of, and in a frozen group for the thaw. What the scheduler's end
    /// does not do is wait for it: from then on the thread is free. On a thread that `quotient_pause` knows already it is only metered.
    ///
    /// # Errors
    /// As [`ThreadMeter::enter`]; `job` was not run. [`MeterError::GroupRemoved`] too if that happened while it waited for its place, its first turn or a
    /// thaw.
    pub fn run<R>(group: &Group, job: impl FnOnce() -> R) -> Result<R, MeterError> {
        Self::check(group)?;
        let mut job = Some(job);
        // It may be removed while the job waits for its place.
        let ended = |_: &_| group.inner.is_removed();
        let done = crate::preempt::by_turns(group, None, &mut job, ended, |job| job());
        match (done, job) {
            (Some(result), _) => Ok(result),
            (None, Some(job)) if crate::preempt::is_scheduled(group) => {
                Self::check(group)?;
                let _meter = Self::enter_within(group);
                Ok(job())
            }
            (None, Some(job)) => {
                let _meter = Self::enter_within(group);
                Ok(job())
            }
            (None, None) => unreachable!("taken only to be run"),
        }
    }

    /// Ends the meter. Returns the CPU time that was billed to the group through it.
    ///
    /// # Errors
    /// [`MeterError::NotEntered`] if it was left before, [`MeterError::InnerEntered`] if a later one was not: nothing has
    /// changed then.
    pub fn leave(&mut self) -> Result<Duration, MeterError> {
        if self.place == 0 {
            return Err(MeterError::NotEntered);
        }
        let left = local::with_meter(|slot| Meter::leave(slot, self.place));
        // Without the thread's locals the thread is about to end, and was settled by their end.
        self.billed = left.unwrap_or(Err(MeterError::NotEntered))?;
        self.place = 0;
        Ok(self.billed)
    }

    /// What was billed through this meter, up to date if it is the innermost one of the thread; after it was left, in all.
    pub fn cpu_time(&self) -> Duration {
        let billed = local::with_meter(|slot| Meter::billed(slot, self.place));
        billed.flatten().unwrap_or(self.billed)
    }

    /// Under [`crate::Builder::preempt`]: waits for the group's turn, as a job in [`ThreadMeter::run`] does before its first instruction.
    /// The thread sleeps while the group is out of budget, frozen, or ahead of its share, and counts as a task of the group
    /// meanwhile. So limit and weight hold for what the thread computes, to the time between two calls; a thread that never calls this is
    /// only billed, whatever the limit says.
    ///
    /// The call only publishes without preemption, in a group that is not [`preemptible`](crate::GroupBuilder::preemptible), inside `run`,
    /// and if this is not the thread's innermost meter. It takes some 50 us where it need not wait: call it at most once a millisecond, and
    /// never with a lock held that tasks of the group need.
    pub fn checkpoint(&self) {
        let group = local::with_meter(|slot| Meter::innermost(slot, self.place));
        if let Some(group) = group.flatten() {
            crate::preempt::wait_for_turn(&group);
        }
    }

    /// Brings the groups' clocks up to date for readers on other threads. Some 20 ns if they were brought up to date just before.
    pub fn publish(&self) {
        let _ = self.cpu_time();
    }
}

impl Drop for ThreadMeter {
    fn drop(&mut self) {
        if self.place != 0 {
            let place = self.place;
            // Dropped before an inner one: that one goes on, and this one ends with it.
            let _ = local::with_meter(|slot| Meter::abandon(slot, place));
        }
    }
}
