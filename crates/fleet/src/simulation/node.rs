//! One simulated process, of one tenant. It looks at itself as the background task does (`rhythm`), in ticks that are as long as its pulse says,
//! rounded up to steps, or when a throttle is told that is watched for. Its local limit is a real one's: so much in a period, then nothing until
//! the next; what it waits is counted as it passes.

use rand_core::SeedableRng;
use rand_pcg::Pcg32;

use super::load::{Bursts, wants};
use super::{PATIENCE_PARTS, STEP, Scenario, rate_of};
use crate::holder::{Allowance, Holder, Settings};
use crate::message::{ProcessId, Reply, Request};
use crate::rhythm::{self, FLOOR_PERIOD, LOOK_MIN, PERIOD, Pulse, WOKEN_MIN};
use crate::units::{MicroCpus, Micros};

pub(super) struct Node {
    index: usize,
    pub(super) holder: Holder,
    bursts: Bursts,
    cpu: f64,
    throttled: f64,
    local: Local,
    tick_at: Micros,
    ticked_at: Micros,
    look_at: Micros,
    /// What it had used and was throttled for when it was last looked at, and when that was.
    seen: (Micros, Micros),
    seen_at: Micros,
    /// Whether it then kept within what it may use, and whether it rests.
    calm: bool,
    rests: bool,
    /// Whether the next throttle is told, and whether one was since the last look.
    watched: bool,
    told: bool,
    give_up_at: Micros,
    pub(super) paused_until: Micros,
    pub(super) cut_until: Micros,
    /// Which life of the process this is.
    life: u64,
}

impl Node {
    pub(super) fn new(index: usize, scenario: &Scenario, seed: u64) -> Node {
        let holder = Self::holder(scenario, seed, Micros::ZERO);
        Node {
            index,
            local: Local::new(rate_of(holder.allowance(Micros::ZERO), scenario.cpus)),
            holder,
            bursts: Bursts::new(Pcg32::seed_from_u64(seed)),
            cpu: 0.0,
            throttled: 0.0,
            tick_at: Micros(seed % LOOK_MIN.0),
            ticked_at: Micros::ZERO,
            look_at: Micros::ZERO,
            seen: (Micros::ZERO, Micros::ZERO),
            seen_at: Micros::ZERO,
            calm: false,
            rests: false,
            watched: false,
            told: false,
            give_up_at: Micros::ZERO,
            paused_until: Micros::ZERO,
            cut_until: Micros::ZERO,
            life: 0,
        }
    }

    fn holder(scenario: &Scenario, seed: u64, now: Micros) -> Holder {
        let settings = Settings {
            process: ProcessId(seed),
            capacity: scenario.cpus,
            floor: scenario.limit.floor(),
            strict: false,
        };
        Holder::new(settings, now, Micros::ZERO, Micros::ZERO)
    }

    /// The process dies, and another begins.
    pub(super) fn replace(&mut self, scenario: &Scenario, seed: u64, now: Micros) {
        let life = self.life + 1;
        let bursts = self.bursts.clone();
        let holder = Self::holder(scenario, seed, now);
        *self = Node {
            local: Local::new(rate_of(holder.allowance(now), scenario.cpus)),
            holder,
            bursts,
            life,
            tick_at: now,
            seen_at: now,
            ..Node::new(self.index, scenario, seed)
        };
    }

    fn figures(&self) -> (Micros, Micros) {
        // A throttle under way counts as it passes, as in `rhythm::Throttled`.
        let throttled = self.throttled + self.local.waits;
        (Micros(self.cpu as u64), Micros(throttled as u64))
    }

    /// A look: what was used, how soon the next one is due, and whether it rests until it needs more.
    fn look(&mut self, now: Micros) {
        let (cpu, throttled) = self.figures();
        let used = cpu.saturating_sub(self.seen.0);
        let passed = now.saturating_sub(self.seen_at);
        let within = rhythm::keeps_within(self.holder.allowance(now), used, passed);
        self.calm = within && throttled == self.seen.1 && !self.told;
        (self.seen, self.seen_at) = ((cpu, throttled), now);
        self.holder.observe(now, cpu, throttled);
        if std::mem::take(&mut self.told) {
            self.holder.pressed(now);
        }
        self.look_at = rhythm::next_look(&self.holder, now, self.calm);
    }

    /// Whether a tick looks at it.
    fn is_due(&self, now: Micros) -> bool {
        let (cpu, _) = self.figures();
        if self.told || !self.rests {
            return self.told || rhythm::is_due(now, self.look_at);
        }
        let eased = self.holder.eased(now).unwrap_or_default();
        let passed = now.saturating_sub(self.seen_at);
        cpu.saturating_sub(self.seen.0) > eased.over(passed)
    }

    /// How long until the next tick.
    fn pause(&self, now: Micros) -> Micros {
        let pulse = match (self.rests, self.calm) {
            (false, false) => Pulse::Quick,
            (false, true) if !self.holder.wants_little() => Pulse::Calm,
            _ => Pulse::Idle,
        };
        let look_at = match self.rests {
            true => Micros(u64::MAX),
            false => self.look_at,
        };
        pulse.pause(now, look_at)
    }

    /// One step that ends at `now`: what it wants, what it gets, whether the load has moved to it.
    pub(super) fn run(&mut self, scenario: &Scenario, now: Micros) -> (f64, f64, bool) {
        let begin = now.saturating_sub(STEP);
        let (wants, fresh) = wants(scenario, &mut self.bursts, self.index, now);
        let step = STEP.0 as f64;
        let most = scenario.cpus.as_cpus();
        if self.paused_until > now {
            return (0.0, 0.0, false);
        }
        // A lease that has ended ends the higher rate.
        if self.holder.ends() <= begin && self.local.is_lease {
            self.set_limit(Allowance::Floor(self.holder.floor(begin)), begin);
        }
        let gets = self.local.take(wants.min(most * step), now);
        self.cpu += gets;
        self.throttled += std::mem::take(&mut self.local.waited);
        // Throttled for the first time since somebody asked to be told.
        self.told |= self.watched && gets < wants;
        self.watched &= !self.told;
        (wants, gets, fresh)
    }

    /// The next request, if it is time for one.
    pub(super) fn ask(&mut self, now: Micros) -> Option<(u64, Request)> {
        if self.paused_until > now {
            return None;
        }
        if self.holder.is_waiting() && now >= self.give_up_at {
            self.look(now);
            self.holder.failed(now);
        }
        let woken = self.told && now >= self.ticked_at + WOKEN_MIN;
        if now < self.tick_at && !woken {
            return None;
        }
        self.ticked_at = now;
        if self.is_due(now) {
            self.look(now);
        }
        let due = self.holder.next_ask(now).is_some_and(|at| at <= now);
        // A second look at this moment would see that nothing has run since.
        if due && self.seen_at != now {
            self.look(now);
        }
        let request = due.then(|| self.holder.request(now));
        self.set_limit(self.holder.allowance(now), now);
        self.rests = self.holder.figures().asked > 0 && self.holder.eased(now).is_some();
        self.watched = true;
        self.tick_at = now + self.pause(now);
        let request = request?;
        let lease = self
            .holder
            .limit()
            .map_or(Micros::SECOND, |limit| limit.lease);
        self.give_up_at = now + Micros(lease.0 / PATIENCE_PARTS);
        Some((self.life, request))
    }

    pub(super) fn answer(&mut self, now: Micros, life: u64, sequence: u64, reply: &Reply) {
        if self.life != life || self.paused_until > now {
            return;
        }
        self.look(now);
        self.holder.answer(now, sequence, reply);
        self.set_limit(self.holder.allowance(now), now);
        self.tick_at = self.tick_at.min(now + self.pause(now));
    }

    fn set_limit(&mut self, allowance: Allowance, now: Micros) {
        let rate = rate_of(allowance, UNLIMITED);
        self.local
            .set(rate, matches!(allowance, Allowance::Lease(_)), now);
    }
}

/// What a process without a limit may use.
const UNLIMITED: MicroCpus = MicroCpus::whole(10_000);

/// The limit of a process's group, as a scheduler keeps it: no burst, and no debts, as nothing of this world runs over.
#[derive(Clone, Copy, Debug)]
struct Local {
    rate: MicroCpus,
    is_lease: bool,
    period: Micros,
    period_ends: Micros,
    /// What is left of the period, us.
    left: f64,
    /// How much a throttle under way has kept from it, us, and the same of those that have ended since that was last counted.
    waits: f64,
    waited: f64,
}

impl Local {
    fn new(rate: MicroCpus) -> Local {
        Local {
            rate,
            is_lease: false,
            period: FLOOR_PERIOD,
            period_ends: Micros::ZERO,
            left: 0.0,
            waits: 0.0,
            waited: 0.0,
        }
    }

    /// What a period that was begun gave beyond what is earned by `now`, us.
    fn advance(&self, now: Micros) -> f64 {
        self.rate.as_cpus() * self.period_ends.saturating_sub(now).0 as f64
    }

    /// Puts a limit in force: what is left changes as if it had been in force for the rest of the period.
    fn set(&mut self, rate: MicroCpus, is_lease: bool, now: Micros) {
        let period = if is_lease { PERIOD } else { FLOOR_PERIOD };
        if (self.rate, self.is_lease) == (rate, is_lease) {
            return;
        }
        let before = self.advance(now);
        (self.rate, self.is_lease, self.period) = (rate, is_lease, period);
        self.period_ends = Micros((now.0 / period.0 + 1) * period.0);
        self.left += self.advance(now) - before;
        self.end_throttle();
    }

    fn end_throttle(&mut self) {
        if self.left > 0.0 {
            self.waited += std::mem::take(&mut self.waits);
        }
    }

    /// What it gets of what it wants in the step that ends at `now`.
    fn take(&mut self, wants: f64, now: Micros) -> f64 {
        if now > self.period_ends {
            self.period_ends = Micros(now.0.div_ceil(self.period.0) * self.period.0);
            let quota = self.rate.as_cpus() * self.period.0 as f64;
            self.left = (self.left + quota).min(quota);
            self.end_throttle();
        }
        let gets = wants.min(self.left.max(0.0));
        self.left -= gets;
        self.waits += wants - gets;
        gets
    }
}
