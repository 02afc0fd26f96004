//! A CPU's side of the groups' times ([`crate::group_time`]): nodes that follow their groups, and service that is published.

use super::view::Seen;
use super::{ROOT, RunQueue};
use crate::config::Policy;
use crate::gates::Gates;
use crate::group_time::{GroupTime, Lone, OWED_MIN, Service, Told};
use crate::node::{Node, Place};
use crate::timeline::Timeline;
use crate::units::{Nanos, VirtualTime, to_service, to_service_lag, to_virtual};

/// How long it is remembered where a group left a machine of one CPU: an hour, in which virtual time goes less than half
/// round whatever the weights.
const ABSENCE_MAX: Nanos = Nanos::from_secs(3_600);

/// What a group gets at once is a turn from this part of a slice on.
const TURN_PARTS: u64 = 8;

/// Why a group comes back among its siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// It has something to run again: what it missed meanwhile it is owed, up to a sleeper's credit.
    Wakes,
    /// As that, but with a task that came from another CPU: what the group missed here before then counts, since it may be the same one, handed to
    /// and fro.
    Moves,
    /// It has budget again: it is owed what it was as it was throttled. What a limit keeps from it was its
    /// siblings' by right; a group that came back with a sleeper's credit in each period had its whole quota before anybody else.
    Unthrottled,
    /// It has not been away: what was taken out of it for another CPU comes back at the same moment. Nobody was owed more or less meanwhile.
    TakenBack,
}

impl<T, G: Gates> RunQueue<T, G> {
    /// Puts a group that has something to run again among its siblings here.
    pub(super) fn enter_siblings(&mut self, level: u32, why: Return, now: Nanos) {
        let timeline = &self.timelines[level as usize];
        let (node, parent) = (timeline.node, timeline.parent);
        self.prepare_group(level);
        let shares = self.slab.get(node).shares;
        let first = self.timelines[parent as usize].groups() == 0;
        let group = &self.timelines[level as usize].group.time;
        // Mostly it runs elsewhere already, so that its time is known.
        let v = match group.enter_again(shares) {
            Some(v) => v,
            None => self.enter_anew(level, shares, why),
        };
        // Else those that stand beside it are owed what they were.
        if first && why != Return::TakenBack {
            let extra = self.uncharged(parent, now).map_or(0, |(_, extra)| extra);
            let above = &self.timelines[parent as usize];
            let siblings = &above.group.time;
            let reference = above.reference(self.rules.policy, extra);
            let level = reference.since(siblings.now());
            let owed = self.owed_to_tasks(parent, level);
            let above = &mut self.timelines[parent as usize];
            let offset = level.wrapping_add(owed);
            above.set_offset(offset);
            let was_anchored = above.is_anchored;
            above.is_anchored = self.rules.policy == Policy::Eevdf;
            above.buddies.ask_always(above.is_anchored);
            if !was_anchored && above.is_anchored && above.tasks > 0 {
                // At their next charge, a tick later, V would have gone on by the weight of others, and each would be owed that. (A task of 10000
                // was owed 3.7 s for 4 ms that it had a CPU, and a group of 10 all of it.)
                self.tell_tasks(parent, true);
            }
        }
        let offset = self.timelines[parent as usize].offset;
        let node_ref = self.slab.get_mut(node);
        node_ref.v = v.offset(offset);
        node_ref.deadline = node_ref
            .v
            .plus(to_virtual(u64::from(node_ref.slice), shares));
        let timeline = &mut self.timelines[level as usize];
        timeline.cell.publish_waits(true);
        timeline.served = false;
        timeline.missed = match why {
            Return::Wakes | Return::Unthrottled => 0,
            Return::Moves | Return::TakenBack => timeline.group.time.take_missed(),
        };
        self.join(parent, node, now);
        match why {
            Return::Wakes => self.timelines[level as usize].noted_at = now,
            // It was on its way, or kept back by a limit, and has waited all the while.
            Return::Moves | Return::Unthrottled => {
                self.timelines[level as usize].noted_at = Nanos::ZERO;
            }
            Return::TakenBack => {}
        }
        self.note_waiting(level);
    }

    /// A group that may be on no CPU yet gets something to run here. Returns its virtual time.
    fn enter_anew(&self, level: u32, shares: u32, why: Return) -> VirtualTime {
        let (timeline, above) = self.with_parent(level);
        let siblings = &above.group.time;
        let least = match above.groups() {
            // Where only tasks of the parent stand, it is level with their mean: they may be behind the groups' clock, by what is kept of that.
            0 if above.is_anchored && above.tasks > 0 => {
                let owed = self.owed_to_tasks(timeline.parent, above.level_of_tasks());
                Some(siblings.now().offset(owed.wrapping_neg()))
            }
            0 => None,
            _ => above
                .least_v(&self.slab.nodes)
                .map(|least| least.offset(above.offset.wrapping_neg())),
        };
        let credit = match why {
            Return::Wakes | Return::Moves | Return::TakenBack => self.service_clock.credit,
            Return::Unthrottled => {
                let kept = to_service_lag(timeline.lag.max(0), shares).unsigned_abs();
                kept.min(self.service_clock.credit)
            }
        };
        timeline.group.time.enter(siblings, shares, least, credit)
    }

    /// The group's first child came, elsewhere, after the own tasks that compete here: from now on they are measured by the children's clock, level with
    /// it. (They never were, as long as they did not sleep: a light child that came after the tasks of its group had six times its part.)
    pub(super) fn anchor_late(&mut self, level: u32) {
        let policy = self.rules.policy;
        let timeline = &mut self.timelines[level as usize];
        let time = &timeline.group.time;
        if policy != Policy::Eevdf || !self.service_clock.is_global() || !time.has_groups() {
            return;
        }
        timeline.offset = timeline.reference(policy, 0).since(time.now());
        timeline.untold_since = time.now();
        timeline.is_anchored = true;
        timeline.buddies.ask_always(true);
        self.tell_tasks(level, true);
    }

    /// What own tasks here are owed by the groups' clock as a group comes back among them, in virtual time; `level` is the offset with
    /// which they would be owed nothing. It is kept while groups come and go, or each group that sleeps and wakes would find them level
    /// with it. What they owe is kept as far as that clock remembers it: where none of them shares its CPU, a sleeper's credit. (Where it was no
    /// more than that anywhere, and the clock was not told, it was ahead of all of them after a while, by 30 ms after ten seconds, and a group that
    /// slept 1 ms after each 1 ms beside six tasks on three CPUs had 0.07 of a CPU for 0.43, less with time.)
    fn owed_to_tasks(&self, parent: u32, level: i64) -> i64 {
        let timeline = &self.timelines[parent as usize];
        let load = u32::try_from(timeline.average.load()).unwrap_or(u32::MAX);
        if !timeline.is_anchored || load == 0 {
            return 0;
        }
        let virtually = |service: u64| to_virtual(service, load).cast_signed();
        let owes = match timeline.group.time.remembers_debts() {
            true => self.rules.debt_limit,
            false => self.service_clock.credit,
        };
        timeline.offset.wrapping_sub(level).max(-virtually(owes))
    }

    /// A group has left the timeline above: everything it got here is published.
    pub(super) fn leave_siblings(&mut self, level: u32) {
        let timeline = &mut self.timelines[level as usize];
        let own = core::mem::take(&mut timeline.unpublished);
        timeline.cell.publish_waits(false);
        let promised = core::mem::take(&mut timeline.promised);
        timeline.group.time.take_back(promised);
        let (timeline, parent) = self.with_parent(level);
        self.service_clock
            .publish_last(&timeline.group, &parent.group, own);
        timeline.group.time.leave(&parent.group.time);
    }

    pub(super) fn with_parent(&self, level: u32) -> (&Timeline, &Timeline) {
        let timeline = &self.timelines[level as usize];
        (timeline, &self.timelines[timeline.parent as usize])
    }

    /// A chosen group has received `delta` ns here, which its node has been charged for: publishes that, and looks at what
    /// it got elsewhere.
    #[inline(always)]
    pub(super) fn serve_group(&mut self, level: u32, delta: u64, waits: bool) {
        if self.service_clock.is_global() {
            self.serve_globally(level, delta, waits);
        } else {
            let outside = self.timelines[level as usize].take_outside();
            if outside > 0 {
                self.serve_outside(level, outside);
            }
        }
    }

    #[cold]
    fn serve_outside(&mut self, level: u32, outside: u64) {
        if self.service_clock.is_whole() {
            let timeline = &self.timelines[level as usize];
            let (index, parent) = (timeline.node, timeline.parent);
            let node = &mut self.slab.nodes[index as usize];
            let distance = to_virtual(outside, node.shares);
            self.timelines[parent as usize].charge_elsewhere(node, distance);
        }
    }

    fn serve_globally(&mut self, level: u32, delta: u64, waits: bool) {
        let timeline = &mut self.timelines[level as usize];
        timeline.cell.publish_waits(waits);
        // What it has here makes up for as much on each of its CPUs: forgotten by the microsecond in which another group's only task sleeps, what a task
        // missed was never enough to be noted, and one beside a child group had 0.003 CPUs of 0.5. (If a turn makes up for no more than it is, notes
        // are so many that equal tasks of a group are apart by a third.) A turn makes up for twice what the tasks elsewhere had meanwhile if all are
        // served alike. (For all that was missed, the third spinner of a group, behind one of another group that slept 300 us after each 2 ms, had
        // 0.12 CPUs for 0.375 for as long as the machine ran.)
        let cpus = u64::from(timeline.group.time.cpus());
        let is_turn = delta * TURN_PARTS >= u64::from(self.rules.base_slice);
        let mut made_up = delta.saturating_mul(cpus);
        if is_turn && made_up < timeline.missed {
            let everywhere = u64::from(timeline.group.cells.runnable());
            let alike = 2 * everywhere / u64::from(timeline.tasks.max(1));
            made_up = made_up.max(delta.saturating_mul(alike));
        }
        timeline.missed = timeline.missed.saturating_sub(made_up);
        timeline.served = true;
        timeline.turn = timeline.turn.saturating_add(delta);
        timeline.unpublished += delta;
        self.publish_service(level);
        let (timeline, above) = self.with_parent(level);
        let (index, parent) = (timeline.node, timeline.parent);
        let (time, siblings) = (&timeline.group.time, &above.group.time);
        let node = self.slab.get(index);
        let distance = Self::target_of(timeline, above, node).since(node.v);
        let lag = time.lag(siblings);
        let owed_inside = timeline.owed_inside || lag > OWED_MIN;
        if lag < -(OWED_MIN + i64::from(node.slice))
            && siblings.is_somebody_owed()
            && timeline.gives_way()
        {
            // The rest of the turn of one that is so far ahead belongs to who waits elsewhere.
            self.repick = true;
        }
        let above = &mut self.timelines[parent as usize];
        above.owed_inside = owed_inside;
        above.had_alone = 0;
        if distance > 0 {
            let node = &mut self.slab.nodes[index as usize];
            let service = above.charge_elsewhere(node, distance.unsigned_abs());
            if !is_turn {
                // What it got elsewhere and this CPU was not told of before: a moment here is no turn.
                self.miss(level, service.saturating_sub(delta.saturating_mul(cpus)));
            }
        }
    }

    /// The group at `level` missed so much here, which is remembered as far as it is worth a note. (Not counted where other CPUs tell of it during a
    /// moment's turn, it was forgotten each time: the second spinner of a light group, which had moments between two turns of others, was never noted.)
    fn miss(&mut self, level: u32, service: u64) {
        let timeline = &self.timelines[level as usize];
        let most = 2 * self.turns_to_miss(timeline);
        if service > 0 && timeline.missed < most {
            let missed = timeline.missed.saturating_add(service).min(most);
            self.timelines[level as usize].missed = missed;
        }
    }

    /// Whether a group owes more than turns and polls explain.
    #[inline]
    pub(super) fn owes_much(&self, timeline: &Timeline, above: &Timeline) -> bool {
        let clock = &self.service_clock;
        let lag = timeline.group.time.lag(&above.group.time);
        lag < -clock.credit.cast_signed() && lag < -clock.slack(&timeline.group, self.load.grain())
    }

    /// The chain goes on, which is a choice too: who owes and goes on has what nobody else can use.
    pub(super) fn note_debts(&mut self) {
        let mut level = self.leaf;
        while level != ROOT {
            let (timeline, above) = self.with_parent(level);
            let owes = self.owes_much(timeline, above);
            let timeline = &mut self.timelines[level as usize];
            timeline.knowingly = owes;
            level = timeline.parent;
        }
    }

    /// Own tasks of the chain's leaf have received `delta` ns beside child groups: tells the children's clock.
    #[inline]
    pub(super) fn serve_tasks(&mut self, level: u32, delta: u64) {
        if self.timelines[level as usize].group.time.has_groups() {
            if !self.timelines[level as usize].is_anchored {
                self.anchor_late(level);
            }
            self.timelines[level as usize].untold += delta;
            self.tell_tasks(level, false);
        }
    }

    /// Tells the children's clock what own tasks got and how much they weigh, if that is enough or `at_once`.
    pub(super) fn tell_tasks(&mut self, level: u32, at_once: bool) {
        let timeline = &mut self.timelines[level as usize];
        let load = timeline.average.load() - timeline.group_load;
        let batch = self.service_clock.batch * u64::from(self.service_clock.cpus);
        if !at_once && timeline.untold < batch && timeline.told_load > 0 {
            return;
        }
        let crowded = self.is_crowded(level);
        let timeline = &mut self.timelines[level as usize];
        let own = core::mem::take(&mut timeline.untold);
        let shares = timeline.untold_load();
        timeline.told_load = load;
        timeline.may_tell = true;
        let was_crowded = core::mem::replace(&mut timeline.told_crowded, crowded);
        let deficit = core::mem::take(&mut timeline.untold_deficit);
        let since = timeline.untold_since;
        let cut = core::mem::take(&mut timeline.untold_cut);
        let told = Told {
            own,
            shares,
            crowded: i32::from(crowded) - i32::from(was_crowded),
            deficit,
            since: Some(since),
            cut,
            moved: false,
            lone: self.lone(level, own),
        };
        let forgotten = self.timelines[level as usize]
            .group
            .time
            .publish_tasks(&told);
        self.has_forgotten(level, forgotten);
    }

    /// What a task that is about to leave for another CPU is owed by the clock of its group's child groups, in virtual time; `None` if it does
    /// not stand by that clock. The clock has been told of everybody here then: told later, it would have gone on meanwhile.
    pub(super) fn owed_beside_groups(&mut self, level: u32, index: u32) -> Option<i64> {
        let timeline = &self.timelines[level as usize];
        if !timeline.is_anchored {
            return None;
        }
        if timeline.untold_load() != 0 {
            self.tell_tasks(level, true);
        }
        let v = self.slab.get(index).v;
        Some(self.timelines[level as usize].anchor().since(v))
    }

    /// A task of `shares` that is about to leave for another CPU, and is owed `lag` by the clock of child groups, stays counted there:
    /// returns what that clock is to be told once the other CPU has counted it ([`crate::group_time::Stay`]).
    pub(super) fn keep_counted(&mut self, level: u32, shares: u32, lag: i64) -> Told {
        let timeline = &mut self.timelines[level as usize];
        // Its leaving will take that away.
        timeline.count_lag(lag, shares);
        timeline.told_load -= u64::from(shares);
        let mut told = Told {
            own: 0,
            shares: -i64::from(shares),
            crowded: 0,
            deficit: lag.saturating_mul(i64::from(shares)).wrapping_neg(),
            since: Some(timeline.untold_since),
            cut: 0,
            moved: true,
            lone: Lone::default(),
        };
        if timeline.tasks == 1 {
            // Nobody is left here who would tell it.
            told.own = core::mem::take(&mut timeline.untold);
            told.crowded = -i32::from(core::mem::take(&mut timeline.told_crowded));
        }
        told
    }

    /// A task has woken: the clock that it stands by is told at once if it may have been told that it sleeps, which is once a batch. Told as the
    /// others here have had a batch, or at the next tick, it had forgotten by then what one was owed that slept for 20 us.
    #[inline]
    pub(super) fn tell_woken(&mut self, level: u32) {
        let timeline = &self.timelines[level as usize];
        if timeline.is_anchored && timeline.may_tell && timeline.untold_load() > 0 {
            self.tell_tasks(level, true);
            self.timelines[level as usize].may_tell = false;
        }
    }

    /// A task has come from another CPU: the clock that it stands by is told at once, since the other CPU's part is told as soon.
    #[inline(never)]
    pub(super) fn tell_moved(&mut self, level: u32) {
        if self.timelines[level as usize].is_anchored {
            self.tell_tasks(level, true);
        }
    }

    /// Whether own tasks of the group have something beside them here, be it a child of the group or who competes with the group itself, or with
    /// one above it: then what they are owed is for want of their turn. O(depth)
    fn is_crowded(&self, level: u32) -> bool {
        self.timelines[level as usize].tasks > 0 && self.anything_beside(level)
    }

    /// Whether anything competes in the timeline beside what runs there, or in one above it. O(depth)
    pub(super) fn anything_beside(&self, mut level: u32) -> bool {
        while let Some(timeline) = self.timelines.get(level as usize) {
            if timeline.nr > 1 {
                return true;
            }
            level = timeline.parent;
        }
        false
    }

    /// Publishes what a group got here, if it is time to.
    pub(super) fn publish_service(&mut self, level: u32) {
        let (timeline, above) = self.with_parent(level);
        let since = self.last - timeline.published_at;
        let (own, clock) = (timeline.unpublished, self.service_clock);
        let service = Service {
            own,
            credit: clock.credit,
            surplus: if timeline.knowingly { own } else { 0 },
        };
        let here = Seen { queue: self, level };
        if clock.publish(&timeline.group, &above.group, service, since, &here) {
            let timeline = &mut self.timelines[level as usize];
            timeline.unpublished = 0;
            timeline.published_at = self.last;
        }
    }

    /// Where a group's node belongs: at the group's time, with what is not published yet.
    #[inline]
    fn target_of(timeline: &Timeline, above: &Timeline, node: &Node<T>) -> VirtualTime {
        let v = timeline.group.time.v().offset(above.offset);
        match timeline.unpublished {
            // Of most that wait, which takes no division.
            0 => v,
            unpublished => v.plus(to_virtual(unpublished, node.shares)),
        }
    }

    /// How far a child group's node is behind where it belongs, in virtual time.
    #[inline]
    pub(super) fn distance_to_target(&self, level: u32, index: u32) -> i64 {
        let node = self.slab.get(index);
        let timeline = &self.timelines[node.owned as usize];
        let above = &self.timelines[level as usize];
        Self::target_of(timeline, above, node).since(node.v)
    }

    /// What the group at `level` got elsewhere and is not charged for here yet, ns.
    pub(super) fn served_elsewhere(&self, level: u32) -> u64 {
        let timeline = &self.timelines[level as usize];
        let distance = self.distance_to_target(timeline.parent, timeline.node);
        let shares = u64::from(self.slab.get(timeline.node).shares);
        to_service(distance.max(0).unsigned_abs(), shares)
    }

    /// Charges a queued group for what it got elsewhere. Returns whether that changed its order.
    #[inline]
    pub(super) fn correct(&mut self, level: u32, index: u32) -> bool {
        let distance = if self.service_clock.is_global() {
            self.distance_to_target(level, index)
        } else {
            let node = self.slab.get(index);
            let shares = node.shares;
            match self.timelines[node.owned as usize].take_outside() {
                0 => 0,
                outside => to_virtual(outside, shares).cast_signed(),
            }
        };
        if distance <= 0 || !self.service_clock.is_whole() {
            return false;
        }
        self.correct_by(level, index, distance)
    }

    #[inline(never)]
    fn correct_by(&mut self, level: u32, index: u32, distance: i64) -> bool {
        let nodes = &mut self.slab.nodes;
        let timeline = &mut self.timelines[level as usize];
        timeline.unqueue(nodes, index, &self.rules);
        let node = &mut nodes[index as usize];
        let (owned, service) = (
            node.owned,
            timeline.charge_elsewhere(node, distance.unsigned_abs()),
        );
        timeline.queue(nodes, index, &self.rules);
        self.timelines[owned as usize].missed += service;
        true
    }

    /// A group's weight has changed: it is measured anew, here and, by the first CPU that notices, everywhere.
    pub(super) fn reweigh(&mut self, level: u32, shares: u32) {
        let (index, parent) = {
            let timeline = &self.timelines[level as usize];
            (timeline.node, timeline.parent)
        };
        let place = self.slab.get(index).place;
        if place == Place::Off {
            self.slab.get_mut(index).shares = shares;
            let (timeline, above) = self.with_parent(level);
            timeline.group.time.reweigh(&above.group.time, shares);
            return;
        }
        if place == Place::Current {
            // What was served so far was served at the old weight.
            self.flush();
        }
        // Measured anew, what it got elsewhere is not charged any more, but missed here all the same. (A weight that was written once a tick kept a task
        // of the group from ever being noted, and from any turn.)
        let elsewhere = self.served_elsewhere(level);
        let timeline = &mut self.timelines[level as usize];
        timeline.missed = timeline.missed.saturating_add(elsewhere);
        let timeline = &mut self.timelines[level as usize];
        let own = core::mem::take(&mut timeline.unpublished);
        let (timeline, above) = self.with_parent(level);
        let siblings = &above.group.time;
        GroupTime::publish_now(&timeline.group, siblings, own, self.service_clock.credit);
        timeline.group.time.reweigh(siblings, shares);
        let v = timeline.group.time.v().offset(above.offset);
        let nodes = &mut self.slab.nodes;
        let above = &mut self.timelines[parent as usize];
        if place.is_queued() {
            above.unqueue(nodes, index, &self.rules);
        }
        let node = &mut nodes[index as usize];
        above.average.remove(node.v, node.shares);
        above.group_load += u64::from(shares);
        above.group_load -= u64::from(node.shares);
        let left = i128::from(node.deadline.since(node.v)) * i128::from(node.shares);
        node.v = v;
        node.deadline = v.offset((left / i128::from(shares)) as i64);
        node.shares = shares;
        above.average.add(v, shares);
        if place.is_queued() {
            above.queue(nodes, index, &self.rules);
        } else {
            above.protect(&nodes[index as usize], &self.rules);
            self.set_limit();
            // What it was chosen by is another weight now. Going on by a protection that begins anew, a group whose weight is set at each
            // tick would keep the CPU for good.
            self.repick = true;
        }
        self.publish_entities(parent);
    }

    /// What a group comes back with on a machine of one CPU or under split weights: its credit, and where it left, which it
    /// does not go back beyond. So debt decays as V passes it, and by nothing else: measured against V, which debtors
    /// who come and go move to and fro, each would take the other's debt for paid.
    #[inline]
    pub(super) fn after_absence(&mut self, level: u32, now: Nanos) -> (i64, Option<VirtualTime>) {
        let timeline = &mut self.timelines[level as usize];
        timeline.take_outside();
        if level == ROOT || self.rules.policy == Policy::Cfs {
            return (timeline.lag, None);
        }
        // Before virtual time can have come round.
        let recent = now.0.saturating_sub(timeline.left_at) < ABSENCE_MAX.0;
        (timeline.lag.max(0), recent.then_some(timeline.left_v))
    }
}
