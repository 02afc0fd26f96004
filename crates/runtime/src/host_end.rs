//! The end of the host's runtime, and what stand-ins do about it.
//!
//! Stand-ins run on threads of ours inside the user's runtime. When that shuts down, its workers drop the tasks that are theirs, and
//! then its driver stops: from then on a timer that is polled panics. A virtual CPU that blocks in place is still there meanwhile,
//! in a poll that nobody can drop; so that the others are gone, or any of them is, says nothing.
//!
//! # How it is noticed
//! By a *guard*: a task on the runtime that never has anything to do, so it is not in a poll when the runtime shuts down, and is dropped
//! with the first tasks, before the driver stops (tokio stops it when all tasks are dropped). Its drop (E1) marks the word, (E2) waits for
//! the polls in progress on stand-ins, [`PATIENCE`] at most, as the runtime itself waits for those of its workers; and (E3) closes the
//! scheduler: spawns are refused, every task is aborted.
//!
//! # One word
//! The number of polls in progress on stand-ins, times two, and the mark. A stand-in adds two before each poll; if it finds the mark, it
//! takes them back and does not poll, it cancels. So every poll is either counted when E2 looks at the word, or does not take place.
//! Polls that block in place are not counted while they do: they may wait for a task that is yet to be dropped.
//! Who takes the last count back with the mark set notifies under the lock under which E2 looks: no notification is missed.
//!
//! # What is left to be dropped
//! Stand-ins go on after the mark, and new ones come, as long as there are tasks: a poll that blocks in place may wait for the
//! destructor of another task, and the runtime waits for that poll.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::shared::{CLOSED, Shared};

/// How long the end of the runtime waits for polls on stand-ins. Unit: time. Default one second: a poll that takes longer, or waits for
/// what the end itself will bring, finds timers that panic, as a poll does that outlives `Runtime::shutdown_timeout`.
const PATIENCE: Duration = Duration::from_secs(1);

/// The mark: the host's runtime is ending.
const ENDING: usize = 1;
/// One poll in progress.
const POLL: usize = 2;

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct HostEnd {
    word: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl HostEnd {
    pub(crate) fn is_ending(&self) -> bool {
        self.word.load(Ordering::Acquire) & ENDING != 0
    }

    /// A stand-in is about to poll a task; false: it must not.
    pub(crate) fn begin_poll(&self) -> bool {
        let before = self.word.fetch_add(POLL, Ordering::AcqRel);
        if before & ENDING == 0 {
            return true;
        }
        self.end_poll();
        false
    }

    /// A poll that blocked in place goes on, whatever has come meanwhile.
    pub(crate) fn resume_poll(&self) {
        self.word.fetch_add(POLL, Ordering::AcqRel);
    }

    /// The poll is over, or blocks in place from here on.
    pub(crate) fn end_poll(&self) {
        let before = self.word.fetch_sub(POLL, Ordering::AcqRel);
        if before == POLL | ENDING {
            drop(self.lock());
            self.changed.notify_all();
        }
    }

    /// E1 and E2, for `patience` at most.
    fn end(&self, patience: Duration) {
        self.word.fetch_or(ENDING, Ordering::AcqRel);
        let polls = |_: &mut ()| self.word.load(Ordering::Acquire) >= POLL;
        // After that time, or with nobody left: both are the end.
        drop(
            self.changed
                .wait_timeout_while(self.lock(), patience, polls),
        );
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

/// Ends with the runtime.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        if self.0.phase() != CLOSED {
            self.0.host_end.end(PATIENCE);
            self.0.close();
        }
    }
}

/// Puts the guard on the runtime, for as long as the scheduler lives.
pub(crate) fn watch(shared: &Arc<Shared>, handle: &tokio::runtime::Handle) {
    let guard = Guard(shared.clone());
    drop(handle.spawn(async move {
        let shared = &guard.0;
        loop {
            let mut ended = std::pin::pin!(shared.ended.notified());
            ended.as_mut().enable();
            if shared.phase() == CLOSED {
                return;
            }
            ended.await;
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_poll_that_began_before_the_end_is_waited_for() {
        for _ in 0..100 {
            let host = Arc::new(HostEnd::default());
            let polled = Arc::new(AtomicBool::new(false));
            assert!(host.begin_poll());
            let poll = {
                let (host, polled) = (host.clone(), polled.clone());
                std::thread::spawn(move || {
                    while !host.is_ending() {
                        std::thread::yield_now();
                    }
                    polled.store(true, Ordering::Relaxed);
                    host.end_poll();
                })
            };
            host.end(Duration::from_secs(60));
            assert!(polled.load(Ordering::Relaxed), "the end did not wait");
            assert!(!host.begin_poll(), "polled after the end");
            poll.join().unwrap();
            assert_eq!(host.word.load(Ordering::Relaxed), ENDING);
        }
    }
}
