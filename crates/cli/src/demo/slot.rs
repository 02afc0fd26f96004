//! One slot: a server process and a client process for one mode, watched until the client is done.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use quotient_validation::machine::{self, Busy};

use super::child::Child;
use super::disturbance::Met;
use super::mode::Mode;
use super::plan::Phases;
use super::protocol::{self, Capacity, ClientLine, Open, Sample, ServerLine};
use crate::failure::Failure;
use crate::report::progress::Progress;

/// How much longer than its phases a slot may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the parent waits for the signal behind a child's sudden end.
const SIGNAL_GRACE: Duration = Duration::from_millis(100);

/// What reaches the main loop from signals and child processes. The number names the slot.
#[derive(Debug)]
pub enum Event {
    /// Ctrl-C or a termination signal.
    Interrupted,
    /// A line from the server.
    Server(u32, ServerLine),
    /// A line from the client.
    Client(u32, ClientLine),
    /// A process closed its standard output.
    Ended(u32, &'static str),
}

/// What a slot is to do.
#[derive(Debug, Clone)]
pub struct Order {
    /// The set-up.
    pub mode: Mode,
    /// Its phases.
    pub phases: Phases,
    /// Width of the p99 windows.
    pub window: Duration,
    /// Time between two CPU samples.
    pub sample: Duration,
    /// tokio workers of the server.
    pub workers: u32,
    /// Tasks of the noisy neighbour.
    pub hogs: u32,
    /// Keep-alive connections.
    pub connections: u32,
    /// Arrivals per second.
    pub rate: u32,
    /// Seed of arrivals and documents.
    pub seed: u64,
}

/// A number that no other slot of this process has. A slot that is played twice has two: what the first one's processes still
/// write while they end must not be taken for the second one's.
pub fn new_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What a slot has found.
#[derive(Debug)]
pub struct Slot {
    /// The set-up.
    pub mode: Mode,
    /// The closed loop.
    pub capacity: Capacity,
    /// The open loop; absent from a calibration.
    pub open: Option<Open>,
    /// The server's counters over the slot.
    pub samples: Vec<Sample>,
    /// What else the machine did meanwhile.
    pub met: Met,
}

/// Runs one slot. Both processes are gone when it returns, whatever it returns.
///
/// # Errors
/// `Interrupted` on a signal; otherwise when a process cannot be started, ends early or does not finish in time.
pub fn run(
    order: &Order,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
    progress: &mut Progress,
) -> Result<Slot, Failure> {
    let (started, busy, stolen) = (Instant::now(), Busy::now(), machine::stolen());
    let mut slot = play(order, sender, events, progress)?;
    // Both processes have ended and were waited for: what they used counts as our own.
    let wall = started.elapsed().as_secs_f64();
    slot.met = Met {
        others: Busy::now()
            .zip(busy)
            .map(|(after, before)| after.others_since(before, wall)),
        stolen: machine::stolen().saturating_sub(stolen).as_secs_f64() / wall.max(1e-9),
    };
    Ok(slot)
}

/// [`run`], but for what else the machine did.
fn play(
    order: &Order,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
    progress: &mut Progress,
) -> Result<Slot, Failure> {
    let deadline = Instant::now() + order.phases.total() + PATIENCE;
    let number = new_number();
    let _server = start_server(order, number, sender)?;
    let mut client = None;
    let (mut capacity, mut open, mut samples) = (None, None, Vec::new());
    loop {
        let event = next_event(events, deadline, order.mode)?;
        match event {
            Event::Interrupted => return Err(Failure::Interrupted),
            // A line that an earlier slot's process wrote just before it was stopped.
            Event::Server(of, _) | Event::Client(of, _) | Event::Ended(of, _) if of != number => {}
            Event::Server(_, ServerLine::Listening { port }) => {
                client = Some(start_client(order, number, port, sender)?)
            }
            Event::Server(_, ServerLine::Sample(sample)) => samples.push(sample),
            // Of the other scene.
            Event::Server(_, ServerLine::Tenants(_)) | Event::Client(_, ClientLine::Tenants(_)) => {
            }
            Event::Client(_, ClientLine::Progress { completed, p99_us }) => {
                progress.open_loop(completed, p99_us, hog_cpus_lately(&samples));
            }
            Event::Client(_, ClientLine::Capacity(found)) => {
                progress.capacity(
                    found.completed as f64 / found.ended.since(found.started).as_secs_f64(),
                );
                capacity = Some(found);
            }
            Event::Client(_, ClientLine::Open(found)) => open = Some(found),
            Event::Ended(_, who) => return Err(ended_early(events, who, order.mode)),
        }
        if let Some(capacity) = capacity
            && (open.is_some() || order.phases.open.is_zero())
        {
            drop(client);
            return Ok(Slot {
                mode: order.mode,
                capacity,
                open,
                samples,
                met: Met::default(),
            });
        }
    }
}

/// The next event, or the failure that there is none.
///
/// # Errors
/// When `deadline` has passed.
pub fn next_event(
    events: &Receiver<Event>,
    deadline: Instant,
    mode: Mode,
) -> Result<Event, Failure> {
    match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(event) => Ok(event),
        Err(RecvTimeoutError::Timeout) => Err(Failure::Run(format!(
            "mode {mode}: not finished {} s after its phases should have ended",
            PATIENCE.as_secs()
        ))),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Failure::Run("the demo's event queue is gone".into()))
        }
    }
}

/// A child has ended. If a signal did it, the same signal is on its way to us: then that is the reason.
fn ended_early(events: &Receiver<Event>, who: &str, mode: Mode) -> Failure {
    let deadline = Instant::now() + SIGNAL_GRACE;
    while let Ok(event) = events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if matches!(event, Event::Interrupted) {
            return Failure::Interrupted;
        }
    }
    Failure::Run(format!(
        "mode {mode}: the {who} process ended before its work was done"
    ))
}

fn hog_cpus_lately(samples: &[Sample]) -> f64 {
    let [.., before, last] = samples else {
        return 0.0;
    };
    let wall = last.at.since(before.at).as_secs_f64();
    last.hog_cpu_ns.saturating_sub(before.hog_cpu_ns) as f64 / 1e9 / wall.max(1e-9)
}

fn start_server(order: &Order, number: u32, sender: &Sender<Event>) -> Result<Child, Failure> {
    let arguments = [
        "demo-server".to_owned(),
        format!("--mode={}", order.mode.name()),
        format!("--workers={}", order.workers),
        format!("--hogs={}", order.hogs),
        format!("--sample-ms={}", order.sample.as_millis().max(1)),
    ];
    listen(&arguments, sender, number, "server", move |line| {
        Event::Server(number, line)
    })
}

fn start_client(
    order: &Order,
    number: u32,
    port: u16,
    sender: &Sender<Event>,
) -> Result<Child, Failure> {
    let arguments = [
        "demo-client".to_owned(),
        format!(
            "--address={}",
            SocketAddr::from((Ipv4Addr::LOCALHOST, port))
        ),
        format!("--connections={}", order.connections),
        format!("--server-cpus={}", order.workers),
        format!("--warm-up-ms={}", order.phases.warm_up.as_millis()),
        format!("--capacity-ms={}", order.phases.capacity.as_millis()),
        format!("--open-ms={}", order.phases.open.as_millis()),
        format!("--window-ms={}", order.window.as_millis().max(1)),
        format!("--rate={}", order.rate),
        format!("--seed={}", order.seed),
    ];
    listen(&arguments, sender, number, "client", move |line| {
        Event::Client(number, line)
    })
}

/// Starts a child and a thread that turns its lines into events; the thread ends with the child.
///
/// # Errors
/// When the operating system has no process or thread for us.
pub fn listen<L: serde::de::DeserializeOwned>(
    arguments: &[String],
    sender: &Sender<Event>,
    number: u32,
    who: &'static str,
    event: impl Fn(L) -> Event + Send + 'static,
) -> Result<Child, Failure> {
    let (child, output) = Child::start(arguments)?;
    let sender = sender.clone();
    thread::Builder::new()
        .name(format!("{who}-lines"))
        .spawn(move || {
            protocol::receive(output, |line| sender.send(event(line)).is_ok());
            // Without a receiver the demo is over, and nobody cares how its children ended.
            let _ = sender.send(Event::Ended(number, who));
        })
        .map_err(Failure::during(
            "cannot start a thread that reads a child process",
        ))?;
    Ok(child)
}
