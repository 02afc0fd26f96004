//! Who computes beside what is measured. A run or a recording that shows others says something of them, too, and does not count.

use std::time::{Duration, Instant};

use crate::machine::Busy;

/// CPUs that others may use beside a run or a recording that counts. Default: 0.1 of a CPU, some ten times what a machine without
/// programs uses here. It was chosen before the first verdict that it decided about.
pub const MEAN_MAX: f64 = 0.1;

/// CPUs that others may use in any second of it. Default: 0.25 of a CPU; `quotient record` takes some 0.05 all along, and what spoilt a
/// recording of `periodic` was 0.3 s.
pub const BUSIEST_MAX: f64 = 0.25;

/// How long each look at the company is. Default: 1 s. The machine counts in ticks of 10 ms: a second shows a hundredth of a CPU.
pub const LOOK: Duration = Duration::from_secs(1);

/// CPUs that others used; none where the machine does not say. What the host took counts as theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Company {
    /// Over all of it.
    pub mean: Option<f64>,
    /// In the second in which they used most.
    pub busiest: Option<f64>,
}

impl Company {
    /// Whether what was measured shows them more than its load. A moment of company hardly moves the mean but is one request in a hundred
    /// of a load that has forty a second.
    pub fn disturbs(self) -> bool {
        let above = |cpus: Option<f64>, most: f64| cpus.is_some_and(|cpus| cpus > most);
        above(self.mean, MEAN_MAX) || above(self.busiest, BUSIEST_MAX)
    }

    /// Of two recordings the one with less of this is kept.
    pub fn weight(self) -> f64 {
        let part = |cpus: Option<f64>, most: f64| cpus.unwrap_or(0.0) / most;
        part(self.mean, MEAN_MAX).max(part(self.busiest, BUSIEST_MAX))
    }
}

/// A point in time, and what the machine had done by then.
#[derive(Clone, Copy)]
struct Point {
    busy: Option<Busy>,
    at: Instant,
}

impl Point {
    fn now() -> Point {
        Point {
            busy: Busy::now(),
            at: Instant::now(),
        }
    }

    /// CPUs that others used between the two.
    fn others_until(self, later: Point) -> Option<f64> {
        let length = later.at.saturating_duration_since(self.at);
        Some(later.busy?.others_since(self.busy?, length.as_secs_f64()))
    }
}

/// Looks at the company, one each [`LOOK`].
pub struct Looks {
    begun: Point,
    last: Point,
    busiest: Option<f64>,
}

impl Looks {
    /// The first one.
    pub fn begin() -> Looks {
        let now = Point::now();
        Looks {
            begun: now,
            last: now,
            busiest: None,
        }
    }

    /// One more. A piece that is shorter than half of [`LOOK`] is left to the next one: a tick would be much in it.
    pub fn look(&mut self) {
        let now = Point::now();
        if now.at.saturating_duration_since(self.last.at) < LOOK / 2 {
            return;
        }
        let found = self.last.others_until(now);
        self.last = now;
        self.busiest = match (self.busiest, found) {
            (Some(most), Some(found)) => Some(most.max(found)),
            (most, found) => most.or(found),
        };
    }

    /// What they saw, until now.
    pub fn end(mut self) -> Company {
        self.look();
        Company {
            mean: self.begun.others_until(Point::now()),
            busiest: self.busiest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn company(mean: f64, busiest: f64) -> Company {
        Company {
            mean: Some(mean),
            busiest: Some(busiest),
        }
    }

    /// The recording of `periodic` that showed others' work: 0.04 CPUs in the mean, 0.3 in one of its seconds.
    #[test]
    fn a_moment_of_company_disturbs() {
        assert!(!company(0.05, 0.08).disturbs());
        assert!(company(0.04, 0.3).disturbs());
        assert!(company(0.2, 0.2).disturbs());
        assert!(company(0.09, 0.1).weight() < company(0.04, 0.3).weight());
        assert!(!Company::default().disturbs(), "nothing is known");
    }

    #[test]
    fn the_busiest_second_is_kept() {
        let (begun, second) = (Point::now(), Duration::from_secs(1));
        let mut looks = Looks::begin();
        looks.last.at = begun.at - second;
        looks.busiest = Some(1e9);
        assert!(looks.end().busiest >= Some(1e9), "forgotten");
        let mut looks = Looks::begin();
        looks.look();
        assert_eq!(looks.busiest, None, "too short to be told from a tick");
    }
}
