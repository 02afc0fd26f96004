//! What the end of a task sets off, the destructor of an output that nobody wants or the waker of its handle, ran between two polls, where
//! nobody can take a virtual CPU away: two outputs that computed in their destructors left an equal tenant nothing of two processors, and a limit of
//! a twentieth half a processor. On real threads: bounds are generous, and the faults exceed them many times.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use common::eventually;
use preempted::{HANG, Used, compute_for, limited, run};
use quotient::{Group, JoinHandle, Scheduler};

const VCPUS: usize = 2;
const WATCHED: Duration = Duration::from_secs(4);
/// How long an answer may take that nobody is to be kept from.
const PATIENCE: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(10);

/// Lets those that compute or sleep end, at a panic of the test too.
struct Stop(Arc<Used>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// Computes for long when it is dropped, and is counted after that.
struct Bomb {
    used: Arc<Used>,
    gone: Arc<AtomicUsize>,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        self.used.compute(HANG);
        self.gone.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sleeps when it wakes.
struct Sleepy(Arc<Used>, AtomicBool);

impl Wake for Sleepy {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        let began = Instant::now();
        while !self.0.stop.load(Ordering::SeqCst) && began.elapsed() < HANG {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Bombs of one test.
#[derive(Clone, Default)]
struct Bombs {
    used: Arc<Used>,
    gone: Arc<AtomicUsize>,
}

impl Bombs {
    fn bomb(&self) -> Bomb {
        let Self { used, gone } = self.clone();
        Bomb { used, gone }
    }

    fn gone(&self) -> usize {
        self.gone.load(Ordering::SeqCst)
    }
}

/// Until nobody has the task's handle any more: whoever dropped that later would drop the output.
async fn unwanted() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Whether tasks of another group are polled.
async fn others_get_on(scheduler: &Scheduler) {
    let victim = scheduler.group("victim").unwrap().create().unwrap();
    for _ in 0..20 {
        let answer = tokio::time::timeout(PATIENCE, victim.spawn(async {})).await;
        let answer = answer.unwrap_or_else(|_| panic!("kept: {:?}", scheduler.preempt_stats()));
        answer.unwrap();
    }
}

/// The ends of twice as many tasks as there are virtual CPUs last: others get on, and the scheduler waits for all of them.
fn keeps_nobody(spawn: impl Fn(&Group, Bomb)) {
    run(VCPUS, END, |scheduler| async move {
        let group = scheduler.group("hostile").unwrap().create().unwrap();
        let bombs = Bombs::default();
        let stop = Stop(bombs.used.clone());
        for _ in 0..2 * VCPUS {
            spawn(&group, bombs.bomb());
        }
        eventually("an end", || bombs.used.so_far() > Duration::ZERO).await;
        others_get_on(&scheduler).await;
        assert_eq!(bombs.gone(), 0);
        let ended = {
            let scheduler = scheduler.clone();
            tokio::spawn(async move { scheduler.shutdown().await })
        };
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!ended.is_finished(), "the scheduler ends before its tasks");
        drop(stop);
        ended.await.unwrap();
        assert_eq!(bombs.gone(), 2 * VCPUS);
    });
}

#[test]
fn an_output_that_nobody_wants_keeps_everybody() {
    keeps_nobody(|group, bomb| {
        drop(group.spawn(async {
            unwanted().await;
            bomb
        }));
    });
}

#[test]
fn the_payload_of_a_panic_keeps_everybody() {
    keeps_nobody(|group, bomb| {
        drop(group.spawn(async {
            unwanted().await;
            std::panic::resume_unwind(Box::new(bomb))
        }));
    });
}

#[test]
fn a_handles_waker_that_sleeps_keeps_everybody() {
    run(VCPUS, END, |scheduler| async move {
        let group = scheduler.group("hostile").unwrap().create().unwrap();
        let used = Arc::new(Used::default());
        let stop = Stop(used.clone());
        let (mut handles, mut wakers) = (Vec::new(), Vec::new());
        for _ in 0..2 * VCPUS {
            let sleepy = Arc::new(Sleepy(used.clone(), AtomicBool::new(false)));
            let end = tokio::time::sleep(Duration::from_millis(20));
            let mut handle: JoinHandle<()> = group.spawn(end);
            let waker = Waker::from(sleepy.clone());
            let polled = Pin::new(&mut handle).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            handles.push(handle);
            wakers.push(sleepy);
        }
        eventually("all wakers", || {
            wakers.iter().all(|waker| waker.1.load(Ordering::SeqCst))
        })
        .await;
        others_get_on(&scheduler).await;
        assert!(handles.iter().all(JoinHandle::is_finished));
        drop(stop);
    });
}

/// What they and their polls use, under a limit of a twentieth.
fn keeps_to_the_limit(spawn: impl Fn(&Group, Bomb)) {
    run(VCPUS, END, |scheduler| async move {
        let group = limited(&scheduler, "limited", "5ms/100ms");
        let bombs = Bombs::default();
        let stop = Stop(bombs.used.clone());
        for _ in 0..2 * VCPUS {
            spawn(&group, bombs.bomb());
        }
        eventually("an end", || bombs.used.so_far() > Duration::ZERO).await;
        let before = (bombs.used.so_far(), group.cpu_time(), Instant::now());
        tokio::time::sleep(WATCHED).await;
        let (used, passed) = (bombs.used.so_far() - before.0, before.2.elapsed());
        let charged = group.cpu_time() - before.1;
        println!(
            "{used:?} in {passed:?}, charged {charged:?}: {:?}",
            scheduler.preempt_stats()
        );
        // Polls of what has to be detached first, and short turns of those that stand.
        let allowed = passed.mul_f64(0.05 + 0.03) + Duration::from_millis(60);
        assert!(used <= allowed, "{used:?} in {passed:?}");
        // What has been used by the end of the last turn.
        assert!(charged + Duration::from_millis(60) >= used, "{charged:?}");
        drop(stop);
        eventually("the last one", || bombs.gone() == 2 * VCPUS).await;
    });
}

#[test]
fn outputs_void_a_limit() {
    keeps_to_the_limit(|group, bomb| {
        drop(group.spawn(async {
            unwanted().await;
            bomb
        }));
    });
}

/// Their polls were taken from their virtual CPUs before they ended.
#[test]
fn outputs_of_long_polls_void_a_limit() {
    keeps_to_the_limit(|group, bomb| {
        drop(group.spawn(async {
            unwanted().await;
            compute_for(Duration::from_millis(20));
            bomb
        }));
    });
}

/// An end is nobody's poll: a kill has nobody to wait for, and a freeze keeps none from going on.
#[test]
fn an_end_keeps_kills_and_freezes_waiting() {
    run(VCPUS, END, |scheduler| async move {
        let group = scheduler.group("hostile").unwrap().create().unwrap();
        let bombs = Bombs::default();
        let stop = Stop(bombs.used.clone());
        let bomb = bombs.bomb();
        drop(group.spawn(async {
            unwanted().await;
            bomb
        }));
        eventually("an end", || bombs.used.so_far() > Duration::ZERO).await;
        let left = tokio::time::timeout(PATIENCE, group.kill_within(HANG)).await;
        assert_eq!(left.expect("waits for an end"), Ok(None));
        group.freeze_immediately().unwrap();
        drop(stop);
        eventually("the end", || bombs.gone() == 1).await;
        group.thaw().unwrap();
    });
}
