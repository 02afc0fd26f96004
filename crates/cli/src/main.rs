//! The binary `quotient`: see `quotient --help`.
//!
//! Rooms: `advise` and `sim` (under virtual time), `top` (running processes), `bench` (Quotient against plain tokio in one run), `check`, `convert`, `diff` (recorded traces), `fleet` (limits in a store, a feature), `config` (files of settings), `cli` (arguments), `manual` (what is generated from them), `json` (forms of results), `demo` (the main job: a noisy neighbour on real HTTP traffic, tamed), `record` (this machine, by its kernel), `report` (what a
//! person sees of it: progress, table, picture).

#![forbid(unsafe_code)]

/// As the standard one, but nobody who reads any more is no accident: it ends the program as a shell reports it, without a word.
macro_rules! println {
    () => {
        $crate::failure::print_line("")
    };
    ($($argument:tt)*) => {
        $crate::failure::print_line(&format!($($argument)*))
    };
}

/// Polls of the demo and of the benchmarks are stopped in their middle, and nobody is to wait for an allocator's lock in one of those.
#[global_allocator]
static ALLOCATOR: quotient::SteadyAllocator = quotient::SteadyAllocator::SYSTEM;

mod advise;
mod bench;
mod check;
mod cli;
mod config;
mod convert;
mod demo;
mod diff;
mod failure;
#[cfg(feature = "fleet")]
mod fleet;
mod json;
mod manual;
mod output;
#[cfg(target_os = "linux")]
mod record;
mod report;
mod sim;
#[cfg(unix)]
mod top;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, failure::Failure::Closed) {
                eprintln!("quotient: {failure}");
            }
            failure.exit_code()
        }
    }
}
