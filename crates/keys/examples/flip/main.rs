//! Prints what flipping costs, in every mode, beside a peer thread that executes the sites; then the goals.
//!
//! `cargo run --release -p quotient-keys --example flip`

mod sites;
#[cfg(patching)]
#[path = "../../tests/common/steps.rs"]
mod steps;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use quotient_keys::{Mode, set_mode, status};
use sites::{PROGRESS, Subject, subjects};

/// Time spent on one row.
const ROW_TIME: Duration = Duration::from_millis(250);

/// Pairs of flips a row, at most.
const PAIRS_MAX: usize = 200;

/// The peer counts as running if it got this share of the time of a long flip.
const RUNNING_SHARE_MIN: f64 = 0.8;

/// Rows in which the peer was seen running less often than this say little.
const PEER_RUNNING_MIN: f64 = 0.2;

/// Flips of each direction that should have seen the peer running.
const PROVEN_MIN: usize = 10;

/// What the peer executes at the moment.
static PEER_WORK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Medians of one row.
struct Row {
    mode: &'static str,
    sites: usize,
    layout: &'static str,
    enable_us: f64,
    disable_us: f64,
    barriers: (u64, u64),
    traps: u64,
    /// Share of the flips during which the peer was on its processor.
    peer_running: f64,
}

impl Row {
    fn print(&self) {
        println!(
            "{:18} {:5} {:6} {:11.1} {:11.1} {:6}/{:<6} {:7} {:5.0} %",
            self.mode,
            self.sites,
            self.layout,
            self.enable_us,
            self.disable_us,
            self.barriers.0,
            self.barriers.1,
            self.traps,
            self.peer_running * 100.0,
        );
    }
}

fn main() -> ExitCode {
    if status().default_mode == Mode::Soft {
        println!("keys are soft here: {:?}", status().soft_reason);
        return ExitCode::SUCCESS;
    }
    let stop = AtomicBool::new(false);
    let rows = std::thread::scope(|scope| {
        scope.spawn(|| {
            keep_to_processor(1);
            announce_peer();
            while !stop.load(Ordering::Relaxed) {
                run_peer_once();
            }
        });
        keep_to_processor(0);
        let rows = measure_all();
        stop.store(true, Ordering::Relaxed);
        rows
    });
    print_search();
    #[cfg(patching)]
    print_instructions();
    print_goals(&rows);
    ExitCode::SUCCESS
}

/// Keeps this thread on the n-th of the processors it may use, so that the peer and the flips never share one. Where
/// there is only one, or it cannot be done, the column `peer` shows it.
fn keep_to_processor(number: usize) {
    #[cfg(patching)]
    // SAFETY: two calls that read and write a local set of processors, for which all zeroes is valid.
    unsafe {
        let mut allowed: libc::cpu_set_t = core::mem::zeroed();
        let bytes = core::mem::size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, bytes, &raw mut allowed) != 0 {
            return;
        }
        let mut processors = (0..libc::CPU_SETSIZE as usize)
            .filter(|&processor| libc::CPU_ISSET(processor, &allowed));
        if let Some(processor) = processors.nth(number) {
            let mut wanted: libc::cpu_set_t = core::mem::zeroed();
            libc::CPU_SET(processor, &mut wanted);
            libc::sched_setaffinity(0, bytes, &raw const wanted);
        }
    }
    #[cfg(not(patching))]
    let _ = number;
}

/// Number of the clock that counts the peer's processor time.
#[cfg(patching)]
static PEER_CLOCK: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

/// Tells which thread the peer is.
fn announce_peer() {
    #[cfg(patching)]
    // SAFETY: asks about the calling thread, and fills a local.
    unsafe {
        let mut clock = 0;
        if libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) == 0 {
            PEER_CLOCK.store(clock, Ordering::Release);
        }
    }
}

/// Processor time of the peer so far: proves whether a flip had a running peer.
fn peer_cpu_time() -> Duration {
    #[cfg(patching)]
    // SAFETY: fills a local; the peer lives as long as there are measurements.
    unsafe {
        let mut time: libc::timespec = core::mem::zeroed();
        if libc::clock_gettime(PEER_CLOCK.load(Ordering::Acquire), &raw mut time) == 0 {
            return Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
        }
    }
    Duration::ZERO
}

fn run_peer_once() {
    let work = PEER_WORK.load(Ordering::Relaxed);
    if work.is_null() {
        std::hint::spin_loop();
        return;
    }
    // SAFETY: `measure` stores functions of this type only.
    let work: fn() -> u32 = unsafe { core::mem::transmute(work) };
    black_box(work());
}

fn measure_all() -> Vec<Row> {
    println!("mode               sites layout   enable_us  disable_us   barriers     traps   peer");
    let mut rows = Vec::new();
    for mode in [Mode::OneByOne, Mode::Int3, Mode::Strict, Mode::Biased] {
        for subject in &subjects() {
            let row = measure(mode, subject);
            row.print();
            rows.push(row);
        }
    }
    #[cfg(patching)]
    {
        let row = measure_other_crate();
        row.print();
        rows.push(row);
    }
    rows
}

fn measure(mode: Mode, subject: &Subject) -> Row {
    set_mode(mode).expect("the mode is available");
    assert_eq!(
        subject.key.status().sites,
        subject.sites,
        "the compiler merged or repeated sites"
    );
    PEER_WORK.store(subject.execute as *mut (), Ordering::Relaxed);
    let traps_before = subject.key.status().traps;
    let mut barriers = (0, 0);
    let takes_long = mode == Mode::OneByOne || (mode == Mode::Int3 && subject.sites > 56);
    let times = time_pairs(takes_long, |on| {
        let receipt = subject.key.set(on).expect("nothing hinders a flip");
        if on {
            barriers.0 = receipt.barriers
        } else {
            barriers.1 = receipt.barriers
        }
    });
    subject.key.enable().expect("nothing hinders a flip");
    assert_eq!(
        (subject.execute)() as usize,
        subject.sites,
        "every site follows"
    );
    subject.key.disable().expect("nothing hinders a flip");
    assert_eq!((subject.execute)(), 0, "every site follows");
    Row {
        mode: mode.name(),
        sites: subject.sites,
        layout: subject.layout,
        enable_us: times.enable_us,
        disable_us: times.disable_us,
        barriers,
        traps: subject.key.status().traps - traps_before,
        peer_running: times.peer_running,
    }
}

#[cfg(patching)]
fn measure_other_crate() -> Row {
    sites::other_crate::prepare();
    let peer = subjects()
        .into_iter()
        .find(|subject| subject.sites == 8)
        .expect("is in the list");
    PEER_WORK.store(peer.execute as *mut (), Ordering::Relaxed);
    let times = time_pairs(true, sites::other_crate::set);
    sites::other_crate::set(true);
    assert_eq!(sites::other_crate::execute(), 56);
    sites::other_crate::set(false);
    assert_eq!(sites::other_crate::execute(), 0);
    Row {
        mode: "static-keys-crate",
        sites: 56,
        layout: "dense",
        enable_us: times.enable_us,
        disable_us: times.disable_us,
        barriers: (0, 0),
        traps: 0,
        peer_running: times.peer_running,
    }
}

struct Times {
    enable_us: f64,
    disable_us: f64,
    peer_running: f64,
}

/// Medians over flips during which the peer was running, if there are any.
///
/// A flip that takes long may lose its peer in the middle, so it is judged by the peer's processor time. Asking for that
/// disturbs what follows, so a short flip is judged by the peer's progress.
fn time_pairs(takes_long: bool, mut set: impl FnMut(bool)) -> Times {
    let started = Instant::now();
    let (mut enables, mut disables) = (Vec::new(), Vec::new());
    let (mut seen_running, mut flips) = (0, 0);
    // Goes on for a while if the machine is busy and the peer was seldom seen.
    let has_enough = |seen_running: usize, flips: usize| {
        let elapsed = started.elapsed();
        let is_proven = seen_running >= 2 * PROVEN_MIN || elapsed > 6 * ROW_TIME;
        flips >= 4 && is_proven && (elapsed > ROW_TIME || flips >= 2 * PAIRS_MAX)
    };
    while !has_enough(seen_running, flips) {
        for on in [true, false] {
            wait_for_progress();
            let progress = PROGRESS.load(Ordering::Relaxed);
            let peer_time = takes_long.then(peer_cpu_time);
            let flip_started = Instant::now();
            set(on);
            let elapsed = flip_started.elapsed();
            let us = elapsed.as_secs_f64() * 1e6;
            let was_running = match peer_time {
                None => PROGRESS.load(Ordering::Relaxed) != progress,
                Some(before) => {
                    peer_cpu_time().saturating_sub(before) >= elapsed.mul_f64(RUNNING_SHARE_MIN)
                }
            };
            seen_running += usize::from(was_running);
            flips += 1;
            let times = if on { &mut enables } else { &mut disables };
            times.push((!was_running, us));
        }
    }
    Times {
        enable_us: median(enables),
        disable_us: median(disables),
        peer_running: seen_running as f64 / flips as f64,
    }
}

/// Gives the peer a chance to be on its processor.
fn wait_for_progress() {
    const SPINS_MAX: u32 = 100_000;
    let before = PROGRESS.load(Ordering::Relaxed);
    for _ in 0..SPINS_MAX {
        if PROGRESS.load(Ordering::Relaxed) > before + 1 {
            return;
        }
        std::hint::spin_loop();
    }
}

/// The median of the measurements that are not doubtful, or of all if every one is.
fn median(mut measured: Vec<(bool, f64)>) -> f64 {
    if measured.iter().any(|(is_doubtful, _)| !is_doubtful) {
        measured.retain(|(is_doubtful, _)| !is_doubtful);
    }
    measured.sort_by(|left, right| left.1.total_cmp(&right.1));
    measured[measured.len() / 2].1
}

/// The signal handler's search.
fn print_search() {
    const SEARCHES: usize = 1_000_000;
    println!();
    for sites in [1_usize, 56, 4096, 16_384] {
        let lookup = quotient_keys::__bench::Lookup::new(
            (0..sites).map(|index| (4096 + index * 24, index, 0)),
        );
        // The stride visits the whole table; one trap knows nothing of the last one.
        let order: Vec<usize> = (0..sites)
            .map(|index| 4096 + (index * 7919 % sites) * 24)
            .collect();
        let started = Instant::now();
        for &address in order.iter().cycle().take(SEARCHES) {
            black_box(lookup.find(black_box(address)));
        }
        let ns = started.elapsed().as_secs_f64() * 1e9 / SEARCHES as f64;
        println!("handler's search among {sites:6} sites: {ns:5.1} ns");
    }
}

#[cfg(patching)]
fn print_instructions() {
    #[inline(never)]
    fn bare(iterations: u64) {
        for iteration in 0..iterations {
            black_box(iteration);
        }
    }
    #[inline(never)]
    fn with_key(iterations: u64) {
        for iteration in 0..iterations {
            black_box(iteration);
            if quotient_keys::static_branch_unlikely!(sites::COST) {
                println!("never printed");
            }
        }
    }
    #[inline(never)]
    fn with_atomic(iterations: u64) {
        static FLAG: AtomicBool = AtomicBool::new(false);
        for iteration in 0..iterations {
            black_box(iteration);
            if black_box(&FLAG).load(Ordering::Relaxed) {
                println!("never printed");
            }
        }
    }
    println!();
    set_mode(Mode::Biased).expect("the mode is available");
    let base = steps::instructions_per_iteration(bare);
    for (name, run) in [
        ("key, off", with_key as fn(u64)),
        ("relaxed atomic", with_atomic),
    ] {
        let instructions = steps::instructions_per_iteration(run) - base;
        println!("{name:16} {instructions:3} instructions more than no branch");
    }
}

fn print_goals(rows: &[Row]) {
    let find = |mode: &str, sites: usize| {
        rows.iter()
            .find(|row| row.mode == mode && row.sites == sites && row.layout == "dense")
            .expect("was measured")
    };
    let one_by_one = find("one-by-one", 56);
    let int3 = find("int3", 56);
    let biased = find("biased", 56);
    let dense = find("biased", 4096);
    println!();
    let other = rows.iter().find(|row| row.mode == "static-keys-crate");
    for row in [one_by_one, int3, biased, dense].into_iter().chain(other) {
        if row.peer_running < PEER_RUNNING_MIN {
            println!(
                "doubtful: {} with {} sites, the peer was running in {:.0} % of the flips; use a quiet machine",
                row.mode,
                row.sites,
                row.peer_running * 100.0
            );
        }
    }
    let goal = |name: &str, value: f64, bound: f64, is_met: bool| {
        println!(
            "{name:58} {value:9.1}  goal {bound:6}  {}",
            if is_met { "met" } else { "MISSED" }
        );
    };
    let at_least = |name: &str, value: f64, bound: f64| goal(name, value, bound, value >= bound);
    let at_most = |name: &str, value: f64, bound: f64| goal(name, value, bound, value <= bound);
    at_least(
        "56 sites, int3 batched against one by one, enable, times",
        one_by_one.enable_us / int3.enable_us,
        50.0,
    );
    at_least(
        "56 sites, biased enable against one by one, times",
        one_by_one.enable_us / biased.enable_us,
        100.0,
    );
    if let Some(other) = other {
        at_least(
            "56 sites, biased enable against static-keys, times",
            other.enable_us / biased.enable_us,
            250.0,
        );
        at_least(
            "56 sites, biased disable against static-keys, times",
            other.disable_us / biased.disable_us,
            1000.0,
        );
    }
    at_most(
        "4096 dense sites, biased enable, us",
        dense.enable_us,
        100.0,
    );
    at_most(
        "4096 dense sites, biased disable, us",
        dense.disable_us,
        100.0,
    );
    at_most("barriers of a biased enable", biased.barriers.0 as f64, 1.0);
    at_most(
        "barriers of a biased disable",
        biased.barriers.1 as f64,
        0.0,
    );
}
