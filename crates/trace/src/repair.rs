//! Switches that a trace does not show. Some virtual machines' kernels leave out what certain tasks do in their own context, an idle task
//! or a thread: no switch leaves them, and nobody is woken by them but in interrupts. What was woken on such an idle CPU then seems
//! never to run, and such a thread never to leave. Who acts on a CPU shows who runs there. Since when is known as well, but for who was throttled: it
//! was ready all the time, and ran from when the limit's next period began, which only the limit's timer tells (`hrtimer_expire_entry` of
//! `sched_cfs_period_timer`, as `quotient record` has it).

use std::collections::{HashMap, HashSet, VecDeque};

use quotient_core::event::{Event, Kind, TaskId, TaskState};
use quotient_core::{CpuId, Nanos};

/// So many tasks may never be seen to leave a CPU, whatever the others do. Unit: tasks. Seen: two or three in five recordings of this kind of machine.
const SILENT_MIN: usize = 16;
/// And one for so many that are.
const SILENT_PART: usize = 8;
/// How many begins of limits' periods, and of throttles, are remembered. A task that was throttled longer ago is thought to have run since it was ready.
const PERIODS_KEPT: usize = 64;

/// A recording begins on one CPU after the other: what seems to be missing so soon after its first event may be from before another one's. Default
/// 1 ms; `perf` took 0.2 ms for two CPUs.
const BEGINS_WITHIN: Nanos = Nanos::from_millis(1);

/// Fills them in, event by event. Only for kernels' traces: where nothing is left out, a switch that does not fit is a fault, and filling
/// in another would hide it.
///
/// Memory grows with the tasks.
#[derive(Debug, Default)]
pub struct Repair {
    /// Who was last seen on each CPU, and when: idle since then, or at work there.
    running: HashMap<CpuId, (TaskId, Nanos)>,
    /// Since when each task has been ready to run: when it was woken, or left a CPU that it still wanted.
    ready: HashMap<TaskId, Nanos>,
    /// Tasks that a switch of the trace has left.
    seen_leaving: HashSet<TaskId>,
    /// Switches filled in that leave a task of which the trace has shown none.
    silent: HashMap<TaskId, u64>,
    /// When periods of limits began, as the trace tells it, oldest first.
    periods: VecDeque<Nanos>,
    /// When a CPU fell idle that a task left while it was still ready, oldest first: only a limit does that, or who moves a task.
    throttles: VecDeque<Nanos>,
    /// Tasks that were seen to leave like that.
    limited: HashSet<TaskId>,
    contradiction: Option<Contradiction>,
    count: u64,
    /// Switches between two tasks, or of one to idle, that were lost: see [`Repair::lost`].
    lost: u64,
    /// Switches that the trace shows.
    shown: u64,
    /// The time of the first event.
    begin: Option<Nanos>,
    /// Whether events were lost: then it is not known who was woken before a CPU is seen again.
    has_lost: bool,
}

/// A switch that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What the trace should have shown. Its time may be before that of events already seen.
    pub event: Event,
    /// The task that it leaves, if that is not the idle one. The trace tells neither whether it slept then nor who wakes it.
    pub silent: Option<TaskId>,
}

/// Switches were filled in because the trace showed none that leaves a task; then one came. So the others were faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Whom they left.
    pub task: TaskId,
    /// How many there were.
    pub switches: u64,
}

impl Repair {
    /// Switches filled in so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Switches that leave a CPU for whom another one brought there, though the trace shows other switches that leave that task: one between was lost, of those
    /// that no kernel leaves out. It is not known when, so none is filled in. O(1).
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Switches that the trace shows so far. O(1).
    pub fn shown(&self) -> u64 {
        self.shown
    }

    /// Tasks that the trace never shows leaving a CPU, though others acted there after them. O(1).
    pub fn silent_count(&self) -> usize {
        self.silent.len()
    }

    /// Whether `task` is one of them, as far as the trace was read. O(1).
    pub fn is_silent(&self, task: TaskId) -> bool {
        self.silent.contains_key(&task)
    }

    /// A period of a limit begins, by the kernel's own timer: who was throttled may run from now on. To be told before the events behind it. O(1).
    pub fn period(&mut self, at: Nanos) {
        keep(&mut self.periods, at);
    }

    /// The switch that is missing before this event, if one is: from idle to who acts here, when that one was ready and the CPU idle; or
    /// from a task that no switch has left yet to who acts in its place. To be called with each event, and taken before it. O(1).
    pub fn missing(&mut self, event: &Event) -> Option<Missing> {
        self.begin.get_or_insert(event.time);
        self.shown += u64::from(matches!(event.kind, Kind::Switch { .. }));
        self.lost += u64::from(self.is_after_lost(event));
        let missing = self.before(event);
        if let Some(Missing { event, silent }) = missing {
            self.count += 1;
            if let Some(task) = silent {
                *self.silent.entry(task).or_default() += 1;
            }
            self.note(&event);
        }
        if let Kind::Switch { prev, .. } = event.kind
            && !prev.is_idle()
            && self.seen_leaving.insert(prev)
            && let Some(switches) = self.silent.remove(&prev)
        {
            self.count -= switches;
            self.lost += switches;
            self.contradiction = Some(Contradiction {
                task: prev,
                switches,
            });
        }
        self.note(event);
        missing
    }

    /// What the last event says against switches that were filled in before it. O(1).
    pub fn contradiction(&mut self) -> Option<Contradiction> {
        self.contradiction.take()
    }

    fn before(&self, event: &Event) -> Option<Missing> {
        let actor = match event.kind {
            Kind::Switch { prev, .. } => prev,
            // Interrupts are told as nobody's, whoever they interrupt.
            Kind::Waking { waker, .. } if !waker.is_idle() => waker,
            _ => return None,
        };
        let Some((running, since)) = self.running.get(&event.cpu).copied() else {
            return self.first(event, actor);
        };
        if running == actor {
            return None;
        }
        let ready = self.ready.get(&actor).copied();
        let silent = (!running.is_idle()).then_some(running);
        let (state, at) = match silent {
            None => (
                TaskState::Runnable,
                self.started(actor, (ready?, since), event.time),
            ),
            Some(task) if self.seen_leaving.contains(&task) => return None,
            Some(task) if !self.may_be_silent(task) => return None,
            Some(_) => (TaskState::Sleeping, ready.unwrap_or(since).max(since)),
        };
        let kind = Kind::Switch {
            prev: running,
            state,
            next: actor,
        };
        Some(Missing {
            event: Event::new(at.min(event.time), event.cpu, kind),
            silent,
        })
    }

    /// Whether a switch between the last one of this CPU and this one was lost.
    fn is_after_lost(&self, event: &Event) -> bool {
        let Kind::Switch { prev, .. } = event.kind else {
            return false;
        };
        let running = self.running.get(&event.cpu);
        running.is_some_and(|(task, _)| *task != prev && self.seen_leaving.contains(task))
    }

    /// The switch that is missing before the first event of a CPU, if one is: who acts there and was woken since the trace began, or left another CPU, has
    /// not run there all that time. The CPU was idle, for else its own switch would have been the first.
    fn first(&self, event: &Event, actor: TaskId) -> Option<Missing> {
        let ready = *self.ready.get(&actor)?;
        let begin = self.begin.unwrap_or(event.time);
        if actor.is_idle() || self.has_lost || ready < begin + BEGINS_WITHIN {
            return None;
        }
        let kind = Kind::Switch {
            prev: TaskId::IDLE,
            state: TaskState::Runnable,
            next: actor,
        };
        Some(Missing {
            event: Event::new(ready.min(event.time), event.cpu, kind),
            silent: None,
        })
    }

    /// When a task began to run that has been ready since then on a CPU that has been idle since then: at once, unless a limit held it. It did if the CPU
    /// fell idle though the task was ready, or if the task is one that a limit holds at times and the throttle before has not ended yet.
    fn started(&self, task: TaskId, (ready, idle): (Nanos, Nanos), end: Nanos) -> Nanos {
        let since = ready.max(idle);
        let last = |moments: &VecDeque<Nanos>| {
            let before = moments.iter().rev().find(|moment| **moment <= since);
            before.copied()
        };
        let is_held = || {
            ready <= idle || last(&self.throttles).is_some_and(|at| Some(at) > last(&self.periods))
        };
        if !self.limited.contains(&task) || !is_held() {
            return since;
        }
        let mut later = self.periods.iter().filter(|period| **period > since);
        later
            .next()
            .copied()
            .filter(|at| *at < end)
            .unwrap_or(since)
    }

    /// Whether there may be one more task that never leaves. A trace in which half of them seem not to is broken.
    fn may_be_silent(&self, task: TaskId) -> bool {
        self.silent.len() < SILENT_MIN + self.seen_leaving.len() / SILENT_PART
            || self.silent.contains_key(&task)
    }

    fn note(&mut self, event: &Event) {
        match event.kind {
            Kind::Switch { prev, state, next } => {
                self.running.insert(event.cpu, (next, event.time));
                if state.is_runnable() && !prev.is_idle() {
                    self.ready.insert(prev, event.time);
                    if next.is_idle() {
                        self.limited.insert(prev);
                        keep(&mut self.throttles, event.time);
                    }
                } else if state.is_over() {
                    self.ready.remove(&prev);
                    self.seen_leaving.remove(&prev);
                    self.limited.remove(&prev);
                }
            }
            Kind::Waking { task, waker, .. } => {
                self.ready.insert(task, event.time);
                if let Some((running, seen)) = self.running.get_mut(&event.cpu)
                    && *running == waker
                    && !waker.is_idle()
                {
                    *seen = event.time;
                }
            }
            Kind::Wakeup { task, .. } | Kind::Spawn { task, .. } => {
                self.ready.insert(task, event.time);
            }
            Kind::Lost { .. } => {
                self.has_lost = true;
                self.running.remove(&event.cpu);
            }
            _ => {}
        }
    }
}

fn keep(moments: &mut VecDeque<Nanos>, at: Nanos) {
    if moments.len() == PERIODS_KEPT {
        moments.pop_front();
    }
    moments.push_back(at);
}
