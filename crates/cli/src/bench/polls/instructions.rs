//! What preemption costs where no poll is long: instructions of ping-pong and yields with it off, and on and never needed.
//!
//! One virtual CPU, whose thread is counted by callgrind in a child: `valgrind --tool=callgrind quotient bench polls-probe`. Time
//! passes by polls (`counting_clock`), so that what is executed does not depend on how fast it is; the children with few rounds
//! are taken off those with many.

use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use quotient::{Preempt, Scheduler};
use serde::Serialize;

use crate::bench::goal::Goal;
use crate::bench::pipe::callgrind;
use crate::bench::spawner::{QuotientSpawner, Spawner};
use crate::bench::workload::{Shape as Workload, YieldKind};
use crate::failure::Failure;

/// Virtual length of a poll while instructions are counted.
const STEP: Duration = Duration::from_nanos(250);
/// Rounds that are counted: some hundred slices, since whether a task that has yielded is the best choice all the same depends on where in its slice it is.
const ROUNDS: u64 = 1_000_000;
/// The same with `--quick`.
const ROUNDS_QUICK: u64 = 100_000;
/// How much more a round may cost with preemption on and never needed. Unit: per cent.
const MORE_PCT: f64 = 2.0;

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Two tasks that wake each other
    Pingpong,
    /// Two tasks that yield in turn
    Yields,
}

impl Shape {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pingpong => "ping-pong",
            Self::Yields => "yields",
        }
    }

    fn workload(self) -> Workload {
        match self {
            Self::Pingpong => Workload::PingPongNotify,
            Self::Yields => Workload::Yields(YieldKind::SelfWake, 2),
        }
    }
}

/// Whether polls can be interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Off, and the program has asked for its code to be patched
    Off,
    /// Off, and it has not: gates are loads
    OffUnpatched,
    /// On and never needed
    On,
}

impl Variant {
    const ALL: [Self; 3] = [Self::Off, Self::OffUnpatched, Self::On];

    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::OffUnpatched => "off, gates are loads",
            Self::On => "on and never needed",
        }
    }
}

/// What the counted child takes.
#[derive(Debug, Clone, Args)]
pub struct PollsProbeArguments {
    /// What is played
    #[arg(long)]
    shape: Shape,
    /// Whether polls can be interrupted
    #[arg(long)]
    variant: Variant,
    /// Rounds
    #[arg(long, value_parser = value_parser!(u64).range(0..=100_000_000))]
    rounds: u64,
}

/// One row.
#[derive(Debug, Serialize)]
pub struct Count {
    pub shape: Shape,
    pub variant: Variant,
    /// A round, a yield.
    pub instructions: f64,
    /// Conditional and indirect branches a round.
    pub branches: f64,
    /// Percent more instructions than with preemption off.
    pub more_pct: f64,
}

/// Counts all rows.
///
/// # Errors
/// Why they cannot be counted.
pub fn count(quick: bool) -> Result<Vec<Count>, String> {
    if !callgrind::is_here() {
        return Err("no valgrind here".into());
    }
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let mut counts = Vec::new();
    for shape in [Shape::Pingpong, Shape::Yields] {
        let mut off = None;
        for variant in Variant::ALL {
            let name = |value: Option<clap::builder::PossibleValue>| {
                value.map_or_else(String::new, |value| value.get_name().to_owned())
            };
            let arguments = [
                "polls-probe".to_owned(),
                "--shape".into(),
                name(shape.to_possible_value()),
                "--variant".into(),
                name(variant.to_possible_value()),
            ];
            let counted = callgrind::count_busiest(&arguments, rounds / 10, rounds)?;
            let instructions = counted.instructions / rounds as f64;
            let base = *off.get_or_insert(instructions);
            counts.push(Count {
                shape,
                variant,
                instructions,
                branches: counted.branches / rounds as f64,
                more_pct: (instructions / base - 1.0) * 100.0,
            });
        }
    }
    Ok(counts)
}

/// The bars.
pub fn goals(counts: &[Count]) -> Vec<Goal> {
    let on = counts.iter().filter(|count| count.variant == Variant::On);
    on.map(|count| {
        let what = format!(
            "{}, preemption on, more instructions, %",
            count.shape.name()
        );
        Goal::at_most(&what, count.more_pct, MORE_PCT)
    })
    .collect()
}

/// The child that is counted.
///
/// # Errors
/// When something cannot be built or a task fails.
pub fn probe(arguments: &PollsProbeArguments) -> Result<(), Failure> {
    if arguments.variant != Variant::OffUnpatched {
        // What valgrind says about the processor is not what is there, so the mode is not left to that.
        quotient_keys::set_mode(quotient_keys::Mode::Biased)
            .map_err(Failure::during("keys are soft here"))?;
        quotient_keys::patch_all();
    }
    let runtime = crate::bench::arena::runtime(1)?;
    let builder = Scheduler::builder()
        .handle(runtime.handle().clone())
        .vcpus(1)
        .counting_clock(STEP);
    let builder = match arguments.variant {
        Variant::On => builder.preempt(Preempt::default()),
        Variant::Off | Variant::OffUnpatched => builder,
    };
    let scheduler = builder
        .build()
        .map_err(Failure::during("cannot build a scheduler"))?;
    let group = scheduler.group("bench").and_then(|group| group.create());
    let spawner = QuotientSpawner {
        group: group.map_err(Failure::during("cannot create a group"))?,
    };
    let workload = arguments.shape.workload();
    let played = spawner.spawn(workload.run(spawner.clone(), arguments.rounds));
    let played = runtime.block_on(played);
    let measured = played.map_err(Failure::during("a task of the probe failed"))?;
    measured.map_err(Failure::Run)?;
    runtime.block_on(scheduler.shutdown());
    Ok(())
}
