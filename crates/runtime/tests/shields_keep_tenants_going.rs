//! Code of a tenant's that ran under a shield of the runtime's, where no limit stops it: destructors of functions that its own runtime does not
//! take any more. (Under a limit of a twentieth they had 0.35 to 0.94 of a processor.) On real threads: bounds are generous, and the faults exceed them many times.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::eventually;
use preempted::{Used, limited, run};
use quotient::Group;

const WATCHED: Duration = Duration::from_secs(4);
const END: Duration = Duration::from_secs(10);
/// What a destructor or a waker computes.
const LONG: Duration = Duration::from_secs(2);

/// Ends what computes or sleeps, at a panic of the test too.
struct Stop(Arc<Used>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// Computes when it is dropped.
struct Bomb(Arc<Used>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.compute(LONG);
    }
}

/// What functions of a group under a limit of a twentieth compute, that do `act` all the time.
fn keeps_to_the_limit(act: impl Fn(&Group, &Arc<Used>) + Clone + Send + 'static) {
    run(2, END, |scheduler| async move {
        let group = limited(&scheduler, "limited", "5ms/100ms");
        let used = Arc::new(Used::default());
        let stop = Stop(used.clone());
        for _ in 0..2 {
            let (group, used, act) = (group.clone(), used.clone(), act.clone());
            drop(group.clone().spawn_blocking(move || {
                while !used.stop.load(Ordering::SeqCst) {
                    act(&group, &used);
                }
            }));
        }
        eventually("somebody", || used.so_far() > Duration::ZERO).await;
        let before = (used.so_far(), Instant::now());
        tokio::time::sleep(WATCHED).await;
        let (time, passed) = (used.so_far() - before.0, before.1.elapsed());
        println!("{time:?} in {passed:?}: {:?}", scheduler.preempt_stats());
        // What the dead may have ahead, and short turns of those that stand.
        let allowed = passed.mul_f64(0.05 + 0.03) + Duration::from_millis(60);
        assert!(time <= allowed, "{time:?} in {passed:?}");
        drop(stop);
    });
}

/// The runtime has ended, so that it drops the function where that is spawned.
#[test]
fn a_function_that_is_dropped_where_it_is_spawned_voids_a_limit() {
    let ended = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let handle = ended.handle().clone();
    ended.shutdown_background();
    keeps_to_the_limit(move |group, used| {
        let _ended = handle.enter();
        let bomb = Bomb(used.clone());
        drop(group.spawn_blocking(move || drop(bomb)));
    });
}
