//! From slots to rows and curves.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::clock::SharedMicros;
use super::latencies;
use super::mode::Mode;
use super::protocol::{GroupCpu, Open, Sample};
use super::slot::Slot;

/// One mode's figures over all rounds. CPU figures count CPUs: 0.5 is half of one CPU, all the time.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The set-up.
    pub mode: Mode,
    /// Open loop: requests answered per second, out of `offered_rps`.
    pub victim_rps: f64,
    /// Open loop: requests that arrived per second.
    pub offered_rps: f64,
    /// Open loop: median latency from the intended start.
    pub p50_us: u64,
    /// Open loop: 99th percentile.
    pub p99_us: u64,
    /// Open loop: the longest.
    pub max_us: u64,
    /// Open loop: requests unanswered when the client stopped waiting; they count with the time waited so far.
    pub unanswered: u64,
    /// Open loop: CPUs that the hogs used.
    pub hog_cpu: f64,
    /// Open loop: CPUs that the rest of the server process used: the victim and its runtime.
    pub victim_cpu: f64,
    /// Open loop: documents that the hogs worked off per second.
    pub hog_documents_per_second: f64,
    /// Open loop: CPUs charged to the hogs' group by Quotient's own clock, in its modes.
    pub hog_group_cpu: Option<f64>,
    /// Open loop: CPUs charged to the victim's group by Quotient's own clock, in its modes.
    pub victim_group_cpu: Option<f64>,
    /// Closed loop: requests per second, the median of the rounds.
    pub capacity_rps: f64,
    /// Closed loop: the slowest and the fastest round.
    pub capacity_range_rps: (f64, f64),
    /// Closed loop: CPUs that the hogs used.
    pub capacity_hog_cpu: f64,
}

/// One mode's curves: its open loops, one behind the other.
#[derive(Debug, Clone)]
pub struct Series {
    /// The set-up.
    pub mode: Mode,
    /// Length of one round's open loop, in seconds.
    pub round_seconds: f64,
    /// CPU by group, one list a round.
    pub cpu: Vec<Vec<CpuPoint>>,
    /// p99 by window of the answer, one list a round: seconds and microseconds.
    pub p99: Vec<Vec<(f64, u64)>>,
}

/// CPU used between two samples.
#[derive(Debug, Clone, Copy)]
pub struct CpuPoint {
    /// Seconds from the start of this mode's first open loop: begin and end of the interval.
    pub from: f64,
    /// See `from`.
    pub to: f64,
    /// CPUs that the victim and its runtime used.
    pub victim: f64,
    /// CPUs that the hogs used.
    pub hogs: f64,
}

/// The rows of all modes that have slots, in the order of `Mode::ALL`.
pub fn rows<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> Vec<Row> {
    by_mode(slots)
        .into_iter()
        .map(|(mode, slots)| row(mode, &slots))
        .collect()
}

/// The curves of all modes that have slots, in the order of `Mode::ALL`.
pub fn series<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> Vec<Series> {
    by_mode(slots)
        .into_iter()
        .map(|(mode, slots)| curves(mode, &slots))
        .collect()
}

/// Requests per second in the closed loop of one slot.
pub fn capacity_rps(slot: &Slot) -> f64 {
    per_second(
        slot.capacity.completed as f64,
        slot.capacity.started,
        slot.capacity.ended,
    )
}

fn by_mode<'a>(
    slots: impl IntoIterator<Item = &'a Slot>,
) -> Vec<(Mode, Vec<(&'a Slot, &'a Open)>)> {
    let slots: Vec<&Slot> = slots.into_iter().collect();
    Mode::ALL
        .into_iter()
        .map(|mode| {
            let of_mode = slots.iter().copied().filter(|slot| slot.mode == mode);
            (
                mode,
                of_mode
                    .filter_map(|slot| slot.open.as_ref().map(|open| (slot, open)))
                    .collect::<Vec<_>>(),
            )
        })
        .filter(|(_, slots)| !slots.is_empty())
        .collect()
}

fn row(mode: Mode, slots: &[(&Slot, &Open)]) -> Row {
    let mut histogram: Histogram<u64> = latencies::empty();
    for (_, open) in slots {
        latencies::add_pairs(&mut histogram, &open.histogram);
    }
    let mean = |of: &dyn Fn(&Slot, &Open) -> f64| {
        slots.iter().map(|(slot, open)| of(slot, open)).sum::<f64>() / slots.len() as f64
    };
    let open_rate = |field: fn(&Sample) -> f64| {
        mean(&|slot, open| rate_between(&slot.samples, open.started, open.ended, &field))
    };
    let group_rate = |field: fn(&GroupCpu) -> u64| {
        let known = slots
            .iter()
            .all(|(slot, _)| slot.samples.iter().all(|sample| sample.groups.is_some()));
        known.then(|| {
            mean(&|slot, open| {
                rate_between(
                    &slot.samples,
                    open.started,
                    open.ended,
                    &|sample: &Sample| {
                        sample
                            .groups
                            .as_ref()
                            .map_or(0.0, |groups| field(groups) as f64 / 1e9)
                    },
                )
            })
        })
    };
    let capacities: Vec<f64> = slots.iter().map(|(slot, _)| capacity_rps(slot)).collect();
    Row {
        mode,
        victim_rps: mean(&|_, open| per_second(open.completed as f64, open.started, open.ended)),
        offered_rps: mean(&|_, open| per_second(open.intended as f64, open.started, open.ended)),
        p50_us: histogram.value_at_quantile(0.5),
        p99_us: histogram.value_at_quantile(0.99),
        max_us: histogram.max(),
        unanswered: slots.iter().map(|(_, open)| open.unanswered).sum(),
        hog_cpu: open_rate(hog_cpu_seconds),
        victim_cpu: open_rate(victim_cpu_seconds),
        hog_documents_per_second: open_rate(|sample| sample.hog_documents as f64),
        hog_group_cpu: group_rate(|groups| groups.hogs_ns),
        victim_group_cpu: group_rate(|groups| groups.victim_ns),
        capacity_rps: median(capacities.clone()),
        capacity_range_rps: capacities
            .iter()
            .fold((f64::INFINITY, 0.0), |(least, most), capacity| {
                (capacity.min(least), capacity.max(most))
            }),
        capacity_hog_cpu: mean(&|slot, _| {
            rate_between(
                &slot.samples,
                slot.capacity.started,
                slot.capacity.ended,
                &hog_cpu_seconds,
            )
        }),
    }
}

fn curves(mode: Mode, slots: &[(&Slot, &Open)]) -> Series {
    let round_seconds = slots
        .iter()
        .map(|(_, open)| open.ended.since(open.started).as_secs_f64())
        .fold(0.0, f64::max);
    let (mut cpu, mut p99) = (Vec::new(), Vec::new());
    for (index, (slot, open)) in slots.iter().enumerate() {
        let offset = index as f64 * round_seconds;
        let seconds = |at: SharedMicros| offset + at.since(open.started).as_secs_f64();
        // An interval that began in the closed loop says nothing about the open one.
        let inside = slot
            .samples
            .windows(2)
            .filter(|pair| pair[0].at >= open.started && pair[0].at < open.ended);
        cpu.push(
            inside
                .map(|pair| CpuPoint {
                    from: seconds(pair[0].at),
                    to: seconds(pair[1].at.min(open.ended)),
                    victim: difference(&pair[0], &pair[1], victim_cpu_seconds),
                    hogs: difference(&pair[0], &pair[1], hog_cpu_seconds),
                })
                .collect(),
        );
        p99.push(
            open.windows
                .iter()
                .map(|window| (offset + window.offset_us as f64 / 1e6, window.p99_us))
                .collect(),
        );
    }
    Series {
        mode,
        round_seconds,
        cpu,
        p99,
    }
}

fn hog_cpu_seconds(sample: &Sample) -> f64 {
    sample.hog_cpu_ns as f64 / 1e9
}

fn victim_cpu_seconds(sample: &Sample) -> f64 {
    // A hog's poll is counted when it ends, so that in short intervals the difference can dip below zero.
    (sample.process_cpu_ns as f64 - sample.hog_cpu_ns as f64) / 1e9
}

/// Growth of a counter per second between two samples, never negative.
fn difference(before: &Sample, after: &Sample, field: fn(&Sample) -> f64) -> f64 {
    ((field(after) - field(before)) / after.at.since(before.at).as_secs_f64().max(1e-9)).max(0.0)
}

/// Growth of a counter per second from `start` to `end`, between samples by linear interpolation.
fn rate_between(
    samples: &[Sample],
    start: SharedMicros,
    end: SharedMicros,
    field: &dyn Fn(&Sample) -> f64,
) -> f64 {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return 0.0;
    };
    let (start, end) = (start.max(first.at), end.min(last.at));
    let at = |moment: SharedMicros| {
        let after = samples
            .partition_point(|sample| sample.at < moment)
            .clamp(1, samples.len() - 1);
        let (left, right) = (&samples[after - 1], &samples[after]);
        let part =
            moment.since(left.at).as_secs_f64() / right.at.since(left.at).as_secs_f64().max(1e-9);
        field(left) + (field(right) - field(left)) * part.min(1.0)
    };
    if samples.len() < 2 || end <= start {
        return 0.0;
    }
    ((at(end) - at(start)) / end.since(start).as_secs_f64()).max(0.0)
}

fn per_second(count: f64, started: SharedMicros, ended: SharedMicros) -> f64 {
    count / ended.since(started).as_secs_f64().max(1e-9)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::disturbance::Met;
    use super::super::protocol::{Capacity, ClientThreads, Window};
    use super::*;

    fn sample(second: u64) -> Sample {
        Sample {
            at: SharedMicros(second * 1_000_000),
            process_cpu_ns: second * 900_000_000,
            hog_cpu_ns: second * 600_000_000,
            hog_documents: second * 10,
            requests: second * 5,
            waited_ns: 0,
            groups: None,
        }
    }

    fn slot(completed: u64, latency_us: u64) -> Slot {
        Slot {
            mode: Mode::Alone,
            capacity: Capacity {
                started: SharedMicros(0),
                ended: SharedMicros(2_000_000),
                completed,
                threads: ClientThreads::default(),
            },
            open: Some(Open {
                started: SharedMicros(2_500_000),
                ended: SharedMicros(4_500_000),
                intended: 200,
                completed: 100,
                unanswered: 3,
                histogram: vec![(latency_us, 100)],
                windows: vec![Window {
                    offset_us: 0,
                    count: 100,
                    p99_us: latency_us,
                }],
                threads: ClientThreads::default(),
            }),
            samples: (0..=6).map(sample).collect(),
            met: Met::default(),
        }
    }

    #[test]
    fn a_row_sums_up_its_rounds() {
        let rows = rows(&[slot(200, 1_000), slot(400, 9_000), slot(1_000, 1_000)]);
        let [row] = rows.as_slice() else {
            panic!("one mode, one row: {rows:?}")
        };
        assert!(
            (row.capacity_rps - 200.0).abs() < 1e-9,
            "median of 100, 200 and 500: {}",
            row.capacity_rps
        );
        assert_eq!(row.capacity_range_rps, (100.0, 500.0));
        assert!((row.victim_rps - 50.0).abs() < 1e-9 && (row.offered_rps - 100.0).abs() < 1e-9);
        assert!((row.hog_cpu - 0.6).abs() < 1e-6 && (row.victim_cpu - 0.3).abs() < 1e-6);
        assert!((row.hog_documents_per_second - 10.0).abs() < 1e-6);
        assert_eq!((row.unanswered, row.p50_us / 10), (9, 100));
        assert!((8_990..=9_010).contains(&row.p99_us) && row.max_us >= row.p99_us);
    }

    #[test]
    fn curves_put_rounds_behind_each_other_and_stay_inside() {
        let series = series(&[slot(1, 5), slot(1, 7)]);
        let [series] = series.as_slice() else {
            panic!("one mode, one series")
        };
        assert_eq!(series.p99, [vec![(0.0, 5)], vec![(2.0, 7)]]);
        let all: Vec<_> = series.cpu.iter().flatten().collect();
        assert!(
            all.iter()
                .all(|point| point.from >= 0.0 && point.to <= 4.0 && point.from < point.to)
        );
        assert!(
            all.iter()
                .all(|point| (point.hogs - 0.6).abs() < 1e-6 && (point.victim - 0.3).abs() < 1e-6)
        );
    }

    #[test]
    fn a_phase_outside_the_samples_has_no_rate() {
        let samples: Vec<_> = (0..=2).map(sample).collect();
        let rate = rate_between(
            &samples,
            SharedMicros(5_000_000),
            SharedMicros(6_000_000),
            &hog_cpu_seconds,
        );
        assert_eq!(rate.to_bits(), 0.0_f64.to_bits());
    }
}
