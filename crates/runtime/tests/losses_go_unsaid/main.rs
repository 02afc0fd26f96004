//! Whatever is refused or dropped is counted once, for its group and for the scheduler, under its own name, and said once a group: one row
//! for each way to lose something.
#![cfg(all(feature = "tower", feature = "hyper", not(loom)))]

#[path = "../common/mod.rs"]
mod common;
mod requests;
#[cfg(feature = "tracing")]
mod said;
mod tasks;

use std::future::Future;
use std::pin::Pin;

use common::{eventually, guarded, runtime};
use quotient::{Group, Leftover, Losses, Scheduler};
use tokio::task::JoinHandle;

/// How many are lost in each row, so that all but the first are silent.
const EACH: u64 = 3;

type Done = Pin<Box<dyn Future<Output = ()>>>;

/// One way to lose [`EACH`] of something.
struct Row {
    name: String,
    lose: Box<dyn FnOnce(Scheduler, Group) -> Done>,
    /// What is counted.
    expected: Losses,
    /// What is said, of each kind once.
    said: Vec<&'static str>,
}

const REFUSED: &str = "a task was refused";
const KILLED: &str = "tasks were killed";
const DROPPED: &str = "tasks were dropped";
const REQUEST: &str = "a request was refused";
const BODY: &str = "the body of an answer was cut off";
const CONNECTION: &str = "a connection was closed";
const UNPLACED: &str = "a request of a tenant without a group";

/// Limits the group so that it takes nobody.
async fn fill(scheduler: &Scheduler, group: &Group) {
    let group = scheduler.group(group.path()).unwrap();
    group.tasks_max(0).create().unwrap();
}

fn row(
    name: impl Into<String>,
    lose: impl AsyncFnOnce(Scheduler, Group) + 'static,
    count: impl FnOnce(&mut Losses),
    said: &[&'static str],
) -> Row {
    let mut expected = Losses::default();
    count(&mut expected);
    Row {
        name: name.into(),
        lose: Box::new(|scheduler, group| Box::pin(async { lose(scheduler, group).await })),
        expected,
        said: said.to_vec(),
    }
}

/// What ends the work of a group.
#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    Remove,
    ShutDown,
}

impl End {
    const ALL: [Self; 3] = [Self::Kill, Self::Remove, Self::ShutDown];

    /// Kills or removes at once, or begins to shut down; what is returned ends with that.
    fn begin(self, scheduler: &Scheduler, group: &Group) -> JoinHandle<()> {
        let mut shuts_down = None;
        match self {
            Self::Kill => group.kill().unwrap(),
            Self::Remove => group.remove(Leftover::Kill).unwrap(),
            Self::ShutDown => shuts_down = Some(scheduler.clone()),
        }
        tokio::spawn(async move {
            if let Some(scheduler) = shuts_down {
                scheduler.shutdown().await;
            }
        })
    }

    fn count_tasks(self, losses: &mut Losses) {
        match self {
            Self::Kill | Self::Remove => losses.killed_tasks = EACH,
            Self::ShutDown => losses.dropped_tasks = EACH,
        }
    }

    /// What is said of its tasks.
    const fn says(self) -> &'static str {
        match self {
            Self::Kill | Self::Remove => KILLED,
            Self::ShutDown => DROPPED,
        }
    }

    /// Whose tasks, requests or bodies it ends, for names of rows.
    const fn whose(self) -> &'static str {
        match self {
            Self::Kill => "of a killed group",
            Self::Remove => "of a group that is removed",
            Self::ShutDown => "at the end of their scheduler",
        }
    }
}

#[test]
fn what_is_lost_is_counted_once_and_said_once() {
    #[cfg(feature = "tracing")]
    said::listen();
    for (number, row) in tasks::rows()
        .into_iter()
        .chain(requests::rows())
        .enumerate()
    {
        runtime(2).block_on(guarded(async {
            let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
            let path = format!("row{number}");
            let group = scheduler.group(&path).unwrap().create().unwrap();
            (row.lose)(scheduler.clone(), group.clone()).await;
            let expected = row.expected;
            let counted = || group.stats().losses == expected && scheduler.losses() == expected;
            // What a destructor loses comes when the destructor runs.
            eventually(&row.name, counted).await;
            scheduler.shutdown().await;
            assert_eq!(group.stats().losses, expected, "{}", row.name);
            assert_eq!(scheduler.losses(), expected, "{}", row.name);
            #[cfg(feature = "tracing")]
            {
                let lines = said::of(&path);
                assert_eq!(lines.len(), row.said.len(), "{}: {lines:?}", row.name);
                for kind in &row.said {
                    let said = lines.iter().any(|line| line.contains(*kind));
                    assert!(said, "{}: {kind:?} is not in {lines:?}", row.name);
                }
            }
            #[cfg(not(feature = "tracing"))]
            let _ = row.said;
        }));
    }
}
