//! One simulated process.

use rand_core::SeedableRng;
use rand_pcg::Pcg32;

use super::load::{Bursts, wants};
use super::{PATIENCE_PARTS, STEP, Scenario, rate_of};
use crate::holder::{Holder, Settings};
use crate::message::{ProcessId, Reply, Request};
use crate::units::{MicroCpus, Micros};

/// How often a process looks at its figures, as a part of the lease.
const LOOKS: u64 = 32;

/// And at the latest after: 100 ms. The background task looks every 250 ms after all of its groups have rested for 15 s, which is not simulated.
const LOOK_MAX: Micros = Micros::from_millis(100);

pub(super) struct Node {
    index: usize,
    pub(super) holder: Holder,
    bursts: Bursts,
    cpu: f64,
    throttled: f64,
    /// The rate of the local limit.
    rate: MicroCpus,
    look_at: Micros,
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
            look_at: Micros(seed % STEP.0),
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
            look_at: now,
            ..Node::new(self.index, scenario, seed)
        };
    }

    fn observe(&mut self, now: Micros) {
        let (cpu, throttled) = (Micros(self.cpu as u64), Micros(self.throttled as u64));
        self.holder.observe(now, cpu, throttled);
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
        let lease = self
            .holder
            .limit()
            .map_or(Micros::SECOND, |limit| limit.lease);
        let ended = self.holder.ends() <= now && self.holder.ends() > now.saturating_sub(STEP);
        if now < self.look_at && !ended {
            return None;
        }
        self.look_at = now + Micros(lease.0 / LOOKS).min(LOOK_MAX);
        self.observe(now);
        if self.holder.is_waiting() && now >= self.give_up_at {
            self.holder.failed(now);
        }
        let due = self.holder.next_ask(now).is_some_and(|at| at <= now);
        let request = due.then(|| self.holder.request(now));
        self.rate = rate_of(self.holder.allowance(now), MicroCpus(u64::MAX));
        let request = request?;
        self.give_up_at = now + Micros(lease.0 / PATIENCE_PARTS);
        Some((self.life, request))
    }

    pub(super) fn answer(&mut self, now: Micros, life: u64, sequence: u64, reply: &Reply) {
        if self.life != life || self.paused_until > now {
            return;
        }
        self.observe(now);
        self.holder.answer(now, sequence, reply);
        self.rate = rate_of(self.holder.allowance(now), MicroCpus(u64::MAX));
    }
}
