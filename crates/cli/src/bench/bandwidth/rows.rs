//! The rows of `bench bandwidth`: which groups, and what is said about each.

use std::fmt;
use std::time::Duration;

use quotient_validation::outcome::{GroupOutcome, Host, Outcome};
use quotient_validation::scenario::{self, Cap, Scenario};
use serde::Serialize;

/// Bar: what was charged against the ideal, percent.
const CHARGED_ERR_PCT_MAX: f64 = 1.0;
/// Bar: what the threads used against the ideal on an idle host, percent.
const THREAD_CPU_ERR_PCT_MAX: f64 = 2.0;
/// Bar: the fullest window over the quota, before the longest polls are added.
const WINDOW_RATIO_MAX: f64 = 1.1;
/// CPUs of others up to which a host counts as idle.
const OTHERS_CPUS_IDLE: f64 = 0.05;

/// Short polls, the usual ones.
const POLL_SHORT: Duration = Duration::from_micros(50);
/// Long polls.
const POLL_LONG: Duration = Duration::from_millis(1);
/// A limit whose period is as long as it may be.
const CAP_SLOW: Cap = Cap::ms(10, 1000);
/// Spinners of the full set: from one to far more than virtual CPUs.
const SPINNERS_FULL: [u32; 4] = [1, 2, 8, 32];

/// What is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Groups and loads.
    pub scenario: Scenario,
    /// How long a poll takes.
    pub poll: Duration,
}

/// Everything that is run: each limit, each number of spinners and each poll once; `full`: in every combination.
pub fn plans(full: bool) -> Vec<Plan> {
    let spin = |spinners, cap, poll| Plan {
        scenario: Scenario::spin(spinners, cap),
        poll,
    };
    let caps = scenario::CAPS.into_iter().chain([CAP_SLOW]);
    let mut plans: Vec<Plan> = if full {
        caps.flat_map(|cap| SPINNERS_FULL.map(|spinners| (cap, spinners)))
            .flat_map(|(cap, spinners)| {
                [POLL_SHORT, POLL_LONG].map(|poll| spin(spinners, cap, poll))
            })
            .collect()
    } else {
        let representative = [
            spin(1, Cap::ms(20, 100), POLL_SHORT),
            spin(8, Cap::ms(20, 100), POLL_LONG),
            spin(32, Cap::ms(20, 100), POLL_SHORT),
            spin(8, Cap::ms(2, 10), POLL_LONG),
            spin(2, Cap::ms(20, 100).smoothly(), POLL_SHORT),
            spin(2, Cap::ms(50, 100).smoothly(), POLL_SHORT),
        ];
        caps.map(|cap| spin(2, cap, POLL_SHORT))
            .chain(representative)
            .collect()
    };
    let others = scenario::all()
        .into_iter()
        .filter(|scenario| !scenario.name.starts_with("spin"))
        .map(|scenario| Plan {
            scenario,
            poll: POLL_SHORT,
        });
    plans.extend(others);
    plans
}

/// One group of one run.
#[derive(Debug, Serialize)]
pub struct Row {
    bench: String,
    host: Host,
    group: &'static str,
    seconds: f64,
    quota_us: Option<u64>,
    period_us: Option<u64>,
    burst_us: Option<u64>,
    spinners: u32,
    /// Nothing in the kernel, which interrupts whenever it likes.
    poll_us: Option<u64>,
    vcpus: usize,
    /// What an ideal machine gives the group.
    ideal_cpus: f64,
    /// Nothing in the kernel, whose own figure lags by a tick.
    charged_err_pct: Option<f64>,
    thread_cpu_err_pct: f64,
    worst_window_ratio: Option<f64>,
    /// 1.1 quotas, the burst and a poll on each virtual CPU, over the quota.
    window_bar_ratio: Option<f64>,
    nr_periods: u64,
    nr_throttled: u64,
    throttled_ms: f64,
    nr_bursts: u64,
    burst_ms: f64,
    job_p50_ms: Option<f64>,
    job_max_ms: Option<f64>,
    /// CPUs that other processes used.
    others_cpus: Option<f64>,
    /// Others used more than a little: the bars below are for an idle host.
    disturbed: bool,
    charged_ok: Option<bool>,
    thread_cpu_ok: Option<bool>,
    window_ok: Option<bool>,
}

/// The rows of a run, one a group.
pub fn of(plan: &Plan, outcome: &Outcome, vcpus: usize) -> Vec<Row> {
    plan.scenario
        .groups
        .iter()
        .zip(&outcome.groups)
        .map(|(group, found)| row(plan, outcome, group.cap, group.load.tasks(), found, vcpus))
        .collect()
}

fn row(
    plan: &Plan,
    outcome: &Outcome,
    cap: Option<Cap>,
    spinners: u32,
    found: &GroupOutcome,
    vcpus: usize,
) -> Row {
    let ours = outcome.host != Host::Kernel;
    let micros = |length: Duration| u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
    let percent = |cpus: f64| (cpus / found.ideal_cpus.max(1e-9) - 1.0) * 100.0;
    let window_bar_ratio = cap.filter(|_| ours).map(|cap| {
        let beside = cap.burst.as_secs_f64() + plan.poll.as_secs_f64() * vcpus as f64;
        WINDOW_RATIO_MAX + beside / cap.quota.as_secs_f64()
    });
    // Jobs are not open-ended: what they use is their own affair. Neither is a group that its limit does not bind.
    let binds = cap.is_some_and(|cap| found.ideal_cpus >= cap.cpus() * 0.999);
    let charged_err_pct = found.charged_cpus.map(percent);
    let within = |error: f64, most: f64| (ours && binds).then_some(error.abs() <= most);
    Row {
        bench: outcome.scenario.clone(),
        host: outcome.host,
        group: found.path,
        seconds: outcome.seconds,
        quota_us: cap.map(|cap| micros(cap.quota)),
        period_us: cap.map(|cap| micros(cap.period)),
        burst_us: cap.map(|cap| micros(cap.burst)),
        spinners,
        poll_us: ours.then(|| micros(plan.poll)),
        vcpus,
        ideal_cpus: found.ideal_cpus,
        charged_err_pct,
        thread_cpu_err_pct: found.error_pct,
        worst_window_ratio: found.worst_window_ratio,
        window_bar_ratio,
        nr_periods: found.nr_periods,
        nr_throttled: found.nr_throttled,
        throttled_ms: found.throttled_s * 1e3,
        nr_bursts: found.nr_bursts,
        burst_ms: found.burst_s * 1e3,
        job_p50_ms: found.job_p50_ms,
        job_max_ms: found.job_max_ms,
        others_cpus: outcome.others_cpus,
        disturbed: outcome
            .others_cpus
            .is_some_and(|cpus| cpus > OTHERS_CPUS_IDLE),
        charged_ok: charged_err_pct.and_then(|error| within(error, CHARGED_ERR_PCT_MAX)),
        thread_cpu_ok: within(found.error_pct, THREAD_CPU_ERR_PCT_MAX),
        window_ok: found
            .worst_window_ratio
            .zip(window_bar_ratio)
            .map(|(ratio, bar)| ratio <= bar),
    }
}

/// The line above the table.
pub fn header() -> String {
    format!(
        "{:<24} {:<14} {:<20} {:>6} {:>8} {:>8} {:>6} {:>6} {:>7} {:>9} {:>6}",
        "bench",
        "group",
        "host",
        "poll",
        "charged",
        "thread",
        "window",
        "bar",
        "periods",
        "throttled",
        "others"
    )
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let host = format!("{:?}", self.host);
        write!(
            formatter,
            "{:<24} {:<14} {host:<20} {:>6} {:>8} {:>7.2}% {:>6} {:>6} {:>7} {:>9} {:>6}",
            self.bench,
            self.group,
            or_dash(self.poll_us.map(|poll| format!("{poll}us"))),
            or_dash(self.charged_err_pct.map(|error| format!("{error:+.2}%"))),
            self.thread_cpu_err_pct,
            or_dash(self.worst_window_ratio.map(|ratio| format!("{ratio:.2}"))),
            or_dash(self.window_bar_ratio.map(|ratio| format!("{ratio:.2}"))),
            self.nr_periods,
            self.nr_throttled,
            or_dash(self.others_cpus.map(|cpus| format!("{cpus:.2}"))),
        )?;
        if let Some((p50, max)) = self.job_p50_ms.zip(self.job_max_ms) {
            write!(formatter, "  jobs {p50:.1} / {max:.1} ms")?;
        }
        let missed = [
            (self.charged_ok, "charged"),
            (self.thread_cpu_ok, "thread"),
            (self.window_ok, "window"),
        ];
        for (_, name) in missed.iter().filter(|(ok, _)| *ok == Some(false)) {
            write!(formatter, "  ({name} misses its bar)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promised_limit_spinner_and_poll_is_there() {
        let full = plans(true);
        let spins = full
            .iter()
            .filter(|plan| plan.scenario.name.starts_with("spin"));
        assert_eq!(spins.count(), 6 * 4 * 2);
        for plans in [plans(false), full] {
            let has = |text: &str| plans.iter().any(|plan| plan.scenario.name.contains(text));
            for text in [
                " 2/10 ",
                " 5/100 ",
                " 20/100 ",
                " 50/100 ",
                " 150/100 ",
                " 10/1000 ",
                "spin 1x",
                "spin 2x",
                "spin 8x",
                "spin 32x",
                "nested",
                "burst",
                "weights",
            ] {
                assert!(has(text), "{text}");
            }
            assert!(plans.iter().any(|plan| plan.poll == POLL_LONG));
        }
    }
}
