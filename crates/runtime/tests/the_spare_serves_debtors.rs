//! Hazard: the spare, which comes when every virtual CPU is in a long poll, is one thread more than there are processors for, and it
//! polls for a group that has had more than its weight entitles it to, so that weights mean nothing where polls are long.

#[path = "common/repeat.rs"]
mod repeat;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient::{Group, Scheduler};
use repeat::{compute, repeats};

/// One poll, of processor time: longer than the spare waits.
const POLL: Duration = Duration::from_millis(40);
/// Processor time that both groups get together before their shares are read: some 75 polls.
const ENOUGH: Duration = Duration::from_millis(3_000);
/// What is awaited comes within this, or never.
const AT_MOST: Duration = Duration::from_secs(60);

fn group(scheduler: &Scheduler, path: &str, weight: u32) -> Group {
    let builder = scheduler.group(path).unwrap().weight(weight);
    builder.create().unwrap()
}

fn on_workers<F: Future<Output = ()>>(workers: usize, case: impl FnOnce(Scheduler) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let scheduler = Scheduler::builder().vcpus(workers).build().unwrap();
        case(scheduler).await;
    });
}

/// Four tasks of weight 100 beside two of weight 900, which can use what they are entitled to: both want a processor all the time.
/// The light ones had 32 % by polls of 50 ms: the third thread was theirs. They begin with a poll or two ahead of their share.
#[test]
fn a_light_group_does_not_get_the_third_thread() {
    on_workers(2, |scheduler| async move {
        let stop = Arc::new(AtomicBool::new(false));
        let groups = [
            group(&scheduler, "light", 100),
            group(&scheduler, "heavy", 900),
        ];
        for (group, tasks) in groups.iter().zip([4, 2]) {
            for _ in 0..tasks {
                let stop = stop.clone();
                drop(group.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        compute(POLL);
                        tokio::task::yield_now().await;
                    }
                }));
            }
        }
        let end = Instant::now() + AT_MOST;
        let used = || {
            groups
                .each_ref()
                .map(|group| group.cpu_time().as_secs_f64())
        };
        while used().iter().sum::<f64>() < ENOUGH.as_secs_f64() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let [light, heavy] = used();
        stop.store(true, Ordering::Relaxed);
        let share = light / (light + heavy);
        assert!(share < 0.26, "{share:.3} of the processor time");
        assert!(light > 0.0, "the light group was never served");
    });
}

/// The poll in progress pays the debt, so that nobody waits for ever behind one that does not end.
#[test]
fn a_debtor_is_served_once_others_have_had_as_much() {
    for _ in 0..repeats().min(5) {
        on_workers(1, |scheduler| async move {
            let debtor = group(&scheduler, "debtor", 1);
            let creditor = group(&scheduler, "creditor", 1);
            let came = Arc::new(AtomicBool::new(false));
            let seen = came.clone();
            let second = debtor.spawn(async move {
                // Queued in this very poll, so that both want to run while the debt grows.
                let long = creditor.spawn(async move {
                    let end = Instant::now() + AT_MOST;
                    while !seen.load(Ordering::SeqCst) && Instant::now() < end {
                        compute(Duration::from_micros(100));
                    }
                    seen.load(Ordering::SeqCst)
                });
                compute(POLL);
                tokio::task::yield_now().await;
                came.store(true, Ordering::SeqCst);
                long.await.unwrap()
            });
            let served = second.await.unwrap();
            assert!(served, "waited behind a long poll for {AT_MOST:?}");
        });
    }
}
