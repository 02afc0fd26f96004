//! Functions and jobs of frozen groups that have not begun: where they wait, and until when. (What has begun goes on to its end, as polls do, unless it
//! was to stop where it is.)
//!
//! # Where
//! - *A blocking function* waits in its group's line (`functions`), without a thread and without a place: the threads of the blocking pool are
//!   everybody's, and a frozen tenant that has as many functions as there are threads would keep all others' from theirs. One that has
//!   come to a thread, or waits there for its first turn as its group is frozen, goes (back) to the line.
//! - *A job, and a checkpoint*, has its thread already and waits there, at a gate, with neither place nor proxy; or in line, if it waits for a place
//!   as its group is frozen.
//!
//! # Until when
//! Until no freeze holds the group any more. A group that was removed is held by a freeze of what is above it, if that lives, since nobody could
//! thaw its own. A kill ends functions, as it ends those that wait for a place; jobs have no handle and wait on; and once the scheduler closes nobody waits.
//!
//! # Whom a freeze or a thaw wakes
//! Who waits below the group that it is about, and nobody else, and nobody if it changes nothing: wake-ups are nobody's time, and a tenant that called
//! `thaw` in a loop, for a group of its own that was not frozen, had 0.8 processors in wake-ups of all tenants' functions.
//!
//! # Who has begun
//! A proxy that is picked in a frozen group stands for a thread that has begun, and goes on, or for one that has not, and is held. The thread: (G1)
//! may run, and notes that it has begun; (G2) looks again whether it may, and if not takes the note back and waits. The carrier: (H1) forbids it to
//! run; (H2) looks for the note. Not both G2 and H2 miss the other's store: either the thread waits, or its proxy is not held, and it is let run again. So
//! nobody who has begun, perhaps with a lock in hand, stands where a freeze should let it go on. (`turns` has the model.)
//! Who waits for the first turn is woken by the freeze, sees it, and ends its part; its proxy, if that is held by then, is taken out of the list
//! under the list's lock, under which `GroupShared::hold` looks whether it has ended.
//!
//! # No thaw is missed
//! The line of a frozen group is not listed, so that nobody looks at it for as long as a freeze may last. Z1: who enters the line, or takes it off the
//! list, looks under its lock whether a freeze holds the group. Z2: who ends the freeze does so first, and then looks under that lock whether somebody
//! waits, and lists the group. So whoever has the lock last lists it. The gate has a lock of its own, to the same effect. Whoever thaws does not find
//! groups that were removed: their lines stay on the list, and the tick thread looks at them once a period.
//!
//! # No end is missed
//! An abort looks for a function at its thread, and then in the line. A function that goes back to the line (W1) leaves its thread, (W2) enters the
//! line, (W3) looks whether an abort has come. The abort (A1) leaves its mark, (A2) looks for the thread and (A3) for the function in the line. If A2 finds
//! the thread that was left, or A3 nothing, A1 comes before W3. A kill counts itself before it empties the line, under whose lock W2 looks for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::functions::Aborted;
use super::{Preempting, Waiting, lock};
use crate::group::{Group, GroupShared};
use crate::loss::{Loss, note};
use crate::shared::{OPEN, Shared};

/// How long a thread that waits for a thaw sleeps before it looks whether it still has to. Unit: time. A bound: it is woken for the thaw.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whether a freeze keeps what has not begun of the group from beginning: of what is scheduled, that is.
pub(crate) fn keeps_from_beginning(group: &Group) -> bool {
    super::is_scheduled(group) && group.inner.holds_unbegun()
}

impl Preempting {
    /// Z2, for groups that were frozen, thawed or removed, the first of them with all below it: who waits there for either looks. Not under
    /// `Shared::shape`.
    pub(crate) fn freezes_have_changed(&self, shared: &Shared, groups: &[Arc<GroupShared>]) {
        let _shield = quotient_pause::uninterrupted();
        for group in groups {
            self.list_thawed(shared, group);
        }
        let top = groups.first().map(Arc::as_ref);
        self.open_gate(top);
        self.wake_unbegun(top);
    }

    /// Those that wait at the gate for `top` and below it, or for any group, look whether they still have to.
    pub(super) fn open_gate(&self, top: Option<&GroupShared>) {
        let gate = lock(&self.functions.gate);
        let are_below = gate.iter().filter(|(group, _)| group.is_below(top));
        are_below.for_each(|(_, thread)| thread.unpark());
    }

    /// For a thread whose job or checkpoint is kept from beginning: waits for the thaw, [`LOOK_AGAIN`] at most.
    pub(super) fn wait_for_thaw(&self, group: &Group) {
        let own = std::thread::current();
        {
            let _shield = quotient_pause::uninterrupted();
            let mut gate = lock(&self.functions.gate);
            if !keeps_from_beginning(group) {
                return;
            }
            gate.push((group.inner.clone(), own.clone()));
        }
        std::thread::park_timeout(LOOK_AGAIN);
        let _shield = quotient_pause::uninterrupted();
        let mut gate = lock(&self.functions.gate);
        let place = gate.iter().position(|(_, thread)| thread.id() == own.id());
        let left = place.map(|place| gate.swap_remove(place));
        drop(gate);
        drop(left);
    }

    /// W2 and W3: a function that has come to a thread goes back to the line, with [`Aborted::leaves_its_thread`] before; or one that got none. It ends if it was aborted or
    /// killed meanwhile.
    pub(crate) fn goes_back(
        &self,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
        aborted: &Aborted,
        function: Waiting,
    ) {
        let shield = quotient_pause::uninterrupted();
        let line = lock(&group.line.waiting);
        if group.line.kills() != aborted.kills || shared.phase() != OPEN {
            drop(line);
            let undug = self.end_unbegun(shared, group, vec![function]);
            drop(shield);
            drop(undug);
            let reason = "the group, or one above it, was killed";
            return note(shared, group, Loss::KilledTask, 1, &reason);
        }
        // Beyond the line's bound, if it must be: no more than the blocking pool has threads.
        self.enters_line(shared, group, line, aborted.id.number(), function);
        if aborted.has_come.load(Ordering::SeqCst) {
            let undug = aborted.take_out_of_line(self, shared, group);
            drop(shield);
            drop(undug);
        }
    }
}

impl GroupShared {
    /// Whether a freeze holds what has not begun here. Under preemption, of functions and jobs.
    pub(crate) fn holds_unbegun(&self) -> bool {
        if !self.is_held() {
            return false;
        }
        let mut living = self;
        while living.is_removed() {
            let Some(parent) = living.above() else {
                return false;
            };
            living = parent;
        }
        living.is_held()
    }

    /// Whether it is `top`, or below it, or that is any group. O(depth).
    pub(super) fn is_below(&self, top: Option<&Self>) -> bool {
        top.is_none_or(|top| self.core.is_within(&top.core))
    }

    /// Whether its line is off the list: whoever thaws finds it.
    pub(super) fn keeps_its_line(&self, shared: &Shared) -> bool {
        shared.phase() == OPEN && !self.is_removed() && self.is_held()
    }
}
