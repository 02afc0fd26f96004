//! `JoinSet` behaves as tokio's: the same script runs on both, and what it notes must be equal.
#![cfg(not(loom))]

mod common;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::{CountDrop, guarded, on_every_host, runtime, scheduler};

/// Counts wake-ups.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// What happens in a set of type `$set`, in words.
macro_rules! script {
    ($set:ident) => {
        async {
            let mut notes: Vec<String> = Vec::new();
            let mut note = |what: &str, value: String| notes.push(format!("{what}: {value}"));
            let mut set: $set<u32> = $set::new();
            note(
                "nothing to look at",
                format!("{:?}", set.try_join_next().is_none()),
            );
            note(
                "nothing to wait for",
                format!("{:?}", set.join_next().await.is_none()),
            );

            let (release, released) = tokio::sync::oneshot::channel::<()>();
            let waits = set.spawn(async move {
                let _ = released.await;
                1
            });
            note(
                "not yet",
                format!("{:?} of {}", set.try_join_next().is_none(), set.len()),
            );
            release.send(()).expect("the task waits");
            let (id, output) = set
                .join_next_with_id()
                .await
                .expect("one task")
                .expect("an output");
            note(
                "its own name",
                format!("{} {output} {}", id == waits.id(), set.is_empty()),
            );

            let aborted = set.spawn(std::future::pending());
            aborted.abort();
            let error = set
                .join_next_with_id()
                .await
                .expect("one task")
                .expect_err("aborted");
            note(
                "aborted",
                format!(
                    "{} {} {}",
                    error.is_cancelled(),
                    error.is_panic(),
                    error.id() == aborted.id()
                ),
            );
            let panicked = set.spawn(async { panic!("on purpose") });
            let error = set
                .join_next()
                .await
                .expect("one task")
                .expect_err("it panicked");
            note(
                "panicked",
                format!(
                    "{} {} {}",
                    error.is_cancelled(),
                    error.is_panic(),
                    error.id() == panicked.id()
                ),
            );
            let message = error.into_panic();
            note("with", format!("{:?}", message.downcast_ref::<&str>()));

            let blocking = set.spawn_blocking(|| 7);
            let (id, output) = set
                .join_next_with_id()
                .await
                .expect("one task")
                .expect("an output");
            note("blocking", format!("{} {output}", id == blocking.id()));

            set.extend((0..5).map(|number| async move { number }));
            let mut outputs = Vec::new();
            while outputs.len() < 5 {
                match set.try_join_next_with_id() {
                    Some(output) => outputs.push(output.expect("an output").1),
                    None => tokio::task::yield_now().await,
                }
            }
            outputs.sort_unstable();
            note(
                "looked at",
                format!("{outputs:?} {}", set.try_join_next().is_none()),
            );

            let collected: $set<u32> = (10..15).map(|number| async move { number }).collect();
            let mut outputs = collected.join_all().await;
            outputs.sort_unstable();
            note("collected", format!("{outputs:?}"));

            let dropped = Arc::new(AtomicUsize::new(0));
            for _ in 0..3 {
                let guard = CountDrop(dropped.clone());
                set.spawn(async move {
                    let _guard = guard;
                    std::future::pending().await
                });
            }
            set.shutdown().await;
            note(
                "shut down",
                format!("{} {}", dropped.load(Ordering::SeqCst), set.len()),
            );

            let ended = Arc::new(tokio::sync::Notify::new());
            let end = ended.clone();
            set.spawn(async move {
                tokio::task::yield_now().await;
                end.notify_one();
                1
            });
            set.detach_all();
            note("detached", format!("{}", set.len()));
            drop(set);
            ended.notified().await;
            notes
        }
    };
}

#[test]
fn a_program_written_for_tokios_set_behaves_differently() {
    for workers in [1, 2] {
        runtime(workers).block_on(guarded(async move {
            let (scheduler, group) = scheduler(workers);
            let theirs = {
                use tokio::task::JoinSet;
                tokio::spawn(script!(JoinSet))
                    .await
                    .expect("the script ends")
            };
            let ours = {
                use quotient::JoinSet;
                group
                    .spawn(script!(JoinSet))
                    .await
                    .expect("the script ends")
            };
            assert_eq!(ours, theirs);
            scheduler.shutdown().await;
        }));
    }
}

#[test]
fn a_look_without_a_waker_silences_who_waits() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let mut set = quotient::JoinSet::new();
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        set.spawn_in(&group, async move { released.await.is_ok() });
        let wakes = Arc::new(Counter::default());
        let waker = Waker::from(wakes.clone());
        assert!(
            set.poll_join_next(&mut Context::from_waker(&waker))
                .is_pending()
        );
        assert!(set.try_join_next().is_none());
        let before = wakes.0.load(Ordering::SeqCst);
        release.send(()).expect("the task waits");
        common::eventually("the wake-up", || wakes.0.load(Ordering::SeqCst) > before).await;
        let Poll::Ready(Some(Ok(true))) = set.poll_join_next(&mut Context::from_waker(&waker))
        else {
            panic!("the task has ended");
        };
        scheduler.shutdown().await;
    });
}

#[test]
fn a_task_that_joins_a_waiting_set_is_not_waited_for() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let mut set = quotient::JoinSet::new();
        set.spawn_in(&group, std::future::pending());
        let wakes = Arc::new(Counter::default());
        let waker = Waker::from(wakes.clone());
        // Twice: the first look at a new task may end in a wake-up of its own.
        for _ in 0..2 {
            let polled = set.poll_join_next(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        let before = wakes.0.load(Ordering::SeqCst);
        // After the last poll: the set must tell whoever waits, or be polled by nobody.
        set.spawn_in(&group, async { 5 });
        common::eventually("the wake-up", || wakes.0.load(Ordering::SeqCst) > before).await;
        tokio::time::timeout(Duration::from_secs(60), set.join_next())
            .await
            .expect("the second task ends")
            .expect("the set has two")
            .expect("it does not panic");
        scheduler.shutdown().await;
    });
}

#[test]
fn local_tasks_of_a_set_are_left_running_when_it_is_dropped() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let local = tokio::task::LocalSet::new();
        let member = group.clone();
        let dropped = Arc::new(AtomicUsize::new(0));
        let guard = CountDrop(dropped.clone());
        local
            .run_until(async move {
                // Neither the future nor the output is `Send`.
                let mut set = quotient::JoinSet::<std::rc::Rc<u32>>::new();
                let value = std::rc::Rc::new(3);
                set.spawn_local_in(&member, async move { value });
                let output = set.join_next().await.expect("one task").expect("an output");
                assert_eq!(*output, 3);
                set.spawn_local_in(&member, async move {
                    let _guard = guard;
                    std::future::pending().await
                });
                tokio::task::yield_now().await;
                drop(set);
                common::eventually("the drop", || dropped.load(Ordering::SeqCst) == 1).await;
            })
            .await;
        scheduler.shutdown().await;
    });
}

/// Handles that are ready cost a unit of tokio's budget each, as tokio's own do: a loop over them gives way to other tasks.
#[test]
fn ready_handles_take_part_in_tokio_s_budget() {
    const TASKS: usize = 1_000;
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let mut handles: Vec<_> = (0..TASKS).map(|_| group.spawn(async {})).collect();
        let mut set = quotient::JoinSet::new();
        for _ in 0..TASKS {
            set.spawn_in(&group, async {});
        }
        while scheduler.tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A new poll, with a whole budget.
        tokio::task::yield_now().await;
        let mut taken = 0;
        let most = poll_fn(|context| {
            let mut most = 0;
            while taken < TASKS && Pin::new(&mut handles[taken]).poll(context).is_ready() {
                taken += 1;
                most += 1;
            }
            Poll::Ready(most)
        })
        .await;
        assert!((1..=128).contains(&most), "{most} handles in one poll");
        tokio::task::yield_now().await;
        let most = poll_fn(|context| {
            let mut most = 0;
            while matches!(set.poll_join_next(context), Poll::Ready(Some(_))) {
                most += 1;
            }
            Poll::Ready(most)
        })
        .await;
        assert!((1..=128).contains(&most), "{most} of a set in one poll");
        // Who only looks is answered, as in tokio, and who waits gets the rest.
        assert!(set.try_join_next().is_some(), "no budget is not no task");
        let mut rest = 0;
        while set.join_next().await.is_some() {
            rest += 1;
        }
        assert_eq!(most + 1 + rest, TASKS);
        for handle in handles.drain(taken..) {
            handle.await.unwrap();
        }
        scheduler.shutdown().await;
    });
}
