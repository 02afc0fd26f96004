//! Tasks whose turn comes when no virtual CPU is left: their futures are dropped, one after the other, on one thread.
//!
//! A token that finds every inbox closed cannot be cancelled where it is: whoever brings it may be a waker under a lock that the
//! future's destructor wants, or the destructor of another task, a hundred thousand deep. So it is handed over.
//!
//! # Protocol
//! One word behind a lock: the tokens that wait, and the thread that sees to them, if there is one.
//! - bring: (B1) lock, add the token. (B2) Somebody sees to them: done. Else become that thread and see to them.
//! - see to them: lock, take one, unlock, cancel it; none left: under the same lock give up the duty.
//! - the end of the scheduler ([`LastRites::begin`]) takes the duty before the phase and the inboxes say that they are closed, and keeps
//!   it until every task that it has found was cancelled, and every token that was brought meanwhile.
//!
//! *No token stays*: it is added under the lock under which the duty is given up, with none left.
//! *No destructor runs inside a foreign waker:* a task that slept at the end gets its token while the end has the duty (its abort is part
//! of the end), so a waker that makes it only brings it. Later tokens are those of spawns that crossed the end: their spawner brings
//! them, and its own future is dropped.
//! No lock is held while a destructor runs. There are at most as many tokens as live tasks.

use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use crate::task_context::Task;

/// The tokens of one scheduler.
#[derive(Default)]
pub(crate) struct LastRites {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    tasks: Vec<Task>,
    /// Who has the duty.
    thread: Option<ThreadId>,
    /// The end is over.
    over: bool,
}

impl LastRites {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// B1 and B2.
    #[cold]
    pub(crate) fn cancel(&self, task: Task) {
        let mut waiting = self.lock();
        waiting.tasks.push(task);
        if waiting.thread.is_none() {
            waiting.thread = Some(thread::current().id());
            drop(waiting);
            self.see_to_them();
        }
    }

    /// The scheduler ends, on this thread, once: the duty is its own until [`Duty::end`].
    pub(crate) fn begin(&self) -> Duty<'_> {
        // Nobody can have it: no inbox was closed for good so far.
        self.lock().thread = Some(thread::current().id());
        Duty { rites: self }
    }

    fn see_to_them(&self) {
        loop {
            let mut waiting = self.lock();
            let Some(task) = waiting.tasks.pop() else {
                waiting.thread = None;
                return;
            };
            drop(waiting);
            task.cancel();
        }
    }

    /// Whether the destructors that belong to the end have run, as far as the caller can wait for them: one of them would wait for
    /// itself.
    pub(crate) fn are_over(&self) -> bool {
        let waiting = self.lock();
        waiting.over || waiting.thread == Some(thread::current().id())
    }
}

/// The duty of the scheduler's end.
#[must_use]
pub(crate) struct Duty<'a> {
    rites: &'a LastRites,
}

impl Duty<'_> {
    /// Sees to what was brought meanwhile.
    pub(crate) fn end(self) {
        self.rites.see_to_them();
        self.rites.lock().over = true;
    }
}
