//! The binary `quotient`: see `quotient --help`.
//!
//! Rooms: `bench` (Quotient against plain tokio in one run), `cli` (arguments), `demo` (the main job: a noisy neighbour on real HTTP traffic, tamed), `report` (what a
//! person sees of it: progress, table, picture).

#![forbid(unsafe_code)]

mod bench;
mod cli;
mod demo;
mod failure;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("quotient: {failure}");
            failure.exit_code()
        }
    }
}
