//! One implementation a mode: which runtimes exist, and where the victim's server and the hogs are spawned.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use tokio::runtime::Runtime;

use super::hogs::{self, Counters};
use super::mode::Mode;
use super::work;

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
    _runtimes: Vec<Runtime>,
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
        }
    }

    fn one_runtime(setup: &Setup, listener: TcpListener) -> io::Result<Self> {
        let runtime = runtime(setup.workers, "shared")?;
        serve_on(&runtime, listener, router(&setup.counters))?;
        if setup.mode.has_hogs() {
            spawn_hogs_on(&runtime, setup);
        }
        Ok(Self {
            _runtimes: vec![runtime],
        })
    }

    fn two_runtimes(setup: &Setup, listener: TcpListener) -> io::Result<Self> {
        let victim = runtime(setup.workers, "victim")?;
        let hogs = runtime(setup.workers, "hogs")?;
        serve_on(&victim, listener, router(&setup.counters))?;
        spawn_hogs_on(&hogs, setup);
        Ok(Self {
            _runtimes: vec![victim, hogs],
        })
    }
}

fn runtime(workers: u32, name: &str) -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers as usize)
        .thread_name(name)
        .enable_all()
        .build()
}

/// The victim: one route that does the work of `work::summarise` on the request's body.
fn router(counters: &Arc<Counters>) -> Router {
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

/// Unmodified `axum::serve`: it spawns every connection with `tokio::spawn`.
fn serve_on(runtime: &Runtime, listener: TcpListener, router: Router) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let _entered = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?.tap_io(|stream| {
        // A response must not wait for the client's delayed acknowledgement. Failure costs latency only.
        let _ = stream.set_nodelay(true);
    });
    runtime.spawn(async move { axum::serve(listener, router).await });
    Ok(())
}

fn spawn_hogs_on(runtime: &Runtime, setup: &Setup) {
    for number in 0..setup.hogs {
        let counters = Arc::clone(&setup.counters);
        let poll_length = hogs::poll_length(number, setup.hogs);
        runtime.spawn(async move { hogs::hog(number, poll_length, &counters).await });
    }
}
