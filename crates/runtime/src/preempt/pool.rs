//! The threads: started before they are needed, parked when idle, bounded.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Context;

use quotient_core::Nanos;
use quotient_pause::Pauser;

use super::carrier::Carrier;
use super::jobs::Jobs;
use super::lock;
use super::others::set_current;
use crate::host::{Host, TokioHost, VcpuFuture};
use crate::shared::Shared;
use crate::vcpu::Vcpu;

/// Idle threads beyond this end. Unit: threads. More than a burst of long polls on a few virtual CPUs takes at once.
const IDLE_MAX: usize = 8;

/// Idle threads that are kept for polls that turn out to be long. Unit: threads. 2: a thread that takes such a virtual CPU over starts the next
/// spare first, which on a busy machine takes milliseconds to get there; with one spare 3 to 120 of the watch's attempts were refused meanwhile while 16
/// polls became long (beside compilers, on two processors), with two 0 to 4. Each is a thread that sleeps.
pub(super) const SPARES: usize = 2;

/// What a thread is to do.
pub(super) enum Job {
    /// Turn a virtual CPU from its beginning.
    Serve(VcpuFuture),
    /// Go on with the virtual CPU of a detached poll.
    TakeOver(Arc<Shared>, usize, Arc<Carrier>),
    /// Something for a thread of low priority.
    Act(Box<dyn FnOnce() + Send>),
}

/// The threads of one scheduler.
pub(crate) struct Pool {
    jobs: Jobs<Job>,
    /// All threads.
    threads: Mutex<usize>,
    pauser: Pauser,
    handle: tokio::runtime::Handle,
    /// The most threads there are at once, and the most that are idle.
    max: usize,
    idle_max: usize,
    /// Of each thread, bytes; `None` as by default.
    stack_size: Option<usize>,
    /// Threads that the system refused, of the runtime's blocking pool (`shortage`), too; saturates never: one is tried in [`RETRY`].
    refused: AtomicU64,
    /// The last one was refused, and when the next may be asked for, on the scheduler's clock.
    short: AtomicBool,
    retry_at: AtomicU64,
}

/// How long after a thread was refused the next is asked for. Unit: nanoseconds. 100 ms: whoever refuses it is out of threads or memory, and
/// an attempt costs some 100 us.
pub(super) const RETRY: Nanos = Nanos::from_micros(100_000);

impl Pool {
    /// A pool with its first `threads`: whoever starts it has them, or learns that it has not.
    pub(super) fn start(
        pauser: Pauser,
        handle: tokio::runtime::Handle,
        threads: usize,
        (max, stack_size): (usize, Option<usize>),
    ) -> std::io::Result<Arc<Self>> {
        let pool = Arc::new(Self {
            jobs: Jobs::with_room(max),
            threads: Mutex::new(0),
            pauser,
            handle,
            max,
            idle_max: IDLE_MAX.max(threads),
            stack_size,
            refused: AtomicU64::new(0),
            short: AtomicBool::new(false),
            retry_at: AtomicU64::new(0),
        });
        for _ in 0..threads {
            if let Err(reason) = pool.add_thread() {
                pool.close();
                return Err(reason);
            }
        }
        Ok(pool)
    }

    /// Threads that the system has refused so far.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// One more, of the runtime's pool.
    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The tick thread: asks again for a thread that was refused. Whether one is missing.
    pub(super) fn make_up(self: &Arc<Self>, now: Nanos) -> bool {
        let short = self.short.load(Ordering::Relaxed);
        if short && now.as_nanos() >= self.retry_at.load(Ordering::Relaxed) {
            let retry_at = now.saturating_add(RETRY);
            self.retry_at.store(retry_at.as_nanos(), Ordering::Relaxed);
            if self.has_idle() {
                self.short.store(false, Ordering::Relaxed);
            } else {
                let _ = self.add_thread();
            }
        }
        short
    }

    pub(super) fn pauser(&self) -> Pauser {
        self.pauser
    }

    pub(super) fn threads(&self) -> usize {
        *lock(&self.threads)
    }

    pub(super) fn close(&self) {
        self.jobs.close();
    }

    /// The watch: a job for a thread that is idle now; false, and no job, if none is.
    pub(super) fn give_to_idle(&self, job: Job) -> bool {
        self.jobs.give_to_idle(job)
    }

    /// A thread is idle now. A hint.
    pub(super) fn has_idle(&self) -> bool {
        self.jobs.has_idle()
    }

    /// A job for whoever is free first. Starts a thread if nobody is.
    fn give(self: &Arc<Self>, job: Job) {
        if self.jobs.give(job) {
            // If there is none to be had, the job waits for the next that is idle, and the tick thread asks again.
            let _ = self.add_thread();
        }
    }

    fn add_thread(self: &Arc<Self>) -> std::io::Result<()> {
        {
            let mut threads = lock(&self.threads);
            if *threads >= self.max || self.jobs.is_closed() {
                return Ok(());
            }
            *threads += 1;
        }
        let pool = self.clone();
        let mut thread = std::thread::Builder::new().name("quotient-carrier".into());
        if let Some(bytes) = self.stack_size {
            thread = thread.stack_size(bytes);
        }
        let started = thread.spawn(move || pool.run());
        self.short.store(started.is_err(), Ordering::Relaxed);
        if started.is_err() {
            *lock(&self.threads) -= 1;
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        started.map(drop)
    }

    /// A thread's life.
    fn run(self: Arc<Self>) {
        while let Some((job, short)) = self.jobs.next(self.idle_max, SPARES) {
            if short {
                // The next long polls find spares.
                let _ = self.add_thread();
            }
            if !self.work(job) {
                break;
            }
        }
        *lock(&self.threads) -= 1;
    }

    /// Does a job; whether the thread can do another.
    fn work(&self, job: Job) -> bool {
        if let Job::Act(act) = job {
            act();
            return true;
        }
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
            Some(Job::Act(act)) => act(),
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
        // The heartbeat's.
        self.tokio.alive_tasks().saturating_sub(1)
    }
}
