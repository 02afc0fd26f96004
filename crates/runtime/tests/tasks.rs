//! Tasks behave as tokio's: outputs, panics, aborts, detached tasks, children in the parent's group.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{CountDrop, eventually, on_every_host, repeatedly, scheduler};
use quotient::{Group, JoinSet};

#[test]
fn outputs_reach_their_handles() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let handles: Vec<_> = (0..1000)
            .map(|index| group.spawn(async move { index * 2 }))
            .collect();
        for (index, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.await.unwrap(), index * 2);
        }
        scheduler.shutdown().await;
    });
}

#[test]
fn children_inherit_the_group() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let path = group
            .spawn(async {
                quotient::spawn(async {
                    let mut set = JoinSet::new();
                    set.spawn(async { Group::current().unwrap().path().to_owned() });
                    set.join_next().await.unwrap().unwrap()
                })
                .await
                .unwrap()
            })
            .await
            .unwrap();
        assert_eq!(path, "tenants/acme");
        assert!(Group::current().is_none());
        scheduler.shutdown().await;
    });
}

#[test]
fn a_panic_goes_to_the_handle_and_nobody_else() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let error = group
            .spawn(async {
                tokio::task::yield_now().await;
                std::panic::resume_unwind(Box::new("boom"));
            })
            .await
            .unwrap_err();
        assert!(error.is_panic());
        assert_eq!(*error.into_panic().downcast::<&str>().unwrap(), "boom");
        assert_eq!(group.spawn(async { 1 }).await.unwrap(), 1);
        scheduler.shutdown().await;
    });
}

#[test]
fn timers_io_and_channels_of_tokio_work_inside() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let (sender, mut receiver) = tokio::sync::mpsc::channel(4);
        let producer = group.spawn(async move {
            for index in 0..100 {
                if index % 10 == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                sender.send(index).await.unwrap();
            }
        });
        let consumer = group.spawn(async move {
            let mut sum = 0;
            while let Some(value) = receiver.recv().await {
                sum += value;
            }
            sum
        });
        producer.await.unwrap();
        assert_eq!(consumer.await.unwrap(), 4950);
        scheduler.shutdown().await;
    });
}

#[test]
fn abort_drops_the_future_and_says_so() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let dropped = Arc::new(AtomicUsize::new(0));
        let flag = CountDrop(dropped.clone());
        let handle = group.spawn(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        handle.abort();
        assert!(handle.await.unwrap_err().is_cancelled());
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        scheduler.shutdown().await;
    });
}

#[test]
fn shutdown_runs_every_destructor() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let dropped = Arc::new(AtomicUsize::new(0));
        for index in 0..300 {
            let flag = CountDrop(dropped.clone());
            group.spawn(async move {
                let _flag = flag;
                loop {
                    match index % 3 {
                        0 => std::future::pending::<()>().await,
                        1 => tokio::task::yield_now().await,
                        _ => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        scheduler.shutdown().await;
        assert_eq!(dropped.load(Ordering::SeqCst), 300);
        assert_eq!(scheduler.tasks(), 0);
        assert!(group.try_spawn(async {}).is_err());
        assert!(group.spawn(async {}).await.unwrap_err().is_not_spawned());
    });
}

#[test]
fn dropping_the_host_runs_every_destructor() {
    let runtime = common::runtime(2);
    let dropped = Arc::new(AtomicUsize::new(0));
    let kept = runtime.block_on(async {
        let (scheduler, group) = scheduler(2);
        for index in 0..100 {
            let flag = CountDrop(dropped.clone());
            group.spawn(async move {
                let _flag = flag;
                if index % 2 == 0 {
                    std::future::pending::<()>().await;
                }
                loop {
                    tokio::task::yield_now().await;
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        (scheduler, group)
    });
    drop(runtime);
    // Where a busy machine has brought a stand-in, it drops what is left, on a thread that the runtime does not wait for.
    common::runtime(1).block_on(async {
        eventually("each destructor has run", || {
            dropped.load(Ordering::SeqCst) == 100 && kept.0.tasks() == 0
        })
        .await;
    });
}

#[test]
fn yielders_of_tokio_and_self_wakers_all_advance() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let mut set = JoinSet::new();
        for index in 0..200 {
            set.spawn_in(&group, async move {
                for _ in 0..100 {
                    if index % 2 == 0 {
                        tokio::task::yield_now().await;
                    } else {
                        quotient::checkpoint().await;
                        tokio::task::consume_budget().await;
                    }
                }
            });
        }
        while let Some(result) = set.join_next().await {
            result.unwrap();
        }
        scheduler.shutdown().await;
    });
}

/// Whoever spawns moves the future into its cell, through each function that it is handed to.
#[test]
fn a_large_future_overflows_the_stack() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        let large = || async {
            let bytes = [7_u8; 200 * 1024];
            tokio::task::yield_now().await;
            std::hint::black_box(&bytes)[7]
        };
        // On a worker, whose stack has two megabytes, from one of our tasks.
        let outer = group.spawn(async move {
            let inner = Box::pin(async move { quotient::spawn(large()).await.unwrap() });
            inner.await
        });
        assert_eq!(outer.await.unwrap(), 7);
        scheduler.shutdown().await;
    });
}

/// As in tokio, whoever drops it: an abort, a kill, the removal of the group, or the scheduler's end.
#[test]
fn destructors_know_their_task_however_it_ends() {
    struct NotesTask(std::sync::mpsc::Sender<Option<quotient::task::Id>>);
    impl Drop for NotesTask {
        fn drop(&mut self) {
            self.0.send(quotient::task::try_id()).unwrap();
        }
    }
    on_every_host(|vcpus| async move {
        let (scheduler, _) = scheduler(vcpus);
        for way in 0..5 {
            let group = scheduler.group(&format!("g{way}")).unwrap();
            let group = group.create().unwrap();
            let (sender, noted) = std::sync::mpsc::channel();
            let notes = NotesTask(sender);
            let (begun, begins) = tokio::sync::oneshot::channel();
            let task = group.spawn(async move {
                let _notes = notes;
                begun.send(()).unwrap();
                if way > 0 {
                    std::future::pending::<()>().await;
                }
            });
            begins.await.unwrap();
            let id = task.id();
            match way {
                0 => {}
                1 => task.abort(),
                2 => group.kill().unwrap(),
                3 => group.remove(quotient::Leftover::Kill).unwrap(),
                _ => scheduler.shutdown().await,
            }
            assert_eq!(task.await.is_ok(), way == 0);
            assert_eq!(noted.recv().unwrap(), Some(id), "way {way}");
        }
    });
}
