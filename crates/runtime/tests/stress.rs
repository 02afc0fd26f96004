//! Abort, panic, wake, move, freeze, limits and group removal at random; afterwards every task is accounted for.
//!
//! One second by default; `QUOTIENT_STRESS_SECONDS=10 cargo test -p quotient --test stress` for the long run.
#![cfg(not(loom))]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use common::{CountDrop, eventually, runtime};
use quotient::{AbortHandle, Group, Leftover, Scheduler};
use tokio::sync::Notify;

/// xorshift64: a seeded stream, so that a failure's decisions can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Contended by tasks of all groups, so that holders run on borrowed places.
static LOCK: LazyLock<quotient::sync::Mutex<()>> = LazyLock::new(Default::default);

#[derive(Default)]
struct Counts {
    spawned: AtomicUsize,
    dropped: Arc<AtomicUsize>,
}

async fn body(seed: u64, bell: Arc<Notify>, flag: CountDrop) {
    let _flag = flag;
    let mut random = Random(seed | 1);
    for _ in 0..random.below(200) {
        match random.below(13) {
            12 => {
                let _lock = LOCK.lock().await;
                common::burn(Duration::from_micros(random.below(80)));
                tokio::task::yield_now().await;
            }
            0..4 => tokio::task::yield_now().await,
            4 => bell.notify_waiters(),
            5 => bell.notify_one(),
            6 => {
                let _ = tokio::time::timeout(Duration::from_micros(300), bell.notified()).await;
            }
            7 => quotient::checkpoint().await,
            8 => common::burn(Duration::from_micros(random.below(80))),
            9 => drop(quotient::spawn(async { tokio::task::yield_now().await })),
            10 if random.below(40) == 0 => std::panic::resume_unwind(Box::new("stress")),
            _ => tokio::time::sleep(Duration::from_micros(random.below(500))).await,
        }
    }
}

fn spawn_one(
    random: &mut Random,
    group: &Group,
    bell: &Arc<Notify>,
    counts: &Counts,
) -> AbortHandle {
    counts.spawned.fetch_add(1, Ordering::SeqCst);
    let flag = CountDrop(counts.dropped.clone());
    let future = body(random.below(u64::MAX), bell.clone(), flag);
    group.spawn(future).abort_handle()
}

fn churn(scheduler: &Scheduler, seed: u64, counts: &Counts, end: Instant) {
    let mut random = Random(seed);
    let bell = Arc::new(Notify::new());
    let handles = Mutex::new(Vec::new());
    while Instant::now() < end {
        let path = format!("t{}/g{}", random.below(3), random.below(4));
        let Ok(group) = scheduler.group(&path).unwrap().create() else {
            std::thread::yield_now(); // being removed
            continue;
        };
        let mut handles = handles.lock().unwrap();
        for _ in 0..random.below(20) {
            handles.push(spawn_one(&mut random, &group, &bell, counts));
        }
        match random.below(13) {
            10 | 11 => {
                let (quota, period) = (1_000 + random.below(4_000), 1_000 + random.below(20_000));
                drop(group.set_max(format!("{quota} {period}").as_str()));
                if let Ok(parent) = scheduler.find(&path[..2]) {
                    drop(parent.set_max(format!("{quota} 2000").as_str()));
                }
            }
            12 => {
                drop(group.set_max("max"));
                if let Ok(parent) = scheduler.find(&path[..2]) {
                    drop(parent.set_max("max"));
                }
            }
            0 => drop(group.freeze()),
            1 | 2 => drop(group.thaw()),
            3 => drop(group.kill()),
            4 => drop(group.remove(Leftover::Kill)),
            5 => drop(group.remove(Leftover::MoveToParent)),
            6 => drop(group.move_tasks_to(&scheduler.root())),
            7 => drop(group.set_weight(1 + random.below(10_000) as u32)),
            8 => bell.notify_waiters(),
            _ => {
                for _ in 0..random.below(20) {
                    if !handles.is_empty() {
                        let index = random.below(handles.len() as u64) as usize;
                        handles.swap_remove(index).abort();
                    }
                }
            }
        }
        if random.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        if scheduler.tasks() > 3_000 {
            let _ = scheduler.find("t0").and_then(|top| top.kill());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn stress(workers: usize, seconds: f64) {
    let runtime = runtime(workers);
    let counts = Arc::new(Counts::default());
    runtime.block_on(async {
        let scheduler = Scheduler::builder().vcpus(workers).build().unwrap();
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let threads: Vec<_> = (1..3_u64)
            .map(|seed| {
                let (scheduler, counts) = (scheduler.clone(), counts.clone());
                std::thread::spawn(move || churn(&scheduler, seed * 7919, &counts, end))
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for thread in threads {
            thread.join().unwrap();
        }
        // Whoever is frozen goes on; then everything ends by itself or by shutdown.
        for group in scheduler.groups() {
            let _ = group.thaw();
        }
        let stats: Vec<_> = scheduler.groups().iter().map(Group::stats).collect();
        assert!(
            stats.iter().map(|stats| stats.polls).sum::<u64>() > 0,
            "nothing was polled"
        );
        tokio::time::timeout(Duration::from_secs(120), scheduler.shutdown())
            .await
            .expect("shutdown waits for a lost task");
        assert_eq!(scheduler.tasks(), 0);
        eventually("every future dropped", || {
            counts.dropped.load(Ordering::SeqCst) == counts.spawned.load(Ordering::SeqCst)
        })
        .await;
        assert!(
            counts.spawned.load(Ordering::SeqCst) > 100,
            "the churn did not run"
        );
    });
}

fn seconds() -> f64 {
    std::env::var("QUOTIENT_STRESS_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1.0)
}

#[test]
fn every_task_is_accounted_for_with_one_worker() {
    stress(1, seconds());
}

#[test]
fn every_task_is_accounted_for_with_three_workers() {
    stress(3, seconds());
}
