//! Kill, freeze and removal against tasks that get out of the way: by spawning successors, by a move, by being spawned just now.
#![cfg(not(loom))]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{CountDrop, burn, eventually, on_every_host, repeatedly, repetitions, scheduler};
use quotient::{Error, Group, InGroupExt, Leftover, SpawnError};

/// Where a task puts its successor.
#[derive(Clone, Copy, Debug)]
enum Into {
    /// The group it runs in.
    Own,
    /// A group below, made anew by each.
    NewChild,
    /// A group below, through an `in_group`.
    Wrapped,
    /// The group it runs in, from its destructor.
    Destructor,
}

struct Heir(Option<(Group, Arc<AtomicUsize>)>);

impl Drop for Heir {
    fn drop(&mut self) {
        if let Some((group, count)) = self.0.take() {
            drop(group.try_spawn(bomb(group.clone(), Into::Destructor, count)));
        }
    }
}

/// Computes a little, then spawns its successor.
fn bomb(
    group: Group,
    into: Into,
    count: Arc<AtomicUsize>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let number = count.fetch_add(1, Ordering::Relaxed);
        burn(Duration::from_micros(50));
        match into {
            Into::Own => drop(quotient::spawn(bomb(group, into, count))),
            Into::NewChild => {
                let child = group.child(&format!("c{number}")).create().unwrap();
                drop(child.try_spawn(bomb(group, into, count)));
            }
            Into::Wrapped => {
                let inner = group.child("wrapped").create().unwrap();
                let spawning = async { drop(quotient::spawn(bomb(group.clone(), into, count))) };
                spawning.in_group(&inner).await;
            }
            Into::Destructor => {
                let _heir = Heir(Some((group, count)));
                tokio::task::yield_now().await;
            }
        }
    })
}

#[test]
fn one_kill_ends_tasks_that_spawn_their_successors() {
    for into in [Into::Own, Into::NewChild, Into::Wrapped, Into::Destructor] {
        on_every_host(|vcpus| one_kill_ends_all(into, vcpus));
        repeatedly(|workers| one_kill_ends_all(into, workers));
    }
}

async fn one_kill_ends_all(into: Into, vcpus: usize) {
    let (scheduler, group) = scheduler(vcpus);
    let count = Arc::new(AtomicUsize::new(0));
    for _ in 0..8 {
        drop(group.spawn(bomb(group.clone(), into, count.clone())));
    }
    eventually("the bomb ticks", || count.load(Ordering::Relaxed) > 20).await;
    group.kill().unwrap();
    eventually(&format!("{into:?}: one kill ends all"), || {
        scheduler.tasks() == 0
    })
    .await;
    // The group stays, and is open to others.
    assert_eq!(group.spawn(async { 7 }).await.unwrap(), 7);
    scheduler.shutdown().await;
}

#[test]
fn a_supervisor_kills_and_spawns_anew_in_one_poll() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let supervisor = scheduler.group("supervisor").unwrap().create().unwrap();
        let forever = group.spawn(std::future::pending::<()>());
        let inner = group.clone();
        let fresh = supervisor
            .spawn(async move {
                inner.kill().unwrap();
                let fresh = inner.spawn(async { 7 });
                fresh.await
            })
            .await
            .unwrap();
        assert_eq!(fresh.unwrap(), 7);
        assert!(forever.await.unwrap_err().is_cancelled());
        scheduler.shutdown().await;
    });
}

#[test]
fn a_task_that_was_moved_out_of_a_killed_group_can_spawn() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let other = scheduler.group("other").unwrap().create().unwrap();
        group.kill().unwrap();
        let go = Arc::new(tokio::sync::Notify::new());
        let waiting = go.clone();
        let task = other.spawn(async move {
            waiting.notified().await;
            quotient::spawn(async { 7 }).await.unwrap()
        });
        // Into a group that was killed before the move.
        other.move_tasks_to(&group).unwrap();
        go.notify_one();
        assert_eq!(task.await.unwrap(), 7);
        scheduler.shutdown().await;
    });
}

#[test]
fn a_task_moved_out_of_a_frozen_group_runs() {
    on_every_host(runs_where_it_was_moved);
    repeatedly(runs_where_it_was_moved);
}

async fn runs_where_it_was_moved(vcpus: usize) {
    let (scheduler, group) = scheduler(vcpus);
    let other = scheduler.group("other").unwrap().create().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let count = count.clone();
        group.spawn(async move {
            loop {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    eventually("running", || count.load(Ordering::Relaxed) > 10).await;
    group.freeze().unwrap();
    // Some are kept as frozen by now, some are on their way there.
    group.move_tasks_to(&other).unwrap();
    eventually("each goes on in the group it was moved to", || {
        let stats = other.task_stats();
        stats.len() == 4 && stats.iter().all(|task| task.polls > 10)
    })
    .await;
    let before: Vec<_> = other.task_stats().iter().map(|task| task.polls).collect();
    eventually("and does not stop", || {
        let now = other.task_stats();
        now.iter()
            .zip(&before)
            .all(|(task, before)| task.polls > before + 10)
    })
    .await;
    scheduler.shutdown().await;
}

#[test]
fn a_frozen_group_is_killed_without_thaw_and_not_on_the_killers_thread() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let here = Arc::new(AtomicBool::new(false));
        let dropped = Arc::new(AtomicUsize::new(0));
        struct Witness(Arc<AtomicBool>, #[expect(dead_code)] CountDrop);
        impl Drop for Witness {
            fn drop(&mut self) {
                if Group::current().is_none() {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
        }
        for _ in 0..8 {
            let witness = Witness(here.clone(), CountDrop(dropped.clone()));
            group.spawn(async move {
                let _witness = witness;
                loop {
                    tokio::task::yield_now().await;
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        group.freeze().unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        group.kill().unwrap();
        eventually("all dropped", || dropped.load(Ordering::SeqCst) == 8).await;
        assert!(
            !here.load(Ordering::Relaxed),
            "a destructor ran outside its group"
        );
        assert!(group.is_frozen());
        scheduler.shutdown().await;
    });
}

/// Each round, one thread removes the group if it is empty and another spawns into it: either the task runs to its end, or the spawn is
/// refused. Never is an accepted task killed by a removal that promised to refuse.
#[test]
fn a_removal_that_refuses_never_kills_a_task_that_was_accepted() {
    let rounds = 200 * repetitions();
    common::runtime(2).block_on(common::guarded(async move {
        let scheduler = quotient::Scheduler::builder().vcpus(2).build().unwrap();
        for round in 0..rounds {
            let group = scheduler
                .group(&format!("a/r{round}"))
                .unwrap()
                .create()
                .unwrap();
            let remover = {
                let group = group.clone();
                tokio::task::spawn_blocking(move || group.remove(Leftover::Refuse))
            };
            for _ in 0..round % 7 {
                std::hint::spin_loop();
            }
            let spawned = group.try_spawn(async { 7 });
            let removed = remover.await.unwrap();
            match spawned {
                Ok(task) => assert_eq!(task.await.expect("an accepted task was killed"), 7),
                Err(_) => assert!(removed.is_ok(), "both were refused: {removed:?}"),
            }
            if matches!(removed, Err(Error::Busy { .. })) {
                group.remove(Leftover::Kill).unwrap();
            }
        }
        eventually("no group is left", || scheduler.groups().len() <= 2).await;
        scheduler.shutdown().await;
    }));
}

#[test]
fn a_group_with_a_bound_on_tasks_never_has_more() {
    on_every_host(|vcpus| async move {
        let (scheduler, _) = scheduler(vcpus);
        let parent = scheduler
            .group("web")
            .unwrap()
            .tasks_max(10)
            .create()
            .unwrap();
        let children: Vec<_> = ["a", "b"]
            .map(|name| parent.child(name).create().unwrap())
            .into();
        let mut accepted = Vec::new();
        for round in 0..30 {
            match children[round % 2].try_spawn(std::future::pending::<()>()) {
                Ok(task) => accepted.push(task),
                Err(error) => {
                    let path = "web".to_owned();
                    assert_eq!(error, SpawnError::TooManyTasks { path, max: 10 });
                }
            }
        }
        assert_eq!((accepted.len(), scheduler.tasks()), (10, 10));
        // One ends, one may come.
        accepted.pop().unwrap().abort();
        eventually("room", || scheduler.tasks() == 9).await;
        assert_eq!(children[0].spawn(async { 7 }).await.unwrap(), 7);
        parent.kill().unwrap();
        eventually("all ended", || scheduler.tasks() == 0).await;
        let unbounded = scheduler
            .group("web")
            .unwrap()
            .tasks_max(usize::MAX)
            .create()
            .unwrap();
        for _ in 0..30 {
            unbounded.try_spawn(std::future::pending::<()>()).unwrap();
        }
        scheduler.shutdown().await;
    });
}
