//! Prints what the run queue's operations cost: `cargo run --release -p quotient-core --example pick_cost`.
//!
//! Each figure is the median of several batches; the clock is read twice a batch. `exact` orders by the nanosecond,
//! `bucketed` by 50 us (what the runtime uses).

use quotient_core::{Config, CpuId, Enqueue, Group, GroupTree, Nanos, RunQueue, TaskEntity};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// One word with a niche, like the host's task pointer.
type Handle = std::num::NonZeroU64;

/// Virtual length of one poll, ns.
const POLL: u64 = 120;

fn main() {
    if let Some(name) = std::env::args().nth(1) {
        // One operation alone, bucketed, for a profiler to count.
        let config = Config {
            quantum: Nanos::from_micros(50),
            ..Config::new(1)
        };
        let nanos = match name.as_str() {
            "switch" => switch_yield(config, 100),
            "sleep" => sleep_cycle(config, 1),
            "groups" => group_switch(config, 100),
            _ => return eprintln!("{name:?} is none of switch, sleep, groups"),
        };
        return println!("{nanos:.1}");
    }
    println!("{:>34} {:>12} {:>12}", "ns", "exact", "bucketed");
    for tasks in [1usize, 2, 10, 100, 1_000, 10_000, 100_000] {
        row(&format!("switch_yield, {tasks} ready"), |config| {
            switch_yield(config, tasks)
        });
    }
    row("pick+put_yield, 100 ready", |config| pick_put(config, 100));
    row("sleep+enqueue+pick, 1 task", |config| {
        sleep_cycle(config, 1)
    });
    row("sleep+enqueue+pick, 100 tasks", |config| {
        sleep_cycle(config, 100)
    });
    for groups in [1usize, 10, 100, 1_000, 10_000, 100_000] {
        row(&format!("group switch, {groups} groups"), |config| {
            group_switch(config, groups)
        });
    }
    row("create group (100k)", create_groups);
    row("enqueue 1M tasks", million_tasks);
    memory();
}

fn row(name: &str, measure: impl Fn(Config) -> f64) {
    let exact = measure(Config::new(1));
    let bucketed = measure(Config {
        quantum: Nanos::from_micros(50),
        ..Config::new(1)
    });
    println!("{name:>34} {exact:>12.1} {bucketed:>12.1}");
}

/// The median ns of one of `count` operations over several batches.
fn median(count: usize, mut batch: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..15)
        .map(|_| {
            let start = Instant::now();
            batch();
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Bench {
    queue: RunQueue<Handle>,
    now: u64,
}

impl Bench {
    fn new(config: Config, groups: usize, tasks_each: usize) -> Bench {
        let tree = GroupTree::new(config);
        let mut bench = Bench {
            queue: RunQueue::new(&tree, CpuId(0)),
            now: 1,
        };
        for number in 0..groups {
            let group = tree.group(&format!("g{number}")).expect("a valid path");
            bench.fill(&group, tasks_each);
        }
        bench
    }

    fn fill(&mut self, group: &Arc<Group>, tasks: usize) {
        for number in 0..tasks {
            let entity = TaskEntity::default();
            self.queue.enqueue(
                group,
                entity,
                Handle::MIN.saturating_add(number as u64),
                Enqueue::Wake,
                Nanos(self.now),
            );
        }
    }

    /// Polls differ in length, as real ones do, but not at random.
    fn tick(&mut self) -> Nanos {
        self.now += POLL + (self.now & 31);
        Nanos(self.now)
    }
}

fn switch_yield(config: Config, tasks: usize) -> f64 {
    let mut bench = Bench::new(config, 1, tasks);
    let mut task = bench.queue.pick(Nanos(1)).expect("tasks");
    const COUNT: usize = 200_000;
    median(COUNT, || {
        for _ in 0..COUNT {
            let now = bench.tick();
            task = black_box(bench.queue.switch_yield(task, now));
        }
    })
}

fn pick_put(config: Config, tasks: usize) -> f64 {
    let mut bench = Bench::new(config, 1, tasks);
    const COUNT: usize = 100_000;
    median(COUNT, || {
        for _ in 0..COUNT {
            let task = bench.queue.pick(Nanos(bench.now)).expect("tasks");
            let now = bench.tick();
            bench.queue.put_prev_yield(black_box(task), now);
        }
    })
}

fn sleep_cycle(config: Config, tasks: usize) -> f64 {
    let tree = GroupTree::new(config);
    let group = tree.group("g").expect("a valid path");
    let mut bench = Bench {
        queue: RunQueue::new(&tree, CpuId(0)),
        now: 1,
    };
    bench.fill(&group, tasks);
    const COUNT: usize = 100_000;
    median(COUNT, || {
        for _ in 0..COUNT {
            let task = bench.queue.pick(Nanos(bench.now)).expect("tasks");
            let now = bench.tick();
            let entity = bench.queue.put_prev_sleep(now).expect("current");
            bench
                .queue
                .enqueue(&group, entity, black_box(task), Enqueue::Wake, now);
        }
    })
}

fn group_switch(config: Config, groups: usize) -> f64 {
    let mut bench = Bench::new(config, groups, 1);
    const COUNT: usize = 50_000;
    median(COUNT, || {
        for _ in 0..COUNT {
            let task = bench.queue.pick(Nanos(bench.now)).expect("tasks");
            // Longer than a slice, so that every pick changes groups.
            bench.now += 1_000_000;
            bench
                .queue
                .put_prev_yield(black_box(task), Nanos(bench.now));
        }
    })
}

fn create_groups(config: Config) -> f64 {
    const COUNT: usize = 100_000;
    let start = Instant::now();
    let tree = GroupTree::new(config);
    for number in 0..COUNT {
        black_box(
            tree.group(&format!("tenants/g{number}"))
                .expect("a valid path"),
        );
    }
    start.elapsed().as_nanos() as f64 / COUNT as f64
}

fn million_tasks(config: Config) -> f64 {
    const COUNT: usize = 1_000_000;
    let start = Instant::now();
    black_box(Bench::new(config, 1, COUNT).queue.nr_running());
    start.elapsed().as_nanos() as f64 / COUNT as f64
}

fn memory() {
    let bench = Bench::new(
        Config {
            quantum: Nanos::from_micros(50),
            ..Config::new(2)
        },
        10_000,
        1,
    );
    println!("bytes of a queued task: {}", RunQueue::<Handle>::TASK_BYTES);
    println!("bytes of a task entity asleep: {}", size_of::<TaskEntity>());
    println!(
        "bytes of a (group, CPU) timeline: {}",
        bench.queue.timeline_bytes() / 10_000
    );
    println!("bytes of a group: {}", size_of::<Group>());
}
