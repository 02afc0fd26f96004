//! Who belongs to a process: its threads, and what it and its children fork. A limit on a service holds for all of them.

use quotient_trace::TaskId;
use std::collections::BTreeMap;

/// Most steps from a task up to who made it. Default 64: ends a walk in a trace in which numbers came back.
const STEPS_MAX: usize = 64;

/// Where a task comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Origin {
    process: Option<TaskId>,
    parent: Option<TaskId>,
}

/// Who made whom, as far as a trace says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    origins: BTreeMap<TaskId, Origin>,
}

impl Family {
    /// Notes what is known of a task; what is `None` stays as it was. O(log tasks).
    pub fn note(&mut self, task: TaskId, process: Option<TaskId>, parent: Option<TaskId>) {
        if process.is_some() || parent.is_some() {
            let origin = self.origins.entry(task).or_default();
            origin.process = process.or(origin.process);
            origin.parent = parent.or(origin.parent);
        }
    }

    fn origin(&self, task: TaskId) -> Origin {
        self.origins.get(&task).copied().unwrap_or_default()
    }

    /// Whether a task has one of these numbers itself, or is a thread of a process that has. O(numbers).
    pub fn is_one(&self, task: TaskId, numbers: &[u32]) -> bool {
        let process = self.origin(task).process;
        numbers.contains(&task.0) || process.is_some_and(|process| numbers.contains(&process.0))
    }

    /// Whether one of these made it, or made who made it, and so on. O(numbers * steps).
    pub fn descends(&self, task: TaskId, numbers: &[u32]) -> bool {
        let above = |task: &TaskId| {
            let origin = self.origin(*task);
            // What the first thread of its process has for a parent is that of all.
            let process = origin.process.map(|process| self.origin(process));
            origin.parent.or(process.and_then(|process| process.parent))
        };
        let mut line = core::iter::successors(Some(task), above).skip(1);
        line.by_ref()
            .take(STEPS_MAX)
            .any(|ancestor| self.is_one(ancestor, numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_and_theirs_belong_to_a_process_and_its_threads() {
        let mut family = Family::default();
        let id = |number| Some(TaskId(number));
        // 7 has a thread 8, which forks 20, which has a thread 21, which forks 30; 40 and 41 made each other.
        let known = [
            (8, id(7), None),
            (20, id(20), id(8)),
            (21, id(20), None),
            (30, None, id(21)),
            (40, None, id(41)),
            (41, None, id(40)),
        ];
        for (task, process, parent) in known {
            family.note(TaskId(task), process, parent);
        }
        let one = [7, 8, 20, 21, 30, 40].map(|task| family.is_one(TaskId(task), &[7]));
        assert_eq!(one, [true, true, false, false, false, false]);
        let below = [7, 8, 20, 21, 30, 40].map(|task| family.descends(TaskId(task), &[7]));
        assert_eq!(below, [false, false, true, true, true, false]);
        assert!(!family.descends(TaskId(20), &[9]));
    }
}
