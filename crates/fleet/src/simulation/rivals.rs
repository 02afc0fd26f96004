//! Two other designs under the same loads, in the same virtual time.
//!
//! They are models, made from what is published, and kinder than reality where that is silent: an answer takes one step of time and none is lost.
//!
//! # A token bucket with trickle grants
//! After CockroachDB's RFC 20210604, "Distributed token bucket for tenant cost control" (`docs/RFCS` of its repository). The bucket refills at the
//! quota and saves up as much as our pool and leases may hold. A node asks when what it has lasts for less than a second, or a second before its
//! trickle ends, for what lasts [`TARGET_PERIOD`] at its average load (a moving average, factor 0.5 a second). If the bucket has that much, it is for immediate
//! use; else it comes over time, at the node's part of the rate, by shares of load, for at most the period. The bucket goes into debt by
//! that; what it owes beyond one period's quota is paid over the next one (at most 95 % of the rate, as in the first implementation). The RFC's backlog
//! term is left out: in these loads refused work is gone. What a trickle brings and nobody uses stays with the node (the RFC limits it in its free tier only). A node that became idle reports it once a period, and a dead one's share goes after two (the
//! RFC: "a long time ago").
//!
//! # A call for each request
//! A token bucket in the store, as large as ours, that every request asks before it runs; [`REQUEST_COST`] each.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use super::load::{Bursts, wants};
use super::meter::{Meter, Step};
use super::{Fault, Outcome, STEP, Scenario};
use crate::units::Micros;

/// For how long a node of the token bucket asks ahead. Unit: microseconds. Default: 10 s, the RFC's.
pub const TARGET_PERIOD: Micros = Micros::from_secs(10);

/// CPU time of one request of the limiter that is asked for each. Unit: microseconds. Default: 1 ms.
pub const REQUEST_COST: Micros = Micros::from_millis(1);

/// What a node of the token bucket may use before its first answer, and the least that it asks for: "a small initial amount".
const INITIAL: f64 = 10_000.0;

/// Another design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Trickle grants out of a shared bucket.
    TokenBucket,
    /// A call to the store for each request.
    PerRequest,
}

/// Runs a scenario under another design; of faults, deaths only. O(steps * processes).
///
/// # Panics
/// As [`super::run`].
pub fn run_rival(scenario: &Scenario, rival: Rival) -> Outcome {
    let mut random = Pcg32::seed_from_u64(scenario.seed);
    let mut bursts: Vec<Bursts> = (0..scenario.processes)
        .map(|_| Bursts::new(Pcg32::seed_from_u64(random.next_u64())))
        .collect();
    let mut meter = Meter::new(Micros(TARGET_PERIOD.0 * 2).max(Micros(scenario.limit.lease.0 * 2)));
    let mut design: Box<dyn Design> = match rival {
        Rival::TokenBucket => Box::new(TokenBucket::new(scenario)),
        Rival::PerRequest => Box::new(PerRequest::new(scenario, &mut random)),
    };
    let mut now = Micros::ZERO;
    let count = scenario.processes;
    let mut wanted = vec![(0.0, false); count];
    while now < scenario.time {
        let before = now;
        now += STEP;
        let due = |event: &&super::Event| event.at > before && event.at <= now;
        for event in scenario.faults.iter().filter(due) {
            if let Fault::Die(part) = event.fault {
                let some = ((count as f64 * part).ceil() as usize).min(count);
                let first = (random.next_u64() % count.max(1) as u64) as usize;
                for offset in 0..some {
                    design.die((first + offset) % count);
                }
            }
        }
        for (index, bursts) in bursts.iter_mut().enumerate() {
            wanted[index] = wants(scenario, bursts, index, now);
        }
        let mut step = Step::default();
        design.step(now, &wanted, &mut step, &mut meter);
        meter.step(now, &scenario.limit, scenario.load.shift(now), &step);
    }
    meter.finish(scenario.time)
}

trait Design {
    fn die(&mut self, index: usize);

    fn step(&mut self, now: Micros, wanted: &[(f64, bool)], step: &mut Step, meter: &mut Meter);
}

/// The tokens that a store has, us.
struct Bucket {
    rate: f64,
    most: f64,
    tokens: f64,
}

impl Bucket {
    fn new(scenario: &Scenario) -> Bucket {
        let most = scenario.limit.capacity().0 as f64;
        Bucket {
            rate: scenario.limit.quota.unwrap_or_default().as_cpus(),
            most,
            tokens: most,
        }
    }

    fn refill(&mut self) {
        self.tokens = (self.tokens + self.rate * STEP.0 as f64).min(self.most);
    }
}

struct PerRequest {
    bucket: Bucket,
    /// Work that is no whole request yet.
    rest: Vec<f64>,
    /// Who comes first in a step, which changes.
    first: usize,
}

impl PerRequest {
    fn new(scenario: &Scenario, random: &mut Pcg32) -> PerRequest {
        let rest = (0..scenario.processes).map(|_| (random.next_u64() % REQUEST_COST.0) as f64);
        PerRequest {
            bucket: Bucket::new(scenario),
            rest: rest.collect(),
            first: 0,
        }
    }
}

impl Design for PerRequest {
    fn die(&mut self, index: usize) {
        // What was admitted is used within the step: at most the request that ran is lost.
        self.rest[index] = 0.0;
    }

    fn step(&mut self, _: Micros, wanted: &[(f64, bool)], step: &mut Step, meter: &mut Meter) {
        self.bucket.refill();
        let count = wanted.len();
        let cost = REQUEST_COST.0 as f64;
        self.first = (self.first + 7_919) % count.max(1);
        for offset in 0..count {
            let index = (self.first + offset) % count;
            let (wants, fresh) = wanted[index];
            self.rest[index] += wants;
            let mut gets = 0.0;
            while self.rest[index] >= cost {
                self.rest[index] -= cost;
                meter.call();
                if self.bucket.tokens >= cost {
                    self.bucket.tokens -= cost;
                    gets += cost;
                }
            }
            step.add(wants, gets, fresh, 0.0);
        }
    }
}

/// A node of the token bucket.
#[derive(Clone, Copy, Default)]
struct Client {
    tokens: f64,
    /// What comes in, in CPUs, until then.
    trickle: f64,
    trickle_until: Micros,
    answered: bool,
    /// Load, in CPUs: the average, and what is wanted in this second.
    average: f64,
    second: f64,
    second_steps: f64,
    told_at: Micros,
}

impl Client {
    /// What it would use a second: the average, or this second's so far if that is more.
    fn load(&self) -> f64 {
        let now = self.second / (self.second_steps.max(1.0) * STEP.0 as f64);
        self.average.max(now)
    }

    fn left(&self, now: Micros) -> f64 {
        self.tokens + self.trickle * self.trickle_until.saturating_sub(now).0 as f64
    }
}

/// What the shared row knows of a node.
#[derive(Clone, Copy, Default)]
struct Known {
    share: f64,
    at: Micros,
}

struct TokenBucket {
    bucket: Bucket,
    clients: Vec<Client>,
    known: Vec<Known>,
    /// Shares of dead nodes, and when they go: in the order of time.
    dead: std::collections::VecDeque<(Micros, f64)>,
    shares: f64,
}

impl TokenBucket {
    fn new(scenario: &Scenario) -> TokenBucket {
        TokenBucket {
            bucket: Bucket::new(scenario),
            clients: vec![Client::default(); scenario.processes],
            known: vec![Known::default(); scenario.processes],
            dead: std::collections::VecDeque::new(),
            shares: 0.0,
        }
    }

    fn ask(&mut self, index: usize, now: Micros) {
        let load = self.clients[index].load();
        let known = &mut self.known[index];
        self.shares += load - known.share;
        *known = Known {
            share: load,
            at: now,
        };
        let client = &mut self.clients[index];
        client.told_at = now;
        client.answered = true;
        let period = TARGET_PERIOD.0 as f64;
        let needed = (load * period).max(INITIAL) - client.left(now);
        if load <= 0.0 || needed <= 0.0 {
            return;
        }
        if self.bucket.tokens >= needed {
            self.bucket.tokens -= needed;
            client.tokens += needed;
            return;
        }
        let debt = -self.bucket.tokens - self.bucket.rate * period;
        let rate = self.bucket.rate - (debt / period).max(0.0);
        let rate = rate.max(0.05 * self.bucket.rate) * load / self.shares.max(load);
        let at_once = self.bucket.tokens.max(0.0);
        let rest = needed - at_once;
        let duration = (rest / rate).min(period);
        let granted = at_once + rate * duration;
        self.bucket.tokens -= granted;
        // What still was to come stays in the local bucket.
        let pending = client.left(now) - client.tokens;
        let duration = duration.max(STEP.0 as f64);
        client.trickle = (granted + pending) / duration;
        client.trickle_until = now + Micros(duration as u64);
    }
}

impl Design for TokenBucket {
    fn die(&mut self, index: usize) {
        let at = self.clients[index].told_at + Micros(TARGET_PERIOD.0 * 2);
        let share = self.known[index].share;
        let place = self.dead.partition_point(|(other, _)| *other <= at);
        self.dead.insert(place, (at, share));
        self.known[index] = Known::default();
        self.clients[index] = Client::default();
    }

    fn step(&mut self, now: Micros, wanted: &[(f64, bool)], step: &mut Step, meter: &mut Meter) {
        self.bucket.refill();
        while let Some(&(at, share)) = self.dead.front()
            && at <= now
        {
            self.shares -= share;
            self.dead.pop_front();
        }
        let begin = now.saturating_sub(STEP);
        for (index, &(wants, fresh)) in wanted.iter().enumerate() {
            let client = &mut self.clients[index];
            let trickled = client.trickle_until.saturating_sub(begin).min(STEP).0 as f64;
            client.tokens += client.trickle * trickled;
            client.second += wants;
            client.second_steps += 1.0;
            if now.0.is_multiple_of(1_000_000) {
                let second = client.second / (client.second_steps * STEP.0 as f64);
                client.average += 0.5 * (second - client.average);
                client.second = 0.0;
                client.second_steps = 0.0;
            }
            let credit = if client.answered { 0.0 } else { INITIAL };
            let gets = wants.min((client.tokens + credit).max(0.0));
            client.tokens -= gets;
            let holds = client.left(now).max(0.0);
            step.add(wants, gets, fresh, holds);
            let second = Micros::SECOND.0 as f64;
            let trickles = client.trickle_until > now + Micros::SECOND;
            let low = client.tokens < (client.load() * second).max(wants);
            let due = low && !trickles && client.load() > 0.0;
            let idle = client.load() < 1e-4 && self.known[index].share > 0.0;
            if due || idle && now >= self.known[index].at + TARGET_PERIOD {
                if idle {
                    client.average = 0.0;
                }
                meter.call();
                self.ask(index, now);
            }
        }
    }
}
