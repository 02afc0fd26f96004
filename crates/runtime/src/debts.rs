//! Tests: CPU time that is spent beside the run queue is a debt of its group, to the nanosecond, and is paid whole, by its
//! refills, before anything of the group runs on, however short its polls are.

use std::future::Future;
use std::time::Duration;

use quotient_core::{BandwidthAccount, Nanos};

use crate::clock::thread_cpu_time;
use crate::cpu_clock::duration;
use crate::{Group, InGroupExt, Scheduler, ThreadMeter, block_in_place, spawn_blocking};

/// What is spent at once, several quotas.
const SPENT: Nanos = Nanos::from_millis(5);
/// What the schedule of a limited group may have charged beyond: up to 500 us on each of four virtual CPUs, and what futures and their members take. Less than half of what is spent,
/// so that nothing of that can be missing.
const BATCHES: i128 = 2_000_000;

/// What short polls may be billed: as long as each was, up to 500 us, if somebody else had its processor meanwhile; three of them, the two parts of one that blocks in place and the one that
/// looks. A gate's may be after it has opened, as what it let through runs already; and where a poll ran beyond what its virtual CPU holds, its debt stays there
/// (`quotient_core::bandwidth`, *Debts*) while a task runs on another one. A debt of what is spent would be 4 ms.
const POLL: i128 = 3 * 500_000;

/// Computes for [`SPENT`] of the thread's CPU time.
fn spend() {
    let now = || thread_cpu_time().unwrap_or(Nanos::ZERO);
    let end = now().saturating_add(SPENT);
    let mut sum = 1_u64;
    while now() < end {
        for value in 0..1_000_u64 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(value));
        }
    }
}

fn account(group: &Group) -> BandwidthAccount {
    group.inner.core.bandwidth_account()
}

fn debt(account: &BandwidthAccount) -> i128 {
    -(account.pool + account.local)
}

/// On 1, 2 and 4 workers, 5 times or as `QUOTIENT_REPEAT` says, with a group that is limited to a tenth of a processor. Tells in how
/// many of these runs users could see that something of the group was throttled: on a machine so busy that a thread has less than that,
/// the refills have paid before a virtual CPU gets to run.
fn repeatedly<Fut: Future<Output = ()>>(test: impl Fn(Group) -> Fut) -> usize {
    let mut throttled = 0;
    let wanted = std::env::var("QUOTIENT_REPEAT").ok();
    let repetitions = wanted.and_then(|text| text.parse().ok()).unwrap_or(5);
    for workers in [1, 2, 4] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()
            .unwrap();
        for _ in 0..repetitions {
            runtime.block_on(async {
                let scheduler = Scheduler::builder().build().unwrap();
                let group = scheduler.group("limited").unwrap();
                let group = group.max("1ms/10ms").create().unwrap();
                let test = tokio::time::timeout(Duration::from_secs(60), test(group.clone()));
                test.await.expect("nothing ran any more");
                let stats = group.stats().bandwidth;
                let seen = stats.nr_throttled > 0 && stats.throttled > Duration::ZERO;
                throttled += usize::from(seen);
                scheduler.shutdown().await;
            });
        }
    }
    throttled
}

/// What `spent` ns cost is in the account, and a task of one poll of no length comes after it was paid.
async fn is_paid_before_the_next_task(group: &Group, spent: i128) {
    let after = account(group);
    assert!(after.is_balanced(), "{after:?}");
    assert!(after.consumed >= spent, "spent {spent}: {after:?}");
    let own = group.clone();
    let (at, clock) = group
        .spawn(async move { (account(&own), own.cpu_time()) })
        .await
        .unwrap();
    assert!(at.is_balanced(), "{at:?}");
    assert!(at.discarded >= 0, "nothing is forgiven: {at:?}");
    // All that is spent beside the run queue is the pool's.
    assert!(at.pool >= 0, "ran with a debt: {at:?}");
    assert!(at.local >= -POLL, "ran with a debt of polls: {at:?}");
    assert!(at.refilled - at.discarded >= spent, "spent {spent}: {at:?}");
    let clock = i128::try_from(clock.as_nanos()).unwrap();
    assert!((clock - at.consumed).abs() <= BATCHES, "{clock}: {at:?}");
}

#[test]
fn what_metered_threads_spend_is_paid_before_tasks_run_on() {
    let throttled = repeatedly(|group| async move {
        // The tasks' virtual CPUs hold slices of the budget.
        group.spawn(async {}).await.unwrap();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let group = group.clone();
                std::thread::spawn(move || {
                    let mut meter = ThreadMeter::enter(&group).unwrap();
                    spend();
                    meter.leave().unwrap()
                })
            })
            .collect();
        let threads = threads.into_iter().map(|thread| thread.join().unwrap());
        let billed: Duration = threads.sum();
        assert!(billed >= duration(SPENT) * 2);
        let billed = i128::try_from(billed.as_nanos()).unwrap();
        is_paid_before_the_next_task(&group, billed).await;
    });
    assert!(throttled > 0, "never seen as throttled");
}

#[test]
fn what_blocking_functions_spend_is_paid_before_tasks_run_on() {
    let throttled = repeatedly(|group| async move {
        let functions = group.spawn(async {
            let functions = [0, 1].map(|_| spawn_blocking(spend));
            for function in functions {
                function.await.unwrap();
            }
        });
        functions.await.unwrap();
        is_paid_before_the_next_task(&group, 2 * i128::from(SPENT.as_nanos())).await;
    });
    assert!(throttled > 0, "never seen as throttled");
}

#[test]
fn what_blocks_in_place_is_paid_before_tasks_run_on() {
    let throttled = repeatedly(|group| async move {
        group.spawn(async { block_in_place(spend) }).await.unwrap();
        is_paid_before_the_next_task(&group, i128::from(SPENT.as_nanos())).await;
    });
    assert!(throttled > 0, "never seen as throttled");
}

#[test]
fn what_foreign_futures_spend_is_paid_before_tasks_run_on() {
    let throttled = repeatedly(|group| async move {
        tokio::spawn(async { spend() }.in_group(&group))
            .await
            .unwrap();
        is_paid_before_the_next_task(&group, i128::from(SPENT.as_nanos())).await;
    });
    assert!(throttled > 0, "never seen as throttled");
}

/// The gate of a foreign future is a task like others.
#[test]
fn what_a_thread_spends_is_paid_before_a_gate_opens() {
    let throttled = repeatedly(|group| async move {
        let own = group.clone();
        tokio::task::spawn_blocking(move || {
            let _meter = ThreadMeter::enter(&own).unwrap();
            spend();
        })
        .await
        .unwrap();
        let own = group.clone();
        let at = tokio::spawn(async move { account(&own) }.in_group(&group));
        let at = at.await.unwrap();
        assert!(
            at.refilled - at.discarded >= i128::from(SPENT.as_nanos()),
            "{at:?}"
        );
        assert!(debt(&at) <= POLL, "passed with a debt: {at:?}");
    });
    assert!(throttled > 0, "never seen as throttled");
}

/// What is billed in batches leaves no remainder behind.
#[test]
fn the_account_shows_what_threads_spent_to_the_nanosecond() {
    let throttled = repeatedly(|group| async move {
        let own = group.clone();
        let billed = std::thread::spawn(move || {
            let mut meter = ThreadMeter::enter(&own).unwrap();
            for _ in 0..200 {
                // Readings in between bill in odd parts.
                let _ = own.cpu_time();
                std::hint::black_box((0..1_000_u64).sum::<u64>());
            }
            spend();
            meter.leave().unwrap()
        });
        let billed = i128::try_from(billed.join().unwrap().as_nanos()).unwrap();
        let account = account(&group);
        assert_eq!(account.consumed, billed, "{account:?}");
        let refilled = account.refilled - account.discarded;
        assert_eq!(debt(&account), billed - refilled, "{account:?}");
        assert!(account.discarded >= 0, "{account:?}");
    });
    assert_eq!(throttled, 0, "no task waits");
}

/// A thread that has half a processor at most while it works for a group of half a processor owes nothing. (While it was taken to have begun
/// as long ago as it computed, half of the refills in which it had worked were lost.) What the kernel makes it wait for otherwise, a page
/// say, ends that, so that one try of five is enough.
#[cfg(target_os = "linux")]
#[test]
fn refills_are_lost_to_a_thread_that_waits_for_its_processor() {
    use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
    use std::sync::atomic::{AtomicBool, Ordering};

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let scheduler = Scheduler::builder().build().unwrap();
    let one = sched_getcpu();
    let pin = || {
        let mut set = CpuSet::new();
        set.set(one);
        sched_setaffinity(None, &set).unwrap();
    };
    let mut owed = Vec::new();
    for number in 0..5 {
        let group = scheduler.group(&format!("limited{number}")).unwrap();
        let group = group.max("10ms/20ms").create().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _rival = scope.spawn(|| {
                pin();
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let works = scope.spawn(|| {
                pin();
                let mut meter = ThreadMeter::enter(&group).unwrap();
                for _ in 0..12 {
                    spend();
                }
                meter.leave().unwrap();
            });
            works.join().unwrap();
            done.store(true, Ordering::Relaxed);
        });
        let account = account(&group);
        assert!(account.is_balanced(), "{account:?}");
        owed.push(debt(&account));
        // A quota was there at first; half of 60 ms were owed beyond.
        if debt(&account) <= 5_000_000 {
            break;
        }
    }
    let last = owed.last().copied();
    assert!(
        last.is_some_and(|last| last <= 5_000_000),
        "{owed:?} ns are owed"
    );
}
