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
use quotient::{Group, Leftover, Scheduler};
use tower_layer::Layer;
use tower_service::Service;

use crate::common::eventually;
use crate::{BODY, CONNECTION, EACH, End, REQUEST, Row, UNPLACED, fill, row};

pub fn rows() -> Vec<Row> {
    let mut rows = refused();
    rows.extend(unplaced());
    rows.extend(cut_off());
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
async fn cut_bodies(group: Group, charge: bool, end: impl FnOnce(&Group)) {
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
    end(&group);
    for mut body in bodies {
        let end = std::future::poll_fn(|context| body.as_mut().poll_frame(context));
        assert!(end.await.unwrap().is_err());
    }
}

/// Why a group answers no request.
#[derive(Clone, Copy)]
enum Refusal {
    Full,
    TooLong,
    Removed,
    ShutDown,
}

impl Refusal {
    const ALL: [Self; 4] = [Self::Full, Self::TooLong, Self::Removed, Self::ShutDown];

    const fn name(self) -> &'static str {
        match self {
            Self::Full => "of a full group",
            Self::TooLong => "that wait for too long",
            Self::Removed => "of a removed group",
            Self::ShutDown => "after the end of their scheduler",
        }
    }

    async fn arrange(self, scheduler: &Scheduler, group: &Group) {
        match self {
            Self::Full => fill(scheduler, group).await,
            Self::TooLong => {
                let bounded = scheduler.group(group.path()).unwrap();
                let wait = Duration::from_millis(5);
                bounded.queue_wait_max(wait).create().unwrap();
                group.freeze().unwrap();
            }
            Self::Removed => group.remove(Leftover::Kill).unwrap(),
            Self::ShutDown => scheduler.shutdown().await,
        }
    }
}

/// What a request is called that is a task of its own, or is charged.
const fn called(charge: bool) -> &'static str {
    if charge {
        "charged requests"
    } else {
        "requests"
    }
}

fn refused() -> Vec<Row> {
    let both = Refusal::ALL.map(|why| [false, true].map(|charge| refused_by(why, charge)));
    both.into_iter().flatten().collect()
}

fn refused_by(why: Refusal, charge: bool) -> Row {
    row(
        format!("{} {}", called(charge), why.name()),
        async move |scheduler, group| {
            why.arrange(&scheduler, &group).await;
            refused_requests(group, charge, |_| {}).await;
        },
        |losses| losses.refused_requests = EACH,
        &[REQUEST],
    )
}

fn unplaced() -> Vec<Row> {
    let beyond: &[&[u8]] = &[b"one", b"two", b"one", b"three", b"two"];
    let no_names: &[&[u8]] = &[b"a/b", b"", b"\xff"];
    [
        ("beyond the bound", beyond),
        ("with names that are none", no_names),
    ]
    .map(|(who, tenants)| {
        row(
            format!("requests of tenants {who}, in the default group"),
            async move |scheduler, group| unplaced_requests(scheduler, group, tenants).await,
            |losses| losses.unplaced_requests = EACH,
            &[UNPLACED],
        )
    })
    .into()
}

/// Requests that were accepted, with the tasks that handle them, and bodies, with the tasks that compute them.
fn cut_off() -> Vec<Row> {
    let mut rows = Vec::new();
    for end in End::ALL {
        for charge in [false, true] {
            rows.push(unanswered(end, charge));
            rows.push(unfinished(end, charge));
        }
    }
    rows
}

/// Requests that `end` finds unanswered, whose handlers end with them.
fn unanswered(end: End, charge: bool) -> Row {
    row(
        format!("{} {}", called(charge), end.whose()),
        async move |scheduler, group| {
            let begin = |group: &Group| drop(end.begin(&scheduler, group));
            refused_requests(group, charge, begin).await;
        },
        |losses| {
            losses.refused_requests = EACH;
            end.count_tasks(losses);
        },
        &[end.says(), REQUEST],
    )
}

/// Bodies that `end` finds unfinished.
fn unfinished(end: End, charge: bool) -> Row {
    row(
        format!("bodies of {} {}", called(charge), end.whose()),
        async move |scheduler, group| {
            let begin = |group: &Group| drop(end.begin(&scheduler, group));
            cut_bodies(group, charge, begin).await;
        },
        |losses| {
            losses.cut_bodies = EACH;
            end.count_tasks(losses);
        },
        &[end.says(), BODY],
    )
}

fn connections() -> Vec<Row> {
    vec![
        row(
            "connections of a removed group",
            async |_, group| {
                group.remove(Leftover::Kill).unwrap();
                let executor = GroupExecutor::new(group);
                for _ in 0..EACH {
                    hyper::rt::Executor::execute(&executor.clone(), pending::<()>());
                }
                assert_eq!(executor.refused(), EACH, "clones count together");
            },
            |losses| losses.refused_connections = EACH,
            &[CONNECTION],
        ),
        row(
            "connections",
            async |scheduler, group| {
                fill(&scheduler, &group).await;
                let executor = GroupExecutor::new(group);
                for _ in 0..EACH {
                    hyper::rt::Executor::execute(&executor, pending::<()>());
                }
                assert_eq!(executor.refused(), EACH);
            },
            |losses| losses.refused_connections = EACH,
            &[CONNECTION],
        ),
    ]
}
