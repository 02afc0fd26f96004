//! `quotient demo fleet`: one tenant, one CPU, four server processes, and what becomes of it when things fail.
//!
//! ```text
//! demo fleet ── private Valkey or Redis on 127.0.0.1:(a free port)          kill -9 on the way
//!     ├──────── demo-fleet-node x 4: HTTP server in group `tenants/acme`    kill -9 of one on the way
//!     └──────── load: closed loops that move from node to node
//! ```
//!
//! Nothing is left running: nodes end with the pipe from here (`demo::child`), so does the server (`quotient_fleet::private_server`).

mod load;
pub mod node;
mod results;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use quotient_fleet::private_server::{PrivateServer, PrivateServerError};
use quotient_fleet::{FleetLimit, MicroCpus, RedisStore, Store};

use self::load::Load;
use self::node::NodeLine;
use self::results::{Point, Row, Run};
use crate::demo::{child::Child, protocol};
use crate::failure::{Failure, print};
use crate::json::versioned;
use crate::report;

/// Server processes.
const NODES: usize = 4;

/// The one tenant, and what it may use in all of them.
const TENANT: &str = "tenants/acme";
const QUOTA: f64 = 1.0;

/// Time between two samples of a node.
const SAMPLE: Duration = Duration::from_millis(100);

/// How long nodes may take to start and to get their first lease.
const START: Duration = Duration::from_secs(30);

/// What `quotient demo fleet` takes.
#[derive(Debug, Clone, Args)]
pub struct FleetDemoArguments {
    /// How long the load runs, in seconds (6..=3600)
    #[arg(long, default_value_t = 48, value_parser = value_parser!(u64).range(6..=3600))]
    seconds: u64,
    /// Where the picture goes
    #[arg(long, value_name = "FILE", default_value = "fleet.html")]
    out: PathBuf,
    /// Print exactly one JSON object on standard output; progress goes to standard error
    #[arg(long)]
    json: bool,
}

/// What happens at the beginning of a phase.
#[derive(Clone, Copy, PartialEq)]
enum Blow {
    Nothing,
    KillNode(usize),
    RestartNode(usize),
    KillStore,
    RestartStore,
}

/// A part of the run.
struct Phase {
    name: &'static str,
    /// Of the whole run, in hundredths.
    part: u32,
    /// Who is asked.
    nodes: &'static [usize],
    blow: Blow,
}

const PHASES: [Phase; 7] = [
    Phase {
        name: "all four are asked",
        part: 16,
        nodes: &[0, 1, 2, 3],
        blow: Blow::Nothing,
    },
    Phase {
        name: "only node 1",
        part: 14,
        nodes: &[0],
        blow: Blow::Nothing,
    },
    Phase {
        name: "nodes 3 and 4",
        part: 14,
        nodes: &[2, 3],
        blow: Blow::Nothing,
    },
    Phase {
        name: "kill -9 of node 4",
        part: 14,
        nodes: &[1, 2, 3],
        blow: Blow::KillNode(3),
    },
    Phase {
        name: "node 4 is back",
        part: 12,
        nodes: &[0, 1, 2, 3],
        blow: Blow::RestartNode(3),
    },
    Phase {
        name: "kill -9 of the store",
        part: 12,
        nodes: &[0, 1, 2, 3],
        blow: Blow::KillStore,
    },
    Phase {
        name: "an empty store",
        part: 18,
        nodes: &[0, 1, 2, 3],
        blow: Blow::RestartStore,
    },
];

/// What reaches the main loop. The number names a node's process among all that there were.
enum Event {
    Interrupted,
    Node(usize, u32, NodeLine),
}

/// One node's process, and what earlier ones of its place used.
#[derive(Default)]
struct Node {
    child: Option<Child>,
    /// Which process of this place it is.
    life: u32,
    before_us: u64,
    cpu_us: u64,
    calls_before: u64,
    calls: u64,
    floor: bool,
}

impl Node {
    fn used_us(&self) -> u64 {
        self.before_us + self.cpu_us
    }
}

/// The run while it goes on.
struct Show {
    store: PrivateServer,
    nodes: [Node; NODES],
    load: Load,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

/// Runs the demo and reports.
///
/// # Errors
/// `Usage` if the picture cannot be written, `Interrupted` on a signal, `Run` without a server and when a process fails.
pub fn run(arguments: &FleetDemoArguments) -> Result<(), Failure> {
    report::check_writable(&arguments.out)?;
    let (sender, events) = mpsc::channel();
    let signals = sender.clone();
    ctrlc::set_handler(move || {
        // Without a receiver the demo is over anyway.
        let _ = signals.send(Event::Interrupted);
    })
    .map_err(Failure::during("cannot handle Ctrl-C"))?;
    let store = PrivateServer::start(&[]).map_err(|error| match error {
        PrivateServerError::Missing => {
            Failure::Run(format!("demo fleet starts a store of its own; {error}"))
        }
        other => Failure::Run(other.to_string()),
    })?;
    set_limit(&store.address())?;
    let mut show = Show {
        store,
        nodes: Default::default(),
        load: Load::start()?,
        sender,
        events,
    };
    for node in 0..NODES {
        show.start_node(node)?;
    }
    show.wait_for_nodes()?;
    let run = show.conduct(arguments.seconds)?;
    drop(show);
    std::fs::write(&arguments.out, results::page(&run)).map_err(Failure::during(&format!(
        "cannot write {}",
        arguments.out.display()
    )))?;
    if arguments.json {
        return print(&(versioned("quotient-demo-fleet/1", &run)? + "\n"));
    }
    print(&format!(
        "\n{}\nThe picture: {}\n",
        results::table(&run),
        arguments.out.display()
    ))
}

fn set_limit(address: &str) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::during("cannot start a runtime"))?;
    let store = RedisStore::new(address).map_err(Failure::during("the private store"))?;
    let limit = FleetLimit::new(MicroCpus::from_cpus(QUOTA)).with_processes(NODES as u32);
    let set = runtime.block_on(store.within(START).set(TENANT, limit));
    set.map(drop).map_err(Failure::during("the private store"))
}

impl Show {
    fn start_node(&mut self, index: usize) -> Result<(), Failure> {
        let words = [
            "demo-fleet-node".to_owned(),
            format!("--store={}", self.store.address()),
        ];
        let (child, output) = Child::start(&words)?;
        let node = &mut self.nodes[index];
        node.life += 1;
        node.child = Some(child);
        let (life, sender) = (node.life, self.sender.clone());
        thread::Builder::new()
            .name(format!("node-{index}-lines"))
            .spawn(move || {
                protocol::receive(output, |line| {
                    sender.send(Event::Node(index, life, line)).is_ok()
                });
            })
            .map_err(Failure::during("cannot start a thread that reads a node"))?;
        Ok(())
    }

    fn kill_node(&mut self, index: usize) {
        self.load.doors[index].port.store(0, Ordering::Relaxed);
        let node = &mut self.nodes[index];
        node.child = None;
        node.life += 1;
        node.before_us += node.cpu_us;
        node.calls_before += node.calls;
        (node.cpu_us, node.calls, node.floor) = (0, 0, false);
    }

    fn wait_for_nodes(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + START;
        let ready = |show: &Show| {
            let mut doors = show.load.doors.iter();
            doors.all(|door| door.port.load(Ordering::Relaxed) > 0)
        };
        while !ready(self) {
            if Instant::now() > deadline {
                return Err(Failure::Run("the nodes do not start".to_owned()));
            }
            self.listen(Instant::now() + SAMPLE)?;
        }
        Ok(())
    }

    /// Takes in what nodes say until a moment.
    fn listen(&mut self, until: Instant) -> Result<(), Failure> {
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(rest) {
                Ok(Event::Interrupted) => return Err(Failure::Interrupted),
                Ok(Event::Node(index, life, line)) => self.take(index, life, line),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::Run("the demo's event queue is gone".into()));
                }
            }
        }
    }

    fn take(&mut self, index: usize, life: u32, line: NodeLine) {
        let node = &mut self.nodes[index];
        if node.life != life {
            return;
        }
        match line {
            NodeLine::Listening { port } => {
                self.load.doors[index].port.store(port, Ordering::Relaxed);
            }
            NodeLine::Sample {
                cpu_us,
                calls,
                floor,
                ..
            } => {
                node.cpu_us = cpu_us;
                node.calls = calls;
                node.floor = floor;
            }
        }
    }

    fn strike(&mut self, blow: Blow) -> Result<(), Failure> {
        match blow {
            Blow::Nothing => {}
            Blow::KillNode(index) => self.kill_node(index),
            Blow::RestartNode(index) => self.start_node(index)?,
            Blow::KillStore => self.store.kill(),
            Blow::RestartStore => {
                let again = self.store.restart();
                again.map_err(Failure::during("the private store"))?;
            }
        }
        Ok(())
    }

    fn conduct(&mut self, seconds: u64) -> Result<Run, Failure> {
        let begun = Instant::now();
        let mut run = Run::new(QUOTA, seconds);
        let mut end = Duration::ZERO;
        for phase in &PHASES {
            self.strike(phase.blow)?;
            self.load.direct(phase.nodes);
            end += Duration::from_secs(seconds) * phase.part / 100;
            let from = begun.elapsed();
            let before = self.counts();
            let mut seen = self.used();
            let mut at = from;
            while begun.elapsed() < end {
                self.listen(Instant::now() + SAMPLE)?;
                let (now, used) = (begun.elapsed(), self.used());
                run.points.push(Point::between(at, now, &seen, &used));
                (seen, at) = (used, now);
            }
            let after = self.counts();
            let took = (at - from).as_secs_f64().max(1e-9);
            let part = |index: usize| (after.used[index] - before.used[index]) as f64 / 1e6 / took;
            let row = Row {
                phase: phase.name,
                from: from.as_secs_f64(),
                seconds: took,
                cpu: std::array::from_fn(part),
                answered: (after.answered - before.answered) as f64 / took,
                failed: after.failed - before.failed,
                calls: (after.calls - before.calls) as f64 / took,
                floors: self.nodes.iter().filter(|node| node.floor).count(),
            };
            eprintln!("{}", results::brief(&row));
            run.rows.push(row);
        }
        Ok(run)
    }

    fn used(&self) -> [u64; NODES] {
        std::array::from_fn(|index| self.nodes[index].used_us())
    }

    fn counts(&self) -> Counts {
        let (answered, failed) = self.load.counts();
        let calls = self.nodes.iter().map(|node| node.calls_before + node.calls);
        Counts {
            used: self.used(),
            answered,
            failed,
            calls: calls.sum(),
        }
    }
}

struct Counts {
    used: [u64; NODES],
    answered: u64,
    failed: u64,
    calls: u64,
}
