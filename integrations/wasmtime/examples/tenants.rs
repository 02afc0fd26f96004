//! Guests of four tenants with weights 100 to 400: on plain tokio, on two runtimes, in groups.
//! `cargo run --release --example tenants [SECONDS]`.

mod guest;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use guest::measure::{Host, Rig, seconds};
use guest::{Guest, percents};

/// Four tenants with two guests each, weights 100 to 400: their shares of the CPU time, or of the calls where there are no clocks.
fn share(guest: &Guest, rig: &Rig) -> wasmtime::Result<()> {
    let tenant = |part: u32| rig.tenant(&format!("guests/{part}"), 100 * part, part == 1);
    let hosts: Vec<Host> = (1..=4).map(tenant).collect();
    let done: Vec<Arc<AtomicU64>> = hosts.iter().map(|_| Arc::default()).collect();
    for (host, done) in hosts.iter().zip(&done) {
        (0..2).for_each(|_| guest.keep_busy(host, 20.0, true, done));
    }
    std::thread::sleep(Duration::from_secs_f64(seconds()));
    let calls = done.iter().map(|done| done.load(Ordering::Relaxed) as f64);
    println!("calls {}", percents(&calls.collect::<Vec<_>>()));
    println!(
        "  CPU {}",
        percents(&hosts.iter().map(Host::clock).collect::<Vec<_>>())
    );
    Ok(())
}

fn main() -> wasmtime::Result<()> {
    guest::measure(share)
}
