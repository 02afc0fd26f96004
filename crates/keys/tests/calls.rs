//! `static_call_if!`: calls behind a key, of which the functions around them know nothing.

#![forbid(unsafe_code)]

mod common;

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use common::in_mode;
use quotient_keys::{Mode, static_call_if, static_key};

static_key! {
    /// Decides every call here.
    static CALLS = false;
    /// The second of two.
    static PAIR = [false; 2];
}

thread_local! {
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Uses every register and some stack, as any function may.
#[inline(never)]
fn waste() {
    let mut integers: [u64; 40] = black_box([7; 40]);
    let mut floats: [f64; 40] = black_box([7.0; 40]);
    for round in 0..3 {
        for index in 1..40 {
            integers[index] =
                integers[index - 1].wrapping_mul(31).rotate_left(round) ^ index as u64;
            floats[index] = floats[index - 1] * 1.5 + f64::from(round);
        }
    }
    black_box((integers, floats));
}

fn see(value: u64) {
    waste();
    SEEN.with(|seen| seen.set(seen.get().wrapping_add(value)));
}

fn nothing() {
    see(1);
}

mod elsewhere {
    pub fn four(first: u8, second: i64, third: bool, fourth: &u64) {
        assert!(third && second == -3);
        super::see(u64::from(first) + *fourth);
    }
}

fn pointer(place: *const u64) {
    see(place.addr() as u64);
}

#[inline(never)]
fn leaf(left: u64, right: u64) -> u64 {
    static_call_if!(CALLS, see(left: u64));
    left.wrapping_mul(right)
}

/// Keeps integers, floating-point numbers and an array on its stack over the calls.
#[inline(never)]
fn busy(seed: u64) -> (u64, f64) {
    let mut around: [u64; 12] = [0; 12];
    let (mut a, mut b, mut c, mut d) = (seed, seed ^ 1, seed ^ 2, seed ^ 3);
    let (mut e, mut f, mut g, mut h) = (seed ^ 4, seed ^ 5, seed ^ 6, seed ^ 7);
    let (mut x, mut y, mut z) = (seed as f64, 0.5, 0.25);
    let (first, second, third) = (3_u8, -3_i64, true);
    for place in &mut around {
        (a, b, c, d) = (
            b ^ d,
            c.wrapping_mul(3),
            d.rotate_left(7),
            a.wrapping_add(h),
        );
        (e, f, g, h) = (
            f ^ a,
            g.wrapping_mul(5),
            h.rotate_left(9),
            e.wrapping_add(d),
        );
        (x, y, z) = (y + 1.0, z * 1.25, x * 0.5);
        *place = a ^ e;
        static_call_if!(CALLS, nothing());
        let fourth = &*place;
        static_call_if!(CALLS, elsewhere::four(first: u8, second: i64, third: bool, fourth: &u64));
    }
    let sum = [a, b, c, d, e, f, g, h]
        .into_iter()
        .fold(0, u64::wrapping_add);
    let sum = around
        .iter()
        .fold(sum, |sum, value| sum.wrapping_add(*value));
    (sum, x + y + z)
}

#[inline(never)]
fn of_an_array(place: &u64) {
    let place: *const u64 = place;
    static_call_if!(PAIR[1], pointer(place: *const u64));
}

fn seen(action: impl FnOnce()) -> u64 {
    SEEN.set(0);
    action();
    SEEN.get()
}

fn in_each_mode(check: impl Fn(Mode)) {
    for mode in Mode::ALL {
        if let Some(_guard) = in_mode(mode) {
            check(mode);
        }
    }
}

#[test]
fn a_call_behind_a_key_is_made_while_the_key_is_on() {
    in_each_mode(|mode| {
        for on in [false, true, false] {
            CALLS.set(on).expect("nothing hinders");
            PAIR[1].set(on).expect("nothing hinders");
            let count = u64::from(on);
            assert_eq!(seen(|| assert_eq!(leaf(6, 7), 42)), 6 * count, "{mode}");
            let place = 1;
            let address = (&raw const place).addr() as u64;
            assert_eq!(seen(|| of_an_array(&place)), address * count, "{mode}");
        }
        if cfg!(patching) && mode != Mode::Soft {
            assert!(CALLS.status().patched >= 3, "{mode}: {:?}", CALLS.status());
        }
    });
}

#[test]
fn a_call_behind_a_key_changes_nothing_around_it() {
    in_each_mode(|mode| {
        for seed in 0..20 {
            CALLS.disable().expect("nobody holds it");
            let quiet = busy(black_box(seed));
            CALLS.enable().expect("nothing hinders");
            let mut loud = (0, 0.0);
            assert_ne!(seen(|| loud = busy(black_box(seed))), 0, "{mode}");
            assert_eq!(loud, quiet, "{mode}, seed {seed}");
        }
        CALLS.disable().expect("nobody holds it");
    });
}

#[test]
fn a_call_behind_a_key_that_flips_is_made_or_not() {
    const ROUNDS: u64 = 200;
    in_each_mode(|mode| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (left, right) = (black_box(6), black_box(7));
                    let calls = seen(|| assert_eq!(leaf(left, right), 42));
                    assert!(calls == 0 || calls == 6, "{mode}: {calls}");
                }
            });
            for round in 0..ROUNDS {
                CALLS.set(round % 2 == 0).expect("nothing hinders");
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}
