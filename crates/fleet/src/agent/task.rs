//! The loop: ticks, and one round trip beside them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::lock;
use super::pass::{Question, State};
use crate::message::{Reply, Request};
use crate::store::{Store, StoreError};

/// How often the task looks. Unit: milliseconds. Default: 25.
const TICK: Duration = Duration::from_millis(25);

/// How long an answer may take: a quarter of the assumed lease.
const PATIENCE: Duration = Duration::from_millis(250);

/// Puts groups on their floors when the task ends, however it does.
struct Ending(Arc<Mutex<State>>);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0).end();
    }
}

type Exchange =
    Pin<Box<dyn Future<Output = (Vec<Question>, Vec<Result<Reply, StoreError>>)> + Send>>;

/// One round trip, given up after a while.
fn exchange<S: Store + 'static>(store: Arc<S>, questions: Vec<Question>) -> Exchange {
    Box::pin(async move {
        let asked: Vec<(&str, Request)> = questions
            .iter()
            .map(|(path, request)| (&**path, *request))
            .collect();
        let answers = timeout(PATIENCE, store.exchange(&asked)).await;
        let answers = answers.unwrap_or_else(|_| {
            let late = StoreError::Unreachable(format!("no answer within {PATIENCE:?}"));
            asked.iter().map(|_| Err(late.clone())).collect()
        });
        drop(asked);
        (questions, answers)
    })
}

pub(super) async fn run<S: Store + 'static>(state: Arc<Mutex<State>>, store: Arc<S>) {
    let _ending = Ending(state.clone());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut under_way: Option<Exchange> = None;
    loop {
        let answered = async {
            match under_way.as_mut() {
                Some(exchange) => exchange.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            (questions, answers) = answered => {
                under_way = None;
                lock(&state).take(&questions, answers);
            }
            _ = ticks.tick() => {
                let questions = lock(&state).tick(under_way.is_none());
                if !questions.is_empty() {
                    under_way = Some(exchange(store.clone(), questions));
                }
            }
        }
    }
}
