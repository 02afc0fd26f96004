//! Putting a task in: placement at every level that becomes runnable, and whether the current task should give way.

use super::siblings::Return;
use super::{ROOT, RunQueue};
use crate::arrived::Arrived;
use crate::cfs::lag_after_sleep;
use crate::config::{GroupClock, Policy};
use crate::eevdf::{Contest, Request};
use crate::ended::Ended;
use crate::entity::{Enqueue, Past, Rest, TaskEntity};
use crate::gates::Gates;
use crate::group::Group;
use crate::group_time::OWED_MIN;
use crate::node::{NONE, Node, Place, Traits};
use crate::units::{Nanos, VirtualTime, to_virtual};
use std::sync::Arc;

/// What decides where an entity is placed in a timeline.
#[derive(Clone, Copy)]
struct Bounds {
    /// What it is owed, in virtual time.
    lag: i64,
    /// Not before this.
    least: Option<VirtualTime>,
    /// If it owes and comes back: where it left, which it goes back to, and goes on with that request, unless V has passed that.
    left: Option<(VirtualTime, Rest)>,
}

/// Where a group stands on one CPU. Valid until the next call of the queue that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSlot(u32);

impl<T, G: Gates> RunQueue<T, G> {
    /// Queues a runnable task in its group (or the nearest ancestor that was not removed). Returns whether the
    /// current task should give way at its next chance; true as well if there is no current task.
    ///
    /// O(log n) a level that was empty, O(1) with a quantum; only those levels are touched.
    pub fn enqueue(
        &mut self,
        group: &Arc<Group>,
        entity: TaskEntity,
        handle: T,
        kind: Enqueue,
        now: Nanos,
    ) -> bool {
        let slot = self.slot(group);
        self.enqueue_in(slot, entity, handle, kind, now)
    }

    /// The place of a group on this CPU, for [`RunQueue::enqueue_in`]: a handle that itself holds the group can thus be
    /// moved in without another reference to the group. O(1) but for the first time that this CPU meets the group.
    #[inline]
    pub fn slot(&mut self, group: &Arc<Group>) -> GroupSlot {
        self.follow_changes();
        GroupSlot(self.timeline_of(group))
    }

    /// As [`RunQueue::enqueue`], with the group's slot, which must come from this queue's [`RunQueue::slot`] just before.
    pub fn enqueue_in(
        &mut self,
        slot: GroupSlot,
        entity: TaskEntity,
        handle: T,
        kind: Enqueue,
        now: Nanos,
    ) -> bool {
        self.enqueue_back(slot, entity, handle, (kind, Return::Wakes), now)
    }

    /// As [`RunQueue::enqueue_in`], saying why groups that are empty without the task come back.
    #[inline(always)]
    pub(super) fn enqueue_back(
        &mut self,
        slot: GroupSlot,
        entity: TaskEntity,
        handle: T,
        (kind, why): (Enqueue, Return),
        now: Nanos,
    ) -> bool {
        let leaf = slot.0;
        self.average_path(leaf, now);
        let (index, mut lag) = self.adopt(leaf, entity, handle, kind, now);
        self.restore_task_average(index, &entity, now);
        let request = match kind {
            Enqueue::New if !entity.past.has(Past::PLACED) => {
                lag += self.lag_of_ended(leaf, index, now);
                Request::First
            }
            Enqueue::Migrate if entity.past.has(Past::MOVED) => Request::Rest(entity.rest),
            _ => Request::Whole,
        };
        self.count_task(leaf, true);
        self.count_active(leaf, 1);
        let (mut level, mut node) = (leaf, index);
        let bounds = Bounds {
            lag,
            least: None,
            left: self.where_it_left(&entity, kind),
        };
        self.admit(level, node, bounds, request, now);
        if kind == Enqueue::Migrate {
            self.tell_moved(leaf);
        } else {
            self.tell_woken(leaf);
        }
        if self.timelines[level as usize].nr == 1 {
            let why = match (why, kind) {
                (Return::Wakes, Enqueue::Migrate) => Return::Moves,
                (why, _) => why,
            };
            let (above, top) = self.link_up(level, why, now);
            if above != level {
                (level, node) = (above, top);
            }
        }
        if entity.is_deferring() {
            self.count_deferring(leaf, 1);
            self.open_for_deferring(leaf, now);
        }
        self.refresh_parts(leaf);
        self.publish_counts();
        if kind == Enqueue::WakeBuddy && self.rules.next_buddy {
            self.timelines[leaf as usize].buddies.next = index;
        }
        let overdue = kind == Enqueue::Migrate && entity.past.is_overdue() && why == Return::Wakes;
        if overdue {
            // The turn of its group goes on with it, and who had it waits. Left to wait here, too, it was taken by whoever idled next, before it had
            // any turn, and back to where it had waited: for a microsecond, behind a task that sleeps no longer.
            self.timelines[leaf as usize].buddies.next = index;
        }
        if self.timelines[level as usize].current == NONE {
            // Either nothing runs at all, or what runs is elsewhere and not concerned.
            return self.current == NONE;
        }
        self.contest(level, node, kind != Enqueue::Migrate, now) || overdue && leaf == self.leaf
    }

    /// Puts a group that has something to run again into the timeline above, and so on up to the first that had something
    /// already, or is throttled, or has no budget and is throttled thereby. Returns the timeline that was reached and what
    /// came to it; the level itself if nothing was done.
    pub(super) fn link_up(&mut self, from: u32, why: Return, now: Nanos) -> (u32, u32) {
        let (mut level, mut node) = (from, NONE);
        while level != ROOT {
            if self.timelines[level as usize].meter.is_some() && !self.may_link(level, now) {
                break;
            }
            if self.service_clock.is_global() {
                let timeline = &self.timelines[level as usize];
                let (entered, above) = (timeline.node, timeline.parent);
                self.average_one(above, now);
                // Groups above were empty for want of it: they come back as from a sleep.
                let why = match why {
                    Return::Unthrottled if level != from => Return::Wakes,
                    why => why,
                };
                self.enter_siblings(level, why, now);
                (node, level) = (entered, above);
                if self.timelines[level as usize].nr > 1 {
                    break;
                }
                continue;
            }
            let (mut lag, least) = self.after_absence(level, now);
            let timeline = &self.timelines[level as usize];
            if self.rules.policy == Policy::Cfs {
                let (since, above) = (timeline.left_at, timeline.parent);
                let shares = self.slab.get(timeline.node).shares;
                lag = lag_after_sleep(&self.timelines[above as usize], lag, since, now, shares);
            }
            let timeline = &self.timelines[level as usize];
            (node, level) = (timeline.node, timeline.parent);
            self.average_one(level, now);
            let bounds = Bounds {
                lag,
                least,
                left: None,
            };
            self.admit(level, node, bounds, Request::Whole, now);
            if self.timelines[level as usize].nr > 1 {
                break;
            }
        }
        (level, node)
    }

    /// Whether a limited group may be put into the timeline above. One without budget is throttled instead.
    fn may_link(&mut self, level: u32, now: Nanos) -> bool {
        if let Some(meter) = self.timelines[level as usize].meter.as_deref() {
            meter.local.set_busy();
        }
        self.throttle_if_dry(level, now);
        !self.is_closed(level)
    }

    fn adopt(
        &mut self,
        timeline: u32,
        entity: TaskEntity,
        handle: T,
        kind: Enqueue,
        now: Nanos,
    ) -> (u32, i64) {
        let custom = entity.slice != 0;
        let slice = if custom {
            entity.slice
        } else {
            self.rules.base_slice
        };
        let mut lag = entity.lag;
        let slept = kind != Enqueue::Migrate && entity.past.has(Past::PLACED);
        if self.rules.policy == Policy::Cfs && slept {
            let home = &self.timelines[timeline as usize];
            lag = lag_after_sleep(home, lag, entity.slept_at, now, entity.shares);
        }
        let index = self.slab.insert(Node {
            v: VirtualTime::default(),
            deadline: VirtualTime::default(),
            sum_exec: entity.sum_exec,
            handle: Some(handle),
            slice,
            shares: entity.shares,
            next: NONE,
            prev: NONE,
            timeline,
            owned: NONE,
            moved: entity.moved,
            place: Place::Off,
            passed_over: 0,
            traits: Traits::default()
                .with(Traits::CUSTOM_SLICE, custom)
                .with(Traits::DEFERRING, entity.is_deferring()),
        });
        (index, lag)
    }

    /// What a new task begins with of the balance of those that have ended here: a debt of up to two requests, since whoever had more at once had to compete
    /// for it, and a credit of up to a request and a sleeper's.
    #[inline]
    fn lag_of_ended(&mut self, level: u32, index: u32, now: Nanos) -> i64 {
        let timeline = &mut self.timelines[level as usize];
        if timeline.ended == Ended::Even {
            return 0;
        }
        if timeline.nr == 0 {
            timeline.ended.forget();
            return 0;
        }
        let extra = self.uncharged(level, now).map_or(0, |(_, extra)| extra);
        let node = self.slab.get(index);
        let (slice, shares) = (node.slice, node.shares);
        let slice = u64::from(slice);
        let most = [2 * slice, slice + self.rules.lag_limit].map(|most| to_virtual(most, shares));
        let timeline = &mut self.timelines[level as usize];
        let now = timeline.level_for_new(extra);
        timeline.ended.take(shares, now, most.into())
    }

    /// Where a task with a debt stood, if it comes back to the CPU that it left and debts fade: what others got meanwhile
    /// has paid for it, as far as they have come. Elsewhere virtual times do not compare, and what it owes is what it owed.
    #[inline]
    fn where_it_left(&self, entity: &TaskEntity, kind: Enqueue) -> Option<(VirtualTime, Rest)> {
        let fades = entity.lag < 0 && entity.past.names(self.cpu) && kind != Enqueue::Migrate;
        fades.then_some((VirtualTime(entity.slept_at), entity.rest))
    }

    /// Places a node in a timeline by its lag within `bounds`, and queues it there.
    #[inline]
    fn admit(
        &mut self,
        level: u32,
        index: u32,
        Bounds {
            mut lag,
            mut least,
            left,
        }: Bounds,
        request: Request,
        now: Nanos,
    ) {
        let extra = self.uncharged(level, now).map_or(0, |(_, extra)| extra);
        let owned = self.slab.get(index).owned;
        // Such a task may stand beside child groups.
        let is_own_task = owned == NONE && self.service_clock.is_global();
        if owned != NONE {
            let old = self.prepare_group(owned);
            let shares = self.slab.get(index).shares;
            if old != shares {
                // What is owed is service, whatever the weight is now.
                let rescale = |distance: i64| {
                    let scaled = i128::from(distance) * i128::from(old) / i128::from(shares);
                    scaled.clamp(-(1 << 61), 1 << 61) as i64
                };
                lag = rescale(lag);
                let v = self.timelines[level as usize].reference(self.rules.policy, extra);
                least = least.map(|least| v.offset(rescale(least.since(v))));
            }
        }
        let timeline = &mut self.timelines[level as usize];
        let node = self.slab.get_mut(index);
        match self.rules.policy {
            Policy::Eevdf => {
                let mut reference = timeline.reference(Policy::Eevdf, extra);
                // The first of a timeline: the clock is where it says.
                if is_own_task && timeline.nr == 0 {
                    timeline.is_anchored = timeline.group.time.has_groups();
                    timeline.buddies.ask_always(timeline.is_anchored);
                    let offset = reference.since(timeline.group.time.now());
                    timeline.offset = offset.wrapping_add(lag);
                }
                if is_own_task && timeline.is_anchored {
                    reference = timeline.anchor();
                    timeline.place_anchored(node, lag, request);
                } else {
                    if is_own_task && timeline.nr == 0 && matches!(request, Request::Rest(_)) {
                        timeline.arrived = Arrived::at(index, node, lag);
                    }
                    if request == Request::Whole && self.rules.is_cut(lag, node) {
                        // It slept beside child groups, and comes to another group.
                        lag = self.rules.clamp_lag(lag, node.slice, node.shares);
                    }
                    timeline.place_eevdf(node, lag, request, reference);
                }
                if let Some(least) = least.filter(|&least| node.v.is_before(least)) {
                    node.deadline = node.deadline.plus(least.since(node.v).unsigned_abs());
                    node.v = least;
                }
                if let Some((left, rest)) = left {
                    let latest = if timeline.is_anchored {
                        node.v
                    } else {
                        // By that much a sleeper that came with credit may have moved V back.
                        let credit = u64::from(node.slice) + self.rules.lag_limit;
                        node.v.plus(to_virtual(credit, node.shares))
                    };
                    let distance = left.max(reference).min(latest).since(node.v);
                    if timeline.is_anchored {
                        timeline.count_lag(distance.wrapping_neg(), node.shares);
                    }
                    node.deadline = node.deadline.offset(distance);
                    node.v = node.v.offset(distance);
                    if reference.is_before(left)
                        && let Some(rest) = rest.distance(node.shares)
                    {
                        node.deadline = node.v.plus(rest);
                    }
                }
            }
            Policy::Cfs => {
                timeline.place_cfs(node, lag, request == Request::First, &self.rules);
            }
        }
        self.join(level, index, now);
        if is_own_task {
            let timeline = &self.timelines[level as usize];
            if timeline.is_anchored && timeline.told_load == 0 {
                self.tell_tasks(level, true);
            }
        }
    }

    /// Brings the weight and the slice of a group's node up to date, which is off the queues. Returns the old weight.
    #[inline(always)]
    pub(super) fn prepare_group(&mut self, owned: u32) -> u32 {
        let shares = self.group_shares(owned);
        let timeline = &self.timelines[owned as usize];
        let slice = timeline.slices.shortest();
        let node = self.slab.get_mut(timeline.node);
        node.slice = slice.map_or(self.rules.base_slice, |slice| {
            slice.min(self.rules.base_slice)
        });
        core::mem::replace(&mut node.shares, shares)
    }

    /// Puts a node that was placed into its timeline.
    #[inline(always)]
    pub(super) fn join(&mut self, level: u32, index: u32, now: Nanos) {
        let timeline = &mut self.timelines[level as usize];
        let node = self.slab.get_mut(index);
        if !node.is_task() {
            timeline.group_load += u64::from(node.shares);
        }
        let v = node.v;
        timeline.average.add(v, node.shares);
        timeline.nr += 1;
        if node.slice < self.rules.base_slice {
            timeline.slices.add(node.slice);
        }
        timeline.queue(&mut self.slab.nodes, index, &self.rules);
        if timeline.nr == 1 && self.service_clock.cpus > 1 {
            // V is where who is alone stands, which takes no division.
            // Below the root a timeline empties while others of the CPU run.
            let left = Nanos(timeline.left_at);
            if self.service_clock.is_global() && level == ROOT {
                timeline.cell.resume_window(v, left, now);
            } else {
                timeline.cell.begin_window(v, now);
            }
        }
        self.publish_entities(level);
    }

    /// Service of a timeline's current entity that is not charged there yet: its virtual time with it, and the
    /// share-weighted amount.
    #[inline]
    pub(super) fn uncharged(&self, level: u32, now: Nanos) -> Option<(VirtualTime, i128)> {
        let current = self.timelines[level as usize].current;
        if current == NONE {
            return None;
        }
        let node = self.slab.get(current);
        let running = if self.current == NONE {
            0
        } else {
            (now - self.last).0
        };
        let collected = if node.is_task() { 0 } else { self.pending };
        let distance = to_virtual(running + collected, node.shares);
        Some((
            node.v.plus(distance),
            i128::from(distance) * i128::from(node.shares),
        ))
    }

    /// Decides between the entity that just came to a timeline and the one that is current there.
    #[inline]
    pub(super) fn contest(&mut self, level: u32, woken: u32, wakes: bool, now: Nanos) -> bool {
        let current = self.timelines[level as usize].current;
        let is_above = level != self.leaf;
        // What others are compared with is charged first, so that V counts it once.
        if is_above && current != NONE {
            self.flush();
        }
        let Some((current_v, extra)) = self.uncharged(level, now) else {
            // Either nothing runs at all, or what runs is elsewhere and not concerned.
            return self.current == NONE;
        };
        if self.timelines[level as usize].nr == 2 && self.rules.parity_from_arrival {
            // No longer alone: from now on there is someone to protect against.
            let timeline = &mut self.timelines[level as usize];
            timeline.protect(self.slab.get(current), &self.rules);
        }
        let timeline = &self.timelines[level as usize];
        let (running, woken) = (self.slab.get(current), self.slab.get(woken));
        let preempts = match (
            running.traits.has(Traits::IDLE),
            woken.traits.has(Traits::IDLE),
        ) {
            (true, false) => true,
            (false, true) => false,
            _ => {
                let contest = Contest {
                    current_v,
                    extra,
                    wakes,
                };
                let by_groups =
                    self.service_clock.is_global() && (!woken.is_task() || timeline.is_anchored);
                let long_owed = (by_groups || wakes && self.rules.parity_from_arrival)
                    && current_v.since(woken.v).max(0).unsigned_abs()
                        > to_virtual(
                            OWED_MIN.unsigned_abs() + u64::from(woken.slice),
                            woken.shares,
                        );
                match self.rules.policy {
                    // Parity protects against those who are owed a little.
                    Policy::Eevdf => {
                        let nodes = &self.slab.nodes;
                        long_owed
                            || timeline.preempts_eevdf(
                                nodes,
                                (running, woken),
                                &contest,
                                &self.rules,
                            )
                    }
                    Policy::Cfs => timeline.preempts_cfs(woken, &contest, &self.rules),
                }
            }
        };
        if is_above {
            self.repick |= preempts;
            self.renew_limit();
        } else if preempts && self.rules.last_buddy && self.current != NONE {
            self.timelines[level as usize].buddies.last = current;
        }
        preempts || self.current == NONE
    }

    /// Counts a task in or out of its timeline and, where the weight depends on it, of all above.
    #[inline]
    pub(super) fn count_task(&mut self, leaf: u32, joins: bool) {
        let step = |count: u32| if joins { count + 1 } else { count - 1 };
        let timeline = &mut self.timelines[leaf as usize];
        timeline.tasks = step(timeline.tasks);
        timeline.cell.publish_runnable(timeline.tasks);
        self.count_below(leaf, if joins { 1 } else { -1 });
    }

    /// Counts tasks in or out of a timeline and of all above, up to one that is throttled, where weights or load averages
    /// depend on it.
    #[inline]
    pub(super) fn count_below(&mut self, level: u32, by: i32) {
        if self.service_clock.mode == GroupClock::Foreign && !G::load_averages() {
            return;
        }
        let mut level = level;
        while level != NONE {
            let closed = self.is_closed(level);
            let timeline = &mut self.timelines[level as usize];
            // Saturates: load averages may have been off while some of the tasks came.
            timeline.tasks_below = timeline.tasks_below.saturating_add_signed(by);
            timeline.cell.publish_below(timeline.tasks_below);
            if closed {
                break;
            }
            level = timeline.parent;
        }
    }

    /// Publishes what other CPUs' balancers read about a timeline.
    #[inline]
    pub(super) fn publish_entities(&self, level: u32) {
        if self.service_clock.cpus == 1 {
            return;
        }
        let timeline = &self.timelines[level as usize];
        // In a group of tasks one is as good as running when the group is; a child group may always have some to spare.
        let spare = if timeline.tasks < timeline.nr {
            timeline.nr
        } else {
            timeline.nr.saturating_sub(1)
        };
        timeline
            .cell
            .publish_entities(timeline.average.load(), timeline.nr, spare);
    }
}
