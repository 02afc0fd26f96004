//! Polls that do not return, in a scheduler that preempts them. On real threads: what is asserted of time is generous, since the
//! machine is shared.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quotient::{Preempt, Scheduler};

/// Longer than anything here takes, on a busy machine too: a hang, not a measurement.
const HANG: Duration = Duration::from_secs(40);

/// Runs `body` on a tokio runtime of two workers with a preempting scheduler of `vcpus`; panics at a hang.
fn run<F>(vcpus: usize, body: impl FnOnce(Scheduler) -> F)
where
    F: Future<Output = ()>,
{
    let runtime = common::runtime(2);
    runtime.block_on(async {
        let scheduler = Scheduler::builder()
            .vcpus(vcpus)
            .preempt(Preempt::default())
            .build()
            .unwrap();
        let ended = tokio::time::timeout(HANG, body(scheduler.clone())).await;
        assert!(ended.is_ok(), "hangs: {:?}", scheduler.preempt_stats());
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {:?}", scheduler.preempt_stats());
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

/// Computes until `until`, in one poll.
fn compute(until: impl Fn() -> bool) -> u64 {
    let mut steps = 0_u64;
    while !until() {
        for _ in 0..1_000 {
            steps = std::hint::black_box(steps + 1);
        }
    }
    steps
}

fn compute_for(time: Duration) -> u64 {
    let started = Instant::now();
    compute(|| started.elapsed() >= time)
}

#[test]
fn a_poll_that_never_returns_does_not_keep_others_from_running() {
    for vcpus in [1, 2] {
        run(vcpus, |scheduler| async move {
            let stop = Arc::new(AtomicBool::new(false));
            let hogs = scheduler.group("hogs").unwrap().create().unwrap();
            let victim = scheduler.group("victim").unwrap().create().unwrap();
            let handles: Vec<_> = (0..4)
                .map(|_| {
                    let stop = stop.clone();
                    hogs.spawn(async move { compute(|| stop.load(Ordering::Relaxed)) })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(50)).await;
            for round in 0..100_u64 {
                let echo = victim.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    round
                });
                assert_eq!(echo.await.unwrap(), round);
            }
            let stats = scheduler.preempt_stats().unwrap();
            assert!(stats.detached >= 1, "{stats:?}");
            stop.store(true, Ordering::Relaxed);
            for handle in handles {
                assert!(handle.await.unwrap() > 0);
            }
        });
    }
}

/// What the groups' hogs have computed, one endless poll or many long ones each; the second has `weight` times the first's weight.
async fn shares(scheduler: &Scheduler, poll: Duration, weights: &[u32]) -> Vec<f64> {
    let stop = Arc::new(AtomicBool::new(false));
    let groups: Vec<_> = weights
        .iter()
        .enumerate()
        .map(|(index, weight)| {
            let group = scheduler.group(&format!("group{index}")).unwrap();
            group.weight(*weight).create().unwrap()
        })
        .collect();
    let handles: Vec<_> = groups
        .iter()
        .flat_map(|group| {
            // Two a group: enough for each virtual CPU.
            (0..2).map(|_| {
                let stop = stop.clone();
                group.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let started = Instant::now();
                        compute(|| started.elapsed() >= poll || stop.load(Ordering::Relaxed));
                        tokio::task::yield_now().await;
                    }
                })
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before: Vec<_> = groups.iter().map(|group| group.cpu_time()).collect();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let used = groups.iter().zip(&before);
    let used: Vec<f64> = used
        .map(|(group, before)| (group.cpu_time() - *before).as_secs_f64())
        .collect();
    stop.store(true, Ordering::Relaxed);
    for handle in handles {
        handle.await.unwrap();
    }
    used
}

#[test]
fn weights_hold_inside_polls() {
    for poll in [Duration::from_millis(20), HANG * 2] {
        run(2, |scheduler| async move {
            // A busy machine gives bearers, which are of low priority, their time in lumps: one try of some must be good.
            let mut used = Vec::new();
            let mut ratio = 0.0;
            for _try in 0..6 {
                used = shares(&scheduler, poll, &[100, 300]).await;
                ratio = used[1] / used[0];
                if (2.2..4.2).contains(&ratio) {
                    break;
                }
            }
            assert!(
                (2.2..4.2).contains(&ratio),
                "1:3 came out as 1:{ratio:.2} with polls of {poll:?}, {used:?}, {:?}",
                scheduler.preempt_stats()
            );
        });
    }
}

#[test]
fn a_limit_holds_inside_a_poll_that_never_returns() {
    run(2, |scheduler| async move {
        let stop = Arc::new(AtomicBool::new(false));
        let group = scheduler.group("limited").unwrap();
        let group = group.max("10ms/100ms").create().unwrap();
        let hogs: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                group.spawn(async move { compute(|| stop.load(Ordering::Relaxed)) })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut used = 0.0;
        for _try in 0..6 {
            let before = (group.cpu_time(), Instant::now());
            tokio::time::sleep(Duration::from_millis(1_000)).await;
            used = (group.cpu_time() - before.0).as_secs_f64() / before.1.elapsed().as_secs_f64();
            if (0.02..0.13).contains(&used) {
                break;
            }
        }
        // Never more than the limit and the debt of a turn; a machine that is busy elsewhere may give less.
        assert!(
            (0.02..0.13).contains(&used),
            "{used:.3} CPUs of 0.1, {:?}",
            scheduler.preempt_stats()
        );
        stop.store(true, Ordering::Relaxed);
        for hog in hogs {
            hog.await.unwrap();
        }
    });
}

#[test]
fn what_a_long_poll_ends_with_reaches_its_task() {
    run(2, |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let long = Duration::from_millis(15);
        for round in 0..6_u64 {
            // Company, so that polls are detached soon.
            let company: Vec<_> = (0..3)
                .map(|_| group.spawn(async move { compute_for(long) }))
                .collect();
            let ready = group.spawn(async move {
                compute_for(long);
                round
            });
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let pending = group.spawn(async move {
                compute_for(long);
                let received: u64 = receiver.await.unwrap();
                compute_for(long);
                tokio::time::sleep(Duration::from_millis(1)).await;
                received + round
            });
            let panics = group.spawn(async move {
                compute_for(long);
                assert!(round > 1_000, "expected");
            });
            let again = group.spawn(async move {
                for _ in 0..4 {
                    compute_for(long);
                    tokio::task::yield_now().await;
                }
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                round
            });
            let woken_by_itself = group.spawn(async move {
                let notify = tokio::sync::Notify::new();
                notify.notify_one();
                compute_for(long);
                notify.notified().await;
                round
            });
            sender.send(7).unwrap();
            assert_eq!(ready.await.unwrap(), round);
            assert_eq!(pending.await.unwrap(), round + 7);
            assert!(panics.await.unwrap_err().is_panic());
            assert_eq!(again.await.unwrap(), round);
            assert_eq!(woken_by_itself.await.unwrap(), round);
            for hog in company {
                hog.await.unwrap();
            }
        }
        let stats = scheduler.preempt_stats().unwrap();
        assert!(stats.detached > 0, "{stats:?}");
        assert_eq!(scheduler.tasks(), 0, "a proxy stayed: {stats:?}");
    });
}

#[test]
fn what_a_long_poll_wakes_and_spawns_does_not_wait_for_its_end() {
    run(2, |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let steps = Arc::new(AtomicU64::new(0));
        let (end, count, child_group) = (stop.clone(), steps.clone(), group.clone());
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let hog = group.spawn(async move {
            compute(|| {
                let count = count.clone();
                drop(child_group.spawn(async move { count.fetch_add(1, Ordering::Relaxed) }));
                sender.send(()).unwrap();
                std::thread::sleep(Duration::from_micros(500));
                end.load(Ordering::Relaxed)
            })
        });
        for _ in 0..100 {
            receiver.recv().await.unwrap();
        }
        while steps.load(Ordering::Relaxed) < 90 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.store(true, Ordering::Relaxed);
        hog.await.unwrap();
    });
}

#[test]
fn kill_abort_and_freeze_reach_a_task_in_a_long_poll() {
    run(2, |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let hog = |stop: &Arc<AtomicBool>| {
            let stop = stop.clone();
            group.spawn(async move {
                compute(|| stop.load(Ordering::Relaxed));
                std::future::pending::<()>().await;
            })
        };
        let (first, second, third) = (hog(&stop), hog(&stop), hog(&stop));
        tokio::time::sleep(Duration::from_millis(50)).await;
        first.abort();
        group.freeze().unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
        group.thaw().unwrap();
        assert!(first.await.unwrap_err().is_cancelled());
        group.kill().unwrap();
        assert!(second.await.unwrap_err().is_cancelled());
        assert!(third.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn a_poll_that_blocks_in_the_kernel_takes_no_turns() {
    run(1, |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel::<u64>();
        let blocked = group.spawn(async move { receiver.recv().unwrap() });
        let steps = Arc::new(AtomicU64::new(0));
        let count = steps.clone();
        let other = group.spawn(async move {
            for _ in 0..200 {
                compute_for(Duration::from_micros(100));
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        other.await.unwrap();
        sender.send(9).unwrap();
        assert_eq!(blocked.await.unwrap(), 9);
        let stats = scheduler.preempt_stats().unwrap();
        assert!(stats.detached >= 1, "{stats:?}");
    });
}

#[test]
fn locks_of_the_program_that_long_polls_hold_are_given_back_in_the_end() {
    run(2, |scheduler| async move {
        let lock = Arc::new(std::sync::Mutex::new(0_u64));
        let groups: Vec<_> = (0..3)
            .map(|index| {
                let group = scheduler.group(&format!("group{index}")).unwrap();
                group.create().unwrap()
            })
            .collect();
        let handles: Vec<_> = (0..12)
            .map(|index: usize| {
                let lock = lock.clone();
                groups[index % 3].spawn(async move {
                    for _ in 0..5 {
                        {
                            let mut held = lock.lock().unwrap();
                            compute_for(Duration::from_millis(3));
                            *held += 1;
                        }
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
        assert_eq!(*lock.lock().unwrap(), 60);
    });
}

#[test]
fn settings_out_of_their_range_are_refused() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let build = |preempt: Preempt| {
        Scheduler::builder()
            .handle(runtime.handle().clone())
            .preempt(preempt)
            .build()
            .map(drop)
    };
    for wrong in [
        Preempt::default().turn(Duration::ZERO),
        Preempt::default().turn(Duration::from_secs(1)),
        Preempt::default().max_borne(0),
        Preempt::default().max_borne(100_000),
        Preempt::default().demote(quotient::Demotion::Nice(0)),
    ] {
        let refused = build(wrong);
        assert!(
            matches!(refused, Err(quotient::BuildError::Preempt(_))),
            "{wrong:?}"
        );
    }
}

#[test]
fn beyond_the_most_that_can_be_borne_polls_run_to_their_end() {
    let runtime = common::runtime(2);
    runtime.block_on(async {
        let scheduler = Scheduler::builder()
            .vcpus(2)
            .preempt(Preempt::default().max_borne(1))
            .build()
            .unwrap();
        let group = scheduler.group("group").unwrap().create().unwrap();
        let handles: Vec<_> = (0..6)
            .map(|_| group.spawn(async { compute_for(Duration::from_millis(40)) }))
            .collect();
        for handle in handles {
            let ended = tokio::time::timeout(HANG, handle).await;
            assert!(ended.expect("hangs").unwrap() > 0);
        }
        let stats = scheduler.preempt_stats().unwrap();
        assert!(stats.refused > 0, "{stats:?}");
        assert!(stats.threads <= 4 + 1, "{stats:?}");
        scheduler.shutdown().await;
    });
}

#[test]
fn a_runtime_can_end_beside_an_endless_poll() {
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = common::runtime(2);
    let started = Instant::now();
    let (scheduler, hog) = runtime.block_on(async {
        let scheduler = Scheduler::builder()
            .preempt(Preempt::default())
            .build()
            .unwrap();
        let group = scheduler.group("group").unwrap().create().unwrap();
        let end = stop.clone();
        let hog = group.spawn(async move { compute(|| end.load(Ordering::Relaxed)) });
        tokio::time::sleep(Duration::from_millis(30)).await;
        (scheduler, hog)
    });
    runtime.shutdown_timeout(Duration::from_millis(100));
    assert!(started.elapsed() < HANG, "the runtime waits for the poll");
    stop.store(true, Ordering::Relaxed);
    while scheduler.tasks() > 0 {
        assert!(started.elapsed() < HANG, "the poll does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(hog);
}
