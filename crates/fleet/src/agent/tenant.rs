//! One group with a budget: what it used, and the ordinary limit that stands for its lease.
//!
//! # Whose limit it is
//! The limit that is in force and that we did not write is the *local* one: the smaller of it and the lease is written. A write replaces
//! only what was seen in force ([`Group::replace_max`]), so that a limit that a user sets at the same moment is found, not lost. What a user
//! writes exactly as we did cannot be told from ours. Burst, softness and smoothness that are set on a limit of ours go with the next
//! write: a soft lease would be none.
//!
//! A fleet that ends leaves groups on their floors, and remembers with each ([`Group::keep`]) what it wrote and which limit is the local one. The
//! next fleet takes that over as if it had written it: its floor is no local limit, which would hold whatever the fleet grants from then on.

use std::sync::Arc;
use std::time::Duration;

use quotient::{Group, Limit, Nanos, ThrottleWatch};

use super::TenantStats;
use crate::holder::{Allowance, Holder, Settings};
use crate::rhythm::{self, FLOOR_PERIOD, PERIOD, Throttled};
use crate::units::{MicroCpus, Micros};

/// A limit is not set again for changes of less than one part in so many.
const CHANGE_PARTS: u64 = 32;

/// How often a write that met somebody else's is tried again at once; the next look goes on.
const REPLACE_TRIES: u32 = 4;

/// What a fleet that has ended leaves with a group: the limit that it wrote and what that stands for, and the limit that is not its.
#[derive(Debug)]
struct LeftOver {
    written: (Option<Limit>, Allowance),
    local: Option<Limit>,
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) group: Group,
    pub(super) holder: Holder,
    /// The limit that is not ours.
    local: Option<Limit>,
    /// The limit that we wrote, and the allowance that it stands for.
    written: Option<(Option<Limit>, Allowance)>,
    /// Its clock when it was last read, and when that was.
    cpu: Micros,
    cpu_at: Micros,
    /// When it was last looked at, and when it is again.
    looked_at: Option<Micros>,
    look_at: Micros,
    /// What it was throttled for in all, as read and as last looked at; and whether it kept within its lease between the last two looks.
    waits: Throttled,
    throttled: Micros,
    calm: bool,
    /// Its number on the list of who was throttled, and whether the next throttle is told.
    pub(super) number: u64,
    watched: bool,
    /// Whether it was throttled since the last look.
    pressed: bool,
}

impl Tenant {
    /// A group that begins; `past` is what the one before it under the same path left.
    pub(super) fn new(
        group: &Group,
        number: u64,
        settings: Settings,
        past: Option<Holder>,
        now: Micros,
    ) -> Tenant {
        let cpu = micros(group.cpu_time());
        let throttled = micros(group.bandwidth_stats().throttled);
        let left_over = group.take_kept::<LeftOver>();
        Tenant {
            holder: match past {
                Some(past) => past.resume(now, cpu, throttled),
                None => Holder::new(settings, now, cpu, throttled),
            },
            local: match &left_over {
                Some(left_over) => left_over.local,
                None => group.max(),
            },
            group: group.clone(),
            written: left_over.map(|left_over| left_over.written),
            cpu,
            cpu_at: now,
            looked_at: None,
            look_at: now,
            waits: Throttled::new(throttled),
            throttled,
            calm: false,
            number,
            watched: false,
            pressed: false,
        }
    }

    pub(super) fn stats(&self, path: &str, now: Micros) -> TenantStats {
        TenantStats {
            path: path.to_owned(),
            allowance: self.holder.allowance(now),
            demand: self.holder.demand(),
            limit: self.holder.limit(),
            figures: self.holder.figures(),
        }
    }

    /// Whether there is nothing to do before it uses more than half of its floor.
    pub(super) fn rests(&self, now: Micros) -> bool {
        self.holder.figures().asked > 0
            && self.written.is_some()
            && self.holder.eased(now).is_some()
    }

    /// Whether it has no limit that would throttle it as soon as it needs more than it rests with.
    pub(super) fn is_free(&self, now: Micros) -> bool {
        self.holder
            .eased(now)
            .is_none_or(|eased| eased == MicroCpus::ZERO)
    }

    /// Whether it kept within its lease when it was last looked at, and its next throttle is told. Without a limit there is none to tell of.
    pub(super) fn is_calm(&self) -> bool {
        self.calm && (self.watched || matches!(self.written, Some((None, _))))
    }

    /// Whether what it holds beyond its needs is no loss to others.
    pub(super) fn wants_little(&self) -> bool {
        self.holder.wants_little()
    }

    /// When it is looked at again.
    pub(super) fn look_at(&self) -> Micros {
        self.look_at
    }

    /// Has its next throttle told.
    pub(super) fn watch(&mut self, watch: &Arc<ThrottleWatch>) {
        self.watched = self.watched || self.group.watch_throttle(watch, self.number);
    }

    /// It was throttled: a look is due, and the next throttle is not told.
    pub(super) fn was_throttled(&mut self) {
        (self.watched, self.calm, self.pressed) = (false, false, true);
        self.look_at = Micros::ZERO;
    }

    /// Is looked at with the next look at all.
    pub(super) fn look_next(&mut self) {
        self.look_at = Micros::ZERO;
    }

    /// The store may have forgotten: its limit is told with the next look, which is due.
    pub(super) fn remind(&mut self) {
        self.holder.remind();
        self.look_at = Micros::ZERO;
    }

    /// Whether it has used more than it rests with since its clock was last read. One read of the clock. Who uses less than that is
    /// not throttled by its floor either.
    pub(super) fn stirs(&mut self, now: Micros) -> bool {
        let cpu = micros(self.group.cpu_time());
        let used = cpu.saturating_sub(self.cpu);
        if used == Micros::ZERO {
            self.cpu_at = now;
            return false;
        }
        let passed = now.saturating_sub(self.cpu_at);
        let eased = self.holder.eased(now).unwrap_or_default();
        (self.cpu, self.cpu_at) = (cpu, now);
        used > eased.over(passed)
    }

    /// Whether it is time to look at it: a twentieth of a lease after the last look, and when the lease ends.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        rhythm::is_due(now, self.look_at)
    }

    /// So many a lease.
    pub(super) fn lease_part(&self, parts: u64) -> Micros {
        let limit = self.holder.limit();
        Micros(limit.map_or(Micros::SECOND, |limit| limit.lease).0 / parts)
    }

    /// Whether it asks now, or within `slack`. As of the last look.
    pub(super) fn asks_by(&self, now: Micros, slack: Micros) -> bool {
        let next = self.holder.next_ask(now);
        next.is_some_and(|at| at <= now + slack)
    }

    /// Looks, unless that was done at this moment already: a second look would see that nothing has run since.
    pub(super) fn look_once(&mut self, now: Micros) {
        if self.looked_at != Some(now) {
            self.look(now);
        }
    }

    pub(super) fn look(&mut self, now: Micros) {
        self.looked_at = Some(now);
        let cpu = micros(self.group.cpu_time());
        let counted = micros(self.group.bandwidth_stats().throttled);
        let throttled = self.waits.read(now, counted, self.group.is_throttled());
        let (used, passed) = (
            cpu.saturating_sub(self.cpu),
            now.saturating_sub(self.cpu_at),
        );
        let within = rhythm::keeps_within(self.holder.allowance(now), used, passed);
        self.calm = within && throttled == self.throttled && !self.pressed;
        (self.cpu, self.cpu_at, self.throttled) = (cpu, now, throttled);
        self.holder.observe(now, cpu, throttled);
        if std::mem::take(&mut self.pressed) {
            self.holder.pressed(now);
        }
        self.look_at = rhythm::next_look(&self.holder, now, self.is_calm());
    }

    /// Puts what may be used in force. Returns whether the group still exists.
    pub(super) fn apply(&mut self, now: Micros) -> bool {
        self.put(self.holder.allowance(now))
    }

    fn put(&mut self, allowance: Allowance) -> bool {
        for _ in 0..REPLACE_TRIES {
            let in_force = self.group.max();
            if let Some((written, of)) = self.written {
                if written != in_force {
                    self.learn(written, in_force);
                } else if !differs(of, allowance) {
                    return true;
                }
            } else {
                self.local = in_force;
            }
            let wanted = match allowance {
                Allowance::Unlimited => self.local,
                Allowance::Lease(rate) => Some(smaller(limit_of(rate, PERIOD), self.local)),
                Allowance::Floor(rate) => Some(smaller(limit_of(rate, FLOOR_PERIOD), self.local)),
            };
            match self.group.replace_max(in_force, wanted) {
                Ok(true) => {
                    self.written = Some((wanted, allowance));
                    return true;
                }
                // Somebody wrote in between: look again.
                Ok(false) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Somebody wrote a limit beside us: it is the local one from now on.
    fn learn(&mut self, written: Option<Limit>, in_force: Option<Limit>) {
        let rate = |limit: Option<Limit>| limit.map(|limit| (limit.quota, limit.period));
        let ours = written.is_some() && rate(written) == rate(in_force);
        if !ours || rate(self.local) == rate(in_force) {
            self.local = in_force;
        }
    }

    /// The group was removed: what is known of its budget, with all that it used, for the next one under its path.
    pub(super) fn retire(mut self, now: Micros) -> Holder {
        self.look(now);
        self.holder
    }

    /// Nobody sees to the lease any more: the floor from now on, and for the next fleet what is whose.
    pub(super) fn end(&mut self, now: Micros) {
        if self.holder.allowance(now) != Allowance::Unlimited {
            let floor = self.holder.floor(now);
            // A group that was removed meanwhile needs none.
            self.put(Allowance::Floor(floor));
        }
        if let Some(written) = self.written {
            let local = self.local;
            self.group.keep(LeftOver { written, local });
        }
    }
}

fn micros(time: Duration) -> Micros {
    Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// Whether it is worth writing a limit.
fn differs(old: Allowance, new: Allowance) -> bool {
    match (old, new) {
        (Allowance::Unlimited, Allowance::Unlimited) => false,
        (Allowance::Lease(old), Allowance::Lease(new))
        | (Allowance::Floor(old), Allowance::Floor(new)) => {
            old.0.abs_diff(new.0) > old.0.max(new.0) / CHANGE_PARTS
        }
        _ => true,
    }
}

/// A local limit of this rate: in the given period, or a longer one in which the quota is not too small.
fn limit_of(rate: MicroCpus, period: Micros) -> Limit {
    let least = Limit::QUOTA_MIN.as_nanos() / 1_000;
    let rate = MicroCpus(rate.0.max(1));
    let needed = Micros(least * 1_000_000 / rate.0);
    let period = period.max(needed).min(Micros::SECOND);
    let quota = rate.over(period).0.max(least);
    Limit::new(Nanos::from_micros(quota), Nanos::from_micros(period.0))
}

/// The one of two limits with the lower rate.
fn smaller(ours: Limit, local: Option<Limit>) -> Limit {
    match local {
        Some(local) if local.ratio() < ours.ratio() => local,
        _ => ours,
    }
}
