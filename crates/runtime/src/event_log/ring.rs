//! One virtual CPU's ring: its latest events, and who and what it has named.

use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::Arc;

use quotient_core::Nanos;
use quotient_core::event::{Event, GroupId, Kind, TaskId, TaskState};

use crate::group::GroupShared;
use crate::shared::cpu_id;

/// Tasks and groups that a ring remembers having named. Beyond it, all are named again. Unit: entries.
const KNOWN_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct Ring {
    /// 0 while nobody records.
    pub(super) capacity: usize,
    pub(super) events: VecDeque<Event>,
    pub(super) lost: u64,
    /// Who runs here.
    pub(super) current: TaskId,
    /// Since when.
    pub(super) since: Nanos,
    /// What the current task does once somebody else runs; its last poll has ended.
    pub(super) state: Option<TaskState>,
    /// When the last poll ended, until the next one begins: what follows from it is stamped so, because the next one begins then.
    pub(super) polled: Option<Nanos>,
    pub(super) known: HashMap<TaskId, GroupId>,
    pub(super) groups: HashMap<GroupId, Arc<quotient_core::Group>>,
    /// Limited groups that ran here, and whether they are throttled.
    pub(super) throttled: Vec<(Arc<quotient_core::Group>, bool)>,
    pub(super) named: VecDeque<(TaskId, &'static Location<'static>, GroupId)>,
    pub(super) met: VecDeque<Arc<quotient_core::Group>>,
}

impl Ring {
    pub(super) fn push(&mut self, index: usize, time: Nanos, kind: Kind) {
        if self.capacity == 0 {
            return;
        }
        if self.events.len() == self.capacity {
            self.events.pop_front();
            self.lost += 1;
        }
        self.events.push_back(Event::new(time, cpu_id(index), kind));
    }

    /// Names a task and its group if that is news.
    pub(super) fn name(
        &mut self,
        index: usize,
        time: Nanos,
        task: TaskId,
        location: &'static Location<'static>,
        group: &Arc<GroupShared>,
    ) {
        let id = GroupId(group.core.id());
        match self.known.get(&task) {
            Some(known) if *known == id => return,
            Some(_) => self.push(index, time, Kind::Attach { task, group: id }),
            None => {
                if self.named.len() == KNOWN_MAX {
                    self.named.pop_front();
                }
                self.named.push_back((task, location, id));
            }
        }
        if self.known.len() == KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(task, id);
        self.meet(group);
    }

    /// A task whose poll another thread bears, and which may have been named elsewhere: only its group is said.
    pub(super) fn place(
        &mut self,
        index: usize,
        time: Nanos,
        task: TaskId,
        group: &Arc<GroupShared>,
    ) {
        let id = GroupId(group.core.id());
        if self.known.get(&task) != Some(&id) {
            self.push(index, time, Kind::Attach { task, group: id });
            self.meet(group);
        }
    }

    /// Defines a group if that is news.
    fn meet(&mut self, group: &Arc<GroupShared>) {
        let core = &group.core;
        let id = GroupId(core.id());
        let is_known = self
            .groups
            .get(&id)
            .is_some_and(|known| Arc::ptr_eq(known, core));
        if !is_known {
            if self.groups.len() == KNOWN_MAX {
                self.groups.clear();
                self.met.clear();
            }
            self.groups.insert(id, core.clone());
            self.met.push_back(core.clone());
        }
    }

    pub(super) fn switch(&mut self, index: usize, time: Nanos, next: TaskId) {
        let state = self.state.take().unwrap_or(TaskState::Runnable);
        let prev = std::mem::replace(&mut self.current, next);
        self.since = time;
        if prev.is_idle() && next.is_idle() {
            return;
        }
        self.push(index, time, Kind::Switch { prev, state, next });
    }

    pub(super) fn stop(&mut self) {
        *self = Ring::default();
    }
}
