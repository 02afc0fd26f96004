//! The side of those who ask something of a thread.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::demote::{self, Demoted, Demotion};
use crate::error::{DemoteError, DetachError, PauseError};
use crate::signal::Signal;
use crate::slot::{Caught, Slot};
use crate::system::{self, Affinity};
use crate::thread::Region;

/// A processor, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Processor(u32);

impl Processor {
    /// By number. A machine has fewer than it could: whoever asks for one that is not there gets nothing.
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self(number)
    }

    /// The one that the calling thread runs on, which may be another when the caller looks at the answer; `None` where nobody can
    /// tell. No system call, as a rule.
    #[must_use]
    pub fn current() -> Option<Self> {
        system::current_processor().map(Self)
    }

    /// Those that the calling thread may run on, in the order of their numbers; empty where nobody can tell.
    #[must_use]
    pub fn allowed() -> Vec<Self> {
        Affinity::of(system::thread_id()).map_or_else(Vec::new, |set| {
            let all = (0..Affinity::SIZE).filter(|number| set.contains(*number));
            all.map(Self).collect()
        })
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A thread that has regions, for others. Cheap to clone; outlives the thread.
#[derive(Clone)]
pub struct Handle {
    slot: Arc<Slot>,
    signal: Signal,
}

impl Handle {
    pub(crate) fn new(slot: Arc<Slot>, signal: Signal) -> Self {
        Self { slot, signal }
    }

    /// The region in progress; it may have ended when the caller looks at the answer. One load.
    #[inline]
    #[must_use]
    pub fn region(&self) -> Option<Region> {
        NonZeroU64::new(self.slot.current()).map(Region)
    }

    /// Catches a region: while the result lives, the thread is inside the region or waits at its end. Costs a membarrier,
    /// about 20 us with many threads running. Never blocks.
    ///
    /// # Errors
    /// [`DetachError`]: it has ended or was detached before, or somebody else asks something of the thread just now.
    pub fn detach(&self, region: Region) -> Result<Detaching<'_>, DetachError> {
        let caught = self.slot.catch(region.number())?;
        Ok(Detaching { caught })
    }

    /// Asks the thread to stop inside the region, and returns before it has: see [`Pause::wait`]. Two system calls. Never
    /// blocks.
    ///
    /// # Errors
    /// [`PauseError`]: the region has ended, or is paused already; somebody else asks something of the thread just now; the
    /// signal's handler was displaced, or it cannot be sent. The thread goes on.
    pub fn pause(&self, region: Region) -> Result<Pause, PauseError> {
        let signal = self.signal.number();
        let identity = self.slot.identity;
        let sequence = self.slot.ask(region.number(), || {
            if !system::is_in_place(signal) {
                return Err(PauseError::Displaced { signal });
            }
            system::send(identity.process, identity.thread, signal)
                .map_err(|errno| PauseError::Refused { errno })
        })?;
        Ok(Pause {
            slot: self.slot.clone(),
            signal: self.signal,
            region,
            sequence,
        })
    }

    /// Lowers the thread's priority, whatever it does. Two system calls, some 2 us. See [`Detaching::demote`] for doing it to a
    /// region that cannot end meanwhile. Waits for whoever catches the thread's region just now.
    ///
    /// # Errors
    /// [`DemoteError`].
    pub fn demote(&self, demotion: Demotion) -> Result<Demoted, DemoteError> {
        if self.slot.identity.process != system::process_id() {
            return Err(DemoteError::OtherProcess);
        }
        // The lock keeps the thread inside, so the id is its own.
        let _alive = self.slot.lock_alive().ok_or(DemoteError::Ended)?;
        demote::lower(self.slot.identity, self.slot.base_nice(), demotion)
    }

    /// The thread's CPU time so far, or `None` once it has left. One system call.
    #[must_use]
    pub fn cpu_time(&self) -> Option<Duration> {
        if self.slot.identity.process != system::process_id() {
            return None;
        }
        // Without the lock, which the thread takes at the end of a region that was asked for: it may be of low priority.
        let time = system::cpu_time(self.slot.identity.thread).map(Duration::from_nanos);
        time.filter(|_| !self.slot.has_left())
    }

    /// Whether the thread is [`uninterrupted`](crate::uninterrupted) just now: perhaps it holds what others need, and should not be lowered before
    /// it has given that back. A hint. One load.
    #[inline]
    #[must_use]
    pub fn is_uninterrupted(&self) -> bool {
        self.slot.is_shielded()
    }

    /// Whether the kernel says that the thread sleeps (in a lock, in a system call); `None` if it has left or nobody can tell. Three
    /// system calls, no allocation.
    ///
    /// A thread that stands in a pause sleeps, too.
    #[must_use]
    pub fn is_asleep(&self) -> Option<bool> {
        if self.slot.identity.process != system::process_id() {
            return None;
        }
        let asleep = is_thread_asleep(self.slot.identity.thread)?;
        (!self.slot.has_left()).then_some(asleep)
    }

    /// The processor that the thread runs on, or ran on last; `None` if it has left or nobody can tell. As costly as
    /// [`Handle::is_asleep`].
    #[must_use]
    pub fn processor(&self) -> Option<Processor> {
        if self.slot.identity.process != system::process_id() {
            return None;
        }
        let processor = system::status(self.slot.identity.thread)?.processor?;
        (!self.slot.has_left()).then_some(Processor(processor))
    }

    /// Runs `wake`, which lets the thread go on (resumes its pause, say), so that it goes on on `processor`; whether the
    /// kernel was told so. Left alone, the kernel may put it behind a busy thread on another processor, although the caller knows
    /// that this one is about to be free.
    ///
    /// `wake` runs all the same if the thread may not run there, has left, or is being asked something else. The thread is bound to
    /// the processor until `wake` returns, and then may run again where it could before, unless that was changed meanwhile. (A change that
    /// comes between this call's last two system calls is undone; and processors that the process is given later are not the thread's,
    /// as after any call of `sched_setaffinity`.) Four system calls, some 4 us; waits for nobody, unless the thread runs on another processor: then for the
    /// kernel to move it.
    pub fn wake_on(&self, processor: Processor, wake: impl FnOnce()) -> bool {
        let identity = self.slot.identity;
        let ours = identity.process == system::process_id();
        // The lock keeps the thread inside, so the id is its own.
        let alive = self.slot.try_lock_alive().filter(|_| ours);
        let bound = alive
            .as_ref()
            .and_then(|_| Bound::to(identity.thread, processor));
        wake();
        bound.is_some()
    }

    /// Whether both are of the same thread.
    #[must_use]
    pub fn is_same_thread(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.slot, &other.slot)
    }
}

/// A thread is bound to one processor while this lives.
struct Bound {
    thread: i32,
    processor: u32,
    before: Affinity,
}

impl Bound {
    /// Of a thread that stays inside meanwhile. `None` if it may not run there, or not be bound.
    fn to(thread: i32, processor: Processor) -> Option<Self> {
        let before = Affinity::of(thread)?;
        if !before.contains(processor.number()) {
            return None;
        }
        Affinity::only(processor.number())?.set(thread).ok()?;
        Some(Self {
            thread,
            processor: processor.number(),
            before,
        })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Another one is what the thread's own code has asked for meanwhile, and stays.
        if Affinity::of(self.thread).is_some_and(|now| now.is_only(self.processor)) {
            // Refused only if the process has lost all of those processors just now: then the kernel has moved the thread itself.
            let _ = self.before.set(self.thread);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Handle")
            .field("identity", &self.slot.identity)
            .field("region", &self.slot.current())
            .finish_non_exhaustive()
    }
}

/// A region that was caught. Dropped without [`Detaching::commit`] it lets go: the region was never detached.
///
/// The thread waits at the region's end meanwhile, so be brief, and do not wait for the thread.
#[derive(Debug)]
#[must_use = "dropped, it lets go of the region"]
pub struct Detaching<'a> {
    caught: Caught<'a>,
}

impl Detaching<'_> {
    /// Lowers the priority of the region's thread. Two system calls, some 2 us.
    ///
    /// # Errors
    /// [`DemoteError`]; the region can be detached all the same.
    pub fn demote(&self, demotion: Demotion) -> Result<Demoted, DemoteError> {
        demote::lower(
            self.caught.slot().identity,
            self.caught.slot().base_nice(),
            demotion,
        )
    }

    /// The region is detached: its end will say so. What the caller did before is visible to the thread then.
    pub fn commit(self) {
        self.caught.commit();
    }
}

/// What has become of a request to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseState {
    /// The signal is on its way, or the region is [`uninterrupted`](crate::uninterrupted) or [`undisturbed`](crate::undisturbed), or its code
    /// blocks the signal.
    Asked,
    /// The thread stands. What it did before is visible to who sees this.
    Standing,
    /// It is over: the region ended first, or the pause was resumed.
    Missed,
}

/// The right to resume one pause. Dropped, it resumes: nobody is left behind.
#[must_use = "dropped, it resumes the region"]
pub struct Pause {
    slot: Arc<Slot>,
    signal: Signal,
    region: Region,
    sequence: u32,
}

impl Pause {
    /// What has become of the request. One or two loads.
    #[must_use]
    pub fn state(&self) -> PauseState {
        self.slot.standing(self.sequence, self.region.number())
    }

    /// Waits until the thread stands or the region is over, for at most about `timeout`; returns what it is then.
    pub fn wait(&self, timeout: Duration) -> PauseState {
        /// Longest sleep between two looks. Unit: time. A region's end wakes nobody in the rare case that it missed the request.
        const LOOK: Duration = Duration::from_micros(200);
        let started = Instant::now();
        loop {
            let state = self.state();
            let left = timeout.saturating_sub(started.elapsed());
            if state != PauseState::Asked || left.is_zero() {
                return state;
            }
            self.slot.wait_while_asked(self.sequence, left.min(LOOK));
        }
    }

    /// Sends the signal once more, for a region whose code blocked it for a while. In no other case is that needed: a
    /// signal is never lost. One system call.
    ///
    /// # Errors
    /// [`PauseError::Ended`], [`PauseError::Busy`], [`PauseError::Displaced`] or [`PauseError::Refused`]; nothing has changed.
    pub fn ask_again(&self) -> Result<(), PauseError> {
        let signal = self.signal.number();
        if !system::is_in_place(signal) {
            return Err(PauseError::Displaced { signal });
        }
        let identity = self.slot.identity;
        if identity.process != system::process_id() {
            return Err(PauseError::OtherProcess);
        }
        let _alive = self.slot.lock_alive().ok_or(PauseError::Ended)?;
        system::send(identity.process, identity.thread, signal)
            .map_err(|errno| PauseError::Refused { errno })
    }

    /// Guards of [`undisturbed`](crate::undisturbed) count no more in the region, up to its end: it stops if none of
    /// [`uninterrupted`](crate::uninterrupted) is in force. One or two system calls. Never blocks.
    ///
    /// # Errors
    /// [`PauseError::Ended`] if the region stands or is over; otherwise as [`Handle::pause`]. Nothing has changed, but if the signal could not
    /// be sent, it may be later.
    pub fn insist(&self) -> Result<(), PauseError> {
        let signal = self.signal.number();
        let identity = self.slot.identity;
        self.slot.insist(self.sequence, self.region.number(), || {
            if !system::is_in_place(signal) {
                return Err(PauseError::Displaced { signal });
            }
            system::send(identity.process, identity.thread, signal)
                .map_err(|errno| PauseError::Refused { errno })
        })
    }

    /// The region that is to stand.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// Lets the region go on, or withdraws the request; whether the thread stood. At most one system call. Never blocks.
    pub fn resume(self) -> bool {
        self.slot.resume(self.sequence)
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.slot.resume(self.sequence);
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pause")
            .field("identity", &self.slot.identity)
            .field("region", &self.region)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Whether the kernel says that a thread of this process sleeps (states S and D), by the kernel's number of the thread; `None` if
/// there is no such thread, or where that is not to be known. Opens, reads and closes one small file, and allocates nothing: the
/// allocator's lock may be what the thread sleeps for.
#[must_use]
pub fn is_thread_asleep(thread: i32) -> Option<bool> {
    let status = system::status(thread)?;
    Some(matches!(status.letter, b'S' | b'D'))
}

/// Processor time of a thread of this process, by the kernel's number of the thread; `None` if there is no such thread, or where that is
/// not to be known. One system call, and no allocation.
#[must_use]
pub fn thread_cpu_time(thread: i32) -> Option<Duration> {
    system::cpu_time(thread).map(Duration::from_nanos)
}

/// How often the calling thread has waited so far: slept, for a lock, for I/O, for a page. Having to wait for a processor, and to yield one,
/// do not count: a thread for which this stays the same wanted to run all the time. `None` where that is not to be known. One
/// system call.
#[must_use]
pub fn waits() -> Option<u64> {
    system::waits()
}
