//! `quotient bench flip`: what it costs to flip keys, in every mode, beside a thread that executes their sites.
//!
//! The mail that batched the kernel's jump labels (April 2019) flipped a key of 56 sites in 57 ms one site at a time and in
//! 1.4 ms in a batch, with 168 interrupts against 3, and paid for it in the breakpoint's handler, which searches. All of
//! that is here, with what came after: `strict` and `biased` change one byte a site, and the last needs one barrier to
//! enable and none to disable.

mod contest;
mod peer;
mod sites;
mod syscalls;

use std::hint::black_box;
use std::time::{Duration, Instant};

use quotient_keys::bench::{Lookup, Rival, trap_ns};
use quotient_keys::{Mode, Writes, set_mode, set_writes, status};
use serde::Serialize;

use self::peer::{Peer, Times};
use self::sites::{Subject, subjects};
use self::syscalls::{Confirmation, Cost};
pub use self::syscalls::{FlipProbeArguments, probe};
use super::goal::{self, Goal};
use super::{KeysArguments, print_json};
use crate::demo::confine;
use crate::failure::Failure;

/// The biased mode with [`Writes::Coalesced`].
const COALESCED: &str = "biased, coalesced";
/// Numbers of sites whose flips are counted.
const COUNTED: [usize; 3] = [1, 56, 4096];
/// Time spent on one row.
const ROW_TIME: Duration = Duration::from_millis(250);
/// The same with `--quick`.
const ROW_TIME_QUICK: Duration = Duration::from_millis(40);
/// One at a time, more sites than this take a second or so a flip: left out with `--quick`.
const SLOW_SITES: usize = 512;
/// A row whose peer was seen running in fewer flips than this says little.
const PROVEN_MIN: usize = 10;
/// Sites among which the handler's search is timed.
const SEARCHED: [usize; 4] = [1, 56, 4096, 16_384];
/// Searches a figure.
const SEARCHES: usize = 1_000_000;
/// Traps that are timed.
const TRAPS: u32 = 10_000;
/// Largest share of a trap that the search may take.
const SEARCH_SHARE_MAX: f64 = 0.05;
/// Longest biased flip of 4,096 dense sites, microseconds.
const DENSE_US_MAX: f64 = 100.0;

/// One mode, one set of sites.
#[derive(Debug, Serialize)]
struct Row {
    mode: &'static str,
    sites: usize,
    layout: &'static str,
    /// Median microseconds of an enabling flip with a running peer.
    enable_us: f64,
    disable_us: f64,
    /// Barriers of an enabling flip, as the engine counts them; `None` for another crate's engine.
    barriers: Option<u64>,
    disable_barriers: Option<u64>,
    /// Traps that the peer ran into, during all flips of the row.
    traps: Option<u64>,
    /// Whether enough flips were seen with the peer on its processor; the medians are over those alone.
    peer_running: bool,
    peer_running_share: f64,
    flips: usize,
}

/// The search of the breakpoint's handler.
#[derive(Debug, Serialize)]
struct Search {
    sites: usize,
    ns: f64,
    /// Its share of the least that a trap costs.
    share_of_trap: Option<f64>,
}

#[derive(Debug, Default, Serialize)]
struct Results {
    default_mode: String,
    /// Why code is not patched here, if it is not.
    soft: Option<String>,
    rows: Vec<Row>,
    search: Vec<Search>,
    /// The least that a trap costs, ns.
    trap_ns: Option<f64>,
    confirmed: Vec<Confirmation>,
    /// What a pair of flips costs, by other programs' count.
    costs: Vec<Cost>,
    /// One barrier beside a running peer, microseconds.
    barrier_us: Option<f64>,
    goals: Vec<Goal>,
}

/// What the measurements share.
struct Measuring<'a> {
    peer: &'a Peer,
    subjects: &'a [Subject],
    quick: bool,
}

/// Measures and prints a table, or one JSON object.
///
/// # Errors
/// When sites are missing, a flip is refused, or a site does not follow its key.
pub fn run(arguments: &KeysArguments) -> Result<(), Failure> {
    let status = status();
    let mut results = Results {
        default_mode: status.default_mode.to_string(),
        soft: status.soft_reason.map(|reason| reason.to_string()),
        ..Results::default()
    };
    if status.default_mode != Mode::Soft {
        measure(arguments, &mut results)?;
    }
    if arguments.json {
        return print_json(&results);
    }
    print_end(&results);
    Ok(())
}

fn measure(arguments: &KeysArguments, results: &mut Results) -> Result<(), Failure> {
    let subjects = subjects();
    let peer = Peer::new();
    std::thread::scope(|scope| {
        scope.spawn(|| peer.run(&subjects));
        // The figures show it if both share a processor.
        let _ = confine::off_last(1);
        let measuring = Measuring {
            peer: &peer,
            subjects: &subjects,
            quick: arguments.quick,
        };
        let measured = measuring.all(arguments.json, results);
        peer.stop();
        measured
    })?;
    results.trap_ns = trap_ns(TRAPS);
    results.search = SEARCHED
        .map(|sites| search(sites, results.trap_ns))
        .into_iter()
        .collect();
    let share = results.search.last().and_then(|last| last.share_of_trap);
    results.goals.extend(share.map(|share| {
        Goal::at_most(
            "handler's search among 16384 sites, share of a trap",
            share,
            SEARCH_SHARE_MAX,
        )
    }));
    let barriers = |mode: Mode| {
        let of_56 = |row: &&Row| row.mode == mode.name() && row.sites == 56;
        let row = results.rows.iter().find(of_56)?;
        row.barriers.zip(row.disable_barriers)
    };
    results.confirmed = [Mode::OneByOne, Mode::Int3, Mode::Strict, Mode::Biased]
        .into_iter()
        .filter_map(|mode| barriers(mode).map(|(on, off)| syscalls::confirm(mode, 56, on + off)))
        .collect();
    results.costs = COUNTED
        .into_iter()
        .flat_map(|sites| {
            [Writes::Exact, Writes::Coalesced].map(|writes| syscalls::cost(sites, writes))
        })
        .collect();
    Ok(())
}

impl Measuring<'_> {
    fn all(&self, json: bool, results: &mut Results) -> Result<(), Failure> {
        let mut rival = Rival::take();
        if !json {
            print_head();
        }
        let mut keep = |row: Row| {
            if !json {
                row.print();
            }
            results.rows.push(row);
        };
        for mode in [Mode::OneByOne, Mode::Int3, Mode::Strict, Mode::Biased] {
            for subject in self.subjects {
                let is_slow = mode == Mode::OneByOne && subject.sites > SLOW_SITES;
                if !(self.quick && is_slow) {
                    keep(self.row(mode, subject)?);
                }
            }
        }
        set_writes(Writes::Coalesced);
        for subject in self
            .subjects
            .iter()
            .filter(|subject| subject.layout == "dense")
        {
            let row = self.row(Mode::Biased, subject)?;
            keep(Row {
                mode: COALESCED,
                ..row
            });
        }
        set_writes(Writes::Exact);
        for sites in Rival::SITES {
            if let Some(rival) = &mut rival {
                keep(self.rival_row(rival, sites)?);
            }
        }
        let contest = contest::goals(self, &mut rival)?;
        results.barrier_us = Self::barrier_us(&results.rows);
        results.goals = own_goals(&results.rows);
        results.goals.extend(contest);
        Ok(())
    }

    /// A barrier's own cost: what enabling one site takes more than disabling it, which writes as much.
    fn barrier_us(rows: &[Row]) -> Option<f64> {
        let row = rows.iter().find(|row| {
            row.mode == Mode::Biased.name() && row.sites == 1 && row.layout == "dense"
        })?;
        Some(row.enable_us - row.disable_us)
    }

    fn row_time(&self) -> Duration {
        if self.quick { ROW_TIME_QUICK } else { ROW_TIME }
    }

    fn subject(&self, sites: usize) -> Result<(usize, &Subject), Failure> {
        self.subjects
            .iter()
            .enumerate()
            .find(|(_, subject)| subject.sites == sites && subject.layout == "dense")
            .ok_or_else(|| Failure::Run(format!("no {sites} dense sites")))
    }

    /// Flips of so many dense sites in that mode.
    fn times(&self, mode: Mode, sites: usize, row_time: Duration) -> Result<Times, Failure> {
        let (index, subject) = self.subject(sites)?;
        set_mode(mode).map_err(Failure::during("cannot change the mode"))?;
        self.peer.execute(index);
        let mut refused = None;
        let mut times = Times::default();
        self.peer
            .time_pairs(takes_long(mode, sites), row_time, &mut times, |on| {
                refused = subject.key.set(on).err().or(refused.take());
            });
        match refused {
            Some(error) => Err(Failure::Run(format!("a flip was refused: {error}"))),
            None => Ok(times),
        }
    }

    fn row(&self, mode: Mode, subject: &Subject) -> Result<Row, Failure> {
        set_mode(mode).map_err(Failure::during("cannot change the mode"))?;
        let before = subject.key.status();
        if before.sites != subject.sites {
            return Err(Failure::Run(format!(
                "{} has {} sites instead of {}: the compiler merged or repeated some",
                before.name, before.sites, subject.sites
            )));
        }
        let index = self
            .subjects
            .iter()
            .position(|other| core::ptr::eq(other, subject));
        self.peer.execute(index.unwrap_or(0));
        let (mut barriers, mut refused) = ((0, 0), None);
        let mut times = Times::default();
        let takes_long = takes_long(mode, subject.sites);
        self.peer.time_pairs(
            takes_long,
            self.row_time(),
            &mut times,
            |on| match subject.key.set(on) {
                Ok(receipt) if on => barriers.0 = receipt.barriers,
                Ok(receipt) => barriers.1 = receipt.barriers,
                Err(error) => refused = Some(error),
            },
        );
        for on in [true, false] {
            subject
                .key
                .set(on)
                .map_err(Failure::during("a flip was refused"))?;
            check((subject.execute)(), subject.sites, on)?;
        }
        if let Some(error) = refused {
            return Err(Failure::Run(format!("a flip was refused: {error}")));
        }
        Ok(Row {
            mode: mode.name(),
            sites: subject.sites,
            layout: subject.layout,
            barriers: Some(barriers.0),
            disable_barriers: Some(barriers.1),
            traps: Some(subject.key.status().traps - before.traps),
            ..Row::of(&times)
        })
    }

    /// The other crate's flips. Nobody executes its sites meanwhile, as it asks; the peer executes others.
    fn rival_times(&self, rival: &mut Rival, sites: usize, row_time: Duration) -> Times {
        let index = self.subject(56).map_or(0, |(index, _)| index);
        self.peer.execute(index);
        let mut times = Times::default();
        self.peer
            .time_pairs(true, row_time, &mut times, |on| rival.set(sites, on));
        times
    }

    fn rival_row(&self, rival: &mut Rival, sites: usize) -> Result<Row, Failure> {
        let times = self.rival_times(rival, sites, self.row_time());
        for on in [true, false] {
            rival.set(sites, on);
            check(rival.execute(sites), sites, on)?;
        }
        Ok(Row {
            mode: "static-keys-crate",
            sites,
            layout: "dense",
            ..Row::of(&times)
        })
    }
}

/// Whether a flip takes so long that its peer may be lost in the middle.
fn takes_long(mode: Mode, sites: usize) -> bool {
    mode == Mode::OneByOne || (mode == Mode::Int3 && sites > 56)
}

fn check(found: u32, sites: usize, on: bool) -> Result<(), Failure> {
    let expected = if on { sites } else { 0 };
    if found as usize == expected {
        return Ok(());
    }
    Err(Failure::Run(format!(
        "{found} of {sites} sites are on after a flip to {on}"
    )))
}

impl Row {
    fn of(times: &Times) -> Self {
        Self {
            mode: "",
            sites: 0,
            layout: "",
            enable_us: times.enable_us(),
            disable_us: times.disable_us(),
            barriers: None,
            disable_barriers: None,
            traps: None,
            peer_running: times.proven() >= PROVEN_MIN.min(times.flips() / 2),
            peer_running_share: times.proven() as f64 / times.flips().max(1) as f64,
            flips: times.flips(),
        }
    }

    fn print(&self) {
        let barriers = self.barriers.zip(self.disable_barriers);
        println!(
            "{:<18} {:>5} {:<6} {:>11.1} {:>11.1} {:>13} {:>7} {:>5.0} %{}",
            self.mode,
            self.sites,
            self.layout,
            self.enable_us,
            self.disable_us,
            barriers.map_or_else(String::new, |(on, off)| format!("{on}/{off}")),
            self.traps
                .map_or_else(String::new, |traps| traps.to_string()),
            self.peer_running_share * 100.0,
            if self.peer_running {
                ""
            } else {
                "  doubtful: use a quiet machine"
            },
        );
    }
}

fn own_goals(rows: &[Row]) -> Vec<Goal> {
    let find = |mode: Mode, sites: usize| {
        rows.iter()
            .find(|row| row.mode == mode.name() && row.sites == sites && row.layout == "dense")
    };
    let mut goals = Vec::new();
    for name in [Mode::Biased.name(), COALESCED] {
        let dense = rows
            .iter()
            .find(|row| row.mode == name && row.sites == 4096 && row.layout == "dense");
        if let Some(dense) = dense {
            for (what, us) in [("enable", dense.enable_us), ("disable", dense.disable_us)] {
                let name = format!("4096 dense sites, {name} {what}, us");
                goals.push(Goal::at_most(&name, us, DENSE_US_MAX));
            }
        }
    }
    for (mode, on, off) in [
        (Mode::Biased, 1.0, 0.0),
        (Mode::Strict, 2.0, 2.0),
        (Mode::Int3, 3.0, 3.0),
        (Mode::OneByOne, 168.0, 168.0),
    ] {
        let counted = find(mode, 56).and_then(|row| row.barriers.zip(row.disable_barriers));
        if let Some((enable, disable)) = counted {
            let name = format!("56 sites, barriers of a flip, {mode}");
            goals.push(Goal::exactly(&format!("{name}, enable"), enable as f64, on));
            goals.push(Goal::exactly(
                &format!("{name}, disable"),
                disable as f64,
                off,
            ));
        }
    }
    goals
}

/// Times the search among so many sites, in an order that visits the whole table: one trap knows nothing of the last.
fn search(sites: usize, trap_ns: Option<f64>) -> Search {
    /// Distance of two sites, bytes.
    const STRIDE: usize = 24;
    const FIRST: usize = 4096;
    let lookup = Lookup::new((0..sites).map(|index| (FIRST + index * STRIDE, index, 0)));
    let order: Vec<usize> = (0..sites)
        .map(|index| FIRST + (index * 7919 % sites) * STRIDE)
        .collect();
    let started = Instant::now();
    for &address in order.iter().cycle().take(SEARCHES) {
        black_box(lookup.find(black_box(address)));
    }
    let ns = started.elapsed().as_secs_f64() * 1e9 / SEARCHES as f64;
    Search {
        sites,
        ns,
        share_of_trap: trap_ns.map(|trap_ns| ns / trap_ns),
    }
}

fn print_head() {
    println!("medians over flips during which the peer was running, which executes the sites");
    println!(
        "{:<18} {:>5} {:<6} {:>11} {:>11} {:>13} {:>7} {:>7}",
        "mode", "sites", "layout", "enable us", "disable us", "barriers", "traps", "peer ran"
    );
}

fn print_end(results: &Results) {
    if let Some(reason) = &results.soft {
        println!("code is not patched here: {reason}");
    }
    if let Some(ns) = results.trap_ns {
        println!("\na trap through SIGTRAP to an empty handler: {ns:.0} ns");
    }
    for search in &results.search {
        let share = search.share_of_trap.unwrap_or(f64::NAN) * 100.0;
        println!(
            "handler's search among {:>6} sites: {:>5.1} ns, {share:.1} % of a trap",
            search.sites, search.ns
        );
    }
    if !results.confirmed.is_empty() {
        println!();
    }
    for confirmed in &results.confirmed {
        confirmed.print();
    }
    println!("\nflipping on and off in the biased mode, as strace and callgrind count it");
    for cost in &results.costs {
        cost.print();
    }
    if let Some(us) = results.barrier_us {
        println!("a barrier beside a running peer: {us:.1} us");
    }
    goal::print(&results.goals);
}
