//! Long polls that hold and do what one would not like to be stopped in, alone and all at once, in groups with and without limits: nothing
//! deadlocks, and nothing is lost. `QUOTIENT_HOSTILE_SECONDS` makes it longer, each kind on 1, 2 and 4 virtual CPUs then;
//! `QUOTIENT_HOSTILE_ALL_SECONDS` is for all at once alone, and `QUOTIENT_HOSTILE_KINDS=names,malloc` chooses kinds. With `--nocapture` each run
//! says how long a task beside them did not get on at worst, timers of tokio included, and what the machine's host took meanwhile; the
//! kinds' median comes last. The long run: `QUOTIENT_HOSTILE_SECONDS=60 QUOTIENT_HOSTILE_ALL_SECONDS=600 cargo test --release -p quotient
//! --test preempt_hostile -- --nocapture --test-threads=1`.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use quotient::{Group, Preempt, Scheduler};

/// A hang, and no measurement.
const HANG: Duration = Duration::from_secs(120);

fn seconds(variable: &str) -> Option<f64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Whether the kind is to be run alone.
fn is_wanted(kind: &str) -> bool {
    std::env::var("QUOTIENT_HOSTILE_KINDS")
        .map_or(true, |kinds| kinds.split(',').any(|wanted| wanted == kind))
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
    parking_lot: parking_lot::Mutex<(u64, u64)>,
    parking_lot_shared: parking_lot::RwLock<u64>,
    spinning: AtomicBool,
    panics: AtomicU64,
}

/// Panics with this are not printed, but counted under a lock, by a hook that allocates.
struct Hostile;

fn count_hostile_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    static SEEN: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Hostile>() {
                return before(info);
            }
            let mut seen = SEEN.lock().unwrap_or_else(|poison| poison.into_inner());
            *seen = format!("{:?}", info.location());
        }));
    });
}

/// Long enough for two threads to meet.
fn linger(steps: u64) {
    for step in 0..steps {
        std::hint::black_box(step);
    }
}

/// Polls a future of tokio's once, and drops it.
fn poll_once<F: Future>(future: F) {
    let mut context = Context::from_waker(Waker::noop());
    let _ready = std::pin::pin!(future).poll(&mut context);
}

/// Work of which tests know more, by kind; see `work`.
fn more_work(kind: usize, world: &World, round: u64) {
    match kind {
        8 => {
            let mut both = world.parking_lot.lock();
            both.0 += 1;
            linger(20_000);
            both.1 += 1;
            assert_eq!(both.0, both.1);
            drop(both);
            if round.is_multiple_of(4) {
                *world.parking_lot_shared.write() += 1;
            } else {
                std::hint::black_box(*world.parking_lot_shared.read());
            }
        }
        9 => {
            // As people write them: no kernel sees who waits for whom.
            while world.spinning.swap(true, Ordering::Acquire) {
                std::hint::spin_loop();
            }
            linger(2_000);
            world.spinning.store(false, Ordering::Release);
        }
        10 => {
            let found = std::net::ToSocketAddrs::to_socket_addrs(&("localhost", 80));
            // Whether it is found is the machine's business.
            std::hint::black_box(found.is_ok());
        }
        11 => {
            let caught = std::panic::catch_unwind(|| std::panic::panic_any(Hostile));
            assert!(caught.is_err());
            world.panics.fetch_add(1, Ordering::Relaxed);
        }
        12 => {
            let local = tokio::task::LocalSet::new();
            let task = local.spawn_local(async move { round });
            poll_once(local);
            assert!(task.is_finished());
        }
        13 => {
            poll_once(tokio::time::sleep(Duration::from_millis(1)));
            drop(tokio::spawn(async {}));
            std::thread::park_timeout(Duration::from_micros(100));
        }
        _ => {
            let status = std::process::Command::new("true").status().unwrap();
            assert!(status.success());
        }
    }
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
        7 => {
            let handle = std::thread::spawn(move || round);
            assert_eq!(handle.join().unwrap(), round);
        }
        _ => more_work(kind, world, round),
    }
}

const KINDS: [&str; 15] = [
    "malloc",
    "std mutex",
    "std rwlock",
    "channel",
    "unwinding",
    "sleeps",
    "files",
    "threads",
    "parking_lot",
    "spinlock",
    "names",
    "panic hook",
    "local set",
    "timers, spawns, parks",
    "fork and exec",
];

/// A profiler's signals: a thousand a second, to whichever threads compute, by the kernel's number of the thread.
struct Profiler {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Profiler {
    /// Inside a runtime.
    fn start() -> Self {
        let kind =
            tokio::signal::unix::SignalKind::from_raw(rustix::process::Signal::PROF.as_raw());
        let mut handler = tokio::signal::unix::signal(kind).unwrap();
        tokio::spawn(async move { while handler.recv().await.is_some() {} });
        let stop = Arc::new(AtomicBool::new(false));
        let end = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut sent, mut carriers) = (0_u64, Vec::new());
            while !end.load(Ordering::Relaxed) {
                if sent.is_multiple_of(64) {
                    carriers = threads_called("quotient-carrie");
                }
                let next = usize::try_from(sent).unwrap_or(0) % carriers.len().max(1);
                if let Some(thread) = carriers.get(next).copied() {
                    // It may have ended: then there is nobody to be told.
                    let _ = rustix::process::kill_process(thread, rustix::process::Signal::PROF);
                }
                sent += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.thread.take().unwrap().join();
        assert!(sent.is_ok());
    }
}

/// Threads of this process by name.
fn threads_called(name: &str) -> Vec<rustix::process::Pid> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let threads = threads.filter_map(|thread| {
        let thread = thread.ok()?;
        let called = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        let number = thread.file_name().to_str()?.parse().ok()?;
        (called.trim_end() == name).then(|| rustix::process::Pid::from_raw(number))?
    });
    threads.collect()
}

/// Processor time that the machine's host took, in milliseconds.
fn stolen() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let steal = stat.split_whitespace().nth(8);
    steal
        .and_then(|ticks| ticks.parse::<u64>().ok())
        .unwrap_or(0)
        * 10
}

/// A task that only wants to get on: how late it was at worst.
async fn gets_on(world: Arc<World>) -> Duration {
    let mut worst = Duration::ZERO;
    while !world.stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        tokio::time::sleep(Duration::from_millis(1)).await;
        worst = worst.max(started.elapsed().saturating_sub(Duration::from_millis(1)));
    }
    worst
}

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

/// The kinds, each once in a group without and once in one with a limit, for so long. How long nothing moved at worst.
fn together(what: &str, kinds: &[usize], vcpus: usize, seconds: f64) -> Duration {
    static MACHINE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = MACHINE.lock().unwrap_or_else(|poison| poison.into_inner());
    count_hostile_panics();
    let runtime = common::runtime(2);
    let worst = runtime.block_on(async {
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
            parking_lot: parking_lot::Mutex::new((0, 0)),
            parking_lot_shared: parking_lot::RwLock::new(0),
            spinning: AtomicBool::new(false),
            panics: AtomicU64::new(0),
        });
        let profiler = Profiler::start();
        let stolen_before = stolen();
        let victim = scheduler.group("victim").unwrap().create().unwrap();
        let victim = victim.spawn(gets_on(world.clone()));
        let free = scheduler.group("free").unwrap().create().unwrap();
        let limited = scheduler.group("limited").unwrap();
        let limited = limited.max("20ms/50ms").create().unwrap();
        let counted = world.clone();
        let receiving = free.spawn(async move {
            while let Some(_round) = receiver.recv().await {
                counted.received.fetch_add(1, Ordering::Relaxed);
            }
        });
        let tasks: Vec<_> = [&free, &limited]
            .into_iter()
            .flat_map(|group| kinds.iter().map(move |kind| (group, *kind)))
            .map(|(group, kind)| group.spawn(hostile(kind, world.clone(), group.clone())))
            .collect();
        let count = tasks.len() as u64;
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        // On a busy machine that may be too short for the first poll of each, and for two looks of the watch between which one computes.
        let detached = || scheduler.preempt_stats().unwrap().detached;
        let all_ran = async {
            while world.ran.load(Ordering::Relaxed) < count || detached() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let ended = tokio::time::timeout(HANG, all_ran).await;
        let ran = world.ran.load(Ordering::Relaxed);
        assert!(
            ended.is_ok(),
            "{ran} of {count} ran: {:?}",
            scheduler.preempt_stats()
        );
        world.stop.store(true, Ordering::Relaxed);
        for task in tasks {
            let ended = tokio::time::timeout(HANG, task).await;
            let ended = ended.unwrap_or_else(|_| panic!("hangs: {:?}", scheduler.preempt_stats()));
            assert!(ended.unwrap() > 0, "never ran");
        }
        let worst = tokio::time::timeout(HANG, victim).await;
        let worst = worst.expect("the victim hangs").unwrap();
        drop(profiler);
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
        let stolen = stolen() - stolen_before;
        println!(
            "{what}, {vcpus} virtual CPUs, {seconds} s: {worst:.1?} at worst ({stolen} ms stolen), {} detached, {} pauses, {} aged, \
             {} rescues, {} missed beats",
            stats.detached, stats.pauses, stats.aged, stats.rescues, stats.missed_beats
        );
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {stats:?}");
        worst
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    worst
}

fn all_at_once(vcpus: usize) {
    let all: Vec<_> = (0..KINDS.len()).collect();
    let given = seconds("QUOTIENT_HOSTILE_ALL_SECONDS").or(seconds("QUOTIENT_HOSTILE_SECONDS"));
    together("all at once", &all, vcpus, given.unwrap_or(1.0));
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

/// In turn on 1, 2 and 4 virtual CPUs; with `QUOTIENT_HOSTILE_SECONDS` each kind on each.
#[test]
fn hostile_polls_of_one_kind() {
    let long = seconds("QUOTIENT_HOSTILE_SECONDS");
    let mut worst = Vec::new();
    for (kind, name) in KINDS.iter().enumerate().filter(|(_, name)| is_wanted(name)) {
        let every = [1, 2, 4];
        let some = [every[kind % 3]];
        let (vcpus, seconds) = match long {
            Some(seconds) => (&every[..], seconds),
            None => (&some[..], 0.1),
        };
        worst.extend(
            vcpus
                .iter()
                .map(|vcpus| together(name, &[kind], *vcpus, seconds)),
        );
    }
    worst.sort_unstable();
    println!(
        "the median of {} worsts: {:.1?}",
        worst.len(),
        worst.get(worst.len() / 2)
    );
}
