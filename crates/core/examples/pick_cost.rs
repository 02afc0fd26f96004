//! Prints what the run queue's operations cost: `cargo run --release -p quotient-core --example pick_cost`.
//!
//! Each figure is the median of several batches; the clock is read twice a batch. `exact` orders by the nanosecond,
//! `bucketed` by 50 us (what the runtime uses).
//!
//! `pick_cost OPERATION [SETTING]` runs one operation alone, bucketed, for a profiler to count. Operations: switch, sleep,
//! talk, groups. Settings: `out` (no bandwidth control compiled in), `none` (no limit), `limited` (a limit that never
//! binds), `deep` and `deep-limited` (four groups deep). `pick_cost storm` prints what refilling many groups costs.

use quotient_core::{
    CompiledOut, Config, CpuId, Enqueue, Gates, Group, GroupTree, Limit, Nanos, RunQueue,
    TaskEntity,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// One word with a niche, like the host's task pointer.
type Handle = std::num::NonZeroU64;

/// Virtual length of one poll, ns.
const POLL: u64 = 120;

fn main() {
    let mut arguments = std::env::args().skip(1);
    if let Some(name) = arguments.next() {
        let setting = arguments.next().unwrap_or_else(|| "none".into());
        return one(&name, &setting);
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

/// One operation alone.
fn one(name: &str, setting: &str) {
    let config = Config {
        quantum: Nanos::from_micros(50),
        ..Config::new(1)
    };
    let (depth, limited) = match setting {
        "out" | "none" => (1, false),
        "limited" => (1, true),
        "deep" => (4, false),
        "deep-limited" => (4, true),
        _ => return eprintln!("{setting:?} is none of out, none, limited, deep, deep-limited"),
    };
    let nanos = match name {
        "switch" if setting == "out" => {
            switch_in(Rig::<CompiledOut>::new(config, depth, limited, 100))
        }
        "switch" => switch_in(Rig::<BandwidthOnly>::new(config, depth, limited, 100)),
        "sleep" if setting == "out" => sleep_in(Rig::<CompiledOut>::new(config, depth, limited, 1)),
        "sleep" => sleep_in(Rig::<BandwidthOnly>::new(config, depth, limited, 1)),
        "talk" if setting == "out" => talk_in(Rig::<CompiledOut>::new(config, depth, limited, 1)),
        "talk" => talk_in(Rig::<BandwidthOnly>::new(config, depth, limited, 1)),
        "groups" => group_switch(config, 100),
        "storm" => return storm(),
        _ => return eprintln!("{name:?} is none of switch, sleep, talk, groups, storm"),
    };
    println!("{nanos:.1}");
}

/// Bandwidth control and nothing else.
struct BandwidthOnly;

impl Gates for BandwidthOnly {
    fn bandwidth() -> bool {
        true
    }

    fn load_averages() -> bool {
        false
    }

    fn events() -> bool {
        false
    }

    fn checks() -> bool {
        false
    }
}

/// One group, `depth` deep, with tasks in it.
struct Rig<G: Gates> {
    queue: RunQueue<Handle, G>,
    group: Arc<Group>,
    now: u64,
}

impl<G: Gates> Rig<G> {
    fn new(config: Config, depth: usize, limited: bool, tasks: u64) -> Rig<G> {
        let tree = GroupTree::new(config);
        let mut path = String::from("g");
        for level in 1..=depth {
            if level > 1 {
                path.push_str("/g");
            }
            let group = tree.group(&path).expect("a valid path");
            // As in the benchmarks of the patches that brought bandwidth control: 10^10 us in 100 ms.
            let limit = Limit::new(Nanos(10_000_000_000_000), Limit::PERIOD_DEFAULT);
            let limit = limited.then_some(limit);
            group
                .set_limit(limit, Nanos(0), &mut |_| ())
                .expect("a valid limit");
        }
        let group = tree.group(&path).expect("a valid path");
        let mut queue = RunQueue::<Handle, G>::with_gates(&tree, CpuId(0));
        for number in 0..tasks {
            let handle = Handle::MIN.saturating_add(number);
            queue.enqueue(
                &group,
                TaskEntity::default(),
                handle,
                Enqueue::Wake,
                Nanos(1),
            );
        }
        Rig {
            queue,
            group,
            now: 1,
        }
    }

    fn tick(&mut self) -> Nanos {
        self.now += POLL + (self.now & 31);
        Nanos(self.now)
    }
}

fn switch_in<G: Gates>(mut rig: Rig<G>) -> f64 {
    let mut task = rig.queue.pick(Nanos(1)).expect("tasks");
    const COUNT: usize = 20_000;
    median(COUNT, || {
        for _ in 0..COUNT {
            let now = rig.tick();
            task = black_box(rig.queue.switch(task, now)).expect("tasks");
        }
    })
}

/// Every task sleeps and another wakes: the group is left and entered again.
fn sleep_in<G: Gates>(mut rig: Rig<G>) -> f64 {
    const COUNT: usize = 10_000;
    median(COUNT, || {
        for _ in 0..COUNT {
            let task = rig.queue.pick(Nanos(rig.now)).expect("tasks");
            let now = rig.tick();
            let entity = rig.queue.put_prev_sleep(now).expect("current");
            rig.queue
                .enqueue(&rig.group, entity, black_box(task), Enqueue::Wake, now);
        }
    })
}

/// A conversation of two tasks: the ping-pong of the runtime.
fn talk_in<G: Gates>(mut rig: Rig<G>) -> f64 {
    let mut task = rig.queue.pick(Nanos(rig.now)).expect("tasks");
    let mut peer = (Handle::MAX, TaskEntity::default());
    const COUNT: usize = 20_000;
    median(COUNT, || {
        for _ in 0..COUNT {
            let now = rig.tick();
            let (handle, entity) = peer;
            if let Some(sleeper) = rig.queue.hand_over(&rig.group, &entity, now) {
                peer = (task, sleeper);
                task = handle;
            } else {
                rig.queue
                    .enqueue(&rig.group, entity, handle, Enqueue::WakeBuddy, now);
                peer = (task, rig.queue.put_prev_sleep(now).expect("current"));
                task = rig.queue.pick(now).expect("tasks");
            }
        }
    })
}

/// Refilling many throttled groups in one period: the whole, a group, and the longest time that anything is held.
fn storm() {
    println!(
        "{:>8} {:>12} {:>14} {:>14} {:>14}",
        "groups", "ns a group", "refill us", "longest us", "unthrottle us"
    );
    for groups in [100u64, 1_000, 10_000, 100_000] {
        let tree = GroupTree::new(Config::new(1));
        let mut queue = RunQueue::new(&tree, CpuId(0));
        let limit = Limit::new(Nanos::from_millis(1), Limit::PERIOD_DEFAULT);
        for number in 0..groups {
            let group = tree.group(&format!("g{number}")).expect("a valid path");
            group
                .set_limit(Some(limit), Nanos(0), &mut |_| ())
                .expect("a valid limit");
            queue.enqueue(
                &group,
                TaskEntity::default(),
                number,
                Enqueue::New,
                Nanos(0),
            );
        }
        let mut now = 0;
        while let Some(task) = queue.pick(Nanos(now)) {
            now += 1_000_000;
            queue.put_prev_yield(task, Nanos(now));
        }
        let start = Instant::now();
        let (mut longest, mut refills, mut unthrottles) = (0, 0, 0);
        loop {
            let call = Instant::now();
            // The last timer was armed by the last group that ran.
            let more = tree.refill(Nanos(now + 200_000_000), &mut |_| ());
            let took = call.elapsed().as_nanos();
            (refills, longest) = (refills + took, longest.max(took));
            let call = Instant::now();
            queue.unthrottle_pending(Nanos(now + 200_000_000));
            let took = call.elapsed().as_nanos();
            (unthrottles, longest) = (unthrottles + took, longest.max(took));
            if !more && !queue.load().has_unthrottles() {
                break;
            }
        }
        assert_eq!(queue.nr_throttled(), 0);
        let each = start.elapsed().as_nanos() / u128::from(groups);
        println!(
            "{groups:>8} {each:>12} {:>14} {:>14} {:>14}",
            refills / 1_000,
            longest / 1_000,
            unthrottles / 1_000
        );
    }
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
