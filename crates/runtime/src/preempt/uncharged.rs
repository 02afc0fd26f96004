//! What bearers may use before they are charged: functions and jobs of groups without a limit that begin ahead of their first turn, and whoever
//! goes on beside the tasks of the virtual CPU that has chosen it.
//!
//! # Why any
//! Whoever waits for a turn is handed over twice before it begins, 40 us where a virtual CPU idles: as much as an empty function takes in all. So in
//! a group without a limit a function begins at once, and is charged once its proxy is picked for the first time. Until then it is *ahead*.
//!
//! # Why not any number
//! While the group owes, that is late; and if each function that comes begins, the group has the more the more it owes. (Four threads with jobs of 1.5
//! ms in a group of weight 100 had 8.1 s of CPU time beside long polls of one of 300, which had 1.4; the group's clock said 0.5 s.) So:
//! - *In a group and below it no more are ahead at a time than there are virtual CPUs*, those included that have ended and whose proxy waits. Each pick
//!   makes room for one more; others wait for their first turn, as in a group with a limit. In a frozen group nobody begins (`frozen`).
//! - *Who is ahead stands after [`UNCHARGED_MAX`]* until it is picked: the watch sees to that, as it does for whoever runs beside the
//!   tasks of the virtual CPU that has chosen it.
//!
//! # Protocol
//! A1: the function's thread, before it is known to any virtual CPU, counts itself in at each level, and out again where there is no room. A2: whoever
//! picks its proxy counts it out, once, by the carrier's flag; so does the carrier's end, if its proxy never was picked. Numbers and nothing else: a
//! reader that comes late lets one more or one less begin.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::Nanos;

use super::Preempting;
use super::carrier::Carrier;
use crate::group::GroupShared;
use crate::shared::{OPEN, Shared};

/// What a thread of others may use beside its virtual CPU's other tasks before it is charged. Unit: nanoseconds. 1 ms, the watch's period.
const UNCHARGED_MAX: Nanos = Nanos::from_millis(1);

/// The same of a long poll. Unit: nanoseconds. 4 ms, a turn: of low priority it has a tenth of the processor beside others, and one stop in a hundred
/// finds the allocator's lock taken.
const UNCHARGED_POLL_MAX: Nanos = Nanos::from_millis(4);

impl Carrier {
    /// A1: whether it may begin ahead of its first turn, as one of `most` in the group and below it. O(depth).
    pub(super) fn goes_ahead(&self, group: &Arc<GroupShared>, most: usize) -> bool {
        let has_room = |group: &&Arc<GroupShared>| {
            (group.line.ahead.fetch_add(1, Ordering::Relaxed) as usize) < most
        };
        let refused = group.bearing().position(|group| !has_room(&group));
        match refused {
            None => self.ahead.store(true, Ordering::Relaxed),
            Some(level) => count_out(group, level + 1),
        }
        refused.is_none()
    }

    /// Whether it began ahead of its first turn, and has not had that.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead.load(Ordering::Relaxed)
    }

    /// A2: its proxy was picked, or never will be.
    #[inline]
    pub(crate) fn has_had_a_turn(&self) {
        if self.is_ahead() && self.ahead.swap(false, Ordering::Relaxed) {
            self.count_out();
        }
    }

    #[cold]
    fn count_out(&self) {
        if let Some(group) = self.group() {
            count_out(group, usize::MAX);
        }
    }
}

impl Preempting {
    /// Stops a bearer that was chosen and is not charged yet for more than [`UNCHARGED_MAX`] or [`UNCHARGED_POLL_MAX`], used beside the other tasks of its
    /// virtual CPU, until it is chosen again. A thread of others has its usual priority: beside polls of 100 us it had half of the processor, and
    /// since policy knew of that at its next turn only, which was the later the more that came to, its group had four times what was its due.
    pub(super) fn bound_uncharged(&self, shared: &Shared, bearer: &Arc<Carrier>) {
        let by = bearer.chosen_by();
        let is_bound = match self.seats.get(by) {
            Some(seat) => !seat.nap.is_on(),
            // Not one that was detached just now, which the new carrier takes over. Once the scheduler has closed everybody is free.
            None => bearer.is_ahead() && shared.phase() == OPEN,
        };
        let most = match bearer.bears_a_task() {
            true => UNCHARGED_POLL_MAX,
            false => UNCHARGED_MAX,
        };
        let is_over = || bearer.uncharged() > most && !bearer.may_pay_later();
        if is_bound && bearer.may_run_for(by) && is_over() {
            self.forbid(bearer, by);
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.has_had_a_turn();
    }
}

/// One less in the first `levels`, from the group up.
fn count_out(group: &Arc<GroupShared>, levels: usize) {
    for group in group.bearing().take(levels) {
        group.line.ahead.fetch_sub(1, Ordering::Relaxed);
    }
}
