//! From events to bursts.

use super::causes::{Cause, Causes};
use super::holes::Clock;
use super::limited::{LONG_WAIT, LongWait};
use super::marked::{self, Marked, Place};
use super::own::Heard;
use super::placement::Watch;
use super::runs::{Ran, machine_cpus};
use super::{BURSTS_MAX, Burst, Demand, Family, Recording, RecordingError};
use quotient_core::{CpuId, Nanos, Nice};
use quotient_trace::{
    Definition, Event, GroupId, Item, Kind, Mark, Observer, Reader, Recorder, Repair, Replay, Run,
    TaskId, Wait,
};
use std::collections::BTreeMap;
use std::io::BufRead;

/// The least nice, which weighs most.
const LEAST_NICE: i32 = -20;

/// A task while the trace is read.
#[derive(Default)]
struct Open {
    demand: Demand,
    /// Whether the last burst goes on.
    is_open: bool,
    /// For how long the last burst was throttled.
    throttled: u64,
}

#[derive(Default)]
struct Collector {
    tasks: BTreeMap<TaskId, Open>,
    /// Indices into [`Recording::groups`].
    indices: BTreeMap<GroupId, u32>,
    bursts: usize,
    runs: usize,
    causes: Causes,
    open_marks: marked::Open,
    /// Marks of tasks that are not known to run yet, since the trace leaves out switches from idle.
    early: BTreeMap<TaskId, Vec<Mark>>,
    marked: Vec<Marked>,
    /// The last idle stretch of any CPU.
    idle: (u64, u64),
    family: Family,
    wakeups: u64,
}

impl Collector {
    /// The task and the number of its group as of now: `cgroup_attach_task` may come long after its first event.
    fn task(&mut self, replay: &Replay, task: TaskId, group: GroupId) -> (&mut Open, u32) {
        let next = self.indices.len() as u32;
        let index = *self.indices.entry(group).or_insert(next);
        let open = self.tasks.entry(task).or_insert_with(|| Open {
            demand: Demand {
                id: task,
                name: replay.table().task_name(task).into(),
                ..Demand::default()
            },
            ..Open::default()
        });
        if let Some(info) = replay.table().task(task) {
            // One of our own traces says nothing of it.
            let nice = info.nice.map(Nice::weight);
            open.demand.weight = nice.unwrap_or(open.demand.weight);
            open.demand.is_real_time = info.real_time.unwrap_or(0) > 0;
            if open.demand.is_real_time {
                // As near as a task comes to that where it is played as one.
                let weight = Nice::new(LEAST_NICE).map(Nice::weight);
                open.demand.weight = weight.unwrap_or(open.demand.weight);
            }
        }
        (open, index)
    }

    /// The burst in which a task is, and how far it has come by now.
    fn place(&self, task: TaskId, now: Nanos) -> Option<Place> {
        let open = self.tasks.get(&task).filter(|open| open.is_open)?;
        let last = open.demand.bursts.last()?;
        Some(Place {
            burst: last.id,
            offset: last.work + self.causes.running_for(task, now),
            at: now.0,
        })
    }

    /// Looks at an event before the replay does.
    fn before(&mut self, event: &Event) {
        if let Some((task, waker)) = self.causes.woken(event) {
            let place = self.place(waker, event.time);
            let cause = place.map(|Place { burst, offset, .. }| Cause { by: burst, offset });
            self.causes.note(task, cause);
        }
        if let Kind::Waking { .. } | Kind::Wakeup { .. } = event.kind {
            self.wakeups += 1;
        }
        if let Kind::Spawn { task, parent, .. } = event.kind
            && !parent.is_idle()
        {
            self.family.note(task, None, Some(parent));
        }
    }

    /// Looks at an event after the replay did: whoever runs now is in a burst, also who ran when the trace began.
    fn after(&mut self, replay: &Replay, event: &Event) {
        self.causes.switched(event);
        if let Kind::Switch { next, .. } = event.kind
            && !next.is_idle()
        {
            let group = replay.table().group_of(next);
            self.begin(replay, next, group, event.time.0);
            self.mark_early(next, event.time);
        }
    }

    fn mark(&mut self, mark: Mark) {
        if !self.causes.runs(mark.task) {
            let early = self.early.entry(mark.task).or_default();
            if early.len() < marked::OPEN_MAX {
                early.push(mark);
            }
            return;
        }
        self.mark_in_place(mark);
    }

    /// The task runs since that switch: what it marked from then on has its place.
    fn mark_early(&mut self, task: TaskId, since: Nanos) {
        for mark in self.early.remove(&task).unwrap_or_default() {
            if mark.time >= since {
                self.mark_in_place(mark);
            }
        }
    }

    fn mark_in_place(&mut self, mark: Mark) {
        if let Some(place) = self.place(mark.task, mark.time)
            && let Some(marked) = self.open_marks.take(mark, place)
        {
            self.marked.push(marked);
        }
    }

    /// Begins a burst unless the task is in one.
    fn begin(&mut self, replay: &Replay, task: TaskId, group: GroupId, at: u64) {
        let id = u32::try_from(self.bursts).unwrap_or(u32::MAX - 1);
        let (open, index) = self.task(replay, task, group);
        if open.begin(at, index, id) {
            self.bursts += 1;
            let cause = self.causes.take(task);
            if let Some(last) = self
                .tasks
                .get_mut(&task)
                .and_then(|open| open.demand.bursts.last_mut())
            {
                (last.by, last.offset) = (cause.by, cause.offset);
            }
        }
    }

    /// A name may come after the first event of its task, and where it comes from before.
    fn define(&mut self, definition: &Definition) {
        let Definition::Task { id, info } = definition else {
            return;
        };
        self.family.note(*id, info.process, info.parent);
        if let Some(open) = self.tasks.get_mut(id)
            && open.demand.name.is_empty()
        {
            open.demand.name.clone_from(&info.name);
        }
    }
}

impl Open {
    fn begin(&mut self, at: u64, group: u32, id: u32) -> bool {
        if self.is_open {
            return false;
        }
        self.is_open = true;
        self.throttled = 0;
        self.demand.bursts.push(Burst {
            at,
            end: at,
            work: 0,
            offset: 0,
            group,
            id,
            cpu: 0,
            by: super::OUTSIDE,
        });
        true
    }

    /// The demand, with times from `begin` on and its last burst as long as it wanted to be.
    fn close(mut self, begin: u64, end: u64) -> Demand {
        let demand = &mut self.demand;
        if self.is_open
            && let Some(last) = demand.bursts.last_mut()
        {
            let time = u128::from(end - last.at);
            let free = time.saturating_sub(u128::from(self.throttled)).max(1);
            // No task can have wanted more than one CPU.
            let whole = (u128::from(last.work) * time / free).min(time) as u64;
            demand.restored = whole.saturating_sub(last.work);
            last.work += demand.restored;
        }
        for burst in &mut demand.bursts {
            burst.at -= begin;
            burst.end -= begin;
        }
        for wait in &mut demand.waits {
            *wait = wait.earlier_by(begin);
        }
        for run in &mut demand.runs {
            *run = run.earlier_by(begin);
        }
        if demand.name.is_empty() {
            demand.name = format!("task{}", demand.id.0);
        }
        self.demand
    }
}

impl Observer for Collector {
    fn ran(&mut self, replay: &Replay, run: &Run) {
        if run.task.is_idle() {
            return;
        }
        self.begin(replay, run.task, run.group, run.from.0);
        self.runs += 1;
        let (open, group) = self.task(replay, run.task, run.group);
        open.demand.runs.push(Ran {
            from: run.from.0,
            to: run.to.0,
            charged: run.charged.0,
            cpu: run.cpu.0,
        });
        if let Some(last) = open.demand.bursts.last_mut() {
            // Not the length: a host that runs something else meanwhile is nobody's demand.
            last.work += run.charged.0;
            last.end = run.to.0;
            last.cpu = run.cpu.0;
            last.group = group;
        }
        open.is_open = run.state.is_none_or(|state| state.is_runnable());
    }

    fn idled(&mut self, _: &Replay, _: CpuId, from: Nanos, to: Nanos) {
        self.idle = (from.0, to.0);
    }

    fn waited(&mut self, replay: &Replay, wait: &Wait) {
        if wait.is_woken {
            self.begin(replay, wait.task, wait.group, wait.from.0);
        }
        let idle = self.idle;
        let (open, _) = self.task(replay, wait.task, wait.group);
        if wait.to.0.saturating_sub(wait.from.0) >= LONG_WAIT
            && let Some(last) = open.demand.bursts.last()
        {
            let was_idle = idle.1 == wait.to.0 && !wait.is_open;
            let since = idle.0.max(wait.from.0);
            open.demand.waits.push(LongWait {
                burst: last.id,
                from: wait.from.0,
                to: wait.to.0,
                stalled: if was_idle {
                    wait.to.0.saturating_sub(since)
                } else {
                    0
                },
            });
        }
        if wait.was_throttled {
            open.throttled += wait.to.0.saturating_sub(wait.from.0);
        }
        if let Some(last) = open.demand.bursts.last_mut() {
            last.end = last.end.max(wait.to.0);
        }
    }
}

impl Recording {
    /// Reads a trace in any format that quotient-trace knows.
    ///
    /// # Errors
    /// With the line for what cannot be read; or it is too long, or empty.
    pub fn read(input: &mut dyn BufRead) -> Result<Recording, RecordingError> {
        Recording::read_skipping(input, 0)
    }

    /// The same, but leaves out up to so many lines that make no sense; [`Recording::gaps`] counts them.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn read_skipping(
        input: &mut dyn BufRead,
        lines_max: u64,
    ) -> Result<Recording, RecordingError> {
        let mut reader = Reader::open(input).map_err(RecordingError::Read)?;
        reader.skip_bad(lines_max);
        reader.keep_marks();
        let mut replay = Replay::new();
        let mut collector = Collector::default();
        let mut repair = Repair::default();
        let mut watch = Watch::default();
        let mut clock = Clock::default();
        let mut heard = Heard::default();
        while let Some(item) = reader.next_item().map_err(RecordingError::Read)? {
            match item {
                Item::Event(mut event) => {
                    // A program's own log may be silent: what the rest of the machine does is not in it.
                    let is_kernels = reader.recorder() == Recorder::Kernel;
                    while let Some(mut mark) = reader.mark_before() {
                        mark.time = clock.at(mark.time, is_kernels);
                        collector.mark(mark);
                    }
                    while let Some(at) = reader.period_before() {
                        repair.period(clock.at(at, is_kernels));
                    }
                    event.time = clock.at(event.time, is_kernels);
                    if let Some(missing) = repair.missing(&event).map(|missing| missing.event) {
                        clock.note(&missing);
                        watch.event(&missing);
                        replay.event(&missing, &mut collector);
                        collector.after(&replay, &missing);
                    }
                    clock.note(&event);
                    heard.event(&event);
                    watch.event(&event);
                    collector.before(&event);
                    replay.event(&event, &mut collector);
                    collector.after(&replay, &event);
                }
                Item::Definition(definition) => {
                    collector.define(&definition);
                    heard.define(&definition);
                    replay.define(&definition);
                }
            }
            if collector.bursts.max(collector.runs / 4) > BURSTS_MAX {
                return Err(RecordingError::TooLong);
            }
        }
        replay.finish(&mut collector);
        let mut recording = Recording::of(collector, &replay)?;
        recording.holes = clock.holes;
        if reader.recorder() == Recorder::Quotient {
            recording.hear(&heard, &replay);
        }
        recording.gaps = reader.gaps().clone();
        recording.repaired = repair.count();
        recording.switches_lost = repair.lost();
        recording.switches_shown = repair.shown();
        recording.recording_process = reader.recording_process();
        recording.is_kernels = reader.recorder() == Recorder::Kernel;
        recording.release = reader.release().map(str::to_owned);
        recording.noted_limit = reader.noted_limit().cloned();
        recording.noted_throttles = reader.noted_throttles();
        recording.noted_changes = reader.noted_changes().to_vec();
        recording.noted_weights = reader.noted_weights().to_vec();
        for demand in &mut recording.tasks {
            demand.is_silent = repair.is_silent(demand.id);
        }
        recording.placement = watch.found;
        Ok(recording)
    }

    /// Takes what the log says of its machine and its limits.
    fn hear(&mut self, heard: &Heard, replay: &Replay) {
        let (begin, end) = replay.span();
        let path = |group| {
            let path = replay.table().group_path(group);
            (group == GroupId::ROOT || !path.is_empty()).then(|| path.to_owned())
        };
        self.own_limits = heard.limits(&path, (begin.0, end.0));
        let seen = self.cpus;
        let runs = self.tasks.iter().flat_map(|demand| &demand.runs);
        self.cpus = match heard.vcpus() {
            (Some(vcpus), _) => vcpus,
            (None, true) => machine_cpus(runs, seen),
            // Nobody was stuck on a machine that was simulated.
            (None, false) => seen,
        };
        self.stand_ins = seen.saturating_sub(self.cpus);
    }

    fn of(collector: Collector, replay: &Replay) -> Result<Recording, RecordingError> {
        let (begin, end) = replay.span();
        let mut groups = vec![String::new(); collector.indices.len()];
        for (group, index) in collector.indices {
            groups[index as usize] = replay.table().group_path(group).into();
        }
        let tasks = collector
            .tasks
            .into_values()
            .map(|open| open.close(begin.0, end.0))
            .filter(|demand| demand.bursts.iter().any(|burst| burst.work > 0))
            .collect();
        let mut marked = collector.marked;
        for mark in &mut marked {
            mark.begin.at -= begin.0;
            mark.end.at -= begin.0;
        }
        let recording = Recording {
            groups,
            length: Nanos(end.0 - begin.0),
            cpus: u32::try_from(replay.cpu_count()).unwrap_or(u32::MAX).max(1),
            marked,
            family: collector.family,
            wakeups: collector.wakeups,
            ..Recording::default()
        }
        .with(tasks);
        if recording.tasks.is_empty() {
            return Err(RecordingError::Nothing);
        }
        Ok(recording)
    }
}
