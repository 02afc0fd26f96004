//! One line of the native log: an event or a definition as one JSON object.
//!
//! ```text
//! {"quotient_trace":1}
//! {"group":{"id":1,"path":"web","parent":0}}
//! {"task":{"id":7,"name":"client","group":1}}
//! {"note":{"recorder":"kernel"}}
//! {"time":1500,"cpu":0,"event":{"switch":{"prev":0,"state":"R","next":7}}}
//! ```

use quotient_core::event::{Definition, Event, GroupId, GroupInfo, Kind, NameId, TaskId, TaskInfo};
use quotient_core::{CpuId, Nanos, Nice};
use serde::{Deserialize, Serialize};

use crate::read::Note;

/// Of the native log. Grows when a reader of the old one would misunderstand the new one.
pub(crate) const VERSION: u32 = 1;

/// The remark ([`Kind::Mark`]) whose figure is the number of virtual CPUs, in a log of the runtime's: those that are seen beyond them stood in for others.
pub const VCPUS_REMARK: &str = "virtual CPUs";

/// Longest name in a line of text. Unit: characters. The kernel's bound for `comm`.
const COMM_LETTERS: usize = 15;

/// What a line of text calls a task of this name: shortened, and without what could be taken for a part of the line.
pub(crate) fn in_a_line(name: &str) -> String {
    let mask = |letter: char| match letter {
        '[' | '=' => '_',
        letter if letter.is_control() => '_',
        letter => letter,
    };
    name.chars().take(COMM_LETTERS).map(mask).collect()
}

/// All that a line can hold. Exactly one of the parts is there (time, CPU and event are one).
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotient_trace: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Kind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<NameRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskRecord {
    pub id: TaskId,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<TaskId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<TaskId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<Nice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub real_time: Option<u8>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupRecord {
    pub id: GroupId,
    pub path: String,
    #[serde(default)]
    pub parent: GroupId,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameRecord {
    pub id: NameId,
    pub text: String,
}

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The first line of a log, with its version.
    Header(u32),
    /// Something happened.
    Event(Event),
    /// A number got a name.
    Definition(Definition),
    /// The trace says something beside its events.
    Note(Note),
}

impl Record {
    pub(crate) fn of_event(event: &Event) -> Record {
        Record {
            time: Some(event.time),
            cpu: Some(event.cpu),
            event: Some(event.kind),
            ..Record::default()
        }
    }

    pub(crate) fn of_definition(definition: &Definition) -> Record {
        let mut record = Record::default();
        match definition.clone() {
            Definition::Task { id, info } => {
                record.task = Some(TaskRecord {
                    id,
                    name: info.name,
                    group: info.group,
                    process: info.process,
                    parent: info.parent,
                    nice: info.nice,
                    real_time: info.real_time,
                });
            }
            Definition::Group { id, info } => {
                record.group = Some(GroupRecord {
                    id,
                    path: info.path,
                    parent: info.parent,
                });
            }
            Definition::Name { id, text } => record.name = Some(NameRecord { id, text }),
        }
        record
    }

    /// What the line says; `None` if it says nothing or two things at once.
    pub(crate) fn meaning(mut self) -> Option<Meaning> {
        if let Some(note) = self.note.take() {
            let is_alone = self == Record::default();
            return is_alone.then_some(Meaning::Note(note));
        }
        Some(match self {
            Record {
                quotient_trace: Some(version),
                time: None,
                cpu: None,
                event: None,
                task: None,
                group: None,
                name: None,
                note: None,
            } => Meaning::Header(version),
            Record {
                quotient_trace: None,
                time: Some(time),
                cpu: Some(cpu),
                event: Some(kind),
                task: None,
                group: None,
                name: None,
                note: None,
            } => Meaning::Event(Event::new(time, cpu, kind)),
            Record {
                quotient_trace: None,
                time: None,
                cpu: None,
                event: None,
                task:
                    Some(TaskRecord {
                        id,
                        name,
                        group,
                        process,
                        parent,
                        nice,
                        real_time,
                    }),
                group: None,
                name: None,
                note: None,
            } => Meaning::Definition(Definition::Task {
                id,
                info: TaskInfo {
                    name,
                    group,
                    process,
                    parent,
                    nice,
                    real_time,
                },
            }),
            Record {
                quotient_trace: None,
                time: None,
                cpu: None,
                event: None,
                task: None,
                group: Some(GroupRecord { id, path, parent }),
                name: None,
                note: None,
            } => Meaning::Definition(Definition::Group {
                id,
                info: GroupInfo { path, parent },
            }),
            Record {
                quotient_trace: None,
                time: None,
                cpu: None,
                event: None,
                task: None,
                group: None,
                name: Some(NameRecord { id, text }),
                note: None,
            } => Meaning::Definition(Definition::Name { id, text }),
            _ => return None,
        })
    }
}
