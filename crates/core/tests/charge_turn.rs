//! Time that a group spent elsewhere and that its clocks and budgets know already: a task of it pays in virtual time, by its turn.

use quotient_core::{
    Config, CpuId, Enqueue, Group, GroupTree, Limit, Nanos, RunQueue, TaskEntity, Weight,
};
use std::sync::Arc;

const MILLI: u64 = 1_000_000;
/// What a task runs between two choices, ns.
const POLL: u64 = 100_000;

/// Time spent elsewhere, as the host of a foreign task tells it.
fn spend(group: &Group, time: Nanos, now: Nanos) {
    group.show_foreign_cpu_time(0, time);
    group.charge_foreign_budget(time, now);
}

/// Runs what the queue chooses until `end`; each poll of a group's task stands for as much elsewhere as the group `owes`.
fn run(
    queue: &mut RunQueue<usize>,
    groups: &[Arc<Group>],
    owes: [u64; 2],
    mut now: u64,
    end: u64,
) -> u64 {
    while now < end {
        let Some(index) = queue.pick(Nanos(now)) else {
            return now;
        };
        now += POLL;
        queue.charge(Nanos(now));
        if owes[index] > 0 {
            spend(&groups[index], Nanos(owes[index]), Nanos(now));
            queue.charge_turn(Nanos(owes[index]));
        }
        queue.put_prev_yield(index, Nanos(now));
    }
    now
}

fn two_groups(limit: Option<Limit>) -> (GroupTree, RunQueue<usize>, Vec<Arc<Group>>) {
    let tree = GroupTree::new(Config::new(1));
    let groups: Vec<_> = ["a", "b"].map(|path| tree.group(path).unwrap()).into();
    groups[0].set_limit(limit, Nanos(0), &mut |_| {}).unwrap();
    let mut queue = RunQueue::new(&tree, CpuId(0));
    for (index, group) in groups.iter().enumerate() {
        queue.enqueue(group, TaskEntity::default(), index, Enqueue::New, Nanos(0));
    }
    (tree, queue, groups)
}

#[test]
fn time_that_is_paid_by_turns_counts_once_on_the_clocks_and_whole_in_the_order() {
    let (_tree, mut queue, groups) = two_groups(None);
    // Each of a's polls stands for nine more elsewhere: with equal weights b gets ten polls for one of a's.
    run(&mut queue, &groups, [9 * POLL, 0], 0, 1_100 * MILLI);
    let [a, b] = [0, 1].map(|index| groups[index].cpu_time().0);
    let ratio = a as f64 / b as f64;
    // One slice of 3 ms on either side, of a second.
    assert!((0.98..1.02).contains(&ratio), "{a} to {b}");
    let polls = a / (10 * POLL);
    assert_eq!(
        a,
        polls * 10 * POLL,
        "a poll and what it stands for, each once"
    );
}

#[test]
fn budgets_pay_once_for_time_that_is_paid_by_turns() {
    let limit = Limit::new(Nanos(50 * MILLI), Nanos(100 * MILLI));
    let (_tree, mut queue, groups) = two_groups(Some(limit));
    run(&mut queue, &groups, [9 * POLL, 0], 0, 40 * MILLI);
    let account = groups[0].bandwidth_account();
    assert!(account.is_balanced(), "{account:?}");
    assert_eq!(account.consumed, i128::from(groups[0].cpu_time().0));
}

/// Whatever a host says was spent elsewhere, nothing overflows. (A debug build panicked.)
#[test]
fn an_absurd_extra_charge_overflows_nothing() {
    let tree = quotient_core::GroupTree::new(quotient_core::Config::new(1));
    let group = tree.group("absurd").unwrap();
    let nanos = quotient_core::Nanos;
    let mut queue: quotient_core::RunQueue<u8> =
        quotient_core::RunQueue::new(&tree, quotient_core::CpuId(0));
    let task = quotient_core::TaskEntity::default();
    queue.enqueue(&group, task, 1, quotient_core::Enqueue::New, nanos(0));
    assert_eq!(queue.pick(nanos(0)), Some(1));
    queue.put_prev_yield(1, nanos(1_000));
    assert_eq!(queue.pick(nanos(1_000)), Some(1));
    queue.charge_extra(nanos(u64::MAX));
    queue.charge_turn(nanos(u64::MAX));
    queue.check().unwrap();
    assert_eq!(group.cpu_time(), nanos(1_000 + (1 << 42)));
}

/// What a group has paid for already is not paid twice, and still whoever of it spent it waits for the others of the group.
#[test]
fn within_a_group_who_spends_elsewhere_pays_by_its_own_turn() {
    let tree = GroupTree::new(Config::new(1));
    let group = tree.group("a").unwrap();
    let mut queue = RunQueue::new(&tree, CpuId(0));
    for index in 0..2 {
        let task = TaskEntity::default();
        queue.enqueue(&group, task, index, Enqueue::New, Nanos(0));
    }
    let (mut now, mut polls) = (0, [0_u64; 2]);
    while now < 1_000 * MILLI {
        let index = queue.pick(Nanos(now)).unwrap();
        now += POLL;
        polls[index] += 1;
        queue.charge(Nanos(now));
        if index == 0 {
            queue.charge_within(Nanos(9 * POLL));
        }
        queue.put_prev_yield(index, Nanos(now));
        queue.check().unwrap();
    }
    let ratio = polls[1] as f64 / polls[0] as f64;
    // One slice of 3 ms on either side, of a second.
    assert!((9.8..10.2).contains(&ratio), "{polls:?}");
    // The group's clock has nothing of what was not told to it.
    assert_eq!(group.cpu_time(), Nanos(now));
}

/// A gate costs its group nothing by its turn, and what it lets through is charged from outside, when it is over. Chosen for a slice
/// at a time, the group would let through whatever it has before anybody looks at its weight.
#[test]
fn a_group_whose_polls_are_paid_from_outside_gets_what_its_weight_says() {
    let tree = GroupTree::new(Config::new(1));
    let groups: Vec<_> = ["light", "heavy"]
        .map(|path| tree.group(path).unwrap())
        .into();
    groups[1].set_weight(Weight::new(300).unwrap());
    let mut queue = RunQueue::new(&tree, CpuId(0));
    for (index, group) in groups.iter().enumerate() {
        for _ in 0..3 {
            let task = TaskEntity::default();
            queue.enqueue(group, task, index, Enqueue::New, Nanos(0));
        }
    }
    let mut now = 0;
    while now < 1_000 * MILLI {
        let index = queue.pick(Nanos(now)).unwrap();
        queue.end_groups_turn();
        queue.put_prev_yield(index, Nanos(now));
        // The poll elsewhere; nothing else uses this processor.
        now += POLL;
        groups[index].add_foreign_cpu_time(Nanos(POLL), Nanos(now));
        queue.check().unwrap();
    }
    let [light, heavy] = [0, 1].map(|index| groups[index].cpu_time().0);
    let ratio = heavy as f64 / light as f64;
    assert!((2.97..3.03).contains(&ratio), "{heavy} to {light}");
}
