//! The second scene: twenty tenants of different weights with one server, each of which asks for as much as it gets. Half of them ask for
//! 0.5 ms of work at a time, half for 20 ms in one poll. Two runtimes cannot do this: it would take twenty, and the shares would follow
//! from their threads.
//!
//! On plain tokio a tenant gets what its requests take; in Quotient groups with preemption what its weight says.

pub mod client;
pub mod results;
pub mod server;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

pub use self::results::{Scene, Tenant, scene};
use super::mode::Mode;
use super::protocol::{ClientLine, ServerLine, TenantSample, TenantsDone};
use super::slot::{Event, listen, new_number, next_event};
use crate::failure::Failure;

/// How many tenants there are.
pub const TENANTS: usize = 20;
/// The header that names the tenant.
pub const HEADER: &str = "x-tenant";
/// Connections of each tenant: while one answer is on its way, another request waits.
pub const CONNECTIONS: usize = 2;
/// Work of a request of every second tenant, and of the others. In one poll each.
const SHORT: Duration = Duration::from_micros(500);
const LONG: Duration = Duration::from_millis(20);
/// Requests before anything is measured.
pub const WARM_UP: Duration = Duration::from_millis(300);
/// How much longer than it should a slot may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two samples of the tenants' CPU.
const SAMPLE: Duration = Duration::from_millis(50);

/// The weight of a tenant: 100, 120 and so on up to 480.
pub fn weight(tenant: usize) -> u32 {
    100 + 20 * u32::try_from(tenant).unwrap_or(0)
}

/// CPU time that a request of this tenant takes, in one poll.
pub fn work(tenant: usize) -> Duration {
    if tenant.is_multiple_of(2) {
        SHORT
    } else {
        LONG
    }
}

/// What one mode has shown.
pub struct Slot {
    mode: Mode,
    samples: Vec<TenantSample>,
    done: TenantsDone,
}

/// Runs the scene under `mode`, tokio's or Quotient's. Both processes are gone when it returns.
///
/// # Errors
/// `Interrupted` on a signal; otherwise when a process cannot be started, ends early or does not finish in time.
pub fn run(
    mode: Mode,
    workers: u32,
    length: Duration,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
) -> Result<Slot, Failure> {
    let deadline = Instant::now() + WARM_UP + length + PATIENCE;
    let arguments = [
        "demo-tenants-server".to_owned(),
        format!("--mode={}", mode.name()),
        format!("--workers={workers}"),
        format!("--sample-ms={}", SAMPLE.as_millis()),
    ];
    let number = new_number();
    let _server = listen(&arguments, sender, number, "server", move |line| {
        Event::Server(number, line)
    })?;
    let (mut client, mut samples) = (None, Vec::new());
    loop {
        match next_event(events, deadline, mode)? {
            Event::Interrupted => return Err(Failure::Interrupted),
            Event::Server(of, ServerLine::Listening { port }) if of == number => {
                let arguments = [
                    "demo-tenants-client".to_owned(),
                    format!(
                        "--address={}",
                        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
                    ),
                    format!("--server-cpus={workers}"),
                    format!("--milliseconds={}", length.as_millis()),
                ];
                let started = listen(&arguments, sender, number, "client", move |line| {
                    Event::Client(number, line)
                });
                client = Some(started?);
            }
            Event::Server(of, ServerLine::Tenants(sample)) if of == number => {
                samples.push(sample);
            }
            Event::Client(of, ClientLine::Tenants(done)) if of == number => {
                drop(client);
                return Ok(Slot {
                    mode,
                    samples,
                    done,
                });
            }
            Event::Ended(of, who) if of == number => {
                return Err(Failure::Run(format!(
                    "twenty tenants, mode {mode}: the {who} process ended before its work was done"
                )));
            }
            // Of an earlier slot.
            _ => {}
        }
    }
}
