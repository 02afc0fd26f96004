//! What a draw keeps and what it changes.

use super::super::{Loop, Requests, Rule, Selection};
use super::*;
use crate::{Machine, Plan, Simulation, Span, synthetic};
use quotient_trace::JsonLines;

fn played(plan: &Plan) -> Recording {
    let mut simulation = Simulation::new(plan, JsonLines::new(Vec::new())).unwrap();
    simulation.run().unwrap();
    let text = simulation.into_sink().finish().unwrap();
    Recording::read(&mut text.as_slice()).unwrap()
}

/// Ten seconds: a service with arrivals that forget each other, and somebody who computes all the time beside it.
fn service() -> (Recording, Recording) {
    let mut plan = Plan::new(Machine::flat(2));
    plan.duration = Nanos::from_secs(10);
    let group = plan.group("app");
    let shape = synthetic::OpenLoop {
        threads: 2,
        work: Span::Exponential {
            mean: Nanos::from_millis(2),
        },
        gap: Span::Exponential {
            mean: Nanos::from_millis(8),
        },
        parts: 1,
        begin: Nanos::ZERO,
    };
    synthetic::open_loop(&mut plan, "app", group, shape);
    synthetic::spinners(&mut plan, "hog", None, 1);
    let selection = Selection {
        groups: vec!["app".into()],
        ..Selection::default()
    };
    played(&plan).split(&selection)
}

fn bursts(recording: &Recording) -> Vec<Burst> {
    let mut bursts: Vec<Burst> = recording
        .tasks
        .iter()
        .flat_map(|demand| demand.bursts.iter().copied())
        .collect();
    bursts.sort_by_key(|burst| (burst.at, burst.id));
    bursts
}

#[test]
fn draws_are_of_the_same_kind_and_all_together_the_same() {
    let (own, beside) = service();
    let blocks = Blocks::of(&own, Some(&beside), own.recorded_times().as_ref(), 10);
    assert!((8..=100).contains(&blocks.count()), "{}", blocks.count());
    let works: Vec<u64> = (0..10)
        .map(|draw| {
            let (drawn, rest) = blocks.draw(draw, &own, Some(&beside));
            let rest = rest.unwrap();
            // Whoever computes all the time does so in any order of blocks.
            let hog = rest.recorded.0.abs_diff(beside.recorded.0);
            assert!(
                hog * 50 < beside.recorded.0,
                "{hog} of {}",
                beside.recorded.0
            );
            assert_eq!((drawn.length, drawn.cpus), (own.length, own.cpus));
            drawn.recorded.0
        })
        .collect();
    let mean = works.iter().sum::<u64>() / 10;
    assert!(mean.abs_diff(own.recorded.0) * 1_000 < mean, "{works:?}");
    let spread = works.iter().max().unwrap() - works.iter().min().unwrap();
    assert!(spread * 100 > mean * 3, "{works:?}");
    // The same draws each time, and other ones of others.
    let again = Blocks::of(&own, Some(&beside), own.recorded_times().as_ref(), 10);
    assert_eq!(blocks, again);
    let one = blocks.draw(3, &own, None).0;
    assert_eq!(bursts(&one), bursts(&again.draw(3, &own, None).0));
    assert_ne!(bursts(&one), bursts(&blocks.draw(4, &own, None).0));
}

#[test]
fn who_woke_whom_stays_so() {
    // A task that is woken every 10 ms wakes another one when it has computed 1 ms of 2, which computes 3 ms.
    let mut text = String::new();
    for round in 0..1_000_u64 {
        let at = |micros: u64| {
            let micros = round * 10_000 + micros;
            format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
        };
        let switch = |from: &str, state: &str, to: &str, time: u64, cpu: u64| {
            let [(from_comm, from_pid), (to_comm, to_pid)] =
                [from, to].map(|name| name.split_once('-').unwrap());
            format!(
                "{from} [00{cpu}] d..2. {}: sched_switch: prev_comm={from_comm} prev_pid={from_pid} prev_prio=120 prev_state={state} ==> next_comm={to_comm} next_pid={to_pid} next_prio=120\n",
                at(time)
            )
        };
        text += &format!(
            "<idle>-0 [000] d.h3. {}: sched_waking: comm=front pid=7 prio=120 target_cpu=000\n",
            at(0)
        );
        text += &switch("idle-0", "R", "front-7", 10, 0);
        text += &format!(
            "front-7 [000] d..3. {}: sched_waking: comm=back pid=8 prio=120 target_cpu=001\n",
            at(1_010)
        );
        text += &switch("idle-0", "R", "back-8", 1_020, 1);
        text += &switch("front-7", "S", "idle-0", 2_010, 0);
        text += &switch("back-8", "S", "idle-0", 4_020, 1);
    }
    let own = Recording::read(&mut text.as_bytes()).unwrap();
    let rule = Rule::Chains(Vec::new());
    let recorded = Requests::of(&own, None, &rule);
    assert_eq!((recorded.requests, recorded.woken), (1_000, 1_000));
    let blocks = Blocks::of(&own, None, recorded.recorded.as_ref(), 5);
    let drawn = blocks.draw(2, &own, None).0;
    let requests = Requests::of(&drawn, None, &rule);
    assert_eq!(requests.woken, requests.requests);
    assert!(requests.requests.abs_diff(1_000) <= 2 * blocks.count() as usize);
    let [once, now] = [recorded, requests].map(|requests| requests.recorded.unwrap());
    assert_eq!((once.p50_ns, once.p99_ns), (now.p50_ns, now.p99_ns));
    for burst in bursts(&drawn).iter().filter(|burst| burst.by != OUTSIDE) {
        assert_eq!((burst.offset, burst.work), (1_000_000, 3_000_000));
    }
}

#[test]
fn what_stays_away_for_long_makes_long_blocks() {
    let blocks_of = |period: u64| {
        let mut plan = Plan::new(Machine::flat(1));
        plan.duration = Nanos::from_secs(20);
        let group = plan.group("app");
        synthetic::closed_loop(
            &mut plan,
            "app",
            group,
            1,
            Nanos::from_millis(1).into(),
            Span::Exponential {
                mean: Nanos::from_millis(period),
            },
        );
        let own = played(&plan);
        Blocks::of(&own, None, own.recorded_times().as_ref(), 4)
    };
    assert!(blocks_of(5).length() < Nanos::from_millis(900));
    let seldom = blocks_of(100);
    assert!(seldom.length() >= Nanos::from_millis(1_000), "{seldom:?}");
    assert_eq!(blocks_of(900).count(), BLOCKS_MIN);
}

#[test]
fn correlated_series_have_longer_blocks() {
    let mut random = Random::new(5, 5);
    let mut noise = || random.below(2_000) as f64 - 1_000.0;
    let plain: Vec<f64> = (0..600).map(|_| noise()).collect();
    let mut last = 0.0;
    let slow: Vec<f64> = (0..600)
        .map(|_| {
            last = 0.9 * last + noise();
            last
        })
        .collect();
    assert!(places(&plain) < 6.0, "{}", places(&plain));
    assert!((12.0..120.0).contains(&places(&slow)), "{}", places(&slow));
    assert_eq!(places(&[3.0; 80]).to_bits(), 1.0_f64.to_bits());
}

#[test]
fn a_closed_loop_goes_on_as_it_did() {
    let mut plan = Plan::new(Machine::flat(2));
    plan.duration = Nanos::from_secs(10);
    let group = plan.group("app");
    let work = Span::Exponential {
        mean: Nanos::from_millis(3),
    };
    let think = Nanos::from_millis(7).into();
    synthetic::closed_loop(&mut plan, "app", group, 2, work, think);
    let own = played(&plan);
    let blocks = Blocks::of(&own, None, own.recorded_times().as_ref(), 6);
    for draw in 0..6 {
        let mut again = Plan::new(Machine::flat(2));
        again.duration = own.length;
        let (drawn, _) = blocks.draw(draw, &own, None);
        drawn.add_to(&mut again, "app", None, Loop::Closed);
        let found = played(&again).recorded.0;
        assert!(
            found.abs_diff(own.recorded.0) * 20 < own.recorded.0,
            "{found} {:?}",
            own.recorded
        );
    }
}
