//! What one process would use of a tenant's budget if nothing held it back.

use crate::units::{MicroCpus, Micros, scaled};

/// The moving average of used and throttled time.
///
/// A sample is `(CPU time charged + time throttled) / time passed`, throttled time being counted on each CPU that had something to
/// run; at most the CPUs of the process. The average follows with a sixteenth of a lease: budget that is asked for too late costs
/// its user, and what is asked for too long the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    average: MicroCpus,
    /// The last sample, and what has come together for the next.
    sample: MicroCpus,
    wanted: Micros,
    passed: Micros,
    /// The process's CPUs.
    capacity: MicroCpus,
}

/// Samples of shorter times are put together: clocks of CPU time advance in polls.
///
/// Unit: microseconds. Default: 10 ms.
const SAMPLE_MIN: Micros = Micros::from_millis(10);

/// Below this much an average is no demand any more, a ten-thousandth of a processor.
const NOTHING: MicroCpus = MicroCpus(100);

impl Demand {
    pub(crate) fn new(capacity: MicroCpus) -> Demand {
        Demand {
            average: MicroCpus::ZERO,
            sample: MicroCpus::ZERO,
            wanted: Micros::ZERO,
            passed: Micros::ZERO,
            capacity,
        }
    }

    /// Takes in what was used and throttled in `passed`, for leases of that length.
    pub(crate) fn observe(&mut self, wanted: Micros, passed: Micros, lease: Micros) {
        self.wanted += wanted;
        self.passed += passed;
        if self.passed < SAMPLE_MIN {
            return;
        }
        self.sample = self.wanted.per(self.passed).min(self.capacity);
        let constant = lease.0 / 16;
        let passed = self.passed.0;
        let move_by = |gap: u64| scaled(gap, passed, passed + constant);
        self.average = if self.sample > self.average {
            MicroCpus(self.average.0 + move_by(self.sample.0 - self.average.0))
        } else {
            MicroCpus(self.average.0 - move_by(self.average.0 - self.sample.0))
        };
        self.wanted = Micros::ZERO;
        self.passed = Micros::ZERO;
    }

    /// It wants this much at least, whatever was seen so far.
    pub(crate) fn raise(&mut self, rate: MicroCpus) {
        self.sample = self.sample.max(rate).min(self.capacity);
    }

    /// What to ask for: an eighth more than the larger of average and last sample, so that growing needs no throttle first.
    /// Zero if there is nothing to speak of.
    pub(crate) fn estimate(&self) -> MicroCpus {
        let larger = self.average.max(self.sample);
        if larger < NOTHING {
            return MicroCpus::ZERO;
        }
        MicroCpus(larger.0 + larger.0 / 8).min(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_is_asked_for_at_once_and_a_fall_within_a_lease() {
        let lease = Micros::SECOND;
        let step = Micros::from_millis(125);
        let mut demand = Demand::new(MicroCpus::whole(4));
        assert_eq!(demand.estimate(), MicroCpus::ZERO);
        demand.observe(Micros::from_millis(250), step, lease);
        assert_eq!(demand.estimate(), MicroCpus(2_250_000));
        for _ in 0..8 {
            demand.observe(Micros::ZERO, step, lease);
        }
        assert!(demand.estimate() < MicroCpus(100_000), "{demand:?}");
        for _ in 0..64 {
            demand.observe(Micros::ZERO, step, lease);
        }
        assert_eq!(demand.estimate(), MicroCpus::ZERO);
    }

    #[test]
    fn throttled_time_of_many_cpus_is_no_more_than_the_process_has() {
        let mut demand = Demand::new(MicroCpus::whole(4));
        demand.observe(Micros::from_secs(100), Micros::SECOND, Micros::SECOND);
        assert_eq!(demand.estimate(), MicroCpus::whole(4));
    }
}
