//! The arguments of the events that text traces hold: `sched_*`, interrupts, cgroup moves, and our own.
//!
//! Two spellings of the scheduler's events exist: the kernel's (`prev_comm=a prev_pid=1 ...`) and that of perf's and
//! trace-cmd's plugins (`a:1 [120] S ==> b:2 [120]`).

use quotient_core::event::{
    Amount, Definition, Event, GroupId, GroupInfo, InterruptKind, Kind, TaskId, TaskState,
};
use quotient_core::{CpuId, Nanos, Nice};

use super::error::Fault;
use super::header::{self, Header, number, offset};
use super::lines::JOINT;
use super::marks;
use super::noted::Note;
use crate::record::{Meaning, Record};

/// The event under which our own events stand in ftrace text, with JSON as their argument.
pub(crate) const OWN_EVENT: &str = "quotient";

/// Longest name of a task (the kernel's TASK_COMM_LEN less its end), and how wide text traces make it. Unit: characters.
const NAME_MAX: usize = 15;
const PADDED: usize = 16;

/// The kernel's timer that begins a limit's periods, as an argument of `hrtimer_expire_entry`.
pub(crate) const PERIOD_TIMER: &str = "function=sched_cfs_period_timer";

/// Priorities of the kernel: below the first one they are those of real-time tasks, then come those of nice -20 to 19.
const NICE_FIRST: u32 = 100;
/// That of nice 0.
const NICE_0: i32 = 120;

/// What a line says in passing of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub task: TaskId,
    /// What it calls it.
    pub comm: &'a str,
    /// How nice it is; of a task in the real-time class that says nothing.
    pub nice: Option<Nice>,
    /// Its priority in the real-time class; 0: it is not in it.
    pub real_time: Option<u8>,
}

impl<'a> Name<'a> {
    /// `priority` as the kernel prints it; one that it cannot print says nothing.
    fn new(task: TaskId, comm: &'a str, priority: Option<u32>) -> Name<'a> {
        let nice = priority.filter(|priority| *priority >= NICE_FIRST);
        let nice = nice.and_then(|priority| {
            let nice = i32::try_from(priority).ok()? - NICE_0;
            Nice::new(nice).ok()
        });
        let real_time = priority.map(|priority| {
            let above = (NICE_FIRST - 1).saturating_sub(priority);
            let is_real_time = priority < NICE_FIRST;
            u8::try_from(above.max(u32::from(is_real_time))).unwrap_or(0)
        });
        Name {
            task,
            comm,
            nice,
            real_time,
        }
    }
}

/// What a line says.
#[derive(Debug, Default)]
pub(crate) struct Line<'a> {
    pub event: Option<Event>,
    /// Explicit definitions of our own or of a cgroup.
    pub definition: Option<Definition>,
    /// What tasks are called in passing.
    pub names: [Option<Name<'a>>; 3],
    /// The process of the first of them.
    pub process: Option<TaskId>,
    /// What a program wrote into its trace, or that a period of some limit began.
    pub note: Option<Note>,
}

/// Reads one line; `last` is the time of the line before, for remarks without a time stamp.
///
/// # Errors
/// Where the line stops making sense. Events that nobody here needs are nothing, not errors.
pub(crate) fn parse(text: &str, last: Nanos) -> Result<Line<'_>, Fault> {
    if let Some(line) = remark(text, last) {
        return Ok(line);
    }
    let header = header::parse(text)?;
    let mut line = Line::default();
    let body = Body {
        text,
        arguments: header.arguments,
    };
    let kind = match header.event {
        "sched_switch" => Some(body.switch(&mut line)?),
        "sched_waking" | "sched_wakeup" | "sched_wakeup_new" => {
            Some(body.wake(&header, &mut line)?)
        }
        "sched_migrate_task" => Some(body.migrate(&mut line)?),
        "sched_process_exit" => {
            let (task, _) = body.task("comm=", " pid=", &mut line.names[1])?;
            Some(Kind::Exit { task })
        }
        "sched_process_fork" => {
            body.fork(&mut line)?;
            None
        }
        "cgroup_attach_task" => Some(body.attach(&mut line)?),
        "irq_handler_entry" | "irq_handler_exit" | "softirq_entry" | "softirq_exit" => {
            Some(body.interrupt(header.event)?)
        }
        "ipi_send_cpu" => Some(Kind::Ipi {
            target: CpuId(body.value("cpu=")?),
        }),
        OWN_EVENT => body.own(&mut line)?,
        "tracing_mark_write" | "print" => {
            // trace-cmd names the function that printed first.
            let text = header.arguments.trim_start();
            let text = text.strip_prefix("tracing_mark_write: ").unwrap_or(text);
            line.note = marks::parse(header.time, header.task, text).map(Note::Mark);
            return Ok(line);
        }
        "hrtimer_expire_entry" => {
            let mut words = header.arguments.split_ascii_whitespace();
            if words.any(|word| word == PERIOD_TIMER) {
                line.note = Some(Note::Period(header.time));
            }
            return Ok(line);
        }
        _ => return Ok(line),
    };
    if header.event != OWN_EVENT && !header.comm.starts_with('<') {
        line.names[0] = Some(Name::new(header.task, header.comm, None));
        line.process = header.process;
    }
    line.event = kind.map(|kind| Event::new(header.time, header.cpu, kind));
    Ok(line)
}

/// Whether lines that were joined are one: each joint is in a name that the kernel could have given a task.
pub(crate) fn is_one_line(text: &str) -> bool {
    let (Ok(header), Ok(line)) = (header::parse(text), parse(text, Nanos::ZERO)) else {
        return false;
    };
    // What a line begins with is padded, all of it, so a joint in there that is not the name's is too far to the left.
    let ends = offset(text, header.comm) + header.comm.len();
    let is_padded = !header.comm.contains(JOINT) || text[..ends].chars().count() <= PADDED;
    let names = line.names.iter().flatten().map(|name| name.comm);
    let mut joints = 0;
    for name in names
        .chain([header.comm])
        .filter(|name| name.contains(JOINT))
    {
        if name.chars().count() > NAME_MAX {
            return false;
        }
        joints += 1;
    }
    is_padded && joints > 0
}

/// Lines that are no events: comments, headings, stacks, losses. Names of tasks are indented, these are not.
fn remark(text: &str, last: Nanos) -> Option<Line<'_>> {
    if text.trim().is_empty() || text.starts_with('#') {
        return Some(Line::default());
    }
    // "CPU:3 [LOST 17 EVENTS]"; "CPU 3 is empty" and "cpus=4" are trace-cmd's.
    if let Some(rest) = text.strip_prefix("CPU:") {
        let (cpu, count) = rest.split_once(" [LOST ")?;
        let count = count.trim_end().strip_suffix(" EVENTS]")?;
        let kind = Kind::Lost {
            count: Amount::new(count.parse().ok()?),
        };
        let event = Event::new(last, CpuId(cpu.parse().ok()?), kind);
        return Some(Line {
            event: Some(event),
            ..Line::default()
        });
    }
    if let Some(lost) = lost_by_perf(text, last) {
        return Some(lost);
    }
    let is_heading = ["cpus=", "version = ", "CPU "]
        .iter()
        .any(|heading| text.starts_with(heading) && !text.contains('['));
    (is_heading || is_stack(text)).then(Line::default)
}

/// "swapper 0 [001] 12.345678: PERF_RECORD_LOST lost 17", as `perf script --show-lost-events` writes it.
fn lost_by_perf(text: &str, last: Nanos) -> Option<Line<'_>> {
    let (before, after) = text.split_once("PERF_RECORD_LOST")?;
    let (_, count) = after.split_once(" lost ")?;
    let count = count.trim().parse().ok()?;
    let cpu = before
        .rsplit_once('[')
        .and_then(|(_, cpu)| cpu.split_once(']')?.0.parse().ok());
    let kind = Kind::Lost {
        count: Amount::new(count),
    };
    Some(Line {
        event: Some(Event::new(last, CpuId(cpu.unwrap_or(0)), kind)),
        ..Line::default()
    })
}

/// A frame of a call chain: indented, an address and a symbol, or an arrow and a symbol.
fn is_stack(text: &str) -> bool {
    let Some((first, _)) = text.trim_start().split_once(' ') else {
        return false;
    };
    let is_address = first.len() >= 8 && first.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.starts_with([' ', '\t']) && !text.contains(']') && (is_address || first == "=>")
}

/// The number right behind `key` at the beginning of `rest`, if there is one. That there is none is no fault: not all tools print it.
fn priority(rest: &str, key: &str) -> Option<u32> {
    let rest = rest.strip_prefix(key)?;
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..length].parse().ok()
}

/// The arguments of one event, within their line.
struct Body<'a> {
    text: &'a str,
    arguments: &'a str,
}

impl<'a> Body<'a> {
    fn fault<T>(&self, part: &str, expected: &str) -> Result<T, Fault> {
        Err(Fault::new(offset(self.text, part), expected))
    }

    /// `part` without `prefix`.
    fn strip(&self, part: &'a str, prefix: &str) -> Result<&'a str, Fault> {
        match part.strip_prefix(prefix) {
            Some(rest) => Ok(rest),
            None => self.fault(part, &format!("`{prefix}`")),
        }
    }

    /// `part` before and after the last `separator`: what stands before it is a name that may hold anything.
    fn split_last(&self, part: &'a str, separator: &str) -> Result<(&'a str, &'a str), Fault> {
        match part.rsplit_once(separator) {
            Some(halves) => Ok(halves),
            None => self.fault(part, &format!("`{}`", separator.trim_start())),
        }
    }

    /// The number at the beginning of `part`, and what follows.
    fn leading(&self, part: &'a str, what: &str) -> Result<(u32, &'a str), Fault> {
        let length = part.bytes().take_while(u8::is_ascii_digit).count();
        let value = number(self.text, &part[..length], what)?;
        Ok((value, &part[length..]))
    }

    /// The number after `key` anywhere in the arguments.
    fn value(&self, key: &str) -> Result<u32, Fault> {
        self.value_in(self.arguments, key)
    }

    fn value_in(&self, part: &'a str, key: &str) -> Result<u32, Fault> {
        let Some((_, after)) = part.split_once(key) else {
            return self.fault(part, &format!("`{}`", key.trim_start()));
        };
        self.leading(after, "a number").map(|(value, _)| value)
    }

    /// A name and a number: `comm=... pid=...`. Returns what follows.
    fn task(
        &self,
        name_key: &str,
        number_key: &str,
        name: &mut Option<Name<'a>>,
    ) -> Result<(TaskId, &'a str), Fault> {
        if !self.arguments.starts_with(name_key) {
            return self.plugin_task(self.arguments, name);
        }
        let after = self.strip(self.arguments, name_key)?;
        let (comm, after) = self.split_last(after, number_key)?;
        let (task, rest) = self.leading(after, "the number of a task")?;
        *name = Some(Name::new(TaskId(task), comm, priority(rest, " prio=")));
        Ok((TaskId(task), rest))
    }

    /// `comm:pid [prio]`, as plugins write it. Returns what follows the bracket.
    fn plugin_task(
        &self,
        part: &'a str,
        name: &mut Option<Name<'a>>,
    ) -> Result<(TaskId, &'a str), Fault> {
        let (before, rest) = self.split_last(part, " [")?;
        let (comm, digits) = self.split_last(before, ":")?;
        let task = TaskId(number(self.text, digits, "the number of a task")?);
        *name = Some(Name::new(task, comm, priority(rest, "")));
        match rest.split_once(']') {
            Some((_, rest)) => Ok((task, rest)),
            None => self.fault(rest, "a closing bracket"),
        }
    }

    fn switch(&self, line: &mut Line<'a>) -> Result<Kind, Fault> {
        if !self.arguments.starts_with("prev_comm=") {
            return self.plugin_switch(line);
        }
        let Some((left, right)) = self.arguments.split_once(" ==> next_comm=") else {
            return self.fault(self.arguments, "`==> next_comm=`");
        };
        let (prev_comm, after) = self.split_last(self.strip(left, "prev_comm=")?, " prev_pid=")?;
        let (prev, rest) = self.leading(after, "the number of a task")?;
        let (_, state) = self.split_last(rest, " prev_state=")?;
        let (next_comm, after) = self.split_last(right, " next_pid=")?;
        let (next, last) = self.leading(after, "the number of a task")?;
        let prev_priority = priority(rest, " prev_prio=");
        line.names[1] = Some(Name::new(TaskId(prev), prev_comm, prev_priority));
        let next_priority = priority(last, " next_prio=");
        line.names[2] = Some(Name::new(TaskId(next), next_comm, next_priority));
        Ok(Kind::Switch {
            prev: TaskId(prev),
            state: self.state(state)?,
            next: TaskId(next),
        })
    }

    fn plugin_switch(&self, line: &mut Line<'a>) -> Result<Kind, Fault> {
        let (left, right) = self.split_last(self.arguments, " ==> ")?;
        let (prev, state) = self.plugin_task(left, &mut line.names[1])?;
        let (next, _) = self.plugin_task(right, &mut line.names[2])?;
        let state = self.state(state.trim())?;
        Ok(Kind::Switch { prev, state, next })
    }

    fn state(&self, letters: &'a str) -> Result<TaskState, Fault> {
        match TaskState::parse(letters) {
            Some(state) => Ok(state),
            None => self.fault(letters, "the letters of a task state"),
        }
    }

    fn wake(&self, header: &Header<'a>, line: &mut Line<'a>) -> Result<Kind, Fault> {
        let (task, rest) = self.task("comm=", " pid=", &mut line.names[1])?;
        let key = if rest.contains("CPU:") {
            "CPU:"
        } else {
            " target_cpu="
        };
        let target = CpuId(self.value_in(rest, key)?);
        // A timer's or a device's interrupt woke it; whoever ran there has nothing to do with it.
        let waker = if header.in_interrupt {
            TaskId::IDLE
        } else {
            header.task
        };
        Ok(match header.event {
            "sched_waking" => Kind::Waking {
                task,
                target,
                waker,
            },
            "sched_wakeup" => Kind::Wakeup {
                task,
                target,
                waker,
            },
            _ => Kind::Spawn {
                task,
                target,
                parent: header.task,
            },
        })
    }

    fn migrate(&self, line: &mut Line<'a>) -> Result<Kind, Fault> {
        let (task, rest) = self.task("comm=", " pid=", &mut line.names[1])?;
        Ok(Kind::Migrate {
            task,
            from: CpuId(self.value_in(rest, " orig_cpu=")?),
            to: CpuId(self.value_in(rest, " dest_cpu=")?),
        })
    }

    fn fork(&self, line: &mut Line<'a>) -> Result<(), Fault> {
        let (before, child) = self.split_last(self.arguments, " child_pid=")?;
        let (_, comm) = self.split_last(before, " child_comm=")?;
        let (child, _) = self.leading(child, "the number of a task")?;
        line.names[1] = Some(Name::new(TaskId(child), comm, None));
        Ok(())
    }

    /// A process entered a cgroup. Numbers are the kernel's; the root of every hierarchy is ours.
    fn attach(&self, line: &mut Line<'a>) -> Result<Kind, Fault> {
        let (before, after) = self.split_last(self.arguments, " pid=")?;
        let (task, _) = self.leading(after, "the number of a task")?;
        let Some((_, path)) = before.split_once(" dst_path=") else {
            return self.fault(before, "`dst_path=`");
        };
        let path = path.trim_matches('/');
        let id = if path.is_empty() {
            GroupId::ROOT
        } else {
            GroupId(self.value(" dst_id=")?)
        };
        line.definition = Some(Definition::Group {
            id,
            info: GroupInfo {
                path: path.to_owned(),
                parent: GroupId::ROOT,
            },
        });
        Ok(Kind::Attach {
            task: TaskId(task),
            group: id,
        })
    }

    fn interrupt(&self, event: &str) -> Result<Kind, Fault> {
        let (sort, key) = if event.starts_with("irq") {
            (InterruptKind::Hard, "irq=")
        } else {
            (InterruptKind::Soft, "vec=")
        };
        let number = self.value(key)?;
        Ok(if event.ends_with("entry") {
            Kind::InterruptEntry { sort, number }
        } else {
            Kind::InterruptExit { sort, number }
        })
    }

    /// One of our own events or definitions.
    fn own(&self, line: &mut Line<'a>) -> Result<Option<Kind>, Fault> {
        let json: Result<Record, _> = serde_json::from_str(self.arguments);
        let record = match json {
            Ok(record) => record,
            Err(error) => {
                let at = offset(self.text, self.arguments) + error.column().saturating_sub(1);
                return Err(Fault::new(at, format!("an event of ours ({error})")));
            }
        };
        if let Record {
            time: None,
            cpu: None,
            event: Some(kind),
            task: None,
            group: None,
            name: None,
            quotient_trace: None,
            note: None,
        } = record
        {
            return Ok(Some(kind));
        }
        match record.meaning() {
            Some(Meaning::Definition(definition)) => {
                line.definition = Some(definition);
                Ok(None)
            }
            _ => self.fault(self.arguments, "one event or one definition"),
        }
    }
}
