//! The thread that executes the sites while they are flipped, and the proof that it was running.
//!
//! A barrier is cheap if no other thread is on a processor, so a figure without a running peer says nothing. A short flip
//! counts if the peer's counter moved during it. A long one may lose its peer in the middle, so it counts if the peer got
//! most of the time on a processor; asking for that disturbs what follows, so short flips do not.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::super::statistics::Spread;
use super::sites::{PROGRESS, Subject};
use crate::demo::confine;

/// A long flip counts if the peer had this share of its time.
const RUNNING_SHARE_MIN: f64 = 0.8;
/// Flips that must have been seen with a running peer before a row ends by itself.
const PROVEN_MIN: usize = 20;
/// Flips a row, at most.
const FLIPS_MAX: usize = 400;
/// Flips a row, at least.
const FLIPS_MIN: usize = 4;
/// How much longer than planned a row may take if the peer is seldom seen.
const PATIENCE: u32 = 6;
/// Spins spent on waiting for the peer's next step.
const SPINS_MAX: u32 = 100_000;
/// Stands for "nothing to execute" among the subjects.
const IDLE: usize = usize::MAX;

/// What others tell and ask the peer.
#[derive(Debug)]
pub struct Peer {
    subject: AtomicUsize,
    stop: AtomicBool,
    /// The operating system's number of the peer's thread; 0 before it runs.
    thread: AtomicU64,
}

/// What a row of flips took.
#[derive(Clone, Debug, Default)]
pub struct Times {
    enables: Vec<(bool, f64)>,
    disables: Vec<(bool, f64)>,
}

impl Peer {
    /// A peer that waits; [`Peer::run`] is its thread.
    pub const fn new() -> Self {
        Self {
            subject: AtomicUsize::new(IDLE),
            stop: AtomicBool::new(false),
            thread: AtomicU64::new(0),
        }
    }

    /// The peer's thread: executes the chosen one of `subjects` until it is stopped, on the last processor.
    pub fn run(&self, subjects: &[Subject]) {
        // Where there is one processor only, or it cannot be chosen, the rows show it.
        let _ = confine::to_last(1);
        self.thread.store(own_thread_id(), Ordering::Release);
        while !self.stop.load(Ordering::Relaxed) {
            match subjects.get(self.subject.load(Ordering::Relaxed)) {
                Some(subject) => {
                    black_box((subject.execute)());
                }
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Lets the peer execute one of its subjects.
    pub fn execute(&self, subject: usize) {
        self.subject.store(subject, Ordering::Relaxed);
    }

    /// Ends the peer's thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Flips in pairs for about `row_time` and appends what each flip took.
    pub fn time_pairs(
        &self,
        takes_long: bool,
        row_time: Duration,
        times: &mut Times,
        mut set: impl FnMut(bool),
    ) {
        let started = Instant::now();
        let (mut seen_running, mut flips) = (0, 0);
        let has_enough = |seen_running: usize, flips: usize| {
            let elapsed = started.elapsed();
            let is_proven = seen_running >= PROVEN_MIN || elapsed > PATIENCE * row_time;
            flips >= FLIPS_MIN && is_proven && (elapsed > row_time || flips >= FLIPS_MAX)
        };
        while !has_enough(seen_running, flips) {
            for on in [true, false] {
                wait_for_progress();
                let (was_running, us) = self.time_one(takes_long, || set(on));
                seen_running += usize::from(was_running);
                flips += 1;
                let list = if on {
                    &mut times.enables
                } else {
                    &mut times.disables
                };
                list.push((was_running, us));
            }
        }
    }

    fn time_one(&self, takes_long: bool, flip: impl FnOnce()) -> (bool, f64) {
        let progress = PROGRESS.load(Ordering::Relaxed);
        let peer_time = takes_long.then(|| self.cpu_time());
        let started = Instant::now();
        flip();
        let elapsed = started.elapsed();
        let was_running = match peer_time {
            Some(Some(before)) => self.cpu_time().is_some_and(|after| {
                after.saturating_sub(before) >= elapsed.mul_f64(RUNNING_SHARE_MIN)
            }),
            _ => PROGRESS.load(Ordering::Relaxed) != progress,
        };
        (was_running, elapsed.as_secs_f64() * 1e6)
    }

    /// Time that the peer has had on a processor; `None` where that is not told.
    fn cpu_time(&self) -> Option<Duration> {
        let thread = self.thread.load(Ordering::Acquire);
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
        let ns = text.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Duration::from_nanos(ns))
    }
}

#[cfg(target_os = "linux")]
fn own_thread_id() -> u64 {
    u64::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
fn own_thread_id() -> u64 {
    0
}

/// Gives the peer a chance to be on its processor.
fn wait_for_progress() {
    let before = PROGRESS.load(Ordering::Relaxed);
    for _ in 0..SPINS_MAX {
        if PROGRESS.load(Ordering::Relaxed) > before + 1 {
            return;
        }
        std::hint::spin_loop();
    }
}

impl Times {
    /// Median microseconds of an enabling flip, over those with a running peer if there are any.
    pub fn enable_us(&self) -> f64 {
        median(&self.enables)
    }

    /// The same of a disabling flip.
    pub fn disable_us(&self) -> f64 {
        median(&self.disables)
    }

    /// Flips.
    pub fn flips(&self) -> usize {
        self.enables.len() + self.disables.len()
    }

    /// Flips during which the peer was running.
    pub fn proven(&self) -> usize {
        let all = self.enables.iter().chain(&self.disables);
        all.filter(|(was_running, _)| *was_running).count()
    }
}

fn median(measured: &[(bool, f64)]) -> f64 {
    let has_proven = measured.iter().any(|(was_running, _)| *was_running);
    let kept: Vec<f64> = measured
        .iter()
        .filter(|(was_running, _)| *was_running || !has_proven)
        .map(|(_, us)| *us)
        .collect();
    Spread::of(&kept).map_or(f64::NAN, |spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_leaves_out_flips_without_a_peer() {
        let times = Times {
            enables: vec![(true, 5.0), (false, 1.0), (true, 7.0), (false, 1.0)],
            disables: vec![(false, 2.0), (false, 3.0), (false, 4.0)],
        };
        assert_eq!((times.enable_us(), times.disable_us()), (6.0, 3.0));
        assert_eq!((times.flips(), times.proven()), (7, 2));
    }
}
