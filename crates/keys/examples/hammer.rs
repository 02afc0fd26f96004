//! Checked evaluations under flips, many of them. Run before a processor is added to the list of those that get the
//! biased mode by default.
//!
//! `cargo run --release -p quotient-keys --example hammer -- [mode] [evaluations] [seconds at most]`

#[path = "../tests/common/hammer.rs"]
mod hammer;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use hammer::{HAMMERED, Hammer};
use quotient_keys::{Mode, allow_writable_code, patch, set_mode};

/// Long enough for some hundred checked rounds between two flips.
const PAUSE_SPINS: u32 = 2000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mode = match arguments.first() {
        None => Some(None),
        Some(name) => Mode::ALL
            .into_iter()
            .find(|mode| mode.name() == name)
            .map(Some),
    };
    let evaluations = arguments
        .get(1)
        .map_or(Ok(1_000_000_000), |text| text.parse::<u64>());
    let seconds = arguments.get(2).map_or(Ok(60), |text| text.parse::<u64>());
    let (Some(mode), Ok(evaluations), Ok(seconds)) = (mode, evaluations, seconds) else {
        eprintln!(
            "usage: hammer [biased|strict|int3|one-by-one|soft] [evaluations] [seconds at most]"
        );
        return ExitCode::from(2);
    };
    if cfg!(target_arch = "aarch64") {
        // An emulator sees no other writer.
        allow_writable_code(true);
    }
    // Without a mode the default one, as a program gets it.
    let mode = mode.unwrap_or_else(patch);
    if let Err(error) = set_mode(mode) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let hammer = Hammer::default();
    let flips_before = HAMMERED.status().flips;
    let started = Instant::now();
    let time_max = Duration::from_secs(seconds);
    let flips = std::thread::scope(|scope| {
        scope.spawn(|| hammer.read());
        hammer.flip_while(PAUSE_SPINS, |checked| {
            checked < evaluations && started.elapsed() < time_max
        })
    });
    println!(
        "{mode}: {} checked evaluations, {} wrong, {flips} flips, {:.1} s, {} traps, {} sites",
        hammer.checked(),
        hammer.wrong(),
        started.elapsed().as_secs_f64(),
        HAMMERED.status().traps,
        HAMMERED.status().sites,
    );
    // A run in which nothing was flipped has shown nothing.
    let is_hammered = Hammer::is_hammered(flips, flips_before);
    if hammer.wrong() == 0 && hammer.checked() >= evaluations && is_hammered {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
