//! What comes of a request: an answer that counts, one that does not, or none.

use super::{Asked, Holder, Standing};
use crate::limit::FleetLimit;
use crate::message::{Grant, Reply};
use crate::tenant::FLOOR_LIFE;
use crate::units::{MicroCpus, Micros};

/// Who holds less than this part of what its demand is worth asks again after an eighth of its pace in place of three.
const STARVED_PARTS: u64 = 4;

/// How long who does not know whether there is a limit waits before it asks again: a limit may come back at any moment.
const UNSURE_WAIT: Micros = Micros::SECOND;

impl Holder {
    /// The request failed, or its answer is given up: everything stays as it is until the lease ends. Asks again later and later, up
    /// to once a lease.
    pub fn failed(&mut self, now: Micros) {
        if self.asked.take().is_none() {
            return;
        }
        self.figures.failed += 1;
        self.failures = self.failures.saturating_add(1);
        let lease = self.lease().0;
        let wait = (lease / 8) << self.failures.min(3);
        self.not_before = now + Micros(wait.min(lease));
        self.renew_at = self.not_before;
    }

    /// Takes in the answer to request `sequence`. The figures should have been observed at `now`. Returns whether it counted.
    pub fn answer(&mut self, now: Micros, sequence: u64, reply: &Reply) -> bool {
        let Some(asked) = self.asked.filter(|asked| asked.sequence == sequence) else {
            self.figures.late += 1;
            return false;
        };
        let lease = self.lease();
        self.failures = 0;
        self.reminds = false;
        match reply {
            Reply::Granted(grant) => return self.granted(now, asked, grant),
            Reply::Quiet { limit, floor, wait } => {
                self.figures.quiet += 1;
                self.learn(*limit);
                self.standing = Standing::Limited;
                self.reserve(*limit, *floor, asked.sent);
                self.not_before = now + (*wait).clamp(Micros(lease.0 / 8), lease);
                self.renew_at = self.not_before;
            }
            Reply::Unlimited { limit } => {
                let ours = self.limit.map_or(0, |limit| limit.version);
                let theirs = limit.map_or(0, |limit| limit.version);
                if theirs < ours {
                    // A store that knows less than we told it: not to be trusted with "no limit".
                    self.failed(now);
                    return false;
                }
                if limit.is_none() && self.settings.strict {
                    self.unsure(now);
                    return true;
                }
                self.limit = limit.or(self.limit);
                self.standing = Standing::Free;
                self.held = Micros::ZERO;
                self.ends = now;
                self.figures.debt = Micros::ZERO;
                self.renew_at = now + lease;
            }
            Reply::Unknown { .. } if self.limit.is_some() => {
                // It did not take what we told it.
                self.failed(now);
                return false;
            }
            Reply::Unknown { .. } => self.unsure(now),
            Reply::Stale => {
                self.renew_at = now;
                self.figures.late += 1;
            }
        }
        self.asked = None;
        true
    }

    /// Nobody knows of a limit, and somebody may have: all stays as it is.
    fn unsure(&mut self, now: Micros) {
        self.asked = None;
        self.figures.unsure += 1;
        self.renew_at = now + UNSURE_WAIT;
    }

    fn granted(&mut self, now: Micros, asked: Asked, grant: &Grant) -> bool {
        if grant.sequence != asked.sequence || grant.limit.quota.is_none() {
            self.failed(now);
            return false;
        }
        self.asked = None;
        self.standing = Standing::Limited;
        self.learn(grant.limit);
        self.reserve(grant.limit, grant.floor, asked.sent);
        let lease = grant.limit.lease;
        // The amount and duration of a sane answer are within the limit's own.
        let duration = grant.duration.min(lease);
        let amount = grant.amount.min(grant.limit.capacity());
        let ends = asked.sent + duration;
        if now >= ends {
            self.figures.late += 1;
            self.renew_at = now;
            return false;
        }
        self.figures.granted += 1;
        if self.told == MicroCpus::ZERO {
            self.ends = now;
            self.held = Micros::ZERO;
            return true;
        }
        self.ends = ends;
        self.held += amount;
        self.share = grant.share;
        let paid = self.figures.debt.min(self.held);
        self.held = self.held - paid;
        self.figures.debt = self.figures.debt - paid;
        self.figures.used += paid;
        let pace = self.pace.min(lease);
        self.pace = pace;
        self.spread_until = asked.sent + self.horizon();
        // Somewhat earlier each time by chance, so that processes do not ask all at once.
        let mixed =
            (self.settings.process.0 ^ self.sequence).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let earlier = Micros(pace.0 / 256 * mixed);
        // Who got next to nothing (others hold it, or the quiet time after a loss has just ended) does not wait for a renewal's time.
        let due = self.share.over(self.horizon());
        let parts = if self.held.0 < due.0 / STARVED_PARTS {
            1
        } else {
            3
        };
        let renewal = Micros(pace.0 / 8 * parts).saturating_sub(earlier);
        self.renew_at = asked.sent + renewal.min(grant.renew.max(Micros(lease.0 / 16)));
        true
    }

    /// The limit in force, also if it is of an older version than ours, which the store was told and refused: one of a time to come by its clock.
    fn learn(&mut self, limit: FleetLimit) {
        self.limit = Some(limit);
    }

    fn reserve(&mut self, limit: FleetLimit, floor: bool, sent: Micros) {
        self.reserved = if floor {
            limit.floor()
        } else {
            MicroCpus::ZERO
        };
        self.reserved_until = sent + FLOOR_LIFE;
    }
}
