//! Invariant 15 over random lives: bounds, and that it does not matter how often one looks.

use proptest::prelude::*;
use quotient_core::Nanos;
use quotient_core::pelt::{QueueAverage, QueueInput, TaskAverage};

/// A stretch of time in which nothing changes, and where it is cut in the life that is looked at more often.
#[derive(Clone, Debug)]
struct Stretch {
    nanos: u64,
    runnable: bool,
    runs: bool,
    load: u64,
    cuts: Vec<u64>,
}

fn stretches() -> impl Strategy<Value = Vec<Stretch>> {
    let nanos = prop_oneof![
        1..5_000u64,
        1..3_000_000u64,
        1..90_000_000u64,
        1..5_000_000_000u64
    ];
    let cuts = prop::collection::vec(0..1_000u64, 0..12);
    let stretch = (nanos, any::<bool>(), any::<bool>(), 0..200_000u64, cuts).prop_map(
        |(nanos, runnable, runs, load, cuts)| Stretch {
            nanos,
            runnable,
            runs: runs && runnable,
            load,
            cuts,
        },
    );
    prop::collection::vec(stretch, 1..60)
}

/// Times of the cuts within a stretch that begins at `start`, its end last.
fn ends(start: u64, stretch: &Stretch) -> Vec<u64> {
    let inner = stretch
        .cuts
        .iter()
        .map(|permille| start + stretch.nanos / 1_000 * permille);
    let mut ends: Vec<u64> = inner.chain([start + stretch.nanos]).collect();
    ends.sort_unstable();
    ends
}

proptest! {
    #[test]
    fn looking_more_often_changes_an_average_by_one_at_most(stretches in stretches(), start in 0..10_000_000u64) {
        let (mut once, mut often) = (TaskAverage::new(Nanos(start)), TaskAverage::new(Nanos(start)));
        let mut now = start;
        // Time below a unit is left for the next update, which then must not be told that it ran for it.
        let ran = |runs: bool, from: Nanos, to: u64| Nanos(if runs { to.saturating_sub(from.0) } else { 0 });
        for stretch in &stretches {
            for end in ends(now, stretch) {
                often.advance(Nanos(end), stretch.runnable, ran(stretch.runs, often.updated_at(), end));
                prop_assert!(often.util() <= often.runnable() && often.runnable() <= 1024);
            }
            now += stretch.nanos;
            once.advance(Nanos(now), stretch.runnable, ran(stretch.runs, once.updated_at(), now));
            prop_assert!(once.util() <= once.runnable() && once.runnable() <= 1024);
            prop_assert!(once.util().abs_diff(often.util()) <= 1, "{} and {}", once.util(), often.util());
            prop_assert!(once.runnable().abs_diff(often.runnable()) <= 1);
        }
    }

    #[test]
    fn a_queue_is_as_loaded_however_often_one_looks(stretches in stretches()) {
        let (mut once, mut often) = (QueueAverage::new(Nanos(0)), QueueAverage::new(Nanos(0)));
        let (mut now, mut most) = (0, 0);
        for stretch in &stretches {
            let input = |ran| QueueInput { load: stretch.load, runnable: u32::from(stretch.runnable), ran };
            for end in ends(now, stretch) {
                let ran = if stretch.runs { Nanos(end - often.updated_at().0) } else { Nanos(0) };
                often.advance(Nanos(end), input(ran));
            }
            now += stretch.nanos;
            let ran = if stretch.runs { Nanos(now - once.updated_at().0) } else { Nanos(0) };
            once.advance(Nanos(now), input(ran));
            most = most.max(stretch.load);
            // Each update may round up by a unit of 47,742.
            prop_assert!(once.load().max(often.load()) <= most + most / 512);
            prop_assert!(once.util() <= 1024);
            prop_assert!(once.load().abs_diff(often.load()) <= 1 + most / 512, "{} and {}", once.load(), often.load());
            prop_assert!(once.util().abs_diff(often.util()) <= 1);
        }
    }

    #[test]
    fn any_clock_at_all_leaves_averages_within_bounds(times in prop::collection::vec(any::<u64>(), 1..50)) {
        let (mut task, mut queue) = (TaskAverage::default(), QueueAverage::default());
        for (step, time) in times.into_iter().enumerate() {
            task.advance(Nanos(time), step % 2 == 0, Nanos(time));
            let input = QueueInput { load: time >> 20, runnable: step as u32, ran: Nanos(time) };
            queue.advance(Nanos(time), input);
            prop_assert!(task.util() <= 1024 && task.runnable() <= 1024 && queue.util() <= 1024);
            task.rebase(Nanos(time / 2));
            prop_assert!(task.util() <= 1024 && task.load(88_761) <= 89_000);
        }
    }
}
