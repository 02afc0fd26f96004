//! Preemption on a current-thread runtime was neither refused nor tested. Its virtual CPUs are turned by threads of the scheduler's, so tasks get on
//! whether anybody is inside `block_on` or not; I/O, timers and foreign tasks need somebody there. On real threads: bounds are generous.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use preempted::{HANG, keeps_to_a_tenth};
use quotient::{Group, Preempt, Scheduler, ThreadMeter};

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

fn scheduler(runtime: &tokio::runtime::Runtime) -> Scheduler {
    let builder = Scheduler::builder().handle(runtime.handle().clone());
    let builder = builder.vcpus(2).preempt(Preempt::default());
    builder.build().unwrap()
}

/// A poll that computes until it is told to stop.
fn hog(group: &Group, stop: &Arc<AtomicBool>) {
    let stop = stop.clone();
    drop(group.spawn(async move { compute(&stop) }));
}

fn compute(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::black_box((0..1_000_u64).sum::<u64>());
    }
}

#[test]
fn endless_polls_keep_a_runtime_of_one_thread() {
    let _alone = preempted::alone();
    let runtime = runtime();
    let scheduler = scheduler(&runtime);
    let group = |path: &str| scheduler.group(path).unwrap();
    let free = group("free").create().unwrap();
    let limited = group("limited").max("10ms/100ms").create().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 0..3 {
        hog(&free, &stop);
        hog(&limited, &stop);
    }
    let other = group("other").create().unwrap();
    runtime.block_on(async {
        let test = async {
            for round in 0..50_u32 {
                let answer = other.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let function = quotient::spawn_blocking(move || round);
                    function.await.unwrap()
                });
                assert_eq!(answer.await.unwrap(), round);
            }
            keeps_to_a_tenth(&scheduler, &limited).await;
        };
        let ended = tokio::time::timeout(HANG, test).await;
        assert!(ended.is_ok(), "hangs: {:?}", scheduler.preempt_stats());
        assert!(scheduler.preempt_stats().unwrap().detached >= 6);
        stop.store(true, Ordering::Relaxed);
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {:?}", scheduler.preempt_stats());
    });
}

/// The heartbeat of a runtime that nobody drives is not answered: that must not be taken for one that waits for a stopped poll, again and again.
#[test]
fn a_runtime_that_nobody_drives_voids_a_limit() {
    keeps_to_a_hundredth(0);
}

/// Carriers and the tick thread that wait for a processor were taken for waiting for who stands.
#[test]
fn a_busy_machine_voids_a_limit() {
    keeps_to_a_hundredth(24);
}

/// Beside so many threads that compute.
fn keeps_to_a_hundredth(rivals: usize) {
    let _alone = preempted::alone();
    let runtime = runtime();
    let scheduler = scheduler(&runtime);
    let limited = scheduler.group("limited").unwrap().max("1ms/100ms");
    let limited = limited.create().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    (0..3).for_each(|_| hog(&limited, &stop));
    let polls = Arc::new(AtomicU64::new(0));
    let (own, ends) = (polls.clone(), stop.clone());
    let counts = scheduler.group("other").unwrap().create().unwrap();
    drop(counts.spawn(async move {
        while !ends.load(Ordering::Relaxed) {
            own.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }));
    let rivals: Vec<_> = (0..rivals)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || compute(&stop))
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let (before, began) = (limited.cpu_time(), Instant::now());
    let counted = polls.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(2));
    let used = limited.cpu_time() - before;
    let part = used.as_secs_f64() / began.elapsed().as_secs_f64();
    let stats = scheduler.preempt_stats().unwrap();
    println!("{part} of a processor, {stats:?}");
    assert!(polls.load(Ordering::Relaxed) > counted, "nothing gets on");
    // A hundredth, and short turns of another one.
    assert!(part < 0.04, "{part} of a processor");
    // Nobody waits for anybody: each is for a lock of the runtime's whose holder has no processor.
    assert!(stats.rescues < 10, "{stats:?}");
    stop.store(true, Ordering::Relaxed);
    for rival in rivals {
        rival.join().unwrap();
    }
    runtime.block_on(scheduler.shutdown());
}

#[test]
fn endless_polls_outlive_a_runtime_of_one_thread() {
    let _alone = preempted::alone();
    let runtime = runtime();
    let scheduler = scheduler(&runtime);
    let group = scheduler.group("group").unwrap().create().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    (0..3).for_each(|_| hog(&group, &stop));
    let (job, own) = (stop.clone(), group.clone());
    let thread = std::thread::spawn(move || ThreadMeter::run(&own, || compute(&job)).unwrap());
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
    drop(runtime);
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    let began = Instant::now();
    while scheduler.tasks() > 0 {
        assert!(began.elapsed() < HANG, "{} live on", scheduler.tasks());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(scheduler.is_shut_down());
    assert!(group.try_spawn(async {}).is_err());
}
