//! Threads for stand-ins: a virtual CPU that comes because the others are stuck must not wait for one of the host's workers, which
//! may be what they are stuck on.
//!
//! At most one thread a stand-in, named `quotient-stand-in`, and one for each poll that has handed its virtual CPU over
//! (`vcpu::successor`); each polls one virtual CPU at a time, inside the user's tokio runtime (its timers, its I/O, `tokio::spawn`), until
//! that has ended or gone to another, then waits [`LINGER`] for another and ends. So a program in which nothing ever gets stuck has none.
//!
//! The queue's lock is held for a few instructions, never while a virtual CPU is polled.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::host::VcpuFuture;

/// How long a thread waits for another stand-in to poll. Default one second: programs that block in place do so often, and a new
/// thread costs some 50 us.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    waiting: usize,
    closed: bool,
}

struct Job {
    handle: tokio::runtime::Handle,
    vcpu: VcpuFuture,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Job")
    }
}

/// The threads of one scheduler. Bounded by its slots for stand-ins, of each of which there is one future, and by the polls that may be
/// handed over at a time.
#[derive(Debug, Default)]
pub(crate) struct StandInThreads {
    state: Mutex<State>,
    changed: Condvar,
}

impl StandInThreads {
    /// Polls `vcpu` to its end on a thread of its own; gives it back if the operating system refuses one.
    pub(crate) fn run(
        self: &Arc<Self>,
        handle: &tokio::runtime::Handle,
        vcpu: VcpuFuture,
    ) -> Result<(), VcpuFuture> {
        let mut state = self.lock();
        let handle = handle.clone();
        state.jobs.push_back(Job { handle, vcpu });
        if state.waiting >= state.jobs.len() {
            drop(state);
            self.changed.notify_one();
            return Ok(());
        }
        let threads = self.clone();
        let started = std::thread::Builder::new()
            .name("quotient-stand-in".into())
            .spawn(move || threads.serve());
        match started {
            Ok(_) => Ok(()),
            Err(_) => match state.jobs.pop_back() {
                Some(job) => Err(job.vcpu),
                None => Ok(()),
            },
        }
    }

    /// Lets the threads end that wait.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn serve(&self) {
        while let Some(job) = self.next() {
            let Job { handle, vcpu } = job;
            handle.block_on(vcpu);
        }
    }

    /// The next job; `None` if none came in time.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        state.waiting += 1;
        let idle = |state: &mut State| state.jobs.is_empty() && !state.closed;
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, LINGER, idle)
            .unwrap_or_else(|poison| poison.into_inner());
        state.waiting -= 1;
        state.jobs.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}
