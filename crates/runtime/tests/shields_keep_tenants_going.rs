//! Code of a tenant's that ran under a shield of the runtime's, where no limit stops it: destructors of functions that its own runtime does not
//! take any more, and the waker of its local set, which a kill woke. (Under a limit of a twentieth they had 0.35 to 0.94 of a processor.) Such
//! a waker also ran on the thread of whoever ended the group or the scheduler, for as long as it liked. On real threads: bounds are
//! generous, and the faults exceed them many times.

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
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use common::eventually;
use preempted::{HANG, Used, limited, run};
use quotient::{Group, Preempt, Scheduler};
use tokio::task::LocalSet;

const WATCHED: Duration = Duration::from_secs(4);
const END: Duration = Duration::from_secs(10);
/// How long a call may take that is to take [`BOUND`] at most.
const PATIENCE: Duration = Duration::from_secs(30);
const BOUND: Duration = Duration::from_millis(100);
/// What a destructor or a waker computes.
const LONG: Duration = Duration::from_secs(2);

/// Ends what computes or sleeps, at a panic of the test too.
struct Stop(Arc<Used>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// Computes when it is dropped.
struct Bomb(Arc<Used>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.compute(LONG);
    }
}

/// What functions of a group under a limit of a twentieth compute, that do `act` all the time.
fn keeps_to_the_limit(act: impl Fn(&Group, &Arc<Used>) + Clone + Send + 'static) {
    run(2, END, |scheduler| async move {
        let group = limited(&scheduler, "limited", "5ms/100ms");
        let used = Arc::new(Used::default());
        let stop = Stop(used.clone());
        for _ in 0..2 {
            let (group, used, act) = (group.clone(), used.clone(), act.clone());
            drop(group.clone().spawn_blocking(move || {
                while !used.stop.load(Ordering::SeqCst) {
                    act(&group, &used);
                }
            }));
        }
        eventually("somebody", || used.so_far() > Duration::ZERO).await;
        let before = (used.so_far(), Instant::now());
        tokio::time::sleep(WATCHED).await;
        let (time, passed) = (used.so_far() - before.0, before.1.elapsed());
        println!("{time:?} in {passed:?}: {:?}", scheduler.preempt_stats());
        // What the dead may have ahead, and short turns of those that stand.
        let allowed = passed.mul_f64(0.05 + 0.03) + Duration::from_millis(60);
        assert!(time <= allowed, "{time:?} in {passed:?}");
        drop(stop);
    });
}

/// The runtime has ended, so that it drops the function where that is spawned.
#[test]
fn a_function_that_is_dropped_where_it_is_spawned_voids_a_limit() {
    let ended = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let handle = ended.handle().clone();
    ended.shutdown_background();
    keeps_to_the_limit(move |group, used| {
        let _ended = handle.enter();
        let bomb = Bomb(used.clone());
        drop(group.spawn_blocking(move || drop(bomb)));
    });
}

/// What a waker of a local set does once it is armed.
struct Hostile {
    armed: AtomicBool,
    woken: AtomicBool,
    act: Box<dyn Fn() + Send + Sync>,
}

impl Wake for Hostile {
    fn wake(self: Arc<Self>) {
        if self.armed.load(Ordering::SeqCst) && !self.woken.swap(true, Ordering::SeqCst) {
            (self.act)();
        }
    }
}

/// A local set with one task of `group`, polled by hand with a waker that does `act` from here on.
fn local_set(group: &Group, act: impl Fn() + Send + Sync + 'static) -> (LocalSet, Arc<Hostile>) {
    let mut set = LocalSet::new();
    {
        let _set = set.enter();
        drop(group.spawn_local(std::future::pending::<()>()));
    }
    let hostile = Arc::new(Hostile {
        armed: AtomicBool::new(false),
        woken: AtomicBool::new(false),
        act: Box::new(act),
    });
    let waker = Waker::from(hostile.clone());
    for _ in 0..3 {
        let polled = Pin::new(&mut set).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    hostile.armed.store(true, Ordering::SeqCst);
    (set, hostile)
}

#[test]
fn a_waker_in_a_kill_of_ones_own_voids_a_limit() {
    let number = std::sync::atomic::AtomicU64::new(0);
    let number = Arc::new(number);
    keeps_to_the_limit(move |group, used| {
        let name = number.fetch_add(1, Ordering::Relaxed).to_string();
        let child = group.child(&name).create().unwrap();
        let computes = used.clone();
        let (set, hostile) = local_set(&child, move || computes.compute(LONG));
        child.kill().unwrap();
        let began = Instant::now();
        while !hostile.woken.load(Ordering::SeqCst) && !used.stop.load(Ordering::SeqCst) {
            assert!(began.elapsed() < HANG, "never woken");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(set);
        child.remove(quotient::Leftover::Kill).unwrap();
    });
}

/// `call` ends a group whose local set has a waker that sleeps until it has returned, with and without preemption.
fn is_not_kept<F: Future<Output = ()>>(call: impl Fn(Scheduler, Group) -> F) {
    for preempts in [true, false] {
        let _alone = preempted::alone();
        let runtime = common::runtime(2);
        let used = Arc::new(Used::default());
        let stop = Stop(used.clone());
        let (scheduler, hostile) = runtime.block_on(async {
            let mut builder = Scheduler::builder().vcpus(2);
            if preempts {
                builder = builder.preempt(Preempt::default());
            }
            let scheduler = builder.build().unwrap();
            let group = scheduler.group("hostile").unwrap().create().unwrap();
            let sleeps = used.clone();
            let asleep = move || {
                let began = Instant::now();
                while !sleeps.stop.load(Ordering::SeqCst) && began.elapsed() < HANG {
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let of = group.clone();
            let ended = used.clone();
            std::thread::spawn(move || {
                let (_set, hostile) = local_set(&of, asleep);
                let _ = sender.send(hostile);
                while !ended.stop.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let hostile = receiver.await.unwrap();
            let began = Instant::now();
            call(scheduler.clone(), group).await;
            let took = began.elapsed();
            assert!(took < PATIENCE, "{took:?}, preempts: {preempts}");
            eventually("it is woken", || hostile.woken.load(Ordering::SeqCst)).await;
            (scheduler, hostile)
        });
        drop(stop);
        let ended =
            runtime.block_on(async { tokio::time::timeout(HANG, scheduler.shutdown()).await });
        assert!(ended.is_ok(), "no end, preempts: {preempts}");
        drop(hostile);
    }
}

#[test]
fn a_waker_keeps_a_shutdown_beyond_its_bound() {
    is_not_kept(|scheduler, _| async move {
        let _ = scheduler.shutdown_timeout(BOUND).await;
    });
}

#[test]
fn a_waker_keeps_a_kill() {
    is_not_kept(|_, group| async move { group.kill().unwrap() });
}

#[test]
fn a_waker_keeps_a_kill_beyond_its_bound() {
    is_not_kept(|_, group| async move {
        let _ = group.kill_within(BOUND).await.unwrap();
    });
}
