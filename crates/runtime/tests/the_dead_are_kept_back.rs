//! A task that was aborted holds what it holds until its future is dropped: no freeze and no throttle may put that off.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{CountDrop, bombs, burn, eventually, on_every_host, scheduler, set_off};
use quotient::Group;

/// A bound on a wait that must end, and ends at once as a rule.
const LONG: Duration = Duration::from_secs(30);
/// How many tasks die at once.
const TASKS: usize = 50;

/// Tasks that wait for ever, each with something that counts its drop.
fn sleepers(group: &Group, drops: &Arc<AtomicUsize>) -> Vec<quotient::JoinHandle<()>> {
    let sleeper = || {
        let held = CountDrop(drops.clone());
        group.spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        })
    };
    (0..TASKS).map(|_| sleeper()).collect()
}

/// Uses up what the group may use for a minute.
async fn put_into_debt(group: &Group) {
    group.set_max("1ms/1s").unwrap();
    group
        .spawn_blocking(|| burn(Duration::from_millis(60)))
        .await
        .unwrap();
}

#[test]
fn what_is_aborted_in_a_frozen_group_is_dropped_at_once() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let drops = Arc::new(AtomicUsize::new(0));
        group.freeze().unwrap();
        // Never polled: they are picked, and kept.
        let tasks = sleepers(&group, &drops);
        tokio::time::sleep(Duration::from_millis(20)).await;
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert_eq!(drops.load(Ordering::SeqCst), TASKS);
        assert_eq!(scheduler.tasks(), 0);
        // The others stay where they are.
        let kept = sleepers(&group, &drops);
        tokio::time::sleep(Duration::from_millis(20)).await;
        kept[0].abort();
        eventually("one is gone", || scheduler.tasks() == TASKS - 1).await;
        assert!(group.is_frozen());
        scheduler.shutdown().await;
    });
}

#[test]
fn what_is_aborted_in_a_throttled_group_is_dropped_at_once() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let inner = group.child("inner").create().unwrap();
        put_into_debt(&group).await;
        let drops = Arc::new(AtomicUsize::new(0));
        let mut tasks = sleepers(&group, &drops);
        tasks.extend(sleepers(&inner, &drops));
        tokio::time::sleep(Duration::from_millis(20)).await;
        let last = tasks.split_off(2 * TASKS - 1);
        let started = Instant::now();
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert!(started.elapsed() < LONG, "some waited for the debt");
        assert_eq!(drops.load(Ordering::SeqCst), 2 * TASKS - 1);
        // Who lives waits for the debt to be paid, and dies at once by a kill.
        assert!(!last[0].is_finished());
        let started = Instant::now();
        assert_eq!(group.kill_within(LONG).await.unwrap(), None);
        assert!(started.elapsed() < LONG, "the kill waited for the debt");
        scheduler.shutdown().await;
    });
}

#[test]
fn destructors_of_the_dead_do_not_escape_the_limit() {
    on_every_host(|vcpus| async move {
        struct Busy;
        impl Drop for Busy {
            fn drop(&mut self) {
                burn(Duration::from_millis(50));
            }
        }
        let (scheduler, group) = scheduler(vcpus);
        let started = Instant::now();
        group.set_max("10ms/100ms").unwrap();
        // Throttled, so that the destructors run elsewhere.
        group
            .spawn_blocking(|| burn(Duration::from_millis(15)))
            .await
            .unwrap();
        let busy = Busy;
        let task = group.spawn(async move {
            let _busy = busy;
            std::future::pending::<()>().await;
        });
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        // The bill comes with the end of the poll that dropped it, a moment after the handle knows.
        let spent = Duration::from_millis(15 + 50);
        eventually("it is billed", || group.cpu_time() >= spent).await;
        group.spawn(async {}).await.unwrap();
        // One quota was there at the start. What is beyond takes five refills and a half, of which the first may be near.
        assert!(
            started.elapsed() >= Duration::from_millis(400),
            "{:?}",
            started.elapsed()
        );
        scheduler.shutdown().await;
    });
}

/// However many die at once, by an abort or by a kill: their destructors use what the limit allows, on the clock of their group, and
/// others are served meanwhile.
#[test]
fn bombs_do_not_escape_the_limit_nor_the_clock() {
    const BOMBS: u32 = 20;
    const FUSE: Duration = Duration::from_millis(5);
    for kill in [false, true] {
        on_every_host(|vcpus| async move {
            let (scheduler, group) = scheduler(vcpus);
            group.set_max("10ms/100ms").unwrap();
            let inner = group.child("inner").create().unwrap();
            let started = Instant::now();
            let bombs = bombs(&inner, BOMBS, FUSE);
            if kill {
                inner.kill().unwrap();
            }
            set_off(bombs).await;
            // Of 100 ms the first quota, the allowance and a poll on each virtual CPU come at once: 30 ms. The rest, 70 ms, takes
            // 700 ms, and a period less as refills go.
            let elapsed = started.elapsed();
            assert!(elapsed >= Duration::from_millis(500), "{elapsed:?}");
            scheduler.shutdown().await;
            // All of it, but for what a busy host makes look like steal.
            let half = BOMBS * FUSE / 2;
            assert!(inner.cpu_time() >= half, "{:?}", inner.cpu_time());
            assert!(group.cpu_time() >= inner.cpu_time());
            assert!(scheduler.cpu_time() >= group.cpu_time());
            assert!(
                scheduler.cpu_time() < group.cpu_time() + FUSE,
                "billed twice"
            );
        });
    }
}
