//! A tracing branch, switched in a running program.
//!
//! `cargo run --release -p quotient-keys --example static_key`

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quotient_keys::{FlipError, keys, patch_all, set_by_name, static_branch_unlikely, static_key};

static_key! {
    /// Counts the requests that a worker handles.
    static TRACING = false, as "worker.tracing";
}

static TRACED: AtomicU64 = AtomicU64::new(0);

fn handle(request: u64) -> u64 {
    if static_branch_unlikely!(TRACING) {
        TRACED.fetch_add(1, Ordering::Relaxed);
    }
    std::hint::black_box(request.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn main() -> Result<(), FlipError> {
    println!("mode: {}", patch_all());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut request = 0;
            while !stop.load(Ordering::Relaxed) {
                request = handle(request);
            }
        });
        let result = flip_while_it_runs();
        stop.store(true, Ordering::Relaxed);
        result
    })?;
    for key in keys() {
        println!("{:#?}", key.status());
    }
    Ok(())
}

fn flip_while_it_runs() -> Result<(), FlipError> {
    for on in [false, true, false, true, false] {
        // By its name, as a command from outside would; `TRACING.set(on)` is the same.
        let receipt = set_by_name("worker.tracing", on)?;
        let before = TRACED.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
        let traced = TRACED.load(Ordering::Relaxed) - before;
        println!(
            "tracing {:3}  {:2} sites rewritten, {} barriers  {traced:9} requests traced in 50 ms",
            if on { "on" } else { "off" },
            receipt.sites,
            receipt.barriers,
        );
    }
    Ok(())
}
