//! What the runtime asks of its host: to poll a virtual CPU's future, and to let the host's own work go first.
//!
//! A virtual CPU is a plain future, so a host is small: tokio (here, multi-thread and current-thread alike), own threads, a simulator.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;

/// A future of a virtual CPU, ready to be given to a host.
pub(crate) type VcpuFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls virtual CPUs.
pub(crate) trait Host: Send + Sync {
    /// Starts to poll `vcpu` until it is ready, from any thread.
    fn spawn(&self, vcpu: VcpuFuture);

    /// Runs a function that blocks, on a thread for such; one that never runs is dropped.
    fn spawn_blocking(&self, function: Box<dyn FnOnce() + Send>);

    /// Arranges that the calling virtual CPU, which returns `Pending` next, is polled again after the host's ready tasks and a
    /// turn of its I/O and timer driver.
    fn defer(&self, context: &mut Context<'_>);

    /// Number of live tasks of the host, virtual CPUs included; 0 where it cannot be told.
    fn alive_tasks(&self) -> usize;
}

/// The user's own, unmodified tokio runtime.
#[derive(Debug)]
pub(crate) struct TokioHost {
    handle: tokio::runtime::Handle,
    metrics: tokio::runtime::RuntimeMetrics,
}

impl TokioHost {
    pub(crate) fn new(handle: tokio::runtime::Handle) -> Self {
        let metrics = handle.metrics();
        Self { handle, metrics }
    }
}

impl Host for TokioHost {
    fn spawn(&self, vcpu: VcpuFuture) {
        drop(self.handle.spawn(vcpu));
    }

    fn spawn_blocking(&self, function: Box<dyn FnOnce() + Send>) {
        drop(self.handle.spawn_blocking(function));
    }

    fn defer(&self, context: &mut Context<'_>) {
        // tokio's own `yield_now` is the one public way to be polled after a driver turn: its first poll leaves the waker with the
        // worker, which wakes it when its queue is empty and the driver was polled. The future itself need not be kept.
        let mut yielding = std::pin::pin!(tokio::task::yield_now());
        if yielding.as_mut().poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
    }

    fn alive_tasks(&self) -> usize {
        self.metrics.num_alive_tasks()
    }
}
