//! Perfetto's protobuf, for <https://ui.perfetto.dev> and its trace processor.
//!
//! Switches and wake-ups become ftrace events, so that Perfetto draws its CPU tracks and thread states from them; groups
//! become processes, and their tasks' threads; pools, balances, loads and the like become counter tracks; throttling
//! becomes a slice on a track of the group, and the times for which a poll's thread stood slices on a track of its task. Field numbers are those of `perfetto/trace/perfetto_trace.proto`.

use std::collections::HashSet;
use std::io::{self, Write};

use quotient_core::event::{
    Counter, Definition, Event, GroupId, Kind, Sink, Table, TaskId, TaskInfo, TaskState,
};
use quotient_core::{CpuId, Nanos};

use super::Output;
use super::protobuf::Message;

/// `Trace.packet`.
const TRACE_PACKET: u32 = 1;
/// `TracePacket.ftrace_events`.
const PACKET_FTRACE: u32 = 1;
/// `TracePacket.process_tree`.
const PACKET_PROCESSES: u32 = 2;
/// `TracePacket.timestamp`.
const PACKET_TIME: u32 = 8;
/// `TracePacket.trusted_packet_sequence_id`.
const PACKET_SEQUENCE: u32 = 10;
/// `TracePacket.track_event`.
const PACKET_TRACK_EVENT: u32 = 11;
/// `TracePacket.sequence_flags`.
const PACKET_FLAGS: u32 = 13;
/// `TracePacket.system_info`.
const PACKET_SYSTEM: u32 = 45;
/// `TracePacket.track_descriptor`.
const PACKET_TRACK: u32 = 60;

/// `FtraceEvent.sched_switch`.
const FTRACE_SWITCH: u32 = 4;
/// `FtraceEvent.sched_wakeup`.
const FTRACE_WAKEUP: u32 = 17;
/// `FtraceEvent.sched_waking`.
const FTRACE_WAKING: u32 = 20;
/// `FtraceEvent.sched_wakeup_new`.
const FTRACE_WAKEUP_NEW: u32 = 114;

/// `TrackEvent.Type`: a slice begins.
const SLICE_BEGIN: u64 = 1;
/// A slice ends.
const SLICE_END: u64 = 2;
/// A moment.
const INSTANT: u64 = 3;
/// A counter has a new value.
const COUNTER: u64 = 4;

/// First byte of the numbers of tracks of threads.
const THREADS: u64 = 102;
/// The only writer in the file.
const SEQUENCE: u64 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: nothing before this packet is needed to understand it.
const STATE_CLEARED: u64 = 1;
/// What the kernel prints for the priority of a task with nice 0; we know no other.
const PRIORITY: u64 = 120;
/// Numbers of the processes that stand for groups: above the kernel's 2^22 thread ids.
const FIRST_PROCESS: u32 = 1 << 30;
/// Thread ids are signed 32 bits there, and those above stand for groups.
const TASK_MASK: u32 = FIRST_PROCESS - 1;
/// Perfetto reads task states by the kernel's version; this one has the letters of [`TaskState`].
const RELEASE: &str = "6.18.0";

/// Writes a Perfetto trace.
pub struct Perfetto<W> {
    output: Output<W>,
    table: Table,
    /// Tracks that have been described.
    tracks: HashSet<u64>,
}

impl<W: Write> Perfetto<W> {
    /// Writes what comes first. Give it something buffered.
    pub fn new(inner: W) -> Perfetto<W> {
        let mut writer = Perfetto {
            output: Output::new(inner),
            table: Table::new(),
            tracks: HashSet::new(),
        };
        let names = Message::new().text(1, "Linux").text(3, RELEASE);
        let system = Message::new().message(1, &names);
        writer.packet(
            Message::new()
                .message(PACKET_SYSTEM, &system)
                .number(PACKET_FLAGS, STATE_CLEARED),
        );
        writer
    }

    /// Flushes and hands the output back.
    ///
    /// # Errors
    /// The first error of the output, whenever it happened.
    pub fn finish(self) -> io::Result<W> {
        self.output.finish()
    }

    fn packet(&mut self, packet: Message) {
        let packet = packet.number(PACKET_SEQUENCE, SEQUENCE);
        let whole = Message::new().message(TRACE_PACKET, &packet);
        self.output.put(|output| output.write_all(whole.as_bytes()));
    }

    fn ftrace(&mut self, time: Nanos, cpu: CpuId, task: TaskId, field: u32, arguments: &Message) {
        let event = Message::new()
            .number(1, time.as_nanos())
            .number(2, thread(task))
            .message(field, arguments);
        let bundle = Message::new()
            .number(1, u64::from(cpu.0))
            .message(2, &event);
        self.packet(Message::new().message(PACKET_FTRACE, &bundle));
    }

    fn comm(&self, task: TaskId) -> &str {
        if task.is_idle() {
            "swapper"
        } else {
            self.table.task_name(task)
        }
    }

    fn wake(&mut self, event: &Event, field: u32, task: TaskId, target: CpuId, waker: TaskId) {
        let arguments = Message::new()
            .text(1, self.comm(task))
            .number(2, thread(task))
            .number(3, PRIORITY)
            .number(4, 1)
            .number(5, u64::from(target.0));
        self.ftrace(event.time, event.cpu, waker, field, &arguments);
    }

    /// The track of something, described when it is first needed.
    fn track(&mut self, what: Track, group: GroupId, cpu: CpuId) -> u64 {
        let (kind, place) = match what {
            Track::Counter(counter) if counter.per_cpu() => (1 + counter as u64, u64::from(cpu.0)),
            Track::Counter(counter) => (1 + counter as u64, 0),
            Track::Throttled => (100, u64::from(cpu.0)),
            Track::Marks => (101, 0),
        };
        let track = kind << 56 | u64::from(group.0 & 0x00ff_ffff) << 32 | place;
        if self.tracks.insert(track) {
            let path = match self.table.group_path(group) {
                "" => "root",
                path => path,
            };
            let on_cpu = format!("{path} {cpu}");
            let mut descriptor = Message::new().number(1, track);
            descriptor = match what {
                Track::Counter(counter) => {
                    let name = if counter.per_cpu() { &on_cpu } else { path };
                    let is_time = matches!(counter, Counter::Pool | Counter::Balance);
                    let unit = if is_time { 1 } else { 2 };
                    descriptor
                        .text(2, &format!("{} {name}", counter.name()))
                        .message(8, &Message::new().number(3, unit))
                }
                Track::Throttled => descriptor.text(2, &format!("throttled {on_cpu}")),
                Track::Marks => descriptor.text(2, "marks"),
            };
            self.packet(Message::new().message(PACKET_TRACK, &descriptor));
        }
        track
    }

    fn track_event(&mut self, time: Nanos, event: &Message) {
        let packet = Message::new()
            .number(PACKET_TIME, time.as_nanos())
            .message(PACKET_TRACK_EVENT, event);
        self.packet(packet);
    }

    /// What happens to a thread that a poll has to itself: slices for the times in which it stands, and moments.
    fn of_thread(&mut self, event: &Event) {
        let &Event { time, kind, .. } = event;
        let (task, sort, name) = match kind {
            Kind::Detach { task } => (task, INSTANT, "outlived its turn".to_owned()),
            Kind::Pause { task } => (task, SLICE_BEGIN, "stands".to_owned()),
            Kind::Resume { task, reason } => {
                let track = self.track_of_thread(task);
                let end = Message::new().number(9, SLICE_END).number(11, track);
                self.track_event(time, &end);
                (task, INSTANT, format!("resumed: {}", reason.name()))
            }
            _ => return,
        };
        let track = self.track_of_thread(task);
        let message = Message::new()
            .number(9, sort)
            .number(11, track)
            .text(23, &name);
        self.track_event(time, &message);
    }

    /// The track of a task's thread, described when it is first needed.
    fn track_of_thread(&mut self, task: TaskId) -> u64 {
        let track = THREADS << 56 | u64::from(task.0);
        if self.tracks.insert(track) {
            let name = format!("long polls of {} {}", self.table.task_name(task), task.0);
            let descriptor = Message::new().number(1, track).text(2, &name);
            self.packet(Message::new().message(PACKET_TRACK, &descriptor));
        }
        track
    }

    fn of_group(&mut self, event: &Event) {
        let &Event { time, cpu, kind } = event;
        let (track, sort, detail) = match kind {
            Kind::Throttle { group } => {
                (self.track(Track::Throttled, group, cpu), SLICE_BEGIN, None)
            }
            Kind::Unthrottle { group } => {
                (self.track(Track::Throttled, group, cpu), SLICE_END, None)
            }
            Kind::Refill { group, pool, .. } => {
                let track = self.track(Track::Counter(Counter::Pool), group, cpu);
                (track, COUNTER, Some(pool.get()))
            }
            Kind::Counter {
                counter,
                group,
                value,
            } => {
                let track = self.track(Track::Counter(counter), group, cpu);
                (track, COUNTER, Some(value.get()))
            }
            Kind::Mark { .. } | Kind::Rescue { .. } | Kind::Hotplug { .. } => {
                let track = self.track(Track::Marks, GroupId::ROOT, cpu);
                (track, INSTANT, None)
            }
            _ => return,
        };
        let mut message = Message::new().number(9, sort).number(11, track);
        if let Some(value) = detail {
            message = message.number(30, value.cast_unsigned());
        }
        match kind {
            Kind::Throttle { .. } => message = message.text(23, "throttled"),
            Kind::Mark { name, .. } => message = message.text(23, self.table.name(name)),
            Kind::Rescue { reason } => {
                message = message.text(23, &format!("rescue: {}", reason.name()));
            }
            Kind::Hotplug { online } => {
                let what = if online { "comes" } else { "goes" };
                message = message.text(23, &format!("{cpu} {what}"));
            }
            _ => {}
        }
        self.track_event(time, &message);
    }
}

#[derive(Clone, Copy)]
enum Track {
    Counter(Counter),
    Throttled,
    Marks,
}

fn thread(task: TaskId) -> u64 {
    u64::from(task.0 & TASK_MASK)
}

fn process(group: GroupId) -> u64 {
    u64::from(FIRST_PROCESS | group.0 & TASK_MASK)
}

/// The bits of `prev_state`.
const fn state_bits(state: TaskState) -> u64 {
    match state {
        TaskState::Runnable => 0,
        TaskState::Sleeping => 1,
        TaskState::DiskSleep => 2,
        TaskState::Stopped => 4,
        TaskState::Traced => 8,
        TaskState::Dead => 0x10,
        TaskState::Zombie => 0x20,
        TaskState::Parked => 0x40,
        TaskState::Idle => 0x80,
        TaskState::Preempted => 0x100,
    }
}

impl<W: Write> Sink for Perfetto<W> {
    fn define(&mut self, definition: &Definition) {
        self.table.define(definition);
        let tree = match definition {
            Definition::Group { id, info } => {
                let name = if info.path.is_empty() {
                    "root"
                } else {
                    &info.path
                };
                let process = Message::new().number(1, process(*id)).text(3, name);
                Message::new().message(1, &process)
            }
            // A kernel's trace knows no groups: its threads stay on their own.
            Definition::Task {
                id,
                info:
                    TaskInfo {
                        name,
                        group: Some(group),
                        ..
                    },
            } if *group != GroupId::ROOT => {
                let thread = Message::new()
                    .number(1, thread(*id))
                    .text(2, name)
                    .number(3, process(*group));
                Message::new().message(2, &thread)
            }
            Definition::Task { .. } | Definition::Name { .. } => return,
        };
        self.packet(Message::new().message(PACKET_PROCESSES, &tree));
    }

    fn event(&mut self, event: &Event) {
        let &Event { time, cpu, kind } = event;
        match kind {
            Kind::Switch { prev, state, next } => {
                let arguments = Message::new()
                    .text(1, self.comm(prev))
                    .number(2, thread(prev))
                    .number(3, PRIORITY)
                    .number(4, state_bits(state))
                    .text(5, self.comm(next))
                    .number(6, thread(next))
                    .number(7, PRIORITY);
                self.ftrace(time, cpu, prev, FTRACE_SWITCH, &arguments);
                if state.is_over() {
                    self.table.forget(prev);
                    self.tracks.remove(&(THREADS << 56 | u64::from(prev.0)));
                }
            }
            Kind::Waking {
                task,
                target,
                waker,
            } => self.wake(event, FTRACE_WAKING, task, target, waker),
            Kind::Wakeup {
                task,
                target,
                waker,
            } => self.wake(event, FTRACE_WAKEUP, task, target, waker),
            Kind::Spawn {
                task,
                target,
                parent,
            } => self.wake(event, FTRACE_WAKEUP_NEW, task, target, parent),
            Kind::Detach { .. } | Kind::Pause { .. } | Kind::Resume { .. } => {
                self.of_thread(event);
            }
            _ => self.of_group(event),
        }
    }

    fn is_done(&self) -> bool {
        self.output.error.is_some()
    }
}
