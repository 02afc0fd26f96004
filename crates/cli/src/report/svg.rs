//! Charts as inline SVG. Colours and fonts are CSS variables of the page, so that they follow light and dark.

use std::fmt::Write as _;

use crate::demo::results::Series;

/// Width of a time chart, in SVG units.
const WIDTH: f64 = 480.0;
/// Height of a time chart.
const HEIGHT: f64 = 170.0;
/// Room for the labels left of the plot.
const LEFT: f64 = 58.0;
/// Room right of the plot.
const RIGHT: f64 = 10.0;
/// Room above the plot.
const TOP: f64 = 8.0;
/// Room for the labels below the plot.
const BOTTOM: f64 = 30.0;

/// From values to places.
struct Frame {
    seconds: f64,
}

impl Frame {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (seconds / self.seconds.max(1e-9)).clamp(0.0, 1.0)
    }

    /// `part` of the plot's height, 0 at the bottom.
    fn y(&self, part: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part.clamp(0.0, 1.0)
    }

    fn open(&self, label: &str) -> String {
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">")
    }

    fn grid(&self, part: f64, label: &str) -> String {
        let y = self.y(part);
        let (x, right) = (LEFT - 6.0, WIDTH - RIGHT);
        format!(
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{x}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            y + 4.0
        )
    }

    /// Time axis, and a thin line where one round ends and the next begins.
    fn time_axis(&self, series: &Series) -> String {
        let mut text = String::new();
        for round in 1..series.p99.len() {
            let x = self.x(round as f64 * series.round_seconds);
            let _ = write!(
                text,
                "<line class=\"round\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{}\"/>",
                HEIGHT - BOTTOM
            );
        }
        let step = nice_step(self.seconds / 5.0);
        let mut seconds = 0.0;
        while seconds <= self.seconds + 1e-6 {
            let unit = if seconds == 0.0 { " s" } else { "" };
            let _ = write!(
                text,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}{unit}</text>",
                self.x(seconds),
                HEIGHT - BOTTOM + 18.0,
                trim(seconds)
            );
            seconds += step;
        }
        text
    }
}

/// Stacked CPU by group over time; `cpus` is the top of the scale.
pub fn cpu(series: &Series, cpus: f64) -> String {
    let frame = Frame {
        seconds: series.round_seconds * series.cpu.len() as f64,
    };
    let mut text = frame.open(&format!("CPU by group over time, {}", series.mode));
    for round in &series.cpu {
        let (mut victim, mut hogs) = (String::new(), String::new());
        for point in round {
            let (left, right) = (frame.x(point.from), frame.x(point.to));
            let (low, high) = (
                frame.y(point.victim / cpus),
                frame.y((point.victim + point.hogs) / cpus),
            );
            let _ = write!(
                victim,
                "M{left:.1} {:.1}V{low:.1}H{right:.1}V{:.1}Z",
                frame.y(0.0),
                frame.y(0.0)
            );
            let _ = write!(hogs, "M{left:.1} {low:.1}V{high:.1}H{right:.1}V{low:.1}Z");
        }
        let _ = write!(
            text,
            "<path class=\"victim\" d=\"{victim}\"/><path class=\"hogs\" d=\"{hogs}\"/>"
        );
    }
    let step = nice_step(cpus / 3.0);
    let mut level = 0.0;
    while level <= cpus + 1e-6 {
        let unit = if level == 0.0 { "" } else { " CPU" };
        text += &frame.grid(level / cpus, &format!("{}{unit}", trim(level)));
        level += step;
    }
    text + &frame.time_axis(series) + "</svg>"
}

/// p99 over time on a logarithmic scale between two powers of ten of microseconds.
pub fn p99(series: &Series, decades: (u32, u32)) -> String {
    let frame = Frame {
        seconds: series.round_seconds * series.p99.len() as f64,
    };
    let mut text = frame.open(&format!("p99 over time, {}", series.mode));
    for decade in decades.0..=decades.1 {
        text += &frame.grid(part_of(10u64.pow(decade), decades), &decade_label(decade));
    }
    text += &frame.time_axis(series);
    for round in &series.p99 {
        let mut path = String::new();
        for (index, (seconds, micros)) in round.iter().enumerate() {
            let end = round
                .get(index + 1)
                .map_or(series_end(series, *seconds), |next| next.0);
            let letter = if index == 0 { 'M' } else { 'L' };
            let y = frame.y(part_of(*micros, decades));
            let _ = write!(
                path,
                "{letter}{:.1} {y:.1}H{:.1}",
                frame.x(*seconds),
                frame.x(end)
            );
        }
        let _ = write!(text, "<path class=\"latency\" d=\"{path}\"/>");
    }
    text + "</svg>"
}

fn series_end(series: &Series, seconds: f64) -> f64 {
    ((seconds / series.round_seconds.max(1e-9)).floor() + 1.0) * series.round_seconds
}

/// One bar a mode on a logarithmic scale: label, microseconds, CSS class.
pub fn bars(bars: &[(&str, u64, &str)], decades: (u32, u32)) -> String {
    const LABELS: f64 = 150.0;
    const VALUES: f64 = 90.0;
    const LINE: f64 = 34.0;
    const FULL: f64 = 980.0;
    let plot = FULL - LABELS - VALUES;
    let height = bars.len() as f64 * LINE + 26.0;
    let mut text = format!(
        "<svg viewBox=\"0 0 {FULL} {height}\" role=\"img\" aria-label=\"p99 latency of the victim by mode\">"
    );
    for decade in decades.0..=decades.1 {
        let x = LABELS + plot * part_of(10u64.pow(decade), decades);
        let _ = write!(
            text,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{0:.1}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{2}</text>",
            height - 24.0,
            height - 8.0,
            decade_label(decade)
        );
    }
    for (index, (label, micros, class)) in bars.iter().enumerate() {
        let (y, width) = (index as f64 * LINE, plot * part_of(*micros, decades));
        let _ = write!(
            text,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\
             <rect class=\"{class}\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"3\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LABELS - 10.0,
            y + 20.0,
            y + 4.0,
            LINE - 10.0,
            LABELS + width + 8.0,
            y + 20.0,
            super::duration(*micros)
        );
    }
    text + "</svg>"
}

/// The powers of ten of microseconds that hold all `values`, at least 100 µs to 10 ms.
pub fn decades(values: impl Iterator<Item = u64>) -> (u32, u32) {
    let (mut low, mut high) = (100, 10_000);
    for value in values {
        (low, high) = (value.clamp(1, low), value.max(high));
    }
    (low.ilog10(), (high - 1).ilog10() + 1)
}

fn part_of(micros: u64, (low, high): (u32, u32)) -> f64 {
    let position = (micros.max(1) as f64).log10() - f64::from(low);
    (position / f64::from(high.saturating_sub(low).max(1))).clamp(0.0, 1.0)
}

fn decade_label(decade: u32) -> String {
    match decade {
        0..3 => format!("{} µs", 10u64.pow(decade)),
        3..6 => format!("{} ms", 10u64.pow(decade - 3)),
        _ => format!("{} s", 10u64.pow(decade - 6)),
    }
}

/// The next of 1, 2, 5, 10, ... (times a power of ten) at or above `rough`.
fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.max(1e-3).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough - 1e-9)
        .unwrap_or(power)
}

fn trim(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_hold_their_values() {
        assert_eq!(decades([700, 3_000].into_iter()), (2, 4));
        assert_eq!(decades([90, 2_300_000].into_iter()), (1, 7));
        assert_eq!(decades([1_000_000].into_iter()), (2, 6));
        assert!((part_of(1_000, (2, 4)) - 0.5).abs() < 1e-9);
        assert_eq!(
            [0.3, 1.1, 4.0, 7.0].map(nice_step).map(trim),
            ["0.5", "2", "5", "10"]
        );
        assert_eq!(
            decade_label(2) + &decade_label(4) + &decade_label(6),
            "100 µs10 ms1 s"
        );
    }
}
