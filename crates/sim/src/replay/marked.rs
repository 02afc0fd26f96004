//! Pieces of work that a program marked itself in its trace: requests as it sees them.

use quotient_trace::{Mark, MarkKind, TaskId};
use std::collections::{BTreeMap, HashMap};

/// Most marks that are open at a time; older ones are forgotten. Origin: as many as connections of a big server.
pub(super) const OPEN_MAX: usize = 1 << 20;

/// A place in a recording: a burst, and how far it had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) burst: u32,
    pub(super) offset: u64,
    /// When that was, from the begin of the recording; in a block of it, from the block's begin.
    pub(super) at: u64,
}

/// A marked piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marked {
    pub(super) name: String,
    pub(super) begin: Place,
    pub(super) end: Place,
}

/// Marks that have begun.
#[derive(Debug, Default)]
pub(super) struct Open {
    nested: HashMap<TaskId, Vec<(String, Place)>>,
    started: BTreeMap<(String, String), Place>,
}

impl Open {
    /// Takes a mark at a place; returns what it completes.
    pub(super) fn take(&mut self, mark: Mark, place: Place) -> Option<Marked> {
        match mark.kind {
            MarkKind::Begin => {
                let stack = self.nested.entry(mark.task).or_default();
                if stack.len() < OPEN_MAX {
                    stack.push((mark.name, place));
                }
                None
            }
            MarkKind::End => {
                let (name, begin) = self.nested.get_mut(&mark.task)?.pop()?;
                Some(Marked {
                    name,
                    begin,
                    end: place,
                })
            }
            MarkKind::Start => {
                if self.started.len() < OPEN_MAX {
                    self.started.insert((mark.name, mark.cookie), place);
                }
                None
            }
            MarkKind::Finish => {
                let key = (mark.name, mark.cookie);
                let begin = self.started.remove(&key)?;
                Some(Marked {
                    name: key.0,
                    begin,
                    end: place,
                })
            }
        }
    }
}
