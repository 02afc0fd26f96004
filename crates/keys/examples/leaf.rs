//! What a branch that is off costs a leaf function which would make a cold call: nothing of the kind, a key, a relaxed load,
//! `static_call_if!`.
//!
//! `valgrind --tool=callgrind target/release/examples/leaf key 100000`, and again with another number: the difference of the
//! instructions is that of the calls. Without valgrind it prints times.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quotient_keys::{patch, static_branch_unlikely, static_call_if, static_key};

static_key! {
    /// Decides the branch.
    static KEY = false;
}

static FLAG: AtomicBool = AtomicBool::new(false);

#[cold]
#[inline(never)]
fn trace(left: u64, right: u64) {
    println!("{left} {right}");
}

#[inline(never)]
fn none(left: u64, right: u64) -> u64 {
    left.wrapping_mul(right)
}

#[inline(never)]
fn key(left: u64, right: u64) -> u64 {
    if static_branch_unlikely!(KEY) {
        trace(left, right);
    }
    left.wrapping_mul(right)
}

#[inline(never)]
fn relaxed(left: u64, right: u64) -> u64 {
    if FLAG.load(Ordering::Relaxed) {
        trace(left, right);
    }
    left.wrapping_mul(right)
}

#[inline(never)]
fn call(left: u64, right: u64) -> u64 {
    static_call_if!(KEY, trace(left: u64, right: u64));
    left.wrapping_mul(right)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let count = arguments.next().and_then(|text| text.parse::<u64>().ok());
    let (function, Some(count)): (fn(u64, u64) -> u64, _) = (
        match name.as_str() {
            "none" => none,
            "key" => key,
            "relaxed" => relaxed,
            "call" => call,
            _ => {
                eprintln!("usage: leaf none|key|relaxed|call COUNT [on]");
                return ExitCode::from(2);
            }
        },
        count,
    ) else {
        eprintln!("COUNT is a number of calls");
        return ExitCode::from(2);
    };
    patch();
    if arguments.next().is_some_and(|word| word == "on") {
        // Also keeps the compiler from finding out that nobody ever does.
        FLAG.store(true, Ordering::Relaxed);
        KEY.enable().expect("nothing hinders");
    }
    let function = black_box(function);
    let started = Instant::now();
    let mut product = 1;
    for right in 0..count {
        product = function(black_box(product), right | 1);
    }
    black_box(product);
    let nanoseconds = started.elapsed().as_nanos() as f64 / count.max(1) as f64;
    println!(
        "{name}: {nanoseconds:.3} ns a call, {} sites patched",
        KEY.status().patched
    );
    ExitCode::SUCCESS
}
