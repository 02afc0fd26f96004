//! What a replay finds out, and who wants to know.

use quotient_core::event::{GroupId, ResumeReason, TaskId, TaskState};
use quotient_core::{CpuId, Nanos};

use super::Replay;

/// A stretch of time that a task spent on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Who.
    pub task: TaskId,
    /// Its group then.
    pub group: GroupId,
    /// Where.
    pub cpu: CpuId,
    /// From when.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
    /// How much of it is billed to the task; all of it unless the recorder says otherwise.
    pub charged: Nanos,
    /// Why it ended; `None` if the trace or the task's membership did.
    pub state: Option<TaskState>,
}

/// A stretch of time that a task spent runnable and not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who.
    pub task: TaskId,
    /// Its group.
    pub group: GroupId,
    /// In whose queue, as far as the trace says.
    pub cpu: CpuId,
    /// From when.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
    /// Whether it began with a wake-up, not with a preemption.
    pub is_woken: bool,
    /// Whether the task or a group above it was throttled at any time in between.
    pub was_throttled: bool,
    /// Whether the trace ended before the wait did.
    pub is_open: bool,
}

/// A stretch of time for which a task's thread was to stand still in the middle of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    /// Whose.
    pub task: TaskId,
    /// Its group.
    pub group: GroupId,
    /// From when.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
    /// Why it ended; `None` if the trace did.
    pub reason: Option<ResumeReason>,
}

/// Something that cannot have happened as recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A task ran on two CPUs at once.
    TwoCpus {
        /// Who.
        task: TaskId,
        /// Where it ran already.
        first: CpuId,
        /// Where it ran as well.
        second: CpuId,
        /// From when.
        from: Nanos,
        /// Until when.
        to: Nanos,
    },
    /// A CPU was left by somebody who did not run there.
    Chain {
        /// Which CPU.
        cpu: CpuId,
        /// Who ran there.
        running: TaskId,
        /// Who is said to have.
        prev: TaskId,
    },
    /// A sleeping task ran without having been woken.
    NotWoken {
        /// Who.
        task: TaskId,
        /// Where.
        cpu: CpuId,
        /// Since when it slept.
        asleep: Nanos,
    },
    /// A task was chosen to run on a CPU where its group, or one above, was throttled.
    RanThrottled {
        /// Who.
        task: TaskId,
        /// Where.
        cpu: CpuId,
        /// Which group.
        group: GroupId,
    },
    /// A group was throttled twice, or unthrottled without having been throttled.
    Unpaired {
        /// Which group.
        group: GroupId,
        /// Where.
        cpu: CpuId,
        /// Whether it was the second throttling.
        is_throttle: bool,
    },
    /// A thread was stopped while it stood, or resumed while it did not, or its task ended while it stood.
    Unbalanced {
        /// Whose thread.
        task: TaskId,
        /// What happened to it.
        what: Imbalance,
    },
    /// A task had a whole turn on a CPU, and its thread stood all the time.
    RanStanding {
        /// Who.
        task: TaskId,
        /// Where.
        cpu: CpuId,
        /// Since when its thread stands.
        since: Nanos,
    },
}

/// What happened to a thread that could not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imbalance {
    /// It was stopped while it stood.
    PausedTwice,
    /// It was resumed while it did not stand.
    ResumedTwice,
    /// Its task ended while it stood.
    EndedStanding,
}

/// Who wants to know what a replay finds out.
pub trait Observer {
    /// A stretch on a CPU is over.
    fn ran(&mut self, _replay: &Replay, _run: &Run) {}
    /// A wait is over.
    fn waited(&mut self, _replay: &Replay, _wait: &Wait) {}
    /// A CPU was idle for a while.
    fn idled(&mut self, _replay: &Replay, _cpu: CpuId, _from: Nanos, _to: Nanos) {}
    /// A group was throttled on a CPU for a while.
    fn throttled(
        &mut self,
        _replay: &Replay,
        _group: GroupId,
        _cpu: CpuId,
        _from: Nanos,
        _to: Nanos,
    ) {
    }
    /// A task's thread stood for a while.
    fn stood(&mut self, _replay: &Replay, _stand: &Stand) {}
    /// Something does not fit.
    fn fault(&mut self, _replay: &Replay, _fault: &Fault) {}
}
