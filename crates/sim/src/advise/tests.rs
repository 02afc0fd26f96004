//! Limits for a service that is known.

use super::*;
use crate::synthetic::{self, OpenLoop};
use crate::{Machine, Span};
use quotient_core::BandwidthRules;

fn service(threads: u32, seed: u64) -> Plan {
    let mut plan = Plan::new(Machine::flat(2));
    plan.seed = seed;
    plan.duration = Nanos::from_secs(10);
    plan.settings.config.bandwidth = BandwidthRules::KERNEL;
    let group = plan.group("app");
    let shape = OpenLoop {
        threads: threads.max(2),
        work: Span::Fixed(Nanos::from_millis(2)),
        gap: Span::Exponential {
            mean: Nanos::from_millis(8),
        },
        parts: 1,
        begin: Nanos::ZERO,
    };
    synthetic::open_loop(&mut plan, "app", group, shape);
    plan
}

/// The service on its own, and what counts as done.
fn subject(work: Work) -> Subject<'static> {
    Subject {
        plan: &service,
        group: 0,
        meter: 0,
        work,
        blocks: 0,
        itself: None,
    }
}

/// At most so many thousandths throttled and that much more at p99, with 95 % of the work done.
fn target(throttled_permille: u64, added_p99: Nanos) -> Target {
    Target {
        throttled_permille,
        added_p99,
        done_permille: 950,
        used_permille: 0,
    }
}

/// These shares in periods of 100 ms, without burst, each with so many seeds, and nothing between them.
fn tried(cpus_permille: &[u64], seeds: u32) -> Sweep {
    Sweep {
        cpus_permille: cpus_permille.to_vec(),
        periods: vec![Nanos::from_millis(100)],
        bursts_percent: vec![0],
        seeds,
        refine: false,
        ..Sweep::around(250)
    }
}

#[test]
fn more_quota_means_less_throttling_and_the_advice_is_harmless() {
    let subject = subject(Work::Laps);
    let sweep = Sweep {
        seeds: 3,
        refine: false,
        ..Sweep::around(250)
    };
    let target = target(50, Nanos::from_millis(5));
    let control = Control::default();
    let advice = advise(&subject, &sweep, target, 2, &control).unwrap();
    assert_eq!(advice.predictions.len(), 24);
    assert!(advice.free_usage_permille.abs_diff(250) < 30, "{advice:?}");
    let combination = |row: &Prediction| (row.period_ns, row.burst_ns > 0);
    for curve in advice
        .predictions
        .chunk_by(|one, other| combination(one) == combination(other))
    {
        assert!(curve[0].throttled_ratio.mid > 0.3, "{curve:?}");
        assert!(curve[curve.len() - 1].throttled_ratio.mid <= curve[0].throttled_ratio.mid);
    }
    let best = &advice.predictions[advice.recommended.unwrap()];
    assert!(best.is_harmless && best.throttled_ratio.high <= 0.05);
    // The same on one thread: results do not depend on who computes them.
    let again = super::advise(&subject, &sweep, target, 1, &control).unwrap();
    assert_eq!(advice, again);
}

#[test]
fn a_limit_under_which_nothing_is_done_is_not_harmless() {
    // Who has no answer is no part of a percentile: nothing is added at p99 where nothing ends.
    let target = target(1000, Nanos::from_secs(100));
    let sweep = Sweep {
        cpus_permille: vec![20],
        refine: false,
        ..Sweep::around(250)
    };
    let subject = subject(Work::Time);
    let advice = advise(&subject, &sweep, target, 2, &Control::default()).unwrap();
    assert!(advice.predictions.iter().all(|row| !row.is_harmless));
    assert_eq!(advice.recommended, None);
}

#[test]
fn what_is_done_is_work_and_not_bursts() {
    // A hog beside short requests: under half of a CPU nearly all requests are served, and half of the work is done.
    let plan = |_: u32, seed: u64| {
        let mut plan = Plan::new(Machine::flat(2));
        plan.seed = seed;
        plan.duration = Nanos::from_secs(5);
        let group = plan.group("app");
        let shape = OpenLoop {
            threads: 2,
            work: Span::Fixed(Nanos::from_micros(200)),
            gap: Span::Fixed(Nanos::from_millis(20)),
            parts: 1,
            begin: Nanos::ZERO,
        };
        synthetic::open_loop(&mut plan, "app", group, shape);
        synthetic::spinners(&mut plan, "batch", group, 1);
        plan
    };
    let sweep = tried(&[500], 2);
    let done = |work: Work| {
        let subject = Subject {
            plan: &plan,
            ..subject(work)
        };
        let target = target(50, Nanos::from_millis(5));
        let advice = advise(&subject, &sweep, target, 2, &Control::default()).unwrap();
        advice.predictions[0].done_ratio.mid
    };
    assert!((done(Work::Time) - 0.5).abs() < 0.03);
    assert!(done(Work::Laps) > 0.9);
}

#[test]
fn equivalent_inputs_get_the_same_advice_within_a_tenth() {
    // The same service, its arrivals drawn anew each time.
    let shares: Vec<f64> = (0..3_u64)
        .map(|input| {
            let plan = |threads: u32, seed: u64| Plan {
                duration: Nanos::from_secs(10),
                ..service(threads, input * 1000 + seed)
            };
            let subject = Subject {
                plan: &plan,
                ..subject(Work::Time)
            };
            let target = target(50, Nanos::from_secs(10));
            let sweep = Sweep {
                periods: vec![Nanos::from_millis(100)],
                bursts_percent: vec![0],
                cpus_permille: vec![250, 500, 1_000],
                seeds: 6,
                ..Sweep::around(250)
            };
            let advice = advise(&subject, &sweep, target, 2, &Control::default()).unwrap();
            let best = &advice.predictions[advice.recommended.unwrap()];
            best.quota_ns as f64 / best.period_ns as f64
        })
        .collect();
    let (least, most) = shares
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), share| {
            (least.min(*share), most.max(*share))
        });
    assert!(most <= least * 1.10, "{shares:?}");
}

#[test]
fn what_piles_up_is_called_so() {
    let subject = subject(Work::Time);
    let sweep = tried(&[150, 1_000], 2);
    let target = target(50, Nanos::from_millis(5));
    let advice = advise(&subject, &sweep, target, 2, &Control::default()).unwrap();
    let saturated: Vec<bool> = advice
        .predictions
        .iter()
        .map(|row| row.is_saturated)
        .collect();
    assert_eq!(saturated, [true, false], "{advice:?}");
}

#[test]
fn what_comes_at_the_end_does_not_pile_up() {
    // A second of 105 requests of 8 ms behind two of 20 such: 0.25 CPUs are wanted and 0.4 given, but a little is left over.
    let plan = |_: u32, seed: u64| {
        let mut plan = Plan::new(Machine::flat(2));
        plan.seed = seed;
        plan.duration = Nanos::from_secs(4);
        plan.settings.config.bandwidth = BandwidthRules::KERNEL;
        let group = plan.group("app");
        let shape = OpenLoop {
            threads: 2,
            work: Span::Fixed(Nanos::from_millis(8)),
            gap: Span::Fixed(Nanos::from_millis(10)),
            parts: 1,
            begin: Nanos::ZERO,
        };
        synthetic::open_loop(&mut plan, "app", group, shape);
        let early = (0..20).map(|number| Nanos::from_millis(100 * number));
        let late = (0..105).map(|number| Nanos::from_millis(2_000 + 10 * number));
        plan.sources[0].times = early.chain(late).collect();
        plan
    };
    let subject = Subject {
        plan: &plan,
        ..subject(Work::Time)
    };
    let sweep = tried(&[200, 400], 2);
    let target = target(50, Nanos::from_millis(5));
    let advice = advise(&subject, &sweep, target, 2, &Control::default()).unwrap();
    let rows = &advice.predictions;
    assert!(rows[1].done_ratio.mid < 0.98, "{rows:?}");
    let saturated: Vec<bool> = rows.iter().map(|row| row.is_saturated).collect();
    assert_eq!(saturated, [true, false], "{rows:?}");
}

#[test]
fn middles_are_those_of_the_recording_itself_and_intervals_hold_them() {
    // Draws of which the recording is no good example, on either side.
    let rare = |_: u32, seed: u64| {
        let mut plan = service(2, seed);
        plan.duration = Nanos::from_secs(3);
        for source in &mut plan.sources {
            source.gap = Span::Fixed(Nanos::from_millis(100));
        }
        plan
    };
    let dense = |_: u32, seed: u64| Plan {
        duration: Nanos::from_secs(3),
        ..service(2, seed)
    };
    let target = target(50, Nanos::from_millis(5));
    let sweep = tried(&[150, 300, 1_000], 4);
    let answer =
        |subject: Subject<'_>| advise(&subject, &sweep, target, 2, &Control::default()).unwrap();
    let of = |plan| Subject {
        plan,
        ..subject(Work::Time)
    };
    let both: [&(dyn Fn(u32, u64) -> Plan + Sync); 2] = [&rare, &dense];
    for [draws, itself] in [both, [both[1], both[0]]] {
        let alone = answer(of(itself));
        let uncentred = Subject {
            blocks: 20,
            ..of(draws)
        };
        let drawn = answer(uncentred);
        let centred = answer(Subject {
            itself: Some(itself),
            ..uncentred
        });
        assert_eq!(centred.free_p99_ns, alone.free_p99_ns);
        assert_eq!(centred.free_usage_permille, alone.free_usage_permille);
        let rows = centred.predictions.iter().zip(&alone.predictions);
        for ((row, own), drawn) in rows.zip(&drawn.predictions) {
            let figures = |row: &Prediction| {
                [
                    row.throttled_ratio,
                    row.p50_ns,
                    row.p99_ns,
                    row.added_p50_ns,
                    row.added_p99_ns,
                    row.done_ratio,
                ]
            };
            for (figure, own) in figures(row).iter().zip(figures(own)) {
                assert_eq!(figure.mid.to_bits(), own.mid.to_bits(), "{row:?}");
                assert!(
                    figure.low <= figure.least && figure.least <= figure.mid,
                    "{row:?}"
                );
                assert!(
                    figure.mid <= figure.most && figure.most <= figure.high,
                    "{row:?}"
                );
            }
            assert_eq!(row.is_saturated, own.is_saturated);
            assert_eq!(row.is_harmless, own.is_harmless && drawn.is_harmless);
        }
        assert!(centred.predictions.iter().any(|row| !row.is_harmless));
        assert!(centred.recommended.is_some(), "{centred:?}");
    }
}

#[test]
fn more_than_the_machine_is_not_recommended() {
    let subject = subject(Work::Laps);
    let recommended = |permille: u64| {
        let sweep = Sweep {
            cpus_permille: vec![permille],
            seeds: 1,
            refine: false,
            ..Sweep::around(250)
        };
        let target = target(1000, Nanos::from_secs(100));
        advise(&subject, &sweep, target, 2, &Control::default())
            .unwrap()
            .recommended
    };
    assert!(recommended(1_900).is_some());
    assert_eq!(recommended(2_000), None);
}

#[test]
fn less_than_is_known_to_be_used_is_not_harmless() {
    let subject = subject(Work::Laps);
    let harmless = |used_permille: u64| {
        let sweep = Sweep {
            bursts_percent: vec![100],
            ..tried(&[500], 1)
        };
        let target = Target {
            used_permille,
            ..target(1000, Nanos::from_secs(100))
        };
        let advice = advise(&subject, &sweep, target, 2, &Control::default()).unwrap();
        advice.predictions[0].is_harmless
    };
    assert_eq!([0, 499, 500].map(harmless), [true, true, false]);
}

#[test]
fn a_batch_can_be_stopped() {
    let control = Control::default();
    control
        .stop
        .store(true, core::sync::atomic::Ordering::Relaxed);
    let stopped = run_all(3, 2, &control, &|_| service(2, 1));
    assert_eq!(stopped, Err(BatchError::Stopped));
}

/// Hazard: a row says that it never binds beside a figure of how often it did.
#[test]
fn what_gives_the_machine_and_throttles_all_the_same_is_not_said_never_to_bind() {
    let subject = subject(Work::Laps);
    let of = |period: u64| {
        let sweep = Sweep {
            periods: vec![Nanos::from_millis(period)],
            ..tried(&[2_000], 3)
        };
        let target = target(1_000, Nanos::from_secs(1));
        advise(&subject, &sweep, target, 2, &Control::default()).unwrap()
    };
    let long = of(100);
    let row = &long.predictions[0];
    assert_eq!(row.throttled_ratio.most, 0.0, "{row:?}");
    assert!(long.never_binds(row) && long.gives_the_machine(row));
    let short = of(1);
    let row = &short.predictions[0];
    assert!(row.throttled_ratio.most > 0.0, "{row:?}");
    assert!(!short.never_binds(row) && short.gives_the_machine(row));
    assert_eq!((long.recommended, short.recommended), (None, None));
}
