//! Numbers and their names: tasks, groups, remarks.

use crate::Nice;
use std::collections::HashMap;
use std::fmt;

/// The number of a task: a kernel's thread id, or the low 32 bits of a runtime's task number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct TaskId(pub u32);

impl TaskId {
    /// Nobody: the CPU is idle.
    pub const IDLE: TaskId = TaskId(0);

    /// Whether this stands for an idle CPU.
    #[inline]
    pub const fn is_idle(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "task {}", self.0)
    }
}

/// The number of a group. 0 is the root, whether or not it was defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct GroupId(pub u32);

impl GroupId {
    /// The root of the tree.
    pub const ROOT: GroupId = GroupId(0);
}

impl fmt::Display for GroupId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "group {}", self.0)
    }
}

/// The number of a remark's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct NameId(pub u32);

/// What a task is called, and where it belongs at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct TaskInfo {
    /// A kernel's `comm`, or the place where the task was spawned.
    pub name: String,
    /// Its group when it is defined; [`Kind::Attach`](super::Kind::Attach) changes it. `None`: as it was, at first its
    /// parent's.
    #[cfg_attr(feature = "serde", serde(default))]
    pub group: Option<GroupId>,
    /// The process that it is a thread of, where a trace says so. `None`: as it was.
    #[cfg_attr(feature = "serde", serde(default))]
    pub process: Option<TaskId>,
    /// Who made it, where a trace says so. `None`: as it was.
    #[cfg_attr(feature = "serde", serde(default))]
    pub parent: Option<TaskId>,
    /// How nice it is, where a trace says so. `None`: as it was.
    #[cfg_attr(feature = "serde", serde(default))]
    pub nice: Option<Nice>,
    /// Its priority in the real-time class, 1 to 99, where a trace says so; 0: it is in that no more. `None`: as it was, at first not in it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub real_time: Option<u8>,
}

/// What a group is called, and whose child it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct GroupInfo {
    /// The whole path, such as `tenants/acme`; empty for the root.
    pub path: String,
    /// The parent; the root is its own.
    #[cfg_attr(feature = "serde", serde(default))]
    pub parent: GroupId,
}

/// The meaning of a number. Comes before the first event that uses it; the last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Definition {
    /// Of a task.
    Task {
        /// Its number.
        id: TaskId,
        /// What it is.
        info: TaskInfo,
    },
    /// Of a group.
    Group {
        /// Its number.
        id: GroupId,
        /// What it is.
        info: GroupInfo,
    },
    /// Of a remark.
    Name {
        /// Its number.
        id: NameId,
        /// What it says.
        text: String,
    },
}

/// All definitions seen so far, for sinks that write names.
#[derive(Clone, Debug, Default)]
pub struct Table {
    tasks: HashMap<TaskId, TaskInfo>,
    groups: HashMap<GroupId, GroupInfo>,
    names: HashMap<NameId, String>,
}

impl Table {
    /// Nothing is defined.
    pub fn new() -> Table {
        Table::default()
    }

    /// Takes a definition; a second one of the same number replaces the first, but for what it does not say.
    pub fn define(&mut self, definition: &Definition) {
        match definition {
            Definition::Task { id, info } => {
                let known = self.tasks.entry(*id).or_default();
                known.name.clone_from(&info.name);
                known.group = info.group.or(known.group);
                known.process = info.process.or(known.process);
                known.parent = info.parent.or(known.parent);
                known.nice = info.nice.or(known.nice);
                known.real_time = info.real_time.or(known.real_time);
            }
            Definition::Group { id, info } => {
                self.groups.insert(*id, info.clone());
            }
            Definition::Name { id, text } => {
                self.names.insert(*id, text.clone());
            }
        }
    }

    /// Notes that a task belongs to another group from now on.
    pub fn attach(&mut self, task: TaskId, group: GroupId) {
        self.tasks.entry(task).or_default().group = Some(group);
    }

    /// Notes that a task was made by another: it is in its parent's group unless the trace said otherwise before.
    pub fn inherit(&mut self, task: TaskId, parent: TaskId) {
        let group = self.tasks.get(&parent).and_then(|info| info.group);
        let known = self.tasks.entry(task).or_default();
        known.group = known.group.or(group);
    }

    /// Notes that a task is over: its number may come back as somebody else, its name is still asked for.
    pub fn over(&mut self, task: TaskId) {
        if let Some(info) = self.tasks.get_mut(&task) {
            info.group = None;
            info.process = None;
            info.parent = None;
            info.nice = None;
            info.real_time = None;
        }
    }

    /// Forgets a task, so that a long trace with many short tasks stays small.
    pub fn forget(&mut self, task: TaskId) {
        self.tasks.remove(&task);
    }

    /// The name of a task; empty if it was never defined.
    pub fn task_name(&self, task: TaskId) -> &str {
        self.tasks.get(&task).map_or("", |info| &info.name)
    }

    /// What is known of a task.
    pub fn task(&self, task: TaskId) -> Option<&TaskInfo> {
        self.tasks.get(&task)
    }

    /// The group of a task; the root if it was never defined.
    pub fn group_of(&self, task: TaskId) -> GroupId {
        self.tasks
            .get(&task)
            .and_then(|info| info.group)
            .unwrap_or(GroupId::ROOT)
    }

    /// The path of a group; empty for the root and for groups that were never defined.
    pub fn group_path(&self, group: GroupId) -> &str {
        self.groups.get(&group).map_or("", |info| &info.path)
    }

    /// The parent of a group; the root for the root and for groups that were never defined.
    pub fn parent_of(&self, group: GroupId) -> GroupId {
        self.groups
            .get(&group)
            .map_or(GroupId::ROOT, |info| info.parent)
    }

    /// The text of a remark; empty if it was never defined.
    pub fn name(&self, name: NameId) -> &str {
        self.names.get(&name).map_or("", String::as_str)
    }

    /// All groups, in no order.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &GroupInfo)> {
        self.groups.iter().map(|(id, info)| (*id, info))
    }

    /// All tasks, in no order.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, &TaskInfo)> {
        self.tasks.iter().map(|(id, info)| (*id, info))
    }
}
