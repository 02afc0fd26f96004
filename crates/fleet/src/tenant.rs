//! The store's side of one tenant: the grant function, and the state that it works on.
//!
//! This is the reference; the store's Lua function (`grant.lua`) does the same, and a test holds the two together. The proof of the
//! bound is in the header of the crate.

use std::collections::{BTreeSet, HashMap};

use crate::demands::{DEMAND_MAX, Demands};
use crate::limit::{FleetLimit, lasts};
use crate::message::{Grant, ProcessId, Reply, Request};
use crate::units::{MicroCpus, Micros, scaled};

/// How many ended leases one call takes off the books; others wait for the next call, and count until then.
///
/// Unit: leases. Default 64: about as much work as the rest of the call.
pub const ENDED_PER_CALL_MAX: usize = 64;

/// For how long a floor is reserved for a process that is not heard of. It uses none for longer without a word from the store.
///
/// Unit: microseconds. Default: one hour.
pub const FLOOR_LIFE: Micros = Micros::from_secs(3_600);

/// Over which part of a lease the level gives out what is in the pool: a quarter. Slower, and budget stays there while some have less
/// than they want; faster, and who asks first gets it all.
const POOL_PARTS: u64 = 4;

/// Who holds this part of the capacity, a sixteenth, or more is asked to come back as soon as refills no longer fit in; so there are at most so
/// many, whatever the number of processes.
const LARGE_PARTS: u64 = 16;

/// And at most so often in a lease.
const RENEWALS_MAX: u64 = 16;

/// Who wants less than this part of the quota is offered no more than that: over five eighths of a lease that is not large yet. Who wants more is
/// offered what it wants.
const OFFERED_PARTS: u64 = 16;

/// How far ahead of the store's clock a limit's version may be; versions of the farther future are not adopted.
///
/// Unit: microseconds. Default: one day.
pub const VERSION_AHEAD_MAX: Micros = Micros::from_secs(86_400);

/// The longest time that is refilled for at once, a day: products stay finite. A pool is full long before.
const REFILL_MAX: Micros = Micros::from_secs(86_400);

/// What the store knows of one process.
#[derive(Clone, Copy, Debug)]
struct Entry {
    sequence: u64,
    used: Micros,
    /// The most that the process can still hold; of one whose lease has ended, what it held until then.
    held: Micros,
    /// How much of it came out of this pool, and may return: what a process says that it keeps from before the store forgot may be
    /// an old request's, of what is long gone.
    backed: Micros,
    demand: MicroCpus,
    /// Whether the lease lasts: `held` and `demand` are in the sums.
    live: bool,
    /// When the lease, or the floor, ends.
    ends: Micros,
    /// Whether a floor is reserved.
    floor: bool,
    /// The amount that the last request got, for its repetition.
    amount: Micros,
    share: MicroCpus,
    renew: Micros,
}

/// What is left of a process's old lease once it is off the books.
#[derive(Clone, Copy, Debug)]
struct Settled {
    /// Whether a floor is reserved for the process.
    floor: bool,
    /// How much of what it keeps came out of this pool.
    backed: Micros,
}

/// The budget of one tenant in the store.
#[derive(Clone, Debug)]
pub struct Tenant {
    limit: Option<FleetLimit>,
    /// Which life of the store this state was made in.
    run: u64,
    /// And in which one somebody set the limit, rather than a process told it.
    chosen: Option<u64>,
    /// The store's clock at the last call; never goes back but by beginning anew.
    seen: Micros,
    /// Until when nothing is granted.
    quiet_until: Micros,
    /// What may be granted, us; negative only after the limit was lowered, by what one lease earns at most.
    pool: i64,
    /// Millionths of a us that were earned beyond `pool`.
    fraction: u64,
    /// The most that processes can still hold.
    held: Micros,
    /// What processes said that they used.
    used: Micros,
    demands: Demands,
    processes: HashMap<ProcessId, Entry>,
    ends: BTreeSet<(Micros, ProcessId)>,
    /// Processes with a floor.
    floors: u32,
    /// What the cap cut off, us; saturates.
    lost: u64,
}

/// Figures of a tenant in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantFigures {
    /// What may be granted now, us; negative is a debt.
    pub pool: i64,
    /// The most that processes can still hold.
    pub held: Micros,
    /// What processes said that they used, in all.
    pub used: Micros,
    /// Processes with a lease.
    pub leases: u64,
    /// Processes for which a floor is reserved.
    pub floors: u32,
    /// What was refilled and did not fit in, since the store began: nobody wanted it.
    pub lost: Micros,
}

impl Default for Tenant {
    fn default() -> Self {
        Self::new()
    }
}

impl Tenant {
    /// A tenant of which nothing is known.
    pub fn new() -> Tenant {
        Tenant {
            limit: None,
            run: 0,
            chosen: None,
            seen: Micros::ZERO,
            quiet_until: Micros::ZERO,
            pool: 0,
            fraction: 0,
            held: Micros::ZERO,
            used: Micros::ZERO,
            demands: Demands::new(),
            processes: HashMap::new(),
            ends: BTreeSet::new(),
            floors: 0,
            lost: 0,
        }
    }

    /// The limit in force.
    pub fn limit(&self) -> Option<FleetLimit> {
        self.limit
    }

    /// Figures as of the last call.
    pub fn figures(&self) -> TenantFigures {
        TenantFigures {
            pool: self.pool,
            held: self.held,
            used: self.used,
            leases: self.demands.total(),
            floors: self.floors,
            lost: Micros(self.lost),
        }
    }

    /// Sets the limit, as of the store's clock; `limit.version` is ignored. Returns the version that it got.
    ///
    /// In this life of the store it holds against whatever processes still know, also of a version that is later since the store's clock was
    /// ahead then.
    ///
    /// Nothing is minted: what the old limit had earned is kept up to the new capacity, what is held beyond that is owed.
    pub fn set(&mut self, now: Micros, run: u64, limit: FleetLimit) -> u64 {
        let now = self.follow(now, run, limit.lease);
        let version = match self.limit {
            Some(old) => now.0.max(old.version + 1),
            None => now.0,
        };
        self.adopt(limit.with_version(version), now);
        self.chosen = Some(run);
        version
    }

    /// Answers one request, as of the store's clock in its `run`-th life. O(log processes), and [`ENDED_PER_CALL_MAX`] ended leases.
    pub fn ask(&mut self, now: Micros, run: u64, request: &Request) -> Reply {
        if request.demand == MicroCpus::ZERO && request.left > Micros::ZERO {
            // Off the books, and kept all the same: that would be granted twice. The store's function says so with an error.
            return Reply::Stale;
        }
        let known = request.known;
        let lease = known
            .or(self.limit)
            .map_or(Micros::ZERO, |limit| limit.lease);
        let now = self.follow(now, run, lease);
        if let Some(known) = known {
            let newer = self.limit.is_none_or(|limit| known.version > limit.version);
            let sane = known.version <= (now + VERSION_AHEAD_MAX).0 && known.validate().is_ok();
            if newer && sane {
                match self.limit {
                    // The store has forgotten that one, and then somebody chose this one.
                    Some(chosen) if self.chosen == Some(run) => {
                        self.limit = Some(chosen.with_version(known.version + 1));
                    }
                    _ => self.adopt(known, now),
                }
            }
        }
        let Some(limit) = self.limit else {
            return Reply::Unlimited { limit: None };
        };
        let Some(quota) = limit.quota else {
            return Reply::Unlimited { limit: Some(limit) };
        };
        let entry = self.processes.get(&request.process).copied();
        if let Some(entry) = entry {
            if request.sequence < entry.sequence {
                return Reply::Stale;
            }
            if request.sequence == entry.sequence {
                return self.repeat(&entry, limit, now);
            }
        }
        let request = &Request {
            left: believed(request, entry, &limit),
            ..*request
        };
        if request.leaves() {
            return Reply::Granted(self.leave(request, entry, limit, now));
        }
        let settled = self.settle(request, entry, &limit);
        if now < self.quiet_until {
            self.write(
                request,
                settled,
                (Micros::ZERO, MicroCpus::ZERO),
                now,
                &limit,
            );
            return Reply::Quiet {
                limit,
                floor: settled.floor,
                wait: self.quiet_until - now,
            };
        }
        let (amount, share) = self.amount(request, quota, &limit);
        self.pool -= signed(amount);
        let renew = self.write(request, settled, (amount, share), now, &limit);
        Reply::Granted(Grant {
            amount,
            duration: limit.spread(),
            sequence: request.sequence,
            share,
            renew,
            floor: settled.floor,
            limit,
        })
    }

    /// How much of the pool a request gets, and what its demand is worth.
    fn amount(
        &self,
        request: &Request,
        quota: MicroCpus,
        limit: &FleetLimit,
    ) -> (Micros, MicroCpus) {
        let demand = request.demand.min(DEMAND_MAX);
        if demand == MicroCpus::ZERO {
            return (Micros::ZERO, MicroCpus::ZERO);
        }
        // What is in the pool is given out over a part of a lease, beside what comes in.
        let saved = Micros(u64::try_from(self.pool).unwrap_or(0));
        let rate = MicroCpus(quota.0 + saved.per(Micros(limit.lease.0 / POOL_PARTS)).0);
        let share = self.demands.share(demand, rate);
        // Beyond its demand nobody is offered so much that it would have to come back early.
        let share = share.min(demand.max(MicroCpus(quota.0 / OFFERED_PARTS)));
        let horizon = request.horizon.min(limit.spread());
        let wanted = share.over(horizon).saturating_sub(request.left);
        (wanted.min(saved), share)
    }

    /// When a process that now holds so much is to ask again: before refills are cut off because it has not said what it used.
    fn renewal(&self, holds: Micros, limit: &FleetLimit) -> Micros {
        let quota = limit.quota.unwrap_or(FleetLimit::QUOTA_MIN);
        let latest = limit.renewal();
        let capacity = limit.capacity();
        if holds.0 < capacity.0 / LARGE_PARTS {
            return latest;
        }
        let room = (signed(capacity) - self.pool - signed(self.held))
            .max(0)
            .cast_unsigned();
        let full = Micros(scaled(room, 1_000_000, quota.0));
        full.max(Micros(limit.lease.0 / RENEWALS_MAX)).min(latest)
    }

    /// Takes what the process held off the books, and its floor. It is remembered for as long as a lease lasts, so that a request from before
    /// that comes late is known as such.
    fn leave(
        &mut self,
        request: &Request,
        entry: Option<Entry>,
        limit: FleetLimit,
        now: Micros,
    ) -> Grant {
        if let Some(entry) = entry {
            self.give_back(request, &entry);
            self.floors -= u32::from(entry.floor);
            let gone = Entry {
                sequence: request.sequence,
                used: request.used,
                held: Micros::ZERO,
                backed: Micros::ZERO,
                demand: MicroCpus::ZERO,
                live: false,
                ends: now + limit.spread(),
                floor: false,
                amount: Micros::ZERO,
                share: MicroCpus::ZERO,
                renew: Micros::ZERO,
            };
            self.ends.insert((gone.ends, request.process));
            self.processes.insert(request.process, gone);
            self.cap();
        }
        Grant {
            amount: Micros::ZERO,
            duration: Micros::ZERO,
            sequence: request.sequence,
            share: MicroCpus::ZERO,
            renew: Micros::ZERO,
            floor: false,
            limit,
        }
    }

    /// Takes a process's old lease off the books, and back into the pool what it neither used nor keeps. Returns how much of what it keeps came out
    /// of this pool.
    fn give_back(&mut self, request: &Request, entry: &Entry) -> Micros {
        let used = request.used.saturating_sub(entry.used);
        self.used += used;
        self.ends.remove(&(entry.ends, request.process));
        if !entry.live {
            return Micros::ZERO;
        }
        self.held = self.held.saturating_sub(entry.held);
        self.demands.remove(entry.demand);
        let returned = entry.backed.saturating_sub(used + request.left);
        self.pool += signed(returned);
        entry.backed.min(request.left)
    }

    /// The answer to a request that has come before.
    fn repeat(&self, entry: &Entry, limit: FleetLimit, now: Micros) -> Reply {
        if !entry.live || now < self.quiet_until {
            return Reply::Stale;
        }
        Reply::Granted(Grant {
            amount: entry.amount,
            duration: entry.ends.saturating_sub(now),
            sequence: entry.sequence,
            share: entry.share,
            renew: entry.renew,
            floor: entry.floor,
            limit,
        })
    }

    /// Takes what the process held off the books, and back into the pool what it neither used nor keeps; and counts its demand.
    fn settle(&mut self, request: &Request, entry: Option<Entry>, limit: &FleetLimit) -> Settled {
        let mut floor = false;
        let mut backed = Micros::ZERO;
        if let Some(entry) = entry {
            floor = entry.floor;
            backed = self.give_back(request, &entry);
        }
        if !floor && self.floors < limit.processes {
            self.floors += 1;
            floor = true;
        }
        if request.demand > MicroCpus::ZERO {
            self.demands.add(request.demand);
            self.held += request.left;
        }
        self.cap();
        Settled { floor, backed }
    }

    /// Remembers what the process holds now; returns when it is to ask again.
    fn write(
        &mut self,
        request: &Request,
        settled: Settled,
        (amount, share): (Micros, MicroCpus),
        now: Micros,
        limit: &FleetLimit,
    ) -> Micros {
        let live = request.demand > MicroCpus::ZERO;
        let ends = now + if live { limit.spread() } else { FLOOR_LIFE };
        self.held += amount;
        let renew = self.renewal(request.left + amount, limit);
        let entry = Entry {
            sequence: request.sequence,
            used: request.used,
            held: if live {
                request.left + amount
            } else {
                Micros::ZERO
            },
            backed: settled.backed + amount,
            demand: request.demand,
            live,
            ends,
            floor: settled.floor,
            amount,
            share,
            renew,
        };
        self.processes.insert(request.process, entry);
        self.ends.insert((ends, request.process));
        renew
    }

    /// Follows the store's clock: begins anew in another life of the store, ends leases and refills, in the order in which that
    /// happened. Returns the time to go by.
    fn follow(&mut self, clock: Micros, run: u64, lease: Micros) -> Micros {
        let went_back = clock + lease < self.seen;
        if run != self.run || went_back {
            self.forget(clock, run, lease);
        }
        let now = clock.max(self.seen);
        self.end_leases(now);
        self.refill(now);
        now
    }

    /// Refills up to a moment that is not before the last one, as far as the cap lets.
    fn refill(&mut self, until: Micros) {
        let from = self.seen.max(self.quiet_until).min(until);
        let quota = self.limit.and_then(|limit| limit.quota).unwrap_or_default();
        let passed = (until - from).min(REFILL_MAX);
        // Whole microseconds now, the rest with the next call.
        let earned = quota.0 as f64 * passed.0 as f64 + self.fraction as f64;
        let whole = (earned / 1e6).floor();
        self.fraction = (earned - whole * 1e6) as u64;
        self.pool = self.pool.saturating_add(whole as i64);
        self.seen = until;
        self.cap();
    }

    /// Grants may be forgotten: all that was written in another life of the store is void, and nothing is granted until none of it can be left.
    fn forget(&mut self, clock: Micros, run: u64, lease: Micros) {
        let lease = self.limit.map_or(lease, |limit| limit.lease.max(lease));
        *self = Tenant {
            limit: self.limit,
            run,
            chosen: self.chosen,
            used: self.used,
            lost: self.lost,
            seen: clock,
            quiet_until: clock + lasts(lease),
            ..Tenant::new()
        };
    }

    /// Takes ended leases off the books, and then ended floors.
    fn end_leases(&mut self, now: Micros) {
        for _ in 0..ENDED_PER_CALL_MAX {
            let Some(&(ends, process)) = self.ends.first() else {
                return;
            };
            if ends > now {
                return;
            }
            // Until then it counted against the cap.
            self.refill(ends.max(self.seen));
            self.ends.remove(&(ends, process));
            let Some(entry) = self.processes.get_mut(&process) else {
                continue;
            };
            if entry.live {
                // What was not used is lost: the process may have used it, and died before it could say so.
                self.held = self.held.saturating_sub(entry.held);
                self.demands.remove(entry.demand);
                entry.live = false;
                entry.ends = ends + FLOOR_LIFE;
                self.ends.insert((entry.ends, process));
            } else {
                self.floors -= u32::from(entry.floor);
                self.processes.remove(&process);
            }
        }
    }

    /// Holds pool and leases together to the capacity: burst and one lease. Of leases beyond it, of a limit that was lowered, no more is owed
    /// than one lease earns: they end, and a tenant whose limit fell from a thousand processors to one does not pay for them a quarter of an hour.
    fn cap(&mut self) {
        let earned = |limit: FleetLimit| limit.quota.unwrap_or_default().over(limit.lease);
        let most_owed = -signed(self.limit.map_or(Micros::ZERO, earned));
        let capacity = self.limit.map_or(Micros::ZERO, |limit| limit.capacity());
        let room = (signed(capacity) - signed(self.held)).max(most_owed);
        self.lost += self.pool.saturating_sub(room).max(0).cast_unsigned();
        self.pool = self.pool.min(room).max(most_owed);
    }

    fn adopt(&mut self, limit: FleetLimit, now: Micros) {
        if self.limit.is_none() {
            // An empty key: whatever was granted out of one that is lost ends within the time that a lease lasts.
            self.quiet_until = self.quiet_until.max(now + limit.spread());
            self.pool = 0;
        }
        self.limit = Some(limit);
        self.cap();
    }
}

/// What the process says that it keeps, as far as it can: no more than it was known to hold, or, if the store knows nothing of it, than anybody
/// is granted. What it kept of a larger limit that the store forgot ends before anything is granted anew.
fn believed(request: &Request, entry: Option<Entry>, limit: &FleetLimit) -> Micros {
    request
        .left
        .min(entry.map_or(limit.capacity(), |entry| entry.held))
}

fn signed(amount: Micros) -> i64 {
    i64::try_from(amount.0).unwrap_or(i64::MAX)
}
