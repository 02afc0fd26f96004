//! The scene's client: two connections a tenant, each of which sends its next request when it has the answer to the last one.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{CONNECTIONS, HEADER, TENANTS, WARM_UP};
use crate::cli::TenantsClientArguments;
use crate::demo::client::enter;
use crate::demo::clock::SharedMicros;
use crate::demo::latencies::Latencies;
use crate::demo::protocol::{self, ClientLine, TenantDone, TenantsDone};
use crate::failure::Failure;

/// What one tenant has seen.
type Seen = Arc<Mutex<Latencies>>;

/// Sends for `--milliseconds`, prints what each tenant got, and ends.
///
/// # Errors
/// When the server cannot be reached, answers wrongly, or closes a connection.
pub fn run(arguments: &TenantsClientArguments) -> Result<(), Failure> {
    enter(arguments.server_cpus, arguments.address, all(arguments))
}

async fn all(arguments: &TenantsClientArguments) -> io::Result<()> {
    let length = Duration::from_millis(arguments.milliseconds);
    let begin = Instant::now() + WARM_UP;
    let mut tenants = Vec::new();
    let mut loops = Vec::new();
    for tenant in 0..TENANTS {
        let seen: Seen = Arc::new(Mutex::new(Latencies::new(length, length)));
        for _ in 0..CONNECTIONS {
            let seen = Arc::clone(&seen);
            let one = connection(arguments.address, tenant, begin, begin + length, seen);
            loops.push(tokio::spawn(one));
        }
        tenants.push(seen);
    }
    tokio::time::sleep_until(begin.into()).await;
    let started = SharedMicros::now();
    tokio::time::sleep_until((begin + length).into()).await;
    let ended = SharedMicros::now();
    for running in loops {
        if running.is_finished() {
            running.await.map_err(io::Error::other)??;
        } else {
            running.abort();
        }
    }
    let tenants = tenants.iter().map(|seen| {
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        TenantDone {
            completed: seen.count(),
            p99_us: seen.p99_us(),
        }
    });
    protocol::send(&ClientLine::Tenants(TenantsDone {
        started,
        ended,
        tenants: tenants.collect(),
    }))
}

async fn connection(
    address: SocketAddr,
    tenant: usize,
    begin: Instant,
    end: Instant,
    seen: Seen,
) -> io::Result<()> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // The driver's error, if any, is also the error of the request in flight.
    tokio::spawn(driver);
    while Instant::now() < end {
        let request = Request::post("/report")
            .header("host", address.to_string())
            .header(HEADER, tenant.to_string())
            .body(Empty::<Bytes>::new())
            .map_err(io::Error::other)?;
        let sent = Instant::now();
        sender.ready().await.map_err(io::Error::other)?;
        let response = sender.send_request(request).await;
        let response = response.map_err(io::Error::other)?;
        let status = response.status();
        let body = response.into_body().collect().await;
        let body = body.map_err(io::Error::other)?.to_bytes();
        if status != StatusCode::OK || body != "done\n" {
            return Err(io::Error::other(format!(
                "wrong answer from the server: status {status}, {} bytes",
                body.len()
            )));
        }
        let answered = Instant::now();
        if sent >= begin {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.record(sent - begin, answered - begin);
        }
    }
    Ok(())
}
