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

/// What the hogs of a group use in each period of its limit, booked by themselves as they go. Whoever looks from outside at a period's end comes late,
/// or interrupts them, and what they use until then, at two processors and with a fresh quota, is in the wrong period.
#[derive(Debug)]
struct Periods {
    epoch: Instant,
    /// When the first one begins, and how long each is, since the epoch; 0: nothing is booked yet. Unit: nanoseconds.
    first: AtomicU64,
    length: AtomicU64,
    /// By periods. Unit: nanoseconds.
    used: Box<[AtomicU64]>,
}

/// Periods that are booked: ten minutes of the shortest that are measured. What comes later is not seen.
const PERIODS_MAX: usize = 6_100;

impl Periods {
    fn new() -> Self {
        Self {
            epoch: Instant::now(),
            first: AtomicU64::new(0),
            length: AtomicU64::new(0),
            used: (0..PERIODS_MAX).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn since_epoch(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The period of `at`, if there is one.
    fn number(&self, at: Instant) -> Option<usize> {
        let length = self.length.load(Ordering::Acquire);
        let since = self
            .since_epoch(at)
            .checked_sub(self.first.load(Ordering::Relaxed))?;
        usize::try_from(since.checked_div(length)?).ok()
    }

    /// `step` was used up to now.
    fn book(&self, step: u64) {
        if let Some(number) = self.number(Instant::now())
            && let Some(used) = self.used.get(number)
        {
            used.fetch_add(step, Ordering::Relaxed);
        }
    }
}

/// One hog: how long it computes at a time, what it has used, and whether it is to end.
#[derive(Clone)]
pub struct Hog {
    /// CPU time of one poll; none for one that never returns.
    pub poll: Option<Duration>,
    used: Arc<AtomicU64>,
    periods: Arc<Periods>,
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
            self.periods.book(step);
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
    /// By groups.
    periods: Vec<Arc<Periods>>,
    stop: Arc<AtomicBool>,
}

impl Hogs {
    /// `each` hogs in each of `groups`.
    pub fn new(groups: usize, each: u64, poll: Option<Duration>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let hog = |periods: &Arc<Periods>| Hog {
            poll,
            used: Arc::default(),
            periods: periods.clone(),
            stop: stop.clone(),
        };
        let periods: Vec<_> = (0..groups).map(|_| Arc::new(Periods::new())).collect();
        let hogs = |periods| (0..each).map(|_| hog(periods)).collect();
        Self {
            groups: periods.iter().map(hogs).collect(),
            periods,
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

    /// From `first` on the hogs book what they use by periods of `length`. Once.
    pub fn book_from(&self, first: Instant, length: Duration) {
        for periods in &self.periods {
            let since = periods.since_epoch(first);
            periods.first.store(since, Ordering::Relaxed);
            let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
            periods.length.store(length, Ordering::Release);
        }
    }

    /// The periods that are over.
    pub fn periods(&self) -> Vec<Window> {
        let now = Instant::now();
        let over = self.periods.first().and_then(|group| group.number(now));
        let window = |number: usize| Window {
            used: self
                .periods
                .iter()
                .map(|group| group.used[number].load(Ordering::Relaxed))
                .collect(),
            wall: WINDOW.as_secs_f64(),
        };
        (0..over.unwrap_or(0).min(PERIODS_MAX))
            .map(window)
            .collect()
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

/// Cuts time into windows of [`WINDOW`] while `go_on`.
pub fn windows(hogs: &Hogs, go_on: impl Fn() -> bool) -> Vec<Window> {
    let mut windows = Vec::new();
    let (mut before, mut began) = (hogs.used(), Instant::now());
    while go_on() {
        std::thread::sleep(WINDOW);
        let used = hogs.used();
        let parts = used.iter().zip(&before);
        windows.push(Window {
            used: parts
                .map(|(now, before)| now.saturating_sub(*before))
                .collect(),
            wall: began.elapsed().as_secs_f64(),
        });
        (before, began) = (used, Instant::now());
    }
    windows
}

/// Looks at this many beginnings of periods. The earliest sight of one, by how late the others were seen, is taken for exact.
const BEGINNINGS: u64 = 8;
/// How often it looks. Unit: time.
const LOOK: Duration = Duration::from_micros(200);
/// How long a beginning is waited for. Unit: time. Ten periods.
const PATIENCE: Duration = Duration::from_secs(1);

/// When the next but one of a limit's periods begins: they follow each other by exactly [`WINDOW`], and `mark` counts them. `None` if it
/// does not.
pub fn next_period(mark: &dyn Fn() -> u64) -> Option<Instant> {
    let mut first: Option<(u64, Instant)> = None;
    for _ in 0..=BEGINNINGS {
        let (known, waited_from) = (mark(), Instant::now());
        let (number, seen) = loop {
            std::thread::sleep(LOOK);
            let (now, seen) = (mark(), Instant::now());
            if now != known {
                break (now, seen);
            }
            if waited_from.elapsed() > PATIENCE {
                return None;
            }
        };
        first = Some(earlier(first, (number, seen)));
    }
    let (number, seen) = first?;
    let passed = u32::try_from(mark().wrapping_sub(number)).ok()?;
    Some(seen + WINDOW * (passed + 2))
}

/// Of two sights of beginnings, by number and time, the one that was less late.
fn earlier(one: Option<(u64, Instant)>, other: (u64, Instant)) -> (u64, Instant) {
    let Some(one) = one else {
        return other;
    };
    let between = u32::try_from(other.0.wrapping_sub(one.0)).unwrap_or(0);
    if other.1 < one.1 + WINDOW * between {
        other
    } else {
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sight_of_a_period_that_was_least_late_counts() {
        let zero = Instant::now();
        let sight = |number: u64, late: u64| {
            let at = zero + WINDOW * u32::try_from(number).unwrap_or(0);
            (number, at + Duration::from_micros(late))
        };
        let all = [sight(1, 900), sight(2, 150), sight(5, 140), sight(6, 400)];
        let least = all
            .into_iter()
            .fold(None, |one, other| Some(earlier(one, other)));
        assert_eq!(least, Some(sight(5, 140)));
    }

    #[test]
    fn what_is_used_is_booked_in_its_period() {
        let hogs = Hogs::new(1, 1, Some(Duration::from_millis(1)));
        let hog = hogs.of(0)[0].clone();
        hog.compute();
        assert!(hogs.periods().is_empty(), "nobody has said when they begin");
        hogs.book_from(Instant::now(), Duration::from_millis(20));
        let before = hogs.used()[0];
        while hogs.periods().len() < 3 {
            hog.compute();
        }
        let booked: u64 = hogs.periods().iter().map(|window| window.used[0]).sum();
        let used = hogs.used()[0] - before;
        assert!(0 < booked && booked <= used, "{booked} of {used}");
    }
}
