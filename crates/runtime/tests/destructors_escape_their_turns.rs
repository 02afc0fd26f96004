//! Destructors of blocking functions that never began were charged when each had ended: one that computes for seconds had them beyond its
//! group's limit. Now they take turns; so the hazards are also that they never end, or keep others' from it. On real threads: bounds are
//! generous.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::eventually;
use preempted::{HANG, Used, limited, run_with_places as run};
use quotient::{Group, JoinHandle};

/// A limit that nothing gets on under: a thousandth of a processor.
const NEXT_TO_NOTHING: &str = "1ms/1s";
const WATCHED: Duration = Duration::from_secs(4);

/// Computes when it is dropped, and is counted after that.
struct Fuse {
    used: Arc<Used>,
    time: Duration,
    gone: Arc<AtomicUsize>,
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.used.compute(self.time);
        self.gone.fetch_add(1, Ordering::SeqCst);
    }
}

/// What a test has of destructors.
#[derive(Clone, Default)]
struct Bombs {
    /// By those that fill the places, and by destructors.
    filling: Arc<Used>,
    used: Arc<Used>,
    gone: Arc<AtomicUsize>,
}

impl Bombs {
    /// Functions that fill the places of `group`, and then `count` that wait in line with destructors of `time`.
    fn line_up(&self, group: &Group, count: usize, time: Duration) -> Vec<JoinHandle<()>> {
        for _ in 0..12 {
            let filling = self.filling.clone();
            drop(group.spawn_blocking(move || filling.compute(HANG)));
        }
        self.add(group, count, time)
    }

    /// Functions with destructors of `time`.
    fn add(&self, group: &Group, count: usize, time: Duration) -> Vec<JoinHandle<()>> {
        let bomb = |_| {
            let (used, gone) = (self.used.clone(), self.gone.clone());
            let fuse = Fuse { used, time, gone };
            group.spawn_blocking(move || drop(fuse))
        };
        (0..count).map(bomb).collect()
    }

    fn gone(&self) -> usize {
        self.gone.load(Ordering::SeqCst)
    }

    fn stop(&self) {
        self.filling.stop.store(true, Ordering::SeqCst);
        self.used.stop.store(true, Ordering::SeqCst);
    }
}

/// Aborts functions with destructors of `time`, and looks what they and those that have begun compute under a limit of a twentieth.
fn keep_to_the_limit(count: usize, time: Duration) {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "limited", "5ms/100ms");
        let bombs = Bombs::default();
        let handles = bombs.line_up(&group, count, time);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = (bombs.filling.so_far() + bombs.used.so_far(), Instant::now());
        let clock = group.cpu_time();
        for handle in handles {
            handle.abort();
        }
        tokio::time::sleep(WATCHED).await;
        let (all, passed) = (
            bombs.filling.so_far() + bombs.used.so_far() - before.0,
            before.1.elapsed(),
        );
        let charged = group.cpu_time() - clock;
        bombs.stop();
        println!(
            "{all:?} in {passed:?}, {:?} of it in destructors, charged {charged:?}: {:?}",
            bombs.used.so_far(),
            scheduler.preempt_stats()
        );
        // What the dead may have ahead, and short turns of those that stand.
        let allowed = passed.mul_f64(0.05 + 0.03) + Duration::from_millis(60);
        assert!(all <= allowed, "{all:?} in {passed:?}");
        assert!(bombs.used.so_far() > Duration::ZERO, "none has begun");
        eventually("the last one", || bombs.gone() == count).await;
    });
}

#[test]
fn a_long_destructor_voids_a_limit() {
    keep_to_the_limit(1, HANG);
}

#[test]
fn destructors_of_many_functions_void_a_limit() {
    keep_to_the_limit(300, Duration::from_millis(20));
}

/// Short turns of those that stand are as much as this limit gives: destructors, of which some could always begin, used to have as much again.
#[test]
fn destructors_of_many_groups_have_a_limit_of_their_own() {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "limited", "1ms/100ms");
        let bombs = Bombs::default();
        let mut handles = bombs.line_up(&group, 0, Duration::ZERO);
        for number in 0..100 {
            let child = group.child(&number.to_string()).create().unwrap();
            handles.extend(bombs.add(&child, 60, Duration::from_micros(300)));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        for handle in handles {
            handle.abort();
        }
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        let (beside, used, began) = (bombs.filling.so_far(), bombs.used.so_far(), Instant::now());
        tokio::time::sleep(2 * WATCHED).await;
        let (beside, used) = (bombs.filling.so_far() - beside, bombs.used.so_far() - used);
        let earned = began.elapsed().mul_f64(0.01);
        bombs.stop();
        println!("{used:?} beside {beside:?}, of {earned:?} for both");
        let left = earned - beside.min(earned.mul_f64(0.75));
        // Of 10 ms that the dead may have ahead, half comes at once; and what the watch sees late.
        assert!(used <= left + Duration::from_millis(25), "{used:?}");
    });
}

/// With nothing else to do, destructors have all that the limit gives.
#[test]
fn destructors_get_nothing_by_turns() {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "limited", "50ms/100ms");
        let bombs = Bombs::default();
        let handles = bombs.line_up(&group, 2, Duration::from_millis(400));
        for handle in handles {
            handle.abort();
        }
        bombs.filling.stop.store(true, Ordering::SeqCst);
        let began = Instant::now();
        eventually("the destructors", || bombs.gone() == 2).await;
        println!("0.8 s at a half in {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(20));
    });
}

/// Neither a freeze nor a kill keeps back what has ended.
#[test]
fn destructors_wait_for_a_thaw_or_die_in_their_middle() {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "limited", "50ms/100ms");
        let bombs = Bombs::default();
        let handles = bombs.line_up(&group, 3, Duration::from_millis(200));
        for handle in handles {
            handle.abort();
        }
        eventually("the first", || bombs.used.so_far() > Duration::ZERO).await;
        group.freeze_immediately().unwrap();
        group.kill_immediately().unwrap();
        eventually("the destructors", || bombs.gone() == 3).await;
        bombs.stop();
        group.thaw().unwrap();
    });
}

#[test]
fn a_destructor_that_stands_keeps_a_scheduler_from_its_end() {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "limited", NEXT_TO_NOTHING);
        let bombs = Bombs::default();
        let handles = bombs.line_up(&group, 3, Duration::from_millis(500));
        for handle in handles {
            handle.abort();
        }
        eventually("the first", || bombs.used.so_far() > Duration::ZERO).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        bombs.filling.stop.store(true, Ordering::SeqCst);
        let ended = scheduler.shutdown_timeout(Duration::from_secs(20)).await;
        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!(bombs.gone(), 3);
    });
}

/// Whoever ends the scheduler waited for a lock once for each group, and each time for who held it, one of hundreds that compute.
#[test]
fn destructors_of_many_groups_keep_an_end_from_its_time() {
    run(256, |scheduler| async move {
        let top = limited(&scheduler, "limited", "5ms/100ms");
        let bombs = Bombs::default();
        for _ in 0..300 {
            let filling = bombs.filling.clone();
            drop(top.spawn_blocking(move || filling.compute(HANG)));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let children = (0..1_000).map(|number| top.child(&number.to_string()).create().unwrap());
        let children: Vec<_> = children.collect();
        let own = bombs.clone();
        let aborts = std::thread::spawn(move || {
            for round in 0.. {
                for child in &children {
                    if own.used.stop.load(Ordering::SeqCst) {
                        return;
                    }
                    for handle in own.add(child, 4, Duration::from_millis(8)) {
                        if round % 2 == 0 {
                            handle.abort();
                        }
                    }
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let began = Instant::now();
        let ended = scheduler.shutdown_timeout(Duration::from_secs(1)).await;
        let took = began.elapsed();
        println!("{ended:?} in {took:?}");
        bombs.stop();
        aborts.join().unwrap();
        assert!(took < Duration::from_millis(2_500), "{took:?}");
    });
}

/// A tenant with a hundred groups, in each of which destructors stand.
#[test]
fn destructors_of_many_groups_keep_anothers() {
    run(4, |scheduler| async move {
        let evil = limited(&scheduler, "evil", NEXT_TO_NOTHING);
        let other = limited(&scheduler, "other", "20ms/100ms");
        let (bad, good) = (Bombs::default(), Bombs::default());
        let mut handles = Vec::new();
        for number in 0..100 {
            let child = evil.child(&number.to_string()).create().unwrap();
            handles.extend(bad.line_up(&child, 1, HANG));
        }
        let quick = good.line_up(&other, 3, Duration::ZERO);
        for handle in handles {
            handle.abort();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let began = Instant::now();
        for handle in &quick {
            handle.abort();
        }
        eventually("the other's", || good.gone() == 3).await;
        println!("the other waited for {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(10));
        bad.stop();
        good.stop();
    });
}
