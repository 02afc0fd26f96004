//! The hogs: what they compute, and what of it is seen in windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Steps of nothing between two looks at the clock: some microseconds.
const STEPS: u32 = 5_000;
/// Length of a window. Unit: time. The period of the limits.
pub const WINDOW: Duration = Duration::from_millis(100);

/// CPU time of the calling thread; wall time where there is no such clock, so that the hogs' CPUs mean nothing there.
#[cfg(not(unix))]
pub fn thread_cpu() -> Duration {
    static ZERO: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    ZERO.get_or_init(Instant::now).elapsed()
}

/// CPU time of the calling thread.
#[cfg(unix)]
pub fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// One hog: how long it computes at a time, what it has used, and whether it is to end.
#[derive(Clone)]
pub struct Hog {
    /// CPU time of one poll; none for one that never returns.
    pub poll: Option<Duration>,
    used: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Hog {
    /// Computes once for the length of a poll, and books what it uses as it goes.
    pub fn compute(&self) {
        let started = thread_cpu();
        let mut before = started;
        while self
            .poll
            .is_none_or(|poll| before.saturating_sub(started) < poll)
            && !self.is_over()
        {
            for _ in 0..STEPS {
                std::hint::black_box(0);
            }
            let now = thread_cpu();
            let step = u64::try_from(now.saturating_sub(before).as_nanos()).unwrap_or(0);
            self.used.fetch_add(step, Ordering::Relaxed);
            before = now;
        }
    }

    /// Whether it is to end.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// As a task.
    pub async fn run(self) {
        while !self.is_over() {
            self.compute();
            tokio::task::yield_now().await;
        }
    }
}

/// The hogs of one row, by groups.
pub struct Hogs {
    groups: Vec<Vec<Hog>>,
    stop: Arc<AtomicBool>,
}

impl Hogs {
    /// `each` hogs in each of `groups`.
    pub fn new(groups: usize, each: u64, poll: Option<Duration>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let hog = || Hog {
            poll,
            used: Arc::default(),
            stop: stop.clone(),
        };
        Self {
            groups: (0..groups)
                .map(|_| (0..each).map(|_| hog()).collect())
                .collect(),
            stop,
        }
    }

    /// Those of one group.
    pub fn of(&self, group: usize) -> &[Hog] {
        &self.groups[group]
    }

    /// CPU time so far, by groups. Unit: nanoseconds.
    pub fn used(&self) -> Vec<u64> {
        let sum = |hogs: &Vec<Hog>| {
            let used = hogs.iter().map(|hog| hog.used.load(Ordering::Relaxed));
            used.sum()
        };
        self.groups.iter().map(sum).collect()
    }

    /// Lets all end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What the groups used in one window, and how long it was.
#[derive(Debug, Clone)]
pub struct Window {
    /// By groups. Unit: nanoseconds.
    pub used: Vec<u64>,
    /// Unit: seconds.
    pub wall: f64,
}

/// Cuts time into windows while `go_on`: at each change of `mark` where there is one (a limit's periods, the caller comes just after a
/// change), else every [`WINDOW`].
pub fn windows(
    hogs: &Hogs,
    mark: Option<&dyn Fn() -> u64>,
    go_on: impl Fn() -> bool,
) -> Vec<Window> {
    let mut windows = Vec::new();
    let (mut before, mut began) = (hogs.used(), Instant::now());
    let mut known = mark.map(|mark| mark());
    let pause = if mark.is_some() {
        Duration::from_millis(1)
    } else {
        WINDOW
    };
    while go_on() {
        std::thread::sleep(pause);
        let now = mark.map(|mark| mark());
        if mark.is_some() && now == known {
            continue;
        }
        // Two periods at once: whoever looks was late, and the window is none.
        let whole = known
            .zip(now)
            .is_none_or(|(known, now)| now == known.wrapping_add(1));
        known = now;
        let used = hogs.used();
        let parts = used.iter().zip(&before);
        if whole {
            windows.push(Window {
                used: parts
                    .map(|(now, before)| now.saturating_sub(*before))
                    .collect(),
                wall: began.elapsed().as_secs_f64(),
            });
        }
        (before, began) = (used, Instant::now());
    }
    windows
}

/// Time stolen from all processors so far, by the kernel's account; zero where it says nothing.
pub fn stolen() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(8)?.parse::<u64>().ok());
    // The kernel counts for users in hundredths of a second.
    Duration::from_millis(ticks.unwrap_or(0) * 10)
}
