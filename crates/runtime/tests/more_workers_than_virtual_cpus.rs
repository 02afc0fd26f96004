//! Hazard: a runtime has more workers than a scheduler can use, and nothing says so.

use quotient::{BuildError, MAX_VCPUS, Scheduler};

#[test]
fn the_default_is_bounded_and_a_wish_beyond_is_refused() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(MAX_VCPUS + 3)
        .build()
        .unwrap();
    runtime.block_on(async {
        let scheduler = Scheduler::builder().build().unwrap();
        assert_eq!(scheduler.vcpus(), MAX_VCPUS);
        assert_eq!(scheduler.unused_workers(), 3);
        scheduler.shutdown().await;

        let value = MAX_VCPUS + 1;
        let refused = Scheduler::builder().vcpus(value).build().unwrap_err();
        assert_eq!(refused, BuildError::Vcpus { value });

        let small = Scheduler::builder().vcpus(2).build().unwrap();
        assert_eq!(small.unused_workers(), MAX_VCPUS + 1);
        small.shutdown().await;
    });
}
