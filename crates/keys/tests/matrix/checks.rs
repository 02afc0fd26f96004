//! The kernel's `test_static_keys`, rebuilt: eighteen (key, branch) pairs, keys of this and of a second module, checked
//! as they start, inverted, and inverted back; in every mode.

use quotient_keys::{
    Key, Mode, set_mode, static_branch, static_branch_likely, static_branch_unlikely, static_key,
    status,
};

use crate::base::*;

static_key! {
    /// Starts on.
    static OLD_TRUE = true;
    /// Starts off.
    static OLD_FALSE = false;
    /// Starts on.
    static TRUE = true;
    /// Starts off.
    static FALSE = false;
}

struct Check {
    initial: bool,
    key: &'static Key,
    branch: fn() -> bool,
}

macro_rules! check {
    ($initial:literal, $key:path, $branch:ident) => {
        Check {
            initial: $initial,
            key: &*$key,
            branch: || $branch!($key),
        }
    };
}

fn checks() -> [Check; 18] {
    [
        check!(true, OLD_TRUE, static_branch),
        check!(false, OLD_FALSE, static_branch),
        check!(true, TRUE, static_branch_likely),
        check!(true, TRUE, static_branch_unlikely),
        check!(false, FALSE, static_branch_likely),
        check!(false, FALSE, static_branch_unlikely),
        check!(true, BASE_OLD_TRUE, static_branch),
        check!(false, BASE_INVERTED_OLD_TRUE, static_branch),
        check!(false, BASE_OLD_FALSE, static_branch),
        check!(true, BASE_INVERTED_OLD_FALSE, static_branch),
        check!(true, BASE_TRUE, static_branch_likely),
        check!(true, BASE_TRUE, static_branch_unlikely),
        check!(false, BASE_INVERTED_TRUE, static_branch_likely),
        check!(false, BASE_INVERTED_TRUE, static_branch_unlikely),
        check!(false, BASE_FALSE, static_branch_likely),
        check!(false, BASE_FALSE, static_branch_unlikely),
        check!(true, BASE_INVERTED_FALSE, static_branch_likely),
        check!(true, BASE_INVERTED_FALSE, static_branch_unlikely),
    ]
}

fn verify(checks: &[Check], inverted: bool, when: &str) {
    for (number, check) in checks.iter().enumerate() {
        let expected = check.initial != inverted;
        let name = check.key.name();
        assert_eq!(
            check.key.is_enabled(),
            expected,
            "{when}, check {number}: count of {name}"
        );
        assert_eq!(
            (check.branch)(),
            expected,
            "{when}, check {number}: branch on {name}"
        );
    }
}

/// Each key once: several checks share one.
fn invert(checks: &[Check]) {
    let mut previous: Option<&'static Key> = None;
    for check in checks {
        if previous.is_none_or(|previous| !std::ptr::eq(previous, check.key)) {
            check
                .key
                .set(!check.key.is_enabled())
                .expect("nothing hinders a flip");
        }
        previous = Some(check.key);
    }
}

/// The test.
pub fn eighteen_checks_in_every_mode() {
    invert_at_start().expect("the second crate inverts its keys");
    let checks = checks();
    verify(&checks, false, "before patching");
    let can_patch = quotient_keys::patch() != Mode::Soft;
    for mode in Mode::ALL {
        if mode != Mode::Soft && !can_patch {
            continue;
        }
        set_mode(mode).expect("the mode is available");
        for _ in 0..3 {
            verify(&checks, false, mode.name());
            assert!(
                !base_false_from_here() && !base_false_inlined() && base_true_generic::<u8>().0
            );
            invert(&checks);
            verify(&checks, true, mode.name());
            assert!(
                base_false_from_here() && base_false_inlined() && !base_true_generic::<u16>().0
            );
            invert(&checks);
        }
        verify(&checks, false, mode.name());
        let (patched, sites) = (status().patched, status().sites);
        if mode == Mode::Soft {
            assert_eq!(patched, 0, "soft mode leaves no site patched");
        } else {
            // Each of the 18 keys' checks falls through for one value: 9 pairs are at their bias, and those of
            // `static_branch`.
            assert!(
                patched > 0 && patched < sites,
                "{mode}: {patched} of {sites} sites are patched"
            );
        }
    }
}
