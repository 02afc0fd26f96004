//! Events a second on machines of different sizes: `cargo run --release -p quotient-sim --example speed`.

use quotient_sim::{Simulation, speed};
use quotient_trace::Discard;
use std::time::Instant;

fn main() {
    println!("cpus tasks events events/s realtime");
    for (cpus, tasks) in speed::SIZES {
        let plan = speed::plan(cpus, tasks, 1.0);
        let begin = Instant::now();
        let mut simulation = Simulation::new(&plan, Discard).expect("a valid plan");
        simulation.run().expect("a run to its end");
        let seconds = begin.elapsed().as_secs_f64();
        let events = simulation.events();
        let simulated = simulation.now().0 as f64 / 1e9;
        println!(
            "{cpus} {tasks} {events} {:.1} M/s {:.1}x {:?}",
            events as f64 / seconds / 1e6,
            simulated / seconds,
            simulation.outcome().mechanisms
        );
    }
}
