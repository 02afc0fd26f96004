//! Long polls that hold and do what one would not like to be stopped in, all at once, in groups with and without limits: nothing
//! deadlocks, and nothing is lost. `QUOTIENT_HOSTILE_SECONDS` makes it longer.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quotient::{Group, Preempt, Scheduler};

/// A hang, and no measurement.
const HANG: Duration = Duration::from_secs(120);

fn seconds() -> f64 {
    let given = std::env::var("QUOTIENT_HOSTILE_SECONDS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(1.0)
}

/// What the hostile tasks share.
struct World {
    stop: AtomicBool,
    lock: std::sync::Mutex<(u64, u64)>,
    reader_writer: std::sync::RwLock<Vec<u64>>,
    channel: tokio::sync::mpsc::Sender<u64>,
    received: AtomicU64,
    sent: AtomicU64,
    /// Hostile tasks that have run.
    ran: AtomicU64,
}

/// One kind of hostile work, of about a millisecond; it is repeated in one poll.
fn work(kind: usize, world: &World, round: u64) {
    match kind {
        0 => {
            let mut kept: Vec<Vec<u8>> = Vec::new();
            for size in 0..200 {
                kept.push(vec![1; (size * 97) % 40_000 + 1]);
                if size % 3 == 0 {
                    kept.swap_remove(0);
                }
            }
        }
        1 => {
            let mut both = world.lock.lock().unwrap();
            both.0 += 1;
            for step in 0..50_000_u64 {
                std::hint::black_box(step);
            }
            both.1 += 1;
            assert_eq!(both.0, both.1);
        }
        2 => {
            if round.is_multiple_of(4) {
                let mut numbers = world.reader_writer.write().unwrap();
                numbers.clear();
                numbers.extend(0..1_000);
            } else {
                let numbers = world.reader_writer.read().unwrap();
                assert!(numbers.iter().sum::<u64>() % 499_500 == 0);
            }
        }
        3 => {
            if world.channel.try_send(round).is_ok() {
                world.sent.fetch_add(1, Ordering::Relaxed);
            }
        }
        4 => drop(std::panic::catch_unwind(|| {
            std::panic::resume_unwind(Box::new(round));
        })),
        5 => {
            std::thread::sleep(Duration::from_micros(300));
            std::thread::yield_now();
        }
        6 => {
            let read = std::fs::read_to_string("/proc/self/stat").unwrap();
            assert!(!read.is_empty());
        }
        _ => {
            let handle = std::thread::spawn(move || round);
            assert_eq!(handle.join().unwrap(), round);
        }
    }
}

const KINDS: usize = 8;

/// A task whose polls take some 20 ms and in between await something.
async fn hostile(kind: usize, world: Arc<World>, group: Group) -> u64 {
    let mut round = 0_u64;
    while !world.stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(20) {
            work(kind, &world, round);
            round += 1;
            if round == 1 {
                world.ran.fetch_add(1, Ordering::Relaxed);
            }
        }
        match round % 4 {
            0 => tokio::task::yield_now().await,
            1 => tokio::time::sleep(Duration::from_micros(200)).await,
            2 => assert_eq!(group.spawn(async move { round }).await.unwrap(), round),
            _ => quotient::block_in_place(|| std::thread::sleep(Duration::from_micros(200))),
        }
    }
    round
}

fn all_at_once(vcpus: usize) {
    let runtime = common::runtime(2);
    runtime.block_on(async {
        let scheduler = Scheduler::builder()
            .vcpus(vcpus)
            .preempt(Preempt::default())
            .build()
            .unwrap();
        let (sender, mut receiver) = tokio::sync::mpsc::channel(64);
        let world = Arc::new(World {
            stop: AtomicBool::new(false),
            lock: std::sync::Mutex::default(),
            reader_writer: std::sync::RwLock::default(),
            channel: sender,
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ran: AtomicU64::new(0),
        });
        let free = scheduler.group("free").unwrap().create().unwrap();
        let limited = scheduler.group("limited").unwrap();
        let limited = limited.max("20ms/50ms").create().unwrap();
        let counted = world.clone();
        let receiving = free.spawn(async move {
            while let Some(_round) = receiver.recv().await {
                counted.received.fetch_add(1, Ordering::Relaxed);
            }
        });
        let tasks: Vec<_> = (0..2 * KINDS)
            .map(|index| {
                let group = if index < KINDS { &free } else { &limited };
                group.spawn(hostile(index % KINDS, world.clone(), group.clone()))
            })
            .collect();
        tokio::time::sleep(Duration::from_secs_f64(seconds())).await;
        // On a busy machine that may be too short for the first poll of each.
        let all_ran = async {
            while world.ran.load(Ordering::Relaxed) < 2 * KINDS as u64 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let ended = tokio::time::timeout(HANG, all_ran).await;
        assert!(ended.is_ok(), "never ran: {:?}", scheduler.preempt_stats());
        world.stop.store(true, Ordering::Relaxed);
        for task in tasks {
            let ended = tokio::time::timeout(HANG, task).await;
            let ended = ended.unwrap_or_else(|_| panic!("hangs: {:?}", scheduler.preempt_stats()));
            assert!(ended.unwrap() > 0, "never ran");
        }
        let (sent, received) = (world.sent.load(Ordering::Relaxed), world.clone());
        drop(world);
        let caught_up = async {
            while received.received.load(Ordering::Relaxed) < sent {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(HANG, caught_up)
            .await
            .expect("messages are lost");
        receiving.abort();
        let stats = scheduler.preempt_stats().unwrap();
        assert!(stats.detached > 0, "{stats:?}");
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {stats:?}");
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

#[test]
fn hostile_polls_of_all_kinds_at_once_on_one_virtual_cpu() {
    all_at_once(1);
}

#[test]
fn hostile_polls_of_all_kinds_at_once_on_two_virtual_cpus() {
    all_at_once(2);
}

#[test]
fn hostile_polls_of_all_kinds_at_once_on_four_virtual_cpus() {
    all_at_once(4);
}
