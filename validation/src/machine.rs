//! How busy the rest of the machine was: a figure taken beside a compiler is not one taken alone.
//!
//! The *machine* is the processors that this process may use (its main thread's affinity when it is asked): what is kept to two of sixteen by
//! `taskset` is disturbed by what runs on these two.

use std::time::Duration;

/// CPU time of the machine and of this process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Busy {
    machine: Duration,
    own: Duration,
    children: Duration,
}

impl Busy {
    /// Now; `None` where the machine does not say.
    pub fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        Some(Self {
            machine: ticks_of(&text, &BUSY, is_allowed())?,
            own: process_cpu(),
            children: std::fs::read_to_string("/proc/self/stat")
                .ok()
                .and_then(|text| ended_children(&text))
                .unwrap_or_default(),
        })
    }

    /// CPUs that others used since `earlier`, `wall` seconds ago, the time its host took among them. What a child used that ended
    /// meanwhile, however early it began, is our own. Never negative: the machine counts in ticks.
    pub fn others_since(self, earlier: Self, wall: f64) -> f64 {
        let machine = self.machine.saturating_sub(earlier.machine).as_secs_f64();
        let own = self.own.saturating_sub(earlier.own).as_secs_f64();
        let children = self.children.saturating_sub(earlier.children).as_secs_f64();
        ((machine - own - children) / wall.max(1e-9)).max(0.0)
    }
}

/// For how long the threads of this process that live now have run, and have been ready and waited for a processor. As Linux counts
/// (`schedstat`); zero elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// On a processor.
    pub ran: Duration,
    /// Ready, while others had it.
    pub waited: Duration,
}

impl Threads {
    /// Until now. O(threads).
    pub fn now() -> Self {
        let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
            return Self::default();
        };
        let mut sum = Self::default();
        for thread in threads.flatten() {
            // One that has just ended has no file any more.
            let text = std::fs::read_to_string(thread.path().join("schedstat"));
            if let Some((ran, waited)) = text.ok().and_then(|text| schedstat(&text)) {
                sum.ran += ran;
                sum.waited += waited;
            }
        }
        sum
    }
}

fn schedstat(text: &str) -> Option<(Duration, Duration)> {
    let mut fields = text.split_whitespace().map(str::parse);
    let mut nanos = || Some(Duration::from_nanos(fields.next()?.ok()?));
    Some((nanos()?, nanos()?))
}

/// Time that the host took from the machine's processors so far, by the kernel's account; zero where it says nothing.
pub fn stolen() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    ticks_of(&text, &[STEAL], is_allowed()).unwrap_or_default()
}

/// Fields of a line of `/proc/stat`, its name not counted: user, nice, system, irq, softirq and steal.
const BUSY: [usize; 6] = [0, 1, 2, 5, 6, STEAL];
/// What the host took.
const STEAL: usize = 7;

/// The sum of these fields of the processors that are `allowed`, in ticks of 10 ms (`USER_HZ` is 100 everywhere). Where all are, by the line
/// that the kernel sums itself: each figure is rounded down, so that one loses less than one a processor.
fn ticks_of(stat: &str, fields: &[usize], allowed: impl Fn(usize) -> bool) -> Option<Duration> {
    let sum = |line: &str| {
        let ticks: Vec<u64> = line
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let of_line = fields.iter().filter_map(|field| ticks.get(*field));
        of_line.sum::<u64>()
    };
    let all = stat.lines().next()?.strip_prefix("cpu ")?;
    let each: Vec<(usize, &str)> = stat
        .lines()
        .filter_map(|line| line.strip_prefix("cpu")?.split_once(' '))
        .filter_map(|(cpu, rest)| Some((cpu.parse().ok()?, rest)))
        .collect();
    let ticks = if each.iter().all(|(cpu, _)| allowed(*cpu)) {
        sum(all)
    } else {
        let of_allowed = each.iter().filter(|(cpu, _)| allowed(*cpu));
        of_allowed.map(|(_, line)| sum(line)).sum()
    };
    Some(Duration::from_millis(ticks * 10))
}

/// Whether this process may use a processor; all where the system does not say.
#[cfg(target_os = "linux")]
fn is_allowed() -> impl Fn(usize) -> bool {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let allowed = sched_getaffinity(Some(rustix::process::getpid())).ok();
    move |cpu| allowed.is_none_or(|set| cpu >= CpuSet::MAX_CPU || set.is_set(cpu))
}

/// Never asked: there is no `/proc/stat` either.
#[cfg(not(target_os = "linux"))]
fn is_allowed() -> impl Fn(usize) -> bool {
    |_| true
}

/// What children used that ended and were waited for (fields 16 and 17 of a process's `stat`, after its name in brackets).
fn ended_children(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(13);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks()? + ticks()?) * 10))
}

#[cfg(target_os = "linux")]
fn process_cpu() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // The clock counts up from zero: neither field is ever negative.
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Never asked: there is no `/proc/stat` either.
#[cfg(not(target_os = "linux"))]
fn process_cpu() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_not_busy_and_guests_do_not_count_twice() {
        let stat = "cpu  100 10 50 9999 7777 3 2 5 60 0\ncpu0 1 1 1 1\n";
        let busy = |stat| ticks_of(stat, &BUSY, |_| true);
        assert_eq!(busy(stat), Some(Duration::from_millis(1_700)));
        assert_eq!(busy("nonsense"), None);
    }

    #[test]
    fn only_processors_that_may_be_used_are_asked() {
        let stat = "cpu  7 0 0 0 0 0 0 11\ncpu0 1 0 0 9 0 0 0 2\ncpu1 2 0 0 9 0 0 0 4\ncpu12 4 0 0 9 0 0 0 5\nintr 9\n";
        let of = |fields: &[usize], allowed: &[usize]| {
            let ticks = ticks_of(stat, fields, |cpu| allowed.contains(&cpu));
            ticks.map(|ticks| ticks.as_millis() / 10)
        };
        assert_eq!(of(&[0], &[0, 1, 12]), Some(7));
        assert_eq!(of(&[0], &[12, 1]), Some(6));
        assert_eq!(of(&[STEAL], &[1]), Some(4));
        assert_eq!(of(&BUSY, &[0, 12]), Some(12));
        assert_eq!(of(&BUSY, &[]), Some(0));
    }

    #[test]
    fn only_others_count() {
        let at = |machine, own, children| Busy {
            machine: Duration::from_secs(machine),
            own: Duration::from_secs(own),
            children: Duration::from_secs(children),
        };
        assert!((at(9, 3, 0).others_since(at(4, 1, 0), 3.0) - 1.0).abs() < 1e-9);
        assert!(at(9, 3, 3).others_since(at(4, 1, 0), 3.0).abs() < 1e-9);
        assert!(at(1, 2, 0).others_since(at(0, 0, 0), 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_thread_that_computes_has_run() {
        let micros = Duration::from_micros;
        let read = schedstat("5000 7000 3\n");
        assert_eq!(read, Some((micros(5), micros(7))));
        assert_eq!(schedstat("5000"), None);
        if std::path::Path::new("/proc/self/schedstat").exists() {
            let before = Threads::now();
            let until = std::time::Instant::now() + Duration::from_millis(20);
            while std::time::Instant::now() < until {
                std::hint::spin_loop();
            }
            let after = Threads::now();
            assert!(after.ran + after.waited > before.ran + before.waited);
        }
    }

    #[test]
    fn children_count_once_they_have_ended() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 70 30 25 15 20 0 1";
        assert_eq!(ended_children(stat), Some(Duration::from_millis(400)));
        assert_eq!(ended_children("7 (short) S 1"), None);
    }
}
