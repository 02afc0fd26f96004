//! A process's side of one tenant: what it holds, when it asks, what it may use.
//!
//! # States
//!
//! ```text
//!              first answer "no limit"
//!   Unknown ───────────────────────────► Free ◄──────────────┐ "no limit"
//!      │ first lease                      │ a limit is set    │
//!      ▼                                  ▼                   │
//!    Leased ◄──────── a lease ──────── Floor ────────────────┘
//!      └── its end, or all used: ────────►┘
//! ```
//!
//! A store that may have forgotten answers neither "no limit" nor a lease to who knows no limit, and changes nothing: Unknown stays so
//! (it goes on asking, once a second while there is something to run), and Free, which was answered by a store that remembered. Who knows a limit
//! tells it with each request; who has no reason to ask is reminded ([`Holder::remind`]) when the store's memory is another one.
//!
//! Unknown and Floor run on a floor only; Leased on what is held, evenly over the rest of the lease. A request that fails changes
//! nothing but when the next one is sent.
//!
//! # Which answer counts
//! Only the answer to the last request sent, once: a later request has said what the process keeps, and an amount of an earlier answer
//! is not in it (the store took it back). The end of a lease is counted from before the request was sent, on a clock that goes
//! on while the machine sleeps.

mod again;
mod answers;

use crate::demand::Demand;
use crate::limit::FleetLimit;
use crate::message::{ProcessId, Request};
use crate::units::{MicroCpus, Micros};

/// What one process is, for all its tenants.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The process's name.
    pub process: ProcessId,
    /// How many CPUs it can use.
    pub capacity: MicroCpus,
    /// The floor of a tenant for which the store has reserved none, or has not been reached for an hour.
    pub floor: MicroCpus,
    /// Whether "no limit" is believed only where somebody said so.
    pub strict: bool,
}

/// What the process may use now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// The tenant has no limit in the fleet.
    Unlimited,
    /// So much a second, out of a lease.
    Lease(MicroCpus),
    /// So much a second, without a lease.
    Floor(MicroCpus),
}

/// What happened to a tenant in this process, for statistics. Counters saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HolderFigures {
    /// Requests made.
    pub asked: u64,
    /// Leases received.
    pub granted: u64,
    /// Requests that failed or timed out.
    pub failed: u64,
    /// Answers that came after the end of their own lease, or after a later request.
    pub late: u64,
    /// Answers that said to wait because leases of before may be forgotten.
    pub quiet: u64,
    /// Answers of a store that knew of no limit and may have forgotten one, while this process knew none either: floors.
    pub unsure: u64,
    /// Leases that ended while there was demand: each is a fall to the floor.
    pub lapsed: u64,
    /// CPU time used out of leases.
    pub used: Micros,
    /// CPU time used on floors.
    pub floor_used: Micros,
    /// CPU time used beyond both, such as by polls under way; paid back out of the next lease.
    pub overrun: Micros,
    /// What is owed of that.
    pub debt: Micros,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    sequence: u64,
    sent: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Unknown,
    Free,
    Limited,
}

/// One tenant in one process.
#[derive(Clone, Debug)]
pub struct Holder {
    settings: Settings,
    standing: Standing,
    limit: Option<FleetLimit>,
    sequence: u64,
    asked: Option<Asked>,
    /// What is left of the lease, and when it ends.
    held: Micros,
    ends: Micros,
    /// Until when it is to be used.
    spread_until: Micros,
    /// What the store said that the demand is worth.
    share: MicroCpus,
    /// The floor that the store reserves, and until when.
    reserved: MicroCpus,
    reserved_until: Micros,
    /// What the floor has earned and is not used, at most one second's.
    floor_credit: Micros,
    /// The floor of one that was made again, and until when that is in force.
    rest_of_floor: MicroCpus,
    rest_until: Micros,
    demand: Demand,
    /// The demand of the last request.
    told: MicroCpus,
    /// Last observation.
    observed_at: Micros,
    observed_cpu: Micros,
    observed_throttled: Micros,
    active: bool,
    last_ask: Micros,
    renew_at: Micros,
    not_before: Micros,
    failures: u32,
    /// Whether the store is to be told the limit although there is nothing to ask for.
    reminds: bool,
    /// The lease by which times are reckoned: short while the demand is new, then longer, up to the limit's own.
    pace: Micros,
    figures: HolderFigures,
}

/// The lease to reckon with as long as no limit is known, and how often a tenant without one is looked at.
const LEASE_ASSUMED: Micros = Micros::SECOND;

/// A demand that is new is leased for as if leases had a part of their length, an eighth, but not less than [`LEASE_ASSUMED`]; each renewal
/// doubles that.
const NEW_PARTS: u64 = 8;

/// How many times its lease, or its floor, who is pressed asks for. Of 1, 2, 4, 8 and all that a process can do, ten simulated processes with bursts
/// of 1 s use 92.5 % of their quota with 2, 97.6 with 8; and with a hundred floors, which are five equal parts, all of it.
const PRESSED_LEASES: u64 = 8;
const PRESSED_FLOORS: u64 = 100;

/// Who holds this part of the capacity, a sixteenth, or less holds little.
const LITTLE_PARTS: u64 = 16;

/// For how long a floor may be saved up: what a local limit of a period of one second grants at once.
const FLOOR_SAVED: Micros = Micros::SECOND;

impl Holder {
    /// A tenant that begins at `now`, with the figures of its group so far.
    pub fn new(settings: Settings, now: Micros, cpu: Micros, throttled: Micros) -> Holder {
        Holder {
            settings,
            standing: Standing::Unknown,
            limit: None,
            // Not from zero: one of before, under the same path, may have asked already, once in 10 ms at most.
            sequence: now.0,
            asked: None,
            held: Micros::ZERO,
            ends: now,
            spread_until: now,
            share: MicroCpus::ZERO,
            reserved: MicroCpus::ZERO,
            reserved_until: now,
            floor_credit: settings.floor.over(FLOOR_SAVED),
            rest_of_floor: MicroCpus::ZERO,
            rest_until: now,
            demand: Demand::new(settings.capacity),
            told: MicroCpus::ZERO,
            observed_at: now,
            observed_cpu: cpu,
            observed_throttled: throttled,
            active: false,
            last_ask: Micros::ZERO,
            renew_at: now,
            not_before: now,
            failures: 0,
            reminds: false,
            pace: LEASE_ASSUMED,
            figures: HolderFigures::default(),
        }
    }

    /// The newest limit that was seen.
    pub fn limit(&self) -> Option<FleetLimit> {
        self.limit
    }

    /// What happened so far.
    pub fn figures(&self) -> HolderFigures {
        self.figures
    }

    /// What is left of the lease.
    pub fn held(&self) -> Micros {
        self.held
    }

    /// What the process would use if nothing held it back.
    pub fn demand(&self) -> MicroCpus {
        self.demand.estimate()
    }

    /// When the lease ends; in the past if there is none.
    pub fn ends(&self) -> Micros {
        self.ends
    }

    /// Until when the lease is to be used; in the past if there is none.
    pub(crate) fn spread_until(&self) -> Micros {
        self.spread_until.min(self.ends)
    }

    /// Whether an answer is awaited.
    pub fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// The store may have forgotten the limit: tells it with the next request, which is due now if a limit is known.
    pub fn remind(&mut self) {
        self.reminds = self.limit.is_some();
    }

    /// It was throttled: it needs more than it may use, and how long it waits is counted only when the throttle ends. It asks for several times
    /// as much, so for as much as others get that need more; what is too much goes back with the next request. To be called after the
    /// figures were observed at `now`.
    pub fn pressed(&mut self, now: Micros) {
        if self.standing != Standing::Limited {
            return;
        }
        let more = if now >= self.ends {
            self.floor(now).0 * PRESSED_FLOORS
        } else {
            self.told.max(self.rate(now)).0 * PRESSED_LEASES
        };
        self.demand.raise(MicroCpus(more));
    }

    fn lease(&self) -> Micros {
        self.limit.map_or(LEASE_ASSUMED, |limit| limit.lease)
    }

    /// What to ask for. Nothing where half of the floor is enough: floors are reserved anyway. And no less than a quarter of an equal
    /// part: a demand that is small flickers, and would be asked for anew all the time.
    fn wish(&self, now: Micros) -> MicroCpus {
        let demand = self.demand.estimate();
        let quota = self.limit.and_then(|limit| limit.quota);
        let (Some(limit), Some(quota), Standing::Limited) = (self.limit, quota, self.standing)
        else {
            return demand;
        };
        if demand.0 <= self.floor(now).0 / 2 {
            return MicroCpus::ZERO;
        }
        let part = quota.0 / 4 / u64::from(limit.processes.max(1));
        demand.max(MicroCpus(part)).min(self.settings.capacity)
    }

    /// Whether it wants no more than an equal part, and holds no more than the store offers unasked: what it does not use is no loss to others.
    pub(crate) fn wants_little(&self) -> bool {
        let Some((limit, quota)) = self.limit.and_then(|limit| Some((limit, limit.quota?))) else {
            return true;
        };
        let part = quota.0 / u64::from(limit.processes.max(1));
        self.told.0 <= part && self.held.0 <= limit.capacity().0 / LITTLE_PARTS
    }

    /// How much the group may use in `time` and be left alone: half of its floor, for which it would not ask (see `wish`). `None` if it has
    /// a lease, or the rest of a floor, or anything to ask.
    pub(crate) fn eased(&self, now: Micros) -> Option<MicroCpus> {
        let holds = now < self.ends || now < self.rest_until;
        if self.asked.is_some() || holds || self.next_ask(now).is_some() {
            return None;
        }
        match self.standing {
            Standing::Limited => Some(MicroCpus(self.floor(now).0 / 2)),
            // Both ask once it runs.
            Standing::Unknown | Standing::Free => {
                let idle = self.demand.estimate() == MicroCpus::ZERO;
                idle.then_some(MicroCpus::ZERO)
            }
        }
    }

    /// The shortest lease to reckon with.
    fn pace_of_new(&self) -> Micros {
        let lease = self.lease();
        Micros(lease.0 / NEW_PARTS).max(LEASE_ASSUMED).min(lease)
    }

    /// For how long ahead to hold: five eighths of the pace, as [`FleetLimit::spread`].
    fn horizon(&self) -> Micros {
        Micros(self.pace.0 / 8 * 5)
    }

    /// The floor in force: reserved, or the configured one; never more than the quota itself.
    pub fn floor(&self, now: Micros) -> MicroCpus {
        let quota = self.limit.and_then(|limit| limit.quota);
        let configured = self
            .settings
            .floor
            .min(quota.unwrap_or(self.settings.floor));
        match self.standing {
            Standing::Limited if now < self.reserved_until => self.reserved,
            Standing::Limited => self.reserved.min(configured),
            Standing::Unknown | Standing::Free => configured,
        }
    }

    /// Takes in the group's CPU time and throttled time so far, as of `now`. To be called before every request, and when the lease
    /// ends. O(1).
    pub fn observe(&mut self, now: Micros, cpu: Micros, throttled: Micros) {
        let passed = now.saturating_sub(self.observed_at);
        let used = cpu.saturating_sub(self.observed_cpu);
        let waited = throttled.saturating_sub(self.observed_throttled);
        self.active = used > Micros::ZERO || waited > Micros::ZERO;
        self.demand.observe(used + waited, passed, self.pace);
        let floor = self.floor(now);
        // What was earned meanwhile was there to be used, however long that is; what is left is kept for a second at most.
        self.floor_credit += floor.over(passed);
        if self.standing != Standing::Free {
            self.charge(used);
        }
        self.floor_credit = self.floor_credit.min(floor.over(FLOOR_SAVED));
        let had = self.ends > self.observed_at;
        if now >= self.ends {
            self.held = Micros::ZERO;
            if had && self.told > MicroCpus::ZERO {
                self.figures.lapsed += 1;
            }
        }
        self.observed_at = self.observed_at.max(now);
        self.observed_cpu = self.observed_cpu.max(cpu);
        self.observed_throttled = self.observed_throttled.max(throttled);
    }

    /// What was used comes out of the lease, then out of the floor; the rest is owed.
    fn charge(&mut self, used: Micros) {
        let from_lease = used.min(self.held);
        self.held = self.held - from_lease;
        self.figures.used += from_lease;
        let rest = used - from_lease;
        let from_floor = rest.min(self.floor_credit);
        self.floor_credit = self.floor_credit - from_floor;
        self.figures.floor_used += from_floor;
        let beyond = rest - from_floor;
        self.figures.overrun += beyond;
        self.figures.debt += beyond;
    }

    /// What the process may use from now on, until the lease ends or the next observation.
    pub fn allowance(&self, now: Micros) -> Allowance {
        if self.standing == Standing::Free {
            return Allowance::Unlimited;
        }
        let floor = self.floor_in_force(now);
        if now >= self.ends {
            return Allowance::Floor(floor);
        }
        let rate = self.rate(now);
        if rate <= floor {
            return Allowance::Floor(floor);
        }
        Allowance::Lease(rate)
    }

    /// What is held, spread over what is left of its time.
    fn rate(&self, now: Micros) -> MicroCpus {
        let least = Micros(self.pace.0 / 16);
        self.held
            .per(self.spread_until.saturating_sub(now).max(least))
    }

    /// When to look again whether to ask, at the latest; `now` or earlier: ask now. `None` while an answer is awaited.
    pub fn next_ask(&self, now: Micros) -> Option<Micros> {
        if self.asked.is_some() {
            return None;
        }
        let early = Micros(self.pace.0 / 8);
        let soon = (self.last_ask + early).max(self.not_before);
        if self.reminds {
            return Some(soon);
        }
        let wants = match self.standing {
            // Answered by a store that does not know either: as long as nothing runs, nobody needs to know.
            Standing::Unknown if self.figures.unsure > 0 => {
                return self.active.then_some(soon.max(self.renew_at));
            }
            Standing::Unknown => true,
            Standing::Free => return self.active.then_some(soon.max(self.renew_at)),
            // Once without demand, so that the store need not wait for the end.
            Standing::Limited if now >= self.ends => {
                self.wish(now).max(self.told) > MicroCpus::ZERO
            }
            Standing::Limited => self.wants_more(now),
        };
        if wants {
            return Some(soon);
        }
        (now < self.ends).then(|| self.renew_at.max(self.not_before))
    }

    /// Whether the demand has outgrown the lease, or leaves half of it to others.
    fn wants_more(&self, now: Micros) -> bool {
        let demand = self.wish(now);
        let grown = demand.0 > self.told.0 + self.told.0 / 4;
        let shrunk = demand.0 < self.told.0 / 2;
        (grown && self.rate(now) < demand) || shrunk
    }

    /// The next request, sent at `now`. The figures must have been observed at `now`.
    ///
    /// The process may use no more than [`Request::left`] until the answer is there.
    pub fn request(&mut self, now: Micros) -> Request {
        let demand = self.wish(now);
        self.set_pace(demand);
        let spread = self.horizon();
        // What a process does not need goes back to those who do, and so does what nobody may hold any more since the limit was lowered.
        let limit = self.limit.filter(|limit| limit.quota.is_some());
        let most = limit.map_or(Micros::ZERO, |limit| limit.capacity());
        self.held = self.held.min(demand.over(spread)).min(most);
        self.sequence += 1;
        self.figures.asked += 1;
        self.last_ask = now;
        self.asked = Some(Asked {
            sequence: self.sequence,
            sent: now,
        });
        self.told = demand;
        Request {
            process: self.settings.process,
            sequence: self.sequence,
            used: self.figures.used,
            left: self.held,
            demand,
            horizon: spread,
            known: self.limit,
        }
    }

    /// The last request: the process keeps nothing, and uses nothing more, not even its floor; an answer changes nothing. `None` if the store knows
    /// of nothing. The figures must have been observed at `now`.
    pub fn leave(&mut self, now: Micros) -> Option<Request> {
        let told = self.figures.asked > 0 && self.standing != Standing::Free;
        let (floor, limit) = (
            MicroCpus::ZERO,
            self.limit.filter(|limit| limit.quota.is_some()),
        );
        let limit = limit.filter(|_| told)?;
        (self.held, self.ends, self.spread_until) = (Micros::ZERO, now, now);
        (self.reserved, self.reserved_until, self.floor_credit) = (floor, now, Micros::ZERO);
        (self.told, self.asked) = (MicroCpus::ZERO, None);
        self.sequence += 1;
        Some(Request {
            process: self.settings.process,
            sequence: self.sequence,
            used: self.figures.used,
            left: Micros::ZERO,
            demand: MicroCpus::ZERO,
            horizon: Micros::ZERO,
            known: Some(limit),
        })
    }

    /// Asks for nothing before that moment: the store may hold a lease of which nobody here knows any more.
    pub(crate) fn wait_until(&mut self, at: Micros) {
        self.not_before = self.not_before.max(at);
        self.renew_at = self.renew_at.max(at);
    }

    /// Doubles the pace with each renewal of a demand that lasts, and begins anew with one that is new or has changed by much.
    fn set_pace(&mut self, demand: MicroCpus) {
        let lasts = demand.0 / 2 <= self.told.0 && self.told.0 / 2 <= demand.0;
        let shortest = self.pace_of_new();
        self.pace = if lasts && demand > MicroCpus::ZERO {
            Micros(self.pace.0 * 2).max(shortest).min(self.lease())
        } else {
            shortest
        };
    }
}
