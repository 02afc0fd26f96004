//! Threads that stand in the middle of a poll: who, since when, and whether that fits together.

use std::collections::{HashMap, HashSet};

use quotient_core::event::{ResumeReason, TaskId};
use quotient_core::{CpuId, Nanos};

use super::observe::{Fault, Imbalance, Observer, Stand};
use super::{Replay, Run};

/// Who stands. A trace that begins while somebody does shows a resumption first, and that is right.
#[derive(Debug, Default)]
pub(super) struct Standing {
    since: HashMap<TaskId, Nanos>,
    /// Those whose state is known: it was seen changing.
    known: HashSet<TaskId>,
}

impl Standing {
    /// Nothing is known any more.
    pub(super) fn forget(&mut self) {
        self.since.clear();
        self.known.clear();
    }
}

impl Replay {
    pub(super) fn pause<O: Observer>(&mut self, time: Nanos, task: TaskId, observer: &mut O) {
        self.standing.known.insert(task);
        if self.standing.since.insert(task, time).is_some() {
            let what = Imbalance::PausedTwice;
            observer.fault(self, &Fault::Unbalanced { task, what });
        }
    }

    pub(super) fn resume<O: Observer>(
        &mut self,
        time: Nanos,
        task: TaskId,
        reason: ResumeReason,
        observer: &mut O,
    ) {
        let is_known = !self.standing.known.insert(task);
        match self.standing.since.remove(&task) {
            Some(from) => observer.stood(self, &self.stand(task, from, time, Some(reason))),
            None if is_known => {
                let what = Imbalance::ResumedTwice;
                observer.fault(self, &Fault::Unbalanced { task, what });
            }
            None => {}
        }
    }

    fn stand(&self, task: TaskId, from: Nanos, to: Nanos, reason: Option<ResumeReason>) -> Stand {
        Stand {
            task,
            group: self.table.group_of(task),
            from,
            to,
            reason,
        }
    }

    /// A turn is over. Whoever is chosen is resumed for it; only one that turns out to be blocked, or killed, sleeps instead.
    pub(super) fn judge_turn<O: Observer>(&self, cpu: CpuId, run: &Run, observer: &mut O) {
        let whole = run
            .state
            .is_some_and(|state| state.is_runnable() || state.is_over());
        if whole
            && let Some(since) = self.standing.since.get(&run.task).copied()
            && since < run.from
        {
            let task = run.task;
            observer.fault(self, &Fault::RanStanding { task, cpu, since });
        }
    }

    /// The task has ended: its thread has not been left standing.
    pub(super) fn end_of_thread<O: Observer>(&mut self, task: TaskId, observer: &mut O) {
        self.standing.known.remove(&task);
        if self.standing.since.remove(&task).is_some() {
            let what = Imbalance::EndedStanding;
            observer.fault(self, &Fault::Unbalanced { task, what });
        }
    }

    /// The trace is over.
    pub(super) fn finish_standing<O: Observer>(&mut self, end: Nanos, observer: &mut O) {
        let mut standing: Vec<_> = self.standing.since.drain().collect();
        standing.sort();
        for (task, from) in standing {
            observer.stood(self, &self.stand(task, from, end, None));
        }
    }
}
