//! One process of the fleet: the demo's HTTP server, all of it in one tenant's group, whose limit a fleet sets.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use clap::Args;
use quotient::Scheduler;
use quotient_fleet::{Allowance, Fleet};
use serde::{Deserialize, Serialize};

use super::{SAMPLE, TENANT};
use crate::demo::hogs::Counters;
use crate::demo::{child, host, protocol};
use crate::failure::Failure;

/// What the node's process takes.
#[derive(Debug, Clone, Args)]
pub struct NodeArguments {
    /// Where the store is
    #[arg(long)]
    pub store: String,
}

/// A line from a node.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(tag = "node", rename_all = "snake_case")]
pub enum NodeLine {
    /// It accepts connections on this port of 127.0.0.1.
    Listening { port: u16 },
    /// How far it is; all count up from its start.
    Sample {
        /// CPU time of the tenant's group.
        cpu_us: u64,
        /// Requests answered.
        requests: u64,
        /// Round trips to the store, and requests that it did not answer.
        calls: u64,
        failed: u64,
        /// Whether it is on its floor.
        floor: bool,
    },
}

/// Serves until standard input closes.
///
/// # Errors
/// When something that it needs cannot be had, or nobody reads its lines.
pub fn run(arguments: &NodeArguments) -> Result<(), Failure> {
    child::exit_with_parent()?;
    let during = |what| Failure::during(what);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(Failure::during("node: cannot listen on 127.0.0.1"))?;
    let port = listener
        .local_addr()
        .map_err(Failure::during("node: cannot read its own port"))?
        .port();
    let runtime = host::runtime(2, "node").map_err(Failure::during("node: cannot start"))?;
    let _entered = runtime.enter();
    let scheduler = Scheduler::builder()
        .build()
        .map_err(Failure::during("node"))?;
    let group = scheduler
        .group(TENANT)
        .and_then(quotient::GroupBuilder::create)
        .map_err(Failure::during("node"))?;
    let fleet = Fleet::builder(&arguments.store)
        .start(&scheduler)
        .map_err(during("node"))?;
    fleet.adopt(&group);
    let counters = Arc::new(Counters::default());
    let listener = host::registered(listener).map_err(Failure::during("node: cannot listen"))?;
    drop(group.spawn(host::serve_in_group(listener, host::router(&counters))));
    send(&NodeLine::Listening { port })?;
    loop {
        thread::sleep(SAMPLE);
        let figures = fleet.figures();
        let stats = fleet.stats();
        send(&NodeLine::Sample {
            cpu_us: micros(group.cpu_time()),
            requests: counters.requests.load(Ordering::Relaxed),
            calls: figures.exchanges,
            failed: figures.errors,
            floor: stats
                .iter()
                .any(|tenant| matches!(tenant.allowance, Allowance::Floor(_))),
        })?;
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn send(line: &NodeLine) -> Result<(), Failure> {
    protocol::send(line).map_err(Failure::during("node: nobody reads its lines"))
}
