//! What a branch costs, in instructions: exactly one while it falls through.

#![cfg(all(patching, target_arch = "x86_64"))]

mod common;
#[path = "../src/bench/steps.rs"]
mod steps;

use std::hint::black_box;

use common::in_mode;
use quotient_keys::{
    Mode, static_branch_likely, static_branch_unlikely, static_call_if, static_key,
};

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

#[cold]
#[inline(never)]
fn report(left: u64, right: u64) {
    println!("never printed {left} {right}");
}

#[inline(never)]
fn leaf(left: u64, right: u64) -> u64 {
    left.wrapping_mul(right)
}

#[inline(never)]
fn leaf_that_calls(left: u64, right: u64) -> u64 {
    static_call_if!(OFF, report(left: u64, right: u64));
    left.wrapping_mul(right)
}

fn call(function: fn(u64, u64) -> u64, iterations: u64) {
    for iteration in 0..iterations {
        black_box(function(iteration, iteration));
    }
}

fn calls_of_a_leaf(iterations: u64) {
    call(black_box(leaf), iterations);
}

fn calls_of_a_leaf_that_calls(iterations: u64) {
    call(black_box(leaf_that_calls), iterations);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "counts what an optimising build emits")]
fn a_call_behind_a_key_costs_a_leaf_function_one_instruction() {
    for mode in [Mode::Biased, Mode::Strict, Mode::Int3] {
        let Some(_guard) = in_mode(mode) else { return };
        let base = instructions_per_iteration(calls_of_a_leaf);
        let with_call = instructions_per_iteration(calls_of_a_leaf_that_calls);
        assert_eq!(with_call - base, 1.0, "{mode}");
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
