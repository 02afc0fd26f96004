//! Keys of the crate `static-keys`, which are flipped by `unsafe` calls.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use static_keys::static_branch_unlikely;

static_keys::define_static_key_false!(ONE);
static_keys::define_static_key_false!(EIGHT);
static_keys::define_static_key_false!(FIFTY_SIX);
static_keys::define_static_key_false!(FIVE_HUNDRED_AND_TWELVE);
static_keys::define_static_key_false!(LOOP);

macro_rules! times_8 {
    ($($body:tt)*) => { $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* };
}

/// A function with one site for each step of `$times`.
macro_rules! sites {
    ($name:ident, $key:ident, $($times:tt)*) => {
        #[inline(never)]
        fn $name() -> u32 {
            let mut sum = 0;
            macro_rules! site {
                () => {
                    if static_branch_unlikely!($key) {
                        sum = black_box(sum + 1);
                    }
                };
            }
            $($times)*
            sum
        }
    };
}

sites!(one, ONE, site!(););
sites!(eight, EIGHT, times_8! { site!(); });
sites!(
    fifty_six,
    FIFTY_SIX,
    times_8! { site!(); site!(); site!(); site!(); site!(); site!(); site!(); }
);
sites!(
    five_hundred_and_twelve,
    FIVE_HUNDRED_AND_TWELVE,
    times_8! { times_8! { times_8! { site!(); } } }
);

/// Prepares that crate; true the first time.
pub(super) fn take() -> bool {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return false;
    }
    static_keys::global_init();
    true
}

/// # Safety
/// No thread executes the sites meanwhile.
pub(super) unsafe fn set(sites: usize, on: bool) {
    macro_rules! flip {
        ($key:ident) => {
            // SAFETY: the caller vouches for it.
            unsafe { if on { $key.enable() } else { $key.disable() } }
        };
    }
    match sites {
        super::LOOP => flip!(LOOP),
        1 => flip!(ONE),
        8 => flip!(EIGHT),
        56 => flip!(FIFTY_SIX),
        512 => flip!(FIVE_HUNDRED_AND_TWELVE),
        _ => {}
    }
}

pub(super) fn execute(sites: usize) -> u32 {
    match sites {
        1 => one(),
        8 => eight(),
        56 => fifty_six(),
        512 => five_hundred_and_twelve(),
        _ => 0,
    }
}

#[inline(never)]
pub(super) fn run(iterations: u64) -> u64 {
    let mut taken = 0;
    for iteration in 0..iterations {
        black_box(iteration);
        if static_branch_unlikely!(LOOP) {
            taken = black_box(taken + 1);
        }
    }
    taken
}
