//! Hazard: other programs take one of two processors in the middle of polls. The only task of a group ran there for as long as they did, and had a sixth
//! of what a group of the same weight had, whose four had the other processor: as it never waits nobody pulled it.

#![cfg(target_os = "linux")]

#[path = "common/affinity.rs"]
mod affinity;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quotient::{Group, Scheduler};
use rustix::thread::sched_getcpu;

use self::affinity::{allowed, stay_on};

/// How long shares are taken over, and how often it is tried: what else runs on the machine may take either processor.
const WINDOW: Duration = Duration::from_millis(1_500);
const ROUNDS: usize = 3;
/// Least share of the lone task by that of the other group, in all rounds but one. 0.95 to 1.0; before, 0.31 to 0.34 in nine rounds of eleven, in which it
/// stayed where it was.
const RATIO: f64 = 0.6;

fn spins(group: &Group, stop: &Arc<AtomicBool>, at: &Arc<AtomicUsize>) {
    let (stop, at) = (stop.clone(), at.clone());
    group.spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(100) {
                std::hint::spin_loop();
            }
            at.store(sched_getcpu(), Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
}

/// What the lone task had by what the four had, while the processor that it was on is shared with two others.
async fn share(scheduler: &Scheduler) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let (at, elsewhere) = (Arc::default(), Arc::default());
    let group = |path| {
        scheduler
            .group(path)
            .expect("a path")
            .create()
            .expect("a group")
    };
    let (lone, four) = (group("lone"), group("four"));
    spins(&lone, &stop, &at);
    for _ in 0..4 {
        spins(&four, &stop, &elsewhere);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let taken = at.load(Ordering::Relaxed);
    let burners = [(); 2].map(|()| {
        let stop = stop.clone();
        thread::spawn(move || {
            stay_on(taken);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = [&lone, &four].map(Group::cpu_time);
    tokio::time::sleep(WINDOW).await;
    let after = [&lone, &four].map(Group::cpu_time);
    stop.store(true, Ordering::Relaxed);
    for burner in burners {
        burner.join().expect("no panic");
    }
    let used = [0, 1].map(|index: usize| (after[index] - before[index]).as_secs_f64());
    used[0] / used[1].max(1e-9)
}

#[test]
fn a_lone_task_has_its_share_of_the_processor_that_nobody_takes() {
    let processors = allowed();
    if processors.len() < 2 {
        return;
    }
    let next = AtomicUsize::new(0);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(move || stay_on(processors[next.fetch_add(1, Ordering::Relaxed) % 2]))
        .build()
        .expect("a runtime");
    let shares: Vec<f64> = runtime.block_on(async {
        let mut shares = Vec::new();
        for _ in 0..ROUNDS {
            let scheduler = Scheduler::builder().build().expect("a scheduler");
            shares.push(share(&scheduler).await);
            scheduler.shutdown().await;
        }
        shares
    });
    let good = shares.iter().filter(|share| **share >= RATIO).count();
    assert!(good + 1 >= ROUNDS, "by rounds: {shares:.2?}");
}
