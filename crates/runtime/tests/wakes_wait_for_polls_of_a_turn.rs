//! Hazard: polls that end just before the watch would detach them are never found by its looks, and whoever is woken by a timer or I/O waits for
//! the rest of one each time. So a wake-up from outside asks for a look.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient::{Preempt, Scheduler};

/// What a poll may take, what one takes by the clock, and after what of it a task beside them is woken: it begins to sleep as one poll ends and the
/// next begins. The watch's own looks find no poll that is over its turn; looks are asked for from seven eighths of a turn on, 14 ms here, so that
/// timers may be 4 ms late. A longer turn would allow for more, but a stand-in serves who waits behind a poll of over 20 ms.
const TURN: Duration = Duration::from_millis(16);
const POLL: Duration = Duration::from_micros(15_800);
const SLEEP: Duration = Duration::from_millis(14);

/// It is woken so often at most. Unit: wake-ups.
const WAKES_MAX: u64 = 400;

#[test]
fn a_poll_that_ends_before_its_turn_does_is_found_by_who_waits() {
    let runtime = common::runtime(2);
    runtime.block_on(async {
        let preempt = Preempt::default().turn(TURN);
        let scheduler = Scheduler::builder().vcpus(1).preempt(preempt).build();
        let scheduler = scheduler.unwrap();
        let hogs = scheduler.group("hogs").unwrap().create().unwrap();
        let victim = scheduler.group("victim").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let hogs: Vec<_> = (0..2)
            .map(|_| {
                let stop = stop.clone();
                hogs.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let began = Instant::now();
                        while began.elapsed() < POLL {
                            std::hint::spin_loop();
                        }
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let beside = scheduler.clone();
        let wakes = victim.spawn(async move {
            let detached = || beside.preempt_stats().unwrap().detached;
            let mut wakes = 0;
            while detached() == 0 && wakes < WAKES_MAX {
                tokio::time::sleep(SLEEP).await;
                wakes += 1;
            }
            wakes
        });
        let wakes = wakes.await.unwrap();
        let stats = scheduler.preempt_stats().unwrap();
        assert!(stats.detached > 0, "after {wakes} wake-ups: {stats:?}");
        stop.store(true, Ordering::Relaxed);
        for hog in hogs {
            hog.await.unwrap();
        }
        scheduler.shutdown().await;
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}
