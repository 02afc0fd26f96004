//! Clocks that nobody hopes for: days between two calls, and now and then one that goes backwards.

use quotient_core::{
    Config, CpuId, Enqueue, Group, GroupTree, Nanos, RunQueue, TaskEntity, Weight,
};
use std::sync::Arc;

const HOUR: u64 = 3_600_000_000_000;

/// Two CPUs and two groups of weights 100 and 300, with a task each on both CPUs.
struct Pair {
    groups: [Arc<Group>; 2],
    queues: Vec<RunQueue<u32>>,
    _tree: GroupTree,
}

impl Pair {
    fn new() -> Pair {
        let tree = GroupTree::new(Config::new(2));
        let groups = [("light", 100), ("heavy", 300)].map(|(path, weight)| {
            let group = tree.group(path).expect("a valid path");
            group.set_weight(Weight::new(weight).expect("a valid weight"));
            group
        });
        let mut queues: Vec<RunQueue<u32>> =
            (0..2).map(|cpu| RunQueue::new(&tree, CpuId(cpu))).collect();
        for (handle, queue) in queues.iter_mut().enumerate() {
            for (number, group) in groups.iter().enumerate() {
                let handle = (2 * handle + number) as u32;
                queue.enqueue(group, TaskEntity::default(), handle, Enqueue::New, Nanos(0));
            }
        }
        Pair {
            groups,
            queues,
            _tree: tree,
        }
    }

    /// Each CPU polls `count` times, until `next` says the poll is over.
    fn run(&mut self, count: u64, mut next: impl FnMut(u64) -> u64) {
        let mut running: Vec<u32> = self
            .queues
            .iter_mut()
            .map(|queue| queue.pick(Nanos(0)).unwrap())
            .collect();
        for step in 1..=count {
            let now = Nanos(next(step));
            for (queue, task) in self.queues.iter_mut().zip(&mut running) {
                *task = queue.switch(*task, now).expect("two tasks can run");
                queue.check().expect("a queue whose sums are right");
            }
        }
    }

    /// What the heavy one had, by what the light one had.
    fn ratio(&self) -> f64 {
        let [light, heavy] = &self.groups;
        heavy.cpu_time().0 as f64 / light.cpu_time().0 as f64
    }
}

#[test]
fn weights_hold_over_a_year_of_polls_of_an_hour() {
    let mut pair = Pair::new();
    pair.run(9_000, |step| step * HOUR);
    let ratio = pair.ratio();
    assert!((2.95..=3.05).contains(&ratio), "{ratio}");
    let all: u64 = pair.groups.iter().map(|group| group.cpu_time().0).sum();
    assert_eq!(all, 2 * 9_000 * HOUR);
}

/// Every third reading is a millisecond before the last one: nothing is charged for it, and nothing twice.
#[test]
fn a_clock_that_goes_back_charges_nobody_twice() {
    let mut pair = Pair::new();
    let (mut now, mut latest) = (0, 0);
    pair.run(30_000, |step| {
        now = if step % 3 == 0 {
            now - 1_000_000
        } else {
            now + 1_500_000
        };
        latest = latest.max(now);
        now
    });
    let ratio = pair.ratio();
    assert!((2.9..=3.1).contains(&ratio), "{ratio}");
    let all: u64 = pair.groups.iter().map(|group| group.cpu_time().0).sum();
    assert!(
        all <= 2 * latest && all + 2 * 4_000_000 >= 2 * latest,
        "{all} of {latest}"
    );
}
