//! Hazards: a pool's threads work for nobody, for the wrong group, or beyond its limit; a panic or a result is lost on the way. On real
//! threads: what is asserted of time is generous, since the machine is shared.

#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient::{Group, Leftover, Preempt, Scheduler};
use quotient_rayon::Pool;
use rayon::prelude::*;

/// Longer than anything here takes, on a busy machine too.
const HANG: Duration = Duration::from_secs(120);

/// Sums that take some tens of milliseconds.
fn compute() -> u64 {
    (0..20_000_u64)
        .into_par_iter()
        .map(|row| {
            (0..2_000).fold(row, |sum, value| {
                std::hint::black_box(sum.wrapping_mul(31) ^ value)
            })
        })
        .reduce(|| 0, u64::wrapping_add)
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + HANG;
    while !condition() {
        assert!(Instant::now() < end, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stolen_jobs_are_billed_to_nobody_or_to_the_wrong_group() {
    let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
    let group = |path| scheduler.group(path).unwrap().create().unwrap();
    let (acme, other) = (group("acme"), group("other"));
    let (pool, quiet) = (Pool::new(&acme, 3).unwrap(), Pool::new(&other, 3).unwrap());
    let paths = |pool: &Pool| {
        let pool = pool.clone();
        async move {
            let job = || {
                (0..300)
                    .into_par_iter()
                    .map(|_| Group::current().unwrap().path().to_owned())
            };
            pool.run(move || job().collect::<Vec<_>>()).await
        }
    };
    assert!(paths(&pool).await.iter().all(|path| path == "acme"));
    assert!(paths(&quiet).await.iter().all(|path| path == "other"));
    let before = (acme.cpu_time(), other.cpu_time());
    pool.run(compute).await;
    // Each thread bills when it is free; what the sums took is at least the larger part of a millisecond each.
    eventually("the group's clock", || {
        acme.cpu_time() - before.0 > Duration::from_millis(10)
    })
    .await;
    assert!(
        other.cpu_time() - before.1 < Duration::from_millis(10),
        "{:?}",
        other.cpu_time()
    );
    drop((pool, quiet));
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panics_and_results_are_lost_on_the_way() {
    let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
    let group = scheduler.group("acme").unwrap().create().unwrap();
    let pool = Pool::new(&group, 2).unwrap();
    assert_eq!(pool.group().path(), "acme");
    assert_eq!(pool.rayon().current_num_threads(), 2);
    let inner = pool.clone();
    let task = group.spawn(async move { inner.run(|| panic!("expected")).await });
    let payload = task.await.unwrap_err().into_panic();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"expected"));
    assert_eq!(pool.run(|| 7).await, 7);
    assert_eq!(tokio::task::block_in_place(|| pool.install(|| 8)), 8);
    // Nobody waits for it any more: it runs all the same.
    let ran = Arc::new(AtomicBool::new(false));
    let witness = ran.clone();
    drop(tokio::spawn({
        let pool = pool.clone();
        async move {
            pool.run(move || witness.store(true, Ordering::SeqCst))
                .await
        }
    }));
    eventually("a job without a caller", || ran.load(Ordering::SeqCst)).await;
    drop(pool);
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_of_dead_groups_hang() {
    let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
    let group = scheduler.group("acme").unwrap().create().unwrap();
    let pool = Pool::new(&group, 2).unwrap();
    pool.run(|| ()).await;
    group.remove(Leftover::Kill).unwrap();
    assert_eq!(pool.run(|| 1).await, 1);
    let late = Pool::new(&group, 2).unwrap();
    assert!(late.run(|| Group::current().is_none()).await);
    scheduler.shutdown().await;
    assert_eq!(pool.run(|| 2).await, 2);
}

/// What two threads that never end may use of one limit of a tenth; see `keeps_to_a_tenth` in the runtime's tests for the tolerance.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_run_beyond_their_groups_limit() {
    let builder = Scheduler::builder().vcpus(2).preempt(Preempt::default());
    let scheduler = builder.build().unwrap();
    let group = scheduler.group("limited").unwrap();
    let group = group.max("10ms/100ms").create().unwrap();
    let pool = Pool::new(&group, 2).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let endless = tokio::spawn({
        let pool = pool.clone();
        async move {
            pool.run(move || {
                while !told.load(Ordering::Relaxed) {
                    compute();
                }
            })
            .await;
        }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (mut over, mut seen) = (0, Vec::new());
    loop {
        let before = (group.cpu_time(), Instant::now());
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        let used = (group.cpu_time() - before.0).as_secs_f64() / before.1.elapsed().as_secs_f64();
        if (0.02..0.13).contains(&used) {
            break;
        }
        over += u32::from(used >= 0.13);
        seen.push(used);
        assert!(over < 3 && seen.len() < 40, "CPUs of 0.1 at most: {seen:?}");
    }
    stop.store(true, Ordering::Relaxed);
    group.set_max("max").unwrap();
    tokio::time::timeout(HANG, endless).await.unwrap().unwrap();
    drop(pool);
    scheduler.shutdown().await;
}
