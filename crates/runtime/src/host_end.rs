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
//! Under preemption no regular virtual CPU is polled by the runtime's own threads either, and its carriers count as stand-ins do, with an
//! end that differs in its order and its bounds: see [`preempted`].
//!
//! # What is left to be dropped
//! Stand-ins go on after the mark, and new ones come, as long as there are tasks: a poll that blocks in place may wait for the
//! destructor of another task, and the runtime waits for that poll.

mod preempted;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crossbeam_utils::CachePadded;

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
    /// The mark once more, set before the word's, on a line that nothing else is written to: it is looked at before each poll.
    ending: CachePadded<AtomicBool>,
    /// Polls that block in place, and are not counted meanwhile.
    lent: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl HostEnd {
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// A stand-in is about to poll a task, or a carrier to begin a turn; false: no task may be polled.
    pub(crate) fn begin_poll(&self) -> bool {
        let before = self.word.fetch_add(POLL, Ordering::AcqRel);
        if before & ENDING == 0 {
            return true;
        }
        self.end_poll();
        false
    }

    /// A poll blocks in place from here on, and was counted until now.
    pub(crate) fn lend_poll(&self) {
        self.lent.fetch_add(1, Ordering::AcqRel);
    }

    /// A poll that blocked in place goes on, whatever has come meanwhile.
    pub(crate) fn resume_poll(&self) {
        self.word.fetch_add(POLL, Ordering::AcqRel);
        self.lent.fetch_sub(1, Ordering::AcqRel);
    }

    /// The poll or turn is over, or blocks in place from here on.
    pub(crate) fn end_poll(&self) {
        let before = self.word.fetch_sub(POLL, Ordering::AcqRel);
        if before == POLL | ENDING {
            self.was_last();
        }
    }

    #[cold]
    fn was_last(&self) {
        // A poll that begins to block is not to be stopped under the lock.
        let _shield = quotient_pause::uninterrupted();
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Polls that block in place.
    fn lent(&self) -> usize {
        self.lent.load(Ordering::Acquire)
    }

    /// E1.
    fn mark(&self) {
        self.ending.store(true, Ordering::Release);
        self.word.fetch_or(ENDING, Ordering::AcqRel);
    }

    /// E2, for `patience` at most; whether nobody is left.
    fn wait(&self, patience: Duration) -> bool {
        let polls = |_: &mut ()| self.word.load(Ordering::Acquire) >= POLL;
        let (_lock, waited) = self
            .changed
            .wait_timeout_while(self.lock(), patience, polls)
            .unwrap_or_else(|poison| poison.into_inner());
        !waited.timed_out()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

/// Ends with the runtime.
struct Guard {
    shared: Arc<Shared>,
    /// Whoever drops the runtime drops this.
    is_on_caller: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let shared = &self.shared;
        if shared.phase() == CLOSED {
            return;
        }
        shared.host_end.mark();
        if let Some(preempting) = &shared.preempt {
            preempted::end(shared, preempting, self.is_on_caller);
        } else {
            // After that time, or with nobody left: both are the end.
            shared.host_end.wait(PATIENCE);
            shared.close();
        }
    }
}

/// Puts the guard on the runtime, for as long as the scheduler lives.
pub(crate) fn watch(shared: &Arc<Shared>, handle: &tokio::runtime::Handle) {
    let flavor = handle.runtime_flavor();
    let guard = Guard {
        shared: shared.clone(),
        is_on_caller: flavor == tokio::runtime::RuntimeFlavor::CurrentThread,
    };
    drop(handle.spawn(async move {
        let shared = &guard.shared;
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
            host.mark();
            assert!(host.wait(Duration::from_secs(60)), "somebody is left");
            assert!(polled.load(Ordering::Relaxed), "the end did not wait");
            assert!(!host.begin_poll(), "polled after the end");
            poll.join().unwrap();
            assert_eq!(host.word.load(Ordering::Relaxed), ENDING);
        }
    }
}
