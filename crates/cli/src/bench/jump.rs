//! `quotient bench jump`: what a branch costs that is nearly never taken, and what it depends on.
//!
//! This is the `jump_test` of the mail that gated the kernel's bandwidth control by jump labels (July 2011). Its loop ran
//! 15 instructions and 3 branches an iteration with the branch off, 20 and 4 with the branch on; a loop without any
//! branch, an atomic, a plain static and the crate `static-keys` stand beside it here.

use std::hint::black_box;
use std::time::Instant;

use quotient_keys::bench::jump::{JumpTest, Variant};
use quotient_keys::bench::{Executed, count_iteration};
use quotient_keys::{Mode, SoftReason, patch_all, status};
use serde::Serialize;

use super::statistics::Spread;
use super::{KeysArguments, print_json};
use crate::failure::Failure;

/// Iterations of one timed round: some 20 ms.
const ITERATIONS: u64 = 50_000_000;
/// The same with `--quick`.
const ITERATIONS_QUICK: u64 = 2_000_000;
/// Timed rounds a row, one of each variant after the other. Odd, so that the median is a round.
const ROUNDS: usize = 9;
/// Iterations whose outcome is checked.
const CHECKED: u64 = 1_000;
/// Instructions that a key may cost while it is off.
const KEY_OFF_INSTRUCTIONS: f64 = 1.0;

/// A variant with its branch off or on.
#[derive(Debug, Serialize)]
struct Row {
    variant: &'static str,
    on: bool,
    /// Instructions an iteration.
    instructions: Option<f64>,
    /// Jumps, calls and returns an iteration, taken or not.
    branches: Option<f64>,
    /// How both were counted; `None` where they cannot be.
    counted_by: Option<&'static str>,
    /// Instructions more than the loop without a branch.
    more_instructions: Option<f64>,
    /// Median nanoseconds an iteration.
    ns: f64,
    /// Nanoseconds more than the loop without a branch.
    more_ns: f64,
    /// The rounds.
    ns_spread: Option<Spread>,
    /// How often the branch was taken in [`CHECKED`] iterations: none or all.
    taken: u64,
    /// Sites of the key in the loop; keys only.
    sites: Option<usize>,
    /// How many of them were in the form that falls through while this was measured.
    patched: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Results {
    mode: String,
    /// Why code is not patched here, if it is not.
    soft: Option<String>,
    rows: Vec<Row>,
    goals: Vec<super::goal::Goal>,
}

/// Measures and prints a table, or one JSON object.
///
/// # Errors
/// When a key cannot be flipped, or a branch did not do what it was told.
pub fn run(arguments: &KeysArguments) -> Result<(), Failure> {
    patch_all();
    let mut test = JumpTest::take()
        .ok_or_else(|| Failure::Run("the loops are being measured already".into()))?;
    let variants: Vec<Variant> = Variant::ALL
        .into_iter()
        .filter(|&variant| test.has(variant))
        .collect();
    let mut rows = Vec::new();
    for on in [false, true] {
        for &variant in &variants {
            test.set(variant, on)
                .map_err(Failure::during("cannot flip a key"))?;
        }
        rows.extend(measure(&test, &variants, on, arguments.quick)?);
    }
    let status = status();
    let goals = goals(&rows, status.soft_reason);
    let results = Results {
        mode: status.mode.to_string(),
        soft: status.soft_reason.map(|reason| reason.to_string()),
        rows,
        goals,
    };
    if arguments.json {
        return print_json(&results);
    }
    print(&results);
    Ok(())
}

fn measure(
    test: &JumpTest,
    variants: &[Variant],
    on: bool,
    quick: bool,
) -> Result<Vec<Row>, Failure> {
    let iterations = if quick { ITERATIONS_QUICK } else { ITERATIONS };
    let mut times = vec![Vec::new(); variants.len()];
    for _ in 0..ROUNDS {
        for (variant, times) in variants.iter().zip(&mut times) {
            let started = Instant::now();
            black_box(test.run(*variant, black_box(iterations)));
            times.push(started.elapsed().as_secs_f64() * 1e9 / iterations as f64);
        }
    }
    let mut rows = Vec::new();
    for (&variant, times) in variants.iter().zip(&times) {
        let taken = test.run(variant, CHECKED);
        let expected = if on && variant.has_branch() {
            CHECKED
        } else {
            0
        };
        let executed = count_iteration(|count| {
            black_box(test.run(variant, black_box(count)));
        });
        let is_key = variant == Variant::Key;
        let (sites, patched) = test.sites();
        let is_patched = status().mode == Mode::Soft || patched == if on { 0 } else { sites };
        if taken != expected || (is_key && (sites == 0 || !is_patched)) {
            let name = variant.name();
            return Err(Failure::Run(format!(
                "premise of {name}: taken {taken} of {CHECKED} times, {patched} of {sites} sites patched, on: {on}"
            )));
        }
        rows.push(row(variant, on, executed, times, taken));
        if let Some(row) = rows.last_mut().filter(|_| is_key) {
            (row.sites, row.patched) = (Some(sites), Some(patched));
        }
    }
    compare(&mut rows);
    Ok(rows)
}

fn row(variant: Variant, on: bool, executed: Option<Executed>, times: &[f64], taken: u64) -> Row {
    let ns_spread = Spread::of(times);
    Row {
        variant: variant.name(),
        on,
        instructions: executed.map(|executed| executed.instructions),
        branches: executed.map(|executed| executed.branches),
        counted_by: executed.map(|_| "single-step"),
        more_instructions: None,
        ns: ns_spread.map_or(0.0, |spread| spread.median),
        more_ns: 0.0,
        ns_spread,
        taken,
        sites: None,
        patched: None,
    }
}

/// Fills in what each row has more than the one of its shape that has no branch.
fn compare(rows: &mut [Row]) {
    for variant in Variant::ALL {
        let figures = |wanted: Variant| {
            let row = rows.iter().find(|row| row.variant == wanted.name())?;
            Some((row.ns, row.instructions))
        };
        let Some((base_ns, base_instructions)) = figures(variant.base()) else {
            continue;
        };
        for row in rows.iter_mut().filter(|row| row.variant == variant.name()) {
            row.more_ns = row.ns - base_ns;
            row.more_instructions = row
                .instructions
                .zip(base_instructions)
                .map(|(instructions, base)| instructions - base);
        }
    }
}

fn goals(rows: &[Row], soft: Option<SoftReason>) -> Vec<super::goal::Goal> {
    let off = rows
        .iter()
        .find(|row| row.variant == Variant::Key.name() && !row.on)
        .and_then(|row| row.more_instructions)
        .filter(|_| soft.is_none());
    off.map(|instructions| {
        super::goal::Goal::exactly(
            "instructions of a key that is off",
            instructions,
            KEY_OFF_INSTRUCTIONS,
        )
    })
    .into_iter()
    .collect()
}

fn print(results: &Results) {
    println!(
        "an iteration: instructions and branches by single-stepping, ns as medians of {ROUNDS} interleaved rounds; mode {}{}",
        results.mode,
        results
            .soft
            .as_ref()
            .map_or_else(String::new, |reason| format!(" ({reason})")),
    );
    println!(
        "{:<18} {:>3} {:>12} {:>6} {:>9} {:>8} {:>8} {:>6} {:>13}",
        "branch on",
        "on",
        "instructions",
        "more",
        "branches",
        "ns",
        "more",
        "taken",
        "sites patched"
    );
    for row in &results.rows {
        let sites = row.sites.zip(row.patched);
        println!(
            "{:<18} {:>3} {:>12} {:>6} {:>9} {:>8.3} {:>8.3} {:>6} {:>13}",
            row.variant,
            if row.on { "on" } else { "off" },
            figure(row.instructions),
            figure(row.more_instructions),
            figure(row.branches),
            row.ns,
            row.more_ns,
            row.taken,
            sites.map_or_else(String::new, |(sites, patched)| format!(
                "{patched} of {sites}"
            )),
        );
    }
    super::goal::print(&results.goals);
}

fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value}"))
}
