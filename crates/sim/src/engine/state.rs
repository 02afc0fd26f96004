//! What the engine keeps: CPUs, tasks, and what tasks wait for.

use super::queue::Queue;
use crate::agenda::NEVER;
use crate::costs::Line;
use crate::random::{Random, Span};
use quotient_core::{Gates, TaskEntity};
use quotient_trace::TaskState;
use std::collections::VecDeque;

/// The run queue of a simulated CPU.
pub(crate) type RunQueue = quotient_core::RunQueue<u32, SimulatorGates>;

/// What the core does here: limits, always. Load averages are a modelled cost (`Settings`), events are told by the engine, which
/// knows more, and checks are made by the fuzzer at its own times.
pub(crate) struct SimulatorGates;

impl Gates for SimulatorGates {
    #[inline(always)]
    fn bandwidth() -> bool {
        true
    }

    #[inline(always)]
    fn load_averages() -> bool {
        false
    }

    #[inline(always)]
    fn events() -> bool {
        false
    }

    #[inline(always)]
    fn checks() -> bool {
        false
    }
}

/// "No such task, CPU or request."
pub(crate) const NONE: u32 = u32::MAX;

/// One CPU.
pub(crate) struct Cpu {
    pub(crate) queue: Queue,
    /// The task that the queue has as current.
    pub(crate) current: u32,
    /// The task that a trace shows here, and how it left if it is no longer current.
    pub(crate) shown: u32,
    pub(crate) left: TaskState,
    /// Since when the current task has had the CPU, or it has idled.
    pub(crate) since: u64,
    /// When the current task's step ends.
    pub(crate) work_end: u64,
    pub(crate) next_tick: u64,
    /// When its budget is used up, if that is looked at exactly.
    pub(crate) budget_end: u64,
    pub(crate) next_balance: u64,
    /// From when on a choice looks whether to pull, as a tick does.
    pub(crate) look_from: u64,
    /// Costs that the task of this CPU has still to pay, ns.
    pub(crate) unpaid: u64,
    /// The current task should give way.
    pub(crate) need_resched: bool,
    /// The current task's next step is to be looked at.
    pub(crate) ready: bool,
    /// Already in the list of CPUs to look at.
    pub(crate) listed: bool,
    /// A class above runs here, or nobody at all because the CPU is gone.
    pub(crate) taken: bool,
    pub(crate) offline: bool,
    /// Waiting and runnable tasks as last counted.
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) node: u32,
    /// Speed in thousandths of a core of its own.
    pub(crate) speed: u64,
    /// The line of its lock.
    pub(crate) lock: Line,
}

impl Cpu {
    pub(crate) fn new(queue: Queue, node: u32) -> Cpu {
        Cpu {
            queue,
            current: NONE,
            shown: NONE,
            left: TaskState::Sleeping,
            since: 0,
            work_end: NEVER,
            next_tick: NEVER,
            budget_end: NEVER,
            next_balance: 0,
            look_from: 0,
            unpaid: 0,
            need_resched: false,
            ready: false,
            listed: false,
            taken: false,
            offline: false,
            waiting: 0,
            running: 0,
            node,
            speed: 1000,
            lock: Line::default(),
        }
    }

    /// Wall time that `work` takes at this CPU's speed.
    #[inline]
    pub(crate) fn to_wall(&self, work: u64) -> u64 {
        if self.speed == 1000 {
            work
        } else {
            work.saturating_mul(1000).div_ceil(self.speed)
        }
    }

    /// Work done in `wall` at this CPU's speed.
    #[inline]
    pub(crate) fn to_work(&self, wall: u64) -> u64 {
        if self.speed == 1000 {
            wall
        } else {
            wall.saturating_mul(self.speed) / 1000
        }
    }
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Has not begun.
    Unborn,
    /// In a run queue, waiting or running.
    Runnable,
    /// Waits for something.
    Waiting,
    /// Has ended.
    Over,
}

/// One task, on two cache lines: thousands of them take turns, and which one is next cannot be foreseen.
#[repr(align(64))]
pub(crate) struct Task {
    pub(crate) entity: TaskEntity,
    /// Index of its group; 0 is the root.
    pub(crate) group: u32,
    /// Its next step, among those of all programs.
    pub(crate) step: u32,
    pub(crate) workload: u32,
    /// Where it runs, waits or ran last.
    pub(crate) cpu: u32,
    /// Work left of the present step while it is not running, ns.
    pub(crate) remaining: u64,
    /// How long it has run before it was last given a CPU, ns.
    pub(crate) ran: u64,
    pub(crate) began: u64,
    pub(crate) stamp: u64,
    pub(crate) request: u32,
    /// When it last became runnable without running.
    pub(crate) ready_at: u64,
    pub(crate) life: Life,
    /// Its next start follows a wake-up.
    pub(crate) woken: bool,
    /// The work left is inside the kernel.
    pub(crate) in_kernel: bool,
    pub(crate) random: Random,
}

const _: () = assert!(size_of::<Task>() == 128);

/// Tokens, or those who wait for one.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    pub(crate) tokens: u64,
    pub(crate) waiting: VecDeque<u32>,
}

/// A meeting of several tasks.
#[derive(Debug)]
pub(crate) struct Barrier {
    pub(crate) parties: u32,
    pub(crate) waiting: Vec<u32>,
}

/// Requests, or those who wait for one. Bounded: what arrives beyond [`REQUESTS_MAX`] is refused and counted.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    /// Request numbers, one for each part.
    pub(crate) parts: VecDeque<u32>,
    pub(crate) waiting: VecDeque<u32>,
}

/// Most parts that wait in one queue: an overloaded open loop must not fill the memory.
pub(crate) const REQUESTS_MAX: usize = 1 << 20;

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) arrived: u64,
    /// CPU time that it asks for, ns.
    pub(crate) work: u64,
    /// Parts not done, or the next free place.
    pub(crate) left: u32,
    /// The channel of who waits for it.
    pub(crate) reply: u32,
}

/// A request of the plan's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spanning {
    /// When it began; [`NEVER`] before.
    pub(crate) begun: u64,
    /// Parts not done.
    pub(crate) left: u32,
    parts: u32,
}

impl Spanning {
    pub(crate) fn new(parts: &u32) -> Spanning {
        Spanning {
            begun: NEVER,
            left: *parts,
            parts: *parts,
        }
    }

    /// One part is done. Returns when it began if it was the last; then it may begin again, as in a loop.
    pub(crate) fn part_done(&mut self) -> Option<u64> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return None;
        }
        let begun = self.begun;
        *self = Spanning::new(&self.parts);
        (begun != NEVER).then_some(begun)
    }
}

/// Requests by number, free numbers linked.
#[derive(Debug)]
pub(crate) struct Requests {
    list: Vec<Request>,
    free: u32,
}

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests {
            list: Vec::new(),
            free: NONE,
        }
    }

    /// `reply` is the channel of who waits for it; [`NONE`]: nobody.
    pub(crate) fn open(&mut self, arrived: u64, work: u64, parts: u32, reply: u32) -> u32 {
        let request = Request {
            arrived,
            work,
            left: parts,
            reply,
        };
        if self.free == NONE {
            self.list.push(request);
            return self.list.len() as u32 - 1;
        }
        let index = self.free;
        self.free = self.list[index as usize].left;
        self.list[index as usize] = request;
        index
    }

    /// What a request asks for, ns.
    pub(crate) fn work(&self, index: u32) -> u64 {
        self.list
            .get(index as usize)
            .map_or(0, |request| request.work)
    }

    /// One part is done. Returns when the request arrived and where its answer is waited for if it was the last.
    pub(crate) fn part_done(&mut self, index: u32) -> Option<(u64, u32)> {
        let request = self.list.get_mut(index as usize)?;
        request.left -= 1;
        if request.left > 0 {
            return None;
        }
        let answer = (request.arrived, request.reply);
        request.left = self.free;
        self.free = index;
        Some(answer)
    }
}

/// A source on its way.
pub(crate) struct Arrivals {
    pub(crate) queue: u32,
    pub(crate) gap: Span,
    pub(crate) parts: u32,
    pub(crate) times: Vec<u64>,
    pub(crate) works: Vec<u64>,
    /// Index of the next exact time.
    pub(crate) next: usize,
    pub(crate) random: Random,
}

/// CPUs with nothing to run, as bits.
#[derive(Debug)]
pub(crate) struct IdleCpus {
    words: Vec<u64>,
    count: u32,
}

impl IdleCpus {
    pub(crate) fn all(cpus: u32) -> IdleCpus {
        let mut idle = IdleCpus {
            words: vec![0; (cpus as usize).div_ceil(64)],
            count: 0,
        };
        for cpu in 0..cpus {
            idle.set(cpu, true);
        }
        idle
    }

    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    #[inline]
    pub(crate) fn contains(&self, cpu: u32) -> bool {
        self.words[cpu as usize / 64] >> (cpu % 64) & 1 == 1
    }

    /// Returns whether that is new.
    #[inline]
    pub(crate) fn set(&mut self, cpu: u32, is_idle: bool) -> bool {
        let changed = self.contains(cpu) != is_idle;
        if changed {
            self.words[cpu as usize / 64] ^= 1 << (cpu % 64);
            self.count = if is_idle {
                self.count + 1
            } else {
                self.count - 1
            };
        }
        changed
    }

    /// The first idle CPU from `first` up to before `end`. O(CPUs / 64).
    pub(crate) fn first_in(&self, first: u32, end: u32) -> Option<u32> {
        let mut at = first;
        while at < end {
            let word = self.words[at as usize / 64] >> (at % 64);
            if word != 0 {
                let found = at + word.trailing_zeros();
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_cpus_are_found_in_ranges() {
        let mut idle = IdleCpus::all(130);
        assert_eq!((idle.count(), idle.first_in(0, 130)), (130, Some(0)));
        for cpu in 0..129 {
            idle.set(cpu, false);
        }
        assert_eq!(idle.first_in(0, 129), None);
        assert_eq!(idle.first_in(5, 130), Some(129));
        assert_eq!(idle.count(), 1);
    }

    #[test]
    fn numbers_of_requests_are_used_again() {
        let mut requests = Requests::new();
        let (one, two) = (requests.open(5, 0, 2, NONE), requests.open(6, 9, 1, 4));
        assert_eq!(requests.part_done(one), None);
        assert_eq!(requests.part_done(two), Some((6, 4)));
        assert_eq!(requests.open(7, 0, 1, NONE), two);
        assert_eq!(requests.part_done(one), Some((5, NONE)));
        assert_eq!(requests.part_done(99), None);
    }
}
