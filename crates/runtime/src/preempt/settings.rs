//! What users set, and what they read.

use std::time::Duration;

use quotient_pause::{Demotion, Signal};

/// Shortest and longest turn. Unit: time.
const TURN_RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// Most polls that can be borne at once. Unit: polls. Each has a thread, of some 100 KiB that are used.
const BORNE_MAX: usize = 1_024;

/// Smallest and largest stack. Unit: bytes. Below the first a handler that stops a thread has no room beside a poll; the second is more than any
/// use, and only addresses.
const STACK_RANGE: (usize, usize) = (64 << 10, 1 << 30);

/// How polls that do not return are preempted; see [`Builder::preempt`](crate::Builder::preempt).
#[derive(Clone, Copy, Debug)]
pub struct Preempt {
    pub(crate) demote: Demotion,
    pub(crate) signal: Signal,
    pub(crate) turn: Duration,
    pub(crate) max_borne: usize,
    pub(crate) stack_size: Option<usize>,
}

impl Default for Preempt {
    fn default() -> Self {
        Self {
            demote: Demotion::default(),
            signal: Signal::default(),
            turn: Duration::from_millis(1),
            max_borne: 256,
            stack_size: None,
        }
    }
}

impl Preempt {
    /// How far the thread of a long poll is lowered in the kernel's eyes. Default: ten nice levels.
    ///
    /// Beside other processes of the same cgroup (a container or a service of its own has none) such polls count that much less.
    #[must_use]
    pub fn demote(mut self, demotion: Demotion) -> Self {
        self.demote = demotion;
        self
    }

    /// The signal that stops threads. Default: `SIGURG`.
    #[must_use]
    pub fn signal(mut self, signal: Signal) -> Self {
        self.signal = signal;
        self
    }

    /// How long a poll may take while other tasks wait, 1 to 100 ms; 1 ms by default. The watch looks once a millisecond.
    #[must_use]
    pub fn turn(mut self, turn: Duration) -> Self {
        self.turn = turn;
        self
    }

    /// How many long polls there can be at once, 1 to 1,024; 256 by default. Each keeps a thread: its stack (some 100 KiB in use), and
    /// whatever the poll holds. Beyond it polls run to their end, as without preemption; [`PreemptStats::refused`] counts them. As many
    /// blocking functions and jobs in [`crate::ThreadMeter::run`] can take turns at once.
    ///
    /// No group gets all of them. Less one place for each virtual CPU and stand-in, a group (with what is below it) may have seven times as
    /// many as are left for all: seven eighths if it is alone, 221 of 256 with two virtual CPUs. Then its tasks are kept back before their
    /// polls until one of its long polls ends ([`PreemptStats::kept_back`] counts that), so that whoever blocks in hundreds of polls makes
    /// itself wait and nobody else: if these wait for a task of their own group, they wait for ever. Tasks that hold a lock of
    /// [`crate::sync`] are not kept back. With less than four places for each virtual CPU nobody is.
    #[must_use]
    pub fn max_borne(mut self, max_borne: usize) -> Self {
        self.max_borne = max_borne;
        self
    }

    /// The stack of each thread that polls, 64 KiB to 1 GiB; as `std::thread` has it by default, 2 MiB or `RUST_MIN_STACK`. Polls run on threads
    /// of the scheduler's own, so what a runtime was given as `thread_stack_size` has to be said here as well: a poll that needs more
    /// aborts the process. (`on_thread_start` and `on_thread_stop` of the runtime are not called on them either.)
    #[must_use]
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        if !(TURN_RANGE.0..=TURN_RANGE.1).contains(&self.turn) {
            return Err(format!(
                "turn is {:?}, allowed are {:?} to {:?}",
                self.turn, TURN_RANGE.0, TURN_RANGE.1
            ));
        }
        if !(1..=BORNE_MAX).contains(&self.max_borne) {
            return Err(format!(
                "max_borne is {}, allowed are 1 to {BORNE_MAX}",
                self.max_borne
            ));
        }
        if let Some(bytes) = self.stack_size
            && !(STACK_RANGE.0..=STACK_RANGE.1).contains(&bytes)
        {
            return Err(format!(
                "stack_size is {bytes}, allowed are {} to {}",
                STACK_RANGE.0, STACK_RANGE.1
            ));
        }
        self.demote.validate().map_err(|error| error.to_string())
    }
}

/// What preemption has done so far; see [`Scheduler::preempt_stats`](crate::Scheduler::preempt_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreemptStats {
    /// Polls that were taken off their virtual CPU.
    pub detached: u64,
    /// Polls that should have been, and ran on: no thread was free, or [`Preempt::max_borne`] was reached; and blocking functions that
    /// were only metered, for the same reason.
    pub refused: u64,
    /// Times that a long poll was stopped because policy let others run.
    pub pauses: u64,
    /// Short turns of stopped polls, in case that they hold a lock.
    pub aged: u64,
    /// Short turns of all stopped polls at once, because a virtual CPU did not get on.
    pub rescues: u64,
    /// Times that the tokio runtime, or the scheduler's own tick thread, did not get on while polls stood stopped, and all of these had a
    /// short turn for that.
    pub missed_beats: u64,
    /// Long polls that were found to be blocked in the kernel.
    pub blocked: u64,
    /// Long polls whose thread could not be lowered: the system refuses it.
    pub undemoted: u64,
    /// Times that the thread that reads the sockets, or whoever else hands in work from inside a runtime, was told not to interrupt those
    /// who work off what it had brought, for a millisecond and one poll at most (`SCHED_BATCH`).
    pub guest_waits: u64,
    /// Times that the system refused that (seccomp). It is asked once for each such thread.
    pub guests_refused: u64,
    /// Times that a poll was stopped although a guard of [`uninterrupted`](crate::uninterrupted) lived: it had kept it going for 50 ms of CPU
    /// time.
    pub insisted: u64,
    /// Times that a task was kept back before its poll, since its group, or one above it, had its part of [`Preempt::max_borne`] in long
    /// polls.
    pub kept_back: u64,
    /// Times that a poll was to be stopped and could not be: the program has put another handler in place for the signal, or the system
    /// refuses to send it. Such polls go on at their lowered priority.
    pub unpaused: u64,
    /// Threads that the system refused. One is asked for again every 100 ms; meanwhile polls run to their end, as without preemption.
    pub threads_refused: u64,
    /// Long polls now.
    pub borne: usize,
    /// Blocking functions and other threads of others that take turns now.
    pub foreign: usize,
    /// Threads now, spare ones included.
    pub threads: usize,
}
