//! What each protocol costs and leaves behind, counted by the engine.

#![forbid(unsafe_code)]

mod common;

use std::time::{Duration, Instant};

use common::in_mode;
use quotient_keys::{
    Change, FlipError, Key, Mode, disable_transaction, enable_transaction, find, keys, patch_all,
    patch_keys, set_as_directed, set_by_name, set_by_prefix, set_matching, set_mode, soften_all,
    static_branch, static_branch_likely, static_key, status, transaction,
};

static_key! {
    /// Has 56 sites, as the kernel's `schedstats` key has in seed 001.
    static FIFTY_SIX = false;
    /// Has more sites than a batch holds.
    static MANY = false;
    /// Has a likely and an unlikely site.
    static BOTH_WAYS = false;
    /// Takes part in transactions.
    static FIRST = false;
    /// Takes part in transactions.
    static SECOND = false;
    /// Takes part in transactions.
    static THIRD = true;
    /// Is counted.
    static COUNTED = false;
    /// Is disabled later.
    static LATER = false;
    /// Flaps.
    static FLAPPING = false;
    /// Is flipped by its name.
    static NAMED = false, as "test.named";
    /// Has no site.
    static LONELY = false;
    /// Is held by guards.
    static HELD = false, as "test.held";
    /// Is enabled without a barrier.
    static RELAXED = false;
    /// Has no site either.
    static LONELY_TOO = false;
    /// Is an array.
    static STAGES = [false; 12], as "test.stages";
    /// Is left out.
    #[cfg(any())]
    static LEFT_OUT = false;
    /// Is hidden from lints.
    #[cfg(all())]
    #[allow(non_upper_case_globals)]
    static lower_case = true;
}

#[inline(never)]
fn fifty_six() -> u32 {
    let mut sum = 0;
    eight_sites!(FIFTY_SIX, sum);
    eight_sites!(FIFTY_SIX, sum);
    eight_sites!(FIFTY_SIX, sum);
    eight_sites!(FIFTY_SIX, sum);
    eight_sites!(FIFTY_SIX, sum);
    eight_sites!(FIFTY_SIX, sum);
    eight_sites!(FIFTY_SIX, sum);
    sum
}

/// 520 sites: two full batches and a rest.
#[inline(never)]
fn many() -> u32 {
    let mut sum = 0;
    times_8! { times_8! { eight_sites!(MANY, sum); } }
    eight_sites!(MANY, sum);
    sum
}

#[inline(never)]
fn both_ways() -> (bool, bool) {
    (static_branch!(BOTH_WAYS), static_branch_likely!(BOTH_WAYS))
}

#[inline(never)]
fn three() -> (bool, bool, bool) {
    (
        static_branch!(FIRST),
        static_branch!(SECOND),
        static_branch!(THIRD),
    )
}

#[inline(never)]
fn stages() -> [bool; 3] {
    const LAST: usize = STAGES.len() - 1;
    [
        static_branch!(STAGES[0]),
        static_branch_likely!(STAGES[1]),
        static_branch!(STAGES[LAST]),
    ]
}

#[inline(never)]
fn one(number: u32) -> bool {
    match number {
        0 => static_branch!(COUNTED),
        1 => static_branch!(LATER),
        2 => static_branch!(FLAPPING),
        4 => static_branch!(RELAXED),
        _ => static_branch!(NAMED),
    }
}

#[test]
fn elements_of_an_array_are_keys_of_their_own() {
    for mode in Mode::ALL {
        let Some(_guard) = in_mode(mode) else {
            continue;
        };
        assert_eq!(stages(), [false; 3]);
        STAGES[1].enable().expect("nothing hinders");
        assert_eq!(stages(), [false, true, false]);
        enable_transaction(&[&STAGES[0], &STAGES[11]]).expect("nothing hinders");
        assert_eq!(stages(), [true; 3]);
        let all: Vec<&'static Key> = STAGES.iter().map(|key| &**key).collect();
        disable_transaction(&all).expect("nothing hinders");
        assert_eq!(stages(), [false; 3]);
    }
    if cfg!(patching) {
        assert_eq!(STAGES[1].status().sites, 1);
    }
    assert_eq!(STAGES[11].name(), "test.stages[11]");
    assert!(find("test.stages[3]").is_some_and(|key| core::ptr::eq(key, &*STAGES[3])));
}

#[test]
fn attributes_of_a_key_decide_about_it() {
    assert!(find("protocols::LEFT_OUT").is_none());
    assert!(static_branch!(lower_case) && lower_case.is_enabled());
}

/// Barriers to enable and to disable 56 unlikely sites.
fn barriers_of_56(mode: Mode) -> Option<(u64, u64)> {
    let _guard = in_mode(mode)?;
    assert_eq!(
        FIFTY_SIX.status().sites,
        56,
        "the compiler merged or repeated sites"
    );
    assert_eq!(FIFTY_SIX.status().patched, 56);
    assert_eq!(fifty_six(), 0);
    let on = FIFTY_SIX.enable().expect("nothing hinders");
    assert_eq!(
        (on.flipped, on.sites, FIFTY_SIX.status().patched),
        (1, 56, 0)
    );
    assert_eq!(fifty_six(), 56);
    let off = FIFTY_SIX.disable().expect("nothing hinders");
    assert_eq!(
        (off.flipped, off.sites, FIFTY_SIX.status().patched),
        (1, 56, 56)
    );
    assert_eq!(fifty_six(), 0);
    Some((on.barriers, off.barriers))
}

#[test]
fn barriers_are_those_of_the_table() {
    for (mode, expected) in [
        (Mode::Biased, (1, 0)),
        (Mode::Strict, (2, 2)),
        (Mode::Int3, (3, 3)),
        (Mode::OneByOne, (168, 168)),
    ] {
        if let Some(barriers) = barriers_of_56(mode) {
            assert_eq!(barriers, expected, "{mode}");
        }
    }
}

#[test]
fn a_full_queue_is_flushed() {
    let Some(_guard) = in_mode(Mode::Int3) else {
        return;
    };
    assert_eq!(MANY.status().sites, 520);
    let receipt = MANY.enable().expect("nothing hinders");
    assert_eq!(
        (
            receipt.barriers,
            receipt.overflow_flushes,
            receipt.single_steps
        ),
        (9, 2, 0)
    );
    assert_eq!(many(), 520);
    MANY.disable().expect("nothing hinders");
    assert_eq!(many(), 0);
}

#[test]
fn sites_of_both_senses_follow_one_key() {
    for mode in Mode::ALL {
        let Some(_guard) = in_mode(mode) else {
            continue;
        };
        assert_eq!(both_ways(), (false, false));
        let on = BOTH_WAYS.enable().expect("nothing hinders");
        assert_eq!(both_ways(), (true, true));
        let off = BOTH_WAYS.disable().expect("nothing hinders");
        assert_eq!(both_ways(), (false, false));
        if mode == Mode::Biased {
            // One site leaves its cheap form in each direction.
            assert_eq!((on.barriers, off.barriers, on.sites), (1, 1, 2));
        }
    }
}

#[test]
fn several_keys_share_a_barrier() {
    let keys: [&'static Key; 2] = [&FIRST, &SECOND];
    for (mode, on, off) in [
        (Mode::Biased, 1, 0),
        (Mode::Strict, 2, 2),
        (Mode::Int3, 3, 3),
        (Mode::Soft, 0, 0),
    ] {
        let Some(_guard) = in_mode(mode) else {
            continue;
        };
        let receipt = enable_transaction(&keys).expect("nothing hinders");
        assert_eq!((receipt.flipped, receipt.barriers), (2, on), "{mode}");
        assert_eq!(three(), (true, true, true));
        let receipt = disable_transaction(&keys).expect("nothing hinders");
        assert_eq!((receipt.flipped, receipt.barriers), (2, off), "{mode}");
        assert_eq!(three(), (false, false, true));
    }
}

#[test]
fn a_transaction_happens_as_a_whole_or_not_at_all() {
    let Some(_guard) = in_mode(Mode::Soft) else {
        return;
    };
    let before = (FIRST.count(), SECOND.count(), THIRD.count());
    let failing = [
        Change::Inc(&FIRST),
        Change::Dec(&THIRD),
        Change::Dec(&SECOND),
    ];
    let error = transaction(&failing).expect_err("SECOND is off");
    assert_eq!(error, FlipError::Underflow { key: SECOND.name() });
    assert_eq!((FIRST.count(), SECOND.count(), THIRD.count()), before);
    let error = transaction(&[Change::Inc(&FIRST), Change::Dec(&FIRST)]).expect_err("a key twice");
    assert_eq!(error, FlipError::DuplicateKey { key: FIRST.name() });
    assert_eq!(FIRST.count(), 0);
    let changes = [
        Change::Inc(&FIRST),
        Change::Inc(&THIRD),
        Change::Enable(&SECOND),
    ];
    assert_eq!(transaction(&changes).expect("all possible").flipped, 2);
    assert_eq!((FIRST.count(), SECOND.count(), THIRD.count()), (1, 1, 2));
    let changes = [
        Change::Dec(&FIRST),
        Change::Dec(&THIRD),
        Change::Disable(&SECOND),
    ];
    assert_eq!(transaction(&changes).expect("all possible").flipped, 2);
    assert_eq!((FIRST.count(), SECOND.count(), THIRD.count()), before);
    assert_eq!(transaction(&[]).expect("nothing is possible").flipped, 0);
}

#[test]
fn counting_follows_the_kernel() {
    let mode = if in_mode(Mode::Biased).is_some() {
        Mode::Biased
    } else {
        Mode::Soft
    };
    let _guard = in_mode(mode);
    assert_eq!(
        COUNTED.dec(),
        Err(FlipError::Underflow {
            key: COUNTED.name()
        })
    );
    assert_eq!(COUNTED.inc().expect("from 0").flipped, 1);
    assert_eq!(COUNTED.inc().expect("from 1").flipped, 0);
    assert_eq!((COUNTED.count(), one(0)), (2, true));
    assert_eq!(
        COUNTED.disable(),
        Err(FlipError::StillCounted {
            key: COUNTED.name(),
            count: 2
        })
    );
    assert_eq!(COUNTED.enable().expect("is on").flipped, 0);
    assert_eq!(COUNTED.count(), 2, "enable does not count");
    assert_eq!(COUNTED.dec().expect("from 2").flipped, 0);
    assert!(one(0));
    assert_eq!(COUNTED.dec().expect("from 1").flipped, 1);
    assert_eq!((COUNTED.count(), one(0)), (0, false));
    assert_eq!(COUNTED.disable().expect("is off").flipped, 0);

    let guard = COUNTED.hold().expect("nothing hinders");
    let second = guard.key().hold().expect("nothing hinders");
    drop(guard);
    assert!(one(0));
    second.release().expect("nothing hinders");
    assert!(!one(0) && COUNTED.count() == 0);
}

#[test]
fn a_guard_owns_its_count() {
    let _guard = in_mode(Mode::Soft);
    let first = HELD.hold().expect("nothing hinders");
    let refused = set_by_name("test.held", false);
    let held = FlipError::StillHeld {
        key: "test.held",
        guards: 1,
    };
    assert_eq!((refused, HELD.dec()), (Err(held.clone()), Err(held)));
    assert!(static_branch!(HELD));
    let second = HELD.hold().expect("nothing hinders");
    drop(first);
    assert!(static_branch!(HELD), "the second guard holds it");
    assert_eq!(HELD.try_inc(), Ok(true));
    second.release().expect("its count is its own");
    assert!(static_branch!(HELD));
    assert_eq!(HELD.disable().expect("one anonymous holder").flipped, 1);
    assert_eq!((HELD.try_inc(), HELD.count()), (Ok(false), 0));
}

#[test]
fn concurrent_counting_ends_balanced() {
    let mode = if in_mode(Mode::Biased).is_some() {
        Mode::Biased
    } else {
        Mode::Soft
    };
    let _guard = in_mode(mode);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let _held = COUNTED.hold().expect("nothing hinders");
                    assert!(one(0), "the key is off though this thread holds it");
                }
            });
        }
    });
    assert_eq!(COUNTED.count(), 0);
    assert!(!one(0));
}

#[test]
fn a_deferred_disable_takes_effect_at_once_and_patches_later() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    LATER.enable().expect("nothing hinders");
    let off = LATER
        .disable_deferred(Duration::from_secs(3600))
        .expect("nothing hinders");
    assert_eq!((off.flipped, off.sites, off.writes), (1, 0, 0));
    assert!(!one(1), "the key is off at once");
    assert!(LATER.status().settling_later);
    let on = LATER.enable().expect("nothing hinders");
    assert_eq!(
        (on.flipped, on.sites, on.barriers),
        (1, 0, 0),
        "the sites never left the neutral form"
    );
    assert!(one(1) && !LATER.status().settling_later);

    LATER
        .disable_deferred(Duration::from_millis(20))
        .expect("nothing hinders");
    let patient_until = Instant::now() + Duration::from_secs(20);
    while LATER.status().patched == 0 && Instant::now() < patient_until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        LATER.status().patched,
        LATER.status().sites,
        "the helper settles the sites"
    );
    assert!(!one(1));
    drop(
        LATER
            .hold()
            .expect("nothing hinders")
            .deferred(Duration::from_secs(3600)),
    );
    assert!(!one(1) && LATER.status().settling_later);
    patch_all();
    assert!(
        !LATER.status().settling_later,
        "patching all leaves nothing for later"
    );
}

#[test]
fn some_keys_are_patched_without_the_others() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    for key in [&*FIFTY_SIX, &*LATER] {
        drop(
            key.hold()
                .expect("nothing hinders")
                .deferred(Duration::from_secs(3600)),
        );
        assert_eq!(key.status().patched, 0);
    }
    assert_eq!(patch_keys(&[&FIFTY_SIX]), Mode::Biased);
    let (patched, left) = (FIFTY_SIX.status(), LATER.status());
    assert_eq!((patched.patched, patched.settling_later), (56, false));
    assert_eq!((left.patched, left.settling_later), (0, true));
    patch_all();
}

#[test]
fn a_flapping_key_with_a_rate_limit_seldom_patches() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    FLAPPING.set_rate_limit(Duration::from_secs(3600));
    let mut sites = 0;
    for _ in 0..100 {
        sites += FLAPPING.enable().expect("nothing hinders").sites;
        assert!(one(2));
        sites += FLAPPING.disable().expect("nothing hinders").sites;
        assert!(!one(2));
    }
    let own_sites = FLAPPING.status().sites;
    assert!(
        sites <= 3 * own_sites,
        "{sites} writes for {own_sites} sites"
    );
    FLAPPING.set_rate_limit(Duration::ZERO);
    FLAPPING.enable().expect("nothing hinders");
    assert_eq!(
        FLAPPING.disable().expect("nothing hinders").sites,
        own_sites
    );
}

#[test]
fn keys_are_found_and_flipped_by_name() {
    let names: Vec<&str> = keys().iter().map(|key| key.name()).collect();
    assert!(
        names.is_sorted() && names.contains(&"test.named"),
        "{names:?}"
    );
    assert!(
        names.contains(&"protocols::LONELY"),
        "a key without sites is listed too: {names:?}"
    );
    let key = find("test.named").expect("is listed");
    assert_eq!(key.documentation().trim(), "Is flipped by its name.");
    set_by_name("test.named", true).expect("nothing hinders");
    assert!(one(3) && NAMED.is_enabled());
    set_by_name("test.named", false).expect("nothing hinders");
    assert!(!one(3));
    let error = set_by_name("no such key", true).expect_err("no such key");
    assert_eq!(error.to_string(), "no static key is named `no such key`");
    LONELY.enable().expect("a key without sites flips");
    assert!(LONELY.is_enabled());
}

#[test]
fn many_keys_are_set_by_name_in_one_transaction() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    let on = set_by_prefix("test.stages", true).expect("nothing hinders");
    assert_eq!((on.flipped, on.barriers), (12, 1));
    assert_eq!(stages(), [true; 3]);
    let off = set_matching("test.stages[1?]", false).expect("nothing hinders");
    assert_eq!(off.flipped, 2);
    assert_eq!(stages(), [true, true, false]);
    let set = set_as_directed("test.stages[*]=off, test.stages[1]").expect("nothing hinders");
    assert_eq!((set.flipped, stages()), (9, [false, true, false]));
    let unknown = set_as_directed("test.stages[0], nobody.*").expect_err("no such key");
    assert!(matches!(unknown, FlipError::UnknownKey { name } if name == "nobody.*"));
    assert_eq!(stages(), [false, true, false], "all or nothing");
    set_by_prefix("test.stages", false).expect("nothing hinders");
}

#[test]
fn a_relaxed_enable_leaves_its_barrier_to_the_next() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    let on = RELAXED.enable_relaxed().expect("nothing hinders");
    assert_eq!((on.flipped, on.sites, on.barriers), (1, 1, 0));
    assert!(one(4), "this thread has made system calls since");
    RELAXED.disable().expect("nothing hinders");
    RELAXED.enable_relaxed().expect("nothing hinders");
    let next = NAMED.enable().expect("nothing hinders");
    assert_eq!(next.barriers, 1);
    NAMED.disable().expect("nothing hinders");
    RELAXED.disable().expect("nothing hinders");
    assert!(!one(4));
    // Nothing to write, and still a debt to pay.
    RELAXED.enable_relaxed().expect("nothing hinders");
    assert_eq!(LONELY_TOO.enable().expect("nothing hinders").barriers, 1);
    LONELY_TOO.disable().expect("nothing hinders");
    RELAXED.disable().expect("nothing hinders");
}

#[test]
fn softened_keys_flip_without_patching() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    soften_all().expect("nothing hinders");
    assert_eq!((status().mode, status().patched), (Mode::Soft, 0));
    let on = FIFTY_SIX.enable().expect("nothing hinders");
    assert_eq!((on.barriers, on.writes, fifty_six()), (0, 0, 56));
    FIFTY_SIX.disable().expect("nothing hinders");
    assert_eq!(
        patch_keys(&[&FIFTY_SIX]),
        Mode::Soft,
        "a library does not undo it"
    );
    assert_eq!(FIFTY_SIX.status().patched, 0);
    assert_eq!(patch_all(), status().default_mode);
    assert_eq!(FIFTY_SIX.status().patched, 56);
    set_mode(Mode::Biased).expect("nothing hinders");
}
