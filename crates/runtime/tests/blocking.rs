//! Blocking code is charged to its group and does not hold up others.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{burn, eventually, guarded, on_every_host, repeatedly, runtime, scheduler};
use quotient::{Group, InGroupExt, SpawnError};

const MS: Duration = Duration::from_millis(1);
/// Longer than anything takes on any host.
const HANG: Duration = Duration::from_secs(60);

#[test]
fn blocking_functions_are_charged_for_their_cpu_time_only() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        group
            .spawn(async {
                let value = quotient::spawn_blocking(|| {
                    burn(5 * MS);
                    std::thread::sleep(30 * MS);
                    9
                });
                assert_eq!(value.await.unwrap(), 9);
            })
            .await
            .unwrap();
        let charged = group.cpu_time();
        assert!(charged >= MS && charged < 25 * MS, "charged {charged:?}");
        let refused = quotient::try_spawn_blocking(|| ()).unwrap_err();
        assert_eq!(refused, SpawnError::NoGroup);
        scheduler.shutdown().await;
    });
}

/// Every virtual CPU blocks; another task must still run, with the wrapper and with tokio's own function. They block until it has.
fn others_run_while_all_block(block: fn(Box<dyn FnOnce() -> bool + Send>) -> bool) {
    for workers in [1, 2] {
        runtime(workers).block_on(guarded(async move {
            let (scheduler, group) = scheduler(workers);
            // The tick thread and the virtual CPUs are up.
            group.spawn(async {}).await.unwrap();
            let blocking = Arc::new(AtomicUsize::new(0));
            let (ends, blockers): (Vec<_>, Vec<_>) = (0..workers)
                .map(|_| {
                    let (end, ended) = std::sync::mpsc::channel::<()>();
                    let blocking = blocking.clone();
                    let wait = move || {
                        blocking.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(300 * MS);
                        ended.recv_timeout(HANG).is_ok()
                    };
                    (end, group.spawn(async move { block(Box::new(wait)) }))
                })
                .unzip();
            // The last one may need a stand-in already.
            eventually("all block", || blocking.load(Ordering::SeqCst) == workers).await;
            group.spawn(async {}).await.unwrap();
            for end in ends {
                // Refused if who blocks has given up.
                let _ = end.send(());
            }
            for blocker in blockers {
                assert!(blocker.await.unwrap(), "a task waited for all who block");
            }
            assert!(
                group.cpu_time() < 200 * MS,
                "sleep was billed: {:?}",
                group.cpu_time()
            );
            scheduler.shutdown().await;
        }));
    }
}

#[test]
fn block_in_place_brings_a_stand_in() {
    others_run_while_all_block(quotient::block_in_place);
}

#[test]
fn block_in_place_of_tokio_brings_a_stand_in() {
    others_run_while_all_block(tokio::task::block_in_place);
}

#[test]
fn blocking_functions_inherit_the_group_and_so_does_what_they_spawn() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let path = || Group::current().map(|group| group.path().to_owned());
        let outside = group.spawn(async move {
            quotient::spawn_blocking(move || {
                // Detached: nobody would learn that it never ran.
                drop(quotient::spawn(async move { sender.send(path()).unwrap() }));
                let inner = quotient::spawn_blocking(path);
                let inner = tokio::runtime::Handle::current().block_on(inner).unwrap();
                assert_eq!(inner, path());
                path()
            })
            .await
            .unwrap()
        });
        assert_eq!(outside.await.unwrap().unwrap(), "tenants/acme");
        assert_eq!(receiver.await.unwrap().unwrap(), "tenants/acme");
        // The pool's thread keeps nothing of it.
        let later = tokio::task::spawn_blocking(path).await.unwrap();
        assert_eq!(later, None);
        scheduler.shutdown().await;
    });
}

/// What was inherited is no place on a processor: a future in a group takes its turn there, too.
#[test]
fn a_future_in_another_group_inside_a_blocking_function_is_gated() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        let other = scheduler.group("other").unwrap().create().unwrap();
        other.freeze().unwrap();
        let target = other.clone();
        let task = group.spawn(async move {
            let function = move || {
                let inside = async { Group::current().unwrap().path().to_owned() };
                tokio::runtime::Handle::current().block_on(inside.in_group(&target))
            };
            quotient::spawn_blocking(function).await.unwrap()
        });
        tokio::time::sleep(3 * MS).await;
        assert!(!task.is_finished(), "ran in a frozen group");
        other.thaw().unwrap();
        assert_eq!(task.await.unwrap(), "other");
        scheduler.shutdown().await;
    });
}

/// What a blocking function sleeps is no reason to bill the rest of the poll less than it used.
#[test]
fn a_poll_that_computes_and_blocks_is_billed_what_it_computed() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        let task = group.spawn(async {
            burn(3 * MS);
            quotient::block_in_place(|| std::thread::sleep(20 * MS));
            burn(3 * MS);
        });
        task.await.unwrap();
        let billed = group.cpu_time();
        assert!(billed >= 6 * MS && billed < 20 * MS, "billed {billed:?}");
        scheduler.shutdown().await;
    });
}
