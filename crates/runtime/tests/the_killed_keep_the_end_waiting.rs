//! Hazard: polls that were stopped by `kill_immediately` stay so as their scheduler shuts down, which then waits until each has had a short turn,
//! one in 20 to 30 ms, on an idle machine too. On real threads: what is judged is by what they get on, and bounds of time are generous.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::eventually;
use preempted::{HANG, compute};
use quotient::{Group, Scheduler};

/// Enough that so many short turns take two seconds.
const MANY: usize = 100;
const FEW: usize = 4;
/// A poll that is killed stops within some 10 ms. One that does not, on a busy machine, makes the test weaker, and fails nothing.
const STOPS: Duration = Duration::from_millis(200);

fn on_two<F: Future<Output = ()>>(body: impl FnOnce(Scheduler) -> F) {
    preempted::run(2, Duration::from_secs(10), body);
}

/// What the killed polls of a test share.
#[derive(Clone, Default)]
struct Polls {
    began: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    go: Arc<AtomicBool>,
}

impl Polls {
    /// Computes until it may go, and does `last` before it ends.
    fn compute_before(&self, last: impl FnOnce()) {
        self.began.fetch_add(1, Ordering::SeqCst);
        compute(|| self.go.load(Ordering::Relaxed));
        last();
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    fn spawn(&self, group: &Group, last: impl FnOnce() + Send + 'static) {
        let polls = self.clone();
        drop(group.spawn(async move { polls.compute_before(last) }));
    }

    async fn have_begun(&self, count: usize) {
        let have_begun = || self.began.load(Ordering::SeqCst) >= count;
        eventually("all have begun", have_begun).await;
    }

    fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }
}

#[test]
fn for_a_short_turn_of_each() {
    on_two(|scheduler| async move {
        let group = scheduler.group("killed").unwrap().create().unwrap();
        let polls = Polls::default();
        for _ in 0..MANY {
            polls.spawn(&group, || {});
        }
        polls.have_begun(MANY).await;
        group.kill_immediately().unwrap();
        tokio::time::sleep(STOPS).await;
        polls.go.store(true, Ordering::SeqCst);
        let aged = || scheduler.preempt_stats().unwrap().aged;
        let (before, began) = (aged(), Instant::now());
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        let (passed, short) = (began.elapsed(), aged() - before);
        println!("{passed:?}, {short} short turns");
        let stats = scheduler.preempt_stats();
        assert!(ended.is_ok(), "{} ended, {stats:?}", polls.ended());
        // By turns each ends in its first. Of short turns beside that there is one in 20 ms: half as many as polls take a second, ten times what
        // all the turns take on a machine that computes something else.
        assert!(short < MANY as u64 / 2, "{short} in {passed:?}: {stats:?}");
    });
}

/// One that never returns and one that sleeps in the kernel keep neither the others nor who waits for a time, which says which they are.
#[test]
fn beside_one_that_never_returns() {
    on_two(|scheduler| async move {
        let group = scheduler.group("killed").unwrap().create().unwrap();
        let (polls, endless) = (Polls::default(), Polls::default());
        // A failure is not to hang.
        let _stop = SetOnDrop(endless.go.clone());
        endless.spawn(&group, || {});
        let (wake, sleeps) = std::sync::mpsc::channel::<()>();
        polls.spawn(&group, move || {
            let _ = sleeps.recv();
        });
        for _ in 0..FEW {
            polls.spawn(&group, || {});
        }
        let of_function = polls.clone();
        let function = group.spawn_blocking(move || of_function.compute_before(|| {}));
        polls.have_begun(FEW + 2).await;
        endless.have_begun(1).await;
        group.kill_immediately().unwrap();
        tokio::time::sleep(STOPS).await;
        polls.go.store(true, Ordering::SeqCst);
        let blocked = || scheduler.preempt_stats().unwrap().blocked;
        let (before, began) = (blocked(), Instant::now());
        let short = Duration::from_millis(100);
        let mut unfinished = scheduler.shutdown_timeout(short).await.unwrap_err();
        while (unfinished.tasks > 2 || polls.ended() < FEW + 1) && began.elapsed() < HANG {
            unfinished = scheduler.shutdown_timeout(short).await.unwrap_err();
        }
        let stats = scheduler.preempt_stats();
        println!("{:?}: {unfinished} {stats:?}", began.elapsed());
        assert_eq!(unfinished.tasks, 2, "{unfinished} {stats:?}");
        assert_eq!(unfinished.polling.len(), 2, "{unfinished} {stats:?}");
        assert_eq!(polls.ended(), FEW + 1, "{stats:?}");
        drop(function);
        // It is found to sleep once, or a few times. Each time costs a turn, so not at every look.
        tokio::time::sleep(STOPS).await;
        assert!(blocked() - before < 20, "{:?}", scheduler.preempt_stats());
        wake.send(()).unwrap();
        endless.go.store(true, Ordering::SeqCst);
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "{:?}", scheduler.preempt_stats());
    });
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
