//! Limits that are written again and again: no sequence of writes is worth more than what the limits earn.
//!
//! With `E(t)` for the integral of quota / period over the time in which there was a limit, a group that is limited has used,
//! at any t, at most `E(t)`, plus what it used while it had no limit, plus the largest quota that was in force (precisely:
//! tasks begin to run only while it has used less than E plus the quota of that moment), plus the polls that were under way
//! then: one on each CPU. See the header of `bandwidth/ledger.rs`.
//!
//! `PROPTEST_CASES=20000 cargo test --release -p quotient-core --test bandwidth_writes` looks longer.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use proptest::prelude::*;
use quotient_core::{
    BandwidthRules, Config, CpuId, Enqueue, Group, GroupTree, Limit, Nanos, RunQueue, TaskEntity,
};
use std::sync::Arc;

const POLL: u64 = 50_000;

fn limit(quota_ms: u64, period_ms: u64) -> Limit {
    Limit::new(Nanos::from_millis(quota_ms), Nanos::from_millis(period_ms))
}

/// What four spinners used in 2 s, while `write` was called after every `every` ms with its number.
fn used_with_writes(
    first: Limit,
    every: u64,
    mut write: impl FnMut(&mut Machine, &Arc<Group>, u64),
) -> u64 {
    let mut machine = Machine::new(Config::new(4));
    machine.check_every = 101;
    let group = machine.group("g", 100);
    machine.limit(&group, Some(first));
    for cpu in 0..4 {
        machine.spawn(cpu, &group, Work::Hog { chunk: POLL });
    }
    for number in 1.. {
        let at = number * every * MILLI;
        if at >= 2 * SECOND {
            break;
        }
        machine.advance_to(at);
        write(&mut machine, &group, number);
        assert!(group.bandwidth_account().is_balanced());
    }
    machine.run_until(2 * SECOND - 1);
    assert!(group.bandwidth_account().is_balanced());
    usage(&group)
}

/// Both limits are 10 % of a CPU: 200 ms of 2 s. (5,572 ms while a change of the period granted a quota.)
#[test]
fn two_limits_of_one_rate_in_turn_are_worth_no_more_than_one() {
    let (long, short) = (limit(100, 1_000), limit(1, 10));
    for every in [3, 7, 11, 20, 50, 130] {
        let used = used_with_writes(long, every, |machine, group, number| {
            let limit = if number % 2 == 1 { short } else { long };
            machine.limit(group, Some(limit));
        });
        assert!(
            (195 * MILLI..=203 * MILLI).contains(&used),
            "every {every} ms: {used}"
        );
    }
}

/// Lifted for no time at all. (4,007 ms while a period of 1 ms in between made the used quota forgotten.)
#[test]
fn lifting_and_setting_again_is_worth_nothing() {
    for every in [11, 50] {
        let used = used_with_writes(limit(100, 1_000), every, |machine, group, _| {
            let mut kicked = Vec::new();
            for limit in [None, Some(limit(1, 1)), Some(limit(100, 1_000))] {
                let kick = &mut |cpu: CpuId| kicked.push(cpu.index());
                group.set_limit(limit, Nanos(machine.now), kick).unwrap();
            }
            machine.kick(&kicked);
        });
        assert!(
            (195 * MILLI..=203 * MILLI).contains(&used),
            "every {every} ms: {used}"
        );
    }
}

/// Lifted for 1 of every 20 ms: that millisecond is free, the other 19 are not, and no debt is forgiven meanwhile. A poll
/// that was begun without a limit runs on under it, is charged for that, and is paid by the next refill.
#[test]
fn lifting_for_a_while_is_worth_that_while() {
    let mut free = 0;
    let used = used_with_writes(limit(100, 1_000), 20, |machine, group, _| {
        let before = machine.ran(group);
        machine.limit(group, None);
        machine.advance_to(machine.now + MILLI);
        free += machine.ran(group) - before;
        machine.limit(group, Some(limit(100, 1_000)));
    });
    let limited = used - free;
    assert!(free >= 300 * MILLI, "{free}");
    // 95 ms were earned when the second quota came, which is 5 ms more than is earned until the next.
    let polls_since_the_refill = 50 * 4 * POLL;
    let most = 195 * MILLI + polls_since_the_refill;
    assert!((185 * MILLI..=most).contains(&limited), "{limited}");
}

/// What the group did not use is not kept by changes beyond quota and burst either.
#[test]
fn an_idle_group_collects_no_more_than_quota_and_burst_by_writes() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    for number in 0..200 {
        let burst = Nanos::from_millis(number % 7);
        machine.limit(&group, Some(limit(1 + number % 5, 10 + number % 90)));
        machine.advance_to((2 * number + 1) * 5 * MILLI);
        machine.limit(&group, Some(limit(4, 20).with_burst(burst)));
        machine.advance_to((2 * number + 2) * 5 * MILLI);
    }
    machine.limit(&group, Some(limit(2, 1_000).with_burst(Nanos(3 * MILLI))));
    for cpu in 0..2 {
        machine.spawn(cpu, &group, Work::Hog { chunk: POLL });
    }
    machine.run_until(machine.now + 100 * MILLI);
    let used = usage(&group);
    assert!(used <= 5 * MILLI + 2 * POLL, "{used}");
}

/// 12 ms after 100/1000 ms became 1/10 ms one or two periods have passed, not 91.
#[test]
fn a_shorter_period_is_not_counted_backwards() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(100, 1_000)));
    machine.spawn(0, &group, Work::Hog { chunk: POLL });
    machine.run_until(900 * MILLI);
    machine.limit(&group, Some(limit(1, 10)));
    machine.run_until(912 * MILLI);
    let stats = group.bandwidth_stats();
    assert_eq!((stats.nr_periods, stats.nr_throttled), (1, 1), "{stats:?}");
}

/// Raising takes effect at once, for what is left of the period.
#[test]
fn a_raised_limit_lets_the_group_run_at_once() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(10, 100)));
    machine.spawn(0, &group, Work::Hog { chunk: POLL });
    machine.run_until(50 * MILLI);
    assert_eq!(usage(&group), 10 * MILLI);
    machine.limit(&group, Some(limit(50, 100)));
    machine.run_until(99 * MILLI);
    assert_eq!(usage(&group), 30 * MILLI, "half of the 40 ms more");
}

/// A lowered limit binds at once: what CPUs hold of the old one is called in.
#[test]
fn a_lowered_limit_leaves_no_slices_behind() {
    let mut machine = Machine::new(Config::new(4));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(200, 1_000)));
    for cpu in 0..4 {
        machine.spawn(cpu, &group, Work::Hog { chunk: POLL });
    }
    machine.advance_to(MILLI + 10_000);
    machine.limit(&group, Some(limit(1, 1_000)));
    machine.run_until(SECOND - 1);
    let used = usage(&group);
    assert!(used <= 4 * MILLI + 4 * POLL, "{used}");
}

/// A queue whose task polls for ever, and nobody looks at limits but at the ends of polls.
fn poll_through(writes: &[(u64, Option<Limit>)], poll_end: u64) -> (Arc<Group>, GroupTree) {
    let tree = GroupTree::new(Config::new(1));
    let group = tree.group("g").unwrap();
    let mut queue: RunQueue<u8> = RunQueue::new(&tree, CpuId(0));
    queue.enqueue(&group, TaskEntity::default(), 1, Enqueue::New, Nanos(0));
    assert_eq!(queue.pick(Nanos(0)), Some(1));
    for &(at, limit) in writes {
        group.set_limit(limit, Nanos(at), &mut |_| ()).unwrap();
    }
    queue.put_prev_sleep(Nanos(poll_end));
    queue.check().unwrap();
    assert!(group.bandwidth_account().is_balanced());
    (group, tree)
}

/// A poll that is under way when limits come and go is charged with the time for which there was one, seen or not.
#[test]
fn a_poll_across_changes_is_charged_with_its_time_under_a_limit() {
    let on = Some(limit(1, 10));
    let at = |ms: u64| ms * MILLI;
    let cases = [
        // Set during the poll.
        (vec![(at(4), on)], at(10), at(6)),
        // Set and lifted: the queue never knew.
        (vec![(at(2), on), (at(5), None)], at(10), at(3)),
        // Twice, and in force at the end.
        (
            vec![(at(1), on), (at(2), None), (at(7), on)],
            at(10),
            at(1) + at(3),
        ),
    ];
    for (writes, end, charged) in cases {
        let (group, _tree) = poll_through(&writes, end);
        let account = group.bandwidth_account();
        assert_eq!(account.consumed, i128::from(charged), "{writes:?}");
    }
    // In force from before the poll, and lifted during it.
    let tree = GroupTree::new(Config::new(1));
    let group = tree.group("g").unwrap();
    group.set_limit(on, Nanos(0), &mut |_| ()).unwrap();
    let mut queue: RunQueue<u8> = RunQueue::new(&tree, CpuId(0));
    queue.enqueue(&group, TaskEntity::default(), 1, Enqueue::New, Nanos(0));
    assert_eq!(queue.pick(Nanos(0)), Some(1));
    group.set_limit(None, Nanos(at(4)), &mut |_| ()).unwrap();
    queue.put_prev_yield(1, Nanos(at(10)));
    assert_eq!(queue.pick(Nanos(at(10))), Some(1));
    assert_eq!(group.bandwidth_account().consumed, i128::from(at(4)));
}

/// A limit that comes while a task runs beside groups: the task's time is charged although a group is chosen next.
#[test]
fn a_limit_is_followed_before_the_chain_grows() {
    let tree = GroupTree::new(Config::new(1));
    let parent = tree.group("p").unwrap();
    let child = tree.group("p/child").unwrap();
    let mut queue: RunQueue<u8> = RunQueue::new(&tree, CpuId(0));
    let task = TaskEntity::default();
    queue.enqueue(&parent, task, 1, Enqueue::New, Nanos(0));
    queue.enqueue(&child, task, 2, Enqueue::New, Nanos(0));
    let mut current = queue.pick(Nanos(0)).unwrap();
    let (mut now, mut limited) = (0, 0);
    for number in 0..400 {
        let on = number % 2 == 0;
        let limit = on.then(|| limit(100, 1_000));
        parent.set_limit(limit, Nanos(now), &mut |_| ()).unwrap();
        now += 10_000;
        limited += if on { 10_000 } else { 0 };
        current = queue.switch(current, Nanos(now)).expect("enough budget");
        queue.check().unwrap();
    }
    queue.charge(Nanos(now));
    let account = parent.bandwidth_account();
    assert!(account.is_balanced(), "{account:?}");
    assert_eq!(account.consumed, i128::from(limited));
}

/// By the kernel's rules changes mint, as they do there: it is what the default rules are compared with.
#[test]
fn by_the_kernels_rules_changes_mint() {
    let mut machine = Machine::new(Config {
        bandwidth: BandwidthRules::KERNEL,
        ..Config::new(4)
    });
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(100, 1_000)));
    for cpu in 0..4 {
        machine.spawn(cpu, &group, Work::Hog { chunk: POLL });
    }
    for number in 1..=180u64 {
        machine.run_until(number * 11 * MILLI);
        let next = [limit(100, 1_000), limit(1, 10)][(number % 2) as usize];
        machine.limit(&group, Some(next));
    }
    assert!(usage(&group) > 2 * SECOND, "{}", usage(&group));
}

/// One thing that is done to a limited group.
#[derive(Clone, Copy, Debug)]
enum Write {
    Set(Limit),
    Lift,
    Again,
    /// CPU time spent beside the run queues.
    Foreign(u64),
}

const PATHS: [&str; 4] = ["a", "a/b", "a/b/c", "d"];

fn limits() -> impl Strategy<Value = Limit> {
    let period = prop_oneof![
        Just(1u64),
        Just(2),
        Just(10),
        Just(100),
        Just(1_000),
        1..60u64
    ];
    // Mostly tight, now and then more than the machine has.
    let percent = prop_oneof![4 => 1..60u64, 2 => Just(10u64), 1 => 60..500u64];
    let burst = prop_oneof![2 => Just(0u64), 1 => 0..30u64];
    (period, percent, burst, any::<bool>()).prop_map(|(period, percent, burst, smooth)| {
        let quota = (period * MILLI * percent / 100).max(MILLI);
        Limit::new(Nanos(quota), Nanos(period * MILLI))
            .with_burst(Nanos(burst * MILLI))
            .with_smooth(smooth)
    })
}

fn writes() -> impl Strategy<Value = Vec<(u64, usize, Write)>> {
    let write = prop_oneof![
        6 => limits().prop_map(Write::Set),
        2 => Just(Write::Lift),
        1 => Just(Write::Again),
        1 => (1..60 * MILLI).prop_map(Write::Foreign),
    ];
    let pause = prop_oneof![1 => Just(0u64), 4 => 1..3 * MILLI, 2 => 1..20 * MILLI];
    prop::collection::vec((pause, 0..PATHS.len(), write), 1..60)
}

fn works() -> impl Strategy<Value = Vec<(usize, usize, Work)>> {
    let chunk = prop_oneof![Just(100_000u64), Just(500_000), Just(2 * MILLI)];
    let work = prop_oneof![
        3 => chunk.clone().prop_map(|chunk| Work::Hog { chunk }),
        2 => (chunk, 1..8 * MILLI).prop_map(|(run, sleep)| Work::Periodic { run, sleep }),
    ];
    prop::collection::vec((0..4usize, 0..PATHS.len(), work), 1..8)
}

/// The longest poll in [`works`].
const POLL_MAX: u64 = 2 * MILLI;

/// What a group may have used, kept beside the scheduler from the definition alone.
struct Allowance {
    group: Arc<Group>,
    limit: Option<Limit>,
    /// Up to when everything is counted.
    at: u64,
    /// E: what limits earned. And what was used while there was none.
    earned: u64,
    free: u64,
    /// Time that was spent beside the run queues.
    foreign: u64,
    /// The most that tasks may have brought the sum to so far: E plus the quota of the moment.
    ceiling: u64,
    used_at: u64,
}

impl Allowance {
    fn used(&self, machine: &Machine) -> u64 {
        machine.ran(&self.group) + self.foreign
    }

    /// Counts up to now. At each event and each write, between which nothing changes.
    fn count(&mut self, machine: &Machine) {
        let used = self.used(machine);
        match self.limit {
            Some(limit) => {
                let passed = u128::from(machine.now - self.at);
                let period = u128::from(limit.period.0);
                let earned = (u128::from(limit.quota.0) * passed).div_ceil(period);
                self.earned += earned as u64;
                if u128::from(limit.quota.0) >= period * machine.queues.len() as u128 {
                    // A quota of all CPUs neither holds a group to what it had before nor lets it gain on it.
                    self.ceiling += earned as u64;
                }
                let most = self.earned + self.free + limit.quota.0;
                self.ceiling = self.ceiling.max(most);
            }
            None => {
                self.free += used - self.used_at;
                self.ceiling += used - self.used_at;
            }
        }
        (self.at, self.used_at) = (machine.now, used);
    }

    fn check(&self, machine: &Machine) -> Result<(), TestCaseError> {
        let polls = machine.queues.len() as u64 * POLL_MAX;
        prop_assert!(
            self.used_at <= self.ceiling + polls,
            "{} at {}: used {} of {} earned, {} free, ceiling {}, {:?} {:?}",
            self.group.path(),
            machine.now,
            self.used_at,
            self.earned,
            self.free,
            self.ceiling,
            self.limit,
            self.group.bandwidth_account()
        );
        Ok(())
    }
}

/// Runs a machine under a sequence of writes and holds every group against its allowance all the time.
fn hold_against_allowance(
    cpus: u32,
    works: &[(usize, usize, Work)],
    writes: &[(u64, usize, Write)],
) -> Result<(), TestCaseError> {
    let mut machine = Machine::new(Config::new(cpus));
    machine.check_every = 211;
    let groups = PATHS.map(|path| machine.group(path, 100));
    for &(cpu, home, work) in works {
        machine.spawn(cpu % cpus as usize, &groups[home], work);
    }
    let mut allowances = groups.clone().map(|group| Allowance {
        group,
        limit: None,
        at: 0,
        earned: 0,
        free: 0,
        foreign: 0,
        ceiling: 0,
        used_at: 0,
    });
    // First polls begin without limits.
    machine.advance_to(0);
    let tail = [(80 * MILLI, 0, Write::Again)];
    for &(pause, place, write) in writes.iter().chain(&tail) {
        let end = machine.now + pause;
        while machine.now < end {
            machine.advance_to(end.min(machine.now + MILLI / 4));
            for allowance in &mut allowances {
                allowance.count(&machine);
                allowance.check(&machine)?;
            }
        }
        let group = &groups[place];
        match write {
            Write::Set(limit) => {
                if allowances[place].limit.is_none() {
                    // Polls begun without a limit run on, on CPUs that may owe for an earlier one.
                    let polls = u64::from(cpus) * POLL_MAX;
                    let used = allowances[place].used(&machine) + polls;
                    allowances[place].ceiling = allowances[place].ceiling.max(used);
                }
                machine.limit(group, Some(limit));
                allowances[place].limit = Some(limit);
            }
            Write::Lift => {
                machine.limit(group, None);
                allowances[place].limit = None;
            }
            Write::Again => machine.limit(group, allowances[place].limit),
            Write::Foreign(nanos) => {
                group.add_foreign_cpu_time(Nanos(nanos), Nanos(machine.now));
                for allowance in &mut allowances {
                    if group.is_within(&allowance.group) {
                        allowance.foreign += nanos;
                        // Nobody asked before it was spent; tasks wait from then on.
                        let used = allowance.used(&machine);
                        allowance.ceiling = allowance.ceiling.max(used);
                    }
                }
            }
        }
        for allowance in &mut allowances {
            allowance.count(&machine);
            let account = allowance.group.bandwidth_account();
            prop_assert!(account.is_balanced(), "{:?}", account);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// Setting, changing, lifting, at every level, with foreign time in between: the sum is the integral of the rates, one
    /// quota, and a poll on each CPU.
    #[test]
    fn no_sequence_of_writes_is_worth_more_than_the_limits_earn(
        cpus in 1..5u32, works in works(), writes in writes(),
    ) {
        hold_against_allowance(cpus, &works, &writes)?;
    }

    /// And no less, for a group that wants all it can get under limits that leave it time to use it.
    #[test]
    fn no_sequence_of_writes_costs_what_the_limits_earned(
        limits in prop::collection::vec((1..20 * MILLI, limits()), 1..60),
    ) {
        let mut machine = Machine::new(Config::new(4));
        machine.check_every = 211;
        let group = machine.group("g", 100);
        for task in 0..8 {
            machine.spawn(task % 4, &group, Work::Hog { chunk: 100_000 });
        }
        let mut earned = 0;
        let mut since = None;
        for &(pause, limit) in &limits {
            let most = Nanos(limit.period.0 * 2).max(Nanos(MILLI));
            let limit = Limit { quota: limit.quota.min(most), ..limit };
            machine.limit(&group, Some(limit));
            let from = *since.get_or_insert(machine.now);
            machine.run_until(machine.now + pause);
            earned += u128::from(limit.quota.0) * u128::from(machine.now - from)
                / u128::from(limit.period.0);
            since = Some(machine.now);
            let used = u128::from(usage(&group));
            // Not all CPUs burn what was granted from its first nanosecond on.
            prop_assert!(used + 4 * 100_000 >= earned, "{used} used of {earned}");
        }
    }
}

/// How many cases: `PROPTEST_CASES`, or what the suite has time for.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.map_or(64, |text| text.parse().expect("a number of cases"))
}
