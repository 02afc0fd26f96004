//! A poll that sleeps in the kernel uses no processor, and holds its virtual CPU all the same: its group pays for the turn, wherever in its poll
//! or beyond it the task sleeps.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{burn, guarded, runtime};
use quotient::{Group, InGroupExt as _, Scheduler};

/// How long a poll of the sleepers takes.
const SLEEP: Duration = Duration::from_millis(2);

/// How often they have slept when what the others got is looked at.
const SLEEPS: u64 = 300;

/// Where a task sleeps.
#[derive(Clone, Copy, Debug)]
enum Where {
    Poll,
    InGroup,
    Destructor,
    BlockInPlace,
}

/// Sleeps as it is dropped, and counts that.
struct Bed(Arc<AtomicU64>);

impl Drop for Bed {
    fn drop(&mut self) {
        std::thread::sleep(SLEEP);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sleeps once, within a poll.
async fn sleep_once(place: Where, group: &Group, other: &Group, slept: &Arc<AtomicU64>) {
    match place {
        Where::Poll => drop(Bed(slept.clone())),
        Where::InGroup => {
            let bed = Bed(slept.clone());
            let _ = async move { drop(bed) }.in_group(other).await;
        }
        Where::Destructor => {
            let bed = Bed(slept.clone());
            // Nobody wants the output: it is dropped where the task ends, beyond its poll.
            drop(group.spawn(async move { bed }));
            while group.stats().tasks > 16 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Where::BlockInPlace => tokio::task::block_in_place(|| drop(Bed(slept.clone()))),
    }
    tokio::task::yield_now().await;
}

/// Two groups of equal weight on one virtual CPU: one computes, eight tasks of the other only sleep. The one that computes is to get
/// at least half of what it is entitled to (which is as much as the others slept): sleep that nobody can tell from a busy host's
/// theft is not paid for.
fn sleepers_pay(place: Where) {
    let runtime = runtime(1);
    runtime.block_on(guarded(async {
        let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
        let sleepers = scheduler.group("sleepers").unwrap().create().unwrap();
        let other = scheduler.group("other").unwrap().create().unwrap();
        let worker = scheduler.group("worker").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let slept = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let (stop, slept) = (stop.clone(), slept.clone());
            let (group, other) = (sleepers.clone(), other.clone());
            tasks.push(sleepers.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    sleep_once(place, &group, &other, &slept).await;
                }
            }));
        }
        for _ in 0..2 {
            let stop = stop.clone();
            tasks.push(worker.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    burn(Duration::from_micros(200));
                    tokio::task::yield_now().await;
                }
            }));
        }
        while slept.load(Ordering::Relaxed) < SLEEPS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let computed = worker.cpu_time();
        let held = SLEEP * u32::try_from(slept.load(Ordering::Relaxed)).unwrap();
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        assert!(
            computed >= held / 2,
            "{place:?}: sleepers held the virtual CPU for {held:?}, the other group computed for {computed:?}"
        );
        scheduler.shutdown().await;
    }));
}

/// One after the other: beside other programs who computes gets less, and who sleeps does not.
#[test]
fn a_sleeping_poll_is_free() {
    for place in [
        Where::Poll,
        Where::InGroup,
        Where::Destructor,
        Where::BlockInPlace,
    ] {
        sleepers_pay(place);
    }
}
