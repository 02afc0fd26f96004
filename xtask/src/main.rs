//! Chores of this workspace. `cargo run -p xtask -- tidy` checks the rules that rustc and clippy do not know:
//! see the [`tidy`] module; `-- hazards` repeats the tests of the faults found in review: see [`hazards`].
#![forbid(unsafe_code)]

mod hazards;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- COMMAND

  tidy      check the rules of the house; exit status 1 if one is broken
  hazards   repeat the tests of every fault found in review, on 1, 2 and 4 workers beside busy threads
            [--repeat 100] [--load 4] [--minutes 10, for each row] [--only TEXT] [--list]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => run_tidy(),
        ["hazards", ref options @ ..] => {
            root().map_or(ExitCode::FAILURE, |root| hazards::run(root, options))
        }
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

/// The workspace. The manifest directory is compiled in, so the command works from any directory of the clone.
fn root() -> Option<&'static Path> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    if root.is_none() {
        eprintln!("xtask: its manifest directory has no parent");
    }
    root
}

fn run_tidy() -> ExitCode {
    let Some(root) = root() else {
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
