//! One implementation a mode: which runtimes exist, and where the victim's server and the hogs are spawned.
//!
//! The tokio modes serve with unmodified `axum::serve`. The Quotient modes have a choice, made by measurement (2 CPUs, one
//! worker, the victim alone, CPU time of the server process a request, best of 10 interleaved rounds):
//!
//! | how the victim is served | µs a request |
//! |---|---|
//! | `axum::serve` on plain tokio | 62.1 |
//! | accept loop and connections spawned in the victim's group | 64.5 |
//! | `axum::serve` on tokio, `GroupLayer` (isolate) spawns each handler in the victim's group | 66.8 |
//!
//! Beside the hogs all are fair. The connection loop is cheaper, and the victim's reading, parsing and writing is
//! scheduled and charged with its group instead of staying outside of it; so it is what the demo uses. A program that
//! cannot give up `axum::serve` pays the layer's few microseconds.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use quotient::{Cpus, Group, Preempt, Scheduler};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::hogs::{self, Counters};
use super::mode::Mode;
use super::protocol::GroupCpu;
use super::work;

/// Pause after a failed `accept`.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

/// What the hogs may use in `quotient-capped`, as a part of the workers' CPUs: little enough that the victim, sending as
/// fast as it can, keeps nine tenths of them with some room.
const HOG_CAP: f64 = 0.05;

/// What a host is built from.
pub struct Setup {
    /// Who runs, and under which scheduler.
    pub mode: Mode,
    /// tokio workers of each runtime.
    pub workers: u32,
    /// Tasks of the noisy neighbour, where the mode has one.
    pub hogs: u32,
    /// Where the tenants count what they do.
    pub counters: Arc<Counters>,
}

/// The running tenants of one mode. Dropping it stops them.
pub struct Host {
    tenants: Option<Tenants>,
    _runtimes: Vec<Runtime>,
}

/// The groups of the Quotient modes.
struct Tenants {
    victim: Group,
    hogs: Group,
    _scheduler: Scheduler,
}

impl Host {
    /// Starts the victim's server on `listener`, and the hogs if the mode has any.
    ///
    /// # Errors
    /// When a runtime cannot be built or the listener cannot be registered with it.
    pub fn start(setup: &Setup, listener: TcpListener) -> io::Result<Self> {
        match setup.mode {
            Mode::Alone | Mode::Tokio => Self::one_runtime(setup, listener),
            Mode::TwoRuntimes => Self::two_runtimes(setup, listener),
            Mode::QuotientAlone | Mode::Quotient | Mode::QuotientCapped => {
                Self::quotient(setup, listener)
            }
        }
    }

    /// What the groups' own clocks say, in the Quotient modes.
    pub fn group_cpu(&self) -> Option<GroupCpu> {
        let nanoseconds =
            |group: &Group| u64::try_from(group.cpu_time().as_nanos()).unwrap_or(u64::MAX);
        self.tenants.as_ref().map(|tenants| GroupCpu {
            victim_ns: nanoseconds(&tenants.victim),
            hogs_ns: nanoseconds(&tenants.hogs),
        })
    }

    fn one_runtime(setup: &Setup, listener: TcpListener) -> io::Result<Self> {
        let runtime = runtime(setup.workers, "shared")?;
        serve_on(&runtime, listener, router(&setup.counters))?;
        if setup.mode.has_hogs() {
            each_hog(setup, |hog| drop(runtime.spawn(hog)));
        }
        Ok(Self {
            tenants: None,
            _runtimes: vec![runtime],
        })
    }

    fn two_runtimes(setup: &Setup, listener: TcpListener) -> io::Result<Self> {
        let victim = runtime(setup.workers, "victim")?;
        let hogs = runtime(setup.workers, "hogs")?;
        serve_on(&victim, listener, router(&setup.counters))?;
        each_hog(setup, |hog| drop(hogs.spawn(hog)));
        Ok(Self {
            tenants: None,
            _runtimes: vec![victim, hogs],
        })
    }

    fn quotient(setup: &Setup, listener: TcpListener) -> io::Result<Self> {
        let runtime = runtime(setup.workers, "shared")?;
        let entered = runtime.enter();
        let scheduler = scheduler(setup.workers)?;
        let group = |path| {
            let builder = scheduler.group(path).map_err(io::Error::other)?;
            builder.weight(100).create().map_err(io::Error::other)
        };
        let (victim, hogs) = (group("tenants/victim")?, group("tenants/hogs")?);
        if setup.mode == Mode::QuotientCapped {
            let cap = Cpus(HOG_CAP * f64::from(setup.workers));
            hogs.set_max(cap).map_err(io::Error::other)?;
        }
        drop(victim.spawn(serve_in_group(
            registered(listener)?,
            router(&setup.counters),
        )));
        if setup.mode.has_hogs() {
            each_hog(setup, |hog| drop(hogs.spawn(hog)));
        }
        drop(entered);
        Ok(Self {
            tenants: Some(Tenants {
                victim,
                hogs,
                _scheduler: scheduler,
            }),
            _runtimes: vec![runtime],
        })
    }
}

/// A scheduler that preempts, where the platform can; elsewhere a hog that never returns keeps its worker for ever.
pub fn scheduler(workers: u32) -> io::Result<Scheduler> {
    let builder = Scheduler::builder().vcpus(workers as usize);
    let builder = if cfg!(target_os = "linux") {
        builder.preempt(Preempt::default())
    } else {
        builder
    };
    builder.build().map_err(io::Error::other)
}

/// A tokio runtime whose threads have that name.
pub fn runtime(workers: u32, name: &str) -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers as usize)
        .thread_name(name)
        .enable_all()
        .build()
}

/// The victim: one route that does the work of `work::summarise` on the request's body.
pub(super) fn router(counters: &Arc<Counters>) -> Router {
    Router::new()
        .route("/orders", post(answer))
        .with_state(Arc::clone(counters))
}

async fn answer(State(counters): State<Arc<Counters>>, body: Bytes) -> Response {
    let response = match work::summarise(&body) {
        Ok(summary) => ([("content-type", "application/json")], summary).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    counters.requests.fetch_add(1, Ordering::Relaxed);
    response
}

/// The listener, registered with the current tokio runtime.
pub fn registered(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// A response must not wait for the client's delayed acknowledgement. Failure costs latency only.
pub fn send_at_once(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
}

/// Unmodified `axum::serve`: it spawns every connection with `tokio::spawn`.
fn serve_on(runtime: &Runtime, listener: TcpListener, router: Router) -> io::Result<()> {
    let _entered = runtime.enter();
    let listener = registered(listener)?.tap_io(|stream| send_at_once(stream));
    runtime.spawn(async move { axum::serve(listener, router).await });
    Ok(())
}

/// The whole server as tasks of one group: connections inherit the group of the loop that accepts them.
pub(super) async fn serve_in_group(listener: tokio::net::TcpListener, router: Router) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                send_at_once(&stream);
                let service = TowerToHyperService::new(router.clone());
                let connection = http1::Builder::new();
                // A connection's error is its client's business: the client reports it.
                drop(quotient::spawn(
                    connection.serve_connection(TokioIo::new(stream), service),
                ));
            }
            // Out of descriptors, most likely: give connections time to close.
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

/// Makes every hog of the set-up and hands it to `spawn`.
fn each_hog(setup: &Setup, spawn: impl Fn(hogs::Hog)) {
    for number in 0..setup.hogs {
        let poll_length = hogs::poll_length(number, setup.hogs);
        spawn(Box::pin(hogs::hog(
            number,
            poll_length,
            Arc::clone(&setup.counters),
        )));
    }
}
