//! Rows, rounds and ratios.

use serde::Serialize;

use super::mode::{Kind, Mode};

/// A round counts if the victim's p99 alone is at most this. Unit: microseconds. A quiet machine has 0.2 to 0.4 ms.
pub const ALONE_P99_MAX_US: u64 = 1_000;
/// A round counts if the host steals at most this part of the machine in each of its rows.
pub const STEAL_MAX: f64 = 0.01;
/// Rounds that must count before a row's median is one.
pub const VALID_MIN: usize = 5;

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum About {
    /// An echo server beside hogs.
    Echo,
    /// Hogs of several weights, nobody else.
    Shares,
    /// Hogs of one group under a limit, nobody else.
    Limits,
}

/// One measurement. What does not apply is `null`.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub about: About,
    /// What the hogs are.
    pub kind: Kind,
    /// The weights of the hogs' groups, or their limit.
    pub setting: Option<String>,
    pub vcpus: usize,
    pub round: u64,
    pub hogs: u64,
    /// `null` for a poll that never returns.
    pub poll_ms: Option<f64>,
    pub mode: Mode,
    /// Answers by requests.
    pub answered_ratio: Option<f64>,
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub max_us: Option<u64>,
    /// CPU time of the hogs by wall time, by their threads' own clocks.
    pub hog_cpus: Option<f64>,
    /// By what is due, 1 is exact. Echo: of the machine, or of the limit. Shares: the group that is farthest off. Limits: of the limit.
    pub share: Option<f64>,
    /// The worst window of 100 ms. Echo: the leanest by the mean, or the fullest by the quota. Shares: what a group's part of all is
    /// off from its due (0.05: five points). Limits: the fullest by the quota, from period to period.
    pub window_worst_ratio: Option<f64>,
    /// What the host took from this machine, by wall time and processor.
    pub steal_ratio: f64,
    /// Why it is not measured here.
    pub not_available: Option<String>,
}

/// All modes once, and the victim alone.
#[derive(Debug, Serialize)]
pub struct Round {
    pub kind: Kind,
    pub hogs: u64,
    /// `null` for a poll that never returns.
    pub poll_ms: Option<f64>,
    pub round: u64,
    pub alone_p99_us: u64,
    /// The most of its rows.
    pub steal_ratio: f64,
    pub valid: bool,
}

impl Round {
    fn is_of(&self, row: &Row) -> bool {
        (self.kind, self.hogs, self.poll_ms, self.round)
            == (row.kind, row.hogs, row.poll_ms, row.round)
    }
}

/// A mode beside two runtimes with the same hogs in the same rounds; medians of the rounds that count.
#[derive(Debug, Serialize)]
pub struct Ratio {
    pub kind: Kind,
    pub hogs: u64,
    /// `null` for a poll that never returns.
    pub poll_ms: Option<f64>,
    pub mode: Mode,
    pub rounds: usize,
    pub p50: f64,
    pub p99: f64,
    /// By two runtimes with the hogs at nice 10, where that was measured.
    pub p99_by_nice: Option<f64>,
    pub hog_cpus: f64,
}

/// The ratios of the rows of one block: the same hogs, all rounds.
pub fn ratios(rows: &[Row], rounds: &[Round]) -> Vec<Ratio> {
    let counts = |row: &&Row| rounds.iter().any(|round| round.valid && round.is_of(row));
    let by = |row: &Row, mode| {
        rows.iter()
            .find(|rival| rival.mode == mode && rival.round == row.round)
            .cloned()
    };
    let part = |ours: Option<u64>, theirs: Option<u64>| {
        let (ours, theirs) = (ours?, theirs?.max(1));
        Some(ours as f64 / theirs as f64)
    };
    let mut ratios = Vec::new();
    for mode in Mode::ALL {
        let (mut p50, mut p99, mut nice, mut cpus) = (vec![], vec![], vec![], vec![]);
        for row in rows.iter().filter(|row| row.mode == mode).filter(counts) {
            if let Some(rival) = by(row, Mode::TwoRuntimes) {
                p50.extend(part(row.p50_us, rival.p50_us));
                p99.extend(part(row.p99_us, rival.p99_us));
                let both = row.hog_cpus.zip(rival.hog_cpus);
                cpus.extend(both.map(|(ours, theirs)| ours / theirs));
            }
            if let Some(rival) = by(row, Mode::TwoRuntimesNice) {
                nice.extend(part(row.p99_us, rival.p99_us));
            }
        }
        let Some(first) = rows.iter().find(|row| row.mode == mode) else {
            continue;
        };
        if mode == Mode::TwoRuntimes || p50.is_empty() {
            continue;
        }
        ratios.push(Ratio {
            kind: first.kind,
            hogs: first.hogs,
            poll_ms: first.poll_ms,
            mode,
            rounds: p50.len(),
            p50: median(p50),
            p99: median(p99),
            p99_by_nice: (!nice.is_empty()).then(|| median(nice)),
            hog_cpus: median(cpus),
        });
    }
    ratios
}

/// The median, the upper one of two; not a number without values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(round: u64, mode: Mode, p50_us: u64) -> Row {
        Row {
            about: About::Echo,
            kind: Kind::Tasks,
            setting: None,
            vcpus: 2,
            round,
            hogs: 4,
            poll_ms: None,
            mode,
            answered_ratio: Some(1.0),
            p50_us: Some(p50_us),
            p99_us: Some(10 * p50_us),
            max_us: Some(0),
            hog_cpus: Some(1.0),
            share: None,
            window_worst_ratio: None,
            steal_ratio: 0.0,
            not_available: None,
        }
    }

    #[test]
    fn discarded_rounds_are_in_no_ratio() {
        let round = |round, valid| Round {
            kind: Kind::Tasks,
            hogs: 4,
            poll_ms: None,
            round,
            alone_p99_us: 1,
            steal_ratio: 0.0,
            valid,
        };
        let rows = [
            row(1, Mode::TwoRuntimes, 100),
            row(1, Mode::TwoRuntimesNice, 50),
            row(1, Mode::QuotientPreempt, 150),
            row(2, Mode::TwoRuntimes, 100),
            row(2, Mode::QuotientPreempt, 900),
        ];
        let ratios = ratios(&rows, &[round(1, true), round(2, false)]);
        assert_eq!(ratios.len(), 2);
        assert_eq!(ratios[1].mode, Mode::QuotientPreempt);
        assert_eq!((ratios[1].rounds, ratios[1].p50), (1, 1.5));
        assert_eq!(ratios[1].p99_by_nice, Some(3.0));
    }
}
