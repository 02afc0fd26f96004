//! The threads: started before they are needed, parked when idle, bounded.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Context;

use quotient_pause::Pauser;

use super::carrier::{Carrier, set_current};
use super::lock;
use crate::host::{Host, TokioHost, VcpuFuture};
use crate::shared::Shared;
use crate::vcpu::Vcpu;

/// Idle threads beyond this end. Unit: threads. More than a burst of long polls on a few virtual CPUs takes at once.
const IDLE_MAX: usize = 8;

/// What a thread is to do.
pub(super) enum Job {
    /// Turn a virtual CPU from its beginning.
    Serve(VcpuFuture),
    /// Go on with the virtual CPU of a detached poll.
    TakeOver(Arc<Shared>, usize, Arc<Carrier>),
}

struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    /// All threads.
    threads: usize,
    closed: bool,
}

/// The threads of one scheduler.
pub(crate) struct Pool {
    state: Mutex<State>,
    wake: Condvar,
    pauser: Pauser,
    handle: tokio::runtime::Handle,
    /// The most threads there are at once.
    max: usize,
}

impl Pool {
    /// A pool with its first spare.
    pub(super) fn start(
        pauser: Pauser,
        handle: tokio::runtime::Handle,
        max: usize,
    ) -> std::io::Result<Arc<Self>> {
        let pool = Arc::new(Self {
            state: Mutex::new(State {
                // The watch adds to it and must not allocate: it adds at most as many as there are idle threads.
                jobs: VecDeque::with_capacity(max),
                idle: 0,
                threads: 0,
                closed: false,
            }),
            wake: Condvar::new(),
            pauser,
            handle,
            max,
        });
        pool.add_thread()?;
        Ok(pool)
    }

    pub(super) fn pauser(&self) -> Pauser {
        self.pauser
    }

    pub(super) fn threads(&self) -> usize {
        lock(&self.state).threads
    }

    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.wake.notify_all();
    }

    /// The watch: a job for a thread that is idle now; false, and no job, if none is.
    pub(super) fn give_to_idle(&self, job: Job) -> bool {
        let mut state = lock(&self.state);
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
        let state = lock(&self.state);
        state.idle > state.jobs.len()
    }

    /// A job for whoever is free first. Starts a thread if nobody is.
    fn give(self: &Arc<Self>, job: Job) {
        let mut state = lock(&self.state);
        state.jobs.push_back(job);
        let short = state.idle < state.jobs.len();
        drop(state);
        self.wake.notify_one();
        if short {
            // If there is none to be had, the job waits for the next that is idle.
            let _ = self.add_thread();
        }
    }

    fn add_thread(self: &Arc<Self>) -> std::io::Result<()> {
        {
            let mut state = lock(&self.state);
            if state.threads >= self.max || state.closed {
                return Ok(());
            }
            state.threads += 1;
        }
        let pool = self.clone();
        let started = std::thread::Builder::new()
            .name("quotient-carrier".into())
            .spawn(move || pool.run());
        if started.is_err() {
            lock(&self.state).threads -= 1;
        }
        started.map(drop)
    }

    /// A thread's life.
    fn run(self: Arc<Self>) {
        while let Some((job, last_idle)) = self.next() {
            if last_idle {
                // The next long poll finds a spare.
                let _ = self.add_thread();
            }
            if !self.work(job) {
                break;
            }
        }
        lock(&self.state).threads -= 1;
    }

    /// Waits for a job; whether this was the last idle thread.
    fn next(&self) -> Option<(Job, bool)> {
        let mut state = lock(&self.state);
        if state.idle >= IDLE_MAX {
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
        let last = state.idle <= state.jobs.len();
        job.map(|job| (job, last))
    }

    /// Does a job; whether the thread can do another.
    fn work(&self, job: Job) -> bool {
        let mut job = Some(job);
        let entered = self.pauser.enter(|thread| {
            let carrier = Arc::new(Carrier::new(thread.handle()));
            set_current(Some(carrier.clone()));
            self.serve(job.take());
            set_current(None);
            let demoted = carrier.demoted.load(Ordering::Acquire);
            !demoted || thread.restore_priority().is_ok()
        });
        // Where the system refuses, the virtual CPU is turned all the same, and not preempted.
        self.serve(job.take());
        entered.unwrap_or(false)
    }

    fn serve(&self, job: Option<Job>) {
        match job {
            Some(Job::Serve(future)) => self.handle.block_on(future),
            Some(Job::TakeOver(shared, index, bearer)) => {
                let future = Vcpu::taking_over(shared, index, bearer);
                self.handle.block_on(future);
            }
            None => {}
        }
    }
}

/// The pool as the host of virtual CPUs; their I/O, timers and foreign tasks stay with tokio.
pub(crate) struct PoolHost {
    pool: Arc<Pool>,
    tokio: TokioHost,
}

impl PoolHost {
    pub(super) fn new(pool: Arc<Pool>, handle: tokio::runtime::Handle) -> Self {
        Self {
            pool,
            tokio: TokioHost::new(handle),
        }
    }
}

impl Host for PoolHost {
    fn spawn(&self, vcpu: VcpuFuture) {
        self.pool.give(Job::Serve(vcpu));
    }

    fn spawn_blocking(&self, function: Box<dyn FnOnce() + Send>) {
        self.tokio.spawn_blocking(function);
    }

    fn spawn_stand_in(&self, vcpu: VcpuFuture) {
        self.spawn(vcpu);
    }

    fn ring(&self) {}

    fn close(&self) {
        self.tokio.close();
    }

    fn is_driven_by_hand(&self) -> bool {
        false
    }

    fn workers(&self) -> usize {
        self.tokio.workers()
    }

    fn defer(&self, context: &mut Context<'_>) {
        // The driver is polled by tokio's own threads meanwhile.
        context.waker().wake_by_ref();
    }

    fn alive_tasks(&self) -> usize {
        self.tokio.alive_tasks()
    }
}
