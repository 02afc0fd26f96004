//! The client process: warm-up, closed loop, open loop, over keep-alive connections on one thread.
//!
//! Open loop: every connection takes the next intended start from one shared schedule, waits for it if it lies ahead,
//! and sends. Latency counts from the intended start, so that a request which had to wait for a free connection shows
//! that wait (no coordinated omission). What is unanswered at the end counts with the time it has waited so far.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use quotient_validation::machine::Threads;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::arrivals::Arrivals;
use super::child;
use super::clock::SharedMicros;
use super::confine;
use super::latencies::Latencies;
use super::protocol::{self, Capacity, ClientLine, ClientThreads, Open};
use super::timer::PreciseTimer;
use super::work;
use crate::cli::ClientArguments;
use crate::failure::Failure;

/// Different documents that the requests go through in turn.
const DOCUMENTS: u64 = 16;
/// Upper bound on the requests of a closed loop, whatever its length and the server's speed.
const CLOSED_LOOP_REQUESTS_MAX: u64 = 50_000_000;
/// How long after the last intended start the client waits for answers.
const GRACE: Duration = Duration::from_secs(1);
/// How long after the end of a closed loop the client waits for answers. A server that has stopped gives none.
const CLOSED_GRACE: Duration = Duration::from_millis(250);
/// Time between two progress lines.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// A request's body and the answer that it must get.
struct Exchange {
    document: Bytes,
    answer: Bytes,
}

/// Runs all phases against the server at `--address`, prints the results and ends.
///
/// # Errors
/// When the server cannot be reached, answers wrongly, or closes a connection.
pub fn run(arguments: &ClientArguments) -> Result<(), Failure> {
    enter(arguments.server_cpus, arguments.address, phases(arguments))
}

/// What a client process of the demo does first: off the server's CPUs, an end with its parent; then `work`, on a runtime of this thread.
///
/// # Errors
/// When a step fails, `work` does, or `address` is not this machine.
pub(super) fn enter(
    server_cpus: u32,
    address: SocketAddr,
    work: impl Future<Output = io::Result<()>>,
) -> Result<(), Failure> {
    // First of all: threads inherit it.
    confine::off_last(server_cpus).map_err(Failure::during("client: cannot choose its CPUs"))?;
    child::exit_with_parent()?;
    if !address.ip().is_loopback() {
        return Err(Failure::Usage(format!(
            "--address {address}: must be a loopback address"
        )));
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::during("client: cannot build its runtime"))?
        .block_on(work)
        .map_err(Failure::during("client"))
}

async fn phases(arguments: &ClientArguments) -> io::Result<()> {
    let exchanges = Arc::new(exchanges(arguments.seed)?);
    let mut connections = Vec::new();
    for index in 0..arguments.connections {
        connections.push(
            Connection::open(arguments.address, index as usize, Arc::clone(&exchanges)).await?,
        );
    }
    if arguments.warm_up_ms > 0 {
        let length = Duration::from_millis(arguments.warm_up_ms);
        closed_loop(&mut connections, length).await?;
        replace_lost(&mut connections, arguments, &exchanges).await?;
    }
    if arguments.capacity_ms > 0 {
        let length = Duration::from_millis(arguments.capacity_ms);
        let capacity = closed_loop(&mut connections, length).await?;
        replace_lost(&mut connections, arguments, &exchanges).await?;
        protocol::send(&ClientLine::Capacity(capacity))?;
    }
    if arguments.open_ms > 0 {
        let open = open_loop(connections, arguments).await?;
        protocol::send(&ClientLine::Open(open))?;
    }
    Ok(())
}

/// New connections in the place of those that had no answer at the end of a closed loop.
async fn replace_lost(
    connections: &mut Vec<Connection>,
    arguments: &ClientArguments,
    exchanges: &Arc<Vec<Exchange>>,
) -> io::Result<()> {
    for index in connections.len()..arguments.connections as usize {
        let exchanges = Arc::clone(exchanges);
        connections.push(Connection::open(arguments.address, index, exchanges).await?);
    }
    Ok(())
}

fn exchanges(seed: u64) -> io::Result<Vec<Exchange>> {
    (0..DOCUMENTS)
        .map(|number| {
            let document = work::document(seed.wrapping_add(number), work::ORDERS_PER_REQUEST);
            let answer = work::summarise(&document)?;
            Ok(Exchange {
                document: document.into(),
                answer: answer.into(),
            })
        })
        .collect()
}

/// One keep-alive connection.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    exchanges: Arc<Vec<Exchange>>,
    next_exchange: usize,
    timer: PreciseTimer,
}

impl Connection {
    async fn open(
        address: SocketAddr,
        first_exchange: usize,
        exchanges: Arc<Vec<Exchange>>,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        // The driver's error, if any, is also the error of the request in flight.
        tokio::spawn(driver);
        let timer = PreciseTimer::new()?;
        Ok(Self {
            sender,
            host: address.to_string(),
            exchanges,
            next_exchange: first_exchange,
            timer,
        })
    }

    /// Sends the next document and checks the answer, byte by byte.
    async fn exchange(&mut self) -> io::Result<()> {
        let exchange = &self.exchanges[self.next_exchange % self.exchanges.len()];
        self.next_exchange = self.next_exchange.wrapping_add(1);
        let request = Request::post("/orders")
            .header("host", &self.host)
            .header("content-type", "application/json")
            .body(Full::new(exchange.document.clone()))
            .map_err(io::Error::other)?;
        self.sender.ready().await.map_err(io::Error::other)?;
        let response = self
            .sender
            .send_request(request)
            .await
            .map_err(io::Error::other)?;
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(io::Error::other)?
            .to_bytes();
        if status != StatusCode::OK || body != exchange.answer {
            return Err(io::Error::other(format!(
                "wrong answer from the server: status {status}, {} bytes",
                body.len()
            )));
        }
        Ok(())
    }
}

/// Every connection sends its next request as soon as it has the answer to the last one. Connections without one at the end are lost.
async fn closed_loop(connections: &mut Vec<Connection>, length: Duration) -> io::Result<Capacity> {
    let threads = Threads::now();
    let (started, begin) = (SharedMicros::now(), Instant::now());
    let share = CLOSED_LOOP_REQUESTS_MAX / connections.len().max(1) as u64;
    let total = Arc::new(AtomicU64::new(0));
    let loops: Vec<_> = connections
        .drain(..)
        .map(|mut connection| {
            let total = Arc::clone(&total);
            tokio::spawn(async move {
                for _ in 0..share {
                    if begin.elapsed() >= length {
                        break;
                    }
                    connection.exchange().await?;
                    let in_time = u64::from(begin.elapsed() < length);
                    total.fetch_add(in_time, Ordering::Relaxed);
                }
                io::Result::Ok(connection)
            })
        })
        .collect();
    let deadline = tokio::time::Instant::now() + length + CLOSED_GRACE;
    for mut running in loops {
        match tokio::time::timeout_at(deadline, &mut running).await {
            Ok(finished) => connections.push(finished.map_err(io::Error::other)??),
            Err(_) => running.abort(),
        }
    }
    let ended = SharedMicros(started.0 + u64::try_from(length.as_micros()).unwrap_or(u64::MAX));
    Ok(Capacity {
        started,
        ended,
        completed: total.load(Ordering::Relaxed),
        threads: since(threads),
    })
}

/// What this process's threads did since `before`.
fn since(before: Threads) -> ClientThreads {
    let micros = |after: Duration, before| {
        u64::try_from(after.saturating_sub(before).as_micros()).unwrap_or(u64::MAX)
    };
    let now = Threads::now();
    ClientThreads {
        ran_us: micros(now.ran, before.ran),
        waited_us: micros(now.waited, before.waited),
    }
}

/// What the connections of the open loop share. One thread: the lock is never contended.
struct OpenLoop {
    begin: Instant,
    length: Duration,
    arrivals: Arrivals,
    latencies: Latencies,
    intended: u64,
    completed_in_time: u64,
    /// Intended starts of the requests in flight, by connection.
    in_flight: Vec<Option<Duration>>,
}

fn lock(shared: &Mutex<OpenLoop>) -> MutexGuard<'_, OpenLoop> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenLoop {
    fn take_arrival(&mut self, connection: usize) -> Option<Duration> {
        let intended = self.arrivals.next()?;
        self.intended += 1;
        self.in_flight[connection] = Some(intended);
        Some(intended)
    }

    fn answered(&mut self, connection: usize) {
        if let Some(intended) = self.in_flight[connection].take() {
            let now = self.begin.elapsed();
            self.latencies.record(intended, now);
            self.completed_in_time += u64::from(now < self.length);
        }
    }

    /// Counts everything unanswered with the time it has waited until now.
    fn give_up(&mut self) -> u64 {
        let now = self.begin.elapsed();
        let mut waiting: Vec<Duration> =
            self.in_flight.iter_mut().filter_map(Option::take).collect();
        for intended in self.arrivals.by_ref() {
            waiting.push(intended);
            self.intended += 1;
        }
        for intended in &waiting {
            self.latencies.record(*intended, now);
        }
        waiting.len() as u64
    }
}

async fn open_loop(connections: Vec<Connection>, arguments: &ClientArguments) -> io::Result<Open> {
    let length = Duration::from_millis(arguments.open_ms);
    let threads = Threads::now();
    let started = SharedMicros::now();
    let shared = Arc::new(Mutex::new(OpenLoop {
        begin: Instant::now(),
        length,
        arrivals: Arrivals::new(arguments.rate, length, arguments.seed),
        latencies: Latencies::new(length, Duration::from_millis(arguments.window_ms)),
        intended: 0,
        completed_in_time: 0,
        in_flight: vec![None; connections.len()],
    }));
    let deadline = tokio::time::Instant::now() + length + GRACE;
    let mut loops: Vec<JoinHandle<io::Result<()>>> = (0..)
        .zip(connections)
        .map(|(number, connection)| {
            tokio::spawn(follow_schedule(connection, number, Arc::clone(&shared)))
        })
        .collect();
    let progress = tokio::spawn(report_progress(Arc::clone(&shared)));
    for running in &mut loops {
        match tokio::time::timeout_at(deadline, &mut *running).await {
            Ok(finished) => finished.map_err(io::Error::other)??,
            Err(_) => running.abort(),
        }
    }
    progress.abort();
    let mut shared = lock(&shared);
    let unanswered = shared.give_up();
    let ended = SharedMicros(started.0 + u64::try_from(length.as_micros()).unwrap_or(u64::MAX));
    Ok(Open {
        started,
        ended,
        intended: shared.intended,
        completed: shared.completed_in_time,
        unanswered,
        histogram: shared.latencies.pairs(),
        windows: shared.latencies.windows(),
        threads: since(threads),
    })
}

/// One connection's part of the open loop: intended starts until there are none, or until the phase is over.
async fn follow_schedule(
    mut connection: Connection,
    number: usize,
    shared: Arc<Mutex<OpenLoop>>,
) -> io::Result<()> {
    let (begin, length) = {
        let shared = lock(&shared);
        (shared.begin, shared.length)
    };
    while begin.elapsed() < length {
        let Some(intended) = lock(&shared).take_arrival(number) else {
            break;
        };
        connection.timer.until(begin + intended).await?;
        connection.exchange().await?;
        lock(&shared).answered(number);
    }
    Ok(())
}

async fn report_progress(shared: Arc<Mutex<OpenLoop>>) -> io::Result<()> {
    loop {
        tokio::time::sleep(PROGRESS_EVERY).await;
        let (completed, p99_us) = {
            let shared = lock(&shared);
            (shared.latencies.count(), shared.latencies.p99_us())
        };
        protocol::send(&ClientLine::Progress { completed, p99_us })?;
    }
}
