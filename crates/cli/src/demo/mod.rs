//! `quotient demo`: a noisy neighbour on real HTTP traffic, with and without Quotient.
//!
//! ```text
//! demo ── starts, reads lines from ──> demo-server: axum victim + hogs of one mode, on 127.0.0.1:(chosen by the OS)
//!   └──── starts, reads lines from ──> demo-client: closed loop, then open loop, over keep-alive connections
//! ```
//!
//! A run is rounds of slots, one slot a mode, so that a change of the machine's mood hits all modes alike. Each slot
//! has fresh processes. `work` is what a request asks for; `host` is what differs between modes; `hogs` is the
//! neighbour; `child` is why nothing stays behind; `disturbance` says which rounds count; `results` makes rows and curves of them. At the end twenty tenants share one
//! server (`tenants`).

mod arrivals;
mod child;
pub mod client;
pub(crate) mod clock;
pub mod confine;
pub mod disturbance;
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
use crate::report::{self, Facts, Figures, Report};
use mode::Mode;
use plan::Plan;
use slot::{Event, Order, Slot};

/// The open loop's rate, as a part of what plain tokio serves alone. An equal share of the CPU, about half of that
/// capacity, suffices for it with room to spare on a machine that has other things to do as well: the demo shows what a
/// neighbour does to latency, not how a queue behaves near saturation, which the closed loop is for.
const RATE_OF_CAPACITY: f64 = 0.3;

/// How often that is measured at most. Default 3: some four seconds more on a busy machine.
const CALIBRATIONS_MAX: usize = 3;

/// Runs the demo and reports.
///
/// # Errors
/// `Usage` if the picture cannot be written, `Interrupted` on a signal, `Run` when a process fails.
pub fn run(arguments: &DemoArguments) -> Result<(), Failure> {
    match &arguments.scene {
        None => {}
        #[cfg(feature = "fleet")]
        Some(crate::cli::Scene::Fleet(arguments)) => return fleet::run(arguments),
        #[cfg(not(feature = "fleet"))]
        Some(crate::cli::Scene::Fleet(_)) => return Err(crate::cli::without_fleets("demo fleet")),
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
    let own_cpu_for_client = cpus() > workers;
    let mut template = order(arguments, &plan, workers, Mode::Alone);
    template.rate = rate;
    let rounds = take_rounds(
        &plan,
        &template,
        own_cpu_for_client,
        &sender,
        &events,
        &mut progress,
    )?;
    let mut scene = Vec::new();
    for mode in [Mode::Tokio, Mode::Quotient] {
        progress.begin(&format!("20 tenants  {mode:<11}"));
        let slot = tenants::run(mode, workers, plan.tenants, &sender, &events)?;
        progress.finish("done");
        scene.push(slot);
    }
    let validity = disturbance::validity(&rounds, plan.rounds, own_cpu_for_client);
    let all = validity.figures_of_rounds == rounds.len();
    let reasons = disturbance::reasons(&rounds, own_cpu_for_client);
    let of_figures = rounds.iter().zip(reasons);
    let of_figures = of_figures.filter(|(_, reasons)| all || reasons.is_empty());
    let slots: Vec<&Slot> = of_figures.flat_map(|(round, _)| round).collect();
    let facts = Facts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cpus: cpus(),
        workers,
        hogs: arguments.hogs,
        connections: arguments.connections,
        rounds: validity.figures_of_rounds as u32,
        rate_rps: rate,
        seed: arguments.seed,
        confined: confine::SUPPORTED,
        seconds: began.elapsed().as_secs_f64(),
    };
    let figures = Figures {
        rows: results::rows(slots.iter().copied()),
        series: results::series(slots.iter().copied()),
        scene: tenants::scene(&scene),
    };
    Report::new(facts, figures, validity).publish(&arguments.out, arguments.json)
}

/// Rounds until as many count as there should be, or no more may be taken again.
fn take_rounds(
    plan: &Plan,
    template: &Order,
    own_cpu_for_client: bool,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
    progress: &mut Progress,
) -> Result<Vec<Vec<Slot>>, Failure> {
    let mut rounds: Vec<Vec<Slot>> = Vec::new();
    for number in 0..plan.rounds + plan.retakes {
        rounds.push(round(number, plan, template, sender, events, progress)?);
        let reasons = disturbance::reasons(&rounds, own_cpu_for_client);
        if let Some([first, ..]) = reasons.last().map(Vec::as_slice) {
            progress.begin(&format!("{}  does not count", place(number, plan)));
            progress.finish(first);
        }
        let counted = reasons.iter().filter(|reasons| reasons.is_empty());
        if counted.count() >= plan.rounds as usize {
            break;
        }
    }
    Ok(rounds)
}

/// Which round of how many; those that are taken again come on top.
fn place(number: u32, plan: &Plan) -> String {
    format!("{}/{}", number + 1, plan.rounds.max(number + 1))
}

/// One slot of every set-up. Every second round goes backwards, so that what drifts meanwhile is not always on the same set-up's side.
fn round(
    number: u32,
    plan: &Plan,
    template: &Order,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
    progress: &mut Progress,
) -> Result<Vec<Slot>, Failure> {
    let mut modes = Mode::ALL;
    if number % 2 == 1 {
        modes.reverse();
    }
    let mut slots = Vec::with_capacity(modes.len());
    for mode in modes {
        progress.begin(&format!("{}  {mode:<14}", place(number, plan)));
        let mut order = template.clone();
        order.mode = mode;
        order.seed = template.seed.wrapping_add(u64::from(number));
        let slot = slot::run(&order, sender, events, progress)?;
        let row = results::rows([&slot]);
        progress.finish(&row.iter().map(report::brief).collect::<String>());
        slots.push(slot);
    }
    Ok(slots)
}

/// Measures what plain tokio serves alone and takes a part of it. Beside others it is measured again, and the most counts: a load that is too
/// light would flatter every percentile of the run.
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
    let own_cpu_for_client = cpus() > workers;
    let mut capacity: f64 = 0.0;
    for _ in 0..CALIBRATIONS_MAX {
        let slot: Slot = slot::run(&order, sender, events, progress)?;
        capacity = capacity.max(results::capacity_rps(&slot));
        if !disturbance::is_disturbed(&slot, own_cpu_for_client) {
            break;
        }
    }
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
