//! What `tokio::spawn` starts inside a group is billed to the group, by the hooks of tokio's runtime (`--cfg tokio_unstable`).
//!
//! # How
//! tokio calls a hook in the spawning thread, before and after each poll, and at a task's end. A task that is spawned while a
//! group is current ([`Group::current`]: in a task of the group, in `in_group`, on a metered thread) is noted with that group; each of its
//! polls is inside a [`ThreadMeter`] of it, in which the group is current again: so what the task spawns is noted, too.
//!
//! | hook | runs | does |
//! |---|---|---|
//! | spawn | in whoever spawns | task's id -> group, if there is one |
//! | before a poll | on the worker, outside every virtual CPU's poll | enters the meter, onto the thread's stack |
//! | after a poll, panics included | the same thread | takes it off: polls on one thread nest (`block_on` inside a poll), and end in that order |
//! | end | anywhere, once a task | forgets the id |
//!
//! The virtual CPUs are tasks of tokio as well. They are spawned by us and must be nobody's: a meter around them would be paused by each
//! of their polls for nothing. [`unnoted`] keeps the hook from them.
//!
//! # Bounds
//! One entry a live foreign task that was spawned in a group, in [`SHARDS`] maps; tokio calls the last hook for every task, cancelled
//! ones and those at the runtime's end too. A group lives as long as one of its entries.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::TaskMeta;
use tokio::task::Id;

use crate::group::Group;
use crate::meter::ThreadMeter;

/// Number of maps. Default 16: two locked instructions a poll, and 32 workers seldom meet.
const SHARDS: usize = 16;

thread_local! {
    /// The meters of the foreign polls on this thread, the innermost last; `None` for a poll of nobody's.
    static POLLS: RefCell<Vec<Option<ThreadMeter>>> = const { RefCell::new(Vec::new()) };
    /// What is spawned now is ours.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// The group of each foreign task that was spawned in one.
struct Tasks {
    shards: [Mutex<HashMap<Id, Group>>; SHARDS],
    hasher: RandomState,
}

impl Tasks {
    fn shard(&self, id: Id) -> MutexGuard<'_, HashMap<Id, Group>> {
        let index = self.hasher.hash_one(id) as usize % SHARDS;
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn spawned(&self, meta: &TaskMeta<'_>) {
        if OURS.try_with(Cell::get).unwrap_or(false) {
            return;
        }
        if let Some(group) = Group::current() {
            self.shard(meta.id()).insert(meta.id(), group);
        }
    }

    fn before_poll(&self, meta: &TaskMeta<'_>) {
        let group = self.shard(meta.id()).get(&meta.id()).cloned();
        // Refused where the thread is billed already, and for a group that was removed: then nobody pays.
        let meter = group.and_then(|group| ThreadMeter::enter(&group).ok());
        let _ = POLLS.try_with(|polls| polls.borrow_mut().push(meter));
    }

    fn after_poll() {
        let meter = POLLS.try_with(|polls| polls.borrow_mut().pop());
        // Outside the borrow: leaving charges the group.
        drop(meter);
    }
}

/// Has what `tokio::spawn` starts in a group billed to that group: its CPU time is charged and shown
/// ([`crate::GroupStats::foreign_cpu`]), [`Group::current`] is the group inside, and so [`crate::spawn`] and what is spawned from there
/// inherit it. Libraries that spawn by themselves need nothing more. Needs `--cfg tokio_unstable`.
///
/// The order of such tasks stays tokio's: the group's tasks pay for them, with their limit too, but they themselves wait for no turn.
/// Costs two readings of the thread's CPU clock (some 350 ns) a poll of such a task, some 50 ns a poll of others. Replaces
/// hooks for tasks that `builder` has.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut builder = tokio::runtime::Builder::new_multi_thread();
/// let runtime = quotient::bill_foreign_tasks(builder.enable_all()).build()?;
/// # drop(runtime);
/// # Ok(())
/// # }
/// ```
pub fn bill_foreign_tasks(builder: &mut tokio::runtime::Builder) -> &mut tokio::runtime::Builder {
    let tasks = Arc::new(Tasks {
        shards: Default::default(),
        hasher: RandomState::new(),
    });
    let (spawned, before, ended) = (tasks.clone(), tasks.clone(), tasks);
    builder
        .on_task_spawn(move |meta| spawned.spawned(meta))
        .on_before_task_poll(move |meta| before.before_poll(meta))
        .on_after_task_poll(|_| Tasks::after_poll())
        .on_task_terminate(move |meta| {
            let group = ended.shard(meta.id()).remove(&meta.id());
            // Outside the lock: it may be the last handle.
            drop(group);
        })
}

/// Spawns something of ours, which is no group's.
pub(crate) fn unnoted<R>(spawn: impl FnOnce() -> R) -> R {
    let before = OURS.try_with(|ours| ours.replace(true));
    let result = spawn();
    if let Ok(before) = before {
        let _ = OURS.try_with(|ours| ours.set(before));
    }
    result
}
