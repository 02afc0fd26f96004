//! Many parked tasks, woken by one: what a wake-up costs when the machine was idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::super::spawner::Spawner;
use super::{Measured, Premise, counted, joined};

/// The sleepers of one run; each has its own place to sleep.
struct Sleepers {
    beds: Vec<Notify>,
    /// Sleepers that have not yet run in this round.
    pending: AtomicU64,
    all_ran: Notify,
}

/// Wakes `tasks` sleepers, waits until all have run, and again until `operations` wake-ups are done. The clock runs from
/// the first wake-up of a round to the last sleeper's run.
pub async fn run<S: Spawner>(
    spawner: &S,
    tasks: u64,
    operations: u64,
) -> Result<Measured, Premise> {
    let rounds = operations / tasks;
    let polls = Arc::new(AtomicU64::new(0));
    let sleepers = Arc::new(Sleepers {
        beds: (0..tasks).map(|_| Notify::new()).collect(),
        pending: AtomicU64::new(tasks),
        all_ran: Notify::new(),
    });
    let mut handles = Vec::with_capacity(tasks as usize);
    for bed in 0..tasks as usize {
        handles.push(spawner.spawn(counted(
            sleeper(sleepers.clone(), bed, rounds),
            polls.clone(),
        )));
    }
    sleepers.all_ran.notified().await;
    let mut elapsed = Duration::ZERO;
    for _ in 0..rounds {
        sleepers.pending.store(tasks, Ordering::Release);
        let start = Instant::now();
        for bed in &sleepers.beds {
            bed.notify_one();
        }
        sleepers.all_ran.notified().await;
        elapsed += start.elapsed();
    }
    for handle in handles {
        joined(handle.await)?;
    }
    // The last sleeper of a round may find its next wake-up before it has lain down, which saves one poll a round.
    let polls = polls.load(Ordering::Relaxed);
    Ok(Measured {
        elapsed,
        operations: rounds * tasks,
        polls,
        polls_min: rounds * (tasks - 1),
    })
}

async fn sleeper(sleepers: Arc<Sleepers>, bed: usize, rounds: u64) {
    for _ in 0..rounds {
        ran(&sleepers);
        sleepers.beds[bed].notified().await;
    }
    ran(&sleepers);
}

fn ran(sleepers: &Sleepers) {
    if sleepers.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
        sleepers.all_ran.notify_one();
    }
}
