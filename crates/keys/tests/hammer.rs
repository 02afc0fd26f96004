//! A key is flipped as fast as possible while another thread evaluates sites that straddle cache lines and pages.

mod common;
#[path = "common/hammer.rs"]
mod hammer;

use std::time::{Duration, Instant};

use common::in_mode;
use hammer::{HAMMERED, Hammer, evaluate, expected};
use quotient_keys::Mode;

/// Checked evaluations a mode; the `hammer` example runs 10^9 and more.
const CHECKED_MIN: u64 = 200_000;

/// Gives up on a machine that has no second processor to spare.
const TIME_MAX: Duration = Duration::from_secs(5);

fn hammer_in(mode: Mode) {
    let Some(_guard) = in_mode(mode) else { return };
    assert_eq!(evaluate(), expected(false));
    let hammer = Hammer::default();
    let flips_before = HAMMERED.status().flips;
    let started = Instant::now();
    let flips = std::thread::scope(|scope| {
        scope.spawn(|| hammer.read());
        hammer.flip_while(200, |checked| {
            checked < CHECKED_MIN && started.elapsed() < TIME_MAX
        })
    });
    assert_eq!(
        hammer.wrong(),
        0,
        "{mode}: of {} checked evaluations",
        hammer.checked()
    );
    assert!(
        Hammer::is_hammered(flips, flips_before),
        "{mode}: nothing was flipped"
    );
    assert!(hammer.checked() > 0, "{mode}: nothing was checked");
    assert_eq!(
        HAMMERED.status().foreign,
        0,
        "{mode}: a site was left behind"
    );
    assert_eq!(evaluate(), expected(false));
}

#[test]
fn a_run_without_flips_does_not_count() {
    assert!(!Hammer::is_hammered(0, HAMMERED.status().flips));
    // More than there were.
    assert!(!Hammer::is_hammered(u64::MAX, 0));
}

#[test]
fn no_wrong_outcome_in_any_mode() {
    for mode in Mode::ALL {
        hammer_in(mode);
    }
}
