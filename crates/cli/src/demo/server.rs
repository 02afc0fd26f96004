//! The server process: victim and hogs of one mode, and a sampler that prints the counters.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use quotient_validation::machine::Threads;

use super::child;
use super::clock::{self, SharedMicros};
use super::confine;
use super::hogs::Counters;
use super::host::{Host, Setup};
use super::protocol::{self, Sample, ServerLine};
use crate::cli::ServerArguments;
use crate::failure::Failure;

/// Serves until standard input closes. Prints the port, then a sample every `--sample-ms`.
///
/// # Errors
/// When the port cannot be bound, the runtimes cannot be built, or nobody reads the samples any more.
pub fn run(arguments: &ServerArguments) -> Result<(), Failure> {
    let (listener, port) = listen(arguments.workers)?;
    let counters = Arc::new(Counters::default());
    let setup = Setup {
        mode: arguments.mode,
        workers: arguments.workers,
        hogs: arguments.hogs,
        counters: Arc::clone(&counters),
    };
    let host = Host::start(&setup, listener).map_err(Failure::during("server: cannot start"))?;
    send(&ServerLine::Listening { port })?;
    loop {
        send(&ServerLine::Sample(sample(&counters, &host)))?;
        thread::sleep(Duration::from_millis(arguments.sample_ms));
    }
}

/// What a server process of the demo does first: static keys, its CPUs, an end with its parent, and a port of its own on this machine.
///
/// # Errors
/// When a step fails.
pub(super) fn listen(workers: u32) -> Result<(TcpListener, u16), Failure> {
    quotient_keys::patch();
    // Before there are more threads: they inherit it.
    confine::to_last(workers).map_err(Failure::during("server: cannot choose its CPUs"))?;
    child::exit_with_parent()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(Failure::during("server: cannot listen on 127.0.0.1"))?;
    let port = listener
        .local_addr()
        .map_err(Failure::during("server: cannot read its own port"))?
        .port();
    Ok((listener, port))
}

/// Says it to the parent.
pub(super) fn send(line: &ServerLine) -> Result<(), Failure> {
    protocol::send(line).map_err(Failure::during("server: nobody reads its samples"))
}

fn sample(counters: &Counters, host: &Host) -> Sample {
    Sample {
        at: SharedMicros::now(),
        process_cpu_ns: u64::try_from(clock::process_cpu().as_nanos()).unwrap_or(u64::MAX),
        hog_cpu_ns: counters.hog_cpu_ns.load(Ordering::Relaxed),
        hog_documents: counters.hog_documents.load(Ordering::Relaxed),
        requests: counters.requests.load(Ordering::Relaxed),
        waited_ns: u64::try_from(Threads::now().waited.as_nanos()).unwrap_or(u64::MAX),
        groups: host.group_cpu(),
    }
}
