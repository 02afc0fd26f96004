//! Hazard: a stopped poll of one preempting scheduler holds a lock that a task of another one wants, and nobody sees that it is waited for. On
//! real threads: bounds are generous.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{burn, eventually};
use preempted::{HANG, Used, alone};
use quotient::{Group, Preempt, Scheduler};

const MS: Duration = Duration::from_millis(1);
/// Stopped polls beside the one that holds the lock.
const OTHERS: usize = 20;
/// One stopped poll in so much time has a short turn whoever waits, by the header of `preempt`.
const AGING: Duration = Duration::from_millis(20);

fn preempting() -> Scheduler {
    let builder = Scheduler::builder().vcpus(2);
    builder.preempt(Preempt::default()).build().unwrap()
}

/// Endless polls under a limit of 1 %, the first of which holds `lock` for 3 ms of its own time after it has been stopped.
async fn hold(group: &Group, used: &Arc<Used>, lock: &Arc<Mutex<()>>) {
    let (begun, stopped) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    for number in 0..=OTHERS {
        let (lock, used) = (lock.clone(), used.clone());
        let (begins, stopped) = (begun.clone(), stopped.clone());
        drop(group.spawn(async move {
            let held = (number == 0).then(|| lock.lock().unwrap());
            begins.fetch_add(1, Ordering::SeqCst);
            while held.is_some() && !stopped.load(Ordering::SeqCst) {
                burn(MS / 10);
            }
            burn(3 * MS);
            drop(held);
            used.compute(HANG);
        }));
        eventually("it begins", || begun.load(Ordering::SeqCst) > number).await;
    }
    group.set_max("1ms/100ms").unwrap();
    tokio::time::sleep(300 * MS).await;
    stopped.store(true, Ordering::SeqCst);
}

/// How long a task waited for the lock, and how often meanwhile a stopped poll had a short turn. The task is of the same scheduler, or not.
async fn scene(same: bool) -> (Duration, u64) {
    let (one, another) = (preempting(), preempting());
    let (used, lock) = (Arc::new(Used::default()), Arc::new(Mutex::new(())));
    let stopped = one.group("stopped").unwrap().create().unwrap();
    hold(&stopped, &used, &lock).await;
    let of = if same { &one } else { &another };
    let waits = of.group("waits").unwrap().create().unwrap();
    let turns = || one.preempt_stats().unwrap().aged;
    let (before, began) = (turns(), Instant::now());
    let waited = waits.spawn(async move { drop(lock.lock().unwrap()) });
    waited.await.unwrap();
    let seen = (began.elapsed(), turns() - before);
    used.stop.store(true, Ordering::SeqCst);
    stopped.set_max("max").unwrap();
    one.shutdown().await;
    another.shutdown().await;
    seen
}

#[test]
fn a_lock_of_another_scheduler_is_waited_for_as_if_nobody_did() {
    let _alone = alone();
    let runtime = common::runtime(2);
    let mut seen = Vec::new();
    for same in [true, false] {
        // A machine that is busy elsewhere gives stopped polls their short turns late.
        let hastened = (0..3).any(|_| {
            let ended = async { tokio::time::timeout(HANG, scene(same)).await };
            let (waited, turns) = runtime.block_on(ended).expect("hangs");
            println!("same scheduler {same}: {waited:?}, {turns} short turns");
            seen.push((same, waited, turns));
            let turns = u32::try_from(turns).unwrap().max(1);
            waited / turns < AGING * 3 / 4
        });
        assert!(hastened, "{seen:?}");
    }
    runtime.shutdown_timeout(Duration::from_secs(10));
}
