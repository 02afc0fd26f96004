//! `in_group`: any future in any task is metered, and in foreign tasks ordered.
#![cfg(not(loom))]

mod common;

use std::time::{Duration, Instant};

use common::{burn, eventually, on_every_host, scheduler};
use quotient::{Group, InGroupExt, Scheduler};

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_foreign_task_is_charged_and_its_wake_ups_arrive() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<u32>(1);
        let metered = {
            let future = async move {
                let mut sum = 0;
                while let Some(value) = receiver.recv().await {
                    burn(MS / 2);
                    sum += value;
                }
                assert_eq!(Group::current().unwrap().path(), "tenants/acme");
                sum
            };
            tokio::spawn(future.in_group(&group))
        };
        for value in 0..20 {
            sender.send(value).await.unwrap();
        }
        drop(sender);
        assert_eq!(metered.await.unwrap(), 190);
        assert!(
            group.cpu_time() >= 8 * MS,
            "charged only {:?}",
            group.cpu_time()
        );
        assert!(Group::current().is_none());
        eventually("the gate's task ends", || scheduler.tasks() == 0).await;
        scheduler.shutdown().await;
    });
}

#[test]
fn a_nested_wrap_switches_the_charged_group() {
    on_every_host(|vcpus| async move {
        let (scheduler, outer) = scheduler(vcpus);
        let inner = scheduler.group("other").unwrap().create().unwrap();
        let target = inner.clone();
        outer
            .spawn(async move {
                burn(2 * MS);
                let path = async {
                    burn(10 * MS);
                    tokio::task::yield_now().await;
                    quotient::spawn(async { Group::current().unwrap().path().to_owned() })
                        .await
                        .unwrap()
                }
                .in_group(&target)
                .await;
                assert_eq!(
                    path, "other",
                    "children of the inner part belong to the inner group"
                );
                assert_eq!(Group::current().unwrap().path(), "tenants/acme");
            })
            .await
            .unwrap();
        scheduler.shutdown().await;
        // Generous on both sides: the point is who pays, and the host may steal processor time from either.
        assert!(
            inner.cpu_time() >= 9 * MS,
            "inner was charged {:?}",
            inner.cpu_time()
        );
        assert!(
            outer.cpu_time() < 9 * MS,
            "outer was charged {:?}",
            outer.cpu_time()
        );
    });
}

#[test]
fn a_frozen_group_holds_foreign_tasks_and_a_killed_one_lets_them_go() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counter = count.clone();
        let foreign = tokio::spawn(
            async move {
                loop {
                    counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    tokio::time::sleep(MS / 4).await;
                }
            }
            .in_group(&group),
        );
        let polled = || count.load(std::sync::atomic::Ordering::SeqCst);
        eventually("running", || polled() > 3).await;
        group.freeze().unwrap();
        tokio::time::sleep(5 * MS).await;
        let frozen = polled();
        tokio::time::sleep(10 * MS).await;
        assert_eq!(polled(), frozen);
        group.thaw().unwrap();
        eventually("running again", || polled() > frozen + 3).await;
        foreign.abort();
        assert!(foreign.await.unwrap_err().is_cancelled());
        eventually("the gate's task ends", || scheduler.tasks() == 0).await;
        scheduler.shutdown().await;
    });
}

#[test]
fn local_tasks_of_a_local_set_are_members_too() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let local = tokio::task::LocalSet::new();
        let member = group.clone();
        let value = local
            .run_until(async move {
                let not_send = std::rc::Rc::new(5);
                member
                    .spawn_local(async move {
                        burn(2 * MS);
                        tokio::task::yield_now().await;
                        *not_send
                    })
                    .await
                    .unwrap()
            })
            .await;
        assert_eq!(value, 5);
        assert!(group.cpu_time() >= MS, "charged {:?}", group.cpu_time());
        scheduler.shutdown().await;
    });
}

/// Hazard: a stretch in which the thread did not run is charged as far as the thread has used as much since its CPU clock was read last,
/// though that was charged already: many short polls and a host with little to give made 1.4 times what the process used.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_a_thread_used_is_charged_again_for_an_absence() {
    /// Of 5 us, in debug builds more.
    const SHORT: usize = 400;
    let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
    let group = |path| scheduler.group(path).unwrap().create().unwrap();
    let (caller, callee) = (group("caller"), group("callee"));
    let charged = callee.clone();
    let polls = caller.spawn(async move {
        let before = common::time_here();
        for _ in 0..40 {
            for _ in 0..SHORT {
                let began = Instant::now();
                let short = async {
                    while began.elapsed() < Duration::from_micros(5) {
                        std::hint::spin_loop();
                    }
                };
                short.in_group(&charged).await;
            }
            let absent = async { std::thread::sleep(Duration::from_millis(3)) };
            absent.in_group(&charged).await;
        }
        common::time_here() - before
    });
    let used = polls.await.unwrap();
    let cpu = callee.stats().cpu;
    // What is lost to other programs in less than half a millisecond is charged, as long as nothing longer follows.
    assert!(cpu < used.mul_f64(1.3), "{cpu:?} charged of {used:?}");
    assert!(cpu > used.mul_f64(0.5), "{cpu:?} charged of {used:?}");
    scheduler.shutdown().await;
}
