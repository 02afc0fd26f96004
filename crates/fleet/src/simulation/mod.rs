//! A fleet in virtual time: the same [`Tenant`](crate::Tenant) and [`Holder`](crate::Holder) as in a real one, a network with delays, and everything that fails.
//!
//! Time advances in steps of [`STEP`]. In each a process wants so much CPU time as its load says and its CPUs can do, gets what its
//! allowance lets through, and counts the rest as throttled; what it does not get is gone (a refused request), so that "what all want" is
//! known exactly at each moment. Messages take 0.2 to 2 ms a way. Everything follows from the seed.

mod faults;
mod load;
mod node;

pub use self::{
    faults::{Event, Fault},
    load::Load,
};

use std::collections::BTreeMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use self::node::Node;
use crate::holder::Allowance;
use crate::limit::FleetLimit;
use crate::message::{Reply, Request};
use crate::store::MemoryStore;
use crate::units::{MicroCpus, Micros};

/// The step of virtual time, 10 ms.
pub const STEP: Micros = Micros::from_millis(10);

/// An answer is given up after this much of a lease.
const PATIENCE_PARTS: u64 = 4;

const TENANT: &str = "tenants/simulated";

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How many processes there are.
    pub processes: usize,
    /// CPUs of each.
    pub cpus: MicroCpus,
    /// The tenant's limit.
    pub limit: FleetLimit,
    /// What processes want.
    pub load: Load,
    /// What all want together, as a multiple of the quota.
    pub pressure: f64,
    /// What fails, in the order of time.
    pub faults: Vec<Event>,
    /// Of a thousand messages, so many are lost, and so many come twice.
    pub loss_per_mille: u64,
    /// How long it takes.
    pub time: Micros,
    /// The seed of everything random.
    pub seed: u64,
}

/// What came out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// CPU time used, of what the quota earned, over the time in which more than the quota was wanted; the first two leases aside.
    pub use_when_short: f64,
    /// CPU time used in all, us.
    pub used: f64,
    /// The most by which any window exceeded quota and floors, us.
    pub excess: f64,
    /// What it may be: burst, one lease, and one second's floors, us.
    pub allowed: f64,
    /// Calls to the store a second, over the whole time and in the fullest second.
    pub calls: f64,
    /// The fullest second's.
    pub calls_most: u64,
    /// After each shift of the load: time until its new users have nine tenths of what they are to get, us; the longest.
    pub followed: Option<Micros>,
    /// The mean of those times.
    pub followed_mean: Option<Micros>,
    /// Of the budget, what idle processes held, on average over the time in which more than the quota was wanted.
    pub stranded: f64,
}

enum Message {
    Ask(usize, u64, Request),
    Answer(usize, u64, u64, Reply),
}

/// A scenario that runs.
struct World<'a> {
    scenario: &'a Scenario,
    now: Micros,
    random: Pcg32,
    store: MemoryStore,
    store_away_until: Micros,
    nodes: Vec<Node>,
    /// By time and a serial number.
    messages: BTreeMap<(Micros, u64), Message>,
    serial: u64,
    calls: u64,
    calls_second: u64,
    outcome: Outcome,
    meter: Meter,
}

/// What is measured on the way.
#[derive(Default)]
struct Meter {
    earned: f64,
    lowest: f64,
    short_used: f64,
    short_earned: f64,
    stranded: f64,
    short_steps: u64,
    /// A shift that is not followed yet: its time.
    shifted: Option<Micros>,
    follows: Vec<Micros>,
}

/// Runs a scenario. O(steps * processes).
///
/// # Panics
/// If the scenario's limit is out of range, which the caller checks with [`FleetLimit::validate`].
pub fn run(scenario: &Scenario) -> Outcome {
    let mut world = World::new(scenario);
    while world.now < scenario.time {
        world.step();
    }
    world.finish()
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> World<'a> {
        let store = MemoryStore::new();
        // The limit is older than the load.
        store.set_time(Micros::from_secs(1_000));
        store
            .set_limit(TENANT, scenario.limit)
            .expect("a limit in range");
        let mut random = Pcg32::seed_from_u64(scenario.seed);
        let count = scenario.processes;
        let nodes = (0..count).map(|index| Node::new(index, scenario, random.next_u64()));
        World {
            scenario,
            now: Micros::ZERO,
            nodes: nodes.collect(),
            random,
            store,
            store_away_until: Micros::ZERO,
            messages: BTreeMap::new(),
            serial: 0,
            calls: 0,
            calls_second: 0,
            outcome: Outcome::default(),
            meter: Meter::default(),
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end.max(1)
    }

    fn step(&mut self) {
        let before = self.now;
        self.now += STEP;
        self.store.set_time(Micros::from_secs(3_000) + self.now);
        self.fail(before);
        self.deliver();
        self.use_up();
        self.ask();
        if before.0 / 1_000_000 != self.now.0 / 1_000_000 {
            self.outcome.calls_most = self.outcome.calls_most.max(self.calls_second);
            self.calls_second = 0;
        }
    }

    fn fail(&mut self, before: Micros) {
        let scenario = self.scenario;
        let now = self.now;
        let due = scenario
            .faults
            .iter()
            .filter(|event| event.at > before && event.at <= now);
        for event in due {
            self.apply(event.fault);
        }
    }

    fn apply(&mut self, fault: Fault) {
        let now = self.now;
        let count = self.nodes.len();
        let some = |part: f64| ((count as f64 * part).ceil() as usize).min(count);
        match fault {
            Fault::Die(part) => {
                for _ in 0..some(part) {
                    let index = self.below(count as u64) as usize;
                    let seed = self.random.next_u64();
                    self.nodes[index].replace(self.scenario, seed, now);
                }
            }
            Fault::Pause(part, time) => {
                for _ in 0..some(part) {
                    let index = self.below(count as u64) as usize;
                    self.nodes[index].paused_until = now + time;
                }
            }
            Fault::Partition(part, time) => {
                for _ in 0..some(part) {
                    let index = self.below(count as u64) as usize;
                    self.nodes[index].cut_until = now + time;
                }
            }
            Fault::Away(time) => self.store_away_until = now + time,
            Fault::Restart { keeps } => self.store.restart(keeps),
            Fault::Write(limit) => {
                let written = self.store.set_limit(TENANT, limit);
                debug_assert!(written.is_ok(), "a limit in range");
            }
        }
    }

    /// Hands over what has arrived; an answer sets out at once.
    fn deliver(&mut self) {
        while let Some((&key, _)) = self.messages.first_key_value() {
            if key.0 > self.now {
                return;
            }
            let Some(message) = self.messages.remove(&key) else {
                return;
            };
            let node = match &message {
                Message::Ask(node, ..) | Message::Answer(node, ..) => *node,
            };
            if self.nodes[node].cut_until > self.now {
                continue;
            }
            if self.below(1_000) < self.scenario.loss_per_mille {
                continue;
            }
            match message {
                Message::Ask(node, life, request) => {
                    if self.store_away_until > self.now {
                        continue;
                    }
                    let copies = if self.below(1_000) < self.scenario.loss_per_mille {
                        2
                    } else {
                        1
                    };
                    for _ in 0..copies {
                        self.calls += 1;
                        self.calls_second += 1;
                        let reply = self.store.ask(TENANT, &request);
                        self.send(Message::Answer(node, life, request.sequence, reply));
                    }
                }
                Message::Answer(node, life, sequence, reply) => {
                    let now = self.now;
                    self.nodes[node].answer(now, life, sequence, &reply);
                }
            }
        }
    }

    fn send(&mut self, message: Message) {
        let arrives = self.now + Micros(200 + self.below(1_800));
        self.serial += 1;
        self.messages.insert((arrives, self.serial), message);
    }

    /// One step of load on every process.
    fn use_up(&mut self) {
        let scenario = self.scenario;
        let limit = self.store.limit(TENANT).unwrap_or(scenario.limit);
        let quota = limit.quota.unwrap_or_default().as_cpus();
        let mut wanted = 0.0;
        let mut used = 0.0;
        let mut fresh_wanted = 0.0;
        let mut fresh_used = 0.0;
        let mut idle_held = 0.0;
        let shift = scenario.load.shift(self.now);
        for node in &mut self.nodes {
            let (wants, gets, fresh) = node.run(scenario, self.now);
            wanted += wants;
            used += gets;
            if fresh {
                fresh_wanted += wants;
                fresh_used += gets;
            }
            if wants == 0.0 && node.holder.ends() > self.now {
                idle_held += node.holder.held().0 as f64;
            }
        }
        let step = STEP.0 as f64;
        self.outcome.used += used;
        let floors = quota / FleetLimit::FLOORS_DIVISOR as f64;
        let meter = &mut self.meter;
        meter.lowest = meter.lowest.min(self.outcome.used - used - meter.earned);
        // Both over the same step: use and what is earned in it.
        meter.earned += (quota + floors) * step;
        let excess = self.outcome.used - meter.earned - meter.lowest;
        self.outcome.excess = self.outcome.excess.max(excess);
        let room = limit.capacity().0 as f64 + floors * 1e6;
        self.outcome.allowed = self.outcome.allowed.max(room);
        let settled = self.now > Micros(limit.lease.0 * 2);
        if wanted > quota * step && settled {
            meter.short_used += used;
            meter.short_earned += quota * step;
            meter.stranded += idle_held / (limit.capacity().0 as f64).max(1.0);
            meter.short_steps += 1;
        }
        if shift.is_some_and(|at| at > self.now.saturating_sub(STEP)) {
            meter.shifted = Some(self.now);
        }
        let due = fresh_wanted.min(quota * step);
        if let Some(at) = meter.shifted
            && self.now > at
            && fresh_wanted > 0.0
            && fresh_used >= 0.9 * due
        {
            meter.follows.push(self.now - at);
            meter.shifted = None;
        }
    }

    fn ask(&mut self) {
        let now = self.now;
        for index in 0..self.nodes.len() {
            if let Some((life, request)) = self.nodes[index].ask(now) {
                self.send(Message::Ask(index, life, request));
            }
        }
    }

    fn finish(mut self) -> Outcome {
        let seconds = self.scenario.time.0 as f64 / 1e6;
        self.outcome.calls = self.calls as f64 / seconds;
        let meter = &self.meter;
        self.outcome.use_when_short = if meter.short_earned > 0.0 {
            meter.short_used / meter.short_earned
        } else {
            f64::NAN
        };
        self.outcome.stranded = meter.stranded / meter.short_steps.max(1) as f64;
        self.outcome.followed = meter.follows.iter().max().copied();
        if !meter.follows.is_empty() {
            let sum: u64 = meter.follows.iter().map(|time| time.0).sum();
            self.outcome.followed_mean = Some(Micros(sum / meter.follows.len() as u64));
        }
        self.outcome
    }
}

/// The rate of an allowance; without a limit all that the process has.
fn rate_of(allowance: Allowance, capacity: MicroCpus) -> MicroCpus {
    match allowance {
        Allowance::Unlimited => capacity,
        Allowance::Lease(rate) | Allowance::Floor(rate) => rate.min(capacity),
    }
}
