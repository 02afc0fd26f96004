//! The invariants of bandwidth control over random machines in virtual time. Numbers follow the list in DESIGN.md.
//!
//! Every case is a number: a tree of groups with limits, tasks, and changes of limits in the middle of the run. The
//! suite runs the first 1,200; `QUOTIENT_BANDWIDTH_CASES=100000 cargo test --release --test bandwidth_properties` runs more,
//! `QUOTIENT_BANDWIDTH_FIRST` says from where on.

mod common;

use common::{MILLI, Machine, Work, usage};
use quotient_core::{
    BandwidthRules, Config, Group, Limit, Nanos, Policy, RatioRule, Slice, TaskEntity, Weight,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// SplitMix64: every case is the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

const PATHS: [&str; 7] = ["a", "a/x", "a/y", "b", "b/z", "b/z/deep", "c"];

fn config(random: &mut Random) -> Config {
    let cpus = 1 + random.below(4) as u32;
    let kernel = |ratio, slice_expiry| BandwidthRules::Kernel {
        ratio,
        slice_expiry,
    };
    Config {
        bandwidth: match random.below(8) {
            0 => kernel(RatioRule::V2, false),
            1 => kernel(RatioRule::V2, true),
            _ => BandwidthRules::Default,
        },
        policy: if random.chance(85) {
            Policy::Eevdf
        } else {
            Policy::Cfs
        },
        quantum: Nanos(random.choose(&[0, 50_000])),
        ..Config::new(cpus)
    }
}

fn random_limit(random: &mut Random, config: &Config) -> Limit {
    let period = random.choose(&[1, 2, 5, 10, 20, 50]) * MILLI;
    let most = (period * u64::from(config.cpus) * 5 / 4).max(2 * MILLI);
    let quota = MILLI + random.below(most - MILLI);
    let limit = Limit::new(Nanos(quota), Nanos(period));
    if config.bandwidth != BandwidthRules::Default {
        return limit.with_burst(Nanos(random.below(quota)));
    }
    let burst = random.choose(&[0, 0, quota / 2, 3 * quota]);
    let limit = limit.with_burst(Nanos(burst));
    limit
        .with_smooth(random.chance(20))
        .with_soft(random.chance(15))
}

fn random_work(random: &mut Random) -> (Work, u64) {
    let chunk = random.choose(&[50_000, 200_000, MILLI, 3 * MILLI]);
    let work = match random.below(6) {
        0 | 1 => Work::Hog { chunk },
        2 => Work::Spin { chunk },
        3 | 4 => Work::Periodic {
            run: chunk,
            sleep: random.below(12 * MILLI) + 1_000,
        },
        _ => Work::Once { run: chunk },
    };
    (work, chunk)
}

/// What the checks need to know about one group.
struct Watch {
    group: Arc<Group>,
    /// The limit since the start, as long as it was not changed.
    constant: Option<Limit>,
    samples: Vec<u64>,
    /// Since when each CPU has waited.
    waiting_since: Vec<Option<u64>>,
}

struct Case {
    machine: Machine,
    watches: Rc<RefCell<Vec<Watch>>>,
    random: Random,
    config: Config,
    poll_max: u64,
}

/// Samples of usage are taken this often, ns.
const STEP: u64 = MILLI / 2;

impl Case {
    fn new(number: u64) -> Case {
        let mut random = Random(number.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let config = config(&mut random);
        let mut machine = Machine::new(config);
        machine.check_every = 23;
        machine.chooses_first = number % 2 == 1;
        let mut watches = Vec::new();
        for path in PATHS {
            let group = machine.group(path, random.choose(&[1, 50, 100, 1_000]));
            let limit = random
                .chance(55)
                .then(|| random_limit(&mut random, &config));
            machine.limit(&group, limit);
            watches.push(Watch {
                group,
                constant: limit,
                samples: vec![0],
                waiting_since: vec![None; config.cpus as usize],
            });
        }
        let mut poll_max = 0;
        for _ in 0..1 + random.below(10) {
            let home = Arc::clone(&watches[random.below(7) as usize].group);
            let (work, chunk) = random_work(&mut random);
            poll_max = poll_max.max(chunk);
            let slice = random
                .chance(20)
                .then(|| Slice::new(Nanos(300_000)).unwrap());
            let weight = Weight::new(random.choose(&[20, 100, 500])).unwrap();
            let mut entity = TaskEntity::new(weight, slice);
            entity.set_deferring(random.chance(5));
            let cpu = random.below(u64::from(config.cpus)) as usize;
            machine.spawn_as(cpu, &home, work, entity);
        }
        Case {
            machine,
            watches: Rc::new(RefCell::new(watches)),
            random,
            config,
            poll_max,
        }
    }

    fn run(&mut self) {
        let (watches, config, poll_max) = (Rc::clone(&self.watches), self.config, self.poll_max);
        self.machine.observer = Some(Box::new(move |machine| {
            for watch in watches.borrow_mut().iter_mut() {
                check_budget(machine, watch, &config, poll_max);
            }
        }));
        let changes = self.random.below(6);
        let end = 15 + self.random.below(60);
        let mut at: Vec<u64> = (0..changes).map(|_| self.random.below(end * 2)).collect();
        at.sort_unstable();
        for step in 1..=end * 2 {
            self.machine.run_until(step * STEP);
            for watch in self.watches.borrow_mut().iter_mut() {
                watch.samples.push(usage(&watch.group));
            }
            while at.first() == Some(&step) {
                at.remove(0);
                self.change();
            }
        }
        self.check_clocks();
        self.check_windows();
        self.check_that_nobody_is_left_behind();
    }

    /// Sets, changes, lifts or rewrites a limit, or changes a weight.
    fn change(&mut self) {
        let which = self.random.below(7) as usize;
        let group = Arc::clone(&self.watches.borrow()[which].group);
        if self.random.chance(20) {
            return group.set_weight(Weight::new(self.random.choose(&[10, 300])).unwrap());
        }
        if self.random.chance(30) {
            // Invariant 10: an identical write changes no state.
            let (before, balances) = (group.bandwidth_account(), group.bandwidth_balances());
            self.machine.limit(&group, group.limit());
            if self.config.bandwidth == BandwidthRules::Default {
                assert_eq!(
                    (before, balances),
                    (group.bandwidth_account(), group.bandwidth_balances())
                );
                return;
            }
        } else {
            let limit = self
                .random
                .chance(70)
                .then(|| random_limit(&mut self.random, &self.config));
            self.machine.limit(&group, limit);
        }
        let watch = &mut self.watches.borrow_mut()[which];
        watch.constant = None;
        watch.waiting_since.fill(None);
    }

    /// Invariant 7: a group was charged what its tasks ran and what its children were charged.
    fn check_clocks(&self) {
        for watch in self.watches.borrow().iter() {
            let tasks = self.machine.tasks.iter();
            let own: u64 = tasks
                .filter(|task| Arc::ptr_eq(&task.group, &watch.group))
                .map(|task| task.ran)
                .sum();
            let children: u64 = watch.group.children().iter().map(usage).sum();
            assert_eq!(
                usage(&watch.group),
                own + children,
                "{}",
                watch.group.path()
            );
        }
    }

    /// Invariants 2, 3 and 4, for limits that were in force all the time.
    fn check_windows(&self) {
        let cpus = u64::from(self.config.cpus);
        for watch in self.watches.borrow().iter() {
            let Some(limit) = watch.constant.filter(|limit| !limit.soft) else {
                continue;
            };
            let (quota, period, burst) = (limit.quota.0, limit.period.0, limit.burst.0);
            // A deferring task may have run into debt on every CPU.
            let overdraft = if self.machine.tasks.iter().any(|task| task.deferring) {
                quota.min(10 * MILLI)
            } else {
                0
            };
            // A slice taken earlier, and the poll that ends it.
            let slack = cpus * (5 * MILLI + self.poll_max + overdraft);
            let spans = (period / STEP).max(1) as usize;
            for periods in 1..=3u64 {
                let length = spans * periods as usize;
                let windows = watch.samples.windows(length + 1);
                let worst = windows
                    .map(|window| window[length] - window[0])
                    .max()
                    .unwrap_or(0);
                let refills = if limit.smooth { periods } else { periods + 1 };
                let most = (refills + u64::from(limit.smooth)) * quota + burst + slack;
                assert!(
                    worst <= most,
                    "{}: {worst} > {most} in {periods} periods, {limit:?}",
                    watch.group.path()
                );
            }
            let whole = (watch.samples.len() as u64 - 1) * STEP;
            let most = (2 + whole / period) * quota + cpus * (self.poll_max + overdraft);
            let used = *watch.samples.last().unwrap();
            assert!(
                used <= most,
                "{}: {used} > {most} in all, {limit:?}",
                watch.group.path()
            );
        }
    }

    /// Invariant 9: without limits nobody is kept back, nobody is lost, and no CPU is idle while somebody waits.
    fn check_that_nobody_is_left_behind(&mut self) {
        self.machine.observer = None;
        for path in PATHS {
            let group = self.machine.tree.find(path).unwrap();
            self.machine.limit(&group, None);
        }
        for queue in &self.machine.queues {
            // Whoever has noticed keeps nothing back; the others do at their next choice.
            assert!(
                queue.nr_throttled() == 0 || queue.has_current(),
                "{}",
                queue.cpu()
            );
        }
        self.machine.run_until(self.machine.now + 50 * MILLI);
        let idle_cpus = self
            .machine
            .queues
            .iter()
            .filter(|queue| !queue.has_current())
            .count();
        for queue in &self.machine.queues {
            assert_eq!(queue.nr_throttled(), 0);
            assert!(queue.has_current() || queue.nr_running() == 0);
        }
        let waits = self
            .machine
            .queues
            .iter()
            .map(|queue| queue.nr_queued())
            .sum::<usize>();
        assert!(
            idle_cpus == 0 || waits == 0,
            "{idle_cpus} idle CPUs while {waits} tasks wait"
        );
        let (asleep, live) = self.machine.census();
        let runnable: usize = self
            .machine
            .queues
            .iter()
            .map(|queue| queue.nr_running())
            .sum();
        assert_eq!(asleep + runnable, live);
    }
}

/// Invariant 8: a CPU that keeps the group back is on its list, or has mail.
fn check_that_who_waits_is_known(machine: &Machine, group: &Arc<Group>) {
    let balances = group.bandwidth_balances();
    for queue in &machine.queues {
        let mut listed = balances.iter().filter(|at| at.waiting);
        let known = queue.load().has_unthrottles() || listed.any(|at| at.cpu == queue.cpu());
        assert!(
            known || !queue.is_throttled_itself(group),
            "{} is left behind on {} at {}: {balances:?}",
            group.path(),
            queue.cpu(),
            machine.now
        );
    }
}

/// What holds after every single event.
fn check_budget(machine: &Machine, watch: &mut Watch, config: &Config, poll_max: u64) {
    let path = watch.group.path();
    let account = watch.group.bandwidth_account();
    // Invariant 1.
    assert!(account.is_balanced(), "{path}: {account:?}");
    let balances = watch.group.bandwidth_balances();
    check_that_who_waits_is_known(machine, &watch.group);
    let Some(limit) = watch.group.limit() else {
        // What is left or owed stays for the next limit; by the kernel's rules nothing does.
        assert_eq!(account.waiting, 0, "{path} is not limited");
        assert!(config.bandwidth == BandwidthRules::Default || account.pool == 0);
        return;
    };
    // Invariant 6.
    let cap = i128::from(limit.quota.0 + limit.burst.0);
    if config.bandwidth == BandwidthRules::Default {
        assert!(account.pool <= cap, "{path}: {account:?}, {limit:?}");
        // No CPU runs on while the group is in debt.
        let held = balances.iter().any(|at| at.balance > 0);
        assert!(
            account.pool >= 0 || !held,
            "{path}: {account:?} {balances:?}"
        );
    }
    let now = machine.now;
    let due = machine.tree.next_refill().is_some_and(|due| due.0 <= now);
    if config.bandwidth == BandwidthRules::Default {
        // Invariant 5, not only at the instant of throttling but for as long as anybody waits.
        let idle: i64 = balances
            .iter()
            .filter(|at| !at.busy)
            .map(|at| at.balance.max(0))
            .sum();
        let wasted = account.waiting > 0 && (account.pool > 0 || idle > 0);
        assert!(
            !wasted || due,
            "{path} waits at {now}: {account:?} {balances:?}"
        );
        let ample = limit.quota.0 >= limit.period.0 * u64::from(config.cpus);
        assert!(
            !ample || account.waiting == 0 || account.pool < 0,
            "{path} has all there is, and waits: {account:?}"
        );
    }
    // Invariant 8: who waits is served within its position, the debts ahead of it, and a period; unless deferring tasks
    // make new debts meanwhile.
    let deferring = machine.tasks.iter().any(|task| task.deferring);
    let debts = balances.len() as u64 * poll_max;
    let periods = balances.len() as u64 + debts / limit.quota.0 + 3;
    for at in &balances {
        let since = &mut watch.waiting_since[at.cpu.index()];
        if !at.waiting {
            *since = None;
            continue;
        }
        let waited = now - *since.get_or_insert(now);
        let most = periods * limit.period.0 + poll_max;
        assert!(
            deferring || waited <= most,
            "{path} waits for {waited} on {}: {account:?} {balances:?}",
            at.cpu
        );
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number of cases"))
}

/// Invariants 1 to 10 over random trees, limits, loads and changes.
#[test]
fn random_machines_keep_the_invariants() {
    let first = number("QUOTIENT_BANDWIDTH_FIRST", 0);
    let cases = number("QUOTIENT_BANDWIDTH_CASES", 1_200);
    for number in first..first + cases {
        let outcome = std::panic::catch_unwind(|| Case::new(number).run());
        if let Err(panic) = outcome {
            eprintln!("case {number} failed");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Invariant 10: whatever is written within one period, the period sees no more than the largest quota.
#[test]
fn no_sequence_of_writes_within_a_period_mints_budget() {
    for number in 0..300 {
        let mut random = Random(number);
        let config = Config::new(1 + random.below(4) as u32);
        let mut machine = Machine::new(config);
        let group = machine.group("g", 100);
        for cpu in 0..config.cpus as usize {
            machine.spawn(cpu, &group, Work::Hog { chunk: 100_000 });
        }
        let burst = random.below(5) * MILLI;
        let (mut largest, mut quota) = (0, 1 + random.below(20));
        for write in 1..=60u64 {
            largest = largest.max(quota);
            let limit =
                Limit::new(Nanos(quota * MILLI), Nanos(100 * MILLI)).with_burst(Nanos(burst));
            // Now and then lifted and set again within the same instant.
            if random.chance(20) {
                machine.limit(&group, None);
            }
            machine.limit(&group, Some(limit));
            quota = 1 + random.below(20);
            machine.run_until(write * MILLI);
        }
        let slack = u64::from(config.cpus) * (5 * MILLI + 100_000);
        let most = largest * MILLI + burst + slack;
        let used = usage(&group);
        assert!(used <= most, "case {number}: {used} > {most}");
    }
}

/// Invariant 8 for limits that end and begin while CPUs wait for budget, whether they are told first or choose first.
#[test]
fn limits_that_come_and_go_leave_nobody_behind() {
    for number in 0..100 {
        let mut random = Random(number);
        let config = Config::new(1 + random.below(2) as u32);
        let mut machine = Machine::new(config);
        machine.chooses_first = number % 2 == 1;
        let group = machine.group("g", 100);
        for cpu in 0..config.cpus as usize {
            machine.spawn(cpu, &group, Work::Hog { chunk: 300_000 });
        }
        let watched = Arc::clone(&group);
        machine.observer = Some(Box::new(move |machine| {
            check_that_who_waits_is_known(machine, &watched);
        }));
        for _ in 0..20 {
            let quota = Nanos((1 + random.below(3)) * MILLI);
            let limit = random
                .chance(60)
                .then(|| Limit::new(quota, Nanos(10 * MILLI)));
            machine.limit(&group, limit);
            machine.run_until(machine.now + random.below(20 * MILLI));
        }
    }
}
