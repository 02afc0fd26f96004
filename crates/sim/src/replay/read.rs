//! From events to bursts.

use super::{BURSTS_MAX, Burst, Demand, Recording, RecordingError};
use quotient_core::Nanos;
use quotient_trace::{Definition, GroupId, Item, Observer, Reader, Replay, Run, TaskId, Wait};
use std::collections::BTreeMap;
use std::io::BufRead;

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
        let known = replay.table().task(task).and_then(|info| info.process);
        open.demand.process = open.demand.process.or(known);
        (open, index)
    }

    /// A name may come after the first event of its task.
    fn rename(&mut self, definition: &Definition) {
        if let Definition::Task { id, info } = definition
            && let Some(open) = self.tasks.get_mut(id)
            && open.demand.name.is_empty()
        {
            open.demand.name.clone_from(&info.name);
        }
    }
}

impl Open {
    fn begin(&mut self, at: u64, group: u32) -> bool {
        if self.is_open {
            return false;
        }
        self.is_open = true;
        self.throttled = 0;
        self.demand.bursts.push(Burst {
            at,
            end: at,
            work: 0,
            group,
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
        let (open, group) = self.task(replay, run.task, run.group);
        let opened = open.begin(run.from.0, group);
        if let Some(last) = open.demand.bursts.last_mut() {
            // Not the length: a host that runs something else meanwhile is nobody's demand.
            last.work += run.charged.0;
            last.end = run.to.0;
            last.group = group;
        }
        open.is_open = run.state.is_none_or(|state| state.is_runnable());
        self.bursts += usize::from(opened);
    }

    fn waited(&mut self, replay: &Replay, wait: &Wait) {
        let (open, group) = self.task(replay, wait.task, wait.group);
        let opened = wait.is_woken && open.begin(wait.from.0, group);
        if wait.was_throttled {
            open.throttled += wait.to.0 - wait.from.0;
        }
        if let Some(last) = open.demand.bursts.last_mut() {
            last.end = last.end.max(wait.to.0);
        }
        self.bursts += usize::from(opened);
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
        let mut replay = Replay::new();
        let mut collector = Collector::default();
        while let Some(item) = reader.next_item().map_err(RecordingError::Read)? {
            match item {
                Item::Event(event) => replay.event(&event, &mut collector),
                Item::Definition(definition) => {
                    collector.rename(&definition);
                    replay.define(&definition);
                }
            }
            if collector.bursts > BURSTS_MAX {
                return Err(RecordingError::TooLong);
            }
        }
        replay.finish(&mut collector);
        let mut recording = Recording::of(collector, &replay)?;
        recording.gaps = reader.gaps().clone();
        Ok(recording)
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
        let recording = Recording {
            groups,
            length: Nanos(end.0 - begin.0),
            cpus: u32::try_from(replay.cpu_count()).unwrap_or(u32::MAX).max(1),
            ..Recording::default()
        }
        .with(tasks);
        if recording.tasks.is_empty() {
            return Err(RecordingError::Nothing);
        }
        Ok(recording)
    }
}
