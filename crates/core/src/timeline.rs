//! A timeline: what competes inside one group on one CPU, tasks and child groups alike.

use crate::arrived::Arrived;
use crate::average::Average;
use crate::bandwidth::Meter;
use crate::buddy::Buddies;
use crate::clock::CpuCell;
use crate::config::Policy;
use crate::ended::Ended;
use crate::group::Group;
use crate::key_queue::{KeyQueue, Side};
use crate::node::{NONE, Node, Place};
use crate::run_queue::QueueLoad;
use crate::run_queue::floor::Floor;
use crate::units::{Nanos, VirtualTime, to_service, to_virtual};
use crate::watched::Watched;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the policies need from the configuration, in the units in which they compare.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    /// log2 of the key quantum in virtual units; 0 is exact.
    pub(crate) shift: u8,
    pub(crate) run_to_parity: bool,
    pub(crate) parity_from_arrival: bool,
    pub(crate) debts_fade: bool,
    pub(crate) moves_keep_requests: bool,
    pub(crate) next_buddy: bool,
    pub(crate) last_buddy: bool,
    /// ns each, as in [`crate::Config`].
    pub(crate) base_slice: u32,
    pub(crate) wakeup_granularity: u64,
    pub(crate) lag_limit: u64,
    pub(crate) debt_limit: u64,
    pub(crate) sleeper_credit: u64,
    pub(crate) min_granularity: u64,
    pub(crate) latency: u64,
}

pub(crate) struct Timeline {
    pub(crate) group: Arc<Group>,
    pub(crate) cell: Arc<CpuCell>,
    /// The timeline above and the node there that stands for this one; `NONE` for the root.
    pub(crate) parent: u32,
    pub(crate) node: u32,
    /// Entities, the current one included.
    pub(crate) nr: u32,
    /// Tasks among them.
    pub(crate) tasks: u32,
    /// Tasks in this timeline and below it that limits do not keep back; kept where weights follow from loads and for
    /// load averages.
    pub(crate) tasks_below: u32,
    /// The entity that was chosen, or `NONE`.
    pub(crate) current: u32,
    /// Until here the current entity keeps the CPU against its siblings (run to parity).
    pub(crate) protect: VirtualTime,
    pub(crate) average: Average,
    /// CFS: the monotonic minimum of the virtual times.
    pub(crate) min_v: VirtualTime,
    /// CFS: when the minimum last moved.
    pub(crate) min_moved_at: Nanos,
    /// EEVDF: eligible, by deadline. CFS: everything, by virtual time.
    pub(crate) ready: KeyQueue,
    /// EEVDF: not yet eligible when last looked at, by virtual time.
    pub(crate) later: KeyQueue,
    pub(crate) buddies: Buddies,
    pub(crate) slices: ShortSlices,
    /// The group's own lag, kept while it has nothing runnable here.
    pub(crate) lag: i64,
    /// When it last ran out of entities, ns; CFS turns the time since then into credit.
    pub(crate) left_at: u64,
    /// Service from outside of all run queues that was charged here, ns (on one CPU).
    pub(crate) seen: u64,
    /// The group's virtual time when it left the timeline above (on one CPU).
    pub(crate) left_v: VirtualTime,
    /// By how much child groups stand here behind their own virtual times.
    pub(crate) offset: i64,
    /// Whether own tasks are measured by the children's clock, with that offset: since something competes here, or the first child
    /// group came.
    pub(crate) is_anchored: bool,
    /// Shares of the child groups that compete here.
    pub(crate) group_load: u64,
    /// Service of own tasks that the children's clock was not told of, ns, and shares that it was told of.
    pub(crate) untold: u64,
    pub(crate) told_load: u64,
    /// What own tasks that came since brought with them of what they are owed, less what those took with them that went; in virtual
    /// time x shares, as of V at `untold_since`: who came is owed more, and who went would be, as V goes on.
    pub(crate) untold_deficit: i64,
    pub(crate) untold_since: VirtualTime,
    /// What of that those who went to sleep were owed and will not come back for, likewise; zero or more.
    pub(crate) untold_cut: i64,
    /// Whether it may be told at once of one that wakes.
    pub(crate) may_tell: bool,
    /// Whether it was told that something competes beside them.
    pub(crate) told_crowded: bool,
    /// What its own task, alone on its CPU, may be owed, in virtual time; `i64::MAX` where it was not alone when the clock was told last.
    pub(crate) may_be_owed: i64,
    /// The own task that was owed most as it ran and the children's clock was told.
    pub(crate) watched: Watched,
    /// Service that it had since it came to be alone, ns, up to 4 s.
    pub(crate) had_alone: u32,
    /// Service that the group got on each other CPU beyond what it got here since it came, ns in all.
    pub(crate) missed: u64,
    /// Service of the group's last turn here, and of the one before, ns; all ones before it had any.
    pub(crate) turn: u64,
    pub(crate) turn_before: u64,
    /// When that turn began.
    pub(crate) began_at: Nanos,
    /// What this CPU's choice of the group announced, ns.
    pub(crate) promised: u32,
    /// What a child group got elsewhere between two looks lately that made virtual time jump most, ns, up to 4 s.
    pub(crate) burst: u32,
    /// What competed here then, in shares.
    pub(crate) burst_load: u32,
    /// Whether what ran inside last, at any level, is owed something by its siblings there.
    pub(crate) owed_inside: bool,
    /// Whether the group had any service here since it came.
    pub(crate) served: bool,
    /// Whether the group owed more than turns and polls explain when it was chosen last, here.
    pub(crate) knowingly: bool,
    /// The child group that was put back last, until the next choice, or `NONE`.
    pub(crate) put_back: u32,
    /// When it was said last that the group waits here, or does not: a look around ago, or when it came.
    pub(crate) noted_at: Nanos,
    /// Service received here and not published yet, ns, and when some was last.
    pub(crate) unpublished: u64,
    pub(crate) published_at: Nanos,
    /// The nearest timeline with a limit, this one or one above it, or `NONE`.
    pub(crate) limited: u32,
    /// The limit, once this CPU has noticed it.
    pub(crate) meter: Option<Box<Meter>>,
    /// Tasks among `tasks` that defer throttles.
    pub(crate) deferring: u32,
    /// How long the group was throttled here while none above it was, up to the end of the last throttle.
    pub(crate) throttled_past: Nanos,
    /// Load averages, once they were switched on.
    pub(crate) load: Option<Box<QueueLoad>>,
    /// Another group took over the id while this one still had tasks: freed when empty.
    pub(crate) orphan: bool,
    pub(crate) vacant: bool,
    /// Timelines whose parent this is: one of a removed group too, so that none is freed before those below it.
    pub(crate) below: u32,
    /// The task that came from another CPU to an empty timeline last.
    pub(crate) arrived: Arrived,
    /// What tasks that ended had too much or too little.
    pub(crate) ended: Ended,
    pub(crate) floor: Floor,
}

impl Timeline {
    pub(crate) fn new(group: Arc<Group>, cell: Arc<CpuCell>, parent: u32, shift: u8) -> Timeline {
        Timeline {
            group,
            cell,
            parent,
            node: NONE,
            nr: 0,
            tasks: 0,
            tasks_below: 0,
            current: NONE,
            protect: VirtualTime::default(),
            average: Average::default(),
            min_v: VirtualTime::default(),
            min_moved_at: Nanos::ZERO,
            ready: KeyQueue::new(Side::Ready, shift),
            later: KeyQueue::new(Side::Later, shift),
            buddies: Buddies::default(),
            slices: ShortSlices::default(),
            lag: 0,
            left_at: 0,
            seen: 0,
            left_v: VirtualTime::default(),
            offset: 0,
            is_anchored: false,
            group_load: 0,
            untold: 0,
            told_load: 0,
            untold_deficit: 0,
            untold_since: VirtualTime::default(),
            untold_cut: 0,
            may_tell: false,
            told_crowded: false,
            may_be_owed: i64::MAX,
            watched: Watched::default(),
            had_alone: 0,
            missed: 0,
            turn: u64::MAX,
            turn_before: u64::MAX,
            promised: 0,
            burst: 0,
            burst_load: 1,
            owed_inside: false,
            served: false,
            knowingly: false,
            put_back: NONE,
            began_at: Nanos::ZERO,
            noted_at: Nanos::ZERO,
            unpublished: 0,
            published_at: Nanos::ZERO,
            limited: NONE,
            meter: None,
            deferring: 0,
            throttled_past: Nanos::ZERO,
            load: None,
            orphan: false,
            vacant: false,
            below: 0,
            arrived: Arrived::default(),
            ended: Ended::default(),
            floor: Floor::default(),
        }
    }

    /// The point that lags are measured from: V, or under CFS the minimum. `extra` is service (times shares) of the
    /// current entity that is not charged yet.
    #[inline]
    pub(crate) fn reference(&self, policy: Policy, extra: i128) -> VirtualTime {
        match policy {
            Policy::Eevdf => self.average.mean_after(extra),
            Policy::Cfs => self.min_v,
        }
    }

    /// Where a task stands that is owed nothing, by EEVDF; `extra` is service (times shares) that is not charged yet.
    pub(crate) fn level_for_new(&self, extra: i128) -> VirtualTime {
        if self.is_anchored {
            self.anchor()
        } else {
            self.average.mean_after(extra)
        }
    }

    /// Puts a node that belongs to the timeline into the queue where it belongs.
    #[inline(always)]
    pub(crate) fn queue<T>(&mut self, nodes: &mut [Node<T>], index: u32, rules: &Rules) {
        let node = &nodes[index as usize];
        let (v, deadline) = (node.v, node.deadline);
        match rules.policy {
            Policy::Cfs => self.ready.push(nodes, index, v),
            Policy::Eevdf if self.is_eligible(v, rules) => self.ready.push(nodes, index, deadline),
            Policy::Eevdf => self.later.push(nodes, index, v),
        }
    }

    /// Takes a node out of whichever queue it is in; its place is then `Off`.
    #[inline]
    pub(crate) fn unqueue<T>(&mut self, nodes: &mut [Node<T>], index: u32, rules: &Rules) {
        let node = &nodes[index as usize];
        let (v, deadline) = (node.v, node.deadline);
        match (node.place, rules.policy) {
            (Place::LaterRing | Place::LaterHeap, _) | (_, Policy::Cfs) => {
                let queue = if matches!(node.place, Place::LaterRing | Place::LaterHeap) {
                    &mut self.later
                } else {
                    &mut self.ready
                };
                queue.remove(nodes, index, v);
            }
            (_, Policy::Eevdf) => self.ready.remove(nodes, index, deadline),
        }
    }

    /// Takes out the node that [`Timeline::best`] found, with the key that it gave.
    #[inline(always)]
    pub(crate) fn pop<T>(&mut self, nodes: &mut [Node<T>], best: u32, floor: VirtualTime) {
        match nodes[best as usize].place {
            Place::LaterRing | Place::LaterHeap => self.later.pop(nodes, best, floor),
            _ => self.ready.pop(nodes, best, floor),
        }
    }

    /// Whether an entity at `v` is owed service, counting from the start of its bucket.
    #[inline]
    pub(crate) fn is_eligible(&self, v: VirtualTime, rules: &Rules) -> bool {
        self.average
            .is_eligible(VirtualTime(v.0 >> rules.shift << rules.shift))
    }

    /// Sets until where the entity that was just chosen is protected.
    #[inline]
    pub(crate) fn protect<T>(&mut self, node: &Node<T>, rules: &Rules) {
        self.protect = match self.slices.shortest() {
            _ if rules.policy == Policy::Cfs => crate::cfs::protect_until(self, node, rules),
            _ if !rules.run_to_parity => node.v,
            None => node.deadline,
            Some(shortest) => {
                let span = to_virtual(u64::from(shortest.min(node.slice)), node.shares);
                node.deadline.min(node.v.plus(span))
            }
        };
    }

    /// The node that should run next, still queued, with its key. `None` iff nothing is queued.
    #[inline(always)]
    pub(crate) fn best<T>(
        &mut self,
        nodes: &mut [Node<T>],
        rules: &Rules,
    ) -> Option<(u32, VirtualTime)> {
        match rules.policy {
            Policy::Eevdf => self.best_eevdf(nodes, rules),
            Policy::Cfs => self.best_cfs(),
        }
    }

    /// The group is not chosen any more: it waits, or has nothing to run.
    #[inline]
    pub(crate) fn stop_running(&mut self, waits: bool) {
        self.cell.exec.stop();
        self.cell.publish_waits(waits);
        let promised = core::mem::take(&mut self.promised);
        self.group.time.take_back(promised);
    }

    /// Whether the group, being ahead, should give way here: on another CPU rather than where what runs inside is owed.
    #[inline]
    pub(crate) fn gives_way(&self) -> bool {
        !self.owed_inside || self.group.time.cpus() < 2
    }

    /// Child groups that compete here.
    #[inline]
    pub(crate) fn groups(&self) -> u32 {
        self.nr - self.tasks
    }

    /// The children's clock, where own tasks stand by it.
    #[inline]
    pub(crate) fn anchor(&self) -> VirtualTime {
        self.group.time.now().offset(self.offset)
    }

    /// By how much own tasks weigh more than the children's clock was told, in shares.
    #[inline]
    pub(crate) fn untold_load(&self) -> i64 {
        (self.average.load() - self.group_load).cast_signed() - self.told_load.cast_signed()
    }

    /// An own task comes or goes that is owed `lag`, in virtual time, or is owed so much more: the children's clock has to be told. Call before its weight
    /// counts here, or counts no more.
    #[inline]
    pub(crate) fn count_lag(&mut self, lag: i64, shares: u32) {
        self.date_untold();
        self.count_deficit(lag.saturating_mul(i64::from(shares)));
    }

    /// Own tasks are owed so much more, in virtual time x shares, that the children's clock has to be told of.
    #[inline]
    fn count_deficit(&mut self, weighted: i64) {
        self.untold_deficit = self.untold_deficit.saturating_add(weighted);
    }

    /// Who goes to sleep is owed so much more, in virtual time, than it takes along.
    #[inline]
    pub(crate) fn count_cut(&mut self, cut: i64, shares: u32) {
        if cut > 0 {
            let weighted = cut.saturating_mul(i64::from(shares));
            self.untold_cut = self.untold_cut.saturating_add(weighted);
        }
    }

    /// Brings what the children's clock was not told of up to where V is. (Left as of before, V ran ahead of all, by 1 ms in 8 s among sleepers, and
    /// who sleeps lost what it was owed: a light group had 0.18 of a CPU after ten minutes that had 0.36 at first.)
    #[inline]
    fn date_untold(&mut self) {
        let now = self.group.time.now();
        let load = self.untold_load();
        if load != 0 {
            let drift = now.since(self.untold_since).saturating_mul(load);
            self.count_deficit(drift);
        }
        self.untold_since = now;
    }

    /// Whether nothing is counted below it on this CPU. Not whether its group has children: a removed one is followed, and counts here, for a while yet.
    pub(crate) fn is_leaf(&self) -> bool {
        self.below == 0
    }

    /// A child group comes where none stood: `offset` is what own tasks are measured by from now on.
    pub(crate) fn set_offset(&mut self, offset: i64) {
        let more = offset.wrapping_sub(core::mem::replace(&mut self.offset, offset));
        if !self.is_anchored {
            // The clock was not told of them, nor where they stand.
            self.untold_since = self.group.time.now();
        } else if more != 0 && self.group.time.remembers_debts() {
            self.date_untold();
            self.count_deficit(more.saturating_mul(self.average.load().cast_signed()));
        }
    }

    /// Service from outside of all run queues since the last look, ns. One shared load.
    #[inline]
    pub(crate) fn take_outside(&mut self) -> u64 {
        let service = self
            .group
            .service
            .load(core::sync::atomic::Ordering::Relaxed);
        let outside = service.wrapping_sub(self.seen);
        self.seen = service;
        outside
    }

    /// A child got so much elsewhere, by which virtual time jumps here: the less, the more competes. The largest such jump is kept.
    #[inline]
    fn note_burst(&mut self, service: u64) {
        let service = u32::try_from(service).unwrap_or(u32::MAX);
        let load = u32::try_from(self.average.load())
            .unwrap_or(u32::MAX)
            .max(1);
        let (new, known) = (
            u64::from(service) * u64::from(self.burst_load),
            u64::from(self.burst) * u64::from(load),
        );
        if new > known {
            (self.burst, self.burst_load) = (service, load);
        }
    }

    /// Charges service received elsewhere, `distance` in virtual time, to a child group's node, which must not be queued. Returns how much
    /// service that is, ns.
    pub(crate) fn charge_elsewhere<T>(&mut self, node: &mut Node<T>, distance: u64) -> u64 {
        node.v = node.v.plus(distance);
        self.average.advance(distance, node.shares);
        let service = to_service(distance, u64::from(node.shares));
        self.note_burst(service);
        if !node.v.is_before(node.deadline) {
            // The request was fulfilled elsewhere.
            node.deadline = node.v.plus(to_virtual(u64::from(node.slice), node.shares));
        }
        service
    }

    /// The least virtual time among what competes here, or nearly: the queue of those whose turn it is is in another order,
    /// and only its first few are looked at.
    pub(crate) fn least_v<T>(&self, nodes: &[Node<T>]) -> Option<VirtualTime> {
        const LOOKED_AT: u32 = 4;
        let mut least = (self.current != NONE).then(|| nodes[self.current as usize].v);
        let mut seen = 0;
        let mut consider = |index: u32| {
            let v = nodes[index as usize].v;
            least = Some(least.map_or(v, |least: VirtualTime| least.min(v)));
            seen += 1;
            seen < LOOKED_AT
        };
        if let Some((index, _)) = self.later.peek() {
            consider(index);
        }
        self.ready.visit(nodes, &mut consider);
        least
    }

    /// The least virtual time among what waits here, or nearly, as [`Timeline::least_v`]. Of those that were owed more than `slack` ns by the
    /// children's clock before their last turn, and `grain` ns of a poll that outlived it, it is as before that.
    pub(crate) fn least_v_before_turns<T>(
        &self,
        nodes: &[Node<T>],
        (slack, grain): (u64, Nanos),
    ) -> Option<VirtualTime> {
        let level = self.anchor();
        let before_turn = |index: u32| {
            let node = &nodes[index as usize];
            let turn = u64::from(node.slice).saturating_add(grain.0);
            let before = node.v.offset(-to_virtual(turn, node.shares).cast_signed());
            if level.since(before) <= to_virtual(slack, node.shares).cast_signed() {
                return node.v;
            }
            before
        };
        let later = self.later.peek();
        let mut least: Option<VirtualTime> = later.map(|(index, _)| before_turn(index));
        let mut seen = 0;
        self.ready.visit(nodes, &mut |index: u32| {
            let v = before_turn(index);
            least = Some(least.map_or(v, |least| least.min(v)));
            seen += 1;
            seen < 4
        });
        least
    }

    /// Shows all that wait here; false, and only so many, if there are more.
    pub(crate) fn for_each_waiting<T>(
        &self,
        nodes: &[Node<T>],
        most: usize,
        act: &mut dyn FnMut(u32),
    ) -> bool {
        let mut seen = 0;
        for queue in [&self.later, &self.ready] {
            queue.visit(nodes, |index: u32| {
                seen += 1;
                if seen <= most {
                    act(index);
                }
                seen <= most
            });
        }
        seen <= most
    }

    /// CFS: lets the minimum follow the entities. Monotonic.
    pub(crate) fn update_min<T>(&mut self, nodes: &[Node<T>], now: Nanos) {
        let current = (self.current != NONE).then(|| nodes[self.current as usize].v);
        let queued = self.ready.peek().map(|(index, _)| nodes[index as usize].v);
        let least = match (current, queued) {
            (Some(current), Some(queued)) => current.min(queued),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return,
        };
        let min_v = self.min_v.max(least);
        if min_v != self.min_v {
            (self.min_v, self.min_moved_at) = (min_v, now);
        }
    }

    /// Bytes held for the (group, CPU) pair.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Timeline>()
            + self.ready.heap_bytes()
            + self.later.heap_bytes()
            + size_of::<CpuCell>()
            + self.meter.as_ref().map_or(0, |_| size_of::<Meter>())
            + align_of::<CpuCell>()
    }
}

/// The custom slices among a timeline's entities that are shorter than the base slice, counted.
#[derive(Debug, Default)]
pub(crate) struct ShortSlices {
    // Nearly always empty, in which case it holds no memory and costs one compare.
    counts: BTreeMap<u32, u32>,
}

impl ShortSlices {
    #[inline]
    pub(crate) fn shortest(&self) -> Option<u32> {
        if self.counts.is_empty() {
            None
        } else {
            self.counts.keys().next().copied()
        }
    }

    pub(crate) fn add(&mut self, slice: u32) {
        *self.counts.entry(slice).or_insert(0) += 1;
    }

    pub(crate) fn remove(&mut self, slice: u32) {
        if let Some(count) = self.counts.get_mut(&slice) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&slice);
            }
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.counts.values().sum()
    }
}
