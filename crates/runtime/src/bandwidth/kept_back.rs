//! Holders of locks that wait for budget although somebody waits for them: looked at every [`EVERY`].
//!
//! Who comes to wait asks for them at once, if his place may be better (`line`). What nobody asks for is seen here: the waiter's group has got budget since, or its limit was lifted, its weight
//! was changed, or the holder's was. (Not while all that wait have no budget either: ten thousand holders of a tenant that waits for itself were queued anew for ever.) A holder that is queued and is waited for, and has found no better place, is listed; a look takes it out of the list and has it asked for, and if it is
//! in vain again it is listed again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use quotient_core::Nanos;
use quotient_pause::in_one_step;

use super::Deferral;

/// Time between two looks. Unit: nanoseconds. Default: 50 ms, half of the usual period: each look is a search in the holder's queue, for which its group pays.
const EVERY: Nanos = Nanos::from_millis(50);
/// Holders in one look; the rest has its turn in the next one. Unit: tasks.
const PART: usize = 64;

/// Those of one scheduler.
#[derive(Debug, Default)]
pub(crate) struct KeptBack {
    /// Each once, and those that ended since the last look.
    list: Mutex<VecDeque<Weak<Deferral>>>,
    any: AtomicBool,
    /// The last look. Unit: nanoseconds.
    looked_at: AtomicU64,
}

impl KeptBack {
    /// A holder waits, and is waited for.
    pub(super) fn list(&self, holder: &Arc<Deferral>) {
        if holder.is_listed.swap(true, Ordering::Relaxed) {
            return;
        }
        in_one_step(|| {
            let mut list = self.lock();
            list.push_back(Arc::downgrade(holder));
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
                && let Some(holder) = list.pop_front()
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

    fn lock(&self) -> MutexGuard<'_, VecDeque<Weak<Deferral>>> {
        self.list
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}
