//! Holders of locks that wait for budget although somebody waits for them: looked at every [`EVERY`].
//!
//! Who comes to wait asks for them at once, if his place may be better (`line`). What nobody asks for is seen here: the waiter's group has got budget since, or its limit was lifted, its weight
//! was changed, or the holder's was. (Not while all that wait have no budget either: ten thousand holders of a tenant that waits for itself were queued anew for ever.) A holder that is queued and is waited for, and has found no better place, is listed; a look takes it out of the list and has it asked for, and if it is
//! in vain again it is listed again.
//!
//! A look is at some of them only, and groups take turns in that, at each level of their tree ([`super::turns`]). (In one line, a tenant of whose own semaphore
//! 20,000 permits were held, while one of its tasks waited for another, had tasks of others wait for a mutex of theirs for 16 s.)

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use quotient_core::Nanos;
use quotient_pause::in_one_step;

use super::Deferral;
use super::turns::Turns;
use crate::group::GroupShared;

/// Time between two looks. Unit: nanoseconds. Default: 50 ms, half of the usual period: each look is a search in the holder's queue, for which its group pays.
const EVERY: Nanos = Nanos::from_millis(50);
/// Holders in one look; the rest has its turn in the next one. Unit: tasks.
const PART: usize = 64;

/// From the root, without that, to `group`: addresses of groups that its task keeps.
fn path(group: &Arc<GroupShared>) -> impl Iterator<Item = usize> {
    let mut path: Vec<_> = group.lineage().map(|at| Arc::as_ptr(at).addr()).collect();
    path.reverse();
    path.into_iter()
}

/// Those of one scheduler.
#[derive(Debug, Default)]
pub(crate) struct KeptBack {
    /// Each once, and those that ended since the last look.
    list: Mutex<Turns<Weak<Deferral>>>,
    any: AtomicBool,
    /// The last look. Unit: nanoseconds.
    looked_at: AtomicU64,
}

impl KeptBack {
    /// A holder of the group `own` waits, and is waited for. O(depth x log groups).
    pub(super) fn list(&self, holder: &Arc<Deferral>, own: &Arc<GroupShared>) {
        if holder.is_listed.swap(true, Ordering::Relaxed) {
            return;
        }
        let path = path(own);
        in_one_step(|| {
            let mut list = self.lock();
            list.push(path, Arc::downgrade(holder));
            self.any.store(true, Ordering::SeqCst);
        });
    }

    /// Whether the tick thread has to look.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// By the tick thread: a part of them is asked for.
    pub(crate) fn look(&self, now: Nanos) {
        let last = Nanos(self.looked_at.load(Ordering::Relaxed));
        if !self.any() || now.saturating_sub(last) < EVERY {
            return;
        }
        self.looked_at.store(now.as_nanos(), Ordering::Relaxed);
        let part: Vec<Arc<Deferral>> = {
            let mut list = self.lock();
            let mut part = Vec::new();
            // Tasks that have ended since take nobody's turn.
            while part.len() < PART
                && let Some(holder) = list.pop()
            {
                part.extend(holder.upgrade());
            }
            self.any.store(!list.is_empty(), Ordering::SeqCst);
            part
        };
        for holder in part {
            // First: it may be listed again by then.
            holder.is_listed.store(false, Ordering::Relaxed);
            holder.is_looked_at(now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turns<Weak<Deferral>>> {
        self.list
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Scheduler;

    /// Of a tenant with a thousand of them, and one with two: who has few waits for no more than a look or two, however many groups the other one has.
    #[test]
    fn who_has_many_holders_keeps_nobody_elses_from_being_looked_at() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        runtime.block_on(async {
            let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
            let group = |path: String| scheduler.group(&path).unwrap().create().unwrap();
            let kept = KeptBack::default();
            let listed = |path: String| {
                let group = group(path);
                let holder = Arc::new(Deferral::new(&group.shared));
                kept.list(&holder, &group.inner);
                holder
            };
            let _many: Vec<_> = (0..1_000)
                .map(|holder| listed(format!("all/many/g{}", holder % 100)))
                .collect();
            let few: Vec<_> = (0..2).map(|_| listed("all/few".into())).collect();
            let is_listed = |holder: &Arc<Deferral>| holder.is_listed.load(Ordering::Relaxed);
            assert!(few.iter().all(is_listed));
            kept.look(EVERY);
            assert!(!few.iter().any(is_listed));
            let mut looks = 1;
            while kept.any() {
                looks += 1;
                kept.look(Nanos(EVERY.as_nanos() * looks));
            }
            assert_eq!(looks, 1_002_u64.div_ceil(PART as u64));
            scheduler.shutdown().await;
        });
    }
}
