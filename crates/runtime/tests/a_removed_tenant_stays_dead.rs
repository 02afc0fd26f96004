//! Tenants of the tower layer that come and go, and requests that do not reach their handler.
#![cfg(not(loom))]
#![cfg(feature = "tower")]

mod common;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use common::{eventually, guarded, on_every_host, runtime, scheduler};
use http::{HeaderName, Request, Response, StatusCode};
use http_body::{Body, SizeHint};
use quotient::tower::{ByHeader, GroupBody, GroupLayer, GroupService, RefusalReason};
use quotient::{Group, Leftover, Scheduler};
use tokio::sync::Notify;
use tower_layer::Layer;
use tower_service::Service;

/// A body without frames.
struct Empty;

impl Body for Empty {
    type Data = std::io::Cursor<Vec<u8>>;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Infallible>>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}

/// Answers with its group in a header; with `wait` set only when it is told to.
#[derive(Clone, Default)]
struct Whoami {
    wait: Option<Arc<Notify>>,
    begun: Arc<AtomicUsize>,
}

impl Service<Request<()>> for Whoami {
    type Response = Response<Empty>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Empty>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let Self { wait, begun } = self.clone();
        Box::pin(async move {
            begun.fetch_add(1, Ordering::SeqCst);
            if let Some(wait) = wait {
                wait.notified().await;
            }
            let group = Group::current().unwrap();
            let mut response = Response::new(Empty);
            response
                .headers_mut()
                .insert("group", group.path().parse().unwrap());
            Ok(response)
        })
    }
}

type Passed = Response<GroupBody<std::io::Cursor<Vec<u8>>>>;

async fn ask<S>(service: &mut S, tenant: &str) -> Passed
where
    S: Service<Request<()>, Response = Passed, Error = Infallible>,
{
    let request = Request::builder()
        .header("x-tenant", tenant)
        .body(())
        .unwrap();
    service.call(request).await.unwrap()
}

async fn group_of(service: &mut GroupService<ByHeader, Whoami>, tenant: &str) -> String {
    let answer = ask(service, tenant).await;
    assert_eq!(answer.status(), StatusCode::OK);
    answer.headers()["group"].to_str().unwrap().to_owned()
}

fn by_header(scheduler: &Scheduler, default: &Group, max: usize) -> GroupLayer<ByHeader> {
    let header = HeaderName::from_static("x-tenant");
    GroupLayer::by_header(scheduler, header, "web", max, default.clone()).unwrap()
}

fn tenants(scheduler: &Scheduler) -> usize {
    let groups = scheduler.groups();
    groups
        .iter()
        .filter(|group| group.path().starts_with("web/"))
        .count()
}

#[test]
fn a_removed_tenant_comes_back_with_its_next_request() {
    on_every_host(comes_back);
    common::repeatedly(comes_back);
}

async fn comes_back(vcpus: usize) {
    let (scheduler, default) = scheduler(vcpus);
    for charge in [false, true] {
        let layer = by_header(&scheduler, &default, 10);
        let layer = if charge { layer.charge() } else { layer };
        let mut service = layer.layer(Whoami::default());
        for _ in 0..5 {
            assert_eq!(group_of(&mut service, "a").await, "web/a");
            scheduler
                .find("web/a")
                .unwrap()
                .remove(Leftover::Kill)
                .unwrap();
            eventually("the name is free", || scheduler.find("web/a").is_err()).await;
        }
    }
    scheduler.shutdown().await;
}

/// Hazard: a removed group is there until its last poll has returned, and until then its tenant's requests ran in the default group, without its limit.
#[test]
fn a_removed_tenant_computes_in_the_default_group() {
    for charge in [false, true] {
        runtime(2).block_on(guarded(async move {
            let (scheduler, default) = scheduler(2);
            let layer = by_header(&scheduler, &default, 10);
            let layer = if charge { layer.charge() } else { layer };
            let mut service = layer.layer(Whoami::default());
            for removed in ["web/a", "web"] {
                assert_eq!(group_of(&mut service, "a").await, "web/a");
                let stop = Arc::new(AtomicUsize::new(0));
                let hog = stop.clone();
                let tenant = scheduler.find("web/a").unwrap();
                let hog = tenant.spawn(async move {
                    hog.fetch_add(1, Ordering::SeqCst);
                    while hog.load(Ordering::SeqCst) < 2 {
                        std::hint::spin_loop();
                    }
                });
                eventually("it computes", || stop.load(Ordering::SeqCst) == 1).await;
                let removed = scheduler.find(removed).unwrap();
                removed.remove(Leftover::Kill).unwrap();
                for _ in 0..3 {
                    let refused = ask(&mut service, "a").await;
                    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
                }
                assert_eq!(default.stats().losses.unplaced_requests, 0);
                stop.store(2, Ordering::SeqCst);
                let _ = hog.await;
                drop((removed, tenant));
                eventually("the name is free", || scheduler.find("web/a").is_err()).await;
            }
            scheduler.shutdown().await;
        }));
    }
}

#[test]
fn invented_headers_push_out_each_other_and_never_a_tenant_with_work() {
    on_every_host(|vcpus| async move {
        let (scheduler, default) = scheduler(vcpus);
        let existing = scheduler
            .group("web/existing")
            .unwrap()
            .weight(77)
            .create()
            .unwrap();
        let layer = by_header(&scheduler, &default, 3);
        let mut service = layer.layer(Whoami::default());
        // One tenant with a request under way, one with a task, one that the application made.
        let wait = Arc::new(Notify::new());
        let waiting = Whoami {
            wait: Some(wait.clone()),
            begun: Arc::default(),
        };
        let mut slow = layer.layer(waiting.clone());
        let request = tokio::spawn(async move { ask(&mut slow, "busy").await });
        eventually("the request runs", || {
            waiting.begun.load(Ordering::SeqCst) == 1
        })
        .await;
        assert_eq!(group_of(&mut service, "worker").await, "web/worker");
        let working = scheduler.find("web/worker").unwrap();
        let task = working.spawn(std::future::pending::<()>());
        assert_eq!(group_of(&mut service, "existing").await, "web/existing");
        for index in 0..50 {
            let name = format!("invented-{index}");
            assert_eq!(group_of(&mut service, &name).await, format!("web/{name}"));
        }
        // "existing" stays a group, though the table may have forgotten it. A removed group goes within a tick.
        eventually("no more groups than tenants", || tenants(&scheduler) <= 4).await;
        assert!(!task.is_finished());
        assert_eq!(scheduler.find("web/worker").unwrap(), working);
        assert_eq!(scheduler.find("web/existing").unwrap(), existing);
        assert_eq!(existing.weight(), 77);
        wait.notify_one();
        let answer = request.await.unwrap();
        assert_eq!(answer.headers()["group"], "web/busy");
        scheduler.shutdown().await;
    });
}

#[test]
fn a_full_table_of_tenants_with_work_sends_others_to_the_default() {
    on_every_host(|vcpus| async move {
        let (scheduler, default) = scheduler(vcpus);
        let mut service = by_header(&scheduler, &default, 2).layer(Whoami::default());
        for name in ["a", "b"] {
            group_of(&mut service, name).await;
            let group = scheduler.find(&format!("web/{name}")).unwrap();
            group.spawn(std::future::pending::<()>());
        }
        for _ in 0..5 {
            assert_eq!(group_of(&mut service, "c").await, "tenants/acme");
            assert_eq!(group_of(&mut service, "a").await, "web/a");
        }
        scheduler.shutdown().await;
    });
}

#[test]
fn on_tenant_sets_up_new_groups_and_leaves_existing_ones() {
    on_every_host(|vcpus| async move {
        let (scheduler, default) = scheduler(vcpus);
        let existing = scheduler
            .group("web/existing")
            .unwrap()
            .weight(77)
            .create()
            .unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let layer = by_header(&scheduler, &default, 10).on_tenant(move |name, group| {
            counted.fetch_add(1, Ordering::SeqCst);
            group
                .weight(if name == "gold" { 500 } else { 50 })
                .max("50ms/100ms")
        });
        let mut service = layer.layer(Whoami::default());
        for name in ["gold", "other", "existing", "gold"] {
            group_of(&mut service, name).await;
        }
        let gold = scheduler.find("web/gold").unwrap();
        assert_eq!((gold.weight(), gold.max().is_some()), (500, true));
        assert_eq!(scheduler.find("web/other").unwrap().weight(), 50);
        assert_eq!((existing.weight(), existing.max()), (77, None));
        scheduler.shutdown().await;
    });
}

#[test]
fn a_killed_or_full_group_answers_503_and_counts_it() {
    for charge in [false, true] {
        runtime(2).block_on(guarded(async move {
            let (scheduler, _) = scheduler(2);
            let group = scheduler
                .group("full")
                .unwrap()
                .tasks_max(1)
                .create()
                .unwrap();
            let chosen = group.clone();
            let layer = GroupLayer::by(move |_: &Request<()>| chosen.clone());
            let layer = if charge { layer.charge() } else { layer };
            let waiting = Whoami {
                wait: Some(Arc::new(Notify::new())),
                begun: Arc::default(),
            };
            let mut service = layer.layer(waiting.clone());
            let mut first = service.clone();
            let first = tokio::spawn(async move { ask(&mut first, "").await });
            eventually("the handler runs", || {
                waiting.begun.load(Ordering::SeqCst) == 1
            })
            .await;
            let second = ask(&mut service, "").await;
            assert_eq!(second.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(second.headers()["retry-after"], "1");
            assert!(second.body().is_end_stream());
            group.kill().unwrap();
            let killed = first.await.unwrap();
            assert_eq!(
                killed.status(),
                StatusCode::SERVICE_UNAVAILABLE,
                "charge: {charge}"
            );
            assert!(!killed.headers().contains_key("retry-after"));
            // The answer to a refusal is the application's to choose; gRPC has its own default.
            let hooked = layer.clone().on_refusal(|refusal| {
                let mut head = refusal.answer();
                *head.status_mut() = StatusCode::IM_A_TEAPOT;
                assert_eq!(refusal.reason, RefusalReason::Removed);
                head
            });
            group.remove(Leftover::Kill).unwrap();
            let refused = ask(&mut hooked.layer(Whoami::default()), "").await;
            assert_eq!(refused.status(), StatusCode::IM_A_TEAPOT);
            let request = Request::builder()
                .header("content-type", "application/grpc+proto")
                .body(())
                .unwrap();
            let refused = service.call(request).await.unwrap();
            assert_eq!(refused.status(), StatusCode::OK);
            assert_eq!(refused.headers()["grpc-status"], "14");
            assert_eq!(group.stats().losses.refused_requests, 4);
            assert_eq!(scheduler.losses().refused_requests, 4);
            scheduler.shutdown().await;
        }));
    }
}
