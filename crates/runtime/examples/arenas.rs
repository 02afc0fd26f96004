//! What others wait for who allocate beside a tenant that is throttled in the middle of its allocations.
//! `cargo run --release -p quotient --example arenas`, and `--example steady_arenas` for the same with [`quotient::SteadyAllocator`].
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quotient::{Preempt, Scheduler};

/// Allocates, writes and gives back buffers of 1 to 64 KiB for `time`, a few dozen at a time.
fn allocate(time: Duration, seed: usize) {
    let (began, mut kept, mut number) = (Instant::now(), Vec::new(), seed);
    while began.elapsed() < time {
        for _ in 0..16 {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            kept.push(vec![1_u8; 1_024 << ((number >> 32) % 7)]);
            if kept.len() > 48 {
                kept.swap_remove((number >> 40) % 48);
            }
        }
        black_box(&kept);
    }
}

/// Prints the latencies beside the heavy group, without its limit and with it.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
pub async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for limit in ["max", "40ms/100ms"] {
        let preempt = Preempt::default();
        let scheduler = Scheduler::builder().vcpus(2).preempt(preempt).build()?;
        let heavy = scheduler.group("heavy")?.max(limit).create()?;
        let light = scheduler.group("light")?.create()?;
        for seed in 0..8 {
            heavy.spawn(async move {
                loop {
                    allocate(Duration::from_millis(50), seed);
                    tokio::task::yield_now().await;
                }
            });
        }
        let latencies: Arc<Mutex<Vec<Duration>>> = Arc::default();
        for request in 0..800 {
            let due = Instant::now();
            let kept = latencies.clone();
            light.spawn(async move {
                allocate(Duration::from_micros(500), request);
                kept.lock().unwrap().push(due.elapsed());
            });
            tokio::time::sleep_until((due + Duration::from_millis(5)).into()).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut values = latencies.lock().unwrap().clone();
        values.sort();
        let at = |hundredths: usize| values[values.len() * hundredths / 100];
        let stats = scheduler.preempt_stats().unwrap_or_default();
        println!(
            "heavy limited to {limit}: {} light requests, p50 {:?}, p99 {:?}, longest {:?}; heavy {:?} of CPU, {} rescues",
            values.len(),
            at(50),
            at(99),
            values[values.len() - 1],
            heavy.cpu_time(),
            stats.rescues
        );
        heavy.kill()?;
        scheduler.shutdown().await;
    }
    Ok(())
}
