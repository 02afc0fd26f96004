//! The engine: exact times, the same bytes for the same seed, and what its workloads are supposed to do.

use quotient_core::{Nanos, Policy, Weight};
use quotient_sim::synthetic::{self, Build, KeyFlips, OpenLoop};
use quotient_sim::{
    Action, Change, ClockRead, LoadAverage, Machine, Outcome, Plan, Program, Simulation, Span,
    Step, TaskPlan, Ticks, WorkloadPlan,
};
use quotient_trace::{Discard, Event, Kind};

const MILLI: u64 = 1_000_000;

fn run(plan: &Plan) -> Outcome {
    let mut simulation = Simulation::new(plan, Discard).expect("a valid plan");
    simulation.run().expect("a run that goes on");
    simulation.check().expect("invariants");
    simulation.outcome()
}

fn plan(shape: &str, seconds: u64) -> Plan {
    let mut plan = Plan::new(Machine::parse(shape).expect("a machine"));
    plan.duration = Nanos::from_secs(seconds);
    plan.settings.check = true;
    plan
}

fn fixed(micros: u64) -> Span {
    Span::Fixed(Nanos::from_micros(micros))
}

#[test]
fn weights_are_kept_and_no_time_is_lost() {
    let mut plan = plan("2", 10);
    for (path, weight) in [("a/b", 50), ("a/c", 100), ("a/d", 150)] {
        let group = plan.group(path);
        plan.groups.last_mut().unwrap().weight = Weight::new(weight).unwrap();
        synthetic::spinners(&mut plan, path, group, 2);
    }
    let outcome = run(&plan);
    assert_eq!(outcome.busy_ns, 20_000 * MILLI);
    let usage: Vec<u64> = ["a/b", "a/c", "a/d"]
        .map(|path| outcome.group(path).unwrap().usage_ns / MILLI)
        .to_vec();
    for (used, expected) in usage.iter().zip([3_333, 6_666, 10_000]) {
        assert!(used.abs_diff(expected) < 40, "{usage:?}");
    }
}

#[test]
fn a_lone_task_is_timed_to_the_nanosecond() {
    let mut plan = plan("1", 1);
    synthetic::closed_loop(&mut plan, "loop", None, 1, fixed(137), fixed(63));
    let outcome = run(&plan);
    let meter = outcome.meter("loop").unwrap();
    assert_eq!(meter.done, 5_000);
    assert_eq!(outcome.busy_ns, 5_000 * 137_000);
    assert_eq!(meter.last_ns, 4_999 * 200_000 + 137_000);
}

#[test]
fn costs_are_paid_by_those_who_run() {
    let mut plan = plan("1", 1);
    plan.costs.switch = Nanos(1_000);
    plan.costs.syscall = Nanos(500);
    synthetic::closed_loop(&mut plan, "loop", None, 1, fixed(100), fixed(98));
    let outcome = run(&plan);
    // Each round: 100 us of work, a switch, a call, and a sleep of 98 us.
    let rounds = 1_000_000_000_u64.div_ceil(199_500);
    assert_eq!(outcome.mechanisms.switch_ns, rounds * 1_000);
    assert_eq!(outcome.meter("loop").unwrap().done, rounds);
    // A response counts from the wake-up: the switch and the call are part of it. Figures are within 1 %.
    let longest = outcome.meter("loop").unwrap().times.max_ns;
    assert!(longest.abs_diff(101_500) <= 1_015, "{longest}");
}

#[test]
fn an_idle_cpu_pulls_what_waits_elsewhere() {
    let mut plan = plan("2x2", 1);
    synthetic::once(&mut plan, "jobs", None, 8, fixed(100_000));
    for task in &mut plan.workloads[0].tasks {
        task.cpu = Some(0);
    }
    let outcome = run(&plan);
    // 800 ms of work on four CPUs; all of it came to one of them.
    assert_eq!(outcome.busy_ns, 800 * MILLI);
    assert!(outcome.elapsed_ns < 220 * MILLI, "{}", outcome.elapsed_ns);
    assert!(outcome.mechanisms.migrations >= 4);
}

#[test]
fn hyperthreads_share_a_core() {
    let mut plan = plan("1x1x2", 10);
    plan.machine.smt_speed = 50;
    synthetic::once(&mut plan, "both", None, 2, fixed(1_000_000));
    assert_eq!(run(&plan).elapsed_ns, 2_000 * MILLI);
    plan.workloads[0].tasks.pop();
    assert_eq!(run(&plan).elapsed_ns, 1_000 * MILLI);
    // Half of the time alone: one second of work in 1.5 seconds beside one of half a second.
    let short = plan.program(Program::new([Step::Run(fixed(500_000))]));
    let second = TaskPlan {
        program: short,
        ..plan.workloads[0].tasks[0]
    };
    plan.workloads[0].tasks.push(second);
    assert_eq!(run(&plan).elapsed_ns, 1_500 * MILLI);
}

#[test]
fn a_pipe_test_goes_its_rounds() {
    for policy in [Policy::Eevdf, Policy::Cfs] {
        let mut plan = plan("1", 10);
        plan.settings.config.policy = policy;
        synthetic::pipe_test(&mut plan, "pipe", None, 10_000, fixed(3), Some(0));
        let outcome = run(&plan);
        assert_eq!(outcome.meter("pipe").unwrap().done, 10_000);
        assert_eq!(outcome.elapsed_ns, 60 * MILLI);
        // The first token is there before the second task waits for it.
        assert_eq!(outcome.mechanisms.wakeups, 19_999);
    }
}

#[test]
fn messages_and_builds_come_to_an_end() {
    let mut plan = plan("2x4", 100);
    plan.settings.check = false;
    synthetic::messaging(&mut plan, "messages", None, 2, 5, 20, fixed(2));
    let shape = Build {
        jobs: 50,
        parallel: 10,
        work: Span::Exponential {
            mean: Nanos::from_millis(20),
        },
        kernel: fixed(1_000),
        wait: fixed(2_000),
    };
    synthetic::build(&mut plan, "build", None, shape);
    let outcome = run(&plan);
    let (messages, build) = (&outcome.workloads[0], &outcome.workloads[1]);
    assert_eq!((messages.tasks, messages.ended), (20, 20));
    assert_eq!(messages.usage_ns, 2 * 2 * 25 * 20 * 2_000);
    assert_eq!(
        (build.ended, outcome.mechanisms.kernel_ns),
        (50, 50 * MILLI)
    );
    assert!(outcome.elapsed_ns < 100_000 * MILLI);
}

#[test]
fn requests_in_parts_are_done_with_their_last_part() {
    let mut plan = plan("4", 1);
    let shape = OpenLoop {
        threads: 4,
        work: fixed(5_000),
        gap: fixed(100_000),
        parts: 4,
        begin: Nanos::ZERO,
    };
    synthetic::open_loop(&mut plan, "web", None, shape);
    let outcome = run(&plan);
    let web = outcome.meter("web").unwrap();
    assert_eq!(web.done, 10);
    assert!(web.times.max_ns.abs_diff(5 * MILLI) < MILLI / 10, "{web:?}");
    assert_eq!(outcome.busy_ns, 10 * 4 * 5 * MILLI);
}

#[test]
fn reading_clocks_scales_with_the_way_they_are_read() {
    let time = |how, threads| {
        let mut plan = plan("4x8", 1_000);
        plan.settings.check = false;
        plan.costs.syscall = Nanos(100);
        plan.costs.lock = Nanos(100);
        plan.costs.line_near = Nanos(100);
        plan.costs.line_far = Nanos(300);
        plan.costs.clock_read = Nanos(10);
        plan.costs.clock_read_running = Nanos(40);
        synthetic::clock_readers(&mut plan, "readers", None, threads, 20_000, how);
        run(&plan).elapsed_ns
    };
    let (old, new) = (
        time(ClockRead::EveryThread, 30),
        time(ClockRead::OwnThread, 30),
    );
    assert!(old > 5 * new, "{old} {new}");
    assert!(time(ClockRead::OwnThread, 2) > 2 * new);
}

#[test]
fn batched_flips_interrupt_less() {
    let flips = |batched| {
        let mut plan = plan("2x12", 2);
        plan.settings.check = false;
        plan.costs.ipi_send = Nanos(200);
        plan.costs.ipi_receive = Nanos(2_000);
        let shape = KeyFlips {
            sites: 56,
            batched,
            pause: Nanos::from_millis(500),
            write: Nanos(10),
        };
        synthetic::key_flips(&mut plan, "flips", None, shape);
        let outcome = run(&plan);
        (
            outcome.mechanisms.synchronizations / outcome.meter("flips").unwrap().done,
            outcome.meter("flips").unwrap().times.p50_ns,
        )
    };
    let (single, batched) = (flips(false), flips(true));
    assert_eq!((single.0, batched.0), (168, 3));
    assert!(single.1 > 40 * batched.1);
}

#[test]
fn a_change_of_weight_takes_effect() {
    let mut plan = plan("1", 2);
    let (one, two) = (plan.group("one"), plan.group("two"));
    synthetic::spinners(&mut plan, "one", one, 1);
    synthetic::spinners(&mut plan, "two", two, 1);
    plan.changes.push(Change {
        at: Nanos::from_secs(1),
        group: 0,
        action: Action::Weight(Weight::new(300).unwrap()),
    });
    let used = run(&plan).group("one").unwrap().usage_ns / MILLI;
    assert!(used.abs_diff(500 + 750) < 10, "{used}");
}

#[test]
fn a_loop_without_time_is_reported() {
    let mut plan = plan("1", 1);
    plan.settings.check = false;
    let program = plan.program(Program::forever([Step::Stamp]));
    plan.workloads.push(WorkloadPlan {
        name: "mad".into(),
        tasks: vec![TaskPlan {
            group: None,
            program,
            weight: Weight::DEFAULT,
            slice: None,
            begin: Nanos::ZERO,
            cpu: None,
            cpuset: None,
        }],
    });
    let mut simulation = Simulation::new(&plan, Discard).unwrap();
    let error = simulation.run().unwrap_err().to_string();
    assert!(
        error.contains("time stands still") && error.contains("mad"),
        "{error}"
    );
}

fn busy_mix(seed: u64) -> Plan {
    let mut plan = plan("2x2", 1);
    plan.seed = seed;
    plan.costs.noise_every = Nanos::from_millis(3);
    plan.costs.noise_length = Nanos::from_micros(20);
    plan.costs.switch = Nanos(1_500);
    let (web, batch) = (plan.group("web"), plan.group("batch/deep"));
    let shape = OpenLoop {
        threads: 6,
        work: Span::Exponential {
            mean: Nanos::from_micros(400),
        },
        gap: Span::Exponential {
            mean: Nanos::from_micros(500),
        },
        parts: 1,
        begin: Nanos::ZERO,
    };
    synthetic::open_loop(&mut plan, "web", web, shape);
    synthetic::spinners(&mut plan, "batch", batch, 5);
    plan
}

fn trace(plan: &Plan) -> Vec<Event> {
    let mut simulation = Simulation::new(plan, Vec::new()).unwrap();
    simulation.run().unwrap();
    simulation.into_sink()
}

/// FNV-1a over the events' text: any change of any event changes it.
fn digest(events: &[Event]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for event in events {
        for byte in format!("{event:?}\n").bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let first = trace(&busy_mix(1));
    assert_eq!(first, trace(&busy_mix(1)));
    assert_ne!(first, trace(&busy_mix(2)));
    let mut stepwise = Simulation::new(&busy_mix(1), Vec::new()).unwrap();
    for millis in 1..=1_000 {
        stepwise.advance(Nanos::from_millis(millis)).unwrap();
    }
    // Charging in between is visible to nobody.
    assert_eq!(stepwise.into_sink().len(), first.len());
}

#[test]
fn a_trace_is_consistent() {
    let events = trace(&busy_mix(3));
    let mut running = [quotient_trace::TaskId::IDLE; 4];
    let mut last = Nanos::ZERO;
    for event in &events {
        assert!(event.time >= last);
        last = event.time;
        if let Kind::Switch { prev, next, .. } = event.kind {
            assert_eq!(running[event.cpu.index()], prev, "{event:?}");
            assert!(next.is_idle() || !running.contains(&next), "{event:?}");
            running[event.cpu.index()] = next;
        }
    }
}

#[test]
fn nothing_depends_on_ticks_that_are_left_out() {
    let mut lazy = plan("4", 2);
    synthetic::spinners(&mut lazy, "few", None, 3);
    let mut eager = lazy.clone();
    eager.machine.ticks = Ticks::Busy;
    let (lazy, eager) = (run(&lazy), run(&eager));
    assert_eq!(lazy.workloads, eager.workloads);
    assert_eq!(lazy.mechanisms.ticks, 0);
    assert!(eager.mechanisms.ticks >= 3 * 499);
}

#[test]
fn a_run_can_be_sent_to_another_thread() {
    let mut simulation = Simulation::new(&busy_mix(1), Discard).unwrap();
    let handle = std::thread::spawn(move || {
        simulation.run().unwrap();
        simulation.outcome()
    });
    assert_eq!(handle.join().unwrap(), run(&busy_mix(1)));
}

#[test]
fn digests_are_stable() {
    // Nobody competes here, so only a change of the engine or of its randomness changes the figure: the same on every
    // machine and at every optimization level. If you meant it, put the new one here.
    let mut plan = plan("2x4", 1);
    plan.costs.noise_every = Nanos::from_millis(3);
    plan.costs.noise_length = Nanos::from_micros(20);
    let shape = OpenLoop {
        threads: 3,
        work: Span::Exponential {
            mean: Nanos::from_micros(400),
        },
        gap: Span::Uniform {
            low: Nanos::from_micros(100),
            high: Nanos::from_micros(900),
        },
        parts: 1,
        begin: Nanos::ZERO,
    };
    synthetic::open_loop(&mut plan, "web", None, shape);
    assert_eq!(
        format!("{:016x}", digest(&trace(&plan))),
        "25915b9ce1ef4cbb"
    );
}

#[test]
fn tasks_run_on_their_cpus_only_and_no_cpu_idles_that_could_run_one() {
    let mut plan = plan("2x4", 2);
    let (bound, free) = (plan.group("bound"), plan.group("free"));
    synthetic::spinners(&mut plan, "hog", bound, 6);
    let (work, think) = (Nanos::from_micros(300).into(), Nanos::from_millis(1).into());
    synthetic::closed_loop(&mut plan, "web", bound, 4, work, think);
    synthetic::spinners(&mut plan, "rest", free, 7);
    let set = plan.cpuset(vec![1, 6, 0]);
    for load in &mut plan.workloads[..2] {
        for task in &mut load.tasks {
            task.cpuset = Some(set);
        }
    }
    let events = trace(&plan);
    // Tasks are numbered from 1; the first ten are bound.
    for event in &events {
        if let Kind::Switch { next, .. } = event.kind
            && (1..=10).contains(&next.0)
        {
            assert!([0, 1, 6].contains(&event.cpu.0), "{event:?}");
        }
    }
    let outcome = run(&plan);
    assert_eq!(outcome.busy_ns, 16_000_000_000);
    // Equal groups, of which the bound one has three CPUs, where nobody else wants to be.
    let used = outcome.group("bound").unwrap().usage_ns;
    assert!(used >= 5_500_000_000, "{used}");
    plan.workloads[0].tasks[0].cpu = Some(7);
    let error = Simulation::new(&plan, Discard).err().unwrap();
    assert!(error.to_string().contains("may not run on"), "{error}");
}

#[test]
fn idle_cpus_that_ask_in_vain_starve_nobody() {
    // Eight equal tasks on one CPU, beside three CPUs that have nothing to run and look for some at every tick.
    let mut plan = plan("4", 2);
    let group = plan.group("bound");
    synthetic::spinners(&mut plan, "hog", group, 8);
    let set = plan.cpuset(vec![0]);
    for task in &mut plan.workloads[0].tasks {
        task.cpuset = Some(set);
    }
    let outcome = run(&plan);
    let used = outcome.workload("hog").unwrap();
    // A turn is a tick of 4 ms.
    let least = used.usage_min_ns / MILLI;
    let most = used.usage_max_ns / MILLI;
    assert!(least >= 240 && most <= 260, "{least} to {most} ms of 250");
}

#[test]
fn a_woken_task_stays_with_its_cache_where_a_node_has_several() {
    let first_target = |caches: u32| {
        let mut plan = plan("4", 1);
        plan.machine.caches = caches;
        plan.settings.wake_within_node = true;
        for cpu in 0..2 {
            let set = plan.cpuset(vec![cpu]);
            synthetic::spinners(&mut plan, "hog", None, 1);
            let load = plan.workloads.len() - 1;
            plan.workloads[load].tasks[0].cpuset = Some(set);
            plan.workloads[load].tasks[0].cpu = Some(cpu);
        }
        synthetic::closed_loop(&mut plan, "task", None, 1, fixed(100), fixed(900));
        plan.workloads[2].tasks[0].cpu = Some(0);
        plan.workloads[2].tasks[0].begin = Nanos(1_000);
        let log = quotient_trace::JsonLines::new(Vec::new());
        let mut simulation = Simulation::new(&plan, log).unwrap();
        simulation.run().unwrap();
        let text = String::from_utf8(simulation.into_sink().finish().unwrap()).unwrap();
        let line = text.lines().find(|line| line.contains("wakeup")).unwrap();
        let target = line.split("\"target\":").nth(1).unwrap();
        target.trim_start().chars().next().unwrap()
    };
    assert_eq!(first_target(1), '2');
    assert!(['0', '1'].contains(&first_target(2)));
}

/// How often the only group's average was added to its sum: one hog in it on one CPU, and beside it, if `beside`, tasks
/// of no group that come and go.
fn additions(mode: LoadAverage, beside: bool) -> u64 {
    let mut plan = plan("1", 5);
    plan.machine.ticks = Ticks::Busy;
    plan.machine.hz = 1000;
    plan.settings.load_average = mode;
    let group = plan.group("steady");
    synthetic::spinners(&mut plan, "hog", group, 1);
    if beside {
        synthetic::closed_loop(&mut plan, "guests", None, 2, fixed(3_000), fixed(40_000));
    }
    run(&plan).mechanisms.average_updates
}

#[test]
fn a_steady_group_is_not_published_for_what_others_do() {
    let alone = additions(LoadAverage::RateLimited, false);
    assert!(alone > 0);
    let beside = additions(LoadAverage::RateLimited, true);
    assert!(beside < 4 * alone, "{beside} beside guests, {alone} alone");
}

#[test]
fn a_large_change_does_not_wait_for_the_turn_of_its_node() {
    // A group that comes and goes changes by more than an eighth between two turns, which are eight
    // milliseconds apart.
    let updates = |work, think| {
        let mut plan = plan("8x1", 5);
        plan.machine.ticks = Ticks::Busy;
        plan.machine.hz = 1000;
        plan.settings.load_average = LoadAverage::Staggered;
        let group = plan.group("g");
        synthetic::closed_loop(&mut plan, "g", group, 8, fixed(work), fixed(think));
        let outcome = run(&plan);
        outcome.mechanisms.average_updates as f64 / outcome.mechanisms.ticks as f64
    };
    let (steady, changing) = (updates(1_000_000, 1), updates(10_000, 200_000));
    assert!((0.12..0.17).contains(&steady), "{steady}");
    assert!(changing > 0.5, "{changing}");
}
