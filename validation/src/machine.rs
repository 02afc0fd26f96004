//! How busy the rest of the machine was: a figure taken beside a compiler is not one taken alone.

use std::time::Duration;

/// CPU time of the whole machine and of this process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Busy {
    machine: Duration,
    own: Duration,
}

impl Busy {
    /// Now; `None` where the machine does not say.
    pub fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        Some(Self {
            machine: busy(&text)?,
            own: process_cpu(),
        })
    }

    /// CPUs that others used since `earlier`, `wall` seconds ago. Never negative: the machine counts in ticks.
    pub fn others_since(self, earlier: Self, wall: f64) -> f64 {
        let machine = self.machine.saturating_sub(earlier.machine).as_secs_f64();
        let own = self.own.saturating_sub(earlier.own).as_secs_f64();
        ((machine - own) / wall.max(1e-9)).max(0.0)
    }
}

/// User, nice, system, irq, softirq and steal of the first line, in ticks of 10 ms (`USER_HZ` is 100 everywhere).
fn busy(stat: &str) -> Option<Duration> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let sum = [0, 1, 2, 5, 6, 7]
        .iter()
        .filter_map(|field| ticks.get(*field))
        .sum::<u64>();
    Some(Duration::from_millis(sum * 10))
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
        assert_eq!(busy(stat), Some(Duration::from_millis(1_700)));
        assert_eq!(busy("nonsense"), None);
    }

    #[test]
    fn only_others_count() {
        let at = |machine, own| Busy {
            machine: Duration::from_secs(machine),
            own: Duration::from_secs(own),
        };
        assert!((at(9, 3).others_since(at(4, 1), 3.0) - 1.0).abs() < 1e-9);
        assert!(at(1, 2).others_since(at(0, 0), 1.0).abs() < 1e-9);
    }
}
