//! What tasks do: small programs of steps, the common form of every workload.

use crate::random::Span;
use quotient_core::Nanos;

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Computes.
    Run(Span),
    /// Computes inside the kernel: counts as system time, and is not interrupted by a throttle that waits for the
    /// return to user mode.
    Kernel(Span),
    /// Waits for that long.
    Sleep(Span),
    /// Waits for the next multiple of the period since the task began. Those that were missed are left out.
    Every(Nanos),
    /// Waits until that moment; does not wait if it has passed.
    Until(Nanos),
    /// Lets others run.
    Yield,
    /// Adds a token to a channel, for the first who waits there or who comes later.
    Post(u32),
    /// Adds a token to a channel unless one is there that nobody has taken.
    PostOne(u32),
    /// Lets the first who waits at a channel go on; lost if nobody does.
    Signal(u32),
    /// Lets all who wait at a channel go on.
    Broadcast(u32),
    /// Takes a token from a channel; waits for one if need be.
    Wait(u32),
    /// Waits until as many tasks as the barrier is for have come.
    Meet(u32),
    /// A request comes to a queue, now; who computes all of it posts to that channel.
    Ask {
        /// Which queue.
        queue: u32,
        /// What it asks for.
        work: Nanos,
        /// Where its answer is waited for.
        reply: u32,
    },
    /// Takes the oldest request of a queue; waits for one if need be.
    Take(u32),
    /// Computes what the request taken last asks for.
    Serve,
    /// One part of the request taken last is done. With the last part, its time is recorded.
    Finish(u32),
    /// Notes the time, for [`Step::Lap`].
    Stamp,
    /// Notes when the task was woken last, for [`Step::Lap`]: what it then waited for a CPU counts.
    StampWoken,
    /// A request of [`Plan::requests`](crate::Plan::requests) begins: at that time, or now. Only its first time counts.
    Open {
        /// Which.
        request: u32,
        /// When it came, if not now. [`Step::WOKEN`]: when the task was woken last.
        at: Nanos,
    },
    /// One part of a request of the plan's is done. With the last one its time is recorded.
    Close {
        /// Which.
        request: u32,
        /// With which meter.
        meter: u32,
    },
    /// Records the time since the last [`Step::Stamp`] with a meter.
    Lap(u32),
    /// Records how long [`Step::Every`] would wait.
    Slack {
        /// With which meter.
        meter: u32,
        /// The period.
        period: Nanos,
    },
    /// Counts one piece of work done with a meter, without a time.
    Count(u32),
    /// Reads the CPU clock of all threads of the task's workload.
    ReadClock(ClockRead),
    /// Interrupts all other CPUs and waits for their answers, as rewriting code does.
    Synchronize {
        /// Places in the code that trap whoever passes meanwhile.
        exposed: u32,
    },
    /// Goes to a step.
    Jump(u32),
    /// Goes to a step that many times, then goes on. The counter must not be one of an enclosing loop.
    Repeat {
        /// Which of the task's counters.
        counter: u8,
        /// How often it goes back.
        times: u32,
        /// Where to.
        to: u32,
    },
    /// Ends.
    Exit,
}

impl Step {
    /// For [`Step::Open`]: now.
    pub const NOW: Nanos = Nanos(u64::MAX);
    /// For [`Step::Open`]: when the task was woken last.
    pub const WOKEN: Nanos = Nanos(u64::MAX - 1);
}

/// How the clock of a process is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockRead {
    /// Brings every running thread up to date under the lock of its CPU's queue.
    EveryThread,
    /// Brings the reader up to date and sums what the others have published.
    OwnThread,
}

/// Loop counters of a task: loops nest at most this deep.
pub const COUNTERS: usize = 4;

/// What a task does from its first step on. Running off the end is [`Step::Exit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The steps.
    pub steps: Vec<Step>,
}

impl Program {
    /// A program of these steps.
    pub fn new(steps: impl Into<Vec<Step>>) -> Program {
        Program {
            steps: steps.into(),
        }
    }

    /// These steps over and over.
    pub fn forever(steps: impl Into<Vec<Step>>) -> Program {
        let mut steps = steps.into();
        steps.push(Step::Jump(0));
        Program { steps }
    }

    /// These steps `times` times; not at all for zero.
    pub fn times(times: u32, steps: impl Into<Vec<Step>>) -> Program {
        let mut steps = steps.into();
        if times == 0 {
            return Program::default();
        }
        steps.push(Step::Repeat {
            counter: 0,
            times: times - 1,
            to: 0,
        });
        Program { steps }
    }

    /// Where the next step will be.
    pub fn here(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }
}
