//! CPU clocks: one cell per (group, CPU), written by that CPU only and read by anybody without stopping anybody.
//!
//! A cell is written under the exclusive borrow of its run queue, so a plain load and store suffice (no locked
//! instruction on the charge path); it fills a cache line of its own, so writers on other CPUs are not disturbed.
//! A reader may be late by what the writer has not published yet ([`crate::Config::publish_interval`]) and sees each
//! cell grow monotonically.

use crate::units::{CpuId, Nanos, VirtualTime};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What one CPU knows about one group, published for the others.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct CpuCell {
    /// CPU time charged on this CPU to the group and its descendants, ns.
    exec: AtomicU64,
    /// Shares of what competes inside the group on this CPU.
    load: AtomicU64,
    /// The group's own tasks that are queued or running on this CPU.
    runnable: AtomicU32,
    /// The same with all descendants, kept for [`crate::GroupClock::PerCpu`] only.
    runnable_below: AtomicU32,
    /// Children of the group competing on this CPU (tasks and groups), and those that could be given away.
    entities: AtomicU32,
    spare: AtomicU32,
    /// Virtual time V of the group's timeline on this CPU.
    virtual_time: AtomicU64,
    /// V and the clock at the start of the window over which CPUs are compared.
    mark_virtual: AtomicU64,
    mark_at: AtomicU64,
}

impl CpuCell {
    /// Adds to the clock. Only the owning CPU may call this.
    #[inline]
    pub(crate) fn charge(&self, delta: u64) {
        self.exec
            .store(self.exec.load(Relaxed).wrapping_add(delta), Relaxed);
    }

    #[inline]
    pub(crate) fn exec(&self) -> u64 {
        self.exec.load(Relaxed)
    }

    #[inline]
    pub(crate) fn publish_runnable(&self, runnable: u32) {
        self.runnable.store(runnable, Relaxed);
    }

    #[inline]
    pub(crate) fn publish_virtual(&self, now: VirtualTime) {
        self.virtual_time.store(now.0, Relaxed);
    }

    #[inline]
    pub(crate) fn publish_entities(&self, load: u64, entities: u32, spare: u32) {
        self.load.store(load, Relaxed);
        self.entities.store(entities, Relaxed);
        self.spare.store(spare, Relaxed);
    }

    pub(crate) fn entities(&self) -> u32 {
        self.entities.load(Relaxed)
    }

    pub(crate) fn spare(&self) -> u32 {
        self.spare.load(Relaxed)
    }

    /// Virtual time gained since the mark, and the wall time from there to `now`, up to when the CPU has charged.
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

    pub(crate) fn publish_below(&self, runnable: u32) {
        self.runnable_below.store(runnable, Relaxed);
    }

    pub(crate) fn load(&self) -> u64 {
        self.load.load(Relaxed)
    }

    pub(crate) fn runnable(&self) -> u32 {
        self.runnable.load(Relaxed)
    }
}

/// The cells of one group, one for each CPU that has ever queued it.
#[derive(Debug, Default)]
pub(crate) struct CpuCells {
    // Locked when a CPU meets the group for the first time and by readers, never on the charge path.
    cells: Mutex<Vec<(CpuId, Arc<CpuCell>)>>,
}

impl CpuCells {
    fn lock(&self) -> MutexGuard<'_, Vec<(CpuId, Arc<CpuCell>)>> {
        // The list is only ever pushed to, so a panic cannot leave it half changed.
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cell of `cpu`, created at the first call. O(CPUs that met the group).
    pub(crate) fn of(&self, cpu: CpuId) -> Arc<CpuCell> {
        let mut cells = self.lock();
        if let Some((_, cell)) = cells.iter().find(|(owner, _)| *owner == cpu) {
            return Arc::clone(cell);
        }
        let cell = Arc::new(CpuCell::default());
        cells.push((cpu, Arc::clone(&cell)));
        cell
    }

    /// Looks at every cell with its CPU. `look` must be short and take no lock: a CPU that meets the group waits for it.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&[(CpuId, Arc<CpuCell>)]) -> R) -> R {
        look(&self.lock())
    }

    pub(crate) fn exec(&self) -> Nanos {
        self.lock().iter().map(|(_, cell)| Nanos(cell.exec())).sum()
    }

    pub(crate) fn exec_on(&self, cpu: CpuId) -> Nanos {
        let cells = self.lock();
        cells
            .iter()
            .find(|(owner, _)| *owner == cpu)
            .map_or(Nanos::ZERO, |(_, cell)| Nanos(cell.exec()))
    }

    pub(crate) fn load(&self) -> u64 {
        self.lock().iter().map(|(_, cell)| cell.load()).sum()
    }

    pub(crate) fn runnable(&self) -> u32 {
        self.lock().iter().map(|(_, cell)| cell.runnable()).sum()
    }

    pub(crate) fn runnable_below(&self) -> u32 {
        self.lock()
            .iter()
            .map(|(_, cell)| cell.runnable_below.load(Relaxed))
            .sum()
    }
}
