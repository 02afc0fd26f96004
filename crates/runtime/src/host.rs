//! What the runtime asks of its host: to poll a virtual CPU's future, and to let the host's own work go first.
//!
//! A virtual CPU is a plain future, so a host is small: tokio (here, multi-thread and current-thread alike), own threads, a simulator.
//!
//! # The door bell
//! Whom a tokio worker wakes goes to the worker's LIFO slot, which no other worker can steal from: a virtual CPU that is woken from
//! inside a long poll would wait for that poll's end beside a sleeping worker. The next one that is woken there moves it on to the
//! worker's queue, and tokio then wakes a worker to steal from it. The door bell is that next one: a task of ours that does
//! nothing. It exists while the scheduler does, on runtimes with several workers.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

#[cfg(tokio_unstable)]
use crate::foreign_tasks::unnoted;
use crate::stand_in::StandInThreads;

/// Spawns something of ours. Without tokio's hooks nobody notes what is spawned.
#[cfg(not(tokio_unstable))]
fn unnoted<R>(spawn: impl FnOnce() -> R) -> R {
    spawn()
}

/// A future of a virtual CPU, ready to be given to a host.
pub(crate) type VcpuFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls virtual CPUs.
pub(crate) trait Host: Send + Sync {
    /// Starts to poll `vcpu` until it is ready, from any thread.
    fn spawn(&self, vcpu: VcpuFuture);

    /// Runs a function that blocks, on a thread for such; one that never runs is dropped.
    fn spawn_blocking(&self, function: Box<dyn FnOnce() + Send>);

    /// Polls the future of a stand-in until it is ready, without need of a free worker.
    fn spawn_stand_in(&self, vcpu: VcpuFuture);

    /// Called on a worker after a virtual CPU was woken there, if the worker will be busy for a while: somebody else is to poll it.
    fn ring(&self);

    /// The scheduler has ended.
    fn close(&self);

    /// Arranges that the calling virtual CPU, which returns `Pending` next, is polled again after the host's ready tasks and a
    /// turn of its I/O and timer driver.
    fn defer(&self, context: &mut Context<'_>);

    /// It polls only while somebody is inside its `block_on`.
    fn is_driven_by_hand(&self) -> bool;

    /// Number of threads on which it polls.
    fn workers(&self) -> usize;

    /// Number of live tasks of the host, regular virtual CPUs included; 0 where it cannot be told.
    fn alive_tasks(&self) -> usize;
}

/// See the module's header.
#[derive(Debug, Default)]
struct DoorBell {
    waker: OnceLock<Waker>,
    ended: AtomicBool,
}

impl DoorBell {
    fn ring(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    async fn stand_by(self: Arc<Self>) {
        std::future::poll_fn(|context| {
            self.waker.get_or_init(|| context.waker().clone());
            if self.ended.load(Ordering::Acquire) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// The user's own, unmodified tokio runtime.
#[derive(Debug)]
pub(crate) struct TokioHost {
    handle: tokio::runtime::Handle,
    metrics: tokio::runtime::RuntimeMetrics,
    bell: Option<Arc<DoorBell>>,
    stand_ins: Arc<StandInThreads>,
}

impl TokioHost {
    pub(crate) fn new(handle: tokio::runtime::Handle) -> Self {
        let metrics = handle.metrics();
        let bell = (metrics.num_workers() > 1).then(|| {
            let bell = Arc::new(DoorBell::default());
            drop(unnoted(|| handle.spawn(bell.clone().stand_by())));
            bell
        });
        Self {
            handle,
            metrics,
            bell,
            stand_ins: Arc::default(),
        }
    }
}

impl Drop for TokioHost {
    fn drop(&mut self) {
        self.close();
    }
}

impl Host for TokioHost {
    fn spawn(&self, vcpu: VcpuFuture) {
        drop(unnoted(|| self.handle.spawn(vcpu)));
    }

    fn spawn_blocking(&self, function: Box<dyn FnOnce() + Send>) {
        drop(self.handle.spawn_blocking(function));
    }

    fn spawn_stand_in(&self, vcpu: VcpuFuture) {
        if let Err(vcpu) = self.stand_ins.run(&self.handle, vcpu) {
            // No thread to be had: a worker that comes free is better than nobody.
            drop(unnoted(|| self.handle.spawn(vcpu)));
        }
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    fn close(&self) {
        if let Some(bell) = &self.bell {
            bell.ended.store(true, Ordering::Release);
            bell.ring();
        }
        self.stand_ins.close();
    }

    fn defer(&self, context: &mut Context<'_>) {
        // tokio's own `yield_now` is the one public way to be polled after a driver turn: its first poll leaves the waker with the
        // worker, which wakes it when its queue is empty and the driver was polled. The future itself need not be kept.
        let mut yielding = std::pin::pin!(tokio::task::yield_now());
        if yielding.as_mut().poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
    }

    fn is_driven_by_hand(&self) -> bool {
        self.handle.runtime_flavor() == tokio::runtime::RuntimeFlavor::CurrentThread
    }

    fn workers(&self) -> usize {
        self.metrics.num_workers()
    }

    fn alive_tasks(&self) -> usize {
        // The other one is the guard of `host_end`.
        let own = 1 + usize::from(self.bell.is_some());
        self.metrics.num_alive_tasks().saturating_sub(own)
    }
}
