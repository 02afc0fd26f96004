//! The floor: whoever waits on a CPU has a turn there now and then, whatever the groups' times say.
//!
//! A group has one virtual time on all CPUs, so who is ahead waits, here as elsewhere. That is no reason to wait for good, but it can come to that: a group
//! has its part through those of its tasks that have CPUs, and one that is bound to this CPU, or that no look around moves, is passed over at every
//! choice here. (Three equal groups on four CPUs, one with two spinners that may run anywhere and four bound to the last CPU: those two had the group's two CPUs,
//! and the four had nothing.) Under the kernel's rules that cannot be: its virtual times are of one CPU.
//!
//! So each timeline in which groups stand looks now and then for those that were passed over, and the one that missed most has the next turn: an entity that
//! waited here while its weight's part of what the timeline had came to more than [`PASSED_OVER_MAX`]. What it then gets it is charged like anything else: nothing
//! is given, only the order changes. And it is bounded what that can cost those who should have had the turn: looks are [`INTERVAL`] of the timeline's service
//! apart, and as long after such a turn as [`PARTS`] times what it took. One has such a turn at a time, and only the first [`LOOKED_AT_MAX`] that wait in a timeline are
//! looked at: with more, or where many are passed over at once, who comes later waits for longer, or for good.
//!
//! It seldom stays at that one turn: who was passed over is then ahead here and owed less elsewhere, balancing sees another picture, and mostly
//! finds a place for everybody (those four have their 0.25 of a CPU each).
//!
//! Costs: a comparison at choices among groups, and a look at up to [`LOOKED_AT_MAX`] entities once an interval.

use super::RunQueue;
use crate::gates::Gates;
use crate::node::NONE;
use crate::units::Nanos;

/// Service of a timeline from one look to the next. Unit: nanoseconds. 64 ms: some twenty turns, so that who waits for its siblings' turns is not seen twice.
const INTERVAL: u64 = 64_000_000;

/// What an entity may miss of its part before it has a turn. Unit: nanoseconds. 64 ms: beside one of equal weight it then waits for 0.2 s at most.
const PASSED_OVER_MAX: u64 = 64_000_000;

/// The part of a timeline's service that may go to such turns, at most, one over it.
const PARTS: u64 = 32;

/// Waiting entities looked at each time; of more, those that come first. 256 take some 2 us.
const LOOKED_AT_MAX: usize = 256;

/// Unit in which an entity notes what it missed, ns: 62.5 us, so that 16 bits hold 4 s.
const GRAIN: u64 = 62_500;

/// What a timeline remembers of its looks.
#[derive(Debug)]
pub(crate) struct Floor {
    /// When it is worth asking again.
    look_at: Nanos,
    /// Service of the timeline as of the last look, ns.
    service: u64,
    /// Who has a turn because of that look, or `NONE` once it is over, and its service before it, ns.
    raised: u32,
    raised_at: u64,
    /// What it got in that turn, ns.
    taken: u64,
}

impl Default for Floor {
    fn default() -> Floor {
        Floor {
            look_at: Nanos::ZERO,
            service: 0,
            raised: NONE,
            raised_at: 0,
            taken: 0,
        }
    }
}

impl<T, G: Gates> RunQueue<T, G> {
    /// Who waits at `level` and was passed over for so long that it has the next turn, if it is time to look and anybody was.
    #[inline]
    pub(super) fn passed_over(&mut self, level: u32) -> Option<u32> {
        let floor = &self.timelines[level as usize].floor;
        if floor.raised != NONE {
            self.end_raised(level);
        }
        let is_due = self.last >= self.timelines[level as usize].floor.look_at;
        is_due.then(|| self.look_for_passed_over(level)).flatten()
    }

    /// The turn of who was raised is over, since others are chosen from. Whatever it gets later it gets by its own right. (Counted on, one that came to
    /// have more than a thirty-third of the timeline let nobody be raised any more: another had nothing for as long as the machine ran.)
    #[cold]
    #[inline(never)]
    fn end_raised(&mut self, level: u32) {
        let floor = &self.timelines[level as usize].floor;
        let got = self
            .service_of(floor.raised)
            .saturating_sub(floor.raised_at);
        let all = self.timelines[level as usize].cell.exec.read();
        let floor = &mut self.timelines[level as usize].floor;
        // No more than everybody had, should somebody else be in its place by now.
        floor.taken = got.min(all.saturating_sub(floor.service));
        floor.raised = NONE;
    }

    #[cold]
    #[inline(never)]
    fn look_for_passed_over(&mut self, level: u32) -> Option<u32> {
        let timeline = &self.timelines[level as usize];
        let service = timeline.cell.exec.read();
        let since = service.saturating_sub(timeline.floor.service);
        let left = INTERVAL
            .max(timeline.floor.taken.saturating_mul(PARTS))
            .saturating_sub(since);
        if left > 0 {
            self.timelines[level as usize].floor.look_at = self.last + Nanos(left);
            return None;
        }
        let load = u128::from(timeline.average.load().max(1));
        let mut waiting = Vec::new();
        timeline.for_each_waiting(&self.slab.nodes, LOOKED_AT_MAX, &mut |index| {
            waiting.push(index)
        });
        let mut first = None;
        for index in waiting {
            let node = self.slab.get_mut(index);
            let part = u128::from(since) * u128::from(node.shares) / load / u128::from(GRAIN);
            // Who has had a turn since the last look is only marked.
            let missed = match node.passed_over {
                0 => 1,
                _ => u16::try_from(part).unwrap_or(u16::MAX).max(1),
            };
            node.passed_over = node.passed_over.saturating_add(missed);
            let passed_over = node.passed_over;
            if u64::from(passed_over) * GRAIN > PASSED_OVER_MAX
                && first.is_none_or(|(most, _)| passed_over > most)
            {
                first = Some((passed_over, index));
            }
        }
        let raised = first.map_or(NONE, |(_, index)| index);
        self.timelines[level as usize].floor = Floor {
            look_at: self.last + Nanos(INTERVAL),
            service,
            raised,
            raised_at: self.service_of(raised),
            taken: 0,
        };
        first.map(|(_, index)| index)
    }

    /// Service that an entity has had here, ns; of a place that somebody else has by now, anything.
    fn service_of(&self, index: u32) -> u64 {
        match self.slab.nodes.get(index as usize) {
            Some(node) if node.owned != NONE => {
                self.timelines[node.owned as usize].cell.exec.read()
            }
            Some(node) => node.sum_exec,
            None => 0,
        }
    }
}
