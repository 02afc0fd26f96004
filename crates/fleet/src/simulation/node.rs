//! One simulated process, of one tenant. It looks at itself as the background task does (`rhythm`), in ticks that are as long as its pulse says,
//! rounded up to steps.

use rand_core::SeedableRng;
use rand_pcg::Pcg32;

use super::load::{Bursts, wants};
use super::{PATIENCE_PARTS, STEP, Scenario, rate_of};
use crate::holder::{Holder, Settings};
use crate::message::{ProcessId, Reply, Request};
use crate::rhythm::{self, IDLE_AFTER, Pulse};
use crate::units::{MicroCpus, Micros};

pub(super) struct Node {
    index: usize,
    pub(super) holder: Holder,
    bursts: Bursts,
    cpu: f64,
    throttled: f64,
    /// The rate of the local limit.
    rate: MicroCpus,
    tick_at: Micros,
    look_at: Micros,
    /// What it had used and was throttled for when it was last looked at, and when that was.
    seen: (Micros, Micros),
    seen_at: Micros,
    /// Whether it then kept within what it may use, and whether it rests; when it last did not.
    calm: bool,
    rests: bool,
    busy_at: Micros,
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
            rate: rate_of(holder.allowance(Micros::ZERO), scenario.cpus),
            holder,
            bursts: Bursts::new(Pcg32::seed_from_u64(seed)),
            cpu: 0.0,
            throttled: 0.0,
            tick_at: Micros(seed % Pulse::Quick.pause().0),
            look_at: Micros::ZERO,
            seen: (Micros::ZERO, Micros::ZERO),
            seen_at: Micros::ZERO,
            calm: false,
            rests: false,
            busy_at: Micros::ZERO,
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
            rate: rate_of(holder.allowance(now), scenario.cpus),
            holder,
            bursts,
            life,
            tick_at: now,
            seen_at: now,
            busy_at: now,
            ..Node::new(self.index, scenario, seed)
        };
    }

    fn figures(&self) -> (Micros, Micros) {
        (Micros(self.cpu as u64), Micros(self.throttled as u64))
    }

    /// A look: what was used, how soon the next one is due, and whether it rests until it needs more.
    fn look(&mut self, now: Micros) {
        let (cpu, throttled) = self.figures();
        let used = cpu.saturating_sub(self.seen.0);
        let passed = now.saturating_sub(self.seen_at);
        let pressed = throttled > self.seen.1;
        let within = rhythm::keeps_within(self.holder.allowance(now), used, passed);
        self.calm = within && !pressed;
        (self.seen, self.seen_at) = ((cpu, throttled), now);
        self.holder.observe(now, cpu, throttled);
        if pressed {
            self.holder.pressed(now);
        }
        self.look_at = rhythm::next_look(&self.holder, now, self.calm);
    }

    /// Whether a tick looks at it.
    fn is_due(&self, now: Micros) -> bool {
        let (cpu, throttled) = self.figures();
        // A throttle is told to whoever rests or is calm; the others are looked at often.
        let told = throttled > self.seen.1 && (self.rests || self.calm);
        if !self.rests {
            return told || rhythm::is_due(now, self.look_at);
        }
        let eased = self.holder.eased(now).unwrap_or_default();
        let passed = now.saturating_sub(self.seen_at);
        told || cpu.saturating_sub(self.seen.0) > eased.over(passed)
    }

    /// How soon the next tick is.
    fn pulse(&self, now: Micros) -> Pulse {
        match self.rests {
            true if now >= self.busy_at + IDLE_AFTER => Pulse::Idle,
            false if !self.calm => Pulse::Quick,
            _ => Pulse::Calm,
        }
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
        // A lease that ends within the step ends the higher rate there.
        let ends = self.holder.ends();
        let under_lease = ends.saturating_sub(begin).min(STEP).0 as f64;
        let floor = self.holder.floor(now).as_cpus();
        let leased = if ends > begin {
            self.rate.as_cpus()
        } else {
            floor
        };
        let may = leased * under_lease + floor.min(leased.max(floor)) * (step - under_lease);
        let may = may.min(most * step);
        let gets = wants.min(may);
        self.cpu += gets;
        self.throttled += wants - gets;
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
        if now < self.tick_at {
            return None;
        }
        if self.is_due(now) {
            self.look(now);
        }
        let due = self.holder.next_ask(now).is_some_and(|at| at <= now);
        // A second look at this moment would see that nothing has run since.
        if due && self.seen_at != now {
            self.look(now);
        }
        let request = due.then(|| self.holder.request(now));
        self.rate = rate_of(self.holder.allowance(now), MicroCpus(u64::MAX));
        self.rests = self.holder.figures().asked > 0 && self.holder.eased(now).is_some();
        if !self.rests {
            self.busy_at = now;
        }
        self.tick_at = now + self.pulse(now).pause();
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
        self.rate = rate_of(self.holder.allowance(now), MicroCpus(u64::MAX));
    }
}
