//! Two tenants with a rayon pool each, weights 1:3, then the light one limited to 0.4 CPUs: pools of rayon alone, and in groups.
//! `cargo run --release -p quotient-rayon --example tenants [SECONDS]`.

#[path = "../../common/measure.rs"]
mod measure;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use measure::{process_cpu, seconds};
use quotient::{Cpus, Group, Preempt, Scheduler};
use rayon::prelude::*;

type Failure = Box<dyn std::error::Error>;

/// Jobs of a pool until `stop`; each counts what it did.
fn work(stop: &AtomicBool, rounds: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        (0..64_u64).into_par_iter().for_each(|row| {
            let sum = (0..20_000).fold(row, |sum, value| {
                std::hint::black_box(sum.wrapping_mul(31) ^ value)
            });
            std::hint::black_box(sum);
            rounds.fetch_add(1, Ordering::Relaxed);
        });
    }
}

/// The tenants at once, two threads each; without groups their pools are nobody's.
async fn row(name: &str, groups: &[&Group], in_groups: bool) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let rounds: Vec<Arc<AtomicU64>> = groups.iter().map(|_| Arc::default()).collect();
    let mut waiting = Vec::new();
    for (group, rounds) in groups.iter().zip(&rounds) {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(2);
        let pool = if in_groups {
            builder
                .spawn_handler(quotient_rayon::threads_in(group))
                .build()?
        } else {
            builder.build()?
        };
        let (stop, rounds) = (stop.clone(), rounds.clone());
        waiting.push(std::thread::spawn(move || {
            pool.install(|| work(&stop, &rounds))
        }));
    }
    let look = || {
        let clocks = groups.iter().map(|group| group.cpu_time().as_secs_f64());
        let done = rounds
            .iter()
            .map(|done| done.load(Ordering::Relaxed) as f64);
        (
            Instant::now(),
            process_cpu(),
            clocks.chain(done).collect::<Vec<_>>(),
        )
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = look();
    tokio::time::sleep(Duration::from_secs_f64(seconds())).await;
    let after = look();
    let wall = (after.0 - before.0).as_secs_f64();
    let rate = |index: usize| (after.2[index] - before.2[index]) / wall;
    print!("{name:28} process {:.2} CPUs", (after.1 - before.1) / wall);
    for tenant in 0..groups.len() {
        let (clock, done) = (rate(tenant), rate(groups.len() + tenant));
        print!("; {done:6.0} jobs/s, clock {clock:.3} CPUs");
    }
    println!();
    stop.store(true, Ordering::Relaxed);
    while waiting.iter().any(|thread| !thread.is_finished()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let builder = Scheduler::builder().vcpus(2);
    let scheduler = builder.preempt(Preempt::default()).build()?;
    let light = scheduler.group("light")?.weight(100).create()?;
    let heavy = scheduler.group("heavy")?.weight(300).create()?;
    row("two pools of rayon", &[&light, &heavy], false).await?;
    row("in groups, 1:3", &[&light, &heavy], true).await?;
    light.set_max(Cpus(0.4))?;
    row("limit 0.4, alone", &[&light], true).await?;
    row("limit 0.4, beside the other", &[&light, &heavy], true).await?;
    scheduler.shutdown().await;
    Ok(())
}
