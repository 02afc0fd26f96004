//! What a branch costs, in instructions: exactly one while it falls through.

#![cfg(all(patching, target_arch = "x86_64"))]

mod common;
#[path = "../src/bench/steps.rs"]
mod steps;

use std::hint::black_box;

use common::in_mode;
use quotient_keys::{Mode, static_branch_likely, static_branch_unlikely, static_key};

fn instructions_per_iteration(run: fn(u64)) -> f64 {
    steps::per_iteration(run).0
}

static_key! {
    /// Is off.
    static OFF = false;
    /// Is on.
    static ON = true;
}

#[inline(never)]
fn without(iterations: u64) {
    for iteration in 0..iterations {
        black_box(iteration);
    }
}

#[inline(never)]
fn unlikely(iterations: u64) {
    for iteration in 0..iterations {
        black_box(iteration);
        if static_branch_unlikely!(OFF) {
            println!("never printed");
        }
    }
}

#[inline(never)]
fn likely(iterations: u64) {
    for iteration in 0..iterations {
        black_box(iteration);
        if !static_branch_likely!(ON) {
            println!("never printed");
        }
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "counts what an optimising build emits")]
fn a_branch_that_falls_through_is_one_instruction() {
    for mode in [Mode::Biased, Mode::Strict, Mode::Int3] {
        let Some(_guard) = in_mode(mode) else { return };
        let base = instructions_per_iteration(without);
        assert_eq!(
            instructions_per_iteration(unlikely) - base,
            1.0,
            "{mode}, unlikely"
        );
        assert_eq!(
            instructions_per_iteration(likely) - base,
            1.0,
            "{mode}, likely"
        );
    }
}
