//! Jobs and the threads that wait for them: a spare that is given away is one that is there.
//!
//! # The reservation
//! The watch takes a poll's virtual CPU away only if a thread is idle that will go on with it, and learns that before it does: under the lock,
//! a job is accepted by [`Jobs::give_to_idle`] if there are more idle threads than jobs that wait for one. Each thread counts itself
//! as idle under the lock before it looks for a job, and stops doing so in the step in which it takes one. So each accepted job has
//! a thread of its own, which is awake or will be woken for it: nobody counts an idle thread twice, and no job that was accepted waits
//! behind another's work. Jobs that must be done in any case ([`Jobs::give`]) may wait for a thread; they take the place of those
//! that the watch could have had, never of those it was promised.

use std::collections::VecDeque;

use crate::primitives::{Condvar, Mutex, MutexGuard};

struct State<J> {
    jobs: VecDeque<J>,
    /// Threads that wait for a job.
    idle: usize,
    closed: bool,
}

/// See the module's header.
pub(super) struct Jobs<J> {
    state: Mutex<State<J>>,
    wake: Condvar,
}

impl<J> Jobs<J> {
    /// With room for `max`: the watch must not allocate, and adds at most as many jobs as there are idle threads.
    pub(super) fn with_room(max: usize) -> Self {
        Self {
            state: Mutex::new(State {
                jobs: VecDeque::with_capacity(max),
                idle: 0,
                closed: false,
            }),
            wake: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Threads end when they have nothing to do.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// A job for a thread that is idle now; false, and no job, if none is.
    pub(super) fn give_to_idle(&self, job: J) -> bool {
        let mut state = self.lock();
        if state.idle <= state.jobs.len() {
            return false;
        }
        state.jobs.push_back(job);
        drop(state);
        self.wake.notify_one();
        true
    }

    /// A thread is idle now. A hint.
    pub(super) fn has_idle(&self) -> bool {
        let state = self.lock();
        state.idle > state.jobs.len()
    }

    /// A job for whoever is free first. Whether there are fewer idle threads than jobs.
    pub(super) fn give(&self, job: J) -> bool {
        let mut state = self.lock();
        state.jobs.push_back(job);
        let short = state.idle < state.jobs.len();
        drop(state);
        self.wake.notify_one();
        short
    }

    /// Waits for a job; and whether fewer idle threads than `spares` are left beyond those for which jobs wait. None if `idle_max` wait
    /// already, or the jobs are closed.
    pub(super) fn next(&self, idle_max: usize, spares: usize) -> Option<(J, bool)> {
        let mut state = self.lock();
        if state.idle >= idle_max {
            return None;
        }
        state.idle += 1;
        let job = loop {
            if let Some(job) = state.jobs.pop_front() {
                break Some(job);
            }
            if state.closed {
                break None;
            }
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(|poison| poison.into_inner());
        };
        state.idle -= 1;
        let short = state.idle < state.jobs.len() + spares;
        job.map(|job| (job, short))
    }
}

/// Seen to fail with `state.idle == 0` as the condition of `give_to_idle`, and without its wake-up.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A thread that takes one job and is busy with it for ever, as one that turns a virtual CPU.
    fn taker(jobs: &Arc<Jobs<usize>>, taken: &Arc<AtomicUsize>) -> loom::thread::JoinHandle<()> {
        let (jobs, taken) = (jobs.clone(), taken.clone());
        loom::thread::spawn(move || {
            if let Some((job, _)) = jobs.next(8, 1) {
                let before = taken.fetch_add(job, Ordering::Relaxed);
                assert_eq!(before & job, 0, "done twice");
            }
        })
    }

    /// Two watches and one thread: whatever was promised is done, and no more is promised than can be.
    #[test]
    fn loom_one_spare_is_promised_once() {
        loom::model(|| {
            let jobs = Arc::new(Jobs::with_room(4));
            let taken = Arc::new(AtomicUsize::new(0));
            let thread = taker(&jobs, &taken);
            let other = {
                let jobs = jobs.clone();
                loom::thread::spawn(move || usize::from(jobs.give_to_idle(1)))
            };
            let mine = 2 * usize::from(jobs.give_to_idle(2));
            let promised = mine + other.join().unwrap();
            assert!(promised.count_ones() <= 1, "one thread, two promises");
            if promised == 0 {
                jobs.close();
            }
            thread.join().unwrap();
            assert_eq!(taken.load(Ordering::Relaxed), promised);
        });
    }

    /// The same beside a virtual CPU that starts and takes a thread in any case: two threads do both, or the watch is refused.
    #[test]
    fn loom_a_spare_is_promised_beside_a_job_that_must_be_done() {
        loom::model(|| {
            let jobs = Arc::new(Jobs::with_room(4));
            let taken = Arc::new(AtomicUsize::new(0));
            let threads = [taker(&jobs, &taken), taker(&jobs, &taken)];
            jobs.give(1);
            let promised = 1 + 2 * usize::from(jobs.give_to_idle(2));
            if promised == 1 {
                jobs.close();
            }
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(taken.load(Ordering::Relaxed), promised);
        });
    }
}
