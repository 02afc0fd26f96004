//! Bodies of answers under the tower layer: computed in the group, and otherwise as if the layer were not there.
#![cfg(not(loom))]
#![cfg(feature = "tower")]

mod common;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::Bytes;
use common::{CountDrop, eventually, guarded, runtime, scheduler};
use http_body::{Body, Frame, SizeHint};
use quotient::Group;
use quotient::tower::{BodyLost, GroupBody, GroupLayer};
use tower_layer::Layer;
use tower_service::Service;

/// What a test body does at each poll.
#[derive(Clone, Debug)]
enum Step {
    Data(&'static str),
    /// Wakes itself and is pending.
    Yield,
    Trailers,
    Fail,
    Panic,
    /// Never again.
    Hang,
}

/// A body by a list of steps, that notes where it was polled.
struct Script {
    steps: VecDeque<Step>,
    exact: bool,
    seen: Arc<Mutex<Vec<Option<String>>>>,
    _drop: CountDrop,
}

impl Body for Script {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let group = Group::current().map(|group| group.path().to_owned());
        self.seen.lock().unwrap().push(group);
        match self.steps.pop_front() {
            None => Poll::Ready(None),
            Some(Step::Data(text)) => {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
            }
            Some(Step::Yield) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Step::Trailers) => {
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Some(Step::Fail) => Poll::Ready(Some(Err(std::io::Error::other("broken")))),
            Some(Step::Panic) => panic!("a body's panic"),
            Some(Step::Hang) => {
                self.steps.push_front(Step::Hang);
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.exact && self.steps.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.steps.iter().map(|step| match step {
            Step::Data(text) => text.len() as u64,
            _ => 0,
        });
        let mut hint = SizeHint::new();
        if self.exact {
            hint.set_exact(left.sum());
        } else {
            hint.set_lower(left.take(1).sum());
        }
        hint
    }
}

/// A service whose answer has a [`Script`] for a body.
#[derive(Clone)]
struct Scripted {
    steps: Vec<Step>,
    exact: bool,
    seen: Arc<Mutex<Vec<Option<String>>>>,
    dropped: Arc<AtomicUsize>,
}

impl Scripted {
    fn new(steps: &[Step], exact: bool) -> Self {
        Self {
            steps: steps.to_vec(),
            exact,
            seen: Arc::default(),
            dropped: Arc::default(),
        }
    }

    fn polls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Service<http::Request<()>> for Scripted {
    type Response = http::Response<Script>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<()>) -> Self::Future {
        std::future::ready(Ok(http::Response::new(Script {
            steps: self.steps.clone().into(),
            exact: self.exact,
            seen: self.seen.clone(),
            _drop: CountDrop(self.dropped.clone()),
        })))
    }
}

async fn frame<B: Body>(body: &mut Pin<Box<B>>) -> Option<Result<Frame<B::Data>, B::Error>> {
    poll_fn(|context| body.as_mut().poll_frame(context)).await
}

/// Everything that a reader can see of a body, step by step.
async fn transcript<B>(body: B) -> Vec<String>
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    let mut body = Box::pin(body);
    let mut lines = Vec::new();
    loop {
        let hint = body.size_hint();
        let ended = body.is_end_stream();
        lines.push(format!("{} {:?} {ended}", hint.lower(), hint.upper()));
        match frame(&mut body).await {
            None => {
                lines.push("end".into());
                return lines;
            }
            Some(Ok(frame)) => {
                lines.push(format!("{:?} {:?}", frame.data_ref(), frame.trailers_ref()))
            }
            Some(Err(error)) => {
                lines.push(error.to_string());
                return lines;
            }
        }
    }
}

async fn answered(
    group: &Group,
    charge: bool,
    service: &Scripted,
) -> http::Response<GroupBody<Bytes>> {
    let chosen = group.clone();
    let layer = GroupLayer::by(move |_: &http::Request<()>| chosen.clone());
    let layer = if charge {
        layer.charge()
    } else {
        layer.isolate()
    };
    layer
        .layer(service.clone())
        .call(http::Request::new(()))
        .await
        .unwrap()
}

/// Runs `test` for both modes, on one and two workers, in a task of tokio's as a connection is.
fn in_both_modes<F, Fut>(test: F)
where
    F: Fn(quotient::Scheduler, Group, bool) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    for workers in [1, 2] {
        for charge in [false, true] {
            runtime(workers).block_on(guarded(async {
                let (scheduler, group) = scheduler(workers);
                tokio::spawn(test(scheduler.clone(), group, charge))
                    .await
                    .unwrap();
                scheduler.shutdown().await;
            }));
        }
    }
}

use Step::{Data, Fail, Hang, Panic, Trailers, Yield};

#[test]
fn every_frame_is_computed_in_the_group() {
    in_both_modes(|_, group, charge| async move {
        for exact in [false, true] {
            let service = Scripted::new(&[Data("a"), Yield, Data("b"), Yield, Trailers], exact);
            let answer = answered(&group, charge, &service).await;
            transcript(answer.into_body()).await;
            let seen = service.seen.lock().unwrap().clone();
            assert!(seen.len() >= 5);
            for group in seen {
                assert_eq!(group.as_deref(), Some("tenants/acme"), "charge: {charge}");
            }
        }
    });
}

#[test]
fn a_reader_sees_what_it_saw_without_the_layer() {
    let bodies: [&[Step]; 7] = [
        &[],
        &[Data("hello")],
        &[Data("a"), Data("bc"), Data("def")],
        &[Yield, Data("a"), Yield, Yield, Data("bc")],
        &[Data("a"), Yield, Trailers],
        &[Data("a"), Yield, Fail],
        &[Fail],
    ];
    in_both_modes(move |_, group, charge| async move {
        for steps in bodies {
            for exact in [false, true] {
                let service = Scripted::new(steps, exact);
                let plain = service.clone().call(http::Request::new(())).await.unwrap();
                let expected = transcript(plain.into_body()).await;
                let answer = answered(&group, charge, &service).await;
                let seen = transcript(answer.into_body()).await;
                assert_eq!(
                    seen, expected,
                    "{steps:?}, exact: {exact}, charge: {charge}"
                );
            }
        }
    });
}

#[test]
fn nothing_is_computed_before_the_connection_asks() {
    in_both_modes(|_, group, charge| async move {
        let service = Scripted::new(&[Data("a"), Data("b"), Data("c")], false);
        let answer = answered(&group, charge, &service).await;
        let mut body = Box::pin(answer.into_body());
        for asked in 0..3 {
            // Whatever would run ahead has the time to do so.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            assert_eq!(service.polls(), asked, "computed ahead; charge: {charge}");
            frame(&mut body).await.unwrap().unwrap();
        }
        assert!(frame(&mut body).await.is_none());
        assert!(frame(&mut body).await.is_none(), "the end stays the end");
    });
}

#[test]
fn a_dropped_answer_drops_its_body() {
    in_both_modes(|_, group, charge| async move {
        for read in [false, true] {
            let service = Scripted::new(&[Data("a"), Hang], false);
            let answer = answered(&group, charge, &service).await;
            let mut body = Box::pin(answer.into_body());
            if read {
                frame(&mut body).await.unwrap().unwrap();
                let pending = poll_fn(|context| Poll::Ready(body.as_mut().poll_frame(context)));
                assert!(pending.await.is_pending());
            }
            assert_eq!(service.dropped.load(Ordering::SeqCst), 0);
            drop(body);
            eventually("the body is dropped", || {
                service.dropped.load(Ordering::SeqCst) == 1
            })
            .await;
            eventually("and its task ends", || group.stats().tasks == 0).await;
        }
    });
}

#[test]
fn a_panic_in_a_body_unwinds_through_the_connection() {
    in_both_modes(|_, group, charge| async move {
        let service = Scripted::new(&[Data("a"), Panic], false);
        let answer = answered(&group, charge, &service).await;
        let reading = tokio::spawn(transcript(answer.into_body()));
        let payload = reading.await.unwrap_err().into_panic();
        assert_eq!(payload.downcast_ref(), Some(&"a body's panic"));
    });
}

#[test]
fn the_body_of_a_killed_group_is_cut_off_with_an_error_and_counted() {
    in_both_modes(|scheduler, group, charge| async move {
        let service = Scripted::new(&[Data("a"), Hang], false);
        let answer = answered(&group, charge, &service).await;
        let mut body = Box::pin(answer.into_body());
        frame(&mut body).await.unwrap().unwrap();
        let reading = tokio::spawn(async move { frame(&mut body).await });
        eventually("the body hangs", || service.polls() == 2).await;
        group.kill().unwrap();
        let error = reading.await.unwrap().unwrap().unwrap_err();
        let lost = error.downcast_ref::<BodyLost>().unwrap();
        assert_eq!(lost.group, "tenants/acme");
        assert_eq!(group.stats().losses.cut_bodies, 1);
        assert_eq!(scheduler.losses().cut_bodies, 1);
        assert_eq!(scheduler.losses().killed_tasks, 1);
    });
}

/// The frames of a stream pass the limit's account: what they use stands in the group's clock.
#[test]
fn what_a_stream_uses_stands_in_the_groups_clock() {
    use axum::Router;
    use axum::routing::get;
    use std::time::Duration;

    async fn stream() -> axum::body::Body {
        let frames = futures_util::stream::unfold(0, |index| async move {
            if index == 20 {
                return None;
            }
            common::burn(Duration::from_micros(500));
            tokio::task::yield_now().await;
            Some((Ok::<_, Infallible>("chunk\n"), index + 1))
        });
        axum::body::Body::from_stream(frames)
    }
    for charge in [false, true] {
        runtime(2).block_on(guarded(async move {
            let (scheduler, group) = scheduler(2);
            let chosen = group.clone();
            let layer = GroupLayer::by(move |_: &axum::extract::Request| chosen.clone());
            let layer = if charge { layer.charge() } else { layer };
            let router = Router::new().route("/", get(stream)).layer(layer);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
            let answer = tokio::task::spawn_blocking(move || {
                use std::io::{Read, Write};
                let mut stream = std::net::TcpStream::connect(address).unwrap();
                let head = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
                stream.write_all(head).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                answer
            })
            .await
            .unwrap();
            assert_eq!(answer.matches("chunk\n").count(), 20);
            // 20 frames of 500 us; what the host steals is not billed, so half will do.
            let used = group.cpu_time();
            assert!(
                used > Duration::from_millis(5),
                "{used:?}, charge: {charge}"
            );
            scheduler.shutdown().await;
        }));
    }
}
