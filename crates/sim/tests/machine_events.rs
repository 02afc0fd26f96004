//! CPUs that go and come, and a class above: no time is lost, nothing is stranded, and the run queues hold at every step.

use quotient_core::{Limit, Nanos};
use quotient_sim::synthetic;
use quotient_sim::{
    Hotplug, Kernel, Machine, Outcome, Plan, Plugin, Random, RealTime, Simulation, Span,
};
use quotient_trace::{Discard, Kind};

const MILLI: u64 = 1_000_000;

fn millis(count: u64) -> Nanos {
    Nanos::from_millis(count)
}

fn exponential(micros: u64) -> Span {
    Span::Exponential {
        mean: Nanos::from_micros(micros),
    }
}

fn run(plan: &Plan) -> Outcome {
    let mut simulation = Simulation::new(plan, Discard).expect("a valid plan");
    simulation.run().expect("invariants");
    simulation.outcome()
}

fn event(at: u64, cpu: u32, online: bool) -> Hotplug {
    Hotplug {
        at: millis(at),
        cpu,
        online,
    }
}

#[test]
fn the_last_cpu_stays_and_a_second_unplugging_is_nothing() {
    let mut plan = Plan::new(Machine::flat(2));
    synthetic::spinners(&mut plan, "hog", None, 3);
    plan.hotplug = vec![
        event(200, 0, false),
        event(300, 0, false),
        event(400, 1, false),
        event(600, 0, true),
    ];
    let outcome = run(&plan);
    assert_eq!(
        outcome.busy_ns,
        (200 + 200 + 200 + 2 * 200 + 2 * 200) * MILLI + 200 * MILLI
    );
    assert_eq!(outcome.mechanisms.refused, 1);
}

/// Throttled tasks of a CPU that goes wait for budget elsewhere, and the limit is neither lost nor doubled.
#[test]
fn throttled_tasks_leave_with_the_others() {
    for kernel in [Kernel::Ours, Kernel::Linux6_18] {
        let mut plan = Plan::new(Machine::flat(4));
        kernel.apply(&mut plan);
        plan.settings.check = true;
        plan.duration = Nanos::from_secs(2);
        let group = plan.group("box/inner");
        plan.groups[0].limit = Some(Limit::new(millis(60), millis(100)));
        synthetic::spinners(&mut plan, "box", group, 6);
        plan.hotplug = (1..4)
            .flat_map(|cpu| {
                let at = 290 + 100 * u64::from(cpu);
                [event(at, cpu, false), event(at + 800, cpu, true)]
            })
            .collect();
        let outcome = run(&plan);
        let used = outcome.group("box").unwrap().usage_ns / MILLI;
        assert!((1_150..=1_260).contains(&used), "{kernel:?}: {used}");
        let tasks = outcome.workload("box").unwrap();
        assert!(tasks.usage_min_ns > 100 * MILLI, "{kernel:?}: {tasks:?}");
    }
}

/// Whatever comes and goes, the queues hold, all are served, and nobody runs on a CPU that is gone.
#[test]
fn nobody_runs_where_no_cpu_is() {
    for seed in 0..8u64 {
        let mut random = Random::new(seed, 7);
        let mut plan = Plan::new(Machine::parse(["4", "2x2", "2x2x2"][seed as usize % 3]).unwrap());
        let kernel = Kernel::ALL[seed as usize % 4];
        kernel.apply(&mut plan);
        plan.seed = seed;
        plan.settings.check = true;
        plan.duration = millis(250);
        let (web, batch) = (plan.group("web"), plan.group("batch/a"));
        if seed % 2 == 0 {
            plan.settings.plugin = Some(Plugin::WEIGHTED_ROUND_ROBIN);
        } else {
            plan.groups[1].limit = Some(Limit::new(millis(15), millis(20)));
        }
        synthetic::closed_loop(&mut plan, "web", web, 6, exponential(800), exponential(600));
        synthetic::spinners(&mut plan, "batch", batch, 3);
        let set = plan.cpuset(vec![1, 3]);
        for task in &mut plan.workloads[0].tasks[..3] {
            task.cpuset = Some(set);
        }
        let cpus = plan.machine.cpus();
        let mut online = vec![true; cpus as usize];
        let mut at = 5;
        while at < 240 {
            let cpu = random.below(u64::from(cpus)) as u32;
            let there = &mut online[cpu as usize];
            *there = !*there;
            plan.hotplug.push(event(at, cpu, *there));
            at += 3 + random.below(20);
        }
        plan.real_time.push(RealTime {
            name: "rt".into(),
            cpus: vec![0, 1],
            begin: millis(2),
            period: exponential(4_000),
            work: exponential(900),
            times: Vec::new(),
            works: Vec::new(),
        });
        plan.settings.rt_throttling = (seed % 3 == 0).then_some((millis(3), millis(20)));
        let mut simulation = Simulation::new(&plan, Vec::new()).expect("a valid plan");
        simulation
            .run()
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let outcome = simulation.outcome();
        assert!(
            outcome.meter("web").unwrap().done > 60,
            "seed {seed}: {outcome:?}"
        );
        let tasks = plan
            .workloads
            .iter()
            .map(|load| load.tasks.len() as u32)
            .sum::<u32>();
        let mut gone = vec![false; cpus as usize];
        let mut events = plan.hotplug.iter().peekable();
        for told in simulation.into_sink() {
            while let Some(event) = events.next_if(|event| event.at < told.time) {
                let left = gone.iter().filter(|gone| !**gone).count();
                if event.online || left > 1 {
                    gone[event.cpu as usize] = !event.online;
                }
            }
            if let Kind::Switch { next, .. } = told.kind
                && next.0 > 0
            {
                let (cpu, at) = (told.cpu, told.time);
                let same = plan.hotplug.iter().any(|event| event.at == at);
                assert!(
                    !gone[cpu.0 as usize] || same,
                    "seed {seed}: {next:?} on {cpu} at {at}"
                );
                let is_task = next.0 <= tasks;
                assert!(is_task || told.cpu.0 < 2, "seed {seed}: {next:?} on {cpu}");
            }
        }
    }
}

#[test]
fn what_a_class_above_takes_is_told_as_its_own_and_delays_who_runs() {
    let mut plan = Plan::new(Machine::flat(1));
    plan.duration = millis(100);
    synthetic::closed_loop(
        &mut plan,
        "loop",
        None,
        1,
        Span::Fixed(millis(1)),
        Span::Fixed(Nanos::ZERO),
    );
    plan.real_time.push(RealTime {
        name: "rt".into(),
        cpus: vec![0],
        begin: Nanos(4_500_000),
        period: Span::Fixed(millis(10)),
        work: Span::Fixed(millis(2)),
        times: Vec::new(),
        works: Vec::new(),
    });
    let outcome = run(&plan);
    assert_eq!(outcome.mechanisms.stolen_ns, 20 * MILLI);
    assert_eq!(outcome.busy_ns, 80 * MILLI);
    let times = outcome.meter("loop").unwrap().times;
    assert!(times.max_ns.abs_diff(3 * MILLI) < 50_000, "{times:?}");
    assert!(times.p50_ns.abs_diff(MILLI) < 20_000, "{times:?}");
}

/// Three tasks that work for 0.2 ms and sleep for 0.1 keep two CPUs busy: whoever waits has just run. By the kernel's rules a CPU that
/// falls idle leaves it, and takes what has waited for longer.
#[test]
fn who_has_just_run_is_left_to_its_cpu() {
    let moved = |hot_for: Nanos, micros: u64| {
        let mut plan = Plan::new(Machine::flat(2));
        plan.settings.hot_for = hot_for;
        plan.duration = millis(300);
        synthetic::closed_loop(
            &mut plan,
            "loop",
            None,
            3,
            exponential(micros),
            exponential(micros / 2),
        );
        let outcome = run(&plan);
        assert!(outcome.meter("loop").unwrap().done > 30);
        outcome.mechanisms.migrations
    };
    let cost = Nanos::from_micros(500);
    assert!(moved(Nanos::ZERO, 200) > 100);
    assert!(moved(cost, 200) < moved(Nanos::ZERO, 200) / 4);
    // Work of 5 ms: who waits has waited for longer than half a millisecond.
    assert!(moved(cost, 5_000) * 2 > moved(Nanos::ZERO, 5_000));
}
