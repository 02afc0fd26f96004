//! Load averages against published figures, exactly, and against a reference that shares no arithmetic with them.

use quotient_core::Nanos;
use quotient_core::pelt::{LOAD_AVG_MAX, PERIOD, PeltClock, QueueAverage, QueueInput, TaskAverage};

fn busy_for(periods: u64) -> TaskAverage {
    let mut average = TaskAverage::new(Nanos(0));
    let now = Nanos(PERIOD.0 * periods);
    average.advance(now, true, now);
    average
}

#[test]
fn utilisation_of_an_endless_run_is_the_published_one() {
    let periods = [1, 8, 16, 32, 64, 96, 128, 160, 345];
    let found = periods.map(|periods| busy_for(periods).util());
    assert_eq!(found, [21, 162, 299, 512, 768, 896, 960, 992, 1023]);
}

#[test]
fn utilisation_fades_as_published() {
    let periods = [1, 8, 16, 32, 64, 96, 128, 320];
    let found = periods.map(|periods| {
        // As long as it takes to forget that there was a beginning.
        let start = 3_000;
        let mut average = busy_for(start);
        assert_eq!(average.util(), 1024);
        average.advance(Nanos(PERIOD.0 * (start + periods)), false, Nanos(0));
        average.util()
    });
    assert_eq!(found, [1002, 861, 724, 511, 255, 127, 63, 0]);
}

#[test]
fn ten_milliseconds_in_twenty_swing_between_the_published_bounds() {
    const HALF: u64 = 10_000_000;
    let mut average = TaskAverage::new(Nanos(0));
    let mut bounds = Vec::new();
    for half in 1..=400 {
        let busy = half % 2 == 1;
        let ran = if busy { HALF } else { 0 };
        average.advance(Nanos(half * HALF), busy, Nanos(ran));
        bounds.push(average.util());
    }
    let settled = &bounds[200..];
    let (low, high) = (settled.iter().min(), settled.iter().max());
    assert!(
        *low.unwrap() >= 458 && *high.unwrap() <= 565,
        "{low:?}..{high:?}"
    );
    assert!(
        *low.unwrap() <= 460 && *high.unwrap() >= 563,
        "{low:?}..{high:?}"
    );
}

/// y^32 = 1/2, by the definition, in floating point and one period at a time.
struct Reference {
    sum: f64,
    position: f64,
}

impl Reference {
    fn advance(&mut self, units: u64, level: f64) {
        let y = 0.5f64.powf(1.0 / 32.0);
        let mut left = units as f64;
        while left > 0.0 {
            let step = left.min(1024.0 - self.position);
            self.sum += step * level;
            self.position += step;
            left -= step;
            if self.position == 1024.0 {
                self.sum *= y;
                self.position = 0.0;
            }
        }
    }

    fn average(&self) -> f64 {
        self.sum / (LOAD_AVG_MAX as f64 - 1024.0 + self.position)
    }
}

#[test]
fn averages_follow_the_definition_through_a_long_random_life() {
    let mut reference = Reference {
        sum: 0.0,
        position: 0.0,
    };
    let mut average = QueueAverage::new(Nanos(0));
    let (mut now, mut seed) = (0u64, 1u64);
    for _ in 0..20_000 {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let units = 1 + (seed >> 33) % [3, 900, 5_000, 60_000][(seed >> 20) as usize % 4];
        let load = [0, 15, 1024, 88_761][(seed >> 60) as usize % 4];
        now += units * 1024;
        let input = QueueInput {
            load,
            runnable: 0,
            ran: Nanos(0),
        };
        assert!(average.advance(Nanos(now), input));
        reference.advance(units, load as f64);
        let (found, exact) = (average.load() as f64, reference.average());
        // LOAD_AVG_MAX itself is the rounded end of a sum, 1/1000 below the exact one.
        assert!(
            (found - exact).abs() <= 2.0 + exact / 400.0,
            "{found} for {exact} at {now}"
        );
    }
}

#[test]
fn idling_for_a_century_costs_one_step_and_leaves_nothing() {
    let mut average = QueueAverage::new(Nanos(0));
    let input = QueueInput {
        load: 1 << 40,
        runnable: 7,
        ran: Nanos(PERIOD.0 * 400),
    };
    average.advance(Nanos(PERIOD.0 * 400), input);
    assert!(average.load() > 1 << 39 && average.runnable() > 7_000 && average.util() > 1_000);
    average.advance(Nanos(3_000_000_000_000_000_000), QueueInput::default());
    assert!(average.is_idle());
}

#[test]
fn a_clock_that_goes_back_is_followed_and_changes_nothing_else() {
    let mut average = busy_for(32);
    let before = average.util();
    average.advance(Nanos(5 * PERIOD.0), true, Nanos(PERIOD.0));
    assert_eq!(average.util(), before);
    assert_eq!(average.updated_at(), Nanos(5 * PERIOD.0));
    average.advance(Nanos(6 * PERIOD.0), true, Nanos(PERIOD.0));
    assert!(average.util() > before);
}

#[test]
fn a_task_that_is_not_runnable_has_not_run() {
    let mut average = TaskAverage::new(Nanos(0));
    average.advance(Nanos(32 * PERIOD.0), false, Nanos(32 * PERIOD.0));
    assert_eq!((average.util(), average.runnable()), (0, 0));
}

#[test]
fn running_a_quarter_of_the_time_is_a_quarter_of_the_utilisation() {
    let mut average = QueueAverage::new(Nanos(0));
    for millisecond in 1..=1_000u64 {
        let input = QueueInput {
            load: 2048,
            runnable: 2,
            ran: Nanos(250_000),
        };
        average.advance(Nanos::from_millis(millisecond), input);
    }
    assert!((254..=257).contains(&average.util()), "{}", average.util());
    assert!(
        (2040..=2050).contains(&average.load()),
        "{}",
        average.load()
    );
    assert!((2040..=2050).contains(&average.runnable()));
}

#[test]
fn throttled_time_is_neither_load_nor_rest() {
    let (mut free, mut capped) = (QueueAverage::new(Nanos(0)), QueueAverage::new(Nanos(0)));
    let mut clock = PeltClock::new();
    // 5 ms of every 20 are throttled; the group always wants to run.
    for round in 0..50u64 {
        let start = Nanos::from_millis(20 * round);
        clock.resume(start);
        clock.resume(start);
        let stop = start + Nanos::from_millis(15);
        let input = QueueInput {
            load: 1024,
            runnable: 1,
            ran: Nanos::from_millis(15),
        };
        capped.advance(clock.at(stop), input);
        clock.stop(stop);
        clock.stop(stop + Nanos::from_millis(1));
        assert_eq!(clock.at(stop), clock.at(stop + Nanos::from_millis(3)));
        free.advance(Nanos::from_millis(15 * (round + 1)), input);
    }
    assert!(clock.is_stopped());
    assert_eq!(clock.at(Nanos::from_secs(9)), Nanos::from_millis(750));
    assert_eq!(capped, free);
    assert!(capped.util() >= 1023, "{}", capped.util());
}

#[test]
fn a_task_that_moves_takes_its_load_along() {
    let shares = 2048;
    let mut task = TaskAverage::new(Nanos(0));
    let (mut from, mut to) = (QueueAverage::new(Nanos(0)), QueueAverage::new(Nanos(0)));
    let now = Nanos(123_456_789);
    task.advance(now, true, Nanos(now.0 / 2));
    let input = QueueInput {
        load: u64::from(shares),
        runnable: 1,
        ran: Nanos(now.0 / 2),
    };
    from.advance(now, input);
    to.advance(now + Nanos(777_777), QueueInput::default());
    let load = from.load();
    from.detach(&task, shares);
    let util = task.util();
    task.rebase(to.updated_at());
    assert!(task.util().abs_diff(util) <= 1);
    to.attach(&task, shares);
    assert!(from.load() <= 2 && from.util() <= 1, "{from:?}");
    assert!(
        to.load().abs_diff(load) <= 4,
        "{} arrived of {load}",
        to.load()
    );
    assert!(to.util().abs_diff(util) <= 1);
}
