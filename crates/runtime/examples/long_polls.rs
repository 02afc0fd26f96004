//! Weights beside long polls, without preemption: a group of weight 100 beside one of 900, both with tasks whose polls compute for long.
//!
//! `cargo run -p quotient --example long_polls -- POLL_MS LIGHT_TASKS HEAVY_TASKS SECONDS VCPUS` prints the light group's share of what
//! both used, in six windows and in all (DESIGN, "What is known to be unfair?"). Ten per cent are its due where both groups can use
//! what they are entitled to.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient::{Group, Scheduler};

/// Computes for `time` of the calling thread's processor time; of wall time where threads have no clock.
fn compute(time: Duration) {
    let end = time_here() + time;
    while time_here() < end {
        (0..2_000).for_each(|_| std::hint::spin_loop());
    }
}

#[cfg(target_os = "linux")]
fn time_here() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs();
    Duration::from_nanos(nanos)
}

#[cfg(not(target_os = "linux"))]
fn time_here() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

fn spawn(group: &Group, tasks: u64, poll: Duration, stop: &Arc<AtomicBool>) {
    for _ in 0..tasks {
        let stop = stop.clone();
        drop(group.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                compute(poll);
                tokio::task::yield_now().await;
            }
        }));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let arguments: Vec<u64> = arguments.collect::<Result<_, _>>()?;
    let [poll, light, heavy, seconds, vcpus] = arguments[..] else {
        return Err("wants POLL_MS LIGHT_TASKS HEAVY_TASKS SECONDS VCPUS".into());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let _inside = runtime.enter();
    let scheduler = Scheduler::builder()
        .vcpus(usize::try_from(vcpus)?)
        .build()?;
    let groups = [
        scheduler.group("light")?.weight(100).create()?,
        scheduler.group("heavy")?.weight(900).create()?,
    ];
    let stop = Arc::new(AtomicBool::new(false));
    let poll = Duration::from_millis(poll);
    spawn(&groups[0], light, poll, &stop);
    spawn(&groups[1], heavy, poll, &stop);
    let used = || {
        groups
            .each_ref()
            .map(|group| group.cpu_time().as_secs_f64())
    };
    let share = |[light, heavy]: [f64; 2]| 100.0 * light / (light + heavy);
    let (start, mut before) = (Instant::now(), used());
    for _ in 0..6 {
        std::thread::sleep(Duration::from_secs(seconds) / 6);
        let now = used();
        print!("{:.1}% ", share([now[0] - before[0], now[1] - before[1]]));
        before = now;
    }
    let processors = before.iter().sum::<f64>() / start.elapsed().as_secs_f64();
    println!(
        "in all: {:.1}% of {processors:.2} processors",
        share(before)
    );
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(scheduler.shutdown());
    Ok(())
}
