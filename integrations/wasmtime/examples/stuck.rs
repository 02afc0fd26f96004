//! Light calls beside guests that never give way: on plain tokio, on two runtimes, in groups of a scheduler that preempts.
//! `cargo run --release --example stuck [SECONDS]`.

mod guest;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guest::measure::{Host, Rig, every, percentile, seconds};
use guest::{Guest, percents};

/// Calls of half a millisecond every 10 ms, beside four guests of weight 100 that never give way and four of weight 900 that do.
fn stuck(guest: &Guest, rig: &Rig) -> wasmtime::Result<()> {
    let [stuck, busy] =
        [("stuck", 100), ("busy", 900)].map(|(path, weight)| rig.tenant(path, weight, false));
    let light = rig.tenant("light", 400, true);
    let done: Arc<AtomicU64> = Arc::default();
    let endless = guest.stuck()?;
    (0..4).for_each(|_| endless.keep_busy(&stuck, 1e6, false, &done));
    (0..4).for_each(|_| guest.keep_busy(&busy, 20.0, true, &done));
    let latencies: Arc<Mutex<Vec<f64>>> = Arc::default();
    every(Duration::from_millis(10), seconds(), |due: Instant| {
        let (guest, latencies) = (guest.clone(), latencies.clone());
        light.spawn(async move {
            let _ = guest.call(0.5, true).await;
            let took = due.elapsed().as_secs_f64() * 1e3;
            latencies.lock().unwrap().push(took);
        });
    });
    let used = [&stuck, &busy].map(Host::clock);
    let mut values = latencies.lock().unwrap().clone();
    let (p50, p99) = (percentile(&mut values, 0.5), percentile(&mut values, 0.99));
    println!(
        "{} light calls, p50 {p50:.2} ms, p99 {p99:.2} ms",
        values.len()
    );
    println!("  CPU of stuck and busy guests {}", percents(&used));
    endless.end();
    Ok(())
}

fn main() -> wasmtime::Result<()> {
    guest::measure(stuck)
}
