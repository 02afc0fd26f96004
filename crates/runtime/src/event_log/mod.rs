//! The recorder: what happens on each virtual CPU, in a ring of bounded size, in the words of `quotient_core::event`.
//!
//! # Who writes what
//! Each virtual CPU has a ring behind a small lock of its own. The virtual CPU writes its switches and throttles into it; whoever
//! wakes or spawns a task writes that into the ring of the task's home. The lock is a leaf, held for a few instructions. A full
//! ring forgets its oldest events and counts them.
//!
//! Everything is behind the gate `events`: no call comes here while nobody in the process records. The gate belongs to the
//! process, the rings to a scheduler: one that does not record has rings of no size, and its calls end at that.
//!
//! # Order
//! What happens to threads that bear long polls is written elsewhere ([`pauses`]), by those who must not wait for a ring. A proxy
//! appears under the name of the task whose poll it stands for.
//!
//! Events carry the scheduler's clock, read before the event can have consequences (a wake-up is stamped before the task can be
//! seen by its virtual CPU). A ring is not quite in order, because wakers write into it too; [`Recording::drain`] sorts, and holds
//! back the last [`SETTLE`], in which somebody may still be about to write.

mod limits;
mod pauses;
mod ring;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use crossbeam_utils::CachePadded;
use quotient_core::event::{
    Amount, Definition, Event, GroupId, GroupInfo, Kind, Sink, TaskId, TaskInfo, TaskState,
};
use quotient_core::{Enqueue, Gates, Nanos};
use quotient_keys::{EnableGuard, FlipError};

use self::limits::{Seen, limit_events, refill_events};
pub(crate) use self::pauses::PauseLog;
use self::ring::Ring;
use crate::gates::{self, RunQueue, RuntimeGates};
use crate::scheduler::Scheduler;
use crate::shared::{Shared, cpu_id};
use crate::task_context::Task;

/// Events younger than this are not drained while recording goes on. Unit: nanoseconds. Default 10 ms: a waker that the host
/// preempts between reading the clock and writing is back by then.
const SETTLE: Nanos = Nanos(10_000_000);
/// Largest ring. Unit: events; 512 MiB of them.
const CAPACITY_MAX: usize = 1 << 24;

/// Why recording cannot start.
#[derive(Debug)]
pub enum RecordError {
    /// A recording of this scheduler is going on already.
    AlreadyRecording,
    /// The number of events for each virtual CPU is outside 1 to 16,777,216.
    Capacity(usize),
    /// The code behind the gate cannot be rewritten now.
    Flip(FlipError),
}

impl fmt::Display for RecordError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::AlreadyRecording => {
                formatter.write_str("a recording of this scheduler is going on already")
            }
            RecordError::Capacity(value) => write!(
                formatter,
                "{value} events for each virtual CPU: 1 to {CAPACITY_MAX} are allowed"
            ),
            RecordError::Flip(error) => write!(formatter, "cannot switch the recorder on: {error}"),
        }
    }
}

impl std::error::Error for RecordError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RecordError::Flip(error) => Some(error),
            _ => None,
        }
    }
}

/// How much came out of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Events that were handed over.
    pub events: u64,
    /// Events that were lost since the last drain because a ring was full.
    pub lost: u64,
}

/// All rings of a scheduler.
pub(crate) struct EventLog {
    rings: Box<[CachePadded<Mutex<Ring>>]>,
    /// Limits and their counters at the last look, by group; what a refill did is seen by comparing.
    limits: Mutex<HashMap<u32, Seen>>,
}

impl EventLog {
    pub(crate) fn new(vcpus: usize) -> EventLog {
        EventLog {
            rings: (0..vcpus).map(|_| CachePadded::default()).collect(),
            limits: Mutex::default(),
        }
    }

    /// Nothing panics under this lock but an allocation, and half an event is none.
    fn ring(&self, index: usize) -> MutexGuard<'_, Ring> {
        self.rings[index]
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    fn limits(&self) -> MutexGuard<'_, HashMap<u32, Seen>> {
        self.limits
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// A task's poll begins, or the turn of one that another thread bears.
    #[cold]
    pub(crate) fn begin(&self, index: usize, task: &mut Task, now: Nanos) {
        let id = number(task);
        let since = task.owned_mut().since;
        let group = task.owned_mut().group.clone();
        let limited: Vec<_> = std::iter::successors(Some(&group.core), |group| group.parent())
            .filter(|group| RuntimeGates::bandwidth() && group.limit().is_some())
            .cloned()
            .collect();
        let mut ring = self.ring(index);
        if ring.capacity == 0 {
            return;
        }
        if stands_for_a_task(task) {
            ring.place(index, now, id, &group);
        } else {
            ring.name(index, now, id, task.context().location, &group);
        }
        if since > now {
            // A thief read its clock before the task that it took stopped elsewhere: in between it runs nobody.
            ring.switch(index, now, TaskId::IDLE);
        }
        ring.switch(index, now.max(since), id);
        ring.polled = None;
        for group in limited {
            let known = |(known, _): &(Arc<_>, bool)| Arc::ptr_eq(known, &group);
            if !ring.throttled.iter().any(known) {
                ring.throttled.push((group, false));
            }
        }
    }

    /// The poll in progress ended at `now`, and its task is billed for `billed`.
    #[cold]
    pub(crate) fn polled(&self, index: usize, billed: Nanos, now: Nanos) {
        let mut ring = self.ring(index);
        ring.polled = Some(now);
        let task = ring.current;
        let ran = now.saturating_sub(ring.since);
        if !task.is_idle() && ran != billed {
            let time = Amount::of_nanos(ran).get() - Amount::of_nanos(billed).get();
            let time = Amount::new(time);
            ring.push(index, now, Kind::Uncharged { task, time });
        }
    }

    /// After [`EventLog::polled`]: what the task ran beyond its poll ended at `now`, `excluded` of it not charged, `extra` charged
    /// besides.
    #[cold]
    pub(crate) fn polled_beyond(&self, index: usize, excluded: Nanos, extra: Nanos, now: Nanos) {
        let mut ring = self.ring(index);
        ring.polled = Some(now);
        let task = ring.current;
        if !task.is_idle() && excluded != extra {
            let time = Amount::of_nanos(excluded).get() - Amount::of_nanos(extra).get();
            let time = Amount::new(time);
            ring.push(index, now, Kind::Uncharged { task, time });
        }
    }

    /// What becomes of the task that was polled; the switch follows when somebody else runs.
    #[cold]
    pub(crate) fn end(&self, index: usize, state: TaskState, now: Nanos) {
        let mut ring = self.ring(index);
        if ring.current.is_idle() {
            // Recording began during this poll.
            return;
        }
        ring.state = Some(state);
        if state.is_over() {
            let task = ring.current;
            ring.known.remove(&task);
            ring.push(index, now, Kind::Exit { task });
        }
    }

    /// The poll in progress was taken off virtual CPU `index`: its thread goes on with it.
    #[cold]
    pub(crate) fn detached(&self, index: usize, task: TaskId, now: Nanos) {
        self.ring(index).push(index, now, Kind::Detach { task });
    }

    /// The virtual CPU returns to the host.
    #[cold]
    pub(crate) fn leave(&self, index: usize, now: Nanos) {
        let mut ring = self.ring(index);
        ring.switch(index, now, TaskId::IDLE);
        ring.polled = None;
    }

    /// A switch may have throttled groups here, or let them go. A group counts as throttled while one above it is.
    #[cold]
    pub(crate) fn look_at_throttles(&self, index: usize, queue: &RunQueue<Task>, now: Nanos) {
        let mut known = {
            let mut ring = self.ring(index);
            if ring.throttled.is_empty() {
                return;
            }
            std::mem::take(&mut ring.throttled)
        };
        let mut changes = Vec::new();
        for (core, was_throttled) in &mut known {
            let is_throttled = queue.is_throttled(core);
            if is_throttled != *was_throttled {
                *was_throttled = is_throttled;
                changes.push((GroupId(core.id()), is_throttled));
            }
        }
        known.retain(|(core, is_throttled)| *is_throttled || core.limit().is_some());
        let mut ring = self.ring(index);
        ring.throttled = known;
        for (group, is_throttled) in changes {
            if is_throttled {
                // The task that was polled last has stopped; its switch must come before the throttle.
                ring.switch(index, now, TaskId::IDLE);
                ring.push(index, now, Kind::Throttle { group });
            } else {
                ring.push(index, now, Kind::Unthrottle { group });
            }
        }
    }

    /// `task` was woken, or is new, and goes to `target`; its waker runs on `waker_on`, if on any. Called before anybody can see it.
    #[cold]
    pub(crate) fn wake(
        &self,
        task: &mut Task,
        kind: Enqueue,
        target: usize,
        waker_on: Option<usize>,
        now: Nanos,
    ) {
        let (waker, now) = match waker_on {
            Some(index) => {
                let ring = self.ring(index);
                (ring.current, ring.polled.unwrap_or(now))
            }
            None => (TaskId::IDLE, now),
        };
        let id = number(task);
        let group = task.owned_mut().group.clone();
        let mut ring = self.ring(target);
        if ring.capacity == 0 {
            return;
        }
        let on = cpu_id(target);
        let event = match kind {
            Enqueue::New => {
                ring.name(target, now, id, task.context().location, &group);
                Kind::Spawn {
                    task: id,
                    target: on,
                    parent: waker,
                }
            }
            // It waited before, and goes on waiting elsewhere.
            Enqueue::Migrate => return,
            _ => Kind::Wakeup {
                task: id,
                target: on,
                waker,
            },
        };
        ring.push(waker_on.unwrap_or(target), now, event);
    }

    /// Tasks that another virtual CPU pulled.
    #[cold]
    pub(crate) fn migrate(&self, task: &mut Task, from: usize, to: usize, now: Nanos) {
        let kind = Kind::Migrate {
            task: number(task),
            from: cpu_id(from),
            to: cpu_id(to),
        };
        self.ring(to).push(to, now, kind);
    }

    /// Limits may have been written, pools refilled: writes down what changed since the last look. O(groups).
    #[cold]
    pub(crate) fn look_at_limits(&self, shared: &Shared, now: Nanos) {
        self.compare_limits(shared, now, false);
    }

    /// As `look_at_limits`; at the `start` of a recording the limits are news, and what their refills did before is not.
    fn compare_limits(&self, shared: &Shared, now: Nanos, start: bool) {
        if self.ring(0).capacity == 0 {
            return;
        }
        let groups = shared.all_groups();
        let mut limits = self.limits();
        let mut events = Vec::new();
        for group in groups {
            let core = &group.core;
            let limit = core.limit();
            if limit.is_none() && !limits.contains_key(&core.id()) {
                continue;
            }
            let seen = limits.entry(core.id()).or_default();
            if limit != seen.limit {
                seen.limit = limit;
                events.extend(limit_events(GroupId(core.id()), limit));
            }
            let refills = refill_events(core, seen);
            if !start {
                events.extend(refills);
            }
        }
        let mut ring = self.ring(0);
        for kind in events {
            ring.push(0, now, kind);
        }
    }

    fn start(&self, capacity: usize) -> bool {
        if self.ring(0).capacity != 0 {
            return false;
        }
        for index in 0..self.rings.len() {
            self.ring(index).capacity = capacity;
        }
        true
    }

    fn stop(&self) {
        for index in 0..self.rings.len() {
            self.ring(index).stop();
        }
        self.limits().clear();
    }
}

/// What a task is called: the low 32 bits of its number; 0 stands for nobody. A proxy is called as the task whose poll it stands for, which
/// appears nowhere else meanwhile: so a long poll is a task that runs by turns.
fn number(task: &mut Task) -> TaskId {
    if let Some(bearer) = task.owned_mut().bearer() {
        return bearer.shown();
    }
    shown(task.id().number())
}

/// Whether it is a proxy of a task's poll.
fn stands_for_a_task(task: &mut Task) -> bool {
    let bearer = task.owned_mut().bearer();
    bearer.is_some_and(|bearer| bearer.bears_a_task())
}

/// See [`number`].
pub(crate) fn shown(number: u64) -> TaskId {
    TaskId((number as u32).max(1))
}

/// Recording of one scheduler's events, from [`Scheduler::record`] until it is dropped.
pub struct Recording {
    shared: Arc<Shared>,
    _gate: EnableGuard,
}

impl fmt::Debug for Recording {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recording").finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Records switches, wake-ups, throttles and refills into a ring of `capacity` events for each virtual CPU (32 bytes each; a
    /// full ring forgets the oldest), until the result is dropped. The writers of the crate `quotient-trace` are sinks for it.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    /// # runtime.block_on(async {
    /// let scheduler = quotient::Scheduler::builder().build().unwrap();
    /// let recording = scheduler.record(10_000).unwrap();
    /// let group = scheduler.group("tenants/acme").unwrap().create().unwrap();
    /// group.spawn(async {}).await.unwrap();
    /// scheduler.shutdown().await; // a task's exit is recorded after its handle is ready
    /// let mut events = Vec::new();
    /// recording.finish(&mut events);
    /// assert!(events.len() >= 3); // a spawn, a switch to the task, its exit
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`RecordError`]: a second recording of the same scheduler, an impossible capacity, code that cannot be rewritten now.
    pub fn record(&self, capacity: usize) -> Result<Recording, RecordError> {
        if !(1..=CAPACITY_MAX).contains(&capacity) {
            return Err(RecordError::Capacity(capacity));
        }
        let gate = gates::events_hold().map_err(RecordError::Flip)?;
        let shared = self.shared();
        if !shared.log.start(capacity) {
            return Err(RecordError::AlreadyRecording);
        }
        if let Some(preempting) = &shared.preempt {
            preempting.log.start(capacity);
        }
        shared.log.compare_limits(shared, shared.now(), true);
        Ok(Recording {
            shared: shared.clone(),
            _gate: gate,
        })
    }
}

impl Recording {
    /// Hands the events so far to `sink`, names first, in the order of time. Keeps back those of the last 10 ms, since earlier ones may
    /// still arrive beside them. O(events log events).
    pub fn drain<S: Sink>(&self, sink: &mut S) -> Drained {
        self.take(sink, self.shared.now() - SETTLE)
    }

    /// Hands over the remaining events and ends the recording.
    pub fn finish<S: Sink>(self, sink: &mut S) -> Drained {
        let shared = &self.shared;
        shared.log.look_at_limits(shared, shared.now());
        self.take(sink, Nanos::MAX)
    }

    fn take<S: Sink>(&self, sink: &mut S, until: Nanos) -> Drained {
        let mut drained = Drained::default();
        let mut events = Vec::new();
        let log = &self.shared.log;
        for index in 0..log.rings.len() {
            let (taken, named, met, lost) = {
                let mut ring = log.ring(index);
                let taken = std::mem::take(&mut ring.events);
                let named = std::mem::take(&mut ring.named);
                let met = std::mem::take(&mut ring.met);
                (taken, named, met, std::mem::take(&mut ring.lost))
            };
            for group in met {
                define_path(&group, sink);
            }
            for (id, location, group) in named {
                let name = format!("{}:{}", location.file(), location.line());
                let info = TaskInfo {
                    name,
                    group: Some(group),
                    ..TaskInfo::default()
                };
                sink.define(&Definition::Task { id, info });
            }
            if lost > 0
                && let Some(first) = taken.front()
            {
                let count = Amount::new(lost.cast_signed());
                events.push(Event::new(first.time, first.cpu, Kind::Lost { count }));
                drained.lost += lost;
            }
            let (old, young): (VecDeque<_>, VecDeque<_>) =
                taken.into_iter().partition(|event| event.time <= until);
            events.extend(old);
            log.give_back(index, young);
        }
        if let Some(preempting) = &self.shared.preempt {
            let (taken, lost) = preempting.log.take(until);
            if lost > 0
                && let Some(first) = taken.first()
            {
                let count = Amount::new(lost.cast_signed());
                events.push(Event::new(first.time, first.cpu, Kind::Lost { count }));
                drained.lost += lost;
            }
            events.extend(taken);
        }
        events.sort_by_key(|event| event.time);
        drained.events = events.len() as u64;
        events.iter().for_each(|event| sink.event(event));
        drained
    }
}

impl EventLog {
    /// Puts events back in front that are too young to be drained.
    fn give_back(&self, index: usize, mut young: VecDeque<Event>) {
        let mut ring = self.ring(index);
        young.append(&mut ring.events);
        while young.len() > ring.capacity {
            young.pop_front();
            ring.lost += 1;
        }
        ring.events = young;
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.shared.log.stop();
        if let Some(preempting) = &self.shared.preempt {
            preempting.log.stop();
        }
    }
}

/// Defines a group and all above it, the topmost first.
fn define_path<S: Sink>(group: &Arc<quotient_core::Group>, sink: &mut S) {
    let mut path = vec![group];
    while let Some(parent) = path.last().and_then(|group| group.parent()) {
        path.push(parent);
    }
    for group in path.into_iter().rev() {
        let info = GroupInfo {
            path: group.path().to_owned(),
            parent: GroupId(group.parent().map_or(0, |parent| parent.id())),
        };
        let id = GroupId(group.id());
        sink.define(&Definition::Group { id, info });
    }
}
