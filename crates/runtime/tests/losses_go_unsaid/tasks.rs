//! Tasks, blocking functions, and futures elsewhere.

use std::future::pending;
use std::time::Duration;

use quotient::{Group, InGroupExt, JoinSet, Losses, Scheduler};

use crate::common::{eventually, runtime};
use crate::{DROPPED, EACH, End, KILLED, REFUSED, Row, fill, row};

pub fn rows() -> Vec<Row> {
    let mut rows = refused_tasks();
    rows.extend(End::ALL.map(ended));
    rows.extend(dropped_tasks());
    rows.extend(End::ALL.map(future_elsewhere));
    rows
}

/// A task that lives until somebody ends it.
fn live(group: &Group) {
    drop(group.try_spawn(pending::<()>()).expect("is accepted"));
}

fn refused_tasks() -> Vec<Row> {
    vec![
        row(
            "spawns into a full group",
            async |scheduler, group| {
                fill(&scheduler, &group).await;
                assert!(group.try_spawn(async {}).is_err());
                assert!(group.spawn(async {}).await.is_err());
                let mut set = JoinSet::new();
                set.spawn_in(&group, async {});
                assert!(set.join_next().await.unwrap().is_err());
            },
            |losses| losses.refused_tasks = EACH,
            &[REFUSED],
        ),
        row(
            "spawns into a group whose tasks wait for too long",
            async |scheduler, group| {
                let bounded = scheduler.group(group.path()).unwrap();
                bounded.queue_wait_max(Duration::ZERO).create().unwrap();
                group.freeze().unwrap();
                let waiting = group.try_spawn(async {}).unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
                for _ in 0..EACH {
                    assert!(group.try_spawn(async {}).is_err());
                }
                group.thaw().unwrap();
                waiting.await.unwrap();
            },
            |losses| losses.refused_tasks = EACH,
            &[REFUSED],
        ),
        refused_by("spawns of every kind into a removed group", End::Remove),
        refused_by(
            "spawns of every kind after the end of their scheduler",
            End::ShutDown,
        ),
    ]
}

/// Spawns of every kind after `end`.
fn refused_by(name: &str, end: End) -> Row {
    row(
        name,
        async move |scheduler, group| {
            end.begin(&scheduler, &group).await.unwrap();
            assert!(group.try_spawn(async {}).is_err());
            assert!(group.spawn_blocking(|| ()).await.is_err());
            let local = tokio::task::LocalSet::new();
            let refused = async { group.spawn_local(async {}).await };
            assert!(local.run_until(refused).await.is_err());
        },
        |losses| losses.refused_tasks = EACH,
        &[REFUSED],
    )
}

/// Tasks that `end` finds alive, twice if it can come twice: they are lost once.
fn ended(end: End) -> Row {
    row(
        format!("tasks {}", end.whose()),
        async move |scheduler, group| {
            (0..EACH).for_each(|_| live(&group));
            end.begin(&scheduler, &group).await.unwrap();
            if !matches!(end, End::Remove) {
                end.begin(&scheduler, &group).await.unwrap();
            }
        },
        |losses| end.count_tasks(losses),
        &[end.says()],
    )
}

fn dropped_tasks() -> Vec<Row> {
    vec![
        row(
            "tasks that the dead spawn",
            async |_, group| {
                // Each spawns one in its destructor, which is dead with it.
                struct Spawns(Group);
                impl Drop for Spawns {
                    fn drop(&mut self) {
                        live(&self.0);
                    }
                }
                group.freeze().unwrap();
                let spawns = Spawns(group.clone());
                drop(group.spawn(async move {
                    let _spawns = spawns;
                    pending::<()>().await;
                }));
                live(&group);
                group.kill().unwrap();
            },
            |losses| losses.killed_tasks = EACH,
            &[KILLED],
        ),
        row(
            "tasks at the end of their runtime",
            async |_, group| {
                let lost = runtime(1);
                let (scheduler, other) = lost.block_on_thread(|| {
                    let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
                    let other = scheduler.group("elsewhere").unwrap().create().unwrap();
                    (0..EACH).for_each(|_| live(&other));
                    (scheduler, other)
                });
                lost.shutdown_background();
                let counted = || scheduler.losses().dropped_tasks == EACH;
                eventually("it is counted", counted).await;
                assert_eq!(other.stats().losses, scheduler.losses());
                // The row's own group has lost nothing.
                assert_eq!(group.stats().losses, Losses::default());
            },
            |_| {},
            &[],
        ),
        row(
            "functions that the runtime drops",
            async |_, group| {
                let ended = runtime(1);
                let handle = ended.handle().clone();
                ended.shutdown_background();
                let refusing = std::thread::spawn(move || {
                    let _ended = handle.enter();
                    (0..EACH).for_each(|_| drop(group.spawn_blocking(|| ())));
                });
                refusing.join().unwrap();
            },
            |losses| losses.dropped_tasks = EACH,
            &[DROPPED],
        ),
    ]
}

/// [`EACH`] futures in tokio's tasks with a place in the group's queue, which end well after `end`.
async fn go_on(scheduler: &Scheduler, group: &Group, end: End) {
    // Else they go ahead without a place.
    let limited = scheduler.group(group.path()).unwrap();
    limited.max("100000 100000").create().unwrap();
    let (sender, _) = tokio::sync::broadcast::channel::<()>(1);
    let futures: Vec<_> = (0..EACH)
        .map(|_| {
            let mut ended = sender.subscribe();
            let future = async move { ended.recv().await.is_ok() };
            tokio::spawn(future.in_group(group))
        })
        .collect();
    let each = usize::try_from(EACH).unwrap();
    eventually("each has its place", || group.stats().tasks == each).await;
    end.begin(scheduler, group).await.unwrap();
    sender.send(()).unwrap();
    for future in futures {
        assert!(future.await.unwrap(), "it went on");
    }
}

/// Nothing of a future in another task is lost.
fn future_elsewhere(end: End) -> Row {
    row(
        format!("futures elsewhere {}", end.whose()),
        async move |scheduler, group| go_on(&scheduler, &group, end).await,
        |_| {},
        &[],
    )
}

/// Work inside another runtime than the test's.
trait OnThread {
    fn block_on_thread<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T;
}

impl OnThread for tokio::runtime::Runtime {
    fn block_on_thread<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let _inside = self.enter();
                work()
            });
            inside.join().unwrap()
        })
    }
}
