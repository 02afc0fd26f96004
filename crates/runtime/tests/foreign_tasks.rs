//! Hazards of billing what `tokio::spawn` starts: time that nobody pays, a child of the wrong group, a meter that a panic or an abort
//! leaves behind, a virtual CPU that is somebody's. With `RUSTFLAGS="--cfg tokio_unstable"`.

#![cfg(all(tokio_unstable, target_os = "linux"))]

mod common;

use std::time::Duration;

use common::{burn, eventually, guarded};
use quotient::{Group, Scheduler};

/// The path of the caller's group.
fn here() -> Option<String> {
    Group::current().map(|group| group.path().to_owned())
}

fn with_hooks(test: impl AsyncFn(Scheduler)) {
    for workers in [1, 2] {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(workers).enable_all();
        let runtime = quotient::bill_foreign_tasks(&mut builder).build().unwrap();
        runtime.block_on(guarded(async {
            let scheduler = Scheduler::builder().vcpus(workers).build().unwrap();
            test(scheduler.clone()).await;
            scheduler.shutdown().await;
        }));
    }
}

#[test]
fn what_tokio_spawns_is_paid_by_nobody() {
    with_hooks(async |scheduler| {
        let group = scheduler.group("acme").unwrap().create().unwrap();
        let other = scheduler.group("other").unwrap().create().unwrap();
        let task = group.spawn(async {
            let child = tokio::spawn(async {
                burn(Duration::from_millis(20));
                tokio::task::yield_now().await;
                burn(Duration::from_millis(10));
                // A grandchild, a task of the group, and one of somebody else from within.
                let grandchild = tokio::spawn(async {
                    burn(Duration::from_millis(10));
                    here()
                });
                (
                    here(),
                    grandchild.await.unwrap(),
                    quotient::spawn(async { here() }).await.unwrap(),
                )
            });
            child.await.unwrap()
        });
        let acme = Some("acme".to_owned());
        assert_eq!(task.await.unwrap(), (acme.clone(), acme.clone(), acme));
        let stats = group.stats();
        assert!(stats.foreign_cpu >= Duration::from_millis(40), "{stats:?}");
        assert!(stats.cpu >= stats.foreign_cpu, "{stats:?}");
        // Spawned by nobody: nobody's.
        assert_eq!(tokio::spawn(async { here() }).await.unwrap(), None);
        assert_eq!(other.stats().foreign_cpu, Duration::ZERO);
    });
}

#[test]
fn a_poll_that_panics_leaves_its_meter_behind() {
    with_hooks(async |scheduler| {
        let group = scheduler.group("acme").unwrap().create().unwrap();
        for _ in 0..20 {
            let task = group.spawn(async {
                let panics = tokio::spawn(async { panic!("expected") });
                let aborted = tokio::spawn(std::future::pending::<()>());
                aborted.abort();
                let never = tokio::spawn(async {});
                never.abort();
                (panics.await.unwrap_err().is_panic(), aborted.await.is_err())
            });
            assert_eq!(task.await.unwrap(), (true, true));
            assert_eq!(tokio::spawn(async { here() }).await.unwrap(), None);
        }
    });
}

#[test]
fn a_scheduler_that_a_group_builds_is_the_groups() {
    with_hooks(async |scheduler| {
        let group = scheduler.group("acme").unwrap().create().unwrap();
        let inner = group.spawn(async {
            let inner = Scheduler::builder().vcpus(1).build().unwrap();
            let task = inner.group("inner").unwrap().create().unwrap();
            let path = task.spawn(async {
                burn(Duration::from_millis(20));
                here()
            });
            (inner, path.await.unwrap())
        });
        let (inner, path) = inner.await.unwrap();
        assert_eq!(path, Some("inner".to_owned()));
        assert!(
            group.stats().foreign_cpu < Duration::from_millis(15),
            "{:?}",
            group.stats()
        );
        inner.shutdown().await;
    });
}

#[test]
fn foreign_tasks_of_a_group_that_was_removed_stop() {
    with_hooks(async |scheduler| {
        let group = scheduler.group("acme").unwrap().create().unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let child = group.spawn(async {
            tokio::spawn(async {
                let _ = receiver.await;
                here()
            })
        });
        let child = child.await.unwrap();
        eventually("no task is left", || group.stats().tasks == 0).await;
        group.remove(quotient::Leftover::Kill).unwrap();
        sender.send(()).unwrap();
        assert_eq!(child.await.unwrap(), None);
    });
}
