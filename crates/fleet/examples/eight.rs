//! Eight processes, one tenant, one CPU between them: `cargo run --release -p quotient-fleet --example eight -- 60`.
//!
//! Starts a private server (`redis-server` or `valkey-server` on the PATH) and eight processes of itself, each with more work for the
//! tenant than it may do, kills two processes and the server on the way (`--faults`; `--away=MILLISECONDS`, 2000, until there is another; `--lease=MILLISECONDS`, 1000), and says how much CPU time the tenant got
//! of what its quota earned, and how many calls that took. Nothing is left running.

#[path = "../tests/common/busy.rs"]
mod busy;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use quotient::Scheduler;
use quotient_fleet::private_server::PrivateServer;
use quotient_fleet::{Fleet, FleetLimit, MicroCpus, Micros, RedisStore, Store};

const TENANT: &str = "tenants/acme";
const PROCESSES: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "node") {
        return node(&arguments[1]);
    }
    let seconds: u64 = arguments.first().map_or(Ok(60), |text| text.parse())?;
    let faults = arguments.iter().any(|argument| argument == "--faults");
    let quota: f64 = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--cpus="))
        .map_or(Ok(0.8), str::parse)?;
    let away: u64 = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--away="))
        .map_or(Ok(2_000), str::parse)?;
    let lease: u64 = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--lease="))
        .map_or(Ok(1_000), str::parse)?;
    let faults = faults.then_some(Duration::from_millis(away));
    let limit = FleetLimit::new(MicroCpus::from_cpus(quota))
        .with_processes(10)
        .with_lease(Micros::from_millis(lease));
    conduct(seconds, faults, quota, limit)
}

/// One process: works for the tenant as much as it may, and answers each line on its input with the CPU time of its group.
fn node(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let scheduler = Scheduler::builder().build()?;
        let group = scheduler.group(TENANT)?.create()?;
        let fleet = Fleet::builder(address).start(&scheduler)?;
        fleet.adopt(&group);
        for _ in 0..2 {
            group.spawn(busy::burn());
        }
        let (lines, mut come) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for _ in std::io::stdin().lock().lines() {
                if lines.send(()).is_err() {
                    return;
                }
            }
        });
        while come.recv().await.is_some() {
            let figures = fleet.figures();
            println!(
                "{} {} {}",
                group.cpu_time().as_micros(),
                figures.requests,
                figures.errors
            );
        }
        // In order, where the store is still there to be told.
        drop(fleet.leave().await);
        Ok(())
    })
}

struct Node {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
    last: [u64; 3],
}

impl Node {
    fn start(address: &str) -> Result<Node, Box<dyn std::error::Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["node", address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Node {
            child,
            input,
            output,
            last: [0; 3],
        })
    }

    /// CPU time of the group in us, requests, errors; a dead process keeps what it last said.
    fn read(&mut self) -> [u64; 3] {
        let mut line = String::new();
        if writeln!(self.input).is_ok()
            && self.output.read_line(&mut line).is_ok_and(|read| read > 0)
        {
            let mut numbers = line
                .split_whitespace()
                .map(|word| word.parse().unwrap_or(0));
            self.last = std::array::from_fn(|_| numbers.next().unwrap_or(0));
        }
        self.last
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn total(nodes: &mut [Node]) -> [u64; 3] {
    let mut sum = [0; 3];
    for node in nodes {
        for (sum, value) in sum.iter_mut().zip(node.read()) {
            *sum += value;
        }
    }
    sum
}

/// Kills two processes and the server, which is away for so long.
fn conduct(
    seconds: u64,
    faults: Option<Duration>,
    quota: f64,
    limit: FleetLimit,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut server = PrivateServer::start(&[])?;
    let address = server.address();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let store = RedisStore::new(&address)?;
    runtime.block_on(store.set(TENANT, limit))?;
    let mut nodes = (0..PROCESSES)
        .map(|_| Node::start(&address))
        .collect::<Result<Vec<_>, _>>()?;
    std::thread::sleep(Duration::from_secs(3));
    let begun = Instant::now();
    let first = total(&mut nodes);
    // Of what dead processes said last, nothing is lost; what they used after that is.
    let mut worst = 0.0_f64;
    let mut lowest = 0.0_f64;
    for tenth in 1..=seconds * 10 {
        let next = begun + Duration::from_millis(tenth * 100);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        if faults.is_some() && tenth == seconds * 10 / 4 {
            total(&mut nodes);
            for node in nodes.iter_mut().take(2) {
                node.child.kill()?;
            }
            println!(
                "{:.1} s: killed two processes",
                begun.elapsed().as_secs_f64()
            );
        }
        if let Some(away) = faults
            && tenth == seconds * 10 / 2
        {
            server.kill();
            println!("{:.1} s: killed the server", begun.elapsed().as_secs_f64());
            std::thread::sleep(away);
            server.restart()?;
            println!("{:.1} s: another one, empty", begun.elapsed().as_secs_f64());
        }
        let now = total(&mut nodes);
        let ahead = (now[0] - first[0]) as f64 / 1e6 - quota * begun.elapsed().as_secs_f64();
        worst = worst.max(ahead - lowest);
        lowest = lowest.min(ahead);
    }
    let passed = begun.elapsed().as_secs_f64();
    let last = total(&mut nodes);
    let used = (last[0] - first[0]) as f64 / 1e6;
    println!(
        "{PROCESSES} processes, {quota} CPU for all, {passed:.1} s: used {used:.3} s of {:.3} s, {:+.2} %",
        quota * passed,
        (used / (quota * passed) - 1.0) * 100.0
    );
    println!(
        "fullest window: {worst:.3} s beyond the quota (burst and one lease: {:.3} s); {:.1} requests/s, {} failed",
        quota * limit.lease.0 as f64 / 1e6,
        (last[1] - first[1]) as f64 / passed,
        last[2] - first[2]
    );
    for node in &mut nodes {
        println!("  {:.3} s", node.last[0] as f64 / 1e6);
    }
    Ok(())
}
