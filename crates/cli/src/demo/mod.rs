//! `quotient demo`: a noisy neighbour on real HTTP traffic, with and without Quotient.
//!
//! ```text
//! demo ── starts, reads lines from ──> demo-server: axum victim + hogs of one mode, on 127.0.0.1:(chosen by the OS)
//!   └──── starts, reads lines from ──> demo-client: closed loop, then open loop, over keep-alive connections
//! ```
//!
//! A run is rounds of slots, one slot a mode, so that a change of the machine's mood hits all modes alike. Each slot
//! has fresh processes. `work` is what a request asks for; `host` is what differs between modes; `hogs` is the
//! neighbour; `child` is why nothing stays behind; `results` makes rows and curves of the slots. At the end twenty tenants share one
//! server (`tenants`).

mod arrivals;
mod child;
pub mod client;
pub(crate) mod clock;
pub mod confine;
#[cfg(feature = "fleet")]
pub mod fleet;
pub mod hogs;
mod host;
mod latencies;
pub mod mode;
mod plan;
mod protocol;
mod random;
pub mod results;
pub mod server;
mod slot;
pub mod tenants;
mod timer;
mod work;

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use crate::cli::DemoArguments;
use crate::failure::Failure;
use crate::report::progress::Progress;
use crate::report::{self, Facts, Report};
use mode::Mode;
use plan::Plan;
use slot::{Event, Order, Slot};

/// The open loop's rate, as a part of what plain tokio serves alone. An equal share of the CPU, about half of that
/// capacity, suffices for it with room to spare on a machine that has other things to do as well: the demo shows what a
/// neighbour does to latency, not how a queue behaves near saturation, which the closed loop is for.
const RATE_OF_CAPACITY: f64 = 0.3;

/// Runs the demo and reports.
///
/// # Errors
/// `Usage` if the picture cannot be written, `Interrupted` on a signal, `Run` when a process fails.
pub fn run(arguments: &DemoArguments) -> Result<(), Failure> {
    #[cfg(feature = "fleet")]
    if let Some(crate::cli::Scene::Fleet(arguments)) = &arguments.scene {
        return fleet::run(arguments);
    }
    report::check_writable(&arguments.out)?;
    let began = Instant::now();
    let (sender, events) = mpsc::channel();
    let signals = sender.clone();
    ctrlc::set_handler(move || {
        // Without a receiver the demo is over anyway.
        let _ = signals.send(Event::Interrupted);
    })
    .map_err(Failure::during("cannot handle Ctrl-C"))?;
    let plan = Plan::new(Duration::from_secs(arguments.seconds));
    let workers = arguments.workers.unwrap_or_else(default_workers);
    let mut progress = Progress::new();
    let rate = match arguments.rate {
        Some(rate) => rate,
        None => calibrate(arguments, &plan, workers, &sender, &events, &mut progress)?,
    };
    let mut slots = Vec::new();
    for round in 0..plan.rounds {
        for (position, mode) in (0..).zip(Mode::ALL) {
            progress.begin(&format!("{}/{}  {mode:<14}", round + 1, plan.rounds));
            let mut order = order(arguments, &plan, workers, mode);
            order.number = 1 + round * Mode::ALL.len() as u32 + position;
            order.rate = rate;
            order.seed = arguments.seed.wrapping_add(u64::from(round));
            let slot = slot::run(&order, &sender, &events, &mut progress)?;
            let row = results::rows(std::slice::from_ref(&slot));
            progress.finish(&row.iter().map(report::brief).collect::<String>());
            slots.push(slot);
        }
    }
    let mut scene = Vec::new();
    for (number, mode) in (1 + slots.len() as u32..).zip([Mode::Tokio, Mode::Quotient]) {
        progress.begin(&format!("20 tenants  {mode:<11}"));
        let slot = tenants::run(mode, number, workers, plan.tenants, &sender, &events)?;
        progress.finish("done");
        scene.push(slot);
    }
    let facts = Facts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cpus: cpus(),
        workers,
        hogs: arguments.hogs,
        connections: arguments.connections,
        rounds: plan.rounds,
        rate_rps: rate,
        seed: arguments.seed,
        confined: confine::SUPPORTED,
        seconds: began.elapsed().as_secs_f64(),
    };
    let (rows, series) = (results::rows(&slots), results::series(&slots));
    Report::new(facts, rows, series, tenants::scene(&scene)).publish(&arguments.out, arguments.json)
}

/// Measures what plain tokio serves alone and takes a part of it.
fn calibrate(
    arguments: &DemoArguments,
    plan: &Plan,
    workers: u32,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
    progress: &mut Progress,
) -> Result<u32, Failure> {
    progress.begin("calibration");
    let mut order = order(arguments, plan, workers, Mode::Alone);
    order.phases = plan.calibration;
    let slot: Slot = slot::run(&order, sender, events, progress)?;
    let capacity = results::capacity_rps(&slot);
    // Two digits are honest, and easy to read.
    let rate = capacity * RATE_OF_CAPACITY;
    let digit = 10f64.powf(rate.max(1.0).log10().floor() - 1.0).max(1.0);
    let rate = ((rate / digit).round() * digit).clamp(1.0, 200_000.0) as u32;
    progress.finish(&format!(
        "alone, plain tokio serves {capacity:.0} req/s; the open loop will send {rate} req/s"
    ));
    Ok(rate)
}

fn order(arguments: &DemoArguments, plan: &Plan, workers: u32, mode: Mode) -> Order {
    Order {
        number: 0,
        mode,
        phases: plan.slot,
        window: plan.window,
        sample: plan.sample,
        workers,
        hogs: arguments.hogs,
        connections: arguments.connections,
        rate: 1,
        seed: arguments.seed,
    }
}

fn cpus() -> u32 {
    std::thread::available_parallelism()
        .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// The client is one thread and needs a CPU of its own, or it would measure itself.
fn default_workers() -> u32 {
    cpus().saturating_sub(1).clamp(1, 1024)
}
