//! Two tasks, one of them ready at any time: what a message costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot};

use super::super::spawner::Spawner;
use super::{Measured, Premise, counted, joined};

/// Each player sleeps once a round trip, so one worker needs two polls; the last ones may find the message there.
fn measured(
    elapsed: Duration,
    rounds: u64,
    done: u64,
    polls: &AtomicU64,
) -> Result<Measured, Premise> {
    if done != rounds {
        return Err(format!("{done} of {rounds} round trips were made"));
    }
    let polls = polls.load(Ordering::Relaxed);
    Ok(Measured {
        elapsed,
        operations: rounds,
        polls,
        polls_min: 2 * rounds,
    })
}

pub async fn notify<S: Spawner>(spawner: &S, rounds: u64) -> Result<Measured, Premise> {
    let ping = Arc::new(Notify::new());
    let pong = Arc::new(Notify::new());
    let polls = Arc::new(AtomicU64::new(0));
    let second = {
        let (ping, pong) = (ping.clone(), pong.clone());
        let player = async move {
            for _ in 0..rounds {
                ping.notified().await;
                pong.notify_one();
            }
        };
        spawner.spawn(counted(player, polls.clone()))
    };
    let first = {
        let player = async move {
            let start = Instant::now();
            let mut done = 0;
            for _ in 0..rounds {
                ping.notify_one();
                pong.notified().await;
                done += 1;
            }
            (start.elapsed(), done)
        };
        spawner.spawn(counted(player, polls.clone()))
    };
    let (elapsed, done) = joined(first.await)?;
    joined(second.await)?;
    measured(elapsed, rounds, done, &polls)
}

pub async fn mpsc<S: Spawner>(spawner: &S, rounds: u64) -> Result<Measured, Premise> {
    let (ping, mut from_ping) = mpsc::channel::<u64>(1);
    let (pong, mut from_pong) = mpsc::channel::<u64>(1);
    let polls = Arc::new(AtomicU64::new(0));
    let player = async move {
        while let Some(number) = from_ping.recv().await {
            if pong.send(number + 1).await.is_err() {
                break;
            }
        }
    };
    let second = spawner.spawn(counted(player, polls.clone()));
    let player = async move {
        let start = Instant::now();
        let mut done = 0;
        while done < rounds && ping.send(done).await.is_ok() {
            match from_pong.recv().await {
                Some(number) => done = number,
                None => break,
            }
        }
        (start.elapsed(), done)
    };
    let first = spawner.spawn(counted(player, polls.clone()));
    let (elapsed, done) = joined(first.await)?;
    joined(second.await)?;
    measured(elapsed, rounds, done, &polls)
}

/// What is passed on: the sender of the next answer, or nothing at the end.
struct Ball(Option<oneshot::Sender<Ball>>);

pub async fn oneshot<S: Spawner>(spawner: &S, rounds: u64) -> Result<Measured, Premise> {
    let polls = Arc::new(AtomicU64::new(0));
    let (service, mut incoming) = oneshot::channel::<Ball>();
    let player = async move {
        while let Ok(Ball(Some(reply))) = incoming.await {
            let (next, receiver) = oneshot::channel();
            incoming = receiver;
            // A player who has left is seen at the next receive.
            let _ = reply.send(Ball(Some(next)));
        }
    };
    let second = spawner.spawn(counted(player, polls.clone()));
    let player = async move {
        let start = Instant::now();
        let mut outgoing = Some(service);
        let mut done = 0;
        while done < rounds
            && let Some(sender) = outgoing.take()
        {
            let (reply, receiver) = oneshot::channel();
            // A player who has left is seen at the receive.
            let _ = sender.send(Ball(Some(reply)));
            if let Ok(Ball(next)) = receiver.await {
                outgoing = next;
                done += 1;
            }
        }
        let elapsed = start.elapsed();
        // The other player waits for one more ball: this one says that the match is over.
        let _ = outgoing.map(|sender| sender.send(Ball(None)));
        (elapsed, done)
    };
    let first = spawner.spawn(counted(player, polls.clone()));
    let (elapsed, done) = joined(first.await)?;
    joined(second.await)?;
    measured(elapsed, rounds, done, &polls)
}
