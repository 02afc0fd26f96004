//! What groups had that were removed, for those that are made again under their paths.
//!
//! To the store a group and the next one under its path are one: this process's part of the tenant. What the first used of its lease and did not
//! tell yet has to be told by the second, or the store would take it back as unused and grant it twice; and a request that says
//! less than an earlier one would be stale. What the first asked is answered to whoever is there then, or to what is kept here: groups that live shorter
//! than a round trip have leases, too.

use std::collections::HashMap;
use std::sync::Arc;

use crate::holder::Holder;
use crate::units::Micros;

/// How many are kept. Beyond that those whose leases have ended are dropped, and then no more are taken in: who begins anew beside a lease of
/// before would give that back whole, used or not, so until the last of those has ended all who begin wait on their floors.
const KEPT_MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Past {
    holders: HashMap<Arc<str>, Holder>,
    /// When the last lease ends of those that were not taken in.
    lost_until: Micros,
}

impl Past {
    /// O(1), and O(kept) once in so many as there is room for.
    pub(super) fn keep(&mut self, path: Arc<str>, holder: Holder, now: Micros) {
        if self.holders.len() >= KEPT_MAX {
            self.holders.retain(|_, kept| kept.ends() > now);
        }
        if self.holders.len() < KEPT_MAX {
            self.holders.insert(path, holder);
        } else {
            self.lost_until = self.lost_until.max(holder.ends());
        }
    }

    /// Until when the store may hold a lease of a path that nobody here remembers.
    pub(super) fn lost_until(&self) -> Micros {
        self.lost_until
    }

    /// All of them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Arc<str>, Holder)> {
        self.holders.drain()
    }

    /// For an answer that comes while there is no group.
    pub(super) fn get_mut(&mut self, path: &str) -> Option<&mut Holder> {
        self.holders.get_mut(path)
    }

    pub(super) fn take(&mut self, path: &str) -> Option<Holder> {
        self.holders.remove(path)
    }
}
