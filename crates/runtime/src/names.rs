//! Names that users gave to tasks. Apart from the tasks, since most have none: one entry for each live task that has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::task::Id;

/// The names of one scheduler's live tasks.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: Mutex<HashMap<Id, Arc<str>>>,
}

impl Names {
    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Arc<str>>> {
        self.known
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Before the task can end.
    pub(crate) fn give(&self, task: Id, name: &str) {
        self.lock().insert(task, name.into());
    }

    pub(crate) fn of(&self, task: Id) -> Option<Arc<str>> {
        self.lock().get(&task).cloned()
    }

    /// The task has ended.
    pub(crate) fn forget(&self, task: Id) {
        // The name is dropped after the lock.
        let _name = self.lock().remove(&task);
    }
}
