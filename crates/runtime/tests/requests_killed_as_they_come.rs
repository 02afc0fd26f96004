//! The end of a group meets charged requests at any moment of their first poll: each is refused, none waits for ever.
#![cfg(all(feature = "tower", not(loom)))]

mod common;

use std::convert::Infallible;
use std::future::{Pending, pending};
use std::task::{Context, Poll};

use common::{guarded, runtime};
use http::{Request, Response, StatusCode};
use quotient::Scheduler;
use quotient::tower::GroupLayer;
use tower_layer::Layer;
use tower_service::Service;

/// How often. Before the fault was mended, one in some two hundred hung where the machine had other work.
const ROUNDS: u32 = 3_000;

/// Answers nobody.
#[derive(Clone)]
struct Silent;

impl Service<Request<()>> for Silent {
    type Response = Response<axum::body::Body>;
    type Error = Infallible;
    type Future = Pending<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        pending()
    }
}

#[test]
fn the_end_of_a_group_loses_no_request_that_is_just_coming() {
    runtime(2).block_on(guarded(async {
        let scheduler = Scheduler::builder().vcpus(2).build().expect("a scheduler");
        for round in 0..ROUNDS {
            let group = scheduler.group(&format!("round{round}")).expect("a path");
            let group = group.create().expect("a group");
            let chosen = group.clone();
            let layer = GroupLayer::by(move |_: &Request<()>| chosen.clone()).charge();
            let mut service = layer.layer(Silent);
            let calls = [(); 3].map(|()| tokio::spawn(service.call(Request::new(()))));
            // Somewhere in their first polls.
            (0..round % 64 * 8).for_each(|_| std::hint::spin_loop());
            group.kill().expect("not the root");
            for call in calls {
                let answer = call.await.expect("no panic").expect("an answer");
                assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
            }
            group
                .remove(quotient::Leftover::Kill)
                .expect("not the root");
        }
        scheduler.shutdown().await;
    }));
}
