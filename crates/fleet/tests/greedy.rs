//! What a store grants to processes that take all they can: they use what they hold at once, leave and come again, rest and lose answers, while
//! somebody writes limits up and down. No window sees more than its bound, and when all is still there is something for the next one.
//!
//! `QUOTIENT_WALKS` for more walks. The same was run against a server by a program of its own, 1,317 walks.

use quotient_fleet::{FleetLimit, MemoryStore, MicroCpus, Micros, ProcessId, Reply, Request};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;

const TENANT: &str = "tenants/acme";

/// Walks in the suite, of 300 steps each.
const WALKS: u64 = 300;

struct Random(Pcg32);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn limit(&mut self) -> FleetLimit {
        let quota = self.one_of(&[1_000, 50_000, 200_000, 1_000_000, 8_000_000]);
        let lease = self.one_of(&[100, 1_000, 1_000, 4_000]);
        FleetLimit::new(MicroCpus(quota))
            .with_burst(Micros(self.one_of(&[0, 0, 500_000])))
            .with_lease(Micros::from_millis(lease))
    }
}

struct Process {
    id: ProcessId,
    sequence: u64,
    used: Micros,
    held: Micros,
    ends: Micros,
}

/// One walk.
struct Walk {
    random: Random,
    store: MemoryStore,
    now: Micros,
    limit: FleetLimit,
    processes: Vec<Process>,
    used: f64,
    earned: f64,
    /// The smallest of used - earned so far, and how far it was exceeded.
    lowest: f64,
    fullest: f64,
    /// The largest capacity, us, and the longest lease.
    most: f64,
    longest: Micros,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut random = Random(Pcg32::seed_from_u64(seed));
        let limit = random.limit();
        let process = |number| Process {
            id: ProcessId(number),
            sequence: 0,
            used: Micros::ZERO,
            held: Micros::ZERO,
            ends: Micros::ZERO,
        };
        let mut walk = Walk {
            processes: (0..1 + random.below(5)).map(process).collect(),
            random,
            store: MemoryStore::new(),
            now: Micros::from_secs(1_000),
            limit,
            used: 0.0,
            earned: 0.0,
            lowest: 0.0,
            fullest: 0.0,
            most: 0.0,
            longest: Micros::ZERO,
        };
        walk.store.set_time(walk.now);
        walk.write(limit);
        walk.pass(5 * limit.lease.0);
        walk.earned = 0.0;
        walk
    }

    fn write(&mut self, limit: FleetLimit) {
        let version = self.store.set_limit(TENANT, limit).expect("a valid limit");
        self.limit = limit.with_version(version);
        self.most = self.most.max(limit.capacity().0 as f64);
        self.longest = self.longest.max(limit.lease);
    }

    fn pass(&mut self, time: u64) {
        self.now += Micros(time);
        self.store.set_time(self.now);
        self.earned += self.limit.quota.unwrap_or_default().as_cpus() * time as f64;
    }

    /// Some time passes, and then a limit is written, or a process spends, or not, and asks, rests or leaves.
    fn step(&mut self) {
        let lease = self.limit.lease.0;
        let spans = [0, 1_000, 20_000, 100_000, 300_000, lease / 2, lease];
        let passed = self.random.one_of(&spans);
        self.pass(passed);
        if self.random.below(16) == 0 {
            let limit = self.random.limit();
            return self.write(limit);
        }
        let index = self.random.below(self.processes.len() as u64) as usize;
        self.spend(index);
        let request = self.request(index);
        let answer = self.store.ask(TENANT, &request);
        let arrives = self.random.below(10) > 0;
        if let (true, Reply::Granted(grant)) = (arrives, &answer) {
            let process = &mut self.processes[index];
            process.held += grant.amount;
            process.ends = self.now + grant.duration;
        }
    }

    fn spend(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if self.now >= process.ends {
            process.held = Micros::ZERO;
        }
        if process.held == Micros::ZERO || self.random.below(10) > 6 {
            return;
        }
        let part = Micros(self.random.below(process.held.0));
        let amount = self.random.one_of(&[process.held, process.held, part]);
        self.lowest = self.lowest.min(self.used - self.earned);
        process.held = process.held - amount;
        process.used += amount;
        self.used += amount.0 as f64;
        self.fullest = self.fullest.max(self.used - self.earned - self.lowest);
    }

    fn request(&mut self, index: usize) -> Request {
        let random = &mut self.random;
        let process = &mut self.processes[index];
        process.sequence += 1;
        let (leaves, rests) = (random.below(10) == 0, random.below(10) == 0);
        let demand = random.one_of(&[1_000, 100_000, 1_000_000, 100_000_000]);
        let horizon = random.one_of(&[1, 100_000, 1_000_000_000]);
        if leaves || rests {
            process.held = Micros::ZERO;
        }
        Request {
            process: process.id,
            sequence: process.sequence,
            used: process.used,
            left: process.held,
            demand: MicroCpus(if leaves || rests { 0 } else { demand }),
            horizon: Micros(if leaves { 0 } else { horizon }),
            known: (random.below(5) > 0).then_some(self.limit),
        }
    }

    /// What somebody gets who comes when nothing of before can be left.
    fn newcomer(&mut self) -> Reply {
        self.pass(8 * self.longest.0);
        let request = Request {
            process: ProcessId(99),
            sequence: 1,
            used: Micros::ZERO,
            left: Micros::ZERO,
            demand: MicroCpus::whole(100),
            horizon: Micros::from_secs(1_000),
            known: Some(self.limit),
        };
        self.store.ask(TENANT, &request)
    }
}

#[test]
fn who_takes_all_that_it_can_gets_no_more_than_the_bound_and_starves_nobody() {
    let walks = std::env::var("QUOTIENT_WALKS").ok();
    let walks = walks.and_then(|text| text.parse().ok()).unwrap_or(WALKS);
    let mut fullest = 0.0_f64;
    for seed in 0..walks {
        let mut walk = Walk::new(seed);
        for _ in 0..300 {
            walk.step();
        }
        let (window, most) = (walk.fullest, walk.most);
        // A microsecond at either end is rounding.
        assert!(window <= most + 2.0, "seed {seed}: {window} of {most}");
        fullest = fullest.max(window / most);
        let answer = walk.newcomer();
        assert!(
            matches!(&answer, Reply::Granted(grant) if grant.amount > Micros::ZERO),
            "seed {seed}: {answer:?}, {:?}",
            walk.store.figures(TENANT)
        );
    }
    println!("{walks} walks, the fullest window {fullest:.3} of the bound");
    assert!(fullest > 0.9, "nobody took what there was: {fullest}");
}
