//! Whatever is refused or dropped is counted once, for its group and for the scheduler, under its own name, and said once a group: one row
//! for each way to lose something.
#![cfg(all(feature = "tower", feature = "hyper", not(loom)))]

mod common;

use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use common::{eventually, guarded, runtime};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use quotient::hyper::GroupExecutor;
use quotient::tower::GroupLayer;
use quotient::{Group, JoinSet, Leftover, Losses, Scheduler};
use tower_layer::Layer;
use tower_service::Service;

/// How many are lost in each row, so that all but the first are silent.
const EACH: u64 = 3;

type Done = Pin<Box<dyn Future<Output = ()>>>;

/// One way to lose [`EACH`] of something.
struct Row {
    name: &'static str,
    lose: fn(Scheduler, Group) -> Done,
    /// What is counted.
    expected: fn(&mut Losses),
    /// What is said, of each kind once.
    said: &'static [&'static str],
}

const REFUSED: &str = "a task was refused";
const KILLED: &str = "tasks were killed";
const DROPPED: &str = "tasks were dropped";
const REQUEST: &str = "a request was refused";
const BODY: &str = "the body of an answer was cut off";
const CONNECTION: &str = "a connection was closed";
const UNPLACED: &str = "a request of a tenant without a group";

/// A task that lives until somebody ends it.
fn live(group: &Group) {
    drop(group.try_spawn(pending::<()>()).expect("is accepted"));
}

/// Limits the group so that it takes nobody.
async fn fill(scheduler: &Scheduler, group: &Group) {
    let group = scheduler.group(group.path()).unwrap();
    group.tasks_max(0).create().unwrap();
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

/// [`EACH`] bodies that are cut off by a kill.
async fn cut_bodies(group: Group, charge: bool) {
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
    group.kill().unwrap();
    for mut body in bodies {
        let end = std::future::poll_fn(|context| body.as_mut().poll_frame(context));
        assert!(end.await.unwrap().is_err());
    }
}

fn row(
    name: &'static str,
    lose: fn(Scheduler, Group) -> Done,
    expected: fn(&mut Losses),
    said: &'static [&'static str],
) -> Row {
    Row {
        name,
        lose,
        expected,
        said,
    }
}

fn rows() -> Vec<Row> {
    let mut rows = refused_tasks();
    rows.extend(killed_tasks());
    rows.extend(dropped_tasks());
    rows.extend(refused());
    rows.extend(unplaced());
    rows.extend(cut_off());
    rows
}

fn refused_tasks() -> Vec<Row> {
    vec![
        row(
            "spawns into a full group",
            |scheduler, group| {
                Box::pin(async move {
                    fill(&scheduler, &group).await;
                    assert!(group.try_spawn(async {}).is_err());
                    assert!(group.spawn(async {}).await.is_err());
                    let mut set = JoinSet::new();
                    set.spawn_in(&group, async {});
                    assert!(set.join_next().await.unwrap().is_err());
                })
            },
            |losses| losses.refused_tasks = EACH,
            &[REFUSED],
        ),
        row(
            "spawns into a group whose tasks wait for too long",
            |scheduler, group| {
                Box::pin(async move {
                    let bounded = scheduler.group(group.path()).unwrap();
                    bounded.queue_wait_max(Duration::ZERO).create().unwrap();
                    group.freeze().unwrap();
                    let waiting = group.try_spawn(async {}).unwrap();
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    for _ in 0..EACH {
                        assert!(group.try_spawn(async {}).is_err());
                    }
                    group.thaw().unwrap();
                    waiting.await.unwrap();
                })
            },
            |losses| losses.refused_tasks = EACH,
            &[REFUSED],
        ),
        row(
            "spawns of every kind into a removed group",
            |_, group| {
                Box::pin(async move {
                    group.remove(Leftover::Kill).unwrap();
                    assert!(group.try_spawn(async {}).is_err());
                    assert!(group.spawn_blocking(|| ()).await.is_err());
                    let local = tokio::task::LocalSet::new();
                    let refused = async { group.spawn_local(async {}).await };
                    assert!(local.run_until(refused).await.is_err());
                })
            },
            |losses| losses.refused_tasks = EACH,
            &[REFUSED],
        ),
        row(
            "spawns of every kind after the end of their scheduler",
            |scheduler, group| {
                Box::pin(async move {
                    scheduler.shutdown().await;
                    assert!(group.try_spawn(async {}).is_err());
                    assert!(group.spawn_blocking(|| ()).await.is_err());
                    let local = tokio::task::LocalSet::new();
                    let refused = async { group.spawn_local(async {}).await };
                    assert!(local.run_until(refused).await.is_err());
                })
            },
            |losses| losses.refused_tasks = EACH,
            &[REFUSED],
        ),
    ]
}

fn killed_tasks() -> Vec<Row> {
    vec![
        row(
            "tasks of a killed group",
            |_, group| {
                Box::pin(async move {
                    (0..EACH).for_each(|_| live(&group));
                    group.kill().unwrap();
                    group.kill().unwrap();
                })
            },
            |losses| losses.killed_tasks = EACH,
            &[KILLED],
        ),
        row(
            "tasks of a removed group",
            |_, group| {
                Box::pin(async move {
                    (0..EACH).for_each(|_| live(&group));
                    group.remove(Leftover::Kill).unwrap();
                })
            },
            |losses| losses.killed_tasks = EACH,
            &[KILLED],
        ),
        row(
            "tasks that the dead spawn",
            |_, group| {
                Box::pin(async move {
                    // Each spawns one in its destructor, which is dead with it.
                    struct Spawns(Group);
                    impl Drop for Spawns {
                        fn drop(&mut self) {
                            live(&self.0);
                        }
                    }
                    group.freeze().unwrap();
                    let spawns = Spawns(group.clone());
                    drop(group.spawn(async move {
                        let _spawns = spawns;
                        pending::<()>().await;
                    }));
                    live(&group);
                    group.kill().unwrap();
                })
            },
            |losses| losses.killed_tasks = EACH,
            &[KILLED],
        ),
    ]
}

fn dropped_tasks() -> Vec<Row> {
    vec![
        row(
            "tasks at the end of their scheduler",
            |scheduler, group| {
                Box::pin(async move {
                    (0..EACH).for_each(|_| live(&group));
                    scheduler.shutdown().await;
                    scheduler.shutdown().await;
                })
            },
            |losses| losses.dropped_tasks = EACH,
            &[DROPPED],
        ),
        row(
            "tasks at the end of their runtime",
            |_, group| {
                Box::pin(async move {
                    let lost = runtime(1);
                    let (scheduler, other) = lost.block_on_thread(|| {
                        let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
                        let other = scheduler.group("elsewhere").unwrap().create().unwrap();
                        (0..EACH).for_each(|_| live(&other));
                        (scheduler, other)
                    });
                    lost.shutdown_background();
                    let counted = || scheduler.losses().dropped_tasks == EACH;
                    eventually("it is counted", counted).await;
                    assert_eq!(other.stats().losses, scheduler.losses());
                    // The row's own group has lost nothing.
                    assert_eq!(group.stats().losses, Losses::default());
                })
            },
            |_| {},
            &[],
        ),
        row(
            "functions that the runtime drops",
            |_, group| {
                Box::pin(async move {
                    let ended = runtime(1);
                    let handle = ended.handle().clone();
                    ended.shutdown_background();
                    let refusing = std::thread::spawn(move || {
                        let _ended = handle.enter();
                        (0..EACH).for_each(|_| drop(group.spawn_blocking(|| ())));
                    });
                    refusing.join().unwrap();
                })
            },
            |losses| losses.dropped_tasks = EACH,
            &[DROPPED],
        ),
    ]
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

fn cut_off() -> Vec<Row> {
    vec![
        row(
            "requests of a killed group, with the tasks that handled them",
            |_, group| {
                Box::pin(async move {
                    refused_requests(group, false, |group| group.kill().unwrap()).await;
                })
            },
            |losses| {
                losses.refused_requests = EACH;
                losses.killed_tasks = EACH;
            },
            &[KILLED, REQUEST],
        ),
        row(
            "bodies of a killed group, with the tasks that computed them",
            |_, group| Box::pin(cut_bodies(group, false)),
            |losses| {
                losses.cut_bodies = EACH;
                losses.killed_tasks = EACH;
            },
            &[KILLED, BODY],
        ),
        row(
            "bodies of charged requests",
            |_, group| Box::pin(cut_bodies(group, true)),
            |losses| {
                losses.cut_bodies = EACH;
                losses.killed_tasks = EACH;
            },
            &[KILLED, BODY],
        ),
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

/// Work inside another runtime than the test's.
trait OnThread {
    fn block_on_thread<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T;
}

impl OnThread for tokio::runtime::Runtime {
    fn block_on_thread<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let _inside = self.enter();
                work()
            });
            inside.join().unwrap()
        })
    }
}

#[cfg(feature = "tracing")]
mod said {
    use std::sync::{Mutex, OnceLock};

    use tracing_subscriber::layer::SubscriberExt;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    struct Lines;

    struct Text(String);

    impl tracing::field::Visit for Text {
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
                let mut text = Text(String::new());
                event.record(&mut text);
                LINES.lock().unwrap().push(text.0);
            }
        }
    }

    pub fn listen() {
        static ONCE: OnceLock<()> = OnceLock::new();
        ONCE.get_or_init(|| {
            let subscriber = tracing_subscriber::registry().with(Lines);
            tracing::subscriber::set_global_default(subscriber).unwrap();
        });
    }

    /// What was said of the group.
    pub fn of(group: &str) -> Vec<String> {
        let lines = LINES.lock().unwrap();
        let of_group = format!("group={group:?} ");
        let said = lines.iter().filter(|line| line.contains(&of_group));
        said.cloned().collect()
    }
}

#[test]
fn what_is_lost_is_counted_once_and_said_once() {
    #[cfg(feature = "tracing")]
    said::listen();
    for (number, row) in rows().into_iter().enumerate() {
        runtime(2).block_on(guarded(async {
            let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
            let path = format!("row{number}");
            let group = scheduler.group(&path).unwrap().create().unwrap();
            (row.lose)(scheduler.clone(), group.clone()).await;
            let mut expected = Losses::default();
            (row.expected)(&mut expected);
            let counted = || group.stats().losses == expected && scheduler.losses() == expected;
            // What a destructor loses comes when the destructor runs.
            eventually(row.name, counted).await;
            scheduler.shutdown().await;
            assert_eq!(group.stats().losses, expected, "{}", row.name);
            assert_eq!(scheduler.losses(), expected, "{}", row.name);
            #[cfg(feature = "tracing")]
            {
                let lines = said::of(&path);
                assert_eq!(lines.len(), row.said.len(), "{}: {lines:?}", row.name);
                for kind in row.said {
                    let said = lines.iter().any(|line| line.contains(kind));
                    assert!(said, "{}: {kind:?} is not in {lines:?}", row.name);
                }
            }
            #[cfg(not(feature = "tracing"))]
            let _ = row.said;
        }));
    }
}
