//! The victim: TCP echo on four connections of 250 requests a second each, open loop. A latency counts from when the request was to be
//! sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient_validation::machine::stolen;

use super::Hogged;
use super::load::{Hogs, Window, windows};
use super::mode::Mode;
use super::row::{About, Row};
use super::sides::{CAP, Missing, Plan, Sides};
use crate::failure::Failure;

/// Connections of the victim, and the time between two requests on each.
const CONNECTIONS: u64 = 4;
const BETWEEN_REQUESTS: Duration = Duration::from_millis(4);
/// How long hogs run before anything is measured.
pub const WARM_UP: Duration = Duration::from_millis(200);
/// An unanswered request ends its connection after this.
const PATIENCE: Duration = Duration::from_secs(2);

/// One connection's requests; the latencies in microseconds.
fn client(address: SocketAddr, start: Instant, requests: u32) -> Vec<u64> {
    let mut latencies = Vec::new();
    let Ok(mut stream) = TcpStream::connect(address) else {
        return latencies;
    };
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let end = start + BETWEEN_REQUESTS * requests + PATIENCE;
    for request in 0..requests {
        let due = start + BETWEEN_REQUESTS * request;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut message = [1_u8; 64];
        let answered = stream
            .write_all(&message)
            .and_then(|()| stream.read_exact(&mut message));
        if answered.is_err() || Instant::now() > end {
            break;
        }
        latencies.push(u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    latencies
}

/// Measures one mode for `seconds`.
///
/// # Errors
/// When a runtime, a scheduler or a socket cannot be had. What this machine does not have is a row that says so.
pub fn measure(hogged: Hogged, round: u64, mode: Mode, seconds: f64) -> Result<Row, Failure> {
    let plan = Plan {
        weight: 100,
        limit: mode.is_capped().then_some(CAP),
    };
    let mut row = Row {
        about: About::Echo,
        kind: hogged.kind,
        setting: None,
        vcpus: hogged.workers,
        round,
        hogs: hogged.hogs,
        poll_ms: hogged.poll_ms(),
        mode,
        answered_ratio: None,
        p50_us: None,
        p99_us: None,
        max_us: None,
        hog_cpus: None,
        share: None,
        window_worst_ratio: None,
        steal_ratio: 0.0,
        not_available: None,
    };
    let sides = match Sides::new(mode, hogged.kind, hogged.workers, hogged.workers, &[plan]) {
        Ok(sides) => sides,
        Err(Missing::Failed(failure)) => return Err(failure),
        Err(Missing::Unavailable(reason)) => {
            row.not_available = Some(reason);
            return Ok(row);
        }
    };
    let each = if mode == Mode::Alone { 0 } else { hogged.hogs };
    let hogs = Hogs::new(1, each, hogged.poll);
    let no_socket = || Failure::during("cannot open a socket");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(no_socket())?;
    let address = listener.local_addr().map_err(no_socket())?;
    sides.serve(listener)?;
    for hog in hogs.of(0) {
        sides.spawn_hog(hogged.kind, 0, hog.clone());
    }
    std::thread::sleep(WARM_UP);
    let requests = (seconds / BETWEEN_REQUESTS.as_secs_f64()) as u32;
    let (started, before, stolen_before) = (Instant::now(), hogs.used()[0], stolen());
    let done = AtomicBool::new(false);
    let (latencies, windows) = std::thread::scope(|scope| {
        let seen = scope.spawn(|| windows(&hogs, || !done.load(Ordering::Relaxed)));
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|index| {
                let start = started + Duration::from_millis(index);
                scope.spawn(move || client(address, start, requests))
            })
            .collect();
        let latencies: Result<Vec<_>, _> =
            clients.into_iter().map(|client| client.join()).collect();
        done.store(true, Ordering::Relaxed);
        (latencies, seen.join())
    });
    let panicked = |_| Failure::Run("a client panicked".into());
    let mut latencies = latencies.map_err(panicked)?.concat();
    let windows = windows.map_err(panicked)?;
    let wall = started.elapsed().as_secs_f64();
    let used = hogs.used()[0].saturating_sub(before) as f64 / 1e9;
    let stolen = stolen().saturating_sub(stolen_before).as_secs_f64();
    hogs.stop();
    sides.end();
    latencies.sort_unstable();
    let at = |part: f64| {
        let last = latencies.len().saturating_sub(1) as f64;
        Some(latencies.get((last * part) as usize).copied().unwrap_or(0))
    };
    row.answered_ratio = Some(latencies.len() as f64 / (f64::from(requests) * CONNECTIONS as f64));
    (row.p50_us, row.p99_us, row.max_us) = (at(0.5), at(0.99), at(1.0));
    row.hog_cpus = Some(used / wall);
    row.steal_ratio = stolen / wall / hogged.workers as f64;
    if each > 0 {
        (row.share, row.window_worst_ratio) = of_due(mode, used / wall, hogged.workers, &windows);
    }
    Ok(row)
}

/// What the hogs had of their due, and their worst window.
fn of_due(mode: Mode, cpus: f64, workers: usize, windows: &[Window]) -> (Option<f64>, Option<f64>) {
    let rates = windows
        .iter()
        .map(|window| window.used[0] as f64 / 1e9 / window.wall);
    if mode.is_capped() {
        let due = CAP.0.as_secs_f64() / CAP.1.as_secs_f64();
        let fullest = rates.reduce(f64::max).map(|rate| rate / due);
        (Some(cpus / due), fullest)
    } else {
        let leanest = rates.reduce(f64::min).map(|rate| rate / cpus);
        (Some(cpus / workers as f64), leanest)
    }
}
