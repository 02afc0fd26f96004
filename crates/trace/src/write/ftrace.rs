//! ftrace text, as tracefs' `trace` shows it, for every tool that reads that.
//!
//! What the kernel has no event for is written as an event `quotient` with JSON as its argument, which other tools skip
//! and [`Reader`](crate::Reader) understands: reading it back gives the same definitions and events.

use std::collections::HashMap;
use std::io::{self, Write};

use quotient_core::event::{Definition, Event, Kind, Sink, Table, TaskId};
use quotient_core::{CpuId, Nanos};

use super::{NoteSink, Output};
use crate::read::{Note, OWN_EVENT, PERIOD_TIMER, seconds};
use crate::record::{Record, in_a_line};

const HEADING: &str = "# tracer: nop\n#\n#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n#              | |         |   |||||     |         |\n";

/// What the kernel prints for the priority of a task with nice 0, which everybody has of whom nothing else is known.
const PRIORITY: i32 = 120;

/// The last priority of the real-time class, which counts down: one of 1 there is printed as 98.
const PRIORITY_LAST: i32 = 99;

/// Writes ftrace text.
pub struct Ftrace<W> {
    output: Output<W>,
    table: Table,
    running: HashMap<CpuId, TaskId>,
    /// Definitions wait for an event, because a line needs a time stamp.
    waiting: Vec<Definition>,
}

impl<W: Write> Ftrace<W> {
    /// Writes the heading. Give it something buffered.
    pub fn new(inner: W) -> Ftrace<W> {
        let mut output = Output::new(inner);
        output.put(|output| output.write_all(HEADING.as_bytes()));
        Ftrace {
            output,
            table: Table::new(),
            running: HashMap::new(),
            waiting: Vec::new(),
        }
    }

    /// Flushes and hands the output back.
    ///
    /// # Errors
    /// The first error of the output, whenever it happened.
    pub fn finish(mut self) -> io::Result<W> {
        self.write_definitions(Nanos::ZERO);
        self.output.finish()
    }

    /// A name that fits into a line. An explicit definition carries the true one.
    fn comm(&self, task: TaskId) -> String {
        if task.is_idle() {
            return "swapper".to_owned();
        }
        let name = self.table.task_name(task);
        if name.is_empty() {
            return "<...>".to_owned();
        }
        in_a_line(name)
    }

    fn line(&mut self, task: TaskId, cpu: CpuId, time: Nanos, event: &str, arguments: &str) {
        let comm = if task.is_idle() {
            "<idle>".to_owned()
        } else {
            self.comm(task)
        };
        let (cpu, time) = (cpu.0, seconds(time));
        self.output.put(|output| {
            writeln!(
                output,
                "{comm:>16}-{:<7} [{cpu:03}] ..... {time}: {event}: {arguments}",
                task.0
            )
        });
    }

    fn own(&mut self, task: TaskId, cpu: CpuId, time: Nanos, record: &Record) {
        // The records hold numbers and strings only; nothing in them can fail to be JSON.
        let json = serde_json::to_string(record).unwrap_or_default();
        self.line(task, cpu, time, OWN_EVENT, &json);
    }

    fn write_definitions(&mut self, time: Nanos) {
        for definition in std::mem::take(&mut self.waiting) {
            let record = Record::of_definition(&definition);
            self.own(TaskId::IDLE, CpuId(0), time, &record);
        }
    }
}

/// As the kernel and programs spell it, in comments what they have no line for.
impl<W: Write> NoteSink for Ftrace<W> {
    fn note(&mut self, note: &Note) {
        let remark = match note {
            Note::Recorder(recorder) => recorder.remark().to_owned(),
            Note::Process(process) => Note::process_remark(*process),
            Note::Release(release) => Note::release_remark(release),
            Note::Limit(limit) => limit.to_string(),
            Note::Change(change) => change.to_string(),
            Note::Throttles(counted) => counted.to_string(),
            Note::Weight(weight) => weight.to_string(),
            Note::Period(at) => {
                self.write_definitions(*at);
                let arguments = format!("hrtimer=0000000000000000 {PERIOD_TIMER} now={}", at.0);
                self.line(
                    TaskId::IDLE,
                    CpuId(0),
                    *at,
                    "hrtimer_expire_entry",
                    &arguments,
                );
                return;
            }
            Note::Mark(mark) => {
                self.write_definitions(mark.time);
                let process = self.table.task(mark.task).and_then(|info| info.process);
                let text = mark.text(process.unwrap_or(mark.task));
                self.line(mark.task, CpuId(0), mark.time, "tracing_mark_write", &text);
                return;
            }
        };
        self.output.put(|output| writeln!(output, "{remark}"));
    }
}

impl<W: Write> Sink for Ftrace<W> {
    fn define(&mut self, definition: &Definition) {
        self.table.define(definition);
        self.waiting.push(definition.clone());
    }

    fn event(&mut self, event: &Event) {
        let &Event { time, cpu, kind } = event;
        self.write_definitions(time);
        let running = self.running.get(&cpu).copied().unwrap_or(TaskId::IDLE);
        let priority = |task: TaskId| {
            let info = self.table.task(task);
            match info.and_then(|info| info.real_time) {
                Some(above @ 1..) => PRIORITY_LAST - i32::from(above),
                _ => {
                    let nice = info.and_then(|info| info.nice);
                    PRIORITY + nice.unwrap_or_default().get()
                }
            }
        };
        let task_fields = |task: TaskId| {
            format!(
                "comm={} pid={} prio={}",
                self.comm(task),
                task.0,
                priority(task)
            )
        };
        let (task, name, arguments) = match kind {
            Kind::Switch { prev, state, next } => {
                let text = format!(
                    "prev_comm={} prev_pid={} prev_prio={} prev_state={} ==> next_comm={} next_pid={} next_prio={}",
                    self.comm(prev),
                    prev.0,
                    priority(prev),
                    state.letters(),
                    self.comm(next),
                    next.0,
                    priority(next)
                );
                self.running.insert(cpu, next);
                (prev, "sched_switch", text)
            }
            Kind::Waking {
                task,
                target,
                waker,
            } => {
                let text = format!("{} target_cpu={:03}", task_fields(task), target.0);
                (waker, "sched_waking", text)
            }
            Kind::Wakeup {
                task,
                target,
                waker,
            } => {
                let text = format!("{} target_cpu={:03}", task_fields(task), target.0);
                (waker, "sched_wakeup", text)
            }
            Kind::Spawn {
                task,
                target,
                parent,
            } => {
                let text = format!("{} target_cpu={:03}", task_fields(task), target.0);
                (parent, "sched_wakeup_new", text)
            }
            Kind::Exit { task } => (task, "sched_process_exit", task_fields(task)),
            Kind::Migrate { task, from, to } => {
                let fields = task_fields(task);
                let text = format!("{fields} orig_cpu={} dest_cpu={}", from.0, to.0);
                (running, "sched_migrate_task", text)
            }
            _ => {
                let record = Record {
                    event: Some(kind),
                    ..Record::default()
                };
                return self.own(running, cpu, time, &record);
            }
        };
        self.line(task, cpu, time, name, &arguments);
        if let Kind::Switch { prev, state, .. } = kind
            && state.is_over()
        {
            self.table.forget(prev);
        }
    }

    fn is_done(&self) -> bool {
        self.output.error.is_some()
    }
}
