//! Changing limits: what is checked, and in which order a change becomes visible.
//!
//! A limit is checked, then put in force under the pool's lock, then recorded as a change of the group, which every CPU
//! follows at its next choice (as it does weights): from then on it charges the group's budget, or stops to. CPUs on which
//! the group is throttled are posted at once.

use super::sync::Release;
use super::{
    Bandwidth, BandwidthAccount, BandwidthBalance, BandwidthRules, BandwidthStats, Limit,
    LimitError, RatioRule, ThrottleWatch, Timers,
};
use crate::group::Group;
use crate::units::{CpuId, Nanos};
use std::sync::Arc;

impl Bandwidth {
    /// Puts a limit in force, or ends it; CPUs to kick are appended. Returns whether that changed anything.
    fn configure(
        self: &Arc<Self>,
        limit: Option<Limit>,
        now: Nanos,
        timers: &Timers,
        kicks: &mut Vec<CpuId>,
    ) -> bool {
        let kernel = self.rules.is_kernel();
        let mut pool = self.pool();
        let in_force = pool.enabled.then_some(pool.limit);
        if limit == in_force && (limit.is_none() || !kernel) {
            return false;
        }
        match limit {
            None => pool.disable(now),
            Some(limit) if pool.enabled => pool.change(limit, now),
            // Groups interleave by the kernel's rules; the phase is as good as random and repeatable.
            Some(limit) => pool.enable(
                limit,
                u64::from(self.id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                now,
            ),
        }
        let (quota, period) = (pool.limit.quota.0, pool.limit.period.0);
        let ample = u128::from(quota) >= u128::from(period) * u128::from(self.cpus);
        pool.ample = ample && !kernel;
        self.soft.store(pool.limit.soft && !kernel, Release);
        let overdraft = super::OVERDRAFT_MAX.min(pool.limit.quota);
        self.overdraft.store(overdraft.0.cast_signed(), Release);
        self.enabled.store(pool.enabled, Release);
        if !pool.enabled || kernel {
            // Nobody has to wait any more; by the kernel's rules everybody starts anew.
            Self::let_go(&mut pool, kicks);
        } else {
            self.distribute(&mut pool, kicks);
        }
        self.settle(&mut pool, timers);
        true
    }

    /// The group is removed: its limit ends, and nothing is remembered.
    pub(crate) fn retire(self: &Arc<Self>, timers: &Timers) {
        // A removed group has no runnable tasks, so there is nobody to kick. Ending a limit needs no time.
        self.configure(None, Nanos::ZERO, timers, &mut Vec::new());
    }
}

/// Limits of many groups that are to change together, by path; `None` ends a limit. A path may be of a group that is yet to be made.
pub type LimitChanges = std::collections::BTreeMap<String, Option<Limit>>;

impl crate::GroupTree {
    /// Whether all of `changes` could be in force together, beside the limits of all other groups. Nothing is changed.
    ///
    /// O(changes); by the kernel's v1 rules O(groups x depth).
    ///
    /// # Errors
    /// The first path, in their order, whose limit is refused, and why: [`LimitError::OutOfRange`], [`LimitError::AboveParent`].
    pub fn check_limits(&self, changes: &LimitChanges) -> Result<(), (String, Box<LimitError>)> {
        let rules = self.config().bandwidth;
        for (path, limit) in changes {
            if let Some(limit) = limit {
                if path.is_empty() {
                    return Err((path.clone(), LimitError::Root.into()));
                }
                let checked = limit.validate(rules.is_kernel());
                checked.map_err(|error| (path.clone(), error.into()))?;
            }
        }
        let v1 = matches!(
            rules,
            BandwidthRules::Kernel {
                ratio: RatioRule::V1,
                ..
            }
        );
        if v1 {
            self.check_all_ratios(changes)
        } else {
            Ok(())
        }
    }

    /// cgroup v1's rule for the whole tree as it will be.
    fn check_all_ratios(&self, changes: &LimitChanges) -> Result<(), (String, Box<LimitError>)> {
        let mut limits: std::collections::BTreeMap<String, Limit> = self
            .groups()
            .iter()
            .filter_map(|group| Some((group.path().to_owned(), group.limit()?)))
            .collect();
        for (path, limit) in changes {
            match limit {
                Some(limit) => limits.insert(path.clone(), *limit),
                None => limits.remove(path),
            };
        }
        for (path, limit) in &limits {
            let above = path.rmatch_indices('/').map(|(end, _)| &path[..end]);
            let nearest = above
                .filter_map(|parent| limits.get_key_value(parent))
                .next();
            if let Some((parent, parent_limit)) = nearest
                && limit.ratio() > parent_limit.ratio()
            {
                let error = LimitError::AboveParent {
                    path: path.clone(),
                    limit: *limit,
                    parent: parent.clone(),
                    parent_limit: *parent_limit,
                };
                return Err((path.clone(), error.into()));
            }
        }
        Ok(())
    }

    /// Puts limits in force that [`crate::GroupTree::check_limits`] found good together, as one change: nobody else changes a limit in
    /// between, and the order of the list means nothing. Ratios are not looked at again, so the caller lets no other change of limits
    /// or groups come between the two calls. `kick` as in [`Group::set_limit`]. Groups that were removed are left out.
    pub fn set_limits(
        &self,
        limits: &[(Arc<Group>, Option<Limit>)],
        now: Nanos,
        kick: &mut dyn FnMut(CpuId),
    ) {
        let root = self.root();
        let changes = root.changes();
        let guard = changes.lock_limits();
        let mut kicks = Vec::new();
        for (group, limit) in limits {
            debug_assert!(group.parent().is_some(), "the root is never limited");
            group.set_checked_limit(*limit, now, changes, &mut kicks);
        }
        drop(guard);
        kicks.into_iter().for_each(kick);
    }
}

impl Group {
    /// The limit in force.
    pub fn limit(&self) -> Option<Limit> {
        self.bandwidth.get().and_then(|bandwidth| bandwidth.limit())
    }

    /// [`Group::limit`] and [`Group::bandwidth_stats`] of one moment. O(1).
    pub fn limit_and_stats(&self) -> (Option<Limit>, BandwidthStats) {
        let bandwidth = self.bandwidth.get();
        bandwidth.map_or_else(Default::default, |bandwidth| bandwidth.limit_and_stats())
    }

    /// Limits the group, live, or ends its limit. `kick` is called for each CPU that has groups to unthrottle now, as by
    /// [`crate::GroupTree::refill`]. CPUs follow as they follow weights.
    ///
    /// By the default rules a change gives the new quota for the rest of the new period in place of the old quota for the
    /// rest of the old one, so that no sequence of writes is worth more than what the limits earn while they are in force:
    /// over any time from the start on, the integral of quota / period, plus the largest quota that was in force. Debts
    /// outlive every change; while there is no limit nothing is earned, nothing charged and nothing forgiven. Writing the
    /// same limit again changes nothing. By the kernel's rules, every write refills.
    ///
    /// # Errors
    /// [`LimitError`] names what is wrong; the old limit stays in force.
    pub fn set_limit(
        &self,
        limit: Option<Limit>,
        now: Nanos,
        kick: &mut dyn FnMut(CpuId),
    ) -> Result<(), LimitError> {
        let changes = self.changes();
        // One change at a time in the whole tree, so that ratios above and below stay what was checked.
        let guard = changes.lock_limits();
        self.check_limit(limit)?;
        let mut kicks = Vec::new();
        self.set_checked_limit(limit, now, changes, &mut kicks);
        drop(guard);
        kicks.into_iter().for_each(kick);
        Ok(())
    }

    /// Puts a limit in force that [`crate::GroupTree::check_limits`] found good; CPUs to kick are appended. Nothing happens to a group
    /// that was removed meanwhile.
    fn set_checked_limit(
        &self,
        limit: Option<Limit>,
        now: Nanos,
        changes: &crate::tree::Changes,
        kicks: &mut Vec<CpuId>,
    ) {
        if self.is_removed() {
            return;
        }
        let bandwidth = match (self.bandwidth.get(), limit) {
            (None, None) => return,
            (Some(bandwidth), _) => bandwidth,
            (None, Some(_)) => self.bandwidth_made(),
        };
        if bandwidth.configure(limit, now, &changes.timers, kicks) {
            changes.record(self.id());
        }
    }

    fn bandwidth_made(&self) -> &Arc<Bandwidth> {
        self.bandwidth.get_or_init(|| {
            let config = self.config();
            let id = (self.id(), self.generation());
            Arc::new(Bandwidth::new(id, config))
        })
    }

    /// Reads a limit from text ([`Limit::parse_onto`], keeping period and burst of the last limit) and sets it.
    ///
    /// # Errors
    /// As [`Limit::parse`] and [`Group::set_limit`].
    pub fn set_limit_text(
        &self,
        text: &str,
        now: Nanos,
        kick: &mut dyn FnMut(CpuId),
    ) -> Result<(), LimitError> {
        let last = self.bandwidth.get().map(|bandwidth| bandwidth.last_limit());
        let base = last.unwrap_or(Limit::new(Limit::QUOTA_MIN, Limit::PERIOD_DEFAULT));
        self.set_limit(Limit::parse_onto(text, base)?, now, kick)
    }

    fn check_limit(&self, limit: Option<Limit>) -> Result<(), LimitError> {
        if self.is_removed() {
            return Err(LimitError::Removed {
                path: self.path().into(),
            });
        }
        let Some(limit) = limit else {
            return Ok(());
        };
        if self.parent().is_none() {
            return Err(LimitError::Root);
        }
        let rules = self.config().bandwidth;
        limit.validate(rules.is_kernel())?;
        if matches!(
            rules,
            BandwidthRules::Kernel {
                ratio: RatioRule::V1,
                ..
            }
        ) {
            self.check_ratios(&limit)?;
        }
        Ok(())
    }

    /// cgroup v1: no group gets a larger part than the nearest limited one above it.
    fn check_ratios(&self, limit: &Limit) -> Result<(), LimitError> {
        let refuse = |lower: &Group, limit: &Limit, upper: &Group, parent_limit: &Limit| {
            Err(LimitError::AboveParent {
                path: lower.path().into(),
                limit: *limit,
                parent: upper.path().into(),
                parent_limit: *parent_limit,
            })
        };
        let mut above = self.parent();
        while let Some(group) = above {
            if let Some(upper) = group.limit() {
                if limit.ratio() > upper.ratio() {
                    return refuse(self, limit, group, &upper);
                }
                break;
            }
            above = group.parent();
        }
        // Depth first over what is below, no further than the next limit on each path.
        let mut below = self.children();
        while let Some(group) = below.pop() {
            match group.limit() {
                Some(lower) if lower.ratio() > limit.ratio() => {
                    return refuse(&group, &lower, self, limit);
                }
                Some(_) => {}
                None => below.extend(group.children()),
            }
        }
        Ok(())
    }

    /// What the limit did so far; all zero for a group that never had one.
    pub fn bandwidth_stats(&self) -> BandwidthStats {
        self.bandwidth
            .get()
            .map_or_else(BandwidthStats::default, |bandwidth| bandwidth.stats())
    }

    /// Puts `number` on the watch's list when the group is next throttled on some CPU, once; a watch that was set before is replaced. Returns
    /// whether it will: not for a group that never had a limit. O(1).
    pub fn watch_throttle(&self, watch: &Arc<ThrottleWatch>, number: u64) -> bool {
        let bandwidth = self.bandwidth.get();
        bandwidth
            .inspect(|bandwidth| bandwidth.watch(watch, number))
            .is_some()
    }

    /// Whether the group's own limit keeps it back on some CPU now, as last published there. O(CPUs that met the limited group).
    pub fn is_throttled(&self) -> bool {
        let bandwidth = self.bandwidth.get();
        bandwidth.is_some_and(|bandwidth| bandwidth.is_throttled())
    }

    /// What each CPU holds of the group's budget, in the order in which they met the limited group.
    pub fn bandwidth_balances(&self) -> Vec<BandwidthBalance> {
        let bandwidth = self.bandwidth.get();
        bandwidth.map_or_else(Vec::new, |bandwidth| bandwidth.balances())
    }

    /// Where the group's budget is; all zero for a group that never had a limit.
    pub fn bandwidth_account(&self) -> BandwidthAccount {
        self.bandwidth
            .get()
            .map_or_else(BandwidthAccount::default, |bandwidth| bandwidth.account())
    }
}
