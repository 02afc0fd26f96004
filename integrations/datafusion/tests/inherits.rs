//! Hazards: what a query spawns leaves its group, outlives it, loses its output or its panic, or another tracer is lost. One tracer a
//! process: these tests share it.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use datafusion_common_runtime::{JoinSet, JoinSetTracer, SpawnedTask};
use futures::future::BoxFuture;
use quotient::{Group, Scheduler};
use quotient_datafusion::{Tenant, install, install_over};

/// Another tracer: it counts.
struct Previous;

static FUTURES: AtomicUsize = AtomicUsize::new(0);
static JOBS: AtomicUsize = AtomicUsize::new(0);

type Erased = Box<dyn Any + Send>;

impl JoinSetTracer for Previous {
    fn trace_future(&self, future: BoxFuture<'static, Erased>) -> BoxFuture<'static, Erased> {
        FUTURES.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            // Inside the group's polls.
            assert!(Group::current().is_some_and(|group| group.path().starts_with("tenants/")));
            future.await
        })
    }

    fn trace_block(
        &self,
        job: Box<dyn FnOnce() -> Erased + Send>,
    ) -> Box<dyn FnOnce() -> Erased + Send> {
        JOBS.fetch_add(1, Ordering::SeqCst);
        job
    }
}

fn installed() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| install_over(&Previous).unwrap());
}

fn here() -> String {
    Group::current().map_or("nobody".into(), |group| group.path().to_owned())
}

async fn in_tenant<T: Send + 'static>(query: impl Future<Output = T> + Send + 'static) -> T {
    installed();
    let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
    let group = scheduler.group("tenants/acme").unwrap().create().unwrap();
    let session = Tenant::of(&group);
    assert_eq!(session.group().path(), "tenants/acme");
    let output = tokio::time::timeout(Duration::from_secs(120), session.spawn(query));
    let output = output.await.expect("hangs").unwrap();
    scheduler.shutdown().await;
    output
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_query_spawns_leaves_its_group() {
    let (before, jobs_before) = (FUTURES.load(Ordering::SeqCst), JOBS.load(Ordering::SeqCst));
    let paths = in_tenant(async {
        let mut set = JoinSet::new();
        set.spawn(async { here() });
        set.spawn(async { SpawnedTask::spawn(async { here() }).await.unwrap() });
        set.spawn_blocking(here);
        set.join_all().await
    });
    assert_eq!(paths.await, ["tenants/acme"; 3]);
    assert!(FUTURES.load(Ordering::SeqCst) >= before + 3);
    assert!(JOBS.load(Ordering::SeqCst) > jobs_before);
    assert!(install().is_err(), "there is one already");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_partitions_is_seen_by_nobody() {
    let seen = in_tenant(async {
        let tasks = (0..4).map(|_| {
            SpawnedTask::spawn(async {
                let begun = std::time::Instant::now();
                let mut sum = 0_u64;
                while begun.elapsed() < Duration::from_millis(10) {
                    sum = std::hint::black_box(sum.wrapping_mul(31) ^ 1);
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        for task in tasks {
            task.await.unwrap();
        }
        Group::current().unwrap().stats().polls
    });
    assert!(seen.await > 4, "the partitions' polls are the group's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panics_of_partitions_are_lost() {
    let payload = in_tenant(async {
        let error = SpawnedTask::spawn(async { panic!("expected") })
            .await
            .unwrap_err();
        error
            .into_panic()
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
    });
    assert_eq!(payload.await.as_deref(), Some("expected"));
    let payload = in_tenant(async {
        let mut set = JoinSet::new();
        set.spawn_blocking(|| panic!("expected"));
        let error = set.join_next().await.unwrap().unwrap_err();
        error
            .into_panic()
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
    });
    assert_eq!(payload.await.as_deref(), Some("expected"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_outlive_their_query() {
    struct Gone(Arc<AtomicUsize>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let gone: Arc<AtomicUsize> = Arc::default();
    let seen = gone.clone();
    in_tenant(async move {
        let group = Group::current().unwrap();
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let guard = Gone(gone.clone());
                SpawnedTask::spawn(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                })
            })
            .collect();
        drop(tasks);
        while group.stats().tasks > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(seen.load(Ordering::SeqCst), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_full_hangs_the_query() {
    let words = in_tenant(async {
        let group = Group::current()
            .unwrap()
            .child("full")
            .tasks_max(1)
            .create()
            .unwrap();
        let query = group.spawn(async { SpawnedTask::spawn(async { 1 }).await.unwrap_err() });
        let error = query.await.unwrap();
        error.into_panic().downcast_ref::<String>().cloned()
    });
    assert!(words.await.unwrap().starts_with("a task of a query: "));
}
