//! Blocking code is charged to its group and does not hold up others.
#![cfg(not(loom))]

mod common;

use std::time::{Duration, Instant};

use common::{burn, guarded, on_every_host, runtime, scheduler};
use quotient::SpawnError;

const MS: Duration = Duration::from_millis(1);

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
                assert_eq!(value.unwrap().await.unwrap(), 9);
            })
            .await
            .unwrap();
        let charged = group.cpu_time();
        assert!(charged >= MS && charged < 25 * MS, "charged {charged:?}");
        let refused = quotient::spawn_blocking(|| ()).map(|_| ()).unwrap_err();
        assert_eq!(refused, SpawnError::NoGroup);
        scheduler.shutdown().await;
    });
}

/// Every virtual CPU blocks; another task must still run, with the wrapper and with tokio's own function.
fn others_run_while_all_block(block: fn(Duration)) {
    for workers in [1, 2] {
        runtime(workers).block_on(guarded(async move {
            let (scheduler, group) = scheduler(workers);
            // The tick thread and the virtual CPUs are up.
            group.spawn(async {}).await.unwrap();
            let blockers: Vec<_> = (0..workers)
                .map(|_| group.spawn(async move { block(300 * MS) }))
                .collect();
            tokio::time::sleep(20 * MS).await;
            let start = Instant::now();
            group.spawn(async {}).await.unwrap();
            let stall = start.elapsed();
            assert!(stall < 200 * MS, "stalled for {stall:?}");
            for blocker in blockers {
                blocker.await.unwrap();
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
    others_run_while_all_block(|time| quotient::block_in_place(|| std::thread::sleep(time)));
}

#[test]
fn block_in_place_of_tokio_brings_a_stand_in() {
    others_run_while_all_block(|time| tokio::task::block_in_place(|| std::thread::sleep(time)));
}
