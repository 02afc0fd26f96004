//! Hazards: one tenant's functions and jobs, asleep or throttled, take all places, and no function, job or checkpoint of anybody else ever begins, or
//! one at a time where there are two processors; or they take all threads of tokio's blocking pool. On real threads: bounds of time are those of a
//! hang.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::eventually;
use preempted::{HANG, Used, limited, run_with_places as run};
use quotient::{Group, Scheduler, ThreadMeter};

/// More than there used to be places for what is blocked, with [`PLACES`].
const MANY: usize = 600;
const PLACES: usize = 8;
/// A hang, found before [`HANG`] is.
const LONG: Duration = Duration::from_secs(40);

/// Where threads sleep until they are let go.
#[derive(Default)]
struct Bed {
    is_over: Mutex<bool>,
    over: Condvar,
    asleep: AtomicUsize,
}

impl Bed {
    fn sleep(&self) {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let is_over = self.is_over.lock().unwrap();
        drop(self.over.wait_while(is_over, |is_over| !*is_over).unwrap());
    }

    fn wake_all(&self) {
        *self.is_over.lock().unwrap() = true;
        self.over.notify_all();
    }

    /// Until no more of them come.
    async fn is_full(&self) {
        let (mut before, mut same) = (0, 0);
        let end = Instant::now() + LONG;
        while before == 0 || same < 10 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.asleep.load(Ordering::SeqCst);
            same = if now == before { same + 1 } else { 0 };
            before = now;
            assert!(Instant::now() < end, "{before} sleep");
        }
    }
}

/// Lets them go where the test fails, too: a runtime waits for its functions.
struct WakesAll(Arc<Bed>);

impl Drop for WakesAll {
    fn drop(&mut self) {
        self.0.wake_all();
    }
}

/// The same of what computes.
struct StopsAll(Arc<Used>);

impl Drop for StopsAll {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// A function, a job and a checkpoint of the group begin and end.
async fn all_begin(scheduler: &Scheduler, group: &Group) {
    let function = tokio::time::timeout(LONG, group.spawn_blocking(|| 7)).await;
    let path = group.path();
    assert!(
        function.is_ok(),
        "a function of {path}: {:?}",
        scheduler.preempt_stats()
    );
    let done = Arc::new(AtomicUsize::new(0));
    let thread = |with: fn(&Group)| {
        let (group, done) = (group.clone(), done.clone());
        std::thread::spawn(move || {
            with(&group);
            done.fetch_add(1, Ordering::SeqCst);
        })
    };
    drop(thread(|group| ThreadMeter::run(group, || ()).unwrap()));
    drop(thread(|group| {
        ThreadMeter::enter(group).unwrap().checkpoint();
    }));
    eventually("a job and a checkpoint", || {
        done.load(Ordering::SeqCst) == 2
    })
    .await;
}

/// What a tenant that sleeps in all it can get leaves to its own groups and to other tenants.
async fn others_begin(scheduler: &Scheduler) {
    let other = limited(scheduler, "other", "max");
    let sibling = limited(scheduler, "hog/sibling", "max");
    let narrow = limited(scheduler, "narrow", "20ms/100ms");
    for group in [&other, &sibling, &narrow] {
        all_begin(scheduler, group).await;
    }
}

#[test]
fn jobs_that_sleep_keep_all_others_from_beginning() {
    run(PLACES, |scheduler| async move {
        let hog = limited(&scheduler, "hog/sleeper", "max");
        let bed = Arc::new(Bed::default());
        let wakes = WakesAll(bed.clone());
        let threads: Vec<_> = (0..MANY)
            .map(|_| {
                let (hog, bed) = (hog.clone(), bed.clone());
                let thread = std::thread::Builder::new().stack_size(128 << 10);
                let job = move || ThreadMeter::run(&hog, || bed.sleep()).unwrap();
                thread.spawn(job).unwrap()
            })
            .collect();
        bed.is_full().await;
        others_begin(&scheduler).await;
        drop(wakes);
        eventually("the sleepers", || {
            threads.iter().all(|one| one.is_finished())
        })
        .await;
        assert_eq!(bed.asleep.load(Ordering::SeqCst), MANY);
    });
}

#[test]
fn functions_that_sleep_keep_all_others_from_the_pool() {
    run(PLACES, |scheduler| async move {
        let hog = limited(&scheduler, "hog/sleeper", "max");
        let bed = Arc::new(Bed::default());
        let wakes = WakesAll(bed.clone());
        let function = |_| {
            let bed = bed.clone();
            hog.spawn_blocking(move || bed.sleep())
        };
        let functions: Vec<_> = (0..MANY).map(function).collect();
        bed.is_full().await;
        others_begin(&scheduler).await;
        // Nor a group's own jobs, which need no thread of the pool.
        let job = {
            let hog = hog.clone();
            std::thread::spawn(move || ThreadMeter::run(&hog, || ()).unwrap())
        };
        eventually("a job of its own", || job.is_finished()).await;
        drop(wakes);
        for function in functions {
            function.await.unwrap();
        }
    });
}

/// Tenants that come one after another leave less than one place. Who has two virtual CPUs is given two functions at a time, which
/// these two need: each computes until the other has begun.
#[test]
fn functions_that_stand_leave_one_processor_to_another_tenant() {
    run(32, |scheduler| async move {
        let used = Arc::new(Used::default());
        let _stops = StopsAll(used.clone());
        for number in 0..4 {
            let hog = limited(&scheduler, &format!("hog{number}"), "1ms/1s");
            for _ in 0..100 {
                let used = used.clone();
                drop(hog.spawn_blocking(move || used.compute(HANG)));
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let victim = scheduler.group("victim").unwrap().weight(10_000);
        let victim = victim.create().unwrap();
        let here = Arc::new(AtomicUsize::new(0));
        let function = |_| {
            let here = here.clone();
            victim.spawn_blocking(move || {
                here.fetch_add(1, Ordering::SeqCst);
                let end = Instant::now() + LONG;
                preempted::compute(|| here.load(Ordering::SeqCst) >= 2 || Instant::now() > end);
                here.load(Ordering::SeqCst)
            })
        };
        let both: Vec<_> = (0..2).map(function).collect();
        for one in both {
            let seen = one.await.unwrap();
            assert_eq!(seen, 2, "alone: {:?}", scheduler.preempt_stats());
        }
    });
}
