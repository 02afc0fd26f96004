//! Many ready tasks that yield in turn: what a switch costs, and how it grows with the queue.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::sync::Notify;

use super::super::spawner::Spawner;
use super::{Measured, Premise, counted, joined};

/// How a task gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldKind {
    /// It wakes itself and returns: what a hand-written future does.
    SelfWake,
    /// `tokio::task::yield_now`, which tokio defers until its worker has looked at everything else.
    Tokio,
}

/// Wakes itself once.
struct SelfWake {
    woken: bool,
}

impl Future for SelfWake {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.woken {
            return Poll::Ready(());
        }
        self.woken = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Gives way once by waking itself.
pub fn self_wake() -> impl Future<Output = ()> + Send {
    SelfWake { woken: false }
}

/// The field of runners.
struct Race {
    arrived: AtomicU64,
    all_arrived: Notify,
    started: AtomicBool,
    /// Yields before the start, which are not part of the figure.
    early: AtomicU64,
    running: AtomicU64,
    all_done: Notify,
}

impl Race {
    fn new(tasks: u64) -> Self {
        Self {
            arrived: AtomicU64::new(0),
            all_arrived: Notify::new(),
            started: AtomicBool::new(false),
            early: AtomicU64::new(0),
            running: AtomicU64::new(tasks),
            all_done: Notify::new(),
        }
    }

    fn arrive(&self, tasks: u64) {
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == tasks {
            self.all_arrived.notify_one();
        }
    }

    fn finish(&self) {
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all_done.notify_one();
        }
    }
}

/// `operations` yields shared evenly among `tasks`, which all stay ready; the clock starts when all are up and yielding.
pub async fn run<S: Spawner>(
    spawner: &S,
    kind: YieldKind,
    tasks: u64,
    operations: u64,
) -> Result<Measured, Premise> {
    let each = operations / tasks;
    let polls = Arc::new(AtomicU64::new(0));
    let race = Arc::new(Race::new(tasks));
    let mut handles = Vec::with_capacity(tasks as usize);
    for _ in 0..tasks {
        let race = race.clone();
        handles.push(match kind {
            YieldKind::SelfWake => {
                spawner.spawn(counted(runner(race, tasks, each, self_wake), polls.clone()))
            }
            YieldKind::Tokio => spawner.spawn(counted(
                runner(race, tasks, each, tokio::task::yield_now),
                polls.clone(),
            )),
        });
    }
    race.all_arrived.notified().await;
    let start = Instant::now();
    race.started.store(true, Ordering::Release);
    race.all_done.notified().await;
    let elapsed = start.elapsed();
    for handle in handles {
        joined(handle.await)?;
    }
    let polls = polls
        .load(Ordering::Relaxed)
        .saturating_sub(race.early.load(Ordering::Relaxed));
    Ok(Measured {
        elapsed,
        operations: each * tasks,
        polls,
        polls_min: (each + 1) * tasks,
    })
}

async fn runner<Y, F>(race: Arc<Race>, tasks: u64, each: u64, give_way: F)
where
    F: Fn() -> Y,
    Y: Future<Output = ()>,
{
    race.arrive(tasks);
    let mut early = 0;
    while !race.started.load(Ordering::Acquire) {
        give_way().await;
        early += 1;
    }
    for _ in 0..each {
        give_way().await;
    }
    race.early.fetch_add(early, Ordering::Relaxed);
    race.finish();
}
