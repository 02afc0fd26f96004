//! Polls that stand because who pays for them has no budget, while their own group has.
//!
//! # Who is meant
//! A poll may compute for another group than its task's: inside an `in_group`, or a meter. That group, the *payer*, is charged as the poll goes on
//! (`others`); its limit, and those above it, are to hold as if the time had been spent by a task of its own. Where several such parts are
//! nested the innermost one is meant, which is the one that computes. The task's own group is not throttled, so its queue would go on
//! choosing the proxy. (Four tasks of a group without a limit that computed in a group of 5 % used 1.0 to 1.2 CPUs.)
//!
//! # Protocol
//! - *P1, who turns the virtual CPU:* when the proxy is picked, and after each turn was charged, it asks whether the payer is kept back
//!   (`quotient_core::Group::keeps_back_foreign`: a limited level of its path owes). If so, the bearer is stopped, marked `unpaid`, and its proxy is put
//!   *away*, as that of a killed poll is: it competes for nothing, and all other tasks of its group go on as if it slept. Of a bearer whose
//!   payer has a limit turns are as short as in a limited group.
//! - *P2, the same thread:* once the proxy is away, `waits` is set, and the tick thread made to run.
//! - *P3, the tick thread, at each look while `waits` is set:* takes `waits` back; asks again for each bearer that is marked and whose proxy is
//!   away; the proxies of those whose payers are kept back no more compete again; if it finds any such bearer, `waits` is set anew.
//!
//! Nobody is missed: either P3 takes `waits` back before P2 has set it, which leaves it set for the next look; or after, and then it sees the
//! proxy away, which came before. While it is set the tick thread does not park, and looks every 4 ms and at each refill.
//!
//! # Nobody stands for ever
//! P3 asks anew, so whatever ends the reason ends the wait: a refill, a limit that is raised or lifted, a payer that is removed, and an `in_group`
//! that has ended in a short turn, with which there is no payer any more. Once the scheduler closes nobody is kept back. An end of the poll
//! takes the proxy along (E1 of the parent module). Abort, kill and freeze find it as they find any poll that is away.
//!
//! # Locks
//! Who stands so may hold locks, and has the short turns of all that stand; the payer pays for them. Whose limit holds for it (the *tenant*,
//! whose own waiters are no reason to let it run more) is the payer's. The watch cannot ask P1's question: it takes the locks of budgets,
//! which a stopped poll may hold; carriers and the tick thread may wait for those, and are rescued.
//!
//! # What a limit lets through
//! What is computed between two charges, a turn of 1 ms on each virtual CPU, and before a poll is detached, 4 ms at most: it is a debt,
//! which later refills pay first. A poll that cannot be detached (`preemptible(false)`) is not stopped, and one whose payer's limit is soft.
//! Between polls `in_group` itself waits for its group (`in_group::future`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::carrier::Carrier;
use super::{Preempting, lock};
use crate::group::GroupShared;
use crate::shared::{OPEN, Shared};

/// Whose limit holds for the group: the topmost one with a limit above it, by an address that is compared and nothing else.
pub(super) fn tenant_of(group: &Arc<GroupShared>) -> Option<usize> {
    let limited = group.lineage().filter(|group| group.overtime.is_limited());
    limited.last().map(|group| Arc::as_ptr(group).addr())
}

impl Carrier {
    /// Whether who pays for what its thread does now, if that is not what it bears, is under a limit.
    pub(crate) fn has_limited_payer(&self) -> bool {
        let payer = self.others().payer();
        payer.is_some_and(|(_, group)| group.is_limited())
    }

    /// Whether its payer is kept back. Takes the locks of budgets.
    fn lacks_budget(&self) -> bool {
        let payer = self.others().payer();
        payer.is_some_and(|(shared, group)| group.is_kept_back(shared.now()))
    }
}

impl Preempting {
    /// P1: whether the bearer stands from now on, until its payer has budget. Its proxy is to be put away then.
    pub(crate) fn stops_unpaid(&self, shared: &Shared, bearer: &Arc<Carrier>) -> bool {
        let unpaid = shared.phase() == OPEN && !bearer.is_finished() && bearer.lacks_budget();
        bearer.stands_unpaid(unpaid);
        if unpaid {
            self.stop_anywhere(bearer);
        }
        unpaid
    }

    /// P2: the proxy of one that stands so is away.
    pub(crate) fn waits_for_payer(&self, shared: &Shared) {
        self.unpaid_wait.store(true, Ordering::SeqCst);
        shared.tick.run();
    }

    /// Whether any may stand so.
    pub(crate) fn any_waits_for_payer(&self) -> bool {
        self.unpaid_wait.load(Ordering::SeqCst)
    }

    /// P3. O(bearers) while any stands so.
    pub(super) fn let_paid_go(&self, shared: &Shared) {
        if !self.any_waits_for_payer() || !self.unpaid_wait.swap(false, Ordering::SeqCst) {
            return;
        }
        for index in 0.. {
            // Dropped without the lock, since it may be the last reference.
            let Some(bearer) = lock(&self.watch).bearer(index) else {
                break;
            };
            let stands = bearer.is_unpaid() && bearer.is_away();
            if stands && (shared.phase() != OPEN || !bearer.lacks_budget()) {
                bearer.is_to_return();
            }
        }
        // Of all at one time: the watch takes out of the list who has ended, and changes the places of others.
        let stands = |bearer: &Arc<Carrier>| bearer.is_unpaid() && bearer.is_away();
        if lock(&self.watch).bearers.iter().any(stands) {
            self.unpaid_wait.store(true, Ordering::SeqCst);
        }
    }
}
