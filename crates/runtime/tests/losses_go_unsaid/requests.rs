//! Requests, bodies of answers, and connections.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use quotient::hyper::GroupExecutor;
use quotient::tower::GroupLayer;
use quotient::{Group, Leftover, Losses, Scheduler};
use tower_layer::Layer;
use tower_service::Service;

use crate::common::eventually;
use crate::{BODY, CONNECTION, DROPPED, EACH, KILLED, REQUEST, Row, UNPLACED, fill, row};

pub fn rows() -> Vec<Row> {
    let mut rows = refused();
    rows.extend(unplaced());
    rows.extend(cut_off());
    rows.extend(cut_off_bodies());
    rows.extend(connections());
    rows
}

/// Answers by a body that hangs after its first frame, or not at all.
#[derive(Clone)]
struct Handler {
    answers: bool,
}

impl Service<Request<()>> for Handler {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let answers = self.answers;
        Box::pin(async move {
            if !answers {
                pending::<()>().await;
            }
            let frames = futures_util::stream::unfold(true, async |first| match first {
                true => Some((Ok::<_, Infallible>("frame"), false)),
                false => pending().await,
            });
            Ok(Response::new(Body::from_stream(frames)))
        })
    }
}

/// [`EACH`] requests that no handler answers.
async fn refused_requests(group: Group, charge: bool, end: impl FnOnce(&Group)) {
    let chosen = group.clone();
    let layer = GroupLayer::by(move |_: &Request<()>| chosen.clone());
    let layer = if charge { layer.charge() } else { layer };
    let mut service = layer.layer(Handler { answers: false });
    let calls: Vec<_> = (0..EACH)
        .map(|_| tokio::spawn(service.call(Request::new(()))))
        .collect();
    end(&group);
    for call in calls {
        let answer = call.await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}

/// Requests of `tenants`, one after the other but all unfinished, through a table with room for one; `group` is the default.
async fn unplaced_requests(scheduler: Scheduler, group: Group, tenants: &[&[u8]]) {
    let header = http::HeaderName::from_static("x-tenant");
    let parent = format!("{}-tenants", group.path());
    let layer = GroupLayer::by_header(&scheduler, header, &parent, 1, group).unwrap();
    let mut service = layer.layer(Handler { answers: false });
    let call = |name: &[u8]| {
        let request = Request::builder().header("x-tenant", name).body(());
        tokio::spawn(service.call(request.unwrap()))
    };
    let calls: Vec<_> = tenants.iter().copied().map(call).collect();
    for call in calls {
        call.abort();
        assert!(call.await.is_err());
    }
    eventually("they are gone", || scheduler.tasks() == 0).await;
}

/// [`EACH`] bodies that `end` cuts off.
async fn cut_bodies(group: Group, charge: bool, end: impl AsyncFnOnce(&Group)) {
    let chosen = group.clone();
    let layer = GroupLayer::by(move |_: &Request<()>| chosen.clone());
    let layer = if charge { layer.charge() } else { layer };
    let mut service = layer.layer(Handler { answers: true });
    let mut bodies = Vec::new();
    for _ in 0..EACH {
        let answer = service.call(Request::new(())).await.unwrap();
        let mut body = Box::pin(answer.into_body());
        let first = std::future::poll_fn(|context| body.as_mut().poll_frame(context));
        first.await.unwrap().unwrap();
        bodies.push(body);
    }
    // The gate of a charged request is a task, too, until its call has ended.
    eventually("gates are gone", || {
        group.stats().tasks == usize::try_from(EACH).unwrap()
    })
    .await;
    end(&group).await;
    for mut body in bodies {
        let end = std::future::poll_fn(|context| body.as_mut().poll_frame(context));
        assert!(end.await.unwrap().is_err());
    }
}

fn refused() -> Vec<Row> {
    vec![
        row(
            "requests of a full group",
            |scheduler, group| {
                Box::pin(async move {
                    fill(&scheduler, &group).await;
                    refused_requests(group, false, |_| {}).await;
                })
            },
            |losses| losses.refused_requests = EACH,
            &[REQUEST],
        ),
        row(
            "charged requests of a full group",
            |scheduler, group| {
                Box::pin(async move {
                    fill(&scheduler, &group).await;
                    refused_requests(group, true, |_| {}).await;
                })
            },
            |losses| losses.refused_requests = EACH,
            &[REQUEST],
        ),
        row(
            "requests that wait for too long",
            |scheduler, group| {
                Box::pin(async move {
                    let bounded = scheduler.group(group.path()).unwrap();
                    let wait = Duration::from_millis(5);
                    bounded.queue_wait_max(wait).create().unwrap();
                    group.freeze().unwrap();
                    refused_requests(group, false, |_| {}).await;
                })
            },
            |losses| losses.refused_requests = EACH,
            &[REQUEST],
        ),
        row(
            "charged requests that wait for too long",
            |scheduler, group| {
                Box::pin(async move {
                    let bounded = scheduler.group(group.path()).unwrap();
                    let wait = Duration::from_millis(5);
                    bounded.queue_wait_max(wait).create().unwrap();
                    group.freeze().unwrap();
                    refused_requests(group, true, |_| {}).await;
                })
            },
            |losses| losses.refused_requests = EACH,
            &[REQUEST],
        ),
        row(
            "requests of a removed group",
            |_, group| {
                Box::pin(async move {
                    group.remove(Leftover::Kill).unwrap();
                    refused_requests(group, false, |_| {}).await;
                })
            },
            |losses| losses.refused_requests = EACH,
            &[REQUEST],
        ),
        row(
            "charged requests of a removed group",
            |_, group| {
                Box::pin(async move {
                    group.remove(Leftover::Kill).unwrap();
                    refused_requests(group, true, |_| {}).await;
                })
            },
            |losses| losses.refused_requests = EACH,
            &[REQUEST],
        ),
        row(
            "requests after the end of their scheduler",
            |scheduler, group| {
                Box::pin(async move {
                    scheduler.shutdown().await;
                    refused_requests(group, false, |_| {}).await;
                })
            },
            |losses| losses.refused_requests = EACH,
            &[REQUEST],
        ),
    ]
}

fn unplaced() -> Vec<Row> {
    vec![
        row(
            "requests of tenants beyond the bound, in the default group",
            |scheduler, group| {
                let tenants: [&[u8]; 5] = [b"one", b"two", b"one", b"three", b"two"];
                Box::pin(async move { unplaced_requests(scheduler, group, &tenants).await })
            },
            |losses| losses.unplaced_requests = EACH,
            &[UNPLACED],
        ),
        row(
            "requests of tenants with names that are none, in the default group",
            |scheduler, group| {
                let tenants: [&[u8]; 3] = [b"a/b", b"", b"\xff"];
                Box::pin(async move { unplaced_requests(scheduler, group, &tenants).await })
            },
            |losses| losses.unplaced_requests = EACH,
            &[UNPLACED],
        ),
    ]
}

/// Ends the group's requests, at once or soon.
#[derive(Clone, Copy)]
enum End {
    Kill,
    Remove,
    ShutDown,
}

impl End {
    fn begin(self, scheduler: &Scheduler, group: &Group) {
        match self {
            Self::Kill => group.kill().unwrap(),
            Self::Remove => group.remove(Leftover::Kill).unwrap(),
            Self::ShutDown => {
                let scheduler = scheduler.clone();
                drop(tokio::spawn(async move { scheduler.shutdown().await }));
            }
        }
    }
}

/// Requests that `end` finds unanswered, whose handlers end with them; charged ones, too.
async fn ended_requests(scheduler: Scheduler, group: Group, charge: bool, end: End) {
    refused_requests(group, charge, |group| end.begin(&scheduler, group)).await;
}

/// Bodies that `end` finds unfinished.
async fn ended_bodies(scheduler: Scheduler, group: Group, charge: bool, end: End) {
    cut_bodies(group, charge, async |group| end.begin(&scheduler, group)).await;
}

fn killed_requests(losses: &mut Losses) {
    losses.refused_requests = EACH;
    losses.killed_tasks = EACH;
}

fn dropped_requests(losses: &mut Losses) {
    losses.refused_requests = EACH;
    losses.dropped_tasks = EACH;
}

fn killed_bodies(losses: &mut Losses) {
    losses.cut_bodies = EACH;
    losses.killed_tasks = EACH;
}

fn dropped_bodies(losses: &mut Losses) {
    losses.cut_bodies = EACH;
    losses.dropped_tasks = EACH;
}

/// Requests that were accepted, with the tasks that handle them.
fn cut_off() -> Vec<Row> {
    vec![
        row(
            "requests of a killed group",
            |scheduler, group| Box::pin(ended_requests(scheduler, group, false, End::Kill)),
            killed_requests,
            &[KILLED, REQUEST],
        ),
        row(
            "charged requests of a killed group",
            |scheduler, group| Box::pin(ended_requests(scheduler, group, true, End::Kill)),
            killed_requests,
            &[KILLED, REQUEST],
        ),
        row(
            "requests of a group that is removed",
            |scheduler, group| Box::pin(ended_requests(scheduler, group, false, End::Remove)),
            killed_requests,
            &[KILLED, REQUEST],
        ),
        row(
            "charged requests of a group that is removed",
            |scheduler, group| Box::pin(ended_requests(scheduler, group, true, End::Remove)),
            killed_requests,
            &[KILLED, REQUEST],
        ),
        row(
            "requests at the end of their scheduler",
            |scheduler, group| Box::pin(ended_requests(scheduler, group, false, End::ShutDown)),
            dropped_requests,
            &[DROPPED, REQUEST],
        ),
        row(
            "charged requests at the end of their scheduler",
            |scheduler, group| Box::pin(ended_requests(scheduler, group, true, End::ShutDown)),
            dropped_requests,
            &[DROPPED, REQUEST],
        ),
    ]
}

/// Bodies, with the tasks that compute them.
fn cut_off_bodies() -> Vec<Row> {
    vec![
        row(
            "bodies of a killed group",
            |scheduler, group| Box::pin(ended_bodies(scheduler, group, false, End::Kill)),
            killed_bodies,
            &[KILLED, BODY],
        ),
        row(
            "bodies of charged requests of a killed group",
            |scheduler, group| Box::pin(ended_bodies(scheduler, group, true, End::Kill)),
            killed_bodies,
            &[KILLED, BODY],
        ),
        row(
            "bodies of a group that is removed",
            |scheduler, group| Box::pin(ended_bodies(scheduler, group, false, End::Remove)),
            killed_bodies,
            &[KILLED, BODY],
        ),
        row(
            "bodies at the end of their scheduler",
            |scheduler, group| Box::pin(ended_bodies(scheduler, group, true, End::ShutDown)),
            dropped_bodies,
            &[DROPPED, BODY],
        ),
    ]
}

fn connections() -> Vec<Row> {
    vec![
        row(
            "connections of a removed group",
            |_, group| {
                Box::pin(async move {
                    group.remove(Leftover::Kill).unwrap();
                    let executor = GroupExecutor::new(group);
                    for _ in 0..EACH {
                        hyper::rt::Executor::execute(&executor.clone(), pending::<()>());
                    }
                    assert_eq!(executor.refused(), EACH, "clones count together");
                })
            },
            |losses| losses.refused_connections = EACH,
            &[CONNECTION],
        ),
        row(
            "connections",
            |scheduler, group| {
                Box::pin(async move {
                    fill(&scheduler, &group).await;
                    let executor = GroupExecutor::new(group);
                    for _ in 0..EACH {
                        hyper::rt::Executor::execute(&executor, pending::<()>());
                    }
                    assert_eq!(executor.refused(), EACH);
                })
            },
            |losses| losses.refused_connections = EACH,
            &[CONNECTION],
        ),
    ]
}
