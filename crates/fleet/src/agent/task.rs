//! The loop: ticks, of which a throttle brings the next one forward, and one round trip beside them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::lock;
use super::pass::{Question, State, Work};
use crate::message::{Reply, Request};
use crate::rhythm::WOKEN_MIN;
use crate::store::{Store, StoreError};

/// How long an answer may take: a quarter of the longest lease that it is about, within these bounds, and the longer one while no lease is known.
/// The shorter is a quarter of the assumed lease; the longer keeps a silent server from holding up everybody else. So a round trip may take a
/// quarter of a lease, and 2 s at most.
const PATIENCE: Duration = Duration::from_millis(250);
const PATIENCE_MAX: Duration = Duration::from_secs(2);

fn patience(questions: &[Question]) -> Duration {
    let leases = questions
        .iter()
        .filter_map(|(_, request)| request.known.map(|limit| limit.lease.0));
    let Some(longest) = leases.max() else {
        // Nobody is known to have a lease that could end meanwhile, and by a long way none would ever come with less.
        return PATIENCE_MAX;
    };
    (Duration::from_micros(longest) / 4).clamp(PATIENCE, PATIENCE_MAX)
}

/// Puts groups on their floors when the task ends, however it does.
struct Ending(Arc<Mutex<State>>);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0).end();
    }
}

/// Whether nobody answered for so long that it may have been too much to answer: we gave up, or the client did, with a patience of its own.
fn is_late(answers: &[Result<Reply, StoreError>], took: Duration, patience: Duration) -> bool {
    let silent = |answer| matches!(answer, &Err(StoreError::Unreachable(_)));
    took >= patience / 4 && answers.iter().all(silent)
}

/// What came of one.
struct Answered {
    questions: Vec<Question>,
    answers: Vec<Result<Reply, StoreError>>,
    /// How long the answers took, and were waited for.
    took: Duration,
    patience: Duration,
    memory: Option<Result<u64, StoreError>>,
}

type Exchange = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// One round trip, and now and then one before it for the store's memory; each given up after a while.
fn exchange<S: Store + 'static>(store: Arc<S>, work: Work) -> Exchange {
    Box::pin(async move {
        let questions = work.questions;
        let patience = patience(&questions);
        let late = || StoreError::Unreachable(format!("no answer within {patience:?}"));
        // Before the questions: a limit that is learned with them is not older than the memory.
        let memory = if work.memory {
            let memory = timeout(patience, store.memory()).await;
            Some(memory.unwrap_or_else(|_| Err(late())))
        } else {
            None
        };
        let asked: Vec<(&str, Request)> = questions
            .iter()
            .map(|(path, request)| (&**path, *request))
            .collect();
        let begun = Instant::now();
        let answers = if asked.is_empty() {
            Vec::new()
        } else {
            let answers = timeout(patience, store.exchange(&asked)).await;
            answers.unwrap_or_else(|_| asked.iter().map(|_| Err(late())).collect())
        };
        drop(asked);
        Answered {
            questions,
            answers,
            took: begun.elapsed(),
            patience,
            memory,
        }
    })
}

pub(super) async fn run<S: Store + 'static>(state: Arc<Mutex<State>>, store: Arc<S>) {
    let _ending = Ending(state.clone());
    let (adopted, throttled) = {
        let state = lock(&state);
        (state.adopted(), state.throttled())
    };
    let mut ticked = Instant::now();
    // Late ones are not made up for.
    let ticks = sleep(Duration::ZERO);
    tokio::pin!(ticks);
    let mut under_way: Option<Exchange> = None;
    loop {
        let answered = async {
            match under_way.as_mut() {
                Some(exchange) => exchange.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            answered = answered => {
                under_way = None;
                let mut state = lock(&state);
                if let Some(memory) = answered.memory {
                    state.remember(memory);
                }
                let asked = answered.questions.len();
                if asked > 0 {
                    if is_late(&answered.answers, answered.took, answered.patience) {
                        state.late(asked);
                    } else if answered.answers.iter().any(Result::is_ok) {
                        state.in_time(asked, answered.took, answered.patience);
                    }
                    state.take(&answered.questions, answered.answers);
                    // Who got less than it wants is looked at sooner than it was to be.
                    let next = Instant::now() + Duration::from_micros(state.pause().0);
                    if next < ticks.deadline() {
                        ticks.as_mut().reset(next);
                    }
                }
            }
            () = adopted.notified() => ticks.as_mut().reset(Instant::now()),
            () = throttled.notified() => {
                let soonest = ticked + Duration::from_micros(WOKEN_MIN.0);
                if soonest < ticks.deadline() {
                    ticks.as_mut().reset(soonest);
                }
            }
            () = &mut ticks => {
                ticked = Instant::now();
                let (work, pause) = {
                    let mut state = lock(&state);
                    (state.tick(under_way.is_none()), state.pause())
                };
                let pause = Duration::from_micros(pause.0);
                ticks.as_mut().reset(Instant::now() + pause);
                if !work.is_empty() {
                    under_way = Some(exchange(store.clone(), work));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::FleetLimit;
    use crate::message::ProcessId;
    use crate::units::{MicroCpus, Micros};

    fn question(lease: Option<u64>) -> Question {
        let limit = |millis| {
            let limit = FleetLimit::new(MicroCpus::whole(1));
            limit.with_lease(Micros::from_millis(millis))
        };
        let request = Request {
            process: ProcessId(1),
            sequence: 1,
            used: Micros::ZERO,
            left: Micros::ZERO,
            demand: MicroCpus::whole(1),
            horizon: Micros::SECOND,
            known: lease.map(limit),
        };
        ("tenants/acme".into(), request)
    }

    #[test]
    fn late_is_what_nobody_answered_for_long() {
        let patience = Duration::from_millis(250);
        let silent = || Err(StoreError::Unreachable("no answer".to_owned()));
        let denied = || Err(StoreError::Denied("no password".to_owned()));
        assert!(is_late(&[silent(), silent()], patience, patience));
        let own = Duration::from_millis(100);
        assert!(is_late(&[silent()], own, patience), "the client gave up");
        let refused = Duration::from_millis(1);
        assert!(!is_late(&[silent()], refused, patience), "nobody is there");
        assert!(!is_late(&[silent(), Ok(Reply::Stale)], own, patience));
        assert!(!is_late(&[denied()], own, patience));
    }

    #[test]
    fn a_slow_store_has_a_quarter_of_a_lease() {
        let within = |leases: &[Option<u64>]| {
            let questions: Vec<Question> = leases.iter().copied().map(question).collect();
            patience(&questions).as_millis()
        };
        assert_eq!(within(&[]), 2_000);
        assert_eq!(within(&[None, None]), 2_000, "whoever is new");
        assert_eq!(within(&[None, Some(100), Some(1_000)]), 250);
        assert_eq!(within(&[Some(1_000), Some(4_000), None]), 1_000);
        assert_eq!(within(&[Some(120_000)]), 2_000);
    }
}
