//! Spans of requests, in the group and out of it. `cargo test -p quotient --features tracing --test spans_vanish`.
#![cfg(not(loom))]
#![cfg(all(feature = "tower", feature = "tracing"))]

mod common;

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::routing::get;
use common::{guarded, runtime, scheduler};
use quotient::tower::GroupLayer;
use tower_service::Service;
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

type Seen = Arc<Mutex<Vec<(&'static str, Option<&'static str>)>>>;

fn current() -> Option<&'static str> {
    tracing::Span::current().metadata().map(|span| span.name())
}

/// A handler with a body that streams: both say in which span they are.
async fn handler(seen: Seen) -> Body {
    tokio::task::yield_now().await;
    seen.lock().unwrap().push(("handler", current()));
    Body::from_stream(futures_util::stream::unfold(0, move |index| {
        let seen = seen.clone();
        async move {
            tokio::task::yield_now().await;
            seen.lock().unwrap().push(("body", current()));
            (index < 2).then_some((Ok::<_, std::convert::Infallible>("x"), index + 1))
        }
    }))
}

#[test]
fn the_span_outside_the_layer_is_current_in_handler_and_body() {
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry());
    let subscriber = tracing::dispatcher::get_default(Clone::clone);
    for charge in [false, true] {
        let workers = tokio::runtime::Builder::new_multi_thread();
        let dispatch = subscriber.clone();
        // Every worker reports to the test's subscriber.
        let runtime = {
            let mut builder = workers;
            builder
                .worker_threads(2)
                .enable_all()
                .on_thread_start(move || {
                    std::mem::forget(tracing::dispatcher::set_default(&dispatch));
                });
            builder.build().unwrap()
        };
        runtime.block_on(guarded(async move {
            let (scheduler, group) = scheduler(2);
            let seen = Seen::default();
            let noted = seen.clone();
            let layer = GroupLayer::by(move |_: &Request| group.clone());
            let layer = if charge { layer.charge() } else { layer };
            let trace = axum::middleware::from_fn(|request: Request, next: Next| async move {
                next.run(request)
                    .instrument(tracing::info_span!("request"))
                    .await
            });
            let mut router = Router::new()
                .route("/", get(move || handler(noted.clone())))
                .layer(layer)
                .layer(trace);
            let answer = router.call(Request::new(Body::empty())).await.unwrap();
            axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
            let seen = seen.lock().unwrap().clone();
            assert_eq!(seen.len(), 4);
            for (place, span) in seen {
                assert_eq!(span, Some("request"), "{place}, charge: {charge}");
            }
            scheduler.shutdown().await;
        }));
    }
}

/// The first loss of a kind is said, the others are counted.
#[test]
fn a_refusal_is_said_once_and_counted_always() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);
    struct Visitor(String);
    impl tracing::field::Visit for Visitor {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            self.0 += &format!("{field}={value:?} ");
        }
    }
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
        fn on_event(
            &self,
            event: &tracing::Event<'_>,
            _: tracing_subscriber::layer::Context<'_, S>,
        ) {
            if event.metadata().target() == "quotient" {
                let mut visitor = Visitor(String::new());
                event.record(&mut visitor);
                self.0.lock().unwrap().push(visitor.0);
            }
        }
    }
    let lines = Lines::default();
    let _default =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
    runtime(1).block_on(guarded(async {
        let (scheduler, _) = scheduler(1);
        for name in ["a", "b"] {
            let group = scheduler
                .group(name)
                .unwrap()
                .tasks_max(0)
                .create()
                .unwrap();
            for _ in 0..5 {
                group.try_spawn(async {}).unwrap_err();
            }
            assert_eq!(group.stats().losses.refused_tasks, 5);
        }
        assert_eq!(scheduler.losses().refused_tasks, 10);
        scheduler.shutdown().await;
    }));
    let lines = lines.0.lock().unwrap().clone();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("group=\"a\"") && lines[1].contains("group=\"b\""),
        "{lines:?}"
    );
    assert!(lines[0].contains("a task was refused"), "{lines:?}");
}
