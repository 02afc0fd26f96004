//! Hazard: a long poll that waits for a processor is taken for one that may sleep, and looked at several times in each turn: each look is two changes of threads. 32
//! of them on 16 virtual CPUs of two processors had 0.7 CPUs of a limit of one, and 1.2 of two without a limit.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::time::Duration;

const VCPUS: usize = 16;
/// How often threads may sleep in a second: 4,300 to 4,500 times is seen, and was 12,800 to 13,800.
const MOST: u64 = 8_000;

#[test]
fn who_has_no_processor_is_not_looked_at_in_each_turn() {
    preempted::run(VCPUS, Duration::from_secs(10), |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let sleeps = preempted::sleeps_beside_long_polls(&group, 2 * VCPUS).await;
        assert!(sleeps < MOST, "{sleeps} sleeps a second");
    });
}
