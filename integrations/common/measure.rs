//! What the measuring examples share: the same tenants on one tokio runtime, on two, and in groups.
#![allow(dead_code)] // each example uses its part

use std::future::Future;
use std::time::{Duration, Instant};

use quotient::{Group, Preempt, Scheduler};
use tokio::runtime::{Builder, Handle, Runtime};

/// Where the tenants live.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Tokio,
    TwoRuntimes,
    Quotient,
}

/// The set-ups, in the order of the tables.
pub const MODES: [Mode; 3] = [Mode::Tokio, Mode::TwoRuntimes, Mode::Quotient];

/// The runtimes of a mode, of two workers each, and its scheduler.
pub struct Rig {
    shared: Runtime,
    second: Option<Runtime>,
    pub scheduler: Option<Scheduler>,
}

/// Who runs a tenant's futures.
#[derive(Clone)]
pub enum Host {
    Tokio(Handle),
    Group(Group),
}

impl Rig {
    pub fn new(mode: Mode) -> Self {
        let runtime = || {
            Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
        };
        let shared = runtime().expect("a runtime");
        let entered = shared.enter();
        let builder = || Scheduler::builder().vcpus(2).preempt(Preempt::default());
        let scheduler = (mode == Mode::Quotient).then(|| builder().build().expect("a scheduler"));
        drop(entered);
        let second = (mode == Mode::TwoRuntimes).then(|| runtime().expect("a runtime"));
        Self {
            shared,
            second,
            scheduler,
        }
    }

    /// A tenant; of two runtimes the second is for who `is_victim`.
    pub fn tenant(&self, path: &str, weight: u32, is_victim: bool) -> Host {
        let group = |scheduler: &Scheduler| {
            scheduler
                .group(path)
                .expect("a path")
                .weight(weight)
                .create()
        };
        match (&self.scheduler, &self.second) {
            (Some(scheduler), _) => Host::Group(group(scheduler).expect("a group")),
            (None, Some(second)) if is_victim => Host::Tokio(second.handle().clone()),
            _ => Host::Tokio(self.shared.handle().clone()),
        }
    }

    /// Leaves what still runs behind; the process ends soon.
    pub fn abandon(self) {
        self.shared.shutdown_background();
        if let Some(second) = self.second {
            second.shutdown_background();
        }
    }
}

impl Host {
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Tokio(handle) => drop(handle.spawn(future)),
            Self::Group(group) => drop(group.spawn(future)),
        }
    }

    /// CPU time of the group, in seconds; not a number without one.
    pub fn clock(&self) -> f64 {
        match self {
            Self::Tokio(_) => f64::NAN,
            Self::Group(group) => group.cpu_time().as_secs_f64(),
        }
    }
}

/// Calls `at` every `interval` for `seconds`, with the time at which it was due: by the calling thread, which is no runtime's.
pub fn every(interval: Duration, seconds: f64, mut at: impl FnMut(Instant)) {
    let (begun, mut due) = (Instant::now(), Instant::now());
    while begun.elapsed().as_secs_f64() < seconds {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        at(due);
        due += interval;
    }
}

/// The value below which `part` of the values lie.
pub fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len().saturating_sub(1) as f64 * part) as usize;
    values.get(index).copied().unwrap_or(f64::NAN)
}

/// CPU time of the process so far, in seconds, that of threads which have ended included. Exact to the kernel's hundredths of a second.
pub fn process_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name, in parentheses, may hold anything; user and system time are the 12th and 13th field behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// Waits until what the row before has left behind has ended, a second at most; says so if it has not.
pub fn quiet() {
    for _ in 0..10 {
        let before = process_cpu();
        std::thread::sleep(Duration::from_millis(100));
        if process_cpu() - before < 0.02 {
            return;
        }
    }
    println!("  what was left behind runs on: the next row is not to be used");
}

/// Seconds a row, as the first argument says.
pub fn seconds() -> f64 {
    std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(4.0)
}
