//! What is refused says so, every kind of task has the same handle, and each has a name of its own.
#![cfg(not(loom))]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{CountDrop, eventually, guarded, on_every_host, repeatedly, runtime, scheduler};
use quotient::task::{Builder, try_id};
use quotient::{
    AbortOnDropHandle, ClockError, Group, JoinHandle, Leftover, SpawnError, TaskClockExt,
};

const MS: Duration = Duration::from_millis(1);

fn panics(what: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(what)).is_err()
}

#[test]
fn a_detached_task_outside_any_group_is_dropped_in_silence() {
    // As tokio's outside a runtime.
    assert!(panics(|| drop(tokio::spawn(async {}))));
    assert!(panics(|| drop(quotient::spawn(async {}))));
    runtime(1).block_on(guarded(async {
        assert!(panics(|| drop(quotient::spawn(async {}))));
        assert!(panics(|| drop(quotient::spawn_blocking(|| ()))));
        assert!(panics(|| drop(quotient::JoinSet::new().spawn(async {}))));
        let error = quotient::try_spawn(async {}).expect_err("no group is here");
        assert_eq!(error, SpawnError::NoGroup);
        let error = quotient::try_spawn_blocking(|| ()).expect_err("no group is here");
        assert_eq!(error, SpawnError::NoGroup);
        let error = Builder::new()
            .spawn(async {})
            .expect_err("no group is here");
        assert_eq!(error, SpawnError::NoGroup);
    }));
}

#[test]
fn a_detached_task_of_blocking_code_is_dropped_in_silence() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let ran = Arc::new(AtomicBool::new(false));
        let flag = ran.clone();
        let blocking = group
            .spawn(async move {
                let blocking = quotient::spawn_blocking(move || {
                    drop(quotient::spawn(async move {
                        flag.store(true, Ordering::SeqCst)
                    }));
                });
                blocking.await
            })
            .await
            .expect("the task does not panic");
        match blocking {
            Ok(()) => eventually("the task", || ran.load(Ordering::SeqCst)).await,
            Err(error) => assert!(error.is_panic(), "{error}"),
        }
        scheduler.shutdown().await;
    });
}

#[test]
fn a_task_refused_after_the_end_looks_unlike_tokios() {
    let ended = runtime(1);
    let handle = ended.handle().clone();
    drop(ended);
    let theirs = handle.spawn(async {});
    runtime(1).block_on(guarded(async {
        let theirs = theirs.await.expect_err("that runtime has ended");
        let (scheduler, group) = scheduler(1);
        scheduler.shutdown().await;
        let ours = [
            group.spawn(async {}).await.expect_err("it has ended"),
            group.spawn_blocking(|| ()).await.expect_err("it has ended"),
        ];
        for ours in ours {
            assert_eq!(
                (ours.is_cancelled(), ours.is_panic()),
                (theirs.is_cancelled(), theirs.is_panic())
            );
            assert!(
                ours.is_not_spawned() && ours.to_string().contains("shut down"),
                "{ours}"
            );
        }
    }));
}

#[test]
fn a_removed_group_takes_tasks_of_another_kind() {
    runtime(1).block_on(guarded(async {
        let (scheduler, group) = scheduler(1);
        group.remove(Leftover::Kill).expect("it is not the root");
        assert!(matches!(
            group.try_spawn(async {}),
            Err(SpawnError::GroupRemoved { .. })
        ));
        assert!(
            group
                .spawn_blocking(|| ())
                .await
                .expect_err("removed")
                .is_not_spawned()
        );
        let local = tokio::task::LocalSet::new();
        let here = group.clone();
        let refused = local
            .run_until(async move { here.spawn_local(async {}).await })
            .await;
        assert!(refused.expect_err("removed").is_not_spawned());
        scheduler.shutdown().await;
    }));
}

#[test]
fn tasks_of_one_virtual_cpu_share_a_name() {
    on_every_host(has_a_name_of_its_own);
    repeatedly(has_a_name_of_its_own);
}

async fn has_a_name_of_its_own(vcpus: usize) {
    assert_eq!(try_id(), None);
    assert!(panics(|| {
        let _ = quotient::task::id();
    }));
    let (scheduler, group) = scheduler(vcpus);
    let own = || async {
        let before = quotient::task::id();
        tokio::task::yield_now().await;
        assert_eq!(quotient::task::id(), before);
        before
    };
    let tasks = [group.spawn(own()), group.spawn(own())];
    let names = tasks.each_ref().map(JoinHandle::id);
    assert_ne!(names[0], names[1]);
    for (task, name) in tasks.into_iter().zip(names) {
        assert_eq!(task.await.expect("it does not panic"), name);
    }
    let blocking = group.spawn_blocking(quotient::task::id);
    let name = blocking.id();
    let clock = blocking.clock().map(|_| ());
    assert_eq!(clock, Err(ClockError::NoClock { id: name }));
    assert_eq!(blocking.await.expect("it does not panic"), name);
    let local = tokio::task::LocalSet::new();
    let member = group.clone();
    local
        .run_until(async move {
            let task = member.spawn_local(async { quotient::task::id() });
            let name = task.id();
            assert_eq!(task.await.expect("it does not panic"), name);
            assert_eq!(try_id(), None);
        })
        .await;
    scheduler.shutdown().await;
}

#[test]
fn a_named_task_cannot_be_told_from_others() {
    runtime(1).block_on(guarded(async {
        let (scheduler, group) = scheduler(1);
        let named = Builder::new()
            .name("importer")
            .group(&group)
            .spawn(std::future::pending::<()>())
            .expect("the group takes tasks");
        let plain = group.spawn(std::future::pending::<()>());
        let mut stats = group.task_stats();
        stats.sort_by_key(|task| task.name.is_none());
        let seen: Vec<_> = stats
            .iter()
            .map(|task| (task.id, task.name.as_deref()))
            .collect();
        assert_eq!(seen, [(named.id(), Some("importer")), (plain.id(), None)]);
        // Children of a named task have no name.
        let child = Builder::new()
            .name("parent")
            .group(&group)
            .spawn(async { quotient::spawn(async { quotient::task::id() }).await })
            .expect("the group takes tasks");
        assert!(child.await.is_ok());
        scheduler.shutdown().await;
    }));
}

#[test]
fn a_handle_that_is_dropped_leaves_its_task_running() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let dropped = Arc::new(AtomicUsize::new(0));
        let sleeper = || {
            let guard = CountDrop(dropped.clone());
            async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            }
        };
        let handle: AbortOnDropHandle<()> = group.spawn(sleeper()).abort_on_drop();
        let detached = AbortOnDropHandle::new(group.spawn(sleeper())).detach();
        drop(handle);
        eventually("the abort", || dropped.load(Ordering::SeqCst) == 1).await;
        tokio::time::sleep(5 * MS).await;
        assert!(!detached.is_finished());
        let output = group.spawn(async { 4 }).abort_on_drop().await;
        assert_eq!(output.expect("it ran to its end"), 4);
        scheduler.shutdown().await;
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn an_aborted_function_runs_when_a_thread_is_free() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(guarded(async {
        let (scheduler, group) = scheduler(1);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let first = group.spawn_blocking(move || released.recv().is_ok());
        let second = group.spawn_blocking(|| panic!("it must not run"));
        second.abort();
        release.send(()).expect("the function waits");
        assert!(first.await.expect("it does not panic"));
        let error = second.await.expect_err("aborted before it began");
        assert!(error.is_cancelled() && !error.is_panic());
        let payload = group
            .spawn_blocking(|| panic!("on purpose"))
            .await
            .expect_err("it panicked")
            .into_panic();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"on purpose"));
        scheduler.shutdown().await;
    }));
}

#[test]
fn a_function_that_never_runs_leaves_its_handle_waiting() {
    let ended = runtime(1);
    let handle = ended.handle().clone();
    drop(ended);
    runtime(1).block_on(guarded(async {
        let (scheduler, group) = scheduler(1);
        let never = {
            // The pool of a runtime that has ended drops what it is given.
            let _inside = handle.enter();
            group.spawn_blocking(|| panic!("it must not run"))
        };
        let error = never.await.expect_err("its runtime has ended");
        assert!(error.is_cancelled() && !error.is_panic() && !error.is_not_spawned());
        scheduler.shutdown().await;
    }));
}

/// On a local set in this thread: the handle's view of every way in which a local task may end.
async fn local_ends(group: Group) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let guard = CountDrop(dropped.clone());
    let sleeper = group.spawn_local(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    tokio::task::yield_now().await;
    let abort = sleeper.abort_handle();
    // From another thread, while nothing else wakes the local task.
    std::thread::spawn(move || abort.abort())
        .join()
        .expect("aborting does not panic");
    let error = sleeper.await.expect_err("aborted");
    assert!(error.is_cancelled() && !error.is_panic());
    assert_eq!(
        dropped.load(Ordering::SeqCst),
        1,
        "gone before the handle knows"
    );

    let unstarted = group.spawn_local(async { panic!("it must not run") });
    unstarted.abort();
    assert!(unstarted.await.expect_err("aborted").is_cancelled());

    let payload = group
        .spawn_local(async { panic!("on purpose") })
        .await
        .expect_err("it panicked")
        .into_panic();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"on purpose"));

    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let bomb = Bomb;
    let error = group
        .spawn_local(async move {
            let _kept_to_the_end = bomb;
            tokio::task::yield_now().await;
        })
        .await
        .expect_err("it panicked at its end");
    assert!(error.is_panic());
    let shared = std::rc::Rc::new(9);
    let output = group.spawn_local(async move { shared }).await;
    assert_eq!(*output.expect("an output"), 9);
}

#[test]
fn the_handle_of_a_local_task_is_not_told_of_its_end() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let local = tokio::task::LocalSet::new();
        local.run_until(local_ends(group.clone())).await;
        let left = local
            .run_until(async { Some(group.spawn_local(std::future::pending::<()>())) })
            .await
            .expect("it was spawned");
        drop(local);
        assert!(
            left.await
                .expect_err("its local set is gone")
                .is_cancelled()
        );
        scheduler.shutdown().await;
    });
}

#[cfg(feature = "hyper")]
#[test]
fn a_connection_that_no_group_takes_is_dropped_in_silence() {
    use hyper::rt::Executor;
    runtime(1).block_on(guarded(async {
        let (scheduler, group) = scheduler(1);
        let executor = quotient::hyper::GroupExecutor::new(group.clone());
        let (sender, ran) = tokio::sync::oneshot::channel::<()>();
        executor.execute(async move {
            let _ = sender.send(());
        });
        assert!(ran.await.is_ok());
        assert_eq!(executor.refused(), 0);
        group.remove(Leftover::Kill).expect("it is not the root");
        let (sender, refused) = tokio::sync::oneshot::channel::<()>();
        executor.clone().execute(async move {
            let _ = sender.send(());
        });
        assert!(refused.await.is_err());
        assert_eq!(executor.refused(), 1);
        scheduler.shutdown().await;
    }));
}
