//! No window sees more than its bound, whatever becomes of messages, processes and the store.
//!
//! Processes here are as greedy as they can be: they may use all that they hold in one instant. Each has a clock of its own.

#[path = "common/request.rs"]
mod request;

use quotient_fleet::{
    Allowance, FleetLimit, Holder, MEMORY_SETTLES, MemoryStore, MicroCpus, Micros, ProcessId,
    Reply, Request, Settings,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use self::request::request_of_nobody;

const TENANT: &str = "tenants/acme";

/// Walks in the suite; `QUOTIENT_WALKS` for more.
const WALKS: u64 = 400;

/// Which faults a walk has: a part of them each, so that rare ones do not hide behind frequent ones.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lose: bool,
    repeat: bool,
    slow: bool,
    die: bool,
    pause: bool,
    restart: bool,
    empty: bool,
    back: bool,
    write: bool,
}

struct Process {
    holder: Holder,
    /// How far its clock is ahead of the world's.
    ahead: Micros,
    cpu: Micros,
    serial: usize,
    paused_until: Micros,
}

enum Message {
    Ask(usize, Request),
    Answer(usize, u64, Reply),
}

struct World {
    now: Micros,
    /// The store's clock is the world's and this.
    store_ahead: i64,
    store: MemoryStore,
    processes: Vec<Process>,
    begun: usize,
    messages: Vec<(Micros, Message)>,
    random: Pcg32,
    faults: Faults,
    used: f64,
    /// The integral of the quota in force, us, and the largest capacity so far.
    earned: f64,
    limit: FleetLimit,
    capacity: f64,
    /// The smallest of used - earned so far, and how far it was exceeded.
    lowest: f64,
    worst: f64,
}

impl World {
    fn new(processes: usize, limit: FleetLimit, faults: Faults, seed: u64) -> World {
        let store = MemoryStore::new();
        store.set_time(Micros::from_secs(1_000));
        store.set_limit(TENANT, limit).expect("a valid limit");
        let mut world = World {
            now: Micros::ZERO,
            store_ahead: 1_000_000_000,
            store,
            processes: Vec::new(),
            begun: 0,
            messages: Vec::new(),
            random: Pcg32::seed_from_u64(seed),
            faults,
            used: 0.0,
            earned: 0.0,
            limit,
            capacity: limit.capacity().0 as f64,
            lowest: 0.0,
            worst: 0.0,
        };
        for _ in 0..processes {
            let process = world.begin();
            world.processes.push(process);
        }
        world
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    fn begin(&mut self) -> Process {
        self.begun += 1;
        let ahead = Micros(self.begun as u64 * 77_777_777);
        let settings = Settings {
            process: ProcessId(self.begun as u64),
            capacity: MicroCpus::whole(64),
            floor: MicroCpus::ZERO,
            strict: true,
        };
        Process {
            holder: Holder::new(settings, self.now + ahead, Micros::ZERO, Micros::ZERO),
            ahead,
            cpu: Micros::ZERO,
            serial: self.begun,
            paused_until: Micros::ZERO,
        }
    }

    fn pass(&mut self, time: u64) {
        self.now += Micros(time);
        // What the store has in force; what it has lost comes back from a process.
        self.limit = self.store.limit(TENANT).unwrap_or(self.limit);
        self.earned += self.limit.quota.unwrap_or_default().as_cpus() * time as f64;
        self.capacity = self.capacity.max(self.limit.capacity().0 as f64);
        self.set_store_time();
    }

    fn set_store_time(&self) {
        let time = (self.now.0 as i64 + self.store_ahead).max(0);
        self.store.set_time(Micros(time as u64));
    }

    /// Uses all that a process holds.
    fn spend(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let local = self.now + process.ahead;
        if process.holder.allowance(local) == Allowance::Unlimited {
            // All its processors for ever.
            self.used = f64::INFINITY;
            self.worst = f64::INFINITY;
            return;
        }
        if local >= process.holder.ends() || self.now < process.paused_until {
            return;
        }
        self.lowest = self.lowest.min(self.used - self.earned);
        let amount = process.holder.held();
        process.cpu += amount;
        process
            .holder
            .observe(local, process.cpu, Micros(self.now.0 * 3));
        self.used += amount.0 as f64;
        self.worst = self.worst.max(self.used - self.earned - self.lowest);
    }

    fn ask(&mut self, index: usize) {
        let arrives = self.now + self.delay();
        let process = &mut self.processes[index];
        if process.holder.is_waiting() || self.now < process.paused_until {
            return;
        }
        let local = self.now + process.ahead;
        process
            .holder
            .observe(local, process.cpu, Micros(self.now.0 * 3));
        let request = process.holder.request(local);
        self.messages
            .push((arrives, Message::Ask(process.serial, request)));
    }

    fn delay(&mut self) -> Micros {
        let most = if self.faults.slow && self.below(4) == 0 {
            3_000_000
        } else {
            3_000
        };
        Micros(self.below(most))
    }

    /// Takes the messages that have arrived out of the network.
    fn deliver(&mut self) {
        let mut index = 0;
        while index < self.messages.len() {
            if self.messages[index].0 > self.now {
                index += 1;
                continue;
            }
            let (_, message) = self.messages.remove(index);
            if self.faults.lose && self.below(8) == 0 {
                continue;
            }
            if self.faults.repeat && self.below(8) == 0 {
                let copy = match &message {
                    Message::Ask(serial, request) => Message::Ask(*serial, *request),
                    Message::Answer(serial, sequence, reply) => {
                        Message::Answer(*serial, *sequence, *reply)
                    }
                };
                let arrives = self.now + Micros(1) + self.delay();
                self.messages.push((arrives, copy));
            }
            self.hand_over(message);
        }
    }

    fn hand_over(&mut self, message: Message) {
        let now = self.now;
        match message {
            Message::Ask(serial, request) => {
                let reply = self.store.ask(TENANT, &request);
                let arrives = now + self.delay();
                let answer = Message::Answer(serial, request.sequence, reply);
                self.messages.push((arrives, answer));
            }
            Message::Answer(serial, sequence, reply) => {
                let mut processes = self.processes.iter_mut();
                if let Some(process) = processes.find(|process| process.serial == serial) {
                    let local = now + process.ahead;
                    process
                        .holder
                        .observe(local, process.cpu, Micros(now.0 * 3));
                    process.holder.answer(local, sequence, &reply);
                }
            }
        }
    }

    fn fail_something(&mut self) {
        let index = self.below(self.processes.len() as u64) as usize;
        match self.below(6) {
            0 if self.faults.die => {
                let fresh = self.begin();
                self.processes[index] = fresh;
            }
            1 if self.faults.pause => {
                let time = Micros(self.below(4_000_000));
                self.processes[index].paused_until = self.now + time;
            }
            2 if self.faults.restart => self.store.restart(true),
            3 if self.faults.empty => self.store.restart(false),
            4 if self.faults.back => {
                self.store_ahead -= self.below(3_000_000) as i64;
                self.set_store_time();
            }
            5 if self.faults.write => {
                let quota = MicroCpus(100_000 * (1 + self.below(100)));
                let burst = Micros(self.below(2_000_000));
                let limit = FleetLimit::new(quota).with_burst(burst);
                self.store.set_limit(TENANT, limit).expect("a valid limit");
                self.capacity = self.capacity.max(limit.capacity().0 as f64);
                self.limit = limit;
            }
            _ => {}
        }
    }

    /// How far to the next moment: mostly some milliseconds, sometimes to just before or just after a lease's end.
    fn stride(&mut self) -> u64 {
        if self.below(4) > 0 {
            return 1 + self.below(40_000);
        }
        let now = self.now;
        let next = self
            .processes
            .iter()
            .map(|process| process.holder.ends().saturating_sub(now + process.ahead).0)
            .filter(|rest| *rest > 1)
            .min();
        next.map_or(10_000, |rest| rest - 1 + self.random.next_u64() % 2)
    }

    /// Lets some milliseconds pass until all messages have arrived.
    fn settle(&mut self) {
        while !self.messages.is_empty() {
            self.pass(4_000);
            self.deliver();
        }
    }

    /// Saves up and then uses all at once, by turns.
    fn walk(&mut self, steps: u32) {
        let mut burning_until = Micros::ZERO;
        let mut saving_until = Micros::ZERO;
        for _ in 0..steps {
            let stride = self.stride();
            self.pass(stride);
            if self.below(100) == 0 {
                self.fail_something();
            }
            self.deliver();
            if self.now > burning_until && self.now > saving_until {
                saving_until = self.now + Micros(self.below(3_000_000));
                burning_until = saving_until + Micros(self.below(3_000_000));
            }
            for index in 0..self.processes.len() {
                if self.now > saving_until {
                    self.spend(index);
                }
                let local = self.now + self.processes[index].ahead;
                let due = self.processes[index].holder.next_ask(local);
                if due.is_some_and(|due| due <= local) || self.below(10) == 0 {
                    self.ask(index);
                } else if due.is_none() && self.below(20) == 0 {
                    self.processes[index].holder.failed(local);
                }
            }
        }
    }
}

const NO_FAULTS: Faults = Faults {
    lose: false,
    repeat: false,
    slow: false,
    die: false,
    pause: false,
    restart: false,
    empty: false,
    back: false,
    write: false,
};

#[test]
fn no_window_sees_more_than_quota_and_burst_and_one_lease() {
    let walks = std::env::var("QUOTIENT_WALKS").ok();
    let walks = walks.and_then(|text| text.parse().ok()).unwrap_or(WALKS);
    let mut fullest = 0.0_f64;
    for seed in 0..walks {
        let mut random = Pcg32::seed_from_u64(seed ^ 0x5eed);
        let bits = random.next_u64();
        // A third of the walks each has few faults, many, all.
        let bits = match seed % 3 {
            0 => bits & random.next_u64() & random.next_u64(),
            1 => bits,
            _ => u64::MAX,
        };
        let bit = |index: u32| bits >> index & 1 == 1;
        let faults = Faults {
            lose: bit(0),
            repeat: bit(1),
            slow: bit(2),
            die: bit(3),
            pause: bit(4),
            restart: bit(5),
            empty: bit(6),
            back: bit(7),
            write: bit(8),
        };
        let quota = MicroCpus(100_000 * (1 + random.next_u64() % 100));
        let burst = Micros(random.next_u64() % 2_000_000);
        let limit = FleetLimit::new(quota).with_burst(burst);
        let mut world = World::new(1 + seed as usize % 6, limit, faults, seed);
        world.walk(800);
        assert!(
            world.worst <= world.capacity + 2.0,
            "walk {seed}: {} us beyond the quota, of at most {}: {faults:?}",
            world.worst,
            world.capacity
        );
        fullest = fullest.max(world.worst / world.capacity);
    }
    assert!(fullest > 0.9, "no walk came near the bound: {fullest}");
}

#[test]
fn a_store_that_forgot_grants_nothing_as_long_as_a_lease_lasts_and_no_longer() {
    let limit = FleetLimit::new(MicroCpus::whole(2));
    let mut world = World::new(1, limit, NO_FAULTS, 1);
    world.pass(2_000_000);
    world.ask(0);
    world.settle();
    assert!(world.processes[0].holder.held() > Micros::ZERO);
    world.store.restart(false);
    let newcomer = world.begin();
    world.processes.push(newcomer);
    // It is a process that knew the limit that brings it back.
    world.ask(0);
    world.settle();
    assert_eq!(
        world.store.limit(TENANT).and_then(|limit| limit.quota),
        limit.quota
    );
    world.pass(500_000);
    world.ask(1);
    world.settle();
    let figures = world.processes[1].holder.figures();
    assert_eq!(
        (figures.quiet, figures.granted),
        (1, 0),
        "nothing while leases of before may last"
    );
    // 0.625 s since the loss: what was granted before it has ended.
    world.pass(120_000);
    let old = &world.processes[0];
    assert!(old.holder.ends() < world.now + old.ahead);
    world.pass(10_000);
    world.ask(1);
    world.settle();
    assert_eq!(
        world.processes[1].holder.figures().granted,
        1,
        "and then it is"
    );
}

/// A process that was never told of a limit, which asks the store once.
fn newcomer_asks(world: &mut World, strict: bool) -> Allowance {
    let floor = MicroCpus(10_000);
    let settings = Settings {
        process: ProcessId(1_000),
        capacity: MicroCpus::whole(64),
        floor,
        strict,
    };
    let mut newcomer = world.begin();
    let local = world.now + newcomer.ahead;
    newcomer.holder = Holder::new(settings, local, Micros::ZERO, Micros::ZERO);
    world.processes.push(newcomer);
    let index = world.processes.len() - 1;
    world.ask(index);
    world.settle();
    let local = world.now + world.processes[index].ahead;
    world.processes[index].holder.allowance(local)
}

#[test]
fn who_never_knew_a_limit_does_not_believe_a_store_that_forgot() {
    let floor = Allowance::Floor(MicroCpus(10_000));
    let limit = FleetLimit::new(MicroCpus::whole(2));
    let mut world = World::new(1, limit, NO_FAULTS, 1);
    world.pass(2_000_000);
    world.ask(0);
    world.settle();
    // It remembers what it was told, and what it was not.
    let other = world.store.ask("tenants/free", &request_of_nobody(1));
    assert_eq!(other, Reply::Unlimited { limit: None });
    for keeps in [true, false] {
        world.store.restart(keeps);
        world.pass(1_000_000);
        let other = world.store.ask("tenants/free", &request_of_nobody(1));
        assert!(matches!(other, Reply::Unknown { .. }), "{other:?}");
    }
    assert_eq!(newcomer_asks(&mut world, false), floor);
    assert_eq!(world.processes[1].holder.figures().unsure, 1);
    // It asks again within a second, and gets what a process that knew has told.
    world.ask(0);
    world.settle();
    let local = world.now + world.processes[1].ahead;
    let next = world.processes[1].holder.next_ask(local);
    assert!(next.is_some_and(|at| at <= local + Micros::SECOND));
    world.ask(1);
    world.settle();
    let learned = world.processes[1].holder.limit().expect("a limit");
    assert_eq!(learned.quota, limit.quota);
}

#[test]
fn a_limit_that_all_forgot_is_none_after_a_while_and_never_where_one_is_strict() {
    let floor = Allowance::Floor(MicroCpus(10_000));
    let limit = FleetLimit::new(MicroCpus::whole(2));
    let mut world = World::new(0, limit, NO_FAULTS, 1);
    world.store.restart(false);
    assert_eq!(newcomer_asks(&mut world, false), floor);
    world.pass(MEMORY_SETTLES.0 - 1_000_000);
    assert_eq!(newcomer_asks(&mut world, false), floor);
    world.pass(1_100_000);
    assert_eq!(newcomer_asks(&mut world, false), Allowance::Unlimited);
    assert_eq!(newcomer_asks(&mut world, true), floor);
    // Said, it is believed by everybody; and a store that its owner confirms is, too.
    let free = FleetLimit {
        quota: None,
        ..limit
    };
    world.store.restart(false);
    world.store.set_limit(TENANT, free).expect("a limit");
    assert_eq!(newcomer_asks(&mut world, true), Allowance::Unlimited);
    world.store.restart(false);
    world.store.confirm();
    assert_eq!(newcomer_asks(&mut world, false), Allowance::Unlimited);
}

#[test]
fn who_rests_tells_a_store_that_forgot_its_limit_when_reminded() {
    let store = MemoryStore::new();
    store.set_time(Micros::from_secs(1_000));
    let limit = FleetLimit::new(MicroCpus::whole(2));
    store.set_limit(TENANT, limit).expect("a valid limit");
    let settings = Settings {
        process: ProcessId(1),
        capacity: MicroCpus::whole(4),
        floor: MicroCpus(10_000),
        strict: false,
    };
    let mut now = Micros::from_secs(1);
    let mut holder = Holder::new(settings, now, Micros::ZERO, Micros::ZERO);
    let ask = |holder: &mut Holder, now| {
        let request = holder.request(now);
        let reply = store.ask(TENANT, &request);
        holder.answer(now, request.sequence, &reply)
    };
    assert!(ask(&mut holder, now));
    now += Micros::from_secs(10);
    holder.observe(now, Micros::ZERO, Micros::ZERO);
    store.restart(false);
    assert_eq!(holder.next_ask(now), None, "it has no demand");
    holder.remind();
    assert!(holder.next_ask(now).is_some_and(|at| at <= now));
    // A request that is lost does not count.
    let _ = holder.request(now);
    holder.failed(now);
    now += Micros::SECOND;
    assert!(holder.next_ask(now).is_some_and(|at| at <= now));
    assert!(ask(&mut holder, now));
    assert_eq!(store.limit(TENANT), holder.limit());
    assert_eq!(holder.next_ask(now), None);
}

#[test]
fn rewriting_a_limit_mints_nothing() {
    let limit = FleetLimit::new(MicroCpus::whole(2)).with_burst(Micros::SECOND);
    let store = MemoryStore::new();
    store.set_limit(TENANT, limit).expect("a valid limit");
    store.set_time(Micros::from_secs(3));
    store.set_limit(TENANT, limit).expect("a valid limit");
    let before = store.figures(TENANT).expect("a tenant").pool;
    for _ in 0..100 {
        store
            .set_limit(TENANT, limit.with_burst(Micros::from_secs(100)))
            .expect("a valid limit");
        store.set_limit(TENANT, limit).expect("a valid limit");
    }
    assert_eq!(store.figures(TENANT).expect("a tenant").pool, before);
}

#[test]
fn a_repeated_request_is_answered_alike_and_counted_once() {
    let limit = FleetLimit::new(MicroCpus::whole(2));
    let mut world = World::new(1, limit, NO_FAULTS, 1);
    world.pass(2_000_000);
    world.ask(0);
    let (_, message) = world.messages.remove(0);
    let Message::Ask(_, request) = message else {
        panic!("a request")
    };
    let first = world.store.ask(TENANT, &request);
    let Reply::Granted(grant) = first else {
        panic!("{first:?}")
    };
    assert_eq!(world.store.ask(TENANT, &request), first);
    let figures = world.store.figures(TENANT).expect("a tenant");
    assert_eq!(figures.held, grant.amount);
}

/// What is held of a limit that was a thousand times as high is owed, but no more of it than a lease earns: grants go on after two leases, not after a
/// quarter of an hour. And the process gives back what nobody may hold any more.
#[test]
fn a_limit_that_was_lowered_starves_nobody() {
    let high = FleetLimit::new(MicroCpus::whole(1_000));
    // A burst that takes 50 s to be earned.
    let low = FleetLimit::new(MicroCpus::whole(1)).with_burst(Micros::from_secs(50));
    let store = MemoryStore::new();
    store.set_time(Micros::from_secs(3));
    store.set_limit(TENANT, high).expect("a valid limit");
    let ask = |process: u64, sequence: u64, left: Micros| {
        let request = Request {
            process: ProcessId(process),
            sequence,
            left,
            demand: MicroCpus::whole(1_000),
            horizon: Micros::SECOND,
            ..request_of_nobody(process)
        };
        match store.ask(TENANT, &request) {
            Reply::Granted(grant) => grant.amount,
            other => panic!("{other:?}"),
        }
    };
    store.set_time(Micros::from_secs(5));
    assert!(ask(1, 1, Micros::ZERO) > Micros::from_secs(400));
    store.set_limit(TENANT, low).expect("a valid limit");
    assert_eq!(ask(2, 1, Micros::ZERO), Micros::ZERO);
    // The first one's lease has ended, and it has used all.
    store.set_time(Micros::from_secs(7));
    assert!(ask(2, 2, Micros::ZERO) > Micros::ZERO);
}

/// What a process holds of it goes back, but for what anybody may hold now.
#[test]
fn who_holds_much_of_a_limit_that_was_lowered_gives_it_back() {
    let low = FleetLimit::new(MicroCpus::whole(1));
    let mut world = World::new(1, FleetLimit::new(MicroCpus::whole(1_000)), NO_FAULTS, 1);
    let renew = |world: &mut World| {
        for _ in 0..8 {
            world.pass(300_000);
            world.ask(0);
            world.settle();
        }
        world.processes[0].holder.held()
    };
    assert!(renew(&mut world) > Micros::SECOND);
    world.store.set_limit(TENANT, low).expect("a valid limit");
    assert!(renew(&mut world) <= low.capacity());
}
