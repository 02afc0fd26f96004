//! Polls that do not return, in a scheduler that preempts them. On real threads: what is asserted of time is generous, since the
//! machine is shared.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use preempted::{HANG, alone, compute, compute_for};
use quotient::{Preempt, Scheduler};

/// Rounds in which polls must have been detached, or refused to be. A host that keeps the watch from its processor for longer than a
/// poll computes makes it miss some.
const ROUNDS_MAX: u64 = 40;

/// Runs `body` with `vcpus` virtual CPUs.
fn run<F>(vcpus: usize, body: impl FnOnce(Scheduler) -> F)
where
    F: Future<Output = ()>,
{
    preempted::run(vcpus, Duration::from_secs(1), body);
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

#[test]
fn what_a_long_poll_ends_with_reaches_its_task() {
    run(2, |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let long = Duration::from_millis(15);
        let detached = || scheduler.preempt_stats().unwrap().detached;
        for round in 0..ROUNDS_MAX {
            if round >= 6 && detached() > 0 {
                break;
            }
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
        // The last handle sees the end before its bearer, a thread of low priority, has posted it. One that stays is a hang.
        while scheduler.tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Tasks that wake each other and sleep take each other's place in the run queue, though their wake-ups come by the inbox, from
/// polls that now and then lose their virtual CPU on the way. Each answer reaches who waits for it, and clocks stay whole.
#[test]
fn conversations_go_on_where_polls_lose_their_virtual_cpu() {
    const WORDS: u64 = 2_000;
    for vcpus in [1, 2] {
        run(vcpus, |scheduler| async move {
            let speaker = |group: &quotient::Group,
                           mut heard: tokio::sync::mpsc::Receiver<u64>,
                           said: tokio::sync::mpsc::Sender<u64>| {
                group.spawn(async move {
                    let mut sum = 0;
                    while let Some(word) = heard.recv().await {
                        sum += word;
                        if word % 499 == 0 {
                            compute_for(Duration::from_millis(2));
                        }
                        if word == WORDS || said.send(word + 1).await.is_err() || word + 1 == WORDS
                        {
                            break;
                        }
                    }
                    sum
                })
            };
            let mut pairs = Vec::new();
            for name in ["one", "other"] {
                let group = scheduler.group(name).unwrap().create().unwrap();
                for _ in 0..3 {
                    let (first, heard_first) = tokio::sync::mpsc::channel(1);
                    let (second, heard_second) = tokio::sync::mpsc::channel(1);
                    first.send(1).await.unwrap();
                    pairs.push(speaker(&group, heard_first, second));
                    pairs.push(speaker(&group, heard_second, first));
                }
            }
            let mut sum = 0;
            for task in pairs {
                sum += tokio::time::timeout(HANG, task).await.unwrap().unwrap();
            }
            assert_eq!(sum, 6 * WORDS * (WORDS + 1) / 2, "{vcpus}");
        });
    }
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

/// Hazard: what a poll wakes is kept for the thread that polls, and when the poll becomes long, another thread goes on, which finds nothing.
#[test]
fn what_a_poll_has_kept_goes_on_without_it() {
    run(1, |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let heard = Arc::new(AtomicU64::new(0));
        let (wake, mut woken) = tokio::sync::mpsc::unbounded_channel();
        let count = heard.clone();
        let listener = group.spawn(async move {
            while woken.recv().await.is_some() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let count = heard.clone();
        let talker = group.spawn(async move {
            // Until the listener waits.
            tokio::time::sleep(Duration::from_millis(5)).await;
            const PATIENCE: Duration = Duration::from_secs(20);
            // The first is kept, the others come when the virtual CPU is another thread's.
            for round in 1..=3 {
                wake.send(()).unwrap();
                let began = Instant::now();
                compute(|| count.load(Ordering::Relaxed) >= round || began.elapsed() > PATIENCE);
            }
            count.load(Ordering::Relaxed)
        });
        assert_eq!(talker.await.unwrap(), 3, "heard while the talker computes");
        listener.await.unwrap();
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

/// Polls that are stopped hundreds of times a second, and do little but take a lock of the runtime's.
#[test]
fn a_poll_that_asks_for_figures_is_stopped_under_the_lock_that_resumes_it() {
    run(1, |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let handles: Vec<_> = (0..3)
            .map(|_| {
                let (stop, scheduler) = (stop.clone(), scheduler.clone());
                group.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::black_box(scheduler.preempt_stats());
                    }
                })
            })
            .collect();
        let started = Instant::now();
        while scheduler.preempt_stats().unwrap().pauses < 100 {
            let stats = scheduler.preempt_stats();
            assert!(started.elapsed() < HANG, "{stats:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for handle in handles {
            handle.await.unwrap();
        }
    });
}

/// What a short turn costs puts off the next. Once the whole CPU time of a poll that stopped during one was taken for its cost.
#[test]
fn stopped_polls_have_no_short_turns_after_a_while() {
    run(1, |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let hogs: Vec<_> = (0..4)
            .map(|_| {
                let stop = stop.clone();
                group.spawn(async move { compute(|| stop.load(Ordering::Relaxed)) })
            })
            .collect();
        // In two seconds; it was in hours.
        while scheduler.preempt_stats().unwrap().aged < 80 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for hog in hogs {
            assert!(hog.await.unwrap() > 0);
        }
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
        Preempt::default().stack_size(1 << 10),
        Preempt::default().stack_size(2 << 30),
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
    let _alone = alone();
    let runtime = common::runtime(2);
    runtime.block_on(async {
        let scheduler = Scheduler::builder()
            .vcpus(2)
            .preempt(Preempt::default().max_borne(1))
            .build()
            .unwrap();
        let group = scheduler.group("group").unwrap().create().unwrap();
        for _round in 0..ROUNDS_MAX {
            let handles: Vec<_> = (0..6)
                .map(|_| group.spawn(async { compute_for(Duration::from_millis(40)) }))
                .collect();
            for handle in handles {
                let ended = tokio::time::timeout(HANG, handle).await;
                assert!(ended.expect("hangs").unwrap() > 0);
            }
            if scheduler.preempt_stats().unwrap().refused > 0 {
                break;
            }
        }
        let stats = scheduler.preempt_stats().unwrap();
        assert!(stats.refused > 0, "{stats:?}");
        assert!(stats.threads <= 4 + 1, "{stats:?}");
        scheduler.shutdown().await;
    });
}

/// Two polls become long at the same time, and the thread that takes the first one's virtual CPU over has not started the next one yet.
#[test]
fn one_spare_is_all_there_is_for_two_virtual_cpus() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let stats = || scheduler.preempt_stats().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut hogs = Vec::new();
        // One a virtual CPU, one a long poll, and two.
        for long in [0, 2, 4] {
            common::eventually("spares", || {
                let stats = stats();
                stats.borne == long && stats.threads >= 2 + long + 2
            })
            .await;
            hogs.extend((0..2).map(|_| {
                let end = stop.clone();
                group.spawn(async move { compute(|| end.load(Ordering::Relaxed)) })
            }));
        }
        stop.store(true, Ordering::Relaxed);
        for hog in hogs {
            hog.await.unwrap();
        }
    });
}

#[test]
fn a_runtime_can_end_beside_an_endless_poll() {
    let _alone = alone();
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
