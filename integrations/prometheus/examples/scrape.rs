//! What a scrape of a thousand groups costs: `cargo run --release -p quotient-prometheus --example scrape`.
//!
//! Every group has run on both virtual CPUs, has a limit, and values in both histograms.

use std::time::{Duration, Instant};

use quotient::{Cpus, Scheduler};
use quotient_prometheus::Exporter;

/// Groups that are scraped.
const GROUPS: usize = 1_000;
/// Scrapes, of which the median and the longest are printed, unless an argument says how many.
const SCRAPES: usize = 201;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scrapes = std::env::args().nth(1);
    let scrapes: usize = scrapes.map_or(Ok(SCRAPES), |count| count.parse())?;
    let scrapes = scrapes.clamp(1, 100_000);
    let scheduler = Scheduler::builder().vcpus(2).build()?;
    let exporter = Exporter::new(&scheduler).record_poll_durations()?;
    let mut tasks = Vec::new();
    for index in 0..GROUPS {
        let builder = scheduler.group(&format!("tenants/tenant-{index:04}"))?;
        let group = builder.max(Cpus(0.5)).create()?;
        for _ in 0..2 {
            tasks.push(group.spawn(async {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            }));
        }
    }
    for task in tasks {
        task.await?;
    }
    let groups = scheduler.groups();
    for (name, exporter, busy) in [
        ("all, nothing has happened", exporter.clone(), false),
        ("all, every group has run since", exporter.clone(), true),
        (
            "without histograms, likewise",
            exporter.histograms(false),
            true,
        ),
    ] {
        let mut times: Vec<Duration> = Vec::with_capacity(scrapes);
        let mut bytes = 0;
        let mut lines = 0;
        for _ in 0..scrapes {
            if busy {
                for group in &groups {
                    group.spawn(tokio::task::yield_now()).await?;
                }
            }
            let begun = Instant::now();
            let page = std::hint::black_box(exporter.page());
            times.push(begun.elapsed());
            let page = page.as_ref();
            (bytes, lines) = (
                page.len(),
                page.iter().filter(|&&byte| byte == b'\n').count(),
            );
        }
        times.sort();
        let (median, longest) = (times[scrapes / 2], times[scrapes - 1]);
        println!(
            "{name}: {GROUPS} groups, {lines} lines, {bytes} bytes: median {median:?}, longest {longest:?}"
        );
    }
    scheduler.shutdown().await;
    Ok(())
}
