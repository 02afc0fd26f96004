//! Threads that have regions, and somebody who will not leave them alone.

#![allow(dead_code)] // each user takes some of it

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quotient_pause::{Handle, PauseState, Pauser, Settings, Thread};

/// Longer than anything here takes, on a busy machine too: a hang, not a measurement.
pub const HANG: Duration = Duration::from_secs(60);

pub fn pauser() -> Pauser {
    Pauser::install(Settings::default()).expect("SIGURG is free in a test")
}

/// How long the loops run. Unit: milliseconds.
pub fn duration() -> Duration {
    let given = std::env::var("QUOTIENT_PAUSE_MILLIS").ok();
    Duration::from_millis(given.and_then(|text| text.parse().ok()).unwrap_or(700))
}

/// Starts a thread inside `enter`; the handle comes as soon as it is there.
pub fn spawn<R: Send + 'static>(
    body: impl FnOnce(&mut Thread) -> R + Send + 'static,
) -> (Handle, JoinHandle<R>) {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        pauser()
            .enter(|thread| {
                sender.send(thread.handle()).expect("the test waits for it");
                body(thread)
            })
            .expect("enters")
    });
    (receiver.recv().expect("has entered"), thread)
}

/// Waits until `done`; panics at a hang.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < HANG, "hangs: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A small generator of numbers that differ (xorshift), the same in every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Pauses whatever region is in progress, again and again, and lets it stand for a while, until `stop`. Returns how often one
/// stood.
pub fn harass(handle: &Handle, stop: &AtomicBool, seed: u64) -> u64 {
    let mut numbers = Numbers(seed | 1);
    let mut stood = 0;
    while !stop.load(Ordering::Relaxed) {
        let paused = handle.region().and_then(|region| handle.pause(region).ok());
        let Some(pause) = paused else {
            std::thread::sleep(Duration::from_micros(numbers.below(100)));
            continue;
        };
        if pause.wait(Duration::from_millis(5)) == PauseState::Standing {
            std::thread::sleep(Duration::from_micros(numbers.below(200)));
        }
        stood += u64::from(pause.resume());
        std::thread::sleep(Duration::from_micros(numbers.below(150)));
    }
    stood
}

/// Runs `work` in regions on `workers` threads, each with somebody who pauses it all the time; `work` gets the worker's
/// number and the round's. Fails if nobody was ever stopped. Returns the rounds.
pub fn under_pauses(workers: usize, work: impl Fn(usize, u64) + Send + Sync + 'static) -> u64 {
    let work = std::sync::Arc::new(work);
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let rounds = std::sync::Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..workers)
        .map(|index| {
            let (work, stop, rounds) = (work.clone(), stop.clone(), rounds.clone());
            spawn(move |thread| {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    let ((), end) = thread.region(|| work(index, round));
                    assert!(!end.is_detached(), "nobody detaches here");
                    round += 1;
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let harassers: Vec<_> = threads
        .iter()
        .enumerate()
        .map(|(index, (handle, _))| {
            let (handle, stop) = (handle.clone(), stop.clone());
            std::thread::spawn(move || harass(&handle, &stop, 0x9E37_79B9 + index as u64))
        })
        .collect();
    std::thread::sleep(duration());
    // At least some pauses, however slow the machine.
    stop.store(true, Ordering::Relaxed);
    let stood: u64 = harassers
        .into_iter()
        .map(|thread| thread.join().expect("harasses without panic"))
        .sum();
    for (_, thread) in threads {
        until("a worker's end", || thread.is_finished());
        thread.join().expect("works without panic");
    }
    assert!(stood > 0, "nobody was ever stopped");
    rounds.load(Ordering::Relaxed)
}
