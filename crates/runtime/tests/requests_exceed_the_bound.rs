//! `tasks_max` bounds the requests of a group in both modes of the layer, and each refused one is counted once.
#![cfg(all(feature = "tower", not(loom)))]

mod common;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use common::{on_every_host, scheduler};
use http::{Request, Response, StatusCode};
use quotient::tower::GroupLayer;
use tower_layer::Layer;
use tower_service::Service;

/// Answers after a while, by a stream.
#[derive(Clone)]
struct Slow;

impl Service<Request<()>> for Slow {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let frames = (0..3).map(|_| Ok::<_, Infallible>("0123456789"));
            let frames = futures_util::stream::iter(frames);
            Ok(Response::new(Body::from_stream(frames)))
        })
    }
}

#[test]
fn concurrent_requests_do_not_exceed_the_bound_and_none_is_refused_after_its_work() {
    for charge in [false, true] {
        on_every_host(|vcpus| async move {
            let (scheduler, _) = scheduler(vcpus);
            let group = scheduler.group("small").unwrap().tasks_max(8);
            let group = group.create().unwrap();
            let chosen = group.clone();
            let layer = GroupLayer::by(move |_: &Request<()>| chosen.clone());
            let layer = if charge { layer.charge() } else { layer };
            let mut service = layer.layer(Slow);
            // All come before the first is polled.
            let calls: Vec<_> = (0..50).map(|_| service.call(Request::new(()))).collect();
            let (mut answered, mut refused) = (Vec::new(), 0);
            for call in calls.into_iter().map(tokio::spawn).collect::<Vec<_>>() {
                let answer = call.await.unwrap().unwrap();
                match answer.status() {
                    StatusCode::OK => answered.push(answer),
                    _ => refused += 1,
                }
            }
            assert_eq!((answered.len(), refused), (8, 42), "charge: {charge}");
            for answer in answered {
                let body = Body::new(answer.into_body());
                let bytes = axum::body::to_bytes(body, 1_000).await.unwrap();
                assert_eq!(bytes.len(), 30);
            }
            let losses = group.stats().losses;
            assert_eq!(losses.refused_requests, 42);
            assert_eq!(losses.refused_tasks, 0, "a request is counted twice");
            scheduler.shutdown().await;
        });
    }
}
