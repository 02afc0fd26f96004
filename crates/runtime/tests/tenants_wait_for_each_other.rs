//! The table of tenants was locked by requests that could be stopped meanwhile, and while the program's settings of a new tenant ran: other tenants'
//! requests waited for as long. On real threads: bounds are generous.

#![cfg(all(
    feature = "tower",
    not(loom),
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use common::{eventually, guarded, runtime};
use http::{HeaderName, Request};
use quotient::tower::{ByHeader, GroupLayer};
use quotient::{Group, Preempt, Scheduler};
use tower_layer::Layer;
use tower_service::Service;

/// Longer than a request waits on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Answers with the path of its group.
#[derive(Clone)]
struct Whoami;

impl Service<Request<()>> for Whoami {
    type Response = String;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<String, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        Box::pin(async {
            let group = Group::current();
            Ok(group.map_or_else(String::new, |group| group.path().to_owned()))
        })
    }
}

fn by_header(scheduler: &Scheduler, tenants_max: usize) -> GroupLayer<ByHeader> {
    let header = HeaderName::from_static("x-tenant");
    let default = scheduler.group("default").unwrap().create().unwrap();
    GroupLayer::by_header(scheduler, header, "web", tenants_max, default).unwrap()
}

fn request(tenant: &str) -> Request<()> {
    let request = Request::builder().header("x-tenant", tenant);
    request.body(()).unwrap()
}

/// In which group a request of the tenant runs, on a thread of its own, which it may block.
fn ask(layer: &GroupLayer<ByHeader>, tenant: &str) -> tokio::task::JoinHandle<String> {
    let (mut service, request) = (layer.layer(Whoami), request(tenant));
    let handle = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || handle.block_on(service.call(request)).unwrap())
}

#[test]
fn settings_of_a_new_tenant_keep_others_waiting() {
    runtime(2).block_on(guarded(async {
        let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
        let (begun, goes_on) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (begins, may_go_on) = (begun.clone(), goes_on.clone());
        let layer = by_header(&scheduler, 2).on_tenant(move |name, group| {
            if name == "slow" {
                begins.fetch_add(1, Ordering::SeqCst);
                while !may_go_on.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            group.weight(7)
        });
        let slow = [ask(&layer, "slow"), ask(&layer, "slow")];
        eventually("the settings", || begun.load(Ordering::SeqCst) > 0).await;
        // The new tenant has its place, and it is one.
        let mut groups = Vec::new();
        for tenant in ["quick", "late", "quick"] {
            let group = tokio::time::timeout(LONG, ask(&layer, tenant)).await;
            if let Ok(quick) = scheduler.find("web/quick") {
                // So it is not idle.
                drop(quick.spawn(std::future::pending::<()>()));
            }
            groups.push(group);
        }
        goes_on.store(true, Ordering::SeqCst);
        let groups = groups
            .into_iter()
            .map(|group| group.expect("waits").unwrap());
        let groups: Vec<_> = groups.collect();
        assert_eq!(groups, ["web/quick", "default", "web/quick"]);
        for slow in slow {
            assert_eq!(slow.await.unwrap(), "web/slow");
        }
        assert_eq!(scheduler.find("web/slow").unwrap().weight(), 7);
        scheduler.shutdown().await;
    }));
}

/// The place of a tenant whose settings panic is free again.
#[test]
fn settings_that_panic_leave_no_room() {
    runtime(2).block_on(guarded(async {
        let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
        let layer = by_header(&scheduler, 1).on_tenant(|name, group| {
            assert_ne!(name, "bad");
            group
        });
        assert!(ask(&layer, "bad").await.unwrap_err().is_panic());
        assert_eq!(ask(&layer, "good").await.unwrap(), "web/good");
        scheduler.shutdown().await;
    }));
}

/// Those that are frozen inside of a poll have no short turns, so that a lock of theirs is theirs until the thaw.
#[test]
fn a_tenant_that_stands_in_the_table_keeps_others_waiting() {
    runtime(2).block_on(guarded(async {
        let builder = Scheduler::builder().vcpus(2).preempt(Preempt::default());
        let scheduler = builder.build().unwrap();
        let layer = by_header(&scheduler, 1_000).charge();
        let group = scheduler.group("standing").unwrap().create().unwrap();
        let (stop, asked) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        for _ in 0..2 {
            let (mut service, stop, asked) = (layer.layer(Whoami), stop.clone(), asked.clone());
            drop(group.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    drop(service.call(request("known")));
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        for round in 0..30 {
            let before = asked.load(Ordering::SeqCst);
            eventually("requests", || asked.load(Ordering::SeqCst) > before + 10).await;
            group.freeze_immediately().unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            let new = ask(&layer, &format!("new{round}"));
            let answer = tokio::time::timeout(LONG, new).await;
            group.thaw().unwrap();
            assert!(answer.is_ok(), "round {round}: a new tenant waits");
        }
        stop.store(true, Ordering::SeqCst);
        scheduler.shutdown().await;
    }));
}
