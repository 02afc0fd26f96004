//! What users set, and what they read.

use std::time::Duration;

use quotient_pause::{Demotion, Signal};

/// Shortest and longest turn. Unit: time.
const TURN_RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// Most long polls that may keep a thread at once. Unit: polls. Each thread has some 100 KiB in use.
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
    /// Beside other processes of the same cgroup such polls count that much less. (A container or a service of its own has no others.)
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

    /// How long a poll may take while other tasks wait, 1 to 100 ms; 1 ms by default. The watch looks once a millisecond, and, seven eighths of a turn
    /// after a poll's beginning, as soon as I/O, a timer or another thread wakes a task.
    #[must_use]
    pub fn turn(mut self, turn: Duration) -> Self {
        self.turn = turn;
        self
    }

    /// How many long polls there can be at once, 1 to 1,024; 256 by default. Each keeps a thread: its stack (some 100 KiB in use), and
    /// whatever the poll holds. Beyond it polls run to their end, as without preemption; [`PreemptStats::refused`] counts them. As many
    /// blocking functions and jobs in [`crate::ThreadMeter::run`] can take turns at once, seven eighths of them of one group with all below it; further ones
    /// wait to begin ([`Group::spawn_blocking`](crate::Group::spawn_blocking)). A group below the root that has less than one for each virtual CPU, with all
    /// below it, waits for nobody else's, unless 768 of such groups are there beyond what is shared.
    ///
    /// No group gets all of these places. One place is set aside for each virtual CPU and stand-in; of the rest a group, with all below it,
    /// may have seven times as many as are left for all: seven eighths if it is alone, 221 of 256 with two virtual CPUs. A group that has
    /// its part waits: its tasks are kept back before their polls until one of its long polls ends ([`PreemptStats::kept_back`]). So a
    /// group that blocks in hundreds of polls delays itself and no other group; but if those polls wait for a task of their own
    /// group, they wait for ever. Tasks that hold a lock of [`crate::sync`] are not kept back. With fewer than four places for each virtual
    /// CPU no task is.
    #[must_use]
    pub fn max_borne(mut self, max_borne: usize) -> Self {
        self.max_borne = max_borne;
        self
    }

    /// The stack of each thread that polls, 64 KiB to 1 GiB; by default as `std::thread` has it, 2 MiB or `RUST_MIN_STACK`. Polls run on the
    /// scheduler's own threads, so a `thread_stack_size` of the tokio runtime has to be said here as well: a poll that needs more stack
    /// aborts the process. (The runtime's `on_thread_start` and `on_thread_stop` are not called on these threads either.)
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
    /// Polls that should have been taken off their virtual CPU and were not, since no thread was free or [`Preempt::max_borne`] was
    /// reached; and blocking functions that were only metered, for the same reasons.
    pub refused: u64,
    /// Times that a long poll was stopped because policy let others run.
    pub pauses: u64,
    /// Short turns that one stopped poll had, in case it held a lock.
    pub aged: u64,
    /// Short turns that all stopped polls had at once, because a virtual CPU was stuck.
    pub rescues: u64,
    /// Short turns that all stopped polls had at once, because the tokio runtime or the scheduler's tick thread did not answer.
    pub missed_beats: u64,
    /// Long polls that were found to be blocked in the kernel.
    pub blocked: u64,
    /// Long polls whose thread could not be given a lower priority, since the system refused.
    pub undemoted: u64,
    /// Times that a thread that hands in work, such as tokio's worker that reads the sockets, was told not to interrupt the threads that
    /// work it off (`SCHED_BATCH`). It is let in every half millisecond.
    pub guest_waits: u64,
    /// Threads for which the system refused [`PreemptStats::guest_waits`] (seccomp). It is asked once for each thread.
    pub guests_refused: u64,
    /// Times that a poll was stopped although a guard of [`uninterrupted`](crate::uninterrupted) lived: it had kept it going for 50 ms of CPU
    /// time, or those of its limited group had for as much together.
    pub insisted: u64,
    /// Times that a task was kept back before its poll, because its group, or one above it, had all long polls that [`Preempt::max_borne`]
    /// allows it.
    pub kept_back: u64,
    /// Times that a poll could not be stopped, because the program has installed another handler for the signal or the system refused to
    /// send it. Such polls go on at their lowered priority.
    pub unpaused: u64,
    /// Threads that the system refused to start, for blocking functions, too. The scheduler asks again every 100 ms; meanwhile polls run to
    /// their end, as without preemption. For functions, which wait in line meanwhile, it asks every 100 ms, too, and after 1.6 s in a sixteenth of the time that
    /// they have waited.
    pub threads_refused: u64,
    /// Long polls that keep a thread now.
    pub borne: usize,
    /// Blocking functions and jobs in [`crate::ThreadMeter::run`] that take turns now, and threads that drop functions which never began.
    pub foreign: usize,
    /// Blocking functions that wait in line to begin now, since their group has its part of [`Preempt::max_borne`], or of the threads of tokio's pool, in
    /// others, or is frozen; or since the system gives no thread ([`PreemptStats::threads_refused`]).
    pub in_line: usize,
    /// Times that one had to.
    pub lined_up: u64,
    /// Threads of the scheduler that poll, spare ones included, now.
    pub threads: usize,
}
