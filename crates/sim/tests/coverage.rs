//! Whether intervals hold the truth: a load whose long-run figures are known is recorded for some seconds, over and over, and asked about from each
//! recording alone. `QUOTIENT_COVERAGE=200 cargo test --release -p quotient-sim --test coverage -- --nocapture` does it more often and prints.

use quotient_core::{BandwidthRules, Limit, Nanos};
use quotient_sim::advise::{Interval, Prediction, Subject, Sweep, Target, Work, advise, phase};
use quotient_sim::batch::Control;
use quotient_sim::replay::{Blocks, Loop, Recording};
use quotient_sim::synthetic::{self, OpenLoop};
use quotient_sim::{Machine, Plan, Random, Simulation, Span};
use quotient_trace::{Discard, JsonLines};

/// Recordings of each load. Default 20: some seconds.
const RECORDINGS: u64 = 20;
/// How long each is.
const RECORDED: Nanos = Nanos::from_secs(20);
/// What the truth is taken from.
const LONG: Nanos = Nanos::from_secs(1_000);
/// Draws for each interval.
const DRAWS: u32 = 10;

const fn millis(count: u64) -> Nanos {
    Nanos::from_millis(count)
}

fn machine(duration: Nanos) -> Plan {
    let mut plan = Plan::new(Machine::flat(2));
    plan.duration = duration;
    plan.settings.config.bandwidth = BandwidthRules::KERNEL;
    plan
}

fn shape(work: u64, gap: u64) -> OpenLoop {
    OpenLoop {
        threads: 2,
        work: Span::Exponential { mean: millis(work) },
        gap: Span::Exponential { mean: millis(gap) },
        parts: 1,
        begin: Nanos::ZERO,
    }
}

/// A hundred requests a second of 4 ms, each arrival forgetting the last.
fn memoryless(seed: u64, duration: Nanos) -> Plan {
    let mut plan = machine(duration);
    plan.seed = seed;
    let group = plan.group("app");
    synthetic::open_loop(&mut plan, "app", group, shape(4, 10));
    plan
}

/// Some 180 a second for 200 ms on average, none for 300 ms on average.
fn bursty(seed: u64, duration: Nanos) -> Plan {
    let mut plan = machine(duration);
    plan.seed = seed;
    let group = plan.group("app");
    synthetic::open_loop(&mut plan, "app", group, shape(4, 10));
    let mut random = Random::new(seed, 77);
    let (mut at, mut until) = (0, 0);
    while at < duration.0 {
        at += random.exponential(millis(5).0 + millis(5).0 / 10);
        if at > until {
            at = at.max(until) + random.exponential(millis(300).0);
            until = at + random.exponential(millis(200).0);
        }
        plan.sources[0].times.push(Nanos(at));
    }
    plan
}

fn recorded(plan: &Plan) -> Recording {
    let mut simulation = Simulation::new(plan, JsonLines::new(Vec::new())).expect("a plan");
    simulation.run().expect("a run");
    let text = simulation.into_sink().finish().expect("a vector");
    Recording::read(&mut text.as_slice()).expect("a trace")
}

/// What a limit does to a load in the long run: the part of throttled periods, and the 99th percentile of bursts as a recording has them.
fn truth(load: fn(u64, Nanos) -> Plan, limit: Limit) -> (f64, f64) {
    let long = recorded(&load(1_000_003, LONG));
    let mut plan = machine(LONG);
    let group = plan.group("app");
    plan.groups[0].limit = Some(limit);
    long.add_to(&mut plan, "app", group, Loop::Open);
    let mut simulation = Simulation::new(&plan, Discard).expect("a plan");
    simulation.run().expect("a run");
    let outcome = simulation.outcome();
    let group = &outcome.groups[1];
    let p99 = outcome.meter("app").expect("the meter").times.p99_ns;
    (
        group.nr_throttled as f64 / group.nr_periods as f64,
        p99 as f64,
    )
}

/// The recording itself, with another phase for each seed.
fn as_recorded(recording: &Recording, seed: u64) -> Plan {
    let mut plan = machine(RECORDED);
    plan.seed = seed;
    let group = plan.group("app");
    recording.add_later(&mut plan, "app", group, Loop::Open, phase(seed));
    plan
}

/// What `advise` says of a limit: with the middle of the recording itself, or that of its draws.
fn predicted(recording: &Recording, limit: Limit, is_centred: bool) -> Prediction {
    let times = recording.recorded_times();
    let blocks = Blocks::of(recording, None, times.as_ref(), DRAWS);
    let plan = |_: u32, seed: u64| {
        let mut plan = machine(RECORDED);
        plan.seed = seed;
        let group = plan.group("app");
        let (drawn, _) = blocks.draw(seed as usize - 1, recording, None);
        drawn.add_later(&mut plan, "app", group, Loop::Open, phase(seed));
        plan
    };
    let itself = |_: u32, seed: u64| as_recorded(recording, seed);
    let subject = Subject {
        plan: &plan,
        group: 0,
        meter: 0,
        work: Work::Time,
        blocks: blocks.count(),
        itself: is_centred.then_some(&itself),
    };
    let sweep = Sweep {
        cpus_permille: vec![limit.quota.0 * 1_000 / limit.period.0],
        periods: vec![limit.period],
        bursts_percent: vec![0],
        threads: vec![0],
        seeds: DRAWS,
        refine: false,
    };
    let target = Target {
        throttled_permille: 50,
        added_p99: millis(10),
        done_permille: 950,
        used_permille: 0,
    };
    let advice = advise(&subject, &sweep, target, 2, &Control::default()).expect("advice");
    advice.predictions[0].clone()
}

fn recordings() -> u64 {
    std::env::var("QUOTIENT_COVERAGE").map_or(RECORDINGS, |text| {
        text.parse().expect("a number of recordings")
    })
}

/// Asserts that so many intervals of a hundred hold the truth, of throttled periods and of the 99th percentile.
fn covers(name: &str, load: fn(u64, Nanos) -> Plan, quota: u64, bars: [u64; 2]) {
    let recordings = recordings();
    let limit = Limit::new(millis(quota), millis(100));
    let (ratio, p99) = truth(load, limit);
    let (mut ratios, mut percentiles, mut off, mut width) = (0, 0, 0.0, 0.0);
    for seed in 1..=recordings {
        let row = predicted(&recorded(&load(seed, RECORDED)), limit, true);
        for Interval { low, mid, high, .. } in [row.throttled_ratio, row.p99_ns, row.added_p99_ns] {
            assert!(low <= mid && mid <= high, "{row:?}");
        }
        let (throttled, times) = (row.throttled_ratio, row.p99_ns);
        ratios += u64::from((throttled.low..=throttled.high).contains(&ratio));
        percentiles += u64::from((times.low..=times.high).contains(&p99));
        off += (throttled.mid - ratio).abs();
        width += throttled.high - throttled.low;
    }
    let told = format!(
        "{name}, {quota} ms in 100: throttled in {:.1} % in truth, {ratios} of {recordings} intervals hold that, off by {:.1} points, {:.1} wide; p99 {:.0} ms, {percentiles} hold that",
        100.0 * ratio,
        100.0 * off / recordings as f64,
        100.0 * width / recordings as f64,
        p99 / 1e6,
    );
    println!("{told}");
    assert!(ratios * 100 >= recordings * bars[0], "{told}");
    assert!(percentiles * 100 >= recordings * bars[1], "{told}");
}

#[test]
fn intervals_of_a_memoryless_load_hold_the_truth() {
    covers("memoryless", memoryless, 60, [85, 85]);
}

#[test]
fn intervals_of_a_bursty_load_hold_the_truth() {
    // The longest spells make its 99th percentile, and a short recording has none of them.
    covers("bursty", bursty, 70, [85, 70]);
}

/// The part of throttled periods where the same arrivals come again under a limit, at phases that no prediction knew.
fn came_again(recording: &Recording, limit: Limit) -> f64 {
    let parts = (1_001..=1_020).map(|seed| {
        let mut plan = as_recorded(recording, seed);
        plan.groups[0].limit = Some(limit);
        for time in plan.sources.iter_mut().flat_map(|source| &mut source.times) {
            time.0 += phase(seed).0;
        }
        let mut simulation = Simulation::new(&plan, Discard).expect("a plan");
        simulation.run().expect("a run");
        let group = &simulation.outcome().groups[1];
        group.nr_throttled as f64 / group.nr_periods as f64
    });
    parts.sum::<f64>() / 20.0
}

/// Spells of a bursty load go over the joints of blocks: what piled up over them is apart in a draw.
#[test]
fn the_middle_is_that_of_the_recording_and_not_of_its_draws() {
    let limit = Limit::new(millis(50), millis(100));
    // Each costs three predictions.
    let recordings = recordings() / 2;
    let (mut off, mut off_by_draws) = (0.0, 0.0);
    for seed in 1..=recordings {
        let recording = recorded(&bursty(seed, RECORDED));
        let truth = came_again(&recording, limit);
        let error = |is_centred| {
            let row = predicted(&recording, limit, is_centred);
            (row.throttled_ratio.mid - truth).abs()
        };
        off += error(true);
        off_by_draws += error(false);
    }
    let points = |sum: f64| 100.0 * sum / recordings as f64;
    let told = format!(
        "the same arrivals again: off by {:.2} points, the middles of draws by {:.2}",
        points(off),
        points(off_by_draws)
    );
    println!("{told}");
    assert!(off * 2.0 < off_by_draws, "{told}");
}
