//! Chores of this workspace. `cargo run -p xtask -- tidy` checks the rules that rustc and clippy do not know:
//! see the [`tidy`] module.
#![forbid(unsafe_code)]

mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- tidy\n\n  tidy   check the rules of the house; exit status 1 if one is broken";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => run_tidy(),
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run_tidy() -> ExitCode {
    // The manifest directory is compiled in, so the command works from any directory of the clone.
    let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent() else {
        eprintln!("tidy: the manifest directory of xtask has no parent");
        return ExitCode::FAILURE;
    };
    match tidy::run(root) {
        Ok(report) => {
            for finding in &report.findings {
                eprintln!("{finding}");
            }
            println!("tidy: {}", report.summary());
            if report.error_count() == 0 {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("tidy: cannot read the workspace: {error}");
            ExitCode::FAILURE
        }
    }
}
