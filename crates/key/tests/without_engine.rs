//! Keys in a program that has no engine: everything but patching.

#![forbid(unsafe_code)]

use std::time::Duration;

use quotient_key::{
    FlipError, Mode, SoftReason, find, keys, static_branch, static_branch_likely,
    static_branch_unlikely, static_key,
};

static_key! {
    /// Starts off.
    static OFF = false;
    /// Starts on.
    static ON = true;
    /// Held by many threads.
    static HELD = false, as "library.held";
    /// Counted by many threads.
    static COUNTED = [false; 2];
}

#[test]
fn a_flip_without_an_engine_is_still_a_flip() {
    assert!(!static_branch_unlikely!(OFF) && static_branch_likely!(ON) && static_branch!(ON));
    let receipt = OFF.enable().expect("nothing hinders");
    assert_eq!(
        (receipt.flipped, receipt.sites, receipt.barriers),
        (1, 0, 0)
    );
    assert_eq!(OFF.enable().expect("it is on").flipped, 0);
    ON.disable_deferred(Duration::from_secs(3600))
        .expect("nothing hinders");
    assert!(static_branch_unlikely!(OFF) && !static_branch_likely!(ON) && !static_branch!(ON));
    OFF.disable().expect("nobody holds it");
    ON.enable_relaxed().expect("nothing hinders");
    assert!(!static_branch_unlikely!(OFF) && static_branch_likely!(ON));
    let status = ON.status();
    assert_eq!(
        (status.mode, status.soft_reason),
        (Mode::Soft, Some(SoftReason::NoEngine))
    );
    assert_eq!((status.flips, status.sites, status.count), (2, 0, 1));
}

#[test]
fn unbalanced_calls_are_refused_without_an_engine() {
    let [first, _] = &COUNTED;
    let key = first.name();
    assert_eq!(first.dec(), Err(FlipError::Underflow { key }));
    assert_eq!(first.try_inc(), Ok(false));
    let guard = first.hold().expect("nothing hinders");
    assert_eq!(
        first.disable(),
        Err(FlipError::StillHeld { key, guards: 1 })
    );
    first.inc().expect("nothing hinders");
    drop(guard);
    assert!(static_branch_unlikely!(COUNTED[0]));
    first.dec().expect("its count is 1");
    assert!(!static_branch_unlikely!(COUNTED[0]));
}

#[test]
fn keys_are_listed_without_an_engine() {
    assert_eq!(keys().count(), 5);
    let held = find("library.held").expect("it is defined above");
    assert_eq!(held.documentation().trim(), "Held by many threads.");
    assert!(find("library.none").is_none());
}

#[test]
fn whoever_holds_a_key_finds_it_on_without_an_engine() {
    const ROUNDS: u32 = 2_000;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let guard = HELD.hold().expect("nothing hinders");
                    assert!(static_branch_unlikely!(HELD), "held, but off");
                    drop(guard);
                }
            });
        }
    });
    assert!(!static_branch_unlikely!(HELD));
    assert_eq!((HELD.count(), HELD.is_enabled()), (0, false));
}
