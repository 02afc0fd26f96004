//! Freeze, thaw, kill, removal and moves of groups, and what bad input is answered with.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{CountDrop, eventually, guarded, on_every_host, runtime, scheduler};
use quotient::{BuildError, Error, Group, Leftover, MAX_VCPUS, Scheduler, SpawnError};

/// A task that counts its polls.
fn counting(group: &Group) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let shared = count.clone();
    group.spawn(async move {
        loop {
            shared.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    count
}

#[test]
fn frozen_tasks_do_not_run_and_thawed_ones_go_on() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let inner = group.child("inner").create().unwrap();
        let count = counting(&inner);
        eventually("running", || count.load(Ordering::SeqCst) > 10).await;
        group.freeze().unwrap();
        assert!(inner.is_frozen(), "a frozen ancestor holds the group");
        // A poll in progress may end, however late on a busy machine, and no other begins.
        let frozen = count.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(25)).await;
        let later = count.load(Ordering::SeqCst);
        assert!(later <= frozen + 1, "{frozen} polls, then {later}");
        inner.thaw().unwrap();
        assert!(inner.is_frozen(), "the ancestor's freeze is still in force");
        group.thaw().unwrap();
        eventually("running again", || {
            count.load(Ordering::SeqCst) > frozen + 10
        })
        .await;
        scheduler.shutdown().await;
    });
}

#[test]
fn kill_reaches_running_sleeping_and_frozen_tasks_below() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let inner = group.child("a/b").create().unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        for index in 0..60 {
            let flag = CountDrop(dropped.clone());
            inner.spawn(async move {
                let _flag = flag;
                if index % 2 == 0 {
                    std::future::pending::<()>().await;
                }
                loop {
                    tokio::task::yield_now().await;
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
        inner.freeze().unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
        group.kill().unwrap();
        eventually("all dropped", || dropped.load(Ordering::SeqCst) == 60).await;
        eventually("all accounted for", || scheduler.tasks() == 0).await;
        inner.thaw().unwrap();
        assert_eq!(inner.spawn(async { 7 }).await.unwrap(), 7);
        scheduler.shutdown().await;
    });
}

#[test]
fn removal_refuses_kills_or_moves_live_tasks_and_frees_the_name() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let parent = scheduler.find("tenants").unwrap();
        let count = counting(&group);
        assert!(matches!(
            group.remove(Leftover::Refuse),
            Err(Error::Busy { tasks: 1, .. })
        ));
        group.remove(Leftover::MoveToParent).unwrap();
        assert_eq!(
            group.try_spawn(async {}).unwrap_err(),
            SpawnError::GroupRemoved {
                path: "tenants/acme".into()
            }
        );
        let before = count.load(Ordering::SeqCst);
        eventually("goes on in the parent", || {
            count.load(Ordering::SeqCst) > before + 10
        })
        .await;
        assert_eq!(parent.stats().tasks, 1);
        eventually("name is free", || scheduler.find("tenants/acme").is_err()).await;
        let again = scheduler.group("tenants/acme").unwrap().create().unwrap();
        assert_ne!(again, group);
        assert_eq!(again.spawn(async { 3 }).await.unwrap(), 3);
        parent.remove(Leftover::Kill).unwrap();
        eventually("all killed", || scheduler.tasks() == 0).await;
        eventually("subtree is gone", || scheduler.groups().len() == 1).await;
        scheduler.shutdown().await;
    });
}

/// The path came back, without its limit, for whoever had kept a handle.
#[test]
fn a_removed_group_comes_back_by_its_child() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        group.set_max("5ms/100ms").unwrap();
        let prepared = [group.child("x"), group.child("x/y").max("1ms/100ms")];
        group.remove(Leftover::Kill).unwrap();
        let removed = |made: Result<Group, Error>| {
            assert!(
                matches!(&made, Err(Error::Removed { path }) if path == "tenants/acme"),
                "{made:?}"
            );
        };
        for builder in prepared {
            removed(builder.create());
        }
        removed(group.child("x").create());
        eventually("name is free", || scheduler.find("tenants/acme").is_err()).await;
        removed(group.child("x").create());
        assert!(scheduler.find("tenants/acme").is_err());
        // Made anew by somebody else it is another group.
        let again = scheduler.group("tenants/acme").unwrap().create().unwrap();
        let inner = again.child("x").create().unwrap();
        removed(group.child("x").create());
        removed(group.child("y").create());
        assert_eq!(again.child("x").create().unwrap(), inner);
        scheduler.shutdown().await;
        assert!(matches!(again.child("z").create(), Err(Error::ShutDown)));
    });
}

/// A task removes its own group, so that its poll is in progress for sure, and is moved; then `act`, in the same poll.
async fn moved_in_its_poll<T: Send + 'static>(
    group: &Group,
    removed: Group,
    act: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (answer, answered) = tokio::sync::oneshot::channel();
    drop(group.spawn(async move {
        removed.remove(Leftover::MoveToParent).unwrap();
        drop(answer.send(act()));
    }));
    answered.await.unwrap()
}

#[test]
fn a_task_that_moves_with_its_group_loses_what_it_spawns() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let path = || Group::current().unwrap().path().to_owned();
        let own = group.clone();
        let spawned = moved_in_its_poll(&group, group.clone(), move || {
            assert_eq!(Group::current().unwrap(), own);
            let refused = own.try_spawn(async {}).map(drop);
            assert!(matches!(refused, Err(SpawnError::GroupRemoved { .. })));
            let named = quotient::task::Builder::new().spawn(async move { path() });
            [
                quotient::spawn(async move { path() }),
                quotient::try_spawn(async move { path() }).unwrap(),
                named.unwrap(),
                quotient::spawn_blocking(path),
            ]
        });
        for task in spawned.await {
            assert_eq!(task.await.unwrap(), "tenants");
        }
        // From further below, the group in between removed with it.
        let top = scheduler.group("tenants/a").unwrap().create().unwrap();
        let inner = top.child("b/c").create().unwrap();
        let spawned =
            moved_in_its_poll(&inner, top, move || quotient::spawn(async move { path() }));
        assert_eq!(spawned.await.await.unwrap(), "tenants");
        eventually("all is gone", || scheduler.tasks() == 0).await;
        scheduler.shutdown().await;
    });
}

/// A way out for the killed: their group is removed, and what they spawn would live in its parent.
#[test]
fn the_killed_spawn_where_their_group_has_moved() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let parent = scheduler.find("tenants").unwrap();
        let (killed, own) = (group.clone(), group.clone());
        let (answer, answered) = tokio::sync::oneshot::channel();
        drop(group.spawn(async move {
            killed.kill().unwrap();
            killed.remove(Leftover::MoveToParent).unwrap();
            drop(answer.send(quotient::try_spawn(async {}).map(drop)));
        }));
        let refused = answered.await.unwrap();
        assert!(
            matches!(refused, Err(SpawnError::GroupRemoved { .. })),
            "{refused:?}"
        );
        // After the move, where it is by then.
        eventually("name is free", || scheduler.find(own.path()).is_err()).await;
        let again = scheduler.group("tenants/acme").unwrap().create().unwrap();
        let above = parent.clone();
        let child = moved_in_its_poll(&again, again.clone(), move || {
            above.kill().unwrap();
            quotient::spawn(std::future::pending::<()>())
        });
        assert!(child.await.await.unwrap_err().is_cancelled());
        assert_eq!(parent.spawn(async { 5 }).await.unwrap(), 5);
        scheduler.shutdown().await;
    });
}

#[test]
fn moved_tasks_are_charged_to_their_new_group() {
    on_every_host(|vcpus| async move {
        let (scheduler, first) = scheduler(vcpus);
        let second = scheduler.group("other").unwrap().create().unwrap();
        let count = counting(&first);
        eventually("running", || count.load(Ordering::SeqCst) > 10).await;
        first.move_tasks_to(&second).unwrap();
        assert_eq!((first.stats().tasks, second.stats().tasks), (0, 1));
        eventually("polled there", || second.stats().polls > 10).await;
        let polls = first.stats().polls;
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(first.stats().polls, polls);
        scheduler.shutdown().await;
    });
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let groups = scheduler.groups().len();
        for weight in [0, 10_001, u32::MAX] {
            let error = scheduler
                .group("new")
                .unwrap()
                .weight(weight)
                .create()
                .unwrap_err();
            assert!(error.to_string().contains(&weight.to_string()), "{error}");
            assert!(error.to_string().contains("1..=10000"), "{error}");
            assert!(group.set_weight(weight).is_err());
        }
        for path in ["", "/abs", "a//b", "a/", "..", "a/../b", "a/."] {
            assert!(scheduler.group(path).is_err(), "{path:?} was accepted");
            assert!(scheduler.find(path).is_err());
            assert!(
                group.child(path).create().is_err(),
                "child {path:?} was accepted"
            );
        }
        assert!(matches!(scheduler.find("unknown"), Err(Error::Group(_))));
        assert_eq!(scheduler.root().freeze(), Err(Error::Root));
        assert_eq!(scheduler.root().remove(Leftover::Kill), Err(Error::Root));
        assert_eq!(scheduler.groups().len(), groups);
        assert_eq!(group.weight(), 100);
        for weight in [1, 10_000] {
            group.set_weight(weight).unwrap();
            assert_eq!(group.weight(), weight);
        }
        assert_eq!(
            quotient::try_spawn(async {}).unwrap_err(),
            SpawnError::NoGroup
        );
        scheduler.shutdown().await;
        assert_eq!(
            scheduler.group("late").unwrap().create().unwrap_err(),
            Error::ShutDown
        );
        scheduler.shutdown().await;
    });
}

#[test]
fn a_scheduler_is_not_built_from_bad_settings() {
    assert_eq!(
        Scheduler::builder().build().unwrap_err(),
        BuildError::NoRuntime
    );
    on_every_host(|_| async {
        for value in [0, MAX_VCPUS + 1] {
            let error = Scheduler::builder().vcpus(value).build().unwrap_err();
            assert_eq!(error, BuildError::Vcpus { value });
            assert!(error.to_string().contains("1 to 1024"), "{error}");
        }
        for slice in [Duration::ZERO, Duration::from_secs(1)] {
            let error = Scheduler::builder().slice(slice).build().unwrap_err();
            assert!(matches!(error, BuildError::Slice(_)), "{error}");
            // In the words of the builder, and with a unit.
            assert!(error.to_string().starts_with("slice of "), "{error}");
            assert!(
                error.to_string().ends_with(" is outside 100 us to 100 ms"),
                "{error}"
            );
        }
    });
}

#[test]
fn the_scheduler_ends_when_its_last_handle_and_task_are_gone() {
    on_every_host(|vcpus| async move {
        let metrics = tokio::runtime::Handle::current().metrics();
        let (scheduler, group) = scheduler(vcpus);
        let handle = group.spawn(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Group::current().unwrap().path().to_owned()
        });
        drop((scheduler, group));
        assert_eq!(handle.await.unwrap(), "tenants/acme");
        eventually("virtual CPUs end", || metrics.num_alive_tasks() == 0).await;
    });
}

#[test]
fn foreign_spawns_are_seen() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        group
            .spawn(async {
                for _ in 0..10 {
                    tokio::spawn(std::future::pending::<()>());
                }
                common::burn(Duration::from_millis(1));
            })
            .await
            .unwrap();
        assert!(group.stats().escaped_spawns >= 10, "{:?}", group.stats());
        assert!(scheduler.foreign_tasks() >= 10);
        scheduler.shutdown().await;
    });
}

#[test]
fn a_long_poll_is_reported_with_the_place_of_its_spawn() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let line = line!() + 1;
        let task = group.spawn(async { common::burn(Duration::from_millis(3)) });
        task.await.unwrap();
        let longest = group.stats().longest_poll.unwrap();
        assert!(longest.duration >= Duration::from_millis(3));
        assert_eq!(
            (longest.location.file(), longest.location.line()),
            (file!(), line)
        );
        scheduler.shutdown().await;
    });
}

/// Hazard: the one poll that an operator looks for, which never returns, is in no figure.
#[test]
fn a_poll_that_still_runs_is_the_longest() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let end = Arc::new(AtomicBool::new(false));
        let (running, is_running) = tokio::sync::oneshot::channel();
        let ends = end.clone();
        let line = line!() + 1;
        let task = group.spawn(async move {
            let _ = running.send(());
            while !ends.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let reader = std::thread::spawn(move || {
            is_running.blocking_recv().unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            let longest = loop {
                let longest = group.stats().longest_poll;
                if longest.is_some_and(|poll| poll.duration >= Duration::from_millis(50))
                    || Instant::now() > deadline
                {
                    break longest;
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            end.store(true, Ordering::Relaxed);
            longest
        });
        task.await.unwrap();
        let longest = reader.join().unwrap().expect("the poll that ran");
        assert_eq!(
            (longest.location.file(), longest.location.line()),
            (file!(), line)
        );
        scheduler.shutdown().await;
    });
}

/// Whoever looks for a group at the moment at which it goes made the removed one anew, in place of the next group of its number: that
/// name was dead from then on.
#[test]
fn a_name_is_dead_after_a_look_at_the_moment_of_its_removal() {
    for _ in 0..common::repetitions() {
        runtime(2).block_on(guarded(async {
            let (scheduler, _) = scheduler(2);
            let stop = Arc::new(AtomicBool::new(false));
            let looking = {
                let (scheduler, stop) = (scheduler.clone(), stop.clone());
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        drop(scheduler.find("comes/and/goes"));
                    }
                })
            };
            for _ in 0..2_000 {
                let group = scheduler.group("comes/and/goes").unwrap().create().unwrap();
                group.remove(Leftover::Kill).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            looking.join().unwrap();
            scheduler.shutdown().await;
        }));
    }
}

#[test]
fn a_list_of_groups_knows_when_it_is_old() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let before = scheduler.groups().len();
        let version = scheduler.groups_version();
        group.set_max("5ms/50ms").unwrap();
        assert_eq!(scheduler.groups_version(), version);
        let other = scheduler.group("another").unwrap().create().unwrap();
        let with = scheduler.groups_version();
        assert_ne!(with, version);
        other.remove(quotient::Leftover::Refuse).unwrap();
        eventually("the group is gone", || scheduler.groups().len() == before).await;
        assert_ne!(scheduler.groups_version(), with);
    });
}

/// Hazard: in a block, a figure of one group stays from the block before, or is another's.
#[test]
fn figures_of_many_groups_are_those_of_each() {
    on_every_host(|vcpus| async move {
        let (scheduler, _group) = scheduler(vcpus);
        scheduler.set_poll_histograms(true).unwrap();
        let make = |index: usize| {
            let builder = scheduler.group(&format!("many/{index}")).unwrap();
            let limit = if index.is_multiple_of(3) {
                "50ms/100ms"
            } else {
                "max"
            };
            builder.max(limit).create().unwrap()
        };
        let groups: Vec<Group> = (0..21).map(make).collect();
        for (index, group) in groups.iter().enumerate() {
            let task = group.spawn(async move {
                for _ in 0..index % 5 {
                    tokio::task::yield_now().await;
                }
            });
            task.await.unwrap();
        }
        let waiting = groups[19].spawn(std::future::pending::<()>());
        for histograms in [true, false] {
            // The end of a poll is charged after those who await its task have been woken.
            eventually("the figures of a quiet scheduler agree", || {
                let (mut seen, mut same) = (0, 0);
                Group::stats_of(&groups, histograms, |group, stats| {
                    let mut own = group.stats();
                    if !histograms {
                        own.run_delay = Default::default();
                        own.poll_duration = Default::default();
                    }
                    seen += 1;
                    same += usize::from(own == *stats && own.max == group.max());
                });
                seen == groups.len() && same == seen
            })
            .await;
        }
        let last = groups[19].stats();
        assert_eq!((last.tasks, groups[18].stats().tasks), (1, 0));
        assert_eq!(last.poll_duration.count(), last.polls);
        waiting.abort();
    });
}
