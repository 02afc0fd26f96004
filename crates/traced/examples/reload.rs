//! What gating costs and saves: an event that is off, behind a key and as `tracing` has it, and a filter put in force on 4,096
//! callsites, by one transaction and by `tracing`'s own reload.
//!
//! `cargo run --release -p quotient-traced --features measure --example reload`. With `loop VARIANT ITERATIONS` one loop only, for a
//! program that counts instructions.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use quotient_keys::bench::count_iteration;
use quotient_traced::{reload, traced};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Timed flips of a kind; odd, so that the median is one of them.
const ROUNDS: usize = 21;
const ITERATIONS: u64 = 50_000_000;

macro_rules! times_8 {
    ($($body:tt)*) => { $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* $($body)* };
}

macro_rules! functions {
    ($($name:ident)+) => {
        $(#[inline(never)]
        fn $name(value: u64) {
            times_8! { times_8! { times_8! { traced!(DEBUG, target: "many", value, "one of many"); } } }
        })+
        const MANY: [fn(u64); 8] = [$($name),+];
    };
}

functions!(first second third fourth fifth sixth seventh eighth);

#[inline(never)]
fn none(iterations: u64) {
    for iteration in 0..iterations {
        black_box(iteration);
    }
}

#[inline(never)]
fn gated(iterations: u64) {
    for iteration in 0..iterations {
        black_box(iteration);
        traced!(DEBUG, target: "looped", iteration, "in the loop");
    }
}

#[inline(never)]
fn plain(iterations: u64) {
    for iteration in 0..iterations {
        black_box(iteration);
        tracing::event!(target: "looped", Level::DEBUG, iteration, "in the loop");
    }
}

#[inline(never)]
fn leaf(left: u64, right: u64) -> u64 {
    left.wrapping_mul(right)
}

#[inline(never)]
fn leaf_gated(left: u64, right: u64) -> u64 {
    traced!(DEBUG, target: "looped", left, right, "in the leaf");
    left.wrapping_mul(right)
}

#[inline(never)]
fn leaf_plain(left: u64, right: u64) -> u64 {
    tracing::event!(target: "looped", Level::DEBUG, left, right, "in the leaf");
    left.wrapping_mul(right)
}

#[inline(never)]
fn call(leaf: fn(u64, u64) -> u64, iterations: u64) {
    let mut product = 1;
    for iteration in 0..iterations {
        product = leaf(black_box(product), iteration | 1);
    }
    black_box(product);
}

/// Name, what runs, and the name of what it is compared with.
type Variant = (&'static str, fn(u64), &'static str);

const VARIANTS: [Variant; 6] = [
    ("none", none, "none"),
    ("gated", gated, "none"),
    ("tracing", plain, "none"),
    ("leaf", |count| call(leaf, count), "leaf"),
    ("leaf-gated", |count| call(leaf_gated, count), "leaf"),
    ("leaf-tracing", |count| call(leaf_plain, count), "leaf"),
];

/// Takes every event and does nothing with it.
struct Sink;

impl<S: tracing::Subscriber> Layer<S> for Sink {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        black_box(event);
    }
}

/// Lets `target` and nothing else through.
fn only(target: &str) -> Targets {
    Targets::new().with_target(target, LevelFilter::TRACE)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Nanoseconds of an iteration: the least of three runs.
fn nanoseconds(run: fn(u64)) -> f64 {
    let times = (0..3).map(|_| {
        let started = Instant::now();
        run(ITERATIONS);
        started.elapsed().as_secs_f64() * 1e9 / ITERATIONS as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

fn print_loops(what: &str) {
    println!("{what}");
    let figures = VARIANTS.map(|(name, run, base)| {
        let executed = count_iteration(run);
        let instructions = executed.map_or(f64::NAN, |executed| executed.instructions);
        (name, base, instructions, nanoseconds(run))
    });
    for (name, base, instructions, ns) in figures {
        let base = figures.iter().find(|figures| figures.0 == base);
        let more = base.map_or(f64::NAN, |base| instructions - base.2);
        println!(
            "  {name:<13} {instructions:>5.1} instructions ({more:+.1})  {ns:>6.3} ns an iteration"
        );
    }
}

/// Switches all of [`MANY`] on and off, `ROUNDS` times each.
fn time_reloads(mut switch: impl FnMut(bool)) -> [Duration; 2] {
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (is_on, times) in [(true, &mut on), (false, &mut off)] {
            let started = Instant::now();
            switch(is_on);
            times.push(started.elapsed());
        }
    }
    [median(on), median(off)]
}

fn print_reloads() -> Result<(), Box<dyn std::error::Error>> {
    let (layer, handle) = tracing_subscriber::reload::Layer::new(only("many"));
    let subscriber = tracing_subscriber::registry().with(Sink.with_filter(layer));
    tracing::subscriber::set_global_default(subscriber)?;
    // Each event once: only then does tracing know its callsite.
    let on = reload("many")?;
    for run in MANY {
        run(1);
    }
    let [filtered_on, filtered_off] = time_reloads(|is_on| {
        let target = if is_on { "many" } else { "nobody" };
        handle.reload(only(target)).expect("the subscriber lives");
    });
    let [gated_on, gated_off] = time_reloads(|is_on| {
        reload(if is_on { "many" } else { "" }).expect("nothing hinders");
    });
    println!(
        "{} of {} callsites on: {} sites, {} barriers, {} writes in one transaction",
        on.on, on.callsites, on.receipt.sites, on.receipt.barriers, on.receipt.writes
    );
    println!("  by keys                 on {gated_on:>10.1?}  off {gated_off:>10.1?}");
    println!("  by tracing's own reload on {filtered_on:>10.1?}  off {filtered_off:>10.1?}");
    quotient_keys::set_writes(quotient_keys::Writes::Coalesced);
    let [gated_on, gated_off] = time_reloads(|is_on| {
        reload(if is_on { "many" } else { "" }).expect("nothing hinders");
    });
    println!("  by keys, coalesced      on {gated_on:>10.1?}  off {gated_off:>10.1?}");
    handle.reload(only("nobody"))?;
    Ok(())
}

fn main() -> ExitCode {
    println!("mode {}", quotient_keys::patch());
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, name, iterations] = arguments.as_slice() {
        let found = VARIANTS.iter().find(|(known, ..)| known == name);
        return match (verb.as_str(), found, iterations.parse()) {
            ("loop", Some((_, run, _)), Ok(iterations)) => {
                run(iterations);
                ExitCode::SUCCESS
            }
            _ => ExitCode::from(2),
        };
    }
    print_loops("no subscriber (tracing looks at its greatest level only):");
    if let Err(error) = print_reloads() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    print_loops("a subscriber that wants another target at every level:");
    ExitCode::SUCCESS
}
