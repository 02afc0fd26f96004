//! The forms in which a limit may be written, and the change of a group's limit.

use std::sync::Arc;
use std::time::Duration;

use quotient_core::{BandwidthRules, Limit, LimitError, Nanos};

use super::watch::ThrottleWatch;

use crate::error::Error;
use crate::gates;
use crate::group::{Group, GroupShared};
use crate::idle::VcpuSet;
use crate::preempt::at_usual_priority;
use crate::shared::Shared;

/// A number of processors: `Cpus(0.5)` is 50 ms in each 100 ms.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Cpus(pub f64);

/// A part of the scheduler's virtual CPUs, stand-ins not counted: `Share(0.2)` of 8 virtual CPUs is `Cpus(1.6)`. It is worked out when
/// the limit is set.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

/// What [`crate::GroupBuilder::max`] and [`crate::Group::set_max`] accept; made by `into()` from
///
/// - texts: `"50ms/100ms"`, and cgroup v2's `"50000 100000"` (microseconds), `"50000"` (of the usual period), `"max 100000"`, `"max"`;
/// - [`Cpus`] or [`Share`] (of the scheduler's virtual CPUs), with the period in force or 100 ms;
/// - `(quota, period)` as durations;
/// - a whole [`Limit`] with its burst, or `Option<Limit>` with `None` for no limit.
///
/// All but the last keep the burst that the group has, as `cpu.max` and `cpu.max.burst` are two files.
#[derive(Clone, Debug, PartialEq)]
pub struct Max {
    form: Form,
}

#[derive(Clone, Debug, PartialEq)]
enum Form {
    Text(String),
    Cpus(f64),
    Share(f64),
    Amount(Nanos, Nanos),
    Whole(Option<Limit>),
}

impl From<&str> for Max {
    fn from(text: &str) -> Self {
        let form = Form::Text(text.to_owned());
        Self { form }
    }
}

impl From<String> for Max {
    fn from(text: String) -> Self {
        let form = Form::Text(text);
        Self { form }
    }
}

impl From<Cpus> for Max {
    fn from(cpus: Cpus) -> Self {
        let form = Form::Cpus(cpus.0);
        Self { form }
    }
}

impl From<Share> for Max {
    fn from(share: Share) -> Self {
        let form = Form::Share(share.0);
        Self { form }
    }
}

impl From<(Duration, Duration)> for Max {
    fn from((quota, period): (Duration, Duration)) -> Self {
        let form = Form::Amount(nanos(quota), nanos(period));
        Self { form }
    }
}

impl From<Limit> for Max {
    fn from(limit: Limit) -> Self {
        let form = Form::Whole(Some(limit));
        Self { form }
    }
}

impl From<Option<Limit>> for Max {
    fn from(limit: Option<Limit>) -> Self {
        let form = Form::Whole(limit);
        Self { form }
    }
}

impl Max {
    /// The limit that this makes of the one in force, for a scheduler of so many virtual CPUs.
    fn onto(&self, base: Option<Limit>, vcpus: usize) -> Result<Option<Limit>, LimitError> {
        let base = base.unwrap_or(Limit::new(Limit::QUOTA_MIN, Limit::PERIOD_DEFAULT));
        match &self.form {
            Form::Text(text) => Limit::read_onto(text, base),
            Form::Cpus(cpus) => cpus_onto(*cpus, base).map(Some),
            Form::Share(share) => {
                if !(*share > 0.0 && *share <= 1.0) {
                    return Err(LimitError::Text {
                        text: share.to_string(),
                        expected: "expected a share above 0 and up to 1",
                    });
                }
                cpus_onto(share * vcpus as f64, base).map(Some)
            }
            Form::Amount(quota, period) => Ok(Some(Limit {
                quota: *quota,
                period: *period,
                ..base
            })),
            Form::Whole(limit) => Ok(*limit),
        }
    }
}

/// So many processors, in the period of `base`.
fn cpus_onto(cpus: f64, base: Limit) -> Result<Limit, LimitError> {
    // The quota of one period of 100 ms, scaled to the period in force.
    let limit = Limit::cpus(cpus)?;
    let quota = u128::from(limit.quota.0) * u128::from(base.period.0) / u128::from(limit.period.0);
    let quota = Nanos(u64::try_from(quota).unwrap_or(u64::MAX));
    Ok(Limit { quota, ..base })
}

/// What a user asks for: any part may be left as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LimitChange {
    pub(crate) max: Option<Max>,
    pub(crate) burst: Option<Duration>,
    pub(crate) soft: Option<bool>,
    pub(crate) smooth: Option<bool>,
}

impl LimitChange {
    /// No limit any more.
    pub(crate) fn lifted() -> Self {
        Self {
            max: Some(Max::from(None::<Limit>)),
            ..Self::default()
        }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.max.is_none() && self.burst.is_none() && self.soft.is_none() && self.smooth.is_none()
    }

    /// What this asks for, and what `defaults` ask for where it asks for nothing.
    pub(crate) fn or(&self, defaults: &Self) -> Self {
        Self {
            max: self.max.clone().or_else(|| defaults.max.clone()),
            burst: self.burst.or(defaults.burst),
            soft: self.soft.or(defaults.soft),
            smooth: self.smooth.or(defaults.smooth),
        }
    }

    /// The limit that comes of this on top of `base`, for the group `path` in a scheduler of so many virtual CPUs. Ranges are not checked.
    ///
    /// # Errors
    /// A text that is no limit; burst, soft or smooth without a limit.
    pub(crate) fn onto(
        &self,
        path: &str,
        base: Option<Limit>,
        vcpus: usize,
    ) -> Result<Option<Limit>, Error> {
        let limit = match &self.max {
            Some(max) => max.onto(base, vcpus)?,
            None => base,
        };
        let extras = self.burst.is_some() || self.soft.is_some() || self.smooth.is_some();
        let Some(mut limit) = limit else {
            if extras {
                let path = path.to_owned();
                return Err(Error::Unlimited { path });
            }
            return Ok(None);
        };
        if let Some(burst) = self.burst {
            limit.burst = nanos(burst);
        }
        limit.soft = self.soft.unwrap_or(limit.soft);
        limit.smooth = self.smooth.unwrap_or(limit.smooth);
        Ok(Some(limit))
    }

    /// What can be said about the change before the group exists.
    ///
    /// # Errors
    /// As [`LimitChange::apply`], but for the kernel's v1 rule about the groups above and below.
    pub(crate) fn check(&self, shared: &Shared, path: &str) -> Result<(), Error> {
        if self.is_nothing() {
            return Ok(());
        }
        let before = shared.tree.find(path).ok().and_then(|group| group.limit());
        if let Some(limit) = self.onto(path, before, shared.regular)? {
            let kernel = matches!(
                shared.tree.config().bandwidth,
                BandwidthRules::Kernel { .. }
            );
            limit.validate(kernel)?;
        }
        Ok(())
    }

    /// Applies the change to a group. One change at a time in a scheduler (under `Shared::shape`).
    ///
    /// # Errors
    /// The limit in force stays.
    pub(crate) fn apply(
        &self,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
    ) -> Result<(), Error> {
        if self.is_nothing() {
            return Ok(());
        }
        let (change, on, group) = (self.clone(), shared.clone(), group.clone());
        at_usual_priority(shared, move || {
            let mut kicked = VcpuSet::default();
            let applied = {
                let _shape = on.lock_shape();
                change.apply_under_shape(&on, &group, &mut kicked)
            };
            on.kick(&kicked);
            applied
        })
    }

    /// Applies the change if `expected` is the limit in force; returns whether it is. As [`LimitChange::apply`] otherwise.
    pub(crate) fn apply_if(
        &self,
        expected: Option<Limit>,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
    ) -> Result<bool, Error> {
        let (change, on, group) = (self.clone(), shared.clone(), group.clone());
        at_usual_priority(shared, move || {
            let mut kicked = VcpuSet::default();
            let applied = {
                let _shape = on.lock_shape();
                if group.core.limit() == expected {
                    let applied = change.apply_under_shape(&on, &group, &mut kicked);
                    applied.map(|()| true)
                } else {
                    Ok(false)
                }
            };
            on.kick(&kicked);
            applied
        })
    }

    /// [`LimitChange::apply`] for who holds `Shared::shape` and kicks the virtual CPUs that are added to `kicked` once it is free.
    ///
    /// # Errors
    /// The limit in force stays.
    pub(crate) fn apply_under_shape(
        &self,
        shared: &Shared,
        group: &Arc<GroupShared>,
        kicked: &mut VcpuSet,
    ) -> Result<(), Error> {
        if self.is_nothing() {
            return Ok(());
        }
        let before = group.core.limit();
        let limit = self.onto(group.core.path(), before, shared.regular)?;
        // Before the limit can be seen (see `gates`).
        let hold = match (before, limit) {
            (None, Some(_)) => {
                Some(gates::bandwidth_hold().map_err(|error| Error::Gate(error.to_string()))?)
            }
            _ => None,
        };
        group.core.set_limit(limit, shared.now(), &mut |cpu| {
            kicked.insert(cpu.index());
        })?;
        if hold.is_some() {
            group.keep_gate(hold);
        }
        group.settle_limited_below(shared);
        if limit.is_none() {
            // After nothing is limited any more.
            group.keep_gate(None);
        }
        Ok(())
    }
}

impl Group {
    /// Sets the limit if `expected` is the one in force; returns whether it was. Compare and change are one step, so that of two programs
    /// that write limits neither loses what the other wrote. Otherwise as [`Group::set_max`].
    ///
    /// # Errors
    /// As [`Group::set_max`]; the old limit stays in force.
    pub fn replace_max(&self, expected: Option<Limit>, max: impl Into<Max>) -> Result<bool, Error> {
        if self.inner.is_removed() {
            let path = self.path().to_owned();
            return Err(Error::Removed { path });
        }
        let change = LimitChange {
            max: Some(max.into()),
            ..LimitChange::default()
        };
        change.apply_if(expected, &self.shared, &self.inner)
    }

    /// Whether the group's own limit throttles it on some virtual CPU now, as last published there. ([`Group::bandwidth_stats`] counts a
    /// throttle only when it ends.) O(virtual CPUs), without a lock.
    pub fn is_throttled(&self) -> bool {
        let _shield = self.shared.shield();
        self.inner.core.is_throttled()
    }

    /// Puts `number` on the watch's list when the group's own limit next throttles it on any virtual CPU, so that a program with many groups
    /// need not look at each again and again. It does so once, and replaces the watch that was set before. Returns `false`, and does
    /// nothing, for a group that never had a limit. O(depth of the caller's group); a throttle of a group without a watch costs one load.
    pub fn watch_throttle(&self, watch: &Arc<ThrottleWatch>, number: u64) -> bool {
        let list = watch.list_for(&self.shared);
        let _shield = self.shared.shield();
        self.inner.core.watch_throttle(list, number)
    }
}

/// A duration on the scheduler's scale; longer than 584 years saturates, and is then out of every range.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
