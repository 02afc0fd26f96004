//! The scene's server: one route on one tokio runtime, with a group a tenant or without groups.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Request;
use axum::routing::post;
use axum::serve::ListenerExt;
use quotient::Group;
use quotient::tower::GroupLayer;

use super::{HEADER, TENANTS, weight, work};
use crate::cli::TenantsServerArguments;
use crate::demo::clock::{SharedMicros, thread_cpu};
use crate::demo::host::{registered, runtime, scheduler, send_at_once};
use crate::demo::mode::Mode;
use crate::demo::protocol::{ServerLine, TenantSample};
use crate::demo::server::{listen, send};
use crate::demo::work as documents;
use crate::failure::Failure;

/// CPU time that each tenant's requests have used. Relaxed counters, read by the sampler only. Unit: nanoseconds.
type Used = Arc<Vec<AtomicU64>>;

/// Serves until standard input closes. Prints the port, then a sample every `--sample-ms`.
///
/// # Errors
/// When the port cannot be bound, the runtime cannot be built, or nobody reads the samples any more.
pub fn run(arguments: &TenantsServerArguments) -> Result<(), Failure> {
    let (listener, port) = listen(arguments.workers)?;
    let used: Used = Arc::new((0..TENANTS).map(|_| AtomicU64::new(0)).collect());
    let host = serve(arguments, listener, &used);
    let _host = host.map_err(Failure::during("server: cannot start"))?;
    send(&ServerLine::Listening { port })?;
    loop {
        let cpu_ns = used.iter().map(|used| used.load(Ordering::Relaxed));
        send(&ServerLine::Tenants(TenantSample {
            at: SharedMicros::now(),
            cpu_ns: cpu_ns.collect(),
        }))?;
        thread::sleep(Duration::from_millis(arguments.sample_ms));
    }
}

/// What must live as long as the server.
struct Host {
    _scheduler: Option<quotient::Scheduler>,
    _runtime: tokio::runtime::Runtime,
}

fn serve(
    arguments: &TenantsServerArguments,
    listener: TcpListener,
    used: &Used,
) -> io::Result<Host> {
    let runtime = runtime(arguments.workers, "shared")?;
    let entered = runtime.enter();
    let router = Router::new()
        .route("/report", post(answer))
        .with_state(Arc::clone(used));
    let (router, scheduler) = if arguments.mode == Mode::Quotient {
        let scheduler = scheduler(arguments.workers)?;
        let create = |tenant: usize| {
            let builder = scheduler.group(&format!("tenants/t{tenant:02}"))?;
            builder.weight(weight(tenant)).create()
        };
        let groups: Result<Vec<Group>, _> = (0..TENANTS).map(create).collect();
        let groups = Arc::new(groups.map_err(io::Error::other)?);
        let strangers = scheduler.group("default").and_then(|group| group.create());
        let strangers = strangers.map_err(io::Error::other)?;
        let select = move |request: &Request<axum::body::Body>| {
            let group = tenant_of(request.headers()).and_then(|tenant| groups.get(tenant));
            group.unwrap_or(&strangers).clone()
        };
        (router.layer(GroupLayer::by(select)), Some(scheduler))
    } else {
        (router, None)
    };
    let listener = registered(listener)?.tap_io(|stream| send_at_once(stream));
    runtime.spawn(async move { axum::serve(listener, router).await });
    drop(entered);
    Ok(Host {
        _scheduler: scheduler,
        _runtime: runtime,
    })
}

/// The number in the header.
fn tenant_of(headers: &HeaderMap) -> Option<usize> {
    headers.get(HEADER)?.to_str().ok()?.parse().ok()
}

/// One poll of as much CPU time as the tenant's requests take.
async fn answer(State(used): State<Used>, headers: HeaderMap) -> &'static str {
    let Some(tenant) = tenant_of(&headers).filter(|tenant| *tenant < TENANTS) else {
        return "unknown tenant\n";
    };
    let document = documents::document(1, documents::ORDERS_PER_HOG_DOCUMENT);
    let started = thread_cpu();
    let mut booked = started;
    while booked.saturating_sub(started) < work(tenant) {
        // The document is our own, so it parses; black_box keeps the optimiser from noticing.
        let _ = std::hint::black_box(documents::summarise(std::hint::black_box(&document)));
        let now = thread_cpu();
        let step = u64::try_from(now.saturating_sub(booked).as_nanos()).unwrap_or(u64::MAX);
        used[tenant].fetch_add(step, Ordering::Relaxed);
        booked = now;
    }
    "done\n"
}
