//! Which waiting entities other CPUs should pull: a CPU notes those of its own that are owed service, and asks for those that others noted.
//! The notes themselves are words of the group ([`crate::group_time`], *Pulling*).

use super::{ROOT, RunQueue};
use crate::balance::Pull;
use crate::gates::Gates;
use crate::group_time::{Note, OWED_MIN};
use crate::node::NONE;
use crate::timeline::Timeline;
use crate::units::to_service_lag;

/// Turns that a group may get on each other CPU while its tasks here wait, before one of them is worth pulling. Two: with four, 32 equal tasks on 16
/// CPUs beside as many of another group had 0.22 to 0.26 of a CPU (0.238 to 0.262 with two), and one that wakes in a group over its share
/// waited 5.5 ms at the 99th percentile (4.2); random set-ups are as fair.
const MISSED_TURNS: u64 = 2;

impl<T, G: Gates> RunQueue<T, G> {
    /// Whether it is a group that competes here and is not chosen.
    pub(super) fn is_waiting_group(&self, level: u32) -> bool {
        let node = self.timelines[level as usize].node;
        node != NONE && self.slab.get(node).place.is_queued()
    }

    /// A group of which something waits here: what it is owed is not to be cut, and worth a note if it is enough.
    pub(super) fn note_waiting(&mut self, level: u32) {
        if !self.service_clock.is_global() {
            return;
        }
        let most = self.waited_since(level);
        let (timeline, above) = self.with_parent(level);
        let (time, siblings) = (&timeline.group.time, &above.group.time);
        let lag = time.lag(siblings);
        time.note_waiting(lag, most);
        if lag > OWED_MIN {
            self.drop_note_of(timeline.parent, above.current);
            siblings.note_owed(self.cpu, timeline.group.id(), lag);
        } else if lag < -self.service_clock.credit.cast_signed() {
            let owes = time.v().since(siblings.now()).max(0).unsigned_abs();
            siblings.note_least(self.cpu, timeline.group.id(), owes);
        }
        if timeline.tasks > 0 && timeline.missed > self.turns_to_miss(timeline) {
            time.note_owed(self.cpu, timeline.group.id(), timeline.missed.cast_signed());
        }
    }

    /// What the group at `level` can have come to be owed since that was asked last, ns, if it has waited here all the while: all that the CPUs did.
    fn waited_since(&mut self, level: u32) -> u64 {
        let timeline = &mut self.timelines[level as usize];
        // Who comes does after this CPU was charged last.
        let since = timeline.noted_at;
        timeline.noted_at = since.max(self.last);
        let waited = self.last.saturating_sub(since).0;
        waited.saturating_mul(self.service_clock.cpus.into())
    }

    /// More than that is too much for a group to miss on a CPU, ns.
    pub(super) fn turns_to_miss(&self, timeline: &Timeline) -> u64 {
        let cpus = u64::from(timeline.group.time.cpus());
        MISSED_TURNS * cpus * u64::from(self.rules.base_slice)
    }

    /// Own tasks wait beside groups of which some may be served elsewhere: notes them if they are owed enough to be worth pulling.
    /// Instead of who is `chosen` beside them, if anybody is.
    pub(super) fn note_tasks_waiting(&self, level: u32, chosen: u32) {
        let lag = self.owed_to_waiting_task(level);
        if lag > OWED_MIN {
            self.drop_note_of(level, chosen);
            let group = &self.timelines[level as usize].group;
            group.time.note_owed(self.cpu, group.id(), lag);
        }
    }

    /// What the first own task that waits beside groups is owed by their clock, ns; 0 where a group goes before it.
    fn owed_to_waiting_task(&self, level: u32) -> i64 {
        let timeline = &self.timelines[level as usize];
        if timeline.tasks == 0 || !timeline.is_anchored {
            return 0;
        }
        let first = timeline.ready.peek().or_else(|| timeline.later.peek());
        match first.map(|(index, _)| self.slab.get(index)) {
            Some(node) if node.is_task() => {
                to_service_lag(timeline.anchor().since(node.v), node.shares)
            }
            _ => 0,
        }
    }

    /// The turn of the group that was put back is over and another one is chosen: the first waits from now on, and so does what
    /// had its turn inside it. The next look around may come after the other's poll, and see nobody waiting however often
    /// it happens.
    pub(super) fn note_put_back(&mut self, mut level: u32, chosen: u32) {
        let put_back = |queue: &mut Self, level: u32| {
            core::mem::replace(&mut queue.timelines[level as usize].put_back, NONE)
        };
        let mut index = put_back(self, level);
        if index == NONE && self.slab.get(chosen).owned != NONE {
            // So it is of a task beside groups.
            self.note_tasks_waiting(level, chosen);
        }
        while index != NONE && index != chosen {
            let node = self.slab.nodes.get(index as usize);
            let Some(node) = node.filter(|node| node.timeline == level && node.place.is_queued())
            else {
                break;
            };
            if node.is_task() {
                break;
            }
            level = node.owned;
            let (timeline, above) = self.with_parent(level);
            let lag = timeline.group.time.lag(&above.group.time);
            // Likewise if it owes so much that it is noted for that: who is noted as owed hides it.
            if lag > OWED_MIN || lag < -self.service_clock.credit.cast_signed() {
                self.drop_note_of(timeline.parent, chosen);
            }
            self.note_waiting(level);
            index = put_back(self, level);
        }
    }

    /// Who is chosen at `level` may be noted here, and nothing more of it waits, while somebody else there does from now on and is owed something: that
    /// is to be noted instead. (Two of weight 1000 in turn on one CPU, whose notes were always of the one that ran, had half a CPU each for as long as
    /// the machine ran, and a sibling of weight 100 the other CPU; and so had a group and a task beside it.)
    fn drop_note_of(&self, level: u32, chosen: u32) {
        let timeline = &self.timelines[level as usize];
        let chosen = self.slab.nodes.get(chosen as usize);
        let Some(chosen) = chosen.filter(|chosen| chosen.timeline == level) else {
            // Nobody was chosen there.
            return;
        };
        let (group, waits) = match self.timelines.get(chosen.owned as usize) {
            Some(inside) => (&inside.group, inside.nr > 1),
            None => (&timeline.group, timeline.tasks > 1),
        };
        if !waits {
            timeline.group.time.forget_owed(self.cpu, group.id());
        }
    }

    /// The choice is a group that is owed nothing: if a sibling that is waits on another CPU, that is where to pull from.
    pub(super) fn suggest_pull(&mut self, level: u32, chosen: u32) {
        let owned = self.slab.get(chosen).owned;
        if let Some(inside) = self.timelines.get(owned as usize)
            && inside.nr <= 1
        {
            let siblings = &self.timelines[level as usize].group.time;
            siblings.forget_least(self.cpu, inside.group.id());
        }
        if self.suggested.is_some() {
            // Who is noted above goes first every other time: always, a task below that waits for its group's other CPU would never be pulled where
            // something above is noted at each choice; never, whoever has been noted above was forgotten.
            self.above_first = !self.above_first;
            if self.above_first {
                return;
            }
        }
        let siblings = &self.timelines[level as usize].group.time;
        if let Some(inside) = self.timelines.get(owned as usize)
            && inside.group.time.is_somebody_owed()
            && inside.tasks > 0
            // Not where it is chosen for moments only, and misses turns itself: what comes there waits again, and who is noted there is forgotten. (Two CPUs
            // whose tasks slept for a tenth of the time handed a spinner to each other so: it was never noted when the CPUs of its siblings looked.)
            && 2 * inside.missed <= self.turns_to_miss(inside)
            && self.is_served_for_long(inside)
            && let Some(note) = inside.group.time.take_owed(self.cpu)
        {
            // Its own tasks, which wait while others of the group run elsewhere.
            self.suggested = Some(note.pull(&inside.group));
            return;
        }
        if !siblings.is_somebody_owed() {
            return self.suggest_least(level, owned);
        }
        if self.should_spread(level) {
            return;
        }
        let offset = self.timelines[level as usize].offset;
        let v = self.slab.get(chosen).v.offset(offset.wrapping_neg());
        let gives_way = self
            .timelines
            .get(owned as usize)
            .is_none_or(Timeline::gives_way);
        if !gives_way || v.is_before(siblings.now()) {
            return;
        }
        self.drop_stale_note(level);
        let siblings = &self.timelines[level as usize].group.time;
        if let Some(note) = siblings.take_owed(self.cpu) {
            let above = &self.timelines[level as usize].group;
            self.suggested = Some(note.pull(above));
        }
    }

    /// Whether the turns of a group here are no moments between others': a quarter of a slice, or half of that where it was most of the time since the
    /// last one began. (Without a least, CPUs that run one short request of a group after another took its spinners, and it answered a tenth less.)
    fn is_served_for_long(&self, inside: &Timeline) -> bool {
        let quarter = u64::from(self.rules.base_slice) / 4;
        let since = self.last.saturating_sub(inside.began_at).0;
        inside.turn.max(inside.turn_before) >= quarter
            || inside.nr == 1 && inside.turn >= quarter / 2 && 2 * inside.turn >= since
    }

    /// The same where nobody who waits is owed anything: for one that owes less than who is chosen.
    fn suggest_least(&mut self, level: u32, chosen: u32) {
        let Some(inside) = self.timelines.get(chosen as usize) else {
            return;
        };
        if !inside.gives_way() {
            return;
        }
        let above = &self.timelines[level as usize].group;
        let slack = self.service_clock.slack(&inside.group, self.load.grain());
        if let Some(note) = Note::least(self.cpu, above, &inside.group, slack) {
            self.suggested = Some(note.pull(above));
        }
    }

    /// Takes the note of one away that waits here no more. Who still does is left to be found by others.
    fn drop_stale_note(&self, level: u32) {
        let timeline = &self.timelines[level as usize];
        let Some(group) = timeline.group.time.noted_on(self.cpu) else {
            return;
        };
        let waits = if group == timeline.group.id() {
            timeline.tasks > 0
        } else {
            let slot = self.slots.get(group as usize).copied().unwrap_or(NONE);
            slot != NONE && self.is_waiting_group(slot)
        };
        if !waits {
            timeline.group.time.forget_owed(self.cpu, group);
        }
    }

    /// Whether a group is owed more than turns and polls explain: then what of it waits elsewhere is where it should be, since another CPU is
    /// what the group lacks. (Pulled back to where the rest of it runs as often as it was pulled away, a task never saw the end of the poll that it
    /// waited for, and its group had one CPU of the two that were its due.)
    fn should_spread(&self, level: u32) -> bool {
        if level == ROOT {
            return false;
        }
        let (timeline, above) = self.with_parent(level);
        let lag = timeline.group.time.lag(&above.group.time);
        lag > self.service_clock.slack(&timeline.group, self.load.grain())
    }

    /// What was detached from here for `pull` was taken back, since the host knows that it may not run on other CPUs: who else is noted beside it goes
    /// before it for a while. (Five groups of 1000 that were bound to one CPU hid one of 200, which was owed the other CPU and had 0.04 of it.) O(1).
    pub fn refuse_pull(&mut self, pull: &Pull) {
        let level = self.slots.get(pull.group as usize).copied();
        let Some(level) = level.filter(|&level| level != NONE && pull.noted) else {
            return;
        };
        let timeline = &self.timelines[level as usize];
        let time = match self.timelines.get(timeline.parent as usize) {
            Some(above) if !pull.own => &above.group.time,
            _ => &timeline.group.time,
        };
        time.note_in_vain(self.cpu, pull.group);
    }

    /// Whom to pull from rather than run what was picked last: set where that is of a group that is owed nothing and a
    /// sibling that is owed something waits on another CPU. The host asks after each [`RunQueue::pick`] and
    /// [`RunQueue::switch`], pulls, puts the picked task back and picks again. Left to the next balancing, the sibling comes
    /// where its parent has just had its turn, and that may repeat itself for as long as the machine runs: spinners beside
    /// siblings with long polls had 0.003 of their share.
    #[inline]
    pub fn take_pull(&mut self) -> Option<Pull> {
        let pull = self.suggested.take()?;
        // What comes must not wait for a turn that should have been its own.
        self.repick = true;
        Some(pull)
    }
}
