//! The end of many groups, by a kill or by a shutdown, comes to them one after the other. Charged requests that are polled meanwhile
//! used to see it before it came to their gates: they went by themselves, and the gates were lost without being counted. And requests with
//! tasks of their own that were polled between the end of the handler's future and that of its task panicked.
#![cfg(all(feature = "tower", not(loom)))]

mod common;

use std::convert::Infallible;
use std::future::{Future, Pending, pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use common::{eventually, guarded, runtime};
use http::{Request, Response, StatusCode};
use quotient::tower::GroupLayer;
use quotient::{Group, Scheduler};
use tower_layer::Layer;
use tower_service::Service;

const REQUESTS: u64 = 8;

/// Each meets the end at another moment.
const ROUNDS: usize = 20;

/// Answers nobody.
#[derive(Clone)]
struct Never;

impl Service<Request<()>> for Never {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pending<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        pending()
    }
}

/// Requests of the group that are polled all the time, and never answered.
async fn restless(group: &Group, charge: bool, end: impl Future<Output = ()>) {
    let chosen = group.clone();
    let layer = GroupLayer::by(move |_: &Request<()>| chosen.clone());
    let layer = if charge { layer.charge() } else { layer };
    let mut service = layer.layer(Never);
    let polls = Arc::new(AtomicU64::new(0));
    let calls: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let mut call = Box::pin(service.call(Request::new(())));
            let polls = polls.clone();
            tokio::spawn(poll_fn(move |context| {
                polls.fetch_add(1, Ordering::Relaxed);
                context.waker().wake_by_ref();
                call.as_mut().poll(context)
            }))
        })
        .collect();
    let begun = || polls.load(Ordering::Relaxed) > 10 * REQUESTS;
    eventually("the requests are being polled", begun).await;
    end.await;
    for call in calls {
        let answer = call.await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}

/// A scheduler with many groups `all/*`, and the one in the middle.
fn one_of_many() -> (Scheduler, Group) {
    let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
    let new = |number: u32| {
        let path = format!("all/group{number}");
        scheduler.group(&path).unwrap().create().unwrap()
    };
    let groups: Vec<Group> = (0..500).map(new).collect();
    let group = groups[250].clone();
    (scheduler, group)
}

#[test]
fn a_kill_of_many_groups_counts_every_request() {
    for charge in [false, true].repeat(ROUNDS) {
        runtime(2).block_on(guarded(async {
            let (scheduler, group) = one_of_many();
            let all = scheduler.find("all").unwrap();
            restless(&group, charge, async { all.kill().unwrap() }).await;
            let counted = || group.stats().losses.killed_tasks == REQUESTS;
            eventually("every one is counted", counted).await;
            assert_eq!(group.stats().losses.refused_requests, REQUESTS);
            scheduler.shutdown().await;
            assert_eq!(scheduler.losses().killed_tasks, REQUESTS);
        }));
    }
}

#[test]
fn a_shutdown_of_many_groups_counts_every_request() {
    for charge in [false, true].repeat(ROUNDS) {
        runtime(2).block_on(guarded(async {
            let (scheduler, group) = one_of_many();
            restless(&group, charge, scheduler.shutdown()).await;
            let counted = || group.stats().losses.dropped_tasks == REQUESTS;
            eventually("every one is counted", counted).await;
            assert_eq!(group.stats().losses.refused_requests, REQUESTS);
        }));
    }
}
