//! Events a second on machines of different sizes: `cargo run --release -p quotient-sim --example speed`; with a
//! number of CPUs that row alone, with a second word after it the heavy load.

use quotient_sim::{Simulation, speed};
use quotient_trace::Discard;
use std::time::Instant;

fn main() {
    println!("cpus tasks events (as `bench sim` counts them) events/s realtime");
    let only: Option<u32> = std::env::args().nth(1).and_then(|size| size.parse().ok());
    let heavy = std::env::args().nth(2).is_some();
    for (cpus, tasks) in speed::SIZES {
        if only.is_some_and(|only| only != cpus) {
            continue;
        }
        let scale = if only.is_some() { 0.1 } else { 1.0 };
        let plan = if heavy {
            speed::heavy(cpus, tasks, scale)
        } else {
            speed::plan(cpus, tasks, scale)
        };
        let begin = Instant::now();
        let mut simulation = Simulation::new(&plan, Discard).expect("a valid plan");
        simulation.run().expect("a run to its end");
        let seconds = begin.elapsed().as_secs_f64();
        let events = simulation.events() + simulation.moments();
        let simulated = simulation.now().0 as f64 / 1e9;
        println!(
            "{cpus} {tasks} {events} {:.1} M/s {:.1}x {:?}",
            events as f64 / seconds / 1e6,
            simulated / seconds,
            simulation.outcome().mechanisms
        );
    }
}
