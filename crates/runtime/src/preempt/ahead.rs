//! Functions and jobs of groups without a limit that begin ahead of their first turn.
//!
//! # Why
//! Whoever waits for a turn is handed over twice before it begins, 40 us where a virtual CPU idles: as much as an empty function takes in all. So in
//! a group without a limit a function begins at once, and is charged once its proxy is picked for the first time. Until then it is *ahead*.
//!
//! # Why not any number
//! While the group owes, that is late; and if each function that comes begins, the group has the more the more it owes. (Four threads with jobs of 1.5
//! ms in a group of weight 100 had 8.1 s of CPU time beside long polls of one of 300, which had 1.4; the group's clock said 0.5 s.) So:
//! - *In a group and below it no more are ahead at a time than there are virtual CPUs*, those included that have ended and whose proxy waits. Each pick
//!   makes room for one more; others wait for their first turn, as in a group with a limit.
//! - *Who is ahead stands after [`UNCHARGED_MAX`](super::watch)* until it is picked: the watch sees to that, as it does for whoever runs beside the
//!   tasks of the virtual CPU that has chosen it.
//!
//! # Protocol
//! A1: the function's thread, before it is known to any virtual CPU, counts itself in at each level, and out again where there is no room. A2: whoever
//! picks its proxy counts it out, once, by the carrier's flag; so does the carrier's end, if its proxy never was picked. Numbers and nothing else: a
//! reader that comes late lets one more or one less begin.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::carrier::Carrier;
use crate::group::GroupShared;

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
