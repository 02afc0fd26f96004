//! Ends that take too long, and requests that wait too long: bounded, and said who is at fault.
#![cfg(not(loom))]

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{eventually, guarded, on_every_host, runtime, scheduler};

/// A bound on a wait that must end, and ends at once as a rule.
const LONG: Duration = Duration::from_secs(120);
/// A wait that is to run out.
const SHORT: Duration = Duration::from_millis(20);

struct StopsOnDrop(Arc<AtomicBool>);

impl Drop for StopsOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Counts its drop at the end of that.
struct SlowDrop(Arc<AtomicUsize>);

impl Drop for SlowDrop {
    fn drop(&mut self) {
        std::thread::sleep(SHORT);
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Where a poll that does not return leaves the test a thread.
fn with_threads_of_its_own<Fut: Future<Output = ()>>(test: impl Fn(usize) -> Fut) {
    for workers in [1, 2] {
        runtime(workers).block_on(guarded(test(workers)));
    }
}

/// A task that computes until it is told to stop, and does not yield.
fn stuck(group: &quotient::Group) -> (Arc<AtomicBool>, u32) {
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(AtomicBool::new(false));
    let (told, begins) = (stop.clone(), begun.clone());
    let line = line!() + 1;
    group.spawn(async move {
        begins.store(true, Ordering::SeqCst);
        while !told.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(100));
        }
    });
    while !begun.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_micros(100));
    }
    (stop, line)
}

#[test]
fn a_shutdown_that_cannot_end_says_who_is_still_polling() {
    runtime(2).block_on(guarded(async {
        let (scheduler, group) = scheduler(2);
        let (stop, line) = stuck(&group);
        let unfinished = scheduler.shutdown_timeout(SHORT).await.unwrap_err();
        assert_eq!(unfinished.tasks, 1, "{unfinished}");
        let polling = &unfinished.polling[0];
        assert_eq!(polling.group, "tenants/acme");
        assert_eq!(
            (polling.location.file(), polling.location.line()),
            (file!(), line)
        );
        assert!(
            unfinished.to_string().contains("tenants/acme"),
            "{unfinished}"
        );
        stop.store(true, Ordering::SeqCst);
        scheduler.shutdown_timeout(LONG).await.unwrap();
        scheduler.shutdown_timeout(Duration::ZERO).await.unwrap();
    }));
}

#[test]
fn a_shutdown_within_its_time_needs_no_timer_of_the_host() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (scheduler, group) = scheduler(1);
        group.spawn(std::future::pending::<()>());
        let inner = scheduler.clone();
        let inside = group.spawn(async move { inner.shutdown_timeout(LONG).await });
        // Called by a task it would wait for itself: it reports at once.
        let _ = inside.await;
        scheduler.shutdown_timeout(LONG).await.unwrap();
    });
}

#[test]
fn a_kill_says_what_it_could_not_end() {
    runtime(2).block_on(guarded(async {
        let (scheduler, group) = scheduler(2);
        for _ in 0..5 {
            group.spawn(std::future::pending::<()>());
        }
        assert_eq!(group.kill_within(LONG).await.unwrap(), None);
        let (stop, line) = stuck(&group);
        let unfinished = group.kill_within(SHORT).await.unwrap().unwrap();
        assert_eq!((unfinished.tasks, unfinished.polling.len()), (1, 1));
        assert_eq!(unfinished.polling[0].location.line(), line);
        stop.store(true, Ordering::SeqCst);
        eventually("it ends", || scheduler.tasks() == 0).await;
        assert_eq!(group.kill_within(Duration::ZERO).await.unwrap(), None);
        scheduler.shutdown().await;
    }));
}

/// The task was killed before, and its poll runs on: `None` would say that it has ended.
#[test]
fn a_second_kill_takes_the_killed_for_ended() {
    with_threads_of_its_own(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let outer = scheduler.find("tenants").unwrap();
        for first in 0..4 {
            let (stop, line) = stuck(&group);
            // Where an assertion fails, too, or the runtime's end would wait for it.
            let stop = StopsOnDrop(stop);
            match first {
                0 => group.kill().unwrap(),
                1 => group.kill_immediately().unwrap(),
                2 => assert!(group.kill_within(SHORT).await.unwrap().is_some()),
                _ => outer.kill().unwrap(),
            }
            for group in [&group, &outer, &group] {
                let unfinished = group.kill_within(SHORT).await.unwrap();
                let unfinished = unfinished.expect("its poll runs");
                assert_eq!((unfinished.tasks, unfinished.polling.len()), (1, 1));
                assert_eq!(unfinished.polling[0].location.line(), line);
                let said = unfinished.to_string();
                assert!(said.starts_with("1 task has not ended"), "{said}");
            }
            drop(stop);
            assert_eq!(group.kill_within(LONG).await.unwrap(), None);
            assert_eq!(scheduler.find("tenants/acme").unwrap().stats().tasks, 0);
        }
        scheduler.shutdown().await;
    });
}

/// A killed task spawns in the poll that it is in: what it spawns is killed, too, and listed only after the kill.
#[test]
fn a_wait_for_killed_tasks_leaves_out_what_they_spawned() {
    runtime(2).block_on(guarded(async {
        let (scheduler, group) = scheduler(2);
        let dropped = Arc::new(AtomicUsize::new(0));
        let (killed, begun) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (told, begins) = (killed.clone(), begun.clone());
        let slow = SlowDrop(dropped.clone());
        group.spawn(async move {
            begins.store(true, Ordering::SeqCst);
            while !told.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_micros(100));
            }
            drop(quotient::spawn(async move {
                let _slow = slow;
                std::future::pending::<()>().await;
            }));
        });
        eventually("it runs", || begun.load(Ordering::SeqCst)).await;
        // The first poll kills; the task goes on only then.
        let ended = tokio::join!(group.kill_within(LONG), async {
            killed.store(true, Ordering::SeqCst);
        });
        assert_eq!(ended.0.unwrap(), None);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        scheduler.shutdown().await;
    }));
}

#[test]
fn a_wait_for_killed_tasks_ends_with_the_scheduler() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        group.spawn(std::future::pending::<()>());
        let (killing, ()) = tokio::join!(group.kill_within(LONG), scheduler.shutdown());
        assert_eq!(killing.unwrap(), None);
        assert_eq!(group.kill_within(LONG).await.unwrap(), None);
    });
}

#[cfg(feature = "tower")]
mod requests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http::{Request, StatusCode};
    use quotient::tower::GroupLayer;
    use tower_layer::Layer;
    use tower_service::Service;

    use super::*;

    /// Counts its calls.
    #[derive(Clone, Default)]
    struct Count(Arc<AtomicUsize>);

    impl Service<Request<()>> for Count {
        type Response = http::Response<axum::body::Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            self.0.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(http::Response::new(axum::body::Body::from("done"))) })
        }
    }

    /// The requests of a group that gets no processor are refused in time, and never started later; others are not affected.
    #[test]
    fn a_request_that_waits_too_long_is_refused_and_never_starts() {
        for charge in [false, true] {
            on_every_host(|vcpus| async move {
                let (scheduler, _) = scheduler(vcpus);
                let parent = scheduler.group("slow").unwrap();
                let parent = parent.queue_wait_max(SHORT).create().unwrap();
                let group = parent.child("inner").create().unwrap();
                let chosen = group.clone();
                let layer = GroupLayer::by(move |_: &Request<()>| chosen.clone());
                let layer = if charge { layer.charge() } else { layer };
                let calls = Count::default();
                let mut service = layer.layer(calls.clone());
                parent.freeze().unwrap();
                let waiting: Vec<_> = (0..10).map(|_| service.call(Request::new(()))).collect();
                for request in waiting {
                    // On a connection's task.
                    let answer = tokio::spawn(request).await.unwrap().unwrap();
                    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
                    assert_eq!(answer.headers()["retry-after"], "1");
                }
                parent.thaw().unwrap();
                eventually("nothing is left", || scheduler.tasks() == 0).await;
                assert_eq!(calls.0.load(Ordering::SeqCst), 0, "a refused request ran");
                assert_eq!(group.stats().losses.refused_requests, 10);
                // Lifted, a request may wait for as long as it takes.
                scheduler
                    .group("slow")
                    .unwrap()
                    .queue_wait_max(Duration::MAX)
                    .create()
                    .unwrap();
                parent.freeze().unwrap();
                let patient = tokio::spawn(service.call(Request::new(())));
                tokio::time::sleep(2 * SHORT).await;
                assert!(!patient.is_finished());
                parent.thaw().unwrap();
                assert_eq!(patient.await.unwrap().unwrap().status(), StatusCode::OK);
                scheduler.shutdown().await;
            });
        }
    }
}
