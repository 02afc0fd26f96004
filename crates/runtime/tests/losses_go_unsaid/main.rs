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
use quotient::{Group, Losses, Scheduler};

/// How many are lost in each row, so that all but the first are silent.
const EACH: u64 = 3;

type Done = Pin<Box<dyn Future<Output = ()>>>;

/// One way to lose [`EACH`] of something.
struct Row {
    name: &'static str,
    lose: fn(Scheduler, Group) -> Done,
    /// What is counted.
    expected: fn(&mut Losses),
    /// What is said, of each kind once.
    said: &'static [&'static str],
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
    name: &'static str,
    lose: fn(Scheduler, Group) -> Done,
    expected: fn(&mut Losses),
    said: &'static [&'static str],
) -> Row {
    Row {
        name,
        lose,
        expected,
        said,
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
            let mut expected = Losses::default();
            (row.expected)(&mut expected);
            let counted = || group.stats().losses == expected && scheduler.losses() == expected;
            // What a destructor loses comes when the destructor runs.
            eventually(row.name, counted).await;
            scheduler.shutdown().await;
            assert_eq!(group.stats().losses, expected, "{}", row.name);
            assert_eq!(scheduler.losses(), expected, "{}", row.name);
            #[cfg(feature = "tracing")]
            {
                let lines = said::of(&path);
                assert_eq!(lines.len(), row.said.len(), "{}: {lines:?}", row.name);
                for kind in row.said {
                    let said = lines.iter().any(|line| line.contains(kind));
                    assert!(said, "{}: {kind:?} is not in {lines:?}", row.name);
                }
            }
            #[cfg(not(feature = "tracing"))]
            let _ = row.said;
        }));
    }
}
