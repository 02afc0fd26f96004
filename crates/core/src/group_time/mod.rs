//! One virtual time a group: what decides between groups, on all CPUs together.
//!
//! Every group has one virtual time `v`, counted against the one clock `V` of its parent, machine-wide:
//!
//! ```text
//!     v  advances by  service of the group, on any CPU or outside of all / w
//!     V  advances by  service of all children / W,   W = the weights of the children with anything runnable
//!     a child that comes back starts at  max(v, V - L / w),   and one that is new at  V
//! ```
//!
//! So debt stays with the group wherever it goes and however often it sleeps, and decays only as V passes it; credit is
//! bounded by L; one that was throttled has no more than it was owed then, since what a limit keeps from it is its siblings'.
//! On each CPU the group's node is placed at `v + offset`, with one offset for each timeline, and follows v:
//! who runs *here* is decided by EEVDF among the nodes here, and since all of them stand at what their groups got
//! everywhere, so is the machine.
//!
//! # V
//! With `D = sum w_i (V - v_i)` over the runnable children, `D = 0` means that V is their weighted mean. D is kept exactly:
//! service moves v and V by the same amount, and only who comes, goes or is cut changes it. V never goes back: where the
//! mean is before V (somebody came with credit, or left with debt), V goes at half the rate until the mean is there again;
//! where it is beyond, V jumps to it. Nobody who returns moves the others back.
//!
//! # Weights that cannot be used
//! A group owed more than its runnable tasks can consume would become ever more owed, and everybody else ever more in
//! debt. If nothing of a group waits on any CPU, its credit grows no further than L, and what it had beyond it saved up
//! while it did wait (no more than all CPUs did meanwhile: who wakes and runs at once has saved nothing) is forgotten at 1/16 of
//! its service. What is cut goes to its siblings, by weight: V moves on, and v
//! with it. That is the readjusted weight of surplus fair scheduling, reached step by step.
//!
//! Something of such a group may wait now and then all the same, behind a poll that nobody can interrupt, and it will never have back what
//! that cost it. So there is a second sign: a sibling that owes more than turns and polls explain (`slack`) *as it is chosen* gets time that
//! nobody else could use. That service is `surplus` of the parent's clock, and so much and no more of what a sibling is owed
//! beyond its own slack is cut, waiting or not. Not cut is what was owed before a choice: who owes for one long poll, and is not chosen until
//! that is paid, makes no surplus. And nobody is cut beyond a sibling that waits where it runs, less a turn of that one: level with it, a group
//! of ten times its weight would have a turn for each of its own, where both are bound to one CPU and others have the rest. Then all that
//! wait there are owed what they cannot use, as each other's equals, and are cut together, by one and the same virtual time: what they are to each
//! other stays, and whoever has the other CPUs owes nothing for what nobody else could have had.
//!
//! # Tasks beside groups
//! Own tasks of the parent count in W with their weights, and their service in V. They have no v that CPUs share, but each is measured by V
//! where it is: a timeline that has an own task or a child group is *anchored* (one whose tasks came before the first child of their group at their
//! next charge), which means that the offset by which groups stand there holds for tasks, too. A task comes at V less what it is owed, and leaves with that. A move takes it along up to
//! [`crate::Config::debt_limit`], and who is given back at once keeps all of it. What those that come
//! and go are owed is told to the clock, as their weight is: at once for the first and the last on a CPU, for those that move, and once for who
//! wakes after the clock was told of those here, else within 250 us of service. One that is owed something and moves is never uncounted in between (`stay`), or V would jump to the mean of the others; and what one that
//! goes to sleep is owed is taken out of D no faster than others receive it (`clock`), for the same reason; but what it does not take along goes at once, since
//! nobody comes back for it. What is told later is told as of when it was: who came is owed what V went on by meanwhile, and who went would be. The offset
//! holds while groups come and go, or sleepers would find each time who waits for them level with them. A group that comes back where none but
//! tasks stand is level with their mean, if that is before V, as far as they are remembered to be. Of debts no more than L is kept then
//! where the clock remembers no more either, since none of the tasks shares its CPU: forgiven elsewhere, without its being told, they
//! would have V ahead of all tasks, further each time.
//! One that waits and is owed more than [`OWED_MIN`] is noted, under its group's own number, and nothing but such a task is pulled for that. A CPU that
//! runs one of them alone makes no choices, and pulls for the note where that one owes and the noted is owed 20 ms (`balance`).
//!
//! An own task that is alone on its CPU can use no more than that, and none can be paid what it owes while each of them is alone. So what such a task is
//! owed does not grow beyond L meanwhile, and what it owes is forgiven beyond L; with what it is not owed V goes on, and so does the task. (A group
//! that had a CPU nobody else wanted, beside a task that cannot use more than one, owed for all of that, and had nothing for seconds once a
//! sibling came.) What it was owed before, while something competed beside it, is forgotten at 1/16 of its service, as a group's credit is. (Forgotten at
//! once as soon as it was alone, for a tick: a task that a group came back to after each had 0.001 of a CPU for 0.95.) Where others of them share their
//! CPUs, or have gone to sleep lately, that is so for one that has had 20 ms alone, or one that sleeps would lose what it is owed each time that it runs.
//! (Remembered there, what a lone task of 10000 could not use made V nearly stand, and a group of 100 beside a task of 100 had 0.02 of a CPU for 0.5.)
//! It is also so for one that has had 20 ms while child groups wait beside it and none of them is chosen, since they owe: it has the CPU for itself as
//! well. (A group of 1 that waited beside a task of 100 had a sibling on the other CPU owe for all that the task was owed beyond one CPU, and have
//! nothing for 5 s.) What it is not owed moves the task on there, and the groups stay where they are.
//! And whoever comes to its CPU for a moment, one is owed no more than by the time for which it waited: it has no more than one CPU. Each CPU remembers of
//! the own task that is owed most what it might be owed ([`crate::watched`]): more by the time for which it waits, and never further beyond
//! what it is than a sleeper's credit, since V goes on in steps. (Bounded only while it was alone, and anew after each visitor, a task of 1000 that others
//! came to for moments was owed half a second. All others owed that; of those only groups remember it, since debts of tasks fade: they had a third of
//! their part.)
//! The CPU measures, the clock decides under its lock, and both change by the same amount: where the clock forgave what the CPU
//! remembered, a child group owed for 7 s of an idle CPU.
//!
//! # Protocol
//! | word | written by | read by |
//! |---|---|---|
//! | `children` (V, W, D, and what of W and D is own tasks') of the parent, and with it `v`, `weight`, `ceiling` of each child | whoever holds the parent's lock, for a few instructions and never two at a time | the same |
//! | `cpus` | from 0 and to 0 under that lock, else without it: who comes as another begins may stand at the v of before until the next publication | anybody |
//! | `now`, a copy of V, and `mean`, of V - D / W; `has_crowded_tasks`, of whether own tasks share CPUs; `v`, `cpus` | as above | anybody, relaxed: late is exact enough, since both only grow between reweights |
//! | `parts` | each CPU adds, and who finds enough takes it to the clock | the same |
//! | `pending` | each CPU adds when it chooses the group and takes back when it puts it back | choosers |
//! | `owed` | any CPU, one store: a hint to whom to pull from (`notes`); the puller clears it, the CPU that it is about lowers it | choosers and balancers |
//! | `least` | any CPU, one store: a hint like `owed`; the puller clears it, and the CPU that it is about once that one is chosen | choosers and balancers |
//! | `in_vain` | any CPU: a hint like `owed` | who notes |
//! | `missed` | who takes the last task of the group from a CPU, one store; whoever that task comes to takes it: a hint, of two moves at once the later stays | the same |
//! | `waits` of the cells | the cell's CPU | who would cut credit |
//!
//! A CPU counts the group's service here at once and publishes it now and then: [`crate::Config::publish_interval`] after the
//! last time for each CPU that the group is on, and on more than a few CPUs by way of sums (`parts`), so that the shared words are written
//! some 20,000 times a second however many CPUs there are. It publishes all when the group leaves, and what is in the sums is
//! published when it leaves the last CPU. A CPU more or less is counted without the lock unless it is the first or the last. The locks are leaves of the lock order: nothing
//! else is taken under them. Where something is to be published and the lock is taken, it is left for the next time, up to
//! four intervals.
//!
//! # Two CPUs choose at once
//! What a group will get from a dispatch is not in v (that would have to be taken back, and V with it) but in `pending`,
//! which only choices look at: a group that runs elsewhere is passed over if it would be ahead of the next one with what
//! it is about to get there.
//!
//! # Pulling
//! A group that waits and is owed more than [`OWED_MIN`] is noted with its parent (`owed`). A CPU whose choice among the
//! children of that parent is not owed anything pulls that group's task instead, at the choice
//! ([`crate::RunQueue::take_pull`]) or at the latest in its periodic balancing. One load and, where there is a note, one
//! compare: nobody searches. A choice is due at once where what runs is a turn and more ahead.
//!
//! The puller takes the note, and with it one task. Whoever has more of that group notes it again as the task leaves. A CPU on which the noted one
//! itself waits leaves the note to the others, as of less: taken away at its own choices, it was lost where that CPU ticks before them. And a
//! group is noted as it begins to wait, be it that it wakes or that its turn is over: polls of 50 us end before the next look
//! around (every 250 us), and a note a look is a poll a look, while those who are far ahead have the rest.
//!
//! A group that is owed less than a turn may be so by what others have not charged yet, and who comes for that waits until the protection of who
//! runs there ends. So a task that was pulled for its group, and had no turn since, is left there for half a turn. (Several CPUs took such
//! a task from each other at each of their ticks, and it never ran.)
//!
//! V may stand far back: while one is owed what it cannot use, and that is not found out, all others owe, and nobody is noted. But what they owe
//! tells them apart as well. So where nobody who waits is owed anything, who waits and owes least is noted (`least`), and a CPU on which one runs
//! that owes more than that one, by more than turns and polls explain (`slack`), pulls it. (One of 1 beside one of 2 that owed as V stood with one
//! of 10000 on other CPUs had nothing for as long as the machine ran, or the one of 2 had, each where the other was not.)
//!
//! # Who waits while its group has its part
//! All of that is about groups. Where a group gets its part on other CPUs, its tasks on this one may wait for ever: v is level, so nothing is
//! owed to the group, and each time that the CPU chooses, a sibling may happen to be before it. So each timeline counts what its group got
//! elsewhere since it had its last turn there. Once that is more than two turns for each CPU that the group is on, the group is noted under its
//! own number (`note_waiting`). A CPU that runs tasks of the group takes that note, as it chooses the group or at its next balancing, and with
//! it one of those tasks, which has its turn there at once: if it waited for one, whoever idles for a moment would take it back. What is left there
//! is noted again at once. What a timeline has missed goes along with its last task that another CPU takes for other reasons. So a task of a group that gets S CPUs, and is on n of them, waits no longer than
//!
//! ```text
//!     2 n turns / S  +  a look around  +  a balancing  +  a round of its group's tasks on the other CPU
//! ```
//!
//! for each of the group's tasks that waits like it, as long as balancing has no group above to pull for. (While only who chose the group took
//! the note, CPUs on which it was alone did not, since there is nothing to choose. One of 16 tasks got nothing for as long as the machine
//! ran.) Tasks beside child groups need no such count: they are noted by what their clock owes them.
//!
//! # Moves
//! A group whose tasks are between two queues is among its siblings still, and so is a task beside child groups that is owed something (`stay`).
//! Which task of the group goes is not the group's affair, but must not be lost on the way: who is taken for the group's sake takes along what it is
//! owed among the tasks of the group there, what runs there not being charged yet included, and keeps it where it waits alone until the
//! next CPU takes it ([`crate::arrived`]).
//!
//! # Where a group has its turn
//! A group that runs on several CPUs gets as much wherever it runs, but what is inside does not: the only task of a child that
//! should have a whole CPU is where it is. So a CPU that chooses counts what the child at the head inside is owed for the group,
//! and what it owes against it, a turn at most. And where what runs inside is owed, the group does not give way to a sibling
//! that waits elsewhere while it is on another CPU as well. What the group gets of its own is the same, since v counts all.
//!
//! # One CPU
//! There the local lag is the global one, and none of the above is done: the lag that a group leaves with waits in its
//! timeline, and debt decays as the timeline's V goes on.

mod clock;
mod cut;
mod notes;
mod parts;
mod publish;
mod stay;
#[cfg(test)]
mod tests;

use crate::group::Group;
use crate::units::{VirtualTime, to_service_lag, to_virtual};
use clock::Clock;
pub(crate) use clock::{Lone, Told};
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
pub(crate) use cut::{Beside, FORGET, Here, Nowhere};
pub(crate) use notes::Note;
use parts::Parts;
pub(crate) use publish::ServiceClock;
pub(crate) use stay::Stay;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A group that is owed so much is worth pulling: 500 us of service, measured best in the prototypes.
pub(crate) const OWED_MIN: i64 = 500_000;

/// CPUs on which a group may be for its dispatches to be announced: 32 keep the word below some 20,000 writes a second.
const PENDING_CPUS_MAX: u32 = 32;

/// Most surplus that is remembered, ns: 50 ms, so that what nobody was cut for then is not held against who is owed something later.
const SURPLUS_MAX: u64 = 50_000_000;

/// By how much lags measured twice may differ for rounding, ns.
const ROUNDING: i64 = 1_000;

/// Where a group stands among its siblings, and the clock of its children.
#[derive(Debug, Default)]
pub(crate) struct GroupTime {
    v: AtomicU64,
    /// CPUs on which it has something to run.
    cpus: AtomicU32,
    /// The weight that v is measured in, in shares.
    weight: AtomicU32,
    /// What it was owed when last looked at, ns of service; while it is away, what it owes at most (zero or less). Away, it
    /// can only come to owe less, as V passes v. If it seems to owe more, V has gone half round since.
    ceiling: AtomicI64,
    /// Service that it is about to get on the CPUs that have chosen it, ns.
    pending: AtomicU64,
    /// Service that is on its way to v.
    parts: Parts,
    children: Mutex<Clock>,
    now: AtomicU64,
    /// V - D / W, a copy as `now` is.
    mean: AtomicU64,
    owed: AtomicU64,
    /// Who waits and owes least, where nobody who waits is owed anything (`notes`).
    least: AtomicU64,
    /// Whom others have pulled for in vain lately (`notes`).
    in_vain: AtomicU64,
    /// What the group had missed where its last task was taken away, ns, until that task comes to another CPU.
    missed: AtomicU64,
    /// Whether it ever had a child group.
    has_groups: AtomicBool,
    /// Whether an own task shares its CPU, as far as the clock of the children was told.
    has_crowded_tasks: AtomicBool,
}

/// Service that a CPU publishes of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    /// How much, ns.
    pub(crate) own: u64,
    /// What the group may be owed beside what it saved up while it waited, ns.
    pub(crate) credit: u64,
    /// What of it the group got though it had been chosen owing more than [`Here::slack`]: nobody else could use the time.
    pub(crate) surplus: u64,
}

impl GroupTime {
    fn lock(&self) -> MutexGuard<'_, Clock> {
        // Plain arithmetic that cannot stop half way.
        let mut clock = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        clock.writes = clock.writes.wrapping_add(1);
        clock
    }

    fn show(&self, clock: &Clock) {
        self.now.store(clock.now.0, Relaxed);
        self.mean.store(clock.mean().0, Relaxed);
        self.has_crowded_tasks
            .store(clock.tasks_crowded > 0, Relaxed);
    }

    /// V: the clock of the group's children.
    #[inline]
    pub(crate) fn now(&self) -> VirtualTime {
        VirtualTime(self.now.load(Relaxed))
    }

    /// v: the group's own virtual time, as far as published.
    #[inline]
    pub(crate) fn v(&self) -> VirtualTime {
        VirtualTime(self.v.load(Relaxed))
    }

    /// The weighted mean of the children's v, as far as published.
    pub(crate) fn mean(&self) -> VirtualTime {
        VirtualTime(self.mean.load(Relaxed))
    }

    /// The weight that v is measured in, in shares.
    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Relaxed)
    }

    #[inline]
    pub(crate) fn cpus(&self) -> u32 {
        self.cpus.load(Relaxed)
    }

    #[inline]
    pub(crate) fn has_groups(&self) -> bool {
        self.has_groups.load(Relaxed)
    }

    /// Whether the clock of the children remembers all that own tasks owe ([`Clock::serve_tasks`]).
    #[inline]
    pub(crate) fn remembers_debts(&self) -> bool {
        self.has_crowded_tasks.load(Relaxed)
    }

    pub(crate) fn meet_group(&self) {
        self.has_groups.store(true, Relaxed);
    }

    /// The only task that the group has on a CPU, where it missed so much, is on its way to another one.
    pub(crate) fn carry_missed(&self, missed: u64) {
        self.missed.store(missed, Relaxed);
    }

    /// What the group had missed where the task that comes was before.
    pub(crate) fn take_missed(&self) -> u64 {
        self.missed.swap(0, Relaxed)
    }

    fn weighted_lag(&self, clock: &Clock, weight: u32) -> i128 {
        i128::from(clock.now.since(self.v())) * i128::from(weight)
    }

    /// What the group is owed, ns of service; negative if it owes.
    #[inline]
    pub(crate) fn lag(&self, parent: &GroupTime) -> i64 {
        to_service_lag(parent.now().since(self.v()), self.weight.load(Relaxed))
    }

    /// How far the group is before the mean of its siblings and itself, ns of service; zero if it is behind. V itself says too little where
    /// it is before the mean, somebody having come with credit: then everybody is owed something by V, and who goes on alone seems to be, too.
    #[inline]
    pub(crate) fn ahead_of_mean(&self, parent: &GroupTime) -> u64 {
        let ahead = to_service_lag(self.v().since(parent.mean()), self.weight());
        ahead.max(0).unsigned_abs()
    }

    /// Measures v in a weight, keeping what is owed. It may go back.
    fn measure(&self, clock: &Clock, shares: u32) {
        let old = self.weight.swap(shares, Relaxed);
        if old != 0 && old != shares {
            let lag = i128::from(clock.now.since(self.v())) * i128::from(old) / i128::from(shares);
            let lag = lag.clamp(-(1 << 61), 1 << 61) as i64;
            self.v.store(clock.now.offset(-lag).0, Relaxed);
        }
    }

    /// The group gets something to run on one more CPU, if it is on one already and of that weight; then nothing but the number of its CPUs
    /// changes. Returns v.
    #[inline]
    pub(crate) fn enter_again(&self, shares: u32) -> Option<VirtualTime> {
        let is_known = self.weight.load(Relaxed) == shares && self.count_one_more();
        is_known.then(|| self.v())
    }

    /// The group gets something to run on one more CPU. On the first one it starts with at most `credit` ns of service, before the least of its
    /// siblings there if that is before V; and at V if it never ran before. Returns v.
    pub(crate) fn enter(
        &self,
        parent: &GroupTime,
        shares: u32,
        least: Option<VirtualTime>,
        credit: u64,
    ) -> VirtualTime {
        if let Some(v) = self.enter_again(shares) {
            return v;
        }
        let mut clock = parent.lock();
        if self.cpus.fetch_add(1, AcqRel) == 0 {
            let is_new = self.weight.load(Relaxed) == 0;
            self.measure(&clock, shares);
            let lag = to_service_lag(clock.now.since(self.v()), shares);
            let is_known = lag >= self.ceiling.load(Relaxed) - ROUNDING;
            let level = least.map_or(clock.now, |least| least.min(clock.now));
            let first = level.offset(-to_virtual(credit, shares).cast_signed());
            // Nobody owes anything to one that was never there. (With a sleeper's credit the first of a thousand, alone with the CPUs while the others
            // were made, waited for four seconds until each of them had had as much.)
            let v = match (is_new, is_known) {
                (true, _) => clock.now,
                (false, true) => self.v().max(first),
                (false, false) => first,
            };
            self.v.store(v.0, Relaxed);
            clock.weight += u64::from(shares);
            clock.deficit += self.weighted_lag(&clock, shares);
            clock.settle();
            parent.show(&clock);
            self.ceiling.store(self.lag(parent), Relaxed);
        } else {
            self.reweigh_under(&mut clock, shares);
            parent.show(&clock);
        }
        self.v()
    }

    /// The group has nothing left to run on a CPU. What it got there is published.
    pub(crate) fn leave(&self, parent: &GroupTime) {
        if self.count_one_less() {
            return;
        }
        let mut clock = parent.lock();
        // Others may have come since.
        if self.cpus.fetch_sub(1, AcqRel) == 1 {
            self.serve_parts(&mut clock);
            let weight = self.weight.load(Relaxed);
            let lag = to_service_lag(clock.now.since(self.v()), weight);
            self.ceiling.store(lag.min(0), Relaxed);
            clock.deficit -= self.weighted_lag(&clock, weight);
            clock.weight -= u64::from(weight);
            clock.settle();
            parent.show(&clock);
        }
    }

    /// The group, which is on a CPU, stays there without anything to run until [`GroupTime::leave`] is called once more.
    fn stay(&self) {
        self.cpus.fetch_add(1, AcqRel);
    }

    /// Counts a CPU more if the group is on one already, which its siblings need not be told.
    fn count_one_more(&self) -> bool {
        let more = |cpus: u32| (cpus > 0).then_some(cpus + 1);
        self.cpus.fetch_update(AcqRel, Acquire, more).is_ok()
    }

    /// Counts a CPU less if that is not the last one.
    fn count_one_less(&self) -> bool {
        let less = |cpus: u32| cpus.checked_sub(1).filter(|&left| left > 0);
        self.cpus.fetch_update(AcqRel, Acquire, less).is_ok()
    }

    /// Adds what is on its way to v, cutting nothing.
    fn serve_parts(&self, clock: &mut Clock) {
        let own = self.parts.take_all();
        if own > 0 {
            let weight = self.weight.load(Relaxed);
            let distance = to_virtual(own, weight);
            self.v.store(self.v().plus(distance).0, Relaxed);
            clock.serve(i128::from(distance) * i128::from(weight));
        }
    }

    /// The group's weight has changed.
    pub(crate) fn reweigh(&self, parent: &GroupTime, shares: u32) {
        if self.weight.load(Relaxed) != shares {
            let mut clock = parent.lock();
            self.reweigh_under(&mut clock, shares);
            parent.show(&clock);
        }
    }

    fn reweigh_under(&self, clock: &mut Clock, shares: u32) {
        let old = self.weight.load(Relaxed);
        if old == shares || self.cpus() == 0 {
            return;
        }
        self.serve_parts(clock);
        let before = self.weighted_lag(clock, old);
        self.measure(clock, shares);
        clock.deficit += self.weighted_lag(clock, shares) - before;
        clock.weight += u64::from(shares);
        clock.weight -= u64::from(old);
        // Rounding.
        clock.settle();
    }

    /// Publishes service of the group, unless that would have to wait and need not. Returns whether it did.
    pub(crate) fn publish(
        group: &Group,
        parent: &GroupTime,
        service: Service,
        here: &impl Here,
    ) -> bool {
        let time = &group.time;
        let mut clock = match parent.children.try_lock() {
            Ok(clock) => clock,
            Err(_) => return false,
        };
        clock.writes = clock.writes.wrapping_add(1);
        clock.surplus = clock
            .surplus
            .saturating_add(service.surplus)
            .min(SURPLUS_MAX);
        time.serve(group, parent, &mut clock, service, here);
        true
    }

    /// As [`GroupTime::publish`], whatever it takes, of `own` ns that are no surplus.
    pub(crate) fn publish_now(group: &Group, parent: &GroupTime, own: u64, credit: u64) {
        let service = Service {
            own,
            credit,
            surplus: 0,
        };
        let mut clock = parent.lock();
        group
            .time
            .serve(group, parent, &mut clock, service, &Nowhere);
    }

    fn serve(
        &self,
        group: &Group,
        parent: &GroupTime,
        clock: &mut Clock,
        service: Service,
        here: &impl Here,
    ) {
        let weight = match self.weight.load(Relaxed) {
            // Service from outside, before it ever ran.
            0 => {
                let shares = group.shares();
                self.measure(clock, shares);
                self.v.store(clock.now.0, Relaxed);
                shares
            }
            weight => weight,
        };
        let distance = to_virtual(service.own, weight);
        self.v.store(self.v().plus(distance).0, Relaxed);
        if self.cpus() == 0 {
            let lag = self
                .ceiling
                .load(Relaxed)
                .saturating_sub_unsigned(service.own);
            self.ceiling.store(lag, Relaxed);
            return;
        }
        clock.serve(i128::from(distance) * i128::from(weight));
        let mut lag = to_service_lag(clock.now.since(self.v()), weight);
        if lag > service.credit.cast_signed() && clock.weight > u64::from(weight) {
            lag = self.cut_useless(group, clock, service, lag, here);
        }
        self.ceiling.store(lag, Relaxed);
        parent.show(clock);
    }

    /// Tasks of the group itself have received service, or others of them run. Returns how much was forgotten of what one that is alone on
    /// its CPU is owed, in virtual time (below zero: forgiven of what it owes); `None` where all is remembered now, since others of them share
    /// their CPUs or have gone to sleep lately.
    pub(crate) fn publish_tasks(&self, told: &Told) -> Option<i64> {
        let mut clock = self.lock();
        let forgets = clock.serve_tasks(told);
        self.show(&clock);
        forgets
    }

    /// The group waits somewhere and is owed `lag` ns, of which no more than `most` can have come to that while it waited: so much is not cut. (All that it
    /// was owed by then was kept, at once: one whose only other task slept for 10 ms and then ran for 200 us was never cut, came to be owed seconds, and a
    /// group of a hundredth of its weight had nothing.)
    #[inline]
    pub(crate) fn note_waiting(&self, lag: i64, most: u64) {
        let ceiling = self.ceiling.load(Relaxed);
        if lag > ceiling {
            self.ceiling
                .store(lag.min(ceiling.saturating_add_unsigned(most)), Relaxed);
        }
    }

    /// The weight that v is measured in, in shares.
    pub(crate) fn measured_in(&self) -> u32 {
        self.weight.load(Relaxed).max(1)
    }

    /// A CPU has chosen the group and will give it `expected` ns. Returns what it has to take back.
    #[inline]
    pub(crate) fn promise(&self, expected: u32) -> u32 {
        if self.cpus() > PENDING_CPUS_MAX {
            return 0;
        }
        self.pending.fetch_add(u64::from(expected), Relaxed);
        expected
    }

    #[inline]
    pub(crate) fn take_back(&self, promised: u32) {
        if promised > 0 {
            self.pending.fetch_sub(u64::from(promised), Relaxed);
        }
    }

    #[inline]
    pub(crate) fn pending(&self) -> u64 {
        self.pending.load(Relaxed)
    }
}
