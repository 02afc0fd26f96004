//! What each CPU publishes about each group: one cell per (group, CPU), written by that CPU only and read by anybody
//! without stopping anybody. CPU time is kept by the cell's [`Stopwatch`] (see [`crate::stopwatch`]).
//!
//! A cell is written under the exclusive borrow of its run queue, so a plain load and store suffice (no locked
//! instruction on the charge path). What is written often fills a cache line of its own or shares one with the cell's own reference
//! count, so writers on other CPUs are not disturbed.

use crate::stopwatch::{CpuClock, Stopwatch};
use crate::units::{CpuId, Nanos, VirtualTime};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The part of a window for which nothing may be here at a time without its beginning anew, one over it. 8: who sleeps for more than an eighth of its time is
/// not taken for somebody who wants all of it.
const IDLE_PARTS: u64 = 8;

/// Noise from a group's jumps is at least one in so many parts of the service that made them, however little of that it is in the weight of who is compared. 16:
/// with no such bound light tasks are evened out ever so finely, and a light child group beside them pays for it (0.58 of its due on average beside groups
/// of 10,000, for 0.67 with 16 and 0.76 with one; of all others more is right with less noise).
const BURST_PARTS: u64 = 16;

/// What one CPU knows about one group, published for the others.
///
/// An [`Arc`] puts its counts one alignment before it. Aligned by a line, that would be three lines; by half a line it is two, the counts
/// in the first half of them or in the half line before: the 64 bytes before the marks have no other neighbours either way.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct CpuCell {
    /// CPU time on this CPU of the group and its descendants.
    pub(crate) exec: Stopwatch,
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
    /// What a child got elsewhere between two looks lately that made V jump most, ns, in the lower half; and what competed here then, in shares, above.
    burst: AtomicU64,
    /// Whether anything of the group waits on this CPU.
    waits: AtomicBool,
    /// V and the clock at the start of the window over which CPUs are compared. Written seldom, as all behind it is: the last in the cell, where a
    /// line may have another allocation's bytes behind them.
    mark_virtual: AtomicU64,
    mark_at: AtomicU64,
    /// How far what competes inside the group on this CPU is on average before the mean of all that competes in it, in virtual time; zero where
    /// no child group competes.
    lead: AtomicI64,
}

#[cfg(not(loom))]
const _: () = assert!(
    core::mem::offset_of!(CpuCell, mark_virtual) == 64 && size_of::<CpuCell>() == 96,
    "what is written often fills a line"
);

impl CpuCell {
    fn new(clock: Arc<CpuClock>) -> CpuCell {
        CpuCell {
            exec: Stopwatch::new(clock),
            load: AtomicU64::new(0),
            runnable: AtomicU32::new(0),
            runnable_below: AtomicU32::new(0),
            entities: AtomicU32::new(0),
            spare: AtomicU32::new(0),
            virtual_time: AtomicU64::new(0),
            burst: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            mark_virtual: AtomicU64::new(0),
            mark_at: AtomicU64::new(0),
            lead: AtomicI64::new(0),
        }
    }

    #[inline]
    pub(crate) fn publish_runnable(&self, runnable: u32) {
        self.runnable.store(runnable, Relaxed);
    }

    #[inline]
    pub(crate) fn publish_virtual(&self, now: VirtualTime) {
        self.virtual_time.store(now.0, Relaxed);
    }

    pub(crate) fn publish_lead(&self, lead: i64) {
        self.lead.store(lead, Relaxed);
    }

    pub(crate) fn lead(&self) -> i64 {
        self.lead.load(Relaxed)
    }

    pub(crate) fn publish_burst(&self, service: u32, load: u32) {
        let both = u64::from(load) << u32::BITS | u64::from(service);
        self.burst.store(both, Relaxed);
    }

    #[inline]
    pub(crate) fn publish_waits(&self, waits: bool) {
        self.waits.store(waits, Relaxed);
    }

    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// By how much service virtual time jumped here lately, of what competes with `load` shares: no more than the child got that made it jump, and no less than
    /// [`BURST_PARTS`] say.
    pub(crate) fn burst(&self, load: u64) -> u64 {
        let both = self.burst.load(Relaxed);
        let (service, of) = (both & u64::from(u32::MAX), both >> u32::BITS);
        // Before the first there was none of either.
        service * load.clamp(of / BURST_PARTS, of) / of.max(1)
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

    /// Something is here, at `v`, where nothing was: a new window, since time in which nothing was wanted must not look like time in which nothing was given.
    pub(crate) fn begin_window(&self, v: VirtualTime, now: Nanos) {
        self.publish_virtual(v);
        self.mark(now);
    }

    /// Something is here again, at `v`, where nothing was since `left`. That time is no part of the window, which goes on. After more than a part of what the window had it begins anew. (Anew after any, it came to no more than a millisecond on
    /// a CPU whose only task slept for 10 us after each: that CPU never looked ahead of others, and of three such tasks on two CPUs one had a
    /// whole one.)
    pub(crate) fn resume_window(&self, v: VirtualTime, left: Nanos, now: Nanos) {
        let (gained, window) = self.gained(left);
        if (now - left).0 > window.0 / IDLE_PARTS {
            return self.begin_window(v, now);
        }
        self.publish_virtual(v);
        self.mark_virtual.store(v.0.wrapping_sub(gained), Relaxed);
        self.mark_at.store(now.0.saturating_sub(window.0), Relaxed);
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

/// The cells of one group, one for each CPU that has ever queued it: two in the group itself, then segments that are only added,
/// each twice as long as the one before, so that readers need no lock, two CPUs need little room, and the balancer of a machine with
/// hundreds finds the next cell without waiting for the one before.
#[derive(Debug, Default)]
pub(crate) struct CpuCells {
    /// Filled from the front, and before what is behind.
    first: [OnceLock<Owned>; FIRST_CELLS],
    more: OnceLock<Box<Segment>>,
}

/// A cell and whose it is.
type Owned = (CpuId, Arc<CpuCell>);

/// Cells in the group itself. A segment of their own would be two allocations, 64 bytes more.
const FIRST_CELLS: usize = 2;

#[derive(Debug)]
struct Segment {
    /// Filled from the front.
    slots: Box<[OnceLock<Owned>]>,
    next: OnceLock<Box<Segment>>,
}

impl Segment {
    fn boxed(slots: usize) -> Box<Segment> {
        Box::new(Segment {
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
            next: OnceLock::new(),
        })
    }
}

impl CpuCells {
    /// The cell of `cpu`, created at the first call. `clock` is asked only then. O(CPUs that met the group).
    pub(crate) fn of(&self, cpu: CpuId, clock: impl FnOnce() -> Arc<CpuClock>) -> Arc<CpuCell> {
        let mut clock = Some(clock);
        let (mut slots, mut next) = (&self.first[..], &self.more);
        loop {
            for slot in slots {
                // Of several CPUs that meet the group at once one takes the slot and the others go on to the next.
                let (owner, cell) = slot.get_or_init(|| {
                    let clock = clock.take().map_or_else(Arc::default, |clock| clock());
                    (cpu, Arc::new(CpuCell::new(clock)))
                });
                if *owner == cpu {
                    return Arc::clone(cell);
                }
            }
            let segment = next.get_or_init(|| Segment::boxed(2 * slots.len()));
            (slots, next) = (&segment.slots, &segment.next);
        }
    }

    /// Every cell with its CPU, without a lock.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CpuId, &CpuCell)> {
        let segments = core::iter::successors(self.more.get(), |segment| segment.next.get());
        let more = segments.flat_map(|segment| &segment.slots);
        // A slot is filled after all before it.
        let filled = self.first.iter().chain(more).map_while(OnceLock::get);
        filled.map(|(cpu, cell)| (*cpu, &**cell))
    }

    #[inline]
    pub(crate) fn exec(&self) -> Nanos {
        self.iter().map(|(_, cell)| Nanos(cell.exec.read())).sum()
    }

    /// The cell of that CPU, if it met the group. O(CPUs that did).
    #[inline]
    pub(crate) fn known_on(&self, cpu: CpuId) -> Option<&CpuCell> {
        let mut cells = self.iter();
        cells.find_map(|(owner, cell)| (owner == cpu).then_some(cell))
    }

    pub(crate) fn exec_on(&self, cpu: CpuId) -> Nanos {
        self.known_on(cpu)
            .map_or(Nanos::ZERO, |cell| Nanos(cell.exec.read()))
    }

    /// Whether anything of the group waits on any CPU. O(CPUs that met the group).
    pub(crate) fn anything_waits(&self) -> bool {
        self.iter().any(|(_, cell)| cell.waits())
    }

    pub(crate) fn load(&self) -> u64 {
        self.iter().map(|(_, cell)| cell.load()).sum()
    }

    pub(crate) fn runnable(&self) -> u32 {
        self.iter().map(|(_, cell)| cell.runnable()).sum()
    }

    /// The group's own tasks that are queued or running, and those of the CPUs that `work` which run something of the group or below it:
    /// one that has nothing to do keeps the chain of its last choice.
    pub(crate) fn occupancy(&self, work: impl Fn(CpuId) -> bool) -> (u32, u32) {
        self.iter()
            .fold((0, 0), |(runnable, running), (cpu, cell)| {
                let runs = cell.exec.runs() && work(cpu);
                (runnable + cell.runnable(), running + u32::from(runs))
            })
    }

    pub(crate) fn runnable_below(&self) -> u32 {
        self.iter()
            .map(|(_, cell)| cell.runnable_below.load(Relaxed))
            .sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_less_for_who_competes_with_less() {
        let cell = CpuCell::new(Arc::default());
        cell.publish_burst(100_000_000, 160 << 10);
        assert_eq!(cell.burst(80 << 10), 50_000_000);
        for load in [1, 1 << 10, 10 << 10] {
            assert_eq!(cell.burst(load), 6_250_000, "a sixteenth at least");
        }
        for load in [160 << 10, 200 << 10, u64::MAX] {
            assert_eq!(cell.burst(load), 100_000_000, "no more than there was");
        }
        cell.publish_burst(u32::MAX, u32::MAX);
        assert_eq!(cell.burst(u64::from(u32::MAX) - 1), u64::from(u32::MAX) - 1);
    }
}
