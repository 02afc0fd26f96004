//! A fleet in virtual time: the same [`Tenant`](crate::Tenant) and [`Holder`](crate::Holder) as in a real one, a network with delays, and everything that fails.
//!
//! Time advances in steps of [`STEP`]. In each a process wants so much CPU time as its load says and its CPUs can do, gets what its
//! allowance lets through, and counts the rest as throttled; what it does not get is gone (a refused request), so that "what all want" is
//! known exactly at each moment. Messages take 0.2 to 2 ms a way. Everything follows from the seed.

mod faults;
mod load;
mod meter;
mod node;
mod rivals;

pub use self::{
    faults::{Event, Fault},
    load::Load,
    rivals::{REQUEST_COST, Rival, TARGET_PERIOD, run_rival},
};

use std::collections::BTreeMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use self::meter::{Meter, Step};
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
    /// The most by which any window exceeded the quota alone, us.
    pub excess_of_quota: f64,
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
    /// The same in us of CPU time.
    pub stranded_time: f64,
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
    meter: Meter,
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
            meter: Meter::new(Micros(scenario.limit.lease.0 * 2)),
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
                let first = self.below(count as u64) as usize;
                for offset in 0..some(part) {
                    let index = (first + offset) % count;
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
                        self.meter.call();
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
        let mut step = Step::default();
        for node in &mut self.nodes {
            let (wants, gets, fresh) = node.run(scenario, self.now);
            let holds = if node.holder.ends() > self.now {
                node.holder.held().0 as f64
            } else {
                0.0
            };
            step.add(wants, gets, fresh, holds);
        }
        self.meter
            .step(self.now, &limit, scenario.load.shift(self.now), &step);
    }

    fn ask(&mut self) {
        let now = self.now;
        for index in 0..self.nodes.len() {
            if let Some((life, request)) = self.nodes[index].ask(now) {
                self.send(Message::Ask(index, life, request));
            }
        }
    }

    fn finish(self) -> Outcome {
        self.meter.finish(self.scenario.time)
    }
}

/// The rate of an allowance; without a limit all that the process has.
fn rate_of(allowance: Allowance, capacity: MicroCpus) -> MicroCpus {
    match allowance {
        Allowance::Unlimited => capacity,
        Allowance::Lease(rate) | Allowance::Floor(rate) => rate.min(capacity),
    }
}
