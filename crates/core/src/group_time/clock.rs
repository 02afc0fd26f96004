//! V of the children of one group, and how far it is from their mean.

use crate::units::{VIRTUAL_SHIFT, VirtualTime};

/// The clock of a group's children.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    pub(super) now: VirtualTime,
    /// W, in shares.
    pub(super) weight: u64,
    /// D, in virtual time x shares.
    pub(super) deficit: i128,
    /// Shares of the parent's own tasks in W, and what of D is theirs.
    pub(super) tasks: u64,
    pub(super) tasks_deficit: i128,
    /// What of D is owed to own tasks that have gone to sleep lately, in virtual time x shares; see [`Clock::count_absent`].
    pub(super) absent: i128,
    /// CPUs on which something else competes beside one of them.
    pub(super) tasks_crowded: u32,
    /// How often CPUs came to change it; begins anew after 2^64.
    pub(super) writes: u64,
    /// Service that children got who owed as they were chosen, ns, as far as no sibling's credit was cut for it yet.
    pub(super) surplus: u64,
}

/// What a CPU tells the clock of the parent's own tasks there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// Service that they received, ns.
    pub(crate) own: u64,
    /// By how much their shares have changed.
    pub(crate) shares: i64,
    /// 1 if one of them has come to share the CPU, -1 if none does any more.
    pub(crate) crowded: i32,
    /// What those that came were owed less what those are owed that went, in virtual time x shares.
    pub(crate) deficit: i64,
    /// V as that was right; as the clock is told, if none.
    pub(crate) since: Option<VirtualTime>,
    /// What of that those who went to sleep were owed and will not come back for, likewise; zero or more.
    pub(crate) cut: i64,
    /// Who went is counted on another CPU already.
    pub(crate) moved: bool,
    /// The one here, if it is alone on its CPU.
    pub(crate) lone: Lone,
}

/// An own task of the parent that is alone on its CPU, and what it is owed before the clock knows of this service, in virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lone {
    /// Its weight; 0 for none.
    pub(crate) shares: u32,
    pub(crate) owed: i64,
    /// It may be owed no more, and owe no more than `least`.
    pub(crate) most: i64,
    pub(crate) least: i64,
    /// It has been alone for so long that it will not wait for those that wait elsewhere.
    pub(crate) for_long: bool,
}

impl Told {
    /// What those that came are owed by V as it is `now`, less what those would be that went.
    fn deficit_by(&self, now: VirtualTime) -> i128 {
        let drift = self.since.map_or(0, |since| now.since(since));
        i128::from(self.deficit) + i128::from(drift) * i128::from(self.shares)
    }
}

impl Clock {
    /// Own tasks of the parent received service and weigh more or less than before. They are not chosen by V but by what competes beside
    /// them on their CPU, and who is alone there never owes less for it, nor is owed more: see *Tasks beside groups*. Nothing is remembered once none
    /// is left. Returns what was forgotten of what the lone one is owed, in virtual time, with what V went on for it; below zero, forgiven of what
    /// it owes; `None` where all is remembered.
    pub(super) fn serve_tasks(&mut self, told: &Told) -> Option<i64> {
        self.tasks = self.tasks.saturating_add_signed(told.shares);
        self.weight = self.weight.saturating_add_signed(told.shares);
        self.tasks_crowded = self.tasks_crowded.saturating_add_signed(told.crowded);
        let total = i128::from(told.own) << VIRTUAL_SHIFT;
        let change = told.deficit_by(self.now);
        self.tasks_deficit += change - total;
        let are_alone = self.tasks > 0 && self.tasks_crowded == 0;
        let cut = i128::from(told.cut);
        self.deficit += self.count_absent(change + cut, told.moved) - cut;
        if self.tasks == 0 {
            // Before V goes on: who leaves takes all that he is owed along, and V would jump by what was wrong about that.
            self.deficit -= core::mem::take(&mut self.tasks_deficit);
        }
        let before = self.now;
        self.serve(total);
        self.settle();
        let went_on = self.now.since(before);
        let lone = told.lone;
        let owed = lone.owed.saturating_add(went_on);
        if are_alone && owed < -lone.least {
            // Forgiven beyond that.
            let less = owed + lone.least;
            self.owe_less(i128::from(less) * i128::from(lone.shares));
            return Some(less);
        }
        // Of those that sleep now and then one awake may be owed more for the moment, which V, once ahead, would owe to all but the sleepers.
        let none_can_use_it = are_alone && self.absent == 0;
        if !none_can_use_it && !lone.for_long {
            return None;
        }
        Some(self.forget(lone, owed.saturating_sub(lone.most)))
    }

    /// Forgets what a task is owed to no use, with what it comes to be owed as V goes on for that. (Left for the next time it came to as many
    /// times the bound as the tasks weigh more than the groups, and a group of weight 1 beside a task of 100 owed 1.8 s for having had a CPU
    /// that nobody else wanted, all of which it had to wait for once another group came.)
    fn forget(&mut self, lone: Lone, distance: i64) -> i64 {
        if distance <= 0 || lone.shares == 0 {
            return 0;
        }
        let (weight, shares) = (i128::from(self.weight), i128::from(lone.shares));
        let beyond = i128::from(distance) * shares;
        let others = weight - shares;
        // V stays where it is until D is used up; from then on, of each unit that is forgotten shares / weight come back.
        let forgotten = if others > 0 && beyond > self.deficit {
            (beyond * weight - self.deficit * shares) / others
        } else {
            beyond
        };
        self.owe_less(forgotten);
        self.settle();
        i64::try_from(forgotten / shares).unwrap_or(i64::MAX)
    }

    /// Own tasks are owed so much less, in virtual time x shares.
    fn owe_less(&mut self, forgotten: i128) {
        self.tasks_deficit -= forgotten;
        self.deficit -= forgotten;
    }

    /// By how much D changes for those that came and went. What is owed to who goes to sleep stays in D for as long as others need to receive as
    /// much ([`Clock::serve`]), and is what those that come are owed first. Taken out at once, V would jump to the mean of the others and could not
    /// go back when they return: three tasks that slept for a microsecond after each 500 us moved V twice as fast as service did,
    /// were owed more than they may keep, and had 0.006 of a CPU for 0.5 beside a child group, whose credit nothing bounds while it waits.
    fn count_absent(&mut self, change: i128, moved: bool) -> i128 {
        if change > 0 {
            let returned = change.min(self.absent);
            self.absent -= returned;
            change - returned
        } else if moved {
            change
        } else {
            self.absent -= change;
            0
        }
    }

    /// The weighted mean of the children's virtual times; V where there are none, or where it cannot be told in 64 bits.
    pub(super) fn mean(&self) -> VirtualTime {
        let weight = i64::try_from(self.weight).unwrap_or(i64::MAX).max(1);
        let deficit = i64::try_from(self.deficit).unwrap_or(0);
        self.now.offset(-(deficit / weight))
    }

    /// V goes on by that much.
    pub(super) fn go_on(&mut self, distance: u64) {
        self.now = self.now.plus(distance);
        self.deficit += i128::from(distance) * i128::from(self.weight);
        self.tasks_deficit += i128::from(distance) * i128::from(self.tasks);
    }

    /// Children received service, `total` in virtual time x shares.
    pub(super) fn serve(&mut self, total: i128) {
        let forgotten = self.absent.min(total.max(0));
        self.absent -= forgotten;
        self.deficit -= total + forgotten;
        self.step((total / 2).max(-self.deficit));
    }

    /// Keeps V from being before the mean.
    pub(super) fn settle(&mut self) {
        self.step(-self.deficit);
    }

    fn step(&mut self, least: i128) {
        if self.weight == 0 {
            (self.deficit, self.tasks_deficit, self.absent) = (0, 0, 0);
            return;
        }
        if least <= 0 {
            return;
        }
        let weight = i128::from(self.weight);
        let distance = match u64::try_from(least) {
            // 64-bit division is several times faster.
            Ok(least) => least.div_ceil(self.weight),
            Err(_) => u64::try_from((least + weight - 1) / weight).unwrap_or(u64::MAX >> 2),
        };
        self.go_on(distance);
    }
}
