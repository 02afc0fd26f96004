//! The gate of `in_group` in foreign tasks: no end of a group or a scheduler loses a wake-up, no poll passes by weight and limit,
//! and what is billed is CPU time.
#![cfg(not(loom))]

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{burn, eventually, repeatedly, scheduler, time_here};
use quotient::{Cpus, Group, InGroupExt, Leftover, Scheduler};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);

/// How a group may end under a future that is in it.
#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    RemoveAndKill,
    RemoveAndMove,
    Shutdown,
    DropHandles,
}

const ENDS: [End; 5] = [
    End::Kill,
    End::RemoveAndKill,
    End::RemoveAndMove,
    End::Shutdown,
    End::DropHandles,
];

async fn bring_about(end: End, scheduler: Scheduler, group: Group) {
    match end {
        End::Kill => group.kill().unwrap(),
        End::RemoveAndKill => group.remove(Leftover::Kill).unwrap(),
        End::RemoveAndMove => group.remove(Leftover::MoveToParent).unwrap(),
        End::Shutdown => scheduler.shutdown().await,
        End::DropHandles => {}
    }
}

/// As `scheduler`; with a limit that is never reached every poll waits for its turn at a gate, without one most go ahead.
fn with_gates(workers: usize, always: bool) -> (Scheduler, Group) {
    let (scheduler, group) = scheduler(workers);
    if always {
        group.set_max(Cpus(64.0)).unwrap();
    }
    (scheduler, group)
}

/// A future in a foreign task that says when it was polled first, and then waits to be told to end.
fn waiting(group: &Group) -> (JoinHandle<u32>, oneshot::Receiver<()>, oneshot::Sender<u32>) {
    let (started, begun) = oneshot::channel();
    let (sender, receiver) = oneshot::channel();
    let future = async move {
        started.send(()).unwrap();
        receiver.await.unwrap()
    };
    (tokio::spawn(future.in_group(group)), begun, sender)
}

#[test]
fn a_wake_up_after_the_end_of_the_group_arrives() {
    repeatedly(|workers| async move {
        for (end, always) in ENDS.map(|end| [(end, false), (end, true)]).concat() {
            let (scheduler, group) = with_gates(workers, always);
            let (task, begun, sender) = waiting(&group);
            begun.await.unwrap();
            bring_about(end, scheduler, group).await;
            sender.send(7).unwrap();
            assert_eq!(task.await.unwrap(), 7, "{end:?}");
        }
    });
}

#[test]
fn a_wake_up_at_the_end_of_the_group_arrives() {
    repeatedly(|workers| async move {
        for (end, always) in ENDS.map(|end| [(end, false), (end, true)]).concat() {
            let (scheduler, group) = with_gates(workers, always);
            let tasks: Vec<_> = (0..8)
                .map(|_| {
                    let future = async {
                        for _ in 0..50 {
                            tokio::task::yield_now().await;
                        }
                    };
                    tokio::spawn(future.in_group(&group))
                })
                .collect();
            tokio::task::yield_now().await;
            bring_about(end, scheduler, group).await;
            for task in tasks {
                task.await.unwrap();
            }
        }
    });
}

/// The turn that was asked for never comes: the group is frozen, and then ends.
#[test]
fn a_turn_that_is_outstanding_when_the_group_ends_is_not_lost() {
    repeatedly(|workers| async move {
        let ends = [End::Kill, End::RemoveAndKill, End::Shutdown];
        for (end, always) in ends.map(|end| [(end, false), (end, true)]).concat() {
            let (scheduler, group) = with_gates(workers, always);
            let (woken, begun, sender) = waiting(&group);
            begun.await.unwrap();
            group.freeze().unwrap();
            sender.send(7).unwrap();
            let (new, _begun, sender) = waiting(&group);
            sender.send(8).unwrap();
            tokio::time::sleep(MS).await;
            assert!(!new.is_finished(), "frozen");
            bring_about(end, scheduler, group.clone()).await;
            // A killed group that is frozen keeps its next members waiting, like everything in it.
            if matches!(end, End::Kill) {
                group.thaw().unwrap();
            }
            assert_eq!(
                (woken.await.unwrap(), new.await.unwrap()),
                (7, 8),
                "{end:?}"
            );
        }
    });
}

#[test]
fn a_shutdown_that_is_awaited_inside_does_not_wait_for_itself() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        let inside = scheduler.clone();
        let future = async move {
            tokio::time::sleep(MS).await;
            inside.shutdown().await;
            1
        };
        assert_eq!(tokio::spawn(future.in_group(&group)).await.unwrap(), 1);
    });
}

#[test]
fn a_group_that_is_killed_again_and_again_lets_its_futures_end() {
    repeatedly(|workers| async move {
        let (scheduler, group) = with_gates(workers, true);
        let future = async {
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            5
        };
        let task = tokio::spawn(future.in_group(&group));
        while !task.is_finished() {
            group.kill().unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(task.await.unwrap(), 5);
        eventually("the member ends", || scheduler.tasks() == 0).await;
        scheduler.shutdown().await;
    });
}

#[test]
fn a_future_of_a_group_that_is_gone_is_billed_and_ends() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        group.remove(Leftover::Kill).unwrap();
        tokio::spawn(async { burn(2 * MS) }.in_group(&group))
            .await
            .unwrap();
        assert!(group.cpu_time() >= MS, "billed {:?}", group.cpu_time());
        scheduler.shutdown().await;
        tokio::spawn(async { burn(MS) }.in_group(&group))
            .await
            .unwrap();
    });
}

#[test]
fn local_tasks_end_with_their_group() {
    repeatedly(|workers| async move {
        for end in [End::Kill, End::RemoveAndKill, End::Shutdown] {
            let (scheduler, group) = scheduler(workers);
            let local = tokio::task::LocalSet::new();
            let value = local.run_until(async move {
                let member = group.clone();
                let task = member.spawn_local(async {
                    tokio::time::sleep(2 * MS).await;
                    3
                });
                tokio::time::sleep(MS).await;
                bring_about(end, scheduler, group).await;
                // On a slow machine it may be over before.
                match task.await {
                    Ok(value) => value == 3,
                    Err(error) => error.is_cancelled(),
                }
            });
            assert!(value.await);
        }
    });
}

#[test]
fn the_first_poll_waits_for_its_turn() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        group.freeze().unwrap();
        let polled = Arc::new(AtomicBool::new(false));
        let flag = polled.clone();
        let future = async move { flag.store(true, Ordering::SeqCst) };
        let task = tokio::spawn(future.in_group(&group));
        tokio::time::sleep(5 * MS).await;
        assert!(!polled.load(Ordering::SeqCst), "polled in a frozen group");
        group.thaw().unwrap();
        task.await.unwrap();
        scheduler.shutdown().await;
    });
}

/// Tasks that each run one future after the other in the group, until the flag.
fn drivers<F>(
    group: &Group,
    count: usize,
    stop: &Arc<AtomicBool>,
    make: fn() -> F,
) -> Vec<JoinHandle<()>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let one = |_| {
        let (group, stop) = (group.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                tokio::spawn(make().in_group(&group)).await.unwrap();
            }
        })
    };
    (0..count).map(one).collect()
}

async fn one_poll() {
    burn(2 * MS);
}

async fn several_polls() {
    for _ in 0..8 {
        burn(MS / 4);
        tokio::task::yield_now().await;
    }
}

/// What is used in a while is at most what the limit gives, and the polls that were let through before it was used up. The while is
/// not over before something was throttled: how soon the quota is used up is for the rest of the machine to say, so it is
/// one that half a future uses up.
async fn stays_within_its_limit<F>(workers: usize, make: fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    const DRIVERS: u32 = 4;
    let scheduler = Scheduler::builder().vcpus(workers).build().unwrap();
    let group = scheduler.group("limited").unwrap();
    let group = group.max("1ms/100ms").create().unwrap();
    let start = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let drivers = drivers(&group, DRIVERS as usize, &stop, make);
    tokio::time::sleep(300 * MS).await;
    eventually("throttled", || group.stats().bandwidth.nr_throttled > 0).await;
    let (used, elapsed) = (group.cpu_time(), start.elapsed());
    // One quota at the start, and what each driver has begun when the budget ends. Twice as much again for what the futures
    // themselves and their members take beyond.
    let allowed = elapsed / 100 + MS + DRIVERS * 4 * MS;
    assert!(used <= allowed, "used {used:?} of {allowed:?}");
    stop.store(true, Ordering::Relaxed);
    group.set_max("max").unwrap();
    for driver in drivers {
        driver.await.unwrap();
    }
    scheduler.shutdown().await;
}

#[test]
fn futures_of_one_poll_do_not_pass_by_the_limit() {
    repeatedly(|workers| stays_within_its_limit(workers, one_poll));
}

#[test]
fn futures_of_several_polls_do_not_pass_by_the_limit() {
    repeatedly(|workers| stays_within_its_limit(workers, several_polls));
}

/// What wraps have used is paid when they end, and they leave no member behind.
#[test]
fn debts_of_ended_futures_are_paid_and_their_members_go() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        group.set_max("20ms/20ms").unwrap();
        let tasks: Vec<_> = (0..20)
            .map(|_| tokio::spawn(one_poll().in_group(&group)))
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(group.cpu_time() >= 20 * MS, "{:?}", group.cpu_time());
        eventually("all have paid", || scheduler.tasks() == 0).await;
        scheduler.shutdown().await;
    });
}

/// Time in which the thread did not run, here because it sleeps, is nobody's: as when the host takes the processor.
#[test]
fn a_wrap_is_billed_cpu_time_and_not_wall_time() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        let used = tokio::spawn(
            async {
                let mut used = Duration::ZERO;
                for _ in 0..3 {
                    let before = time_here();
                    burn(MS);
                    std::thread::sleep(30 * MS);
                    used += time_here() - before;
                    tokio::task::yield_now().await;
                }
                used
            }
            .in_group(&group),
        )
        .await
        .unwrap();
        let billed = group.cpu_time();
        assert!(
            billed >= used && billed < used + 30 * MS,
            "billed {billed:?}"
        );
        scheduler.shutdown().await;
    });
}

/// The same for somebody who reads the clock inside.
#[test]
fn who_reads_a_clock_inside_a_wrap_is_not_billed_wall_time() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        let own = group.clone();
        let future = async move {
            burn(MS);
            let mut last = own.cpu_time();
            assert!(last >= MS, "up to date: {last:?}");
            for _ in 0..3 {
                std::thread::sleep(20 * MS);
                let now = own.cpu_time();
                assert!(now >= last, "back from {last:?} to {now:?}");
                last = now;
            }
            last
        };
        let seen = tokio::spawn(future.in_group(&group)).await.unwrap();
        let billed = group.cpu_time();
        assert!(
            seen < 20 * MS && billed < 20 * MS,
            "seen {seen:?}, billed {billed:?}"
        );
        assert!(billed >= seen, "seen {seen:?}, billed {billed:?}");
        scheduler.shutdown().await;
    });
}

/// What a nested wrap sleeps is no reason to bill its outer task less than it used.
#[test]
fn a_nested_wrap_that_sleeps_takes_nothing_off_the_outer_bill() {
    repeatedly(|workers| async move {
        let (scheduler, outer) = scheduler(workers);
        let inner = scheduler.group("inner").unwrap().create().unwrap();
        let target = inner.clone();
        let task = outer.spawn(async move {
            burn(3 * MS);
            async { std::thread::sleep(20 * MS) }
                .in_group(&target)
                .await;
            burn(3 * MS);
        });
        task.await.unwrap();
        let (outer, inner) = (outer.cpu_time(), inner.cpu_time());
        assert!(outer >= 6 * MS, "outer billed {outer:?}");
        assert!(outer < 20 * MS && inner < 15 * MS, "{outer:?}, {inner:?}");
        scheduler.shutdown().await;
    });
}

/// `checkpoint` and `block_in_place` act on the virtual CPU that polls, whoever is charged.
#[test]
fn two_schedulers_on_one_thread_are_not_mixed_up() {
    repeatedly(|workers| async move {
        let (many, group) = scheduler(workers.max(2));
        let few = Scheduler::builder().vcpus(1).build().unwrap();
        let other = few.group("other").unwrap().create().unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (other, done) = (other.clone(), done.clone());
                group.spawn(async move {
                    tokio::task::yield_now().await;
                    let inside = async {
                        for _ in 0..3 {
                            quotient::checkpoint().await;
                            burn(MS / 10);
                            tokio::task::yield_now().await;
                        }
                        quotient::block_in_place(|| std::thread::sleep(MS));
                    };
                    inside.in_group(&other).await;
                    done.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(done.load(Ordering::SeqCst), 8);
        few.shutdown().await;
        many.shutdown().await;
    });
}

/// Hazard: the inner future was polled last with a waker that is not the gate's, so nobody tells the gate when it is woken.
#[test]
fn a_wrap_that_was_polled_inside_another_wrap_is_woken_outside_of_it() {
    repeatedly(|workers| async move {
        let (scheduler, group) = scheduler(workers);
        let other = scheduler.group("other").unwrap().create().unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel::<u32>();
        let (moved, has_moved) = tokio::sync::oneshot::channel();
        let foreign = tokio::spawn(async move {
            let inside = async move { receiver.await.unwrap() };
            let mut wrap = Box::pin(inside.in_group(&group));
            // In the foreign task itself, until the gate has let the first poll through; then inside another wrap.
            let _ = tokio::time::timeout(20 * MS, &mut wrap).await;
            let nested = async { (&mut wrap).await }.in_group(&other);
            let _ = tokio::time::timeout(20 * MS, nested).await;
            let outside = std::future::poll_fn(|context| wrap.as_mut().poll(context));
            let mut outside = std::pin::pin!(outside);
            let early = std::future::poll_fn(|context| {
                std::task::Poll::Ready(outside.as_mut().poll(context))
            });
            assert!(early.await.is_pending());
            moved.send(()).unwrap();
            outside.await
        });
        has_moved.await.unwrap();
        tokio::time::sleep(20 * MS).await;
        sender.send(7).unwrap();
        assert_eq!(foreign.await.unwrap(), 7);
        scheduler.shutdown().await;
    });
}

/// Hazard: a scheduler at the address of a dead one, whose clock begins at zero: a reading of the thread's CPU clock that is of the dead
/// one's time looks fresh, and the outer task's time is billed to the wrap, or to nobody.
#[test]
fn readings_of_a_dead_scheduler_bill_nobody() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for round in 0..60 {
            let (scheduler, outer) = scheduler(1);
            let inner = scheduler.group("inner").unwrap().create().unwrap();
            let target = inner.clone();
            let task = outer.spawn(async move {
                burn(MS);
                async { std::thread::sleep(8 * MS) }.in_group(&target).await;
                burn(MS);
            });
            task.await.unwrap();
            let billed = outer.cpu_time();
            assert!(billed >= 2 * MS, "outer billed {billed:?} in round {round}");
            scheduler.shutdown().await;
        }
    });
}

/// Does in its destructor what a user's thread-local may: polls a future in a group to its end.
struct InGroupAtLast {
    group: Group,
    ended: std::sync::mpsc::Sender<bool>,
}

impl Drop for InGroupAtLast {
    fn drop(&mut self) {
        let mut future = std::pin::pin!(
            async {
                tokio::task::yield_now().await;
                burn(MS);
                7
            }
            .in_group(&self.group)
        );
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let end = Instant::now() + Duration::from_secs(20);
        let mut polled = std::task::Poll::Pending;
        while polled.is_pending() && Instant::now() < end {
            polled = future.as_mut().poll(&mut context);
            std::thread::sleep(MS / 10);
        }
        let _ = self.ended.send(polled == std::task::Poll::Ready(7));
    }
}

/// A thread's locals go in some order, and what of ours goes first must not be missed. (It was: a panic in a destructor of a
/// thread-local aborts the process.)
#[test]
fn a_future_is_polled_while_the_locals_of_its_thread_are_destroyed() {
    thread_local! {
        static LAST: std::cell::RefCell<Option<InGroupAtLast>> = const { std::cell::RefCell::new(None) };
    }
    repeatedly(|workers| async move {
        for always in [false, true] {
            let (scheduler, group) = with_gates(workers, always);
            let (sender, receiver) = std::sync::mpsc::channel();
            let own = group.clone();
            let thread = std::thread::spawn(move || {
                let ended = sender;
                let group = own.clone();
                // Registered before ours, which is destroyed first, then.
                LAST.set(Some(InGroupAtLast { group, ended }));
                drop(async {}.in_group(&own));
                assert!(Group::current().is_none());
            });
            // The runtime's workers are needed meanwhile.
            tokio::task::spawn_blocking(move || thread.join().unwrap())
                .await
                .unwrap();
            assert!(receiver.recv().unwrap(), "it did not end");
            assert!(group.cpu_time() >= MS / 2, "billed {:?}", group.cpu_time());
            scheduler.shutdown().await;
        }
    });
}
