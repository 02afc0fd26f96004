//! Two tenants with weights 1:3 on an unmodified tokio runtime: what each got of the processors in half a second.

use std::time::{Duration, Instant};

use quotient::{Group, Scheduler};

/// Real arithmetic for about 50 us, then a yield, until told to stop.
async fn hog(until: Instant) {
    let mut sum = 0_u64;
    while Instant::now() < until {
        for value in 0..20_000_u64 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(value));
        }
        tokio::task::yield_now().await;
    }
}

fn spawn_hogs(group: &Group, until: Instant) -> Vec<quotient::JoinHandle<()>> {
    (0..8).map(|_| group.spawn(hog(until))).collect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::builder().build()?;
    let small = scheduler.group("tenants/small")?.weight(100).create()?;
    let large = scheduler.group("tenants/large")?.weight(300).create()?;
    let until = Instant::now() + Duration::from_millis(500);
    let mut hogs = spawn_hogs(&small, until);
    hogs.extend(spawn_hogs(&large, until));
    for hog in hogs {
        hog.await?;
    }
    for group in [&small, &large] {
        let stats = group.stats();
        println!(
            "{}: weight {}, {:?} of CPU in {} polls",
            group.path(),
            group.weight(),
            stats.cpu,
            stats.polls
        );
    }
    scheduler.shutdown().await;
    Ok(())
}
