//! What a CPU publishes about itself, so that others can choose whom to pull from without taking its lock.

use crate::units::{Nanos, VirtualTime};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One CPU's load: relaxed single-writer words on cache lines of their own. Readers tolerate staleness; the puller
/// takes the victim's lock and looks again.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CpuLoad {
    queued: AtomicU32,
    running: AtomicU32,
    /// Shares of the runnable children of the root on this CPU.
    shares: AtomicU64,
    /// Virtual time of the root's timeline on this CPU.
    virtual_time: AtomicU64,
    /// Virtual time and clock at the start of the window over which CPUs are compared.
    mark_virtual: AtomicU64,
    mark_at: AtomicU64,
}

impl CpuLoad {
    /// Tasks that wait (all runnable ones but the current).
    pub fn nr_queued(&self) -> usize {
        self.queued.load(Relaxed) as usize
    }

    /// Runnable tasks, the current one included.
    pub fn nr_running(&self) -> usize {
        self.running.load(Relaxed) as usize
    }

    /// Shares of what competes at the root on this CPU.
    pub fn shares(&self) -> u64 {
        self.shares.load(Relaxed)
    }

    pub(crate) fn publish_counts(&self, queued: u32, running: u32) {
        self.queued.store(queued, Relaxed);
        self.running.store(running, Relaxed);
    }

    pub(crate) fn publish_virtual(&self, now: VirtualTime, shares: u64) {
        self.virtual_time.store(now.0, Relaxed);
        self.shares.store(shares, Relaxed);
    }

    /// Virtual time gained since the mark, and the wall time in which it was gained.
    pub(crate) fn gained(&self, now: Nanos) -> (u64, Nanos) {
        let mark = VirtualTime(self.mark_virtual.load(Relaxed));
        let gained = VirtualTime(self.virtual_time.load(Relaxed))
            .since(mark)
            .max(0);
        (
            gained.unsigned_abs(),
            now - Nanos(self.mark_at.load(Relaxed)),
        )
    }

    /// Starts a new window now. Any CPU may do it (a pull concerns both sides); a race costs one odd window.
    pub(crate) fn mark(&self, now: Nanos) {
        self.mark_virtual
            .store(self.virtual_time.load(Relaxed), Relaxed);
        self.mark_at.store(now.0, Relaxed);
    }

    /// Forgets the older half of the window.
    pub(crate) fn halve_window(&self, now: Nanos) {
        let (gained, window) = self.gained(now);
        let mark = self.virtual_time.load(Relaxed).wrapping_sub(gained / 2);
        self.mark_virtual.store(mark, Relaxed);
        self.mark_at
            .store(now.0.saturating_sub(window.0 / 2), Relaxed);
    }
}
