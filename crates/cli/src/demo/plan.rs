//! How a run's time is divided: rounds, one slot per mode and round, phases within a slot.

use std::time::Duration;

use super::mode::Mode;
use super::tenants;

/// A round takes about this long if the run is long enough for three of them.
const ROUND: Duration = Duration::from_secs(20);
/// Upper bound on the rounds of one run.
const ROUNDS_MAX: u32 = 50;
/// Starting and stopping the two processes of a slot.
const SLOT_OVERHEAD: Duration = Duration::from_millis(100);
/// The closed loop's part of a slot, once it is warm. Default 0.36: a second of a run of a minute, which some hundredths of a second that
/// somebody else takes do not change much, and as long an open loop as p99 needs.
const CAPACITY_PART: f64 = 0.36;
/// The longest warm-up of a slot.
const WARM_UP_MAX: Duration = Duration::from_millis(300);
/// The longest calibration of the open loop's rate.
const CALIBRATION_MAX: Duration = Duration::from_millis(1_500);
/// p99 is followed in windows at least this wide: at some thousand requests a second it rests on enough of them.
const WINDOW_MIN: Duration = Duration::from_millis(250);
/// The part of a run in which twenty tenants have their two slots.
const TENANTS_PART: u32 = 10;
/// The shortest such slot; the lightest tenant is due a sixtieth of it.
const TENANTS_MIN: Duration = Duration::from_millis(300);
/// Points that a curve of the picture has at most, per mode.
const POINTS_MAX: u32 = 120;

/// The phases of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phases {
    /// Closed loop, results thrown away.
    pub warm_up: Duration,
    /// Closed loop, for the capacity.
    pub capacity: Duration,
    /// Open loop, for the latencies.
    pub open: Duration,
}

impl Phases {
    /// Time of all phases together.
    pub fn total(&self) -> Duration {
        self.warm_up + self.capacity + self.open
    }
}

/// The whole run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How often every mode gets a slot.
    pub rounds: u32,
    /// How many more are taken at most, in place of those that do not count: half of the planned ones, so that a run on a busy machine takes
    /// at most half as long again.
    pub retakes: u32,
    /// The phases of every slot.
    pub slot: Phases,
    /// The phases of the calibration, which has no open loop.
    pub calibration: Phases,
    /// Width of the windows over which p99 is followed.
    pub window: Duration,
    /// Time between two samples of the CPU counters.
    pub sample: Duration,
    /// What is measured of the twenty tenants, under each of two modes.
    pub tenants: Duration,
}

impl Plan {
    /// Divides `total`; sensible from about five seconds upwards.
    pub fn new(total: Duration) -> Self {
        let calibration_length = (total / 10).min(CALIBRATION_MAX);
        let calibration = Phases {
            warm_up: (calibration_length / 4).min(WARM_UP_MAX),
            capacity: calibration_length.saturating_sub((calibration_length / 4).min(WARM_UP_MAX)),
            open: Duration::ZERO,
        };
        let scene = total / TENANTS_PART;
        let tenants = (scene / 2).saturating_sub(tenants::WARM_UP + SLOT_OVERHEAD);
        let tenants = tenants.max(TENANTS_MIN);
        let measured = total.saturating_sub(calibration_length + SLOT_OVERHEAD + scene);
        let rounds = u32::try_from(measured.as_secs() / ROUND.as_secs() + 1)
            .unwrap_or(ROUNDS_MAX)
            .min(ROUNDS_MAX);
        let slot_length =
            (measured / (rounds * Mode::ALL.len() as u32)).saturating_sub(SLOT_OVERHEAD);
        let warm_up = (slot_length / 10).min(WARM_UP_MAX);
        let capacity = slot_length.saturating_sub(warm_up).mul_f64(CAPACITY_PART);
        let slot = Phases {
            warm_up,
            capacity,
            open: slot_length.saturating_sub(warm_up + capacity),
        };
        let spread = slot.open * rounds / POINTS_MAX;
        Self {
            rounds,
            retakes: rounds.div_ceil(2),
            slot,
            calibration,
            window: WINDOW_MIN.max(spread),
            sample: (WINDOW_MIN / 2).max(spread),
            tenants,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_three_rounds_that_fit() {
        let plan = Plan::new(Duration::from_secs(60));
        assert_eq!(plan.rounds, 3);
        let slots = plan.rounds * Mode::ALL.len() as u32;
        let total =
            (plan.slot.total() + SLOT_OVERHEAD) * slots + plan.calibration.total() + SLOT_OVERHEAD;
        let total = total + (tenants::WARM_UP + plan.tenants + SLOT_OVERHEAD) * 2;
        assert!(
            total <= Duration::from_secs(60) && total >= Duration::from_secs(59),
            "{total:?}"
        );
        assert!(plan.slot.open >= Duration::from_millis(1_600));
    }

    #[test]
    fn every_allowed_length_gives_usable_phases() {
        for seconds in [5, 6, 10, 30, 61, 600, 3600] {
            let plan = Plan::new(Duration::from_secs(seconds));
            assert!(plan.rounds >= 1 && plan.rounds <= ROUNDS_MAX);
            assert!(
                plan.slot.capacity >= Duration::from_millis(100),
                "{seconds}: {plan:?}"
            );
            assert!(
                plan.slot.open >= Duration::from_millis(300),
                "{seconds}: {plan:?}"
            );
            assert!(plan.slot.total() <= Duration::from_secs(seconds));
            assert!(
                plan.slot.open * plan.rounds
                    / u32::try_from(plan.window.as_millis()).expect("short")
                    <= Duration::from_millis(u64::from(POINTS_MAX) + 1)
            );
        }
    }
}
