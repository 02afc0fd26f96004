//! `queue_wait_max` bounds how long tasks wait for their first poll: a group whose tasks do not start takes no more of them, whoever
//! spawns, and below it likewise; and nothing keeps it from taking some again once they have started or gone.
#![cfg(not(loom))]

mod common;

use std::time::Duration;

use common::{burn, eventually, on_every_host, scheduler};
use quotient::task::Builder;
use quotient::{Group, InGroupExt, JoinSet, Leftover, SpawnError};

/// The bound of these tests.
const MAX: Duration = Duration::from_millis(20);

/// Until whoever waits has waited for too long.
async fn too_long() {
    tokio::time::sleep(2 * MAX).await;
}

/// The group refuses a task, on account of the group `bounded`.
fn assert_refuses(group: &Group, bounded: &Group) {
    let refused = group.try_spawn(async {}).expect_err("was accepted");
    let SpawnError::QueueTooLong { path, wait, max } = &refused else {
        panic!("{refused}");
    };
    assert_eq!(path, bounded.path());
    assert_eq!(*max, MAX);
    assert!(*wait > MAX, "{wait:?}");
}

/// A task that does not start while the group is frozen.
fn stuck(group: &Group) -> quotient::JoinHandle<()> {
    group.try_spawn(async {}).expect("was refused")
}

#[test]
fn a_group_whose_tasks_do_not_start_takes_no_more() {
    on_every_host(|vcpus| async move {
        let (scheduler, _) = scheduler(vcpus);
        let group = scheduler.group("slow").unwrap().queue_wait_max(MAX);
        let group = group.create().unwrap();
        group.spawn(async {}).await.unwrap();
        group.freeze().unwrap();
        let first = stuck(&group);
        too_long().await;
        assert_refuses(&group, &group);
        // By every way to spawn.
        assert!(group.spawn(async {}).await.unwrap_err().is_cancelled());
        let mut set = JoinSet::new();
        set.spawn_in(&group, async {});
        assert!(set.join_next().await.unwrap().unwrap_err().is_cancelled());
        let named = Builder::new().name("late").group(&group).spawn(async {});
        assert!(matches!(named, Err(SpawnError::QueueTooLong { .. })));
        assert_eq!(group.stats().losses.refused_tasks, 4);
        assert_eq!(scheduler.losses().refused_tasks, 4);
        assert_eq!(group.stats().tasks, 1, "a refused task is counted");
        // Others are not affected.
        let other = scheduler.group("other").unwrap().create().unwrap();
        other.try_spawn(async {}).unwrap().await.unwrap();
        // Once they have started, there is room.
        group.thaw().unwrap();
        first.await.unwrap();
        group.try_spawn(async {}).unwrap().await.unwrap();
        assert_eq!(group.stats().losses.refused_tasks, 4);
        scheduler.shutdown().await;
    });
}

/// A throttled group is one whose tasks do not start.
#[test]
fn a_throttled_group_takes_no_more() {
    on_every_host(|vcpus| async move {
        let (scheduler, _) = scheduler(vcpus);
        let group = scheduler.group("slow").unwrap().max("1ms/1s");
        let group = group.queue_wait_max(MAX).create().unwrap();
        // Owes half a minute.
        let burnt = group.spawn(async { burn(Duration::from_millis(30)) });
        burnt.await.unwrap();
        let waiting = stuck(&group);
        too_long().await;
        assert_refuses(&group, &group);
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        eventually("it is gone", || group.try_spawn(async {}).is_ok()).await;
        scheduler.shutdown().await;
    });
}

#[test]
fn a_bound_holds_for_everything_below() {
    on_every_host(|vcpus| async move {
        let (scheduler, _) = scheduler(vcpus);
        let early = scheduler.group("top/early").unwrap().create().unwrap();
        let top = scheduler.group("top").unwrap().queue_wait_max(MAX);
        let top = top.create().unwrap();
        // Made before the bound and after; a longer bound of its own does not help.
        let late = top.child("late").queue_wait_max(1000 * MAX);
        let late = late.create().unwrap();
        let deep = late.child("deep").create().unwrap();
        let beside = scheduler.group("beside").unwrap().create().unwrap();
        deep.freeze().unwrap();
        let waiting = stuck(&deep);
        too_long().await;
        for group in [&top, &early, &late, &deep] {
            assert_refuses(group, &top);
        }
        beside.try_spawn(async {}).unwrap().await.unwrap();
        // Counted for whom it was asked of.
        assert_eq!(deep.stats().losses.refused_tasks, 1);
        assert_eq!(top.stats().losses.refused_tasks, 1);
        // A refusal above has left nothing behind below.
        assert_eq!(deep.stats().tasks, 1);
        deep.thaw().unwrap();
        waiting.await.unwrap();
        for group in [&top, &early, &late, &deep] {
            group.try_spawn(async {}).unwrap().await.unwrap();
        }
        // Lifted, it binds nobody; a bound below still does.
        scheduler
            .group("top")
            .unwrap()
            .queue_wait_max(Duration::MAX)
            .create()
            .unwrap();
        late.child("deep").queue_wait_max(MAX).create().unwrap();
        deep.freeze().unwrap();
        let waiting = stuck(&deep);
        too_long().await;
        assert_refuses(&deep, &deep);
        late.try_spawn(async {}).unwrap().await.unwrap();
        early.try_spawn(async {}).unwrap().await.unwrap();
        deep.thaw().unwrap();
        waiting.await.unwrap();
        scheduler.shutdown().await;
    });
}

/// The bound on the number of tasks likewise, which a refusal above leaves as it was.
#[test]
fn a_bound_on_the_number_of_tasks_holds_for_everything_below() {
    on_every_host(|vcpus| async move {
        let (scheduler, _) = scheduler(vcpus);
        let early = scheduler.group("top/early").unwrap().create().unwrap();
        let top = scheduler.group("top").unwrap().tasks_max(3);
        let top = top.create().unwrap();
        let late = top.child("late").tasks_max(10).create().unwrap();
        let deep = late.child("deep").create().unwrap();
        let mut tasks = Vec::new();
        for group in [&early, &late, &deep] {
            tasks.push(group.try_spawn(std::future::pending::<()>()).unwrap());
        }
        for _ in 0..20 {
            for group in [&top, &early, &late, &deep] {
                let refused = group.try_spawn(async {}).expect_err("was accepted");
                let path = "top".to_owned();
                assert_eq!(refused, SpawnError::TooManyTasks { path, max: 3 });
            }
        }
        // Twenty refusals above have taken none of the ten below.
        let raised = scheduler.group("top").unwrap().tasks_max(100);
        raised.create().unwrap();
        for _ in 0..8 {
            tasks.push(deep.try_spawn(std::future::pending::<()>()).unwrap());
        }
        let refused = deep.try_spawn(async {}).expect_err("was accepted");
        let path = "top/late".to_owned();
        assert_eq!(refused, SpawnError::TooManyTasks { path, max: 10 });
        drop(tasks);
        scheduler.shutdown().await;
    });
}

/// A future `in_group` elsewhere runs on its own task: it has a place in the group, which counts, and is never refused.
#[test]
fn futures_elsewhere_are_refused_or_do_not_count() {
    on_every_host(|vcpus| async move {
        let (scheduler, _) = scheduler(vcpus);
        // Under a limit each future takes its turns, and so has a place.
        let group = scheduler.group("g").unwrap().max("1s/1s").tasks_max(2);
        let group = group.create().unwrap();
        let (release, _) = tokio::sync::broadcast::channel::<()>(1);
        let futures: Vec<_> = (0..3)
            .map(|_| {
                let mut released = release.subscribe();
                let future = async move { released.recv().await.unwrap() };
                tokio::spawn(future.in_group(&group))
            })
            .collect();
        let counted = || group.stats().tasks == 3;
        eventually("each has its place", counted).await;
        let refused = group.try_spawn(async {}).expect_err("was accepted");
        let path = "g".to_owned();
        assert_eq!(refused, SpawnError::TooManyTasks { path, max: 2 });
        release.send(()).unwrap();
        for future in futures {
            future.await.unwrap();
        }
        eventually("the places are gone", || group.stats().tasks == 0).await;
        assert_eq!(group.try_spawn(async { 7 }).unwrap().await.unwrap(), 7);
        let losses = group.stats().losses;
        assert_eq!(losses.refused_tasks, 1, "places are no losses");
        assert_eq!(losses.killed_tasks + losses.dropped_tasks, 0);
        scheduler.shutdown().await;
    });
}

/// Whoever goes before its first poll does not stand in line for ever.
#[test]
fn tasks_that_never_start_do_not_close_their_group() {
    on_every_host(|vcpus| async move {
        let (scheduler, refuge) = scheduler(vcpus);
        let top = scheduler.group("top").unwrap().queue_wait_max(MAX);
        let top = top.create().unwrap();
        let group = top.child("slow").create().unwrap();
        let open = async |what: &str| {
            let accepted = std::cell::OnceCell::new();
            eventually(what, || {
                top.try_spawn(async {})
                    .is_ok_and(|task| accepted.set(task).is_ok())
            })
            .await;
            accepted.into_inner().unwrap().await.unwrap();
        };
        // Aborted.
        group.freeze().unwrap();
        let waiting = stuck(&group);
        too_long().await;
        assert_refuses(&top, &top);
        waiting.abort();
        open("an aborted task is gone").await;
        // Killed.
        let _waiting = stuck(&group);
        too_long().await;
        assert_refuses(&top, &top);
        group.kill().unwrap();
        open("a killed task is gone").await;
        // Moved to where nothing runs either.
        refuge.freeze().unwrap();
        let waiting = stuck(&group);
        too_long().await;
        assert_refuses(&top, &top);
        group.move_tasks_to(&refuge).unwrap();
        open("a task that has moved is gone").await;
        assert!(!waiting.is_finished());
        refuge.thaw().unwrap();
        waiting.await.unwrap();
        // Removed with their group.
        let _waiting = stuck(&group);
        too_long().await;
        assert_refuses(&top, &top);
        group.remove(Leftover::Kill).unwrap();
        open("a removed group's task is gone").await;
        scheduler.shutdown().await;
    });
}

/// A task that starts does not count, however long it lives; and one that came before the bound does not either.
#[test]
fn tasks_that_have_started_do_not_count_as_waiting() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        group.freeze().unwrap();
        let before = stuck(&group);
        group.child("").queue_wait_max(MAX).create().unwrap_err();
        scheduler
            .group(group.path())
            .unwrap()
            .queue_wait_max(MAX)
            .create()
            .unwrap();
        too_long().await;
        let after = group.try_spawn(async {});
        assert!(after.is_ok(), "who came before the bound is not in line");
        group.thaw().unwrap();
        before.await.unwrap();
        after.unwrap().await.unwrap();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let lives = group.spawn(async {
            let _ = started.send(());
            std::future::pending::<()>().await;
        });
        has_started.await.unwrap();
        group.freeze().unwrap();
        too_long().await;
        let next = group.try_spawn(async {});
        assert!(next.is_ok(), "who runs already is not in line");
        lives.abort();
        group.thaw().unwrap();
        scheduler.shutdown().await;
    });
}
