//! Locks that a stopped poll holds and no virtual CPU waits for: the host waits, or somebody who looks busy. What bounds that is in the
//! header of `preempt::heartbeat`; here it has to end at all, and by that and nothing else.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use quotient::{Preempt, PreemptStats, Scheduler};

use preempted::{HANG, alone};

/// The bound of the header is 20 ms and what the machine takes; this is for a machine that is busy otherwise.
const BOUND: Duration = Duration::from_secs(20);
/// Aging may be lucky and come first. Unit: rounds.
const ROUNDS_MAX: usize = 200;

/// A poll that holds a lock until it is told to let go, and then takes it again.
struct Holder {
    lock: Mutex<u64>,
    held: AtomicBool,
    go: AtomicBool,
    taken: AtomicBool,
    stop: AtomicBool,
    others: AtomicU64,
}

impl Holder {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lock: Mutex::new(0),
            held: AtomicBool::new(false),
            go: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            others: AtomicU64::new(0),
        })
    }

    async fn hold(self: Arc<Self>) {
        while !self.stop.load(Ordering::SeqCst) {
            let mut guard = self.lock.lock().unwrap();
            self.held.store(true, Ordering::SeqCst);
            while !self.go.swap(false, Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            *guard += 1;
            self.held.store(false, Ordering::SeqCst);
            drop(guard);
            // The lock is not fair: whoever waits for it comes first.
            while !self.taken.swap(false, Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
        }
    }

    /// On a worker of the host.
    async fn take(self: Arc<Self>, sender: mpsc::Sender<u64>) {
        let count = *self.lock.lock().unwrap();
        self.taken.store(true, Ordering::SeqCst);
        sender.send(count).unwrap();
    }

    /// A poll that stands too, so that aging takes its time.
    async fn stand_beside(self: Arc<Self>) {
        self.others.fetch_add(1, Ordering::SeqCst);
        while !self.stop.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    }
}

fn wait_for(what: &str, scheduler: &Scheduler, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        let stats = scheduler.preempt_stats();
        assert!(started.elapsed() < HANG, "{what}: {stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The only worker of tokio waits for a lock whose holder is stopped for good: killed, so that policy never lets it run again.
#[test]
fn a_worker_of_the_host_waits_for_a_poll_that_is_stopped() {
    let _alone = alone();
    let runtime = common::runtime(1);
    let handle = runtime.handle().clone();
    let builder = Scheduler::builder().handle(handle.clone()).vcpus(1);
    let scheduler = builder.preempt(Preempt::default()).build().unwrap();
    let group = scheduler.group("group").unwrap().create().unwrap();
    let holder = Holder::new();
    drop(group.spawn(holder.clone().hold()));
    for _ in 0..20 {
        drop(group.spawn(holder.clone().stand_beside()));
    }
    wait_for("began", &scheduler, || {
        let others = holder.others.load(Ordering::SeqCst);
        others == 20 && holder.held.load(Ordering::SeqCst)
    });
    group.kill_immediately().unwrap();
    let mut worst = Duration::ZERO;
    for _round in 0..ROUNDS_MAX {
        wait_for("held", &scheduler, || holder.held.load(Ordering::SeqCst));
        // Some looks later it stands.
        std::thread::sleep(Duration::from_millis(10));
        holder.go.store(true, Ordering::SeqCst);
        let (sender, receiver) = mpsc::channel();
        let began = Instant::now();
        handle.spawn(holder.clone().take(sender));
        let answer = receiver.recv_timeout(HANG);
        assert!(answer.is_ok(), "hangs: {:?}", scheduler.preempt_stats());
        worst = worst.max(began.elapsed());
        if scheduler.preempt_stats().unwrap().missed_beats > 0 {
            break;
        }
    }
    let stats = scheduler.preempt_stats().unwrap();
    assert!(stats.missed_beats > 0, "only aging came: {stats:?}");
    println!("the host waited for {worst:?} at most");
    assert!(worst < BOUND, "{worst:?} {stats:?}");
    holder.stop.store(true, Ordering::SeqCst);
    runtime.block_on(async {
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {stats:?}");
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

/// The same with a freeze, after which nothing of the group runs: the host goes before the freeze.
#[test]
fn a_worker_of_the_host_waits_for_a_poll_that_is_frozen() {
    let _alone = alone();
    let runtime = common::runtime(1);
    let handle = runtime.handle().clone();
    let builder = Scheduler::builder().handle(handle.clone()).vcpus(1);
    let scheduler = builder.preempt(Preempt::default()).build().unwrap();
    let group = scheduler.group("group").unwrap().create().unwrap();
    let holder = Holder::new();
    drop(group.spawn(holder.clone().hold()));
    wait_for("detached", &scheduler, || {
        scheduler.preempt_stats().unwrap().detached >= 1 && holder.held.load(Ordering::SeqCst)
    });
    group.freeze_immediately().unwrap();
    let pauses = || scheduler.preempt_stats().unwrap().pauses;
    wait_for("stands", &scheduler, || pauses() >= 1);
    holder.go.store(true, Ordering::SeqCst);
    let (sender, receiver) = mpsc::channel();
    let began = Instant::now();
    handle.spawn(holder.clone().take(sender));
    let answer = receiver.recv_timeout(HANG);
    println!("the host waited for {:?}", began.elapsed());
    let stats = scheduler.preempt_stats().unwrap();
    assert!(answer.is_ok(), "hangs: {stats:?}");
    holder.stop.store(true, Ordering::SeqCst);
    group.thaw().unwrap();
    runtime.block_on(async {
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {stats:?}");
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

/// A lock in user space: whoever waits for it looks busy, so only aging comes. A stopped holder needs 1 ms of CPU time to let go; by the header
/// that takes 100 ms alone.
#[test]
fn a_stopped_poll_holds_a_spinlock_for_ever() {
    let _alone = alone();
    let runtime = common::runtime(2);
    runtime.block_on(async {
        let builder = Scheduler::builder().vcpus(2);
        let scheduler = builder.preempt(Preempt::default()).build().unwrap();
        let group = scheduler.group("holder").unwrap().create().unwrap();
        let other = scheduler.group("other").unwrap().create().unwrap();
        let (locked, go) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (lock, may_go) = (locked.clone(), go.clone());
        drop(group.spawn(async move {
            lock.store(true, Ordering::SeqCst);
            while !may_go.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            let mut sum = 0_u64;
            for step in 0..300_000_u64 {
                sum = std::hint::black_box(sum.wrapping_add(step));
            }
            lock.store(false, Ordering::SeqCst);
        }));
        let started = Instant::now();
        while !locked.load(Ordering::SeqCst) || scheduler.preempt_stats().unwrap().detached == 0 {
            assert!(started.elapsed() < HANG, "{:?}", scheduler.preempt_stats());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A busy machine keeps the spinner from its processor, and then the stopped poll has its short turns by rescue; one that began
        // before it may go can last until after that.
        let turns = |stats: PreemptStats| stats.aged + stats.rescues + stats.missed_beats;
        let before = turns(scheduler.preempt_stats().unwrap());
        group.kill_immediately().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        go.store(true, Ordering::SeqCst);
        let (lock, began) = (locked.clone(), Instant::now());
        let spinner = other.spawn(async move {
            while lock.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            began.elapsed()
        });
        let waited = tokio::time::timeout(HANG, spinner).await;
        let stats = scheduler.preempt_stats().unwrap();
        let waited = waited
            .unwrap_or_else(|_| panic!("hangs: {stats:?}"))
            .unwrap();
        println!("spun for {waited:?}");
        assert!(waited < BOUND, "{waited:?} {stats:?}");
        assert!(turns(stats) > before, "who let it run? {stats:?}");
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {stats:?}");
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}
