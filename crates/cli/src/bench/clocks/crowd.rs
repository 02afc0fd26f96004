//! Threads that are members of the group and read clocks together.

use std::hint::black_box;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quotient::{Group, ThreadMeter};

use super::naive::Naive;
use crate::failure::Failure;

/// A clock of a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The kernel's `clock_gettime(CLOCK_PROCESS_CPUTIME_ID)`.
    Process,
    /// The kernel's `times()`.
    Times,
    /// Quotient's group clock, with the caller brought up to date.
    Group,
    /// Its sum alone: what all have published.
    GroupSum,
    /// A clock that brings every thread up to date.
    Naive,
}

impl Clock {
    /// Every clock, the kernel's first.
    pub const ALL: [Self; 5] = [
        Self::Process,
        Self::Times,
        Self::Group,
        Self::GroupSum,
        Self::Naive,
    ];

    /// What it is called in the results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "clock_gettime",
            Self::Times => "times",
            Self::Group => "group",
            Self::GroupSum => "group-sum",
            Self::Naive => "naive",
        }
    }
}

/// What the threads are to do next.
#[derive(Clone, Copy, Debug)]
enum Order {
    Read { clock: Clock, calls_each: u64 },
    Leave,
}

/// What one thread did.
#[derive(Clone, Copy, Debug)]
struct Part {
    started: Instant,
    ended: Instant,
    calls: u64,
    steps_back: u64,
}

/// One round of all threads.
#[derive(Debug)]
pub struct Lap {
    /// From the first thread's first call to the last thread's last.
    pub elapsed: Duration,
    /// Calls of all threads.
    pub calls: u64,
    /// Readings less than the same thread's last one.
    pub steps_back: u64,
}

/// What leader and threads share.
#[derive(Debug)]
struct Shared {
    group: Group,
    naive: Naive,
    barrier: Barrier,
    order: Mutex<Order>,
    parts: Mutex<Vec<Part>>,
}

/// Threads, each metered for the group.
#[derive(Debug)]
pub struct Crowd {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(), Failure>>>,
}

impl Crowd {
    /// Starts `threads` threads; they wait.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn gather(group: &Group, threads: usize) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            group: group.clone(),
            naive: Naive::new(threads),
            barrier: Barrier::new(threads + 1),
            order: Mutex::new(Order::Leave),
            parts: Mutex::new(Vec::with_capacity(threads)),
        });
        let spawn = |index: usize| {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name(format!("reader-{index}"))
                .stack_size(256 << 10)
                .spawn(move || attend(&shared))
                .map_err(Failure::during("cannot start a thread"))
        };
        // A thread that is refused leaves the others waiting, so the process must end then, which it does.
        let threads = (0..threads).map(spawn).collect::<Result<_, _>>()?;
        shared.barrier.wait();
        Ok(Self { shared, threads })
    }

    /// Threads that the group counts as metered now.
    pub fn members(&self) -> usize {
        self.shared.group.metered_threads()
    }

    /// All threads read `clock`, `calls` times together.
    pub fn read(&mut self, clock: Clock, calls: u64) -> Lap {
        let calls_each = (calls / self.threads.len() as u64).max(1);
        lock(&self.shared.parts).clear();
        *lock(&self.shared.order) = Order::Read { clock, calls_each };
        self.shared.barrier.wait();
        self.shared.barrier.wait();
        let parts = lock(&self.shared.parts);
        let first = parts.iter().map(|part| part.started).min();
        let last = parts.iter().map(|part| part.ended).max();
        Lap {
            elapsed: first
                .zip(last)
                .map_or(Duration::ZERO, |(first, last)| last - first),
            calls: parts.iter().map(|part| part.calls).sum(),
            steps_back: parts.iter().map(|part| part.steps_back).sum(),
        }
    }

    /// The threads end.
    ///
    /// # Errors
    /// When one of them could not be metered.
    pub fn dismiss(self) -> Result<(), Failure> {
        *lock(&self.shared.order) = Order::Leave;
        self.shared.barrier.wait();
        for thread in self.threads {
            thread
                .join()
                .map_err(|_| Failure::Run("a reader panicked".into()))??;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The life of one thread: obeys orders between barriers, metered throughout.
fn attend(shared: &Shared) -> Result<(), Failure> {
    let meter = ThreadMeter::enter(&shared.group);
    shared.barrier.wait();
    loop {
        shared.barrier.wait();
        let order = *lock(&shared.order);
        let Order::Read { clock, calls_each } = order else {
            break;
        };
        let part = read(shared, clock, calls_each);
        lock(&shared.parts).push(part);
        shared.barrier.wait();
    }
    let mut meter = meter.map_err(Failure::during("cannot meter a thread"))?;
    meter
        .leave()
        .map_err(Failure::during("cannot end a meter"))?;
    Ok(())
}

fn read(shared: &Shared, clock: Clock, calls: u64) -> Part {
    match clock {
        Clock::Process => repeat(calls, process_clock),
        Clock::Times => repeat(calls, || {
            quotient_keys::bench::process_times().unwrap_or_default()
        }),
        Clock::Group => repeat(calls, || nanos(shared.group.cpu_time())),
        Clock::GroupSum => repeat(calls, || nanos(shared.group.published_cpu_time())),
        Clock::Naive => repeat(calls, || shared.naive.read()),
    }
}

/// Calls `read` and looks whether it goes back.
#[inline]
fn repeat(calls: u64, read: impl Fn() -> u64) -> Part {
    let started = Instant::now();
    let (mut last, mut steps_back) = (0, 0);
    for _ in 0..calls {
        let now = black_box(read());
        steps_back += u64::from(now < last);
        last = now;
    }
    Part {
        started,
        ended: Instant::now(),
        calls,
        steps_back,
    }
}

/// As nanoseconds; the sum of seconds and their fraction, as a `timespec` has them.
#[inline]
fn nanos(time: Duration) -> u64 {
    time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())
}

#[cfg(unix)]
fn process_clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

#[cfg(not(unix))]
fn process_clock() -> u64 {
    0
}
