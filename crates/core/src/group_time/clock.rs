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
}

impl Clock {
    /// Own tasks of the parent received service and weigh more or less than before. They are not chosen by V but by what competes beside
    /// them on their CPU, and who is alone there is never owed less for it: nobody would ever pay. So of what they are owed or owe no more
    /// than `bound` ns is remembered while none of them shares its CPU, and nothing once none is left.
    pub(super) fn serve_tasks(&mut self, told: &Told, bound: u64) {
        self.tasks = self.tasks.saturating_add_signed(told.shares);
        self.weight = self.weight.saturating_add_signed(told.shares);
        self.tasks_crowded = self.tasks_crowded.saturating_add_signed(told.crowded);
        let total = i128::from(told.own) << VIRTUAL_SHIFT;
        self.tasks_deficit += i128::from(told.deficit) - total;
        let bound = i128::from(bound) << VIRTUAL_SHIFT;
        let kept = match (self.tasks, self.tasks_crowded) {
            (0, _) => 0,
            (_, 0) => self.tasks_deficit.clamp(-bound, bound),
            _ => self.tasks_deficit,
        };
        // What is forgotten of them goes before V does: who leaves takes all that he is owed along, and V would jump by what it had forgotten
        // of that long ago.
        self.deficit += i128::from(told.deficit) - (self.tasks_deficit - kept);
        self.tasks_deficit = kept;
        self.serve(total);
        self.settle();
    }

    /// V goes on by that much.
    pub(super) fn go_on(&mut self, distance: u64) {
        self.now = self.now.plus(distance);
        self.deficit += i128::from(distance) * i128::from(self.weight);
        self.tasks_deficit += i128::from(distance) * i128::from(self.tasks);
    }

    /// Children received service, `total` in virtual time x shares.
    pub(super) fn serve(&mut self, total: i128) {
        self.deficit -= total;
        self.step((total / 2).max(-self.deficit));
    }

    /// Keeps V from being before the mean.
    pub(super) fn settle(&mut self) {
        self.step(-self.deficit);
    }

    fn step(&mut self, least: i128) {
        if self.weight == 0 {
            (self.deficit, self.tasks_deficit) = (0, 0);
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
